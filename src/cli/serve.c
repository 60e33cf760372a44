/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve.h"
#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct serve_options {
    uint64_t port;
    const char *host, *config;
    bool verbose;
};

#define PORT_UNSET UINT64_MAX

static const struct cli_option option_table[] = {
    {"port", 'p', CLI_NUMBER, offsetof(struct serve_options, port), 0, 65535, "PORT",
     "the port to listen on (default: the configuration's, else 49134; 0 takes a free one)"},
    {"host", 0, CLI_TEXT, offsetof(struct serve_options, host), 0, 0, "ADDRESS",
     "the numeric address to listen on (default: this host only)"},
    {"config", 'c', CLI_TEXT, offsetof(struct serve_options, config), 0, 0, "FILE", "the configuration file"},
    {0},
};

static void on_ready(const char *host, uint16_t port)
{
    bool six = strchr(host, ':') != NULL;
    printf("listening on ws://%s%s%s:%u\n", six ? "[" : "", host, six ? "]" : "", port);
    fflush(stdout);
}

static int load(struct config *config, const struct serve_options *options, struct err *e)
{
    if (config_load(config, options->config, e))
        return -1;
    if (options->port != PORT_UNSET)
        config->port = options->port;
    if (options->host) {
        free(config->host);
        config->host = xstrdup(options->host);
    }
    return 0;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct err e = ERR_INIT;
    struct serve_options options = {.port = PORT_UNSET};
    struct cli_words words;
    struct config config;
    if (cli_parse(command, argc, argv, &options, &words, &e))
        return cli_fail(command, &e, CLI_FAILED);
    if (words.words_len || words.command)
        err_set(&e, ERR_USAGE, "serve takes no words");
    config_init(&config);
    int failed = err_is_set(&e) || load(&config, &options, &e) || serve_run(&config, on_ready, &e);
    config_done(&config);
    return failed ? cli_fail(command, &e, CLI_FAILED) : CLI_OK;
}

const struct cli_command cli_serve = {
    .name = "serve",
    .summary = "run an engine on this host that iii clients connect to",
    .synopsis = "serve [FLAGS]",
    .description =
        "Runs until it is told to stop (Ctrl-C, SIGTERM). Only programs of this host reach it unless --host says otherwise;\n"
        "set `token` in the configuration then.\n"
        "\n"
        "  iii-sandbox serve\n"
        "  iii-sandbox serve --port 0 --config ./config.yaml",
    .options = option_table,
    .run = run,
};
