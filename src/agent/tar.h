/* SPDX-License-Identifier: Apache-2.0 */
/* Files and folders in and out of the machine as a tar stream: ustar with pax records (POSIX.1-2017, pax) and GNU long
 * names. The header code is pure; packing and unpacking run in a worker process of their own and may block.
 * (libarchive linked static would bring libxml2 and ICU along and triple the agent.) */
#pragma once

#include "base/err.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TAR_BLOCK 512u

struct tar_header {
    char path[AGENT_TAR_PATH_MAX], link[AGENT_TAR_PATH_MAX];
    char type; /* '0' file, '1' hard link, '2' symbolic link, '3' '4' devices, '5' folder, '6' FIFO; 'x' 'g' 'L' 'K' extensions */
    uint32_t mode; /* permissions only */
    uint64_t size; /* of the bytes that follow */
    int64_t mtime;
    uint64_t uid, gid;
};

/* What extension records say about the next entry. */
struct tar_overrides {
    bool has_path, has_link, has_size, has_mtime;
    char path[AGENT_TAR_PATH_MAX], link[AGENT_TAR_PATH_MAX];
    uint64_t size;
    int64_t mtime;
};

/* 1: a header; 0: a block of zeros, the end; -1: ERR_FS_REQUEST, not a tar header. */
int tar_header_decode(const uint8_t block[TAR_BLOCK], struct tar_header *ret_header, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* Reads the body of an 'x', 'g' (ignored), 'L' or 'K' entry into the overrides. */
int tar_extension_decode(char type, const char *body, size_t len, struct tar_overrides *overrides, struct err *e)
    __attribute__((nonnull, warn_unused_result));
void tar_overrides_apply(const struct tar_overrides *overrides, struct tar_header *header) __attribute__((nonnull));

/* Appends the header block, with a pax record in front where a path, link or size does not fit. */
struct buf;
int tar_header_encode(struct buf *out, const struct tar_header *header, struct err *e)
    __attribute__((nonnull, warn_unused_result));

/* Unpacks the stream below the folder `path`: links inside it are followed, nothing that leads out of it ever is; a file in
 * the way is replaced, never written through. Modes and links are kept, the owner is root. */
int tar_unpack(int fd, const char *path, bool make_parents, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Streams `path` with everything below it; its top entry is called `name` (NULL or "": its own last part). */
int tar_pack(int fd, const char *path, const char *name, struct err *e) __attribute__((nonnull(2, 4), warn_unused_result));
/* The code for what a file operation failed with. */
enum err_code tar_code_of_errno(int sys_errno);
/* The number for struct wire_failure. */
unsigned tar_failure_code(const struct err *e) __attribute__((nonnull));
