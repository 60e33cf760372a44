/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the store: folders, locks, temporary things. Nothing outside src/image includes this. */
#pragma once

#include "image/image.h"

#include "base/cleanup.h"

#include <signal.h>

struct store {
    char *dir;
    struct strv notes; /* what was thrown away at opening, for the user */
};

/* "<dir>/<folder>/<name>", owned by the caller. */
char *store_path(const struct store *store, const char *folder, const char *name) __attribute__((nonnull));
/* Remembers a sentence for store_notes. */
void store_note(struct store *store, const char *format, ...) __attribute__((nonnull, format(printf, 2, 3)));

/* The exclusive lock of one thing ("image-python", "kernel"), waiting for another holder (progress says so). Closing the
 * descriptor gives it back; so does death. */
int store_lock(struct store *store, const char *thing, const struct image_progress *progress, int *ret_fd, struct err *e)
    __attribute__((nonnull(1, 2, 4, 5), warn_unused_result));

/* A new folder in scratch/ whose name holds the lock's: whoever opens the store and can take that lock removes it. */
char *store_scratch_folder(struct store *store, const char *thing, struct err *e) __attribute__((nonnull, warn_unused_result));
/* A file without a name in `folder` (O_TMPFILE, or a name that is gone at once). */
int store_unnamed_file(struct store *store, const char *folder, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Writes folder/name as a whole or not at all; the temporary lies in scratch/ under the lock's name. */
int store_write_file(struct store *store, const char *thing, const char *folder, const char *name, const void *bytes, size_t len,
                     struct err *e) __attribute__((nonnull, warn_unused_result));
/* ERR_ENVIRONMENT with folder and numbers when less than bytes are free. `purpose`: "preparing an image". */
int store_check_free(struct store *store, uint64_t bytes, const char *purpose, struct err *e)
    __attribute__((nonnull, warn_unused_result));

/* sha256 of a descriptor's content from its start; holes are not read but count as zeros. */
int hash_fd(int fd, char ret_hex[65], struct err *e) __attribute__((nonnull, warn_unused_result));
void hash_bytes(const void *bytes, size_t len, char ret_hex[65]) __attribute__((nonnull(3)));

/* Progress: at most ten calls a second besides changes of stage. Safe on NULL. */
void progress_stage(const struct image_progress *progress, const char *stage, uint64_t done, uint64_t total);
bool progress_cancelled(const struct image_progress *progress);
