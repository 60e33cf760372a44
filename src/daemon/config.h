/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file: YAML, one mapping, its keys in one table. An unknown key is an error that names the line, the
 * column and the nearest known key; so is a value of the wrong type or out of its range. */
#pragma once

#include "base/alloc.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct config {
    char *host;    /* NULL: loopback */
    uint64_t port; /* 0 in no file; the default is set by config_init */
    char *token;   /* NULL: none */
    struct strv allowed_origins;
};

void config_init(struct config *config) __attribute__((nonnull));
void config_done(struct config *config);
/* Values of the text replace those of the config. `name` stands for the file in messages. */
int config_parse(struct config *config, const char *name, const char *text, size_t len, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* path NULL: the default place, where a missing file is no error. A named file that is missing is ERR_USAGE. */
int config_load(struct config *config, const char *path, struct err *e) __attribute__((nonnull(1, 3), warn_unused_result));
