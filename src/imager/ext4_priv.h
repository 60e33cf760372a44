/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the ext4 writer: shared by ext4.c (entries), ext4_data.c (content), ext4_folder.c (folders), ext4_finish.c. */
#pragma once

#include "imager/ext4.h"

#include "base/limits.h"
#include "imager/tree.h"

#include <ext2fs/ext2fs.h>

#define BLOCK_BYTES 4096u
#define GROUP_BLOCKS (8 * BLOCK_BYTES)
#define GROUP_INODES (8 * BLOCK_BYTES) /* the most a group can have: few files never force a long image */
#define TABLE_BLOCKS (GROUP_INODES * 256u / BLOCK_BYTES)
#define EXTENT_BLOCKS_MAX 32768u

/* The content that is being written. One at a time. */
struct ext4_content {
    struct ext2_inode_large node; /* written to the table at the end */
    uint32_t inode;               /* 0: none is open */
    uint32_t piece_block;         /* logical block where the piece starts */
    size_t piece_len;             /* bytes gathered in it */
    uint64_t reached;             /* end of the last byte written; offsets below it are refused */
    struct ext2fs_extent extents[4];
    unsigned extents_len;
    ext2_extent_handle_t more; /* from the fifth extent on */
    struct ext2fs_extent last; /* the extent that may still grow; e_len 0: none */
};

struct ext4 {
    ext2_filsys fs;
    int fd;
    struct tree tree;
    uint32_t inode_next, block_next; /* only ever grow */
    uint32_t groups_made;            /* groups 0..groups_made-1 have their tables */
    struct ext4_content content;
    uint8_t *piece; /* IMAGE_PIECE_BYTES */
};

/* An error of libext2fs with the system's own reason when there was one. Returns -1. */
int ext4_failed(struct ext4 *w, errcode_t failure, const char *what, struct err *e) __attribute__((nonnull, cold));
/* count blocks in a row, marked used. ERR_LIMIT at the image's greatest length. */
int ext4_take_blocks(struct ext4 *w, uint32_t count, uint32_t *ret_block, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* The tables of every group up to and with `group`. */
int ext4_make_groups(struct ext4 *w, uint32_t group, struct err *e) __attribute__((nonnull, warn_unused_result));

/* Content of any inode (file, long link, folder): node is the inode as far as it is known; its size is set at the end. */
void ext4_content_begin(struct ext4 *w, uint32_t inode, const struct ext2_inode_large *node) __attribute__((nonnull));
int ext4_content_write(struct ext4 *w, const void *bytes, size_t len, uint64_t offset, struct err *e)
    __attribute__((nonnull, warn_unused_result));
int ext4_content_end(struct ext4 *w, uint64_t size, struct err *e) __attribute__((nonnull, warn_unused_result));
void ext4_content_drop(struct ext4 *w) __attribute__((nonnull));
/* Gives back an inode with its blocks: its last name is gone. */
int ext4_release_inode(struct ext4 *w, uint32_t inode, struct err *e) __attribute__((nonnull, warn_unused_result));
int ext4_write_inode(struct ext4 *w, uint32_t inode, struct ext2_inode_large *node, struct err *e)
    __attribute__((nonnull, warn_unused_result));
int ext4_read_inode(struct ext4 *w, uint32_t inode, struct ext2_inode_large *node, struct err *e)
    __attribute__((nonnull, warn_unused_result));

/* Writes the entries of every folder. */
int ext4_write_folders(struct ext4 *w, struct err *e) __attribute__((nonnull, warn_unused_result));
