/* SPDX-License-Identifier: Apache-2.0 */
/* `run`: its flags, and what they and the image's own settings make of the guest's command. Pure but for reading the
 * environment for `-e NAME`. */
#pragma once

#include "cli/command.h"
#include "image/image.h"
#include "wire/message.h"

struct run_options {
    struct strv env;                   /* "K=V" or "K" (the value is ours) */
    uint64_t memory_mb, cpus, disk_mb; /* 0: what the configuration says */
    uint64_t timeout_ms;               /* 0: none */
    const char *workdir, *user, *lang, *config;
    const char *accel;       /* NULL: what the configuration says */
    struct strv files, outs; /* --file, --out */
    bool tty, json;
};

extern const struct cli_option run_option_table[];

void run_options_done(struct run_options *options);

/* A language of --lang: the program that runs a script, and the script's path in the guest. */
struct run_language {
    const char *names[4]; /* NULL-terminated */
    const char *program, *path;
};

/* By name, any case; NULL when unknown. */
const struct run_language *run_language_find(const char *name) __attribute__((nonnull));

/* Checks words against options: IMAGE [SCRIPT]; ERR_USAGE says what is missing or too much. */
int run_options_check(const struct run_options *options, const struct cli_words *words, struct err *e)
    __attribute__((nonnull, warn_unused_result));

/* The guest's command: argv from `command` after --, or the image's entrypoint and command, or the language's program; the
 * environment is the image's with -e over it. The caller frees by wire_request_done. */
int run_request_make(const struct run_options *options, const struct cli_words *words, const struct image *image,
                     struct wire_request *ret_request, struct err *e) __attribute__((nonnull, warn_unused_result));
