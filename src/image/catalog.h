/* SPDX-License-Identifier: Apache-2.0 */
/* What images there are: names to recipes (presets, sources), and the small file in images/ that says what was made of one.
 * Pure: text in, values out. */
#pragma once

#include "base/alloc.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* How an image is made, and what its programs start with. */
struct recipe {
    char *name;   /* as asked for */
    char *source; /* "debian:bookworm+python3,...", "tar:/abs/file", "dir:/abs/folder" */
    struct strv env, entrypoint, command;
    char *workdir, *user; /* "" when there is none */
};
void recipe_done(struct recipe *recipe);

/* The recipe of a preset or of a source given as a name. ERR_IMAGE_REFUSED: neither. */
int catalog_find(const char *name, struct recipe *ret_recipe, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Names of the presets, NULL-terminated. */
const char *const *catalog_presets(void);
/* The file name of an image in images/: the name with everything but letters, digits, ".", "-", "_" as %XX; a long one ends in
 * its hash. */
char *catalog_file_name(const char *name) __attribute__((nonnull));

/* The record: what was made. Its file ends in a line "end", so that a cut file is seen. */
struct record {
    struct recipe recipe;
    char digest[65];
    uint64_t bytes;
    uint64_t made_secs; /* since 1970 */
};
void record_done(struct record *record);
char *record_format(const struct record *record) __attribute__((nonnull)); /* text, owned by the caller */
int record_parse(const char *text, struct record *ret_record, struct err *e) __attribute__((nonnull, warn_unused_result));
bool recipe_equals(const struct recipe *a, const struct recipe *b) __attribute__((nonnull));
