/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors and files: whole reads and writes, sparse copies, atomic publication. EINTR is handled here and nowhere
 * else. All blocking; the daemon calls none of these on a peer's descriptor. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

ssize_t fd_read(int fd, void *bytes, size_t len);        /* read(2) without EINTR */
ssize_t fd_write(int fd, const void *bytes, size_t len); /* write(2) without EINTR */
int fd_write_all(int fd, const void *bytes, size_t len, struct err *e) __attribute__((nonnull(4), warn_unused_result));
/* Exactly len bytes; an early end is ERR_SYSTEM. */
int fd_read_all(int fd, void *bytes, size_t len, struct err *e) __attribute__((nonnull(4), warn_unused_result));
int fd_set_nonblocking(int fd, bool on, struct err *e) __attribute__((nonnull, warn_unused_result));
int fd_set_cloexec(int fd, bool on, struct err *e) __attribute__((nonnull, warn_unused_result));

/* The whole file into *ret_text (NUL-terminated, caller frees), at most len_max bytes, else ERR_LIMIT. */
int file_read(const char *path, size_t len_max, char **ret_text, size_t *ret_len, struct err *e)
    __attribute__((nonnull(1, 3, 5), warn_unused_result));
/* The same from an open descriptor (a pipe, a socket, a file) to its end; `name` is for messages. */
int fd_read_to_end(int fd, const char *name, size_t len_max, char **ret_text, size_t *ret_len, struct err *e)
    __attribute__((nonnull(2, 4, 6), warn_unused_result));
/* Writes path atomically: a temporary file beside it, fsync, rename. An old file stays whole on failure. */
int file_write_atomic(const char *path, const void *bytes, size_t len, mode_t mode, struct err *e)
    __attribute__((nonnull(1, 5), warn_unused_result));
/* Copies the data segments of from to the same offsets of to and sets to's size: holes stay holes. */
int file_copy_sparse(int from_fd, int to_fd, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Makes every missing folder of path with the mode (umask applies). */
int dir_make(const char *path, mode_t mode, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Removes a tree without following links; a missing one is success. */
int dir_remove(const char *path, struct err *e) __attribute__((nonnull, warn_unused_result));
