/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"

#include <stdio.h>

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct err e = ERR_INIT;
    struct cli_words words;
    if (cli_parse(command, argc, argv, NULL, &words, &e))
        return cli_fail(command, &e, CLI_FAILED);
    puts("iii-sandbox " III_SANDBOX_VERSION);
    return CLI_OK;
}

const struct cli_command cli_version = {.name = "version", .summary = "print the version", .synopsis = "version", .run = run};
