/* SPDX-License-Identifier: Apache-2.0 */
/* The command line as data: one table of commands (commands.c), each with its table of options in a file of its own.
 * Help text, checks, shell completion and manual pages come from these tables.
 *
 * Flags stand anywhere before `--`; what follows `--` is the guest's command and is never looked at. A value is given as
 * `--name VALUE`, `--name=VALUE` or `-n VALUE`. Parsed values are stored at an offset of the command's own struct. */
#pragma once

#include "base/alloc.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cli_exit { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_TIME_LIMIT = 124, CLI_OUR_FAILURE = 125 };

enum cli_option_kind {
    CLI_FLAG,     /* bool */
    CLI_TEXT,     /* const char *: points into argv */
    CLI_NUMBER,   /* uint64_t, from min to max */
    CLI_DURATION, /* uint64_t milliseconds */
    CLI_LIST,     /* struct strv: may be repeated */
    CLI_OPTION_KIND_COUNT
};

struct cli_option {
    const char *name; /* "memory"; NULL ends the table */
    char letter;      /* 'e' for -e, 0 for none */
    enum cli_option_kind kind;
    size_t offset;     /* of the value in the command's struct */
    uint64_t min, max; /* CLI_NUMBER */
    const char *value; /* what stands for the value in help: "MIB"; NULL for a flag */
    const char *help;
};

/* What is left after the options: the words before `--`, and those after it (NULL when there was no `--`). */
struct cli_words {
    char **words;
    size_t words_len;
    char **command;
    size_t command_len;
};

struct cli_command {
    const char *name;
    const char *summary;              /* one line for the list */
    const char *synopsis;             /* "run [FLAGS] IMAGE -- COMMAND [ARG...]" */
    const char *description;          /* paragraphs, ended by examples */
    const struct cli_option *options; /* NULL: none */
    int (*run)(const struct cli_command *command, int argc,
               char **argv); /* argv[0] is the command's name; returns the exit status */
};

extern const struct cli_command *const cli_commands[]; /* NULL-terminated, in the order of `help` */
const struct cli_command *cli_find(const char *name);
const char *cli_nearest(const char *name); /* the nearest command name, or NULL when none is near */

/* Parses argv[1..] by the command's options into `values` (zero-initialised by the caller, or holding defaults). ERR_USAGE
 * names the word and, for an unknown flag, the nearest known one. *ret_words points into argv. */
int cli_parse(const struct cli_command *command, int argc, char **argv, void *values, struct cli_words *ret_words, struct err *e)
    __attribute__((nonnull(1, 3, 5, 6), warn_unused_result)); /* values may be NULL for a command without options */
/* Prints "error: ..." with the code in brackets where it has one, and for ERR_USAGE how to get help. Returns CLI_USAGE for
 * ERR_USAGE, else `otherwise`. */
int cli_fail(const struct cli_command *command, const struct err *e, int otherwise) __attribute__((nonnull));
/* Prints the help of one command to standard output. */
void cli_help_command(const struct cli_command *command) __attribute__((nonnull));
