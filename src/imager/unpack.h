/* SPDX-License-Identifier: Apache-2.0 */
/* A tar stream from a guest becomes one file or folder of the user's: `run --out`. The stream is hostile: only entries that are
 * `name` or lie below it are made, by libarchive's careful disk writer, in a process whose root is the target folder. Modes
 * and times are kept, without setuid and setgid; owners are the caller's; devices are left out. */
#pragma once

#include "base/err.h"

#include <stdint.h>

struct unpack_summary {
    uint64_t entries, content_bytes, left_out;
};

/* Loads what libarchive loads on first use, so that nothing is opened afterwards. */
void unpack_warm_up(void);
/* Reads fd to its end and makes the entries below the working directory. A stream without `name` is ERR_FS_NOT_FOUND. */
int unpack_tar(int fd, const char *name, struct unpack_summary *ret_summary, struct err *e)
    __attribute__((nonnull, warn_unused_result));
