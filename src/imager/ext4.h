/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one ext4 image from a stream of entries, in one pass.
 *
 * Everything is put down in the order it comes: file content, then the tables of a block group when its first inode is
 * needed, at a block number that only grows (flex_bg allows tables anywhere). Names are kept in memory (tree.h); folders
 * are written at the end, sorted and hashed when they take more than a block, so a later entry never disturbs a folder's
 * times. At the end the block groups that nothing reached are cut off, so the file is as long as its content asks for and
 * no longer; tables that were not used are holes. The same entries give the same bytes: no clock, no random value.
 *
 * A failure leaves the writer unusable except for ext4_free; the file is then worthless. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ext4;

struct ext4_time {
    int64_t secs;
    uint32_t nanos;
};

/* What every inode has. `mode` has permission bits only (07777). */
struct ext4_attrs {
    uint32_t mode, uid, gid;
    struct ext4_time mtime, atime;
};

/* Where an entry goes: its folder exists, its name is checked. */
struct ext4_place {
    uint32_t folder; /* node */
    const char *name;
    size_t len; /* 0: the root itself */
};

/* fd: an empty regular file, read-write, borrowed. bytes_max: the file's greatest length. */
struct ext4 *ext4_new(int fd, uint64_t bytes_max, struct err *e) __attribute__((warn_unused_result));
void ext4_free(struct ext4 *w);

/* Finds where `path` goes, following links of its folders inside the image only; folders that are missing are made with
 * mode 0755. `name` of the place points into `path`. ERR_INVALID for "..", for a folder that is none, for too many links. */
int ext4_place(struct ext4 *w, const char *path, struct ext4_time when, struct ext4_place *ret_place, struct err *e)
    __attribute__((nonnull, warn_unused_result));

/* Each of these replaces what is at the place; only a folder on a folder keeps what is in it. The inode is returned for
 * ext4_xattr. */
int ext4_folder(struct ext4 *w, const struct ext4_place *place, const struct ext4_attrs *attrs, uint32_t *ret_inode,
                struct err *e) __attribute__((nonnull, warn_unused_result));
int ext4_symlink(struct ext4 *w, const struct ext4_place *place, const struct ext4_attrs *attrs, const char *target,
                 uint32_t *ret_inode, struct err *e) __attribute__((nonnull, warn_unused_result));
/* kind: S_IFCHR, S_IFBLK or S_IFIFO. */
int ext4_special(struct ext4 *w, const struct ext4_place *place, const struct ext4_attrs *attrs, uint32_t kind, uint32_t major,
                 uint32_t minor, uint32_t *ret_inode, struct err *e) __attribute__((nonnull, warn_unused_result));
int ext4_hard_link(struct ext4 *w, const struct ext4_place *place, const struct ext4_place *target, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* A regular file: begin, any number of pieces with growing offsets (what is between them is a hole), end. */
int ext4_file_begin(struct ext4 *w, const struct ext4_place *place, const struct ext4_attrs *attrs, uint64_t size,
                    uint32_t *ret_inode, struct err *e) __attribute__((nonnull, warn_unused_result));
int ext4_file_write(struct ext4 *w, const void *bytes, size_t len, uint64_t offset, struct err *e)
    __attribute__((nonnull, warn_unused_result));
int ext4_file_end(struct ext4 *w, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Adds or replaces one extended attribute by its full name ("user.x", "system.posix_acl_access" in the kernel's form). */
int ext4_xattr(struct ext4 *w, uint32_t inode, const char *name, const void *value, size_t len, struct err *e)
    __attribute__((nonnull(1, 3, 6), warn_unused_result));

/* Folders, tables, superblock; sets the file's length. */
int ext4_finish(struct ext4 *w, uint64_t *ret_bytes, struct err *e) __attribute__((nonnull, warn_unused_result));
