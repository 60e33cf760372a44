/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A caller may have closed 0, 1 or 2; a descriptor of ours must never land there. */
static int open_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return -1;
    return 0;
}

static int unknown_command(const char *name)
{
    const char *near = cli_nearest(name);
    fprintf(stderr, "error: there is no command '%s'", name);
    if (near)
        fprintf(stderr, " (did you mean %s?)", near);
    fputs("\ntry: iii-sandbox help\n", stderr);
    return CLI_USAGE;
}

int main(int argc, char **argv)
{
    if (open_standard_streams())
        return CLI_OUR_FAILURE;
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error of the write */
    if (argc < 2) {
        fputs("usage: iii-sandbox COMMAND ...\ntry: iii-sandbox help\n", stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    if (strcmp(name, "--version") == 0)
        name = "version";
    const struct cli_command *command = cli_find(name);
    if (!command)
        return unknown_command(name);
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            cli_help_command(command);
            return CLI_OK;
        }
    int status = command->run(command, argc - 1, argv + 1);
    if (fflush(stdout) && status == CLI_OK) {
        fputs("error: standard output cannot be written\n", stderr);
        status = CLI_FAILED;
    }
    return status;
}
