/* SPDX-License-Identifier: Apache-2.0 */
/* The initramfs: a newc cpio archive (Linux Documentation/driver-api/early-userspace/buffer-format.rst), built in memory.
 * Pure. All owners are root, all times 0: the same content gives the same bytes. */
#pragma once

#include "base/buf.h"

#include <stdint.h>

/* Begin with an empty buffer whose maximum is INITRAMFS_BYTES_MAX; end with initramfs_end. Names have no leading slash. */
int initramfs_folder(struct buf *archive, const char *name, unsigned mode, struct err *e)
    __attribute__((nonnull, warn_unused_result));
int initramfs_file(struct buf *archive, const char *name, unsigned mode, const void *bytes, size_t len, struct err *e)
    __attribute__((nonnull(1, 2, 6), warn_unused_result));
int initramfs_char_device(struct buf *archive, const char *name, unsigned mode, unsigned major, unsigned minor, struct err *e)
    __attribute__((nonnull, warn_unused_result));
int initramfs_end(struct buf *archive, struct err *e) __attribute__((nonnull, warn_unused_result));
