/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <sys/types.h>

/* The bytes of fd, to its end, become the file `path` with exactly this mode: a temporary file beside it, synced, then renamed
 * over it. A reader sees the old file or the new one; on failure the old one stays and nothing else is left. Blocks; runs in a
 * worker process. A path that is there and no regular file is ERR_FS_WRONG_KIND. */
int file_replace(int fd, const char *path, mode_t mode, bool make_parents, struct err *e)
    __attribute__((nonnull, warn_unused_result));
