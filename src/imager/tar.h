/* SPDX-License-Identifier: Apache-2.0 */
/* A tar stream becomes entries of an image. libarchive reads (ustar, pax, GNU, their sparse forms); this file decides what
 * each entry means. Names are bytes: in the "C" locale libarchive hands them over as they are in the archive. */
#pragma once

#include "base/err.h"
#include "imager/ext4.h"

#include <stdbool.h>
#include <stdint.h>

struct tar_summary {
    uint64_t entries, content_bytes, input_bytes;
    uint64_t sockets_skipped, acls_skipped;
};

/* Loads what libarchive and the C library load on first use, so that nothing is opened afterwards. */
void tar_warm_up(void);
/* Reads fd to its end. compressed: gzip, xz and zstd are taken as well. on_input (may be NULL) hears of input read, about
 * every MiB. Errors name the entry. */
int tar_to_image(int fd, bool compressed, struct ext4 *image, void (*on_input)(uint64_t bytes), struct tar_summary *ret_summary,
                 struct err *e) __attribute__((nonnull(3, 5, 6), warn_unused_result));
