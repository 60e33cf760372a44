/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"

#include <stdio.h>

static void help_all(void)
{
    puts("iii-sandbox runs untrusted code in ephemeral microVMs.\n\nusage: iii-sandbox COMMAND ...\n\ncommands:");
    for (size_t i = 0; cli_commands[i]; i++)
        printf("  %-12s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
    puts("\nA first try:\n  iii-sandbox run python -- python3 -c 'print(2+2)'");
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct err e = ERR_INIT;
    struct cli_words words;
    if (cli_parse(command, argc, argv, NULL, &words, &e))
        return cli_fail(command, &e, CLI_FAILED);
    if (!words.words_len) {
        help_all();
        return CLI_OK;
    }
    const struct cli_command *found = cli_find(words.words[0]);
    if (found) {
        cli_help_command(found);
        return CLI_OK;
    }
    const char *near = cli_nearest(words.words[0]);
    err_set(&e, ERR_USAGE, "there is no command '%s'%s%s%s", words.words[0], near ? " (did you mean " : "", near ? near : "",
            near ? "?)" : "");
    return cli_fail(command, &e, CLI_FAILED);
}

const struct cli_command cli_help = {
    .name = "help",
    .summary = "show the commands, or all about one of them",
    .synopsis = "help [COMMAND]",
    .run = run,
};
