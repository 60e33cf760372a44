/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an image: cut off the groups that nothing reached, count what is free, write superblock and tables. */
#include "imager/ext4_priv.h"

#include "base/check.h"

#include <errno.h>
#include <unistd.h>

/* The groups that stay are those that the used blocks reach; each needs its tables, and these reach further. */
static int settle_groups(struct ext4 *w, uint32_t *ret_groups, struct err *e)
{
    for (;;) {
        uint32_t groups = (w->block_next + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
        if (groups < w->groups_made)
            groups = w->groups_made;
        if (groups == w->groups_made) {
            *ret_groups = groups;
            return 0;
        }
        if (ext4_make_groups(w, groups - 1, e))
            return -1;
    }
}

/* Free blocks and inodes of each group and in all, from the bitmaps. */
static void count_free(struct ext4 *w)
{
    ext2_filsys fs = w->fs;
    uint64_t all_blocks = 0;
    uint32_t all_inodes = 0;
    for (uint32_t group = 0; group < fs->group_desc_count; group++) {
        uint64_t first = (uint64_t)group * GROUP_BLOCKS, end = first + GROUP_BLOCKS;
        if (end > ext2fs_blocks_count(fs->super))
            end = ext2fs_blocks_count(fs->super);
        uint32_t free_blocks = 0;
        for (uint64_t block = first; block < end; block++)
            free_blocks += !ext2fs_fast_test_block_bitmap2(fs->block_map, block);
        ext2fs_bg_free_blocks_count_set(fs, group, free_blocks);
        ext2fs_bg_flags_clear(fs, group, EXT2_BG_BLOCK_UNINIT);
        ext2fs_bg_flags_set(fs, group, EXT2_BG_INODE_ZEROED); /* holes read as zeros */
        all_blocks += free_blocks;
        all_inodes += ext2fs_bg_free_inodes_count(fs, group);
        ext2fs_group_desc_csum_set(fs, group);
    }
    ext2fs_free_blocks_count_set(fs->super, all_blocks);
    fs->super->s_free_inodes_count = all_inodes;
}

static int shrink(struct ext4 *w, uint32_t groups, struct err *e)
{
    ext2_filsys fs = w->fs;
    uint32_t blocks = w->block_next, at_least = (groups - 1) * GROUP_BLOCKS + 64;
    if (blocks < at_least)
        blocks = at_least; /* the last group exists for its inodes; it needs some blocks */
    ext2fs_blocks_count_set(fs->super, blocks);
    fs->super->s_inodes_count = groups * GROUP_INODES;
    fs->group_desc_count = groups;
    uint32_t desc_blocks = (groups + EXT2_DESC_PER_BLOCK(fs->super) - 1) / EXT2_DESC_PER_BLOCK(fs->super);
    for (uint32_t block = 1 + desc_blocks; block < 1 + fs->desc_blocks; block++)
        ext2fs_unmark_block_bitmap2(fs->block_map, block);
    fs->desc_blocks = desc_blocks;
    errcode_t r = ext2fs_resize_inode_bitmap2(fs->super->s_inodes_count, fs->super->s_inodes_count, fs->inode_map);
    if (!r)
        r = ext2fs_resize_block_bitmap2(blocks - 1, (uint64_t)groups * GROUP_BLOCKS - 1, fs->block_map);
    return r ? ext4_failed(w, r, "cut the image", e) : 0;
}

int ext4_finish(struct ext4 *w, uint64_t *ret_bytes, struct err *e)
{
    CHECK(!w->content.inode);
    uint32_t groups;
    if (ext4_write_folders(w, e) || settle_groups(w, &groups, e) || shrink(w, groups, e))
        return -1;
    count_free(w);
    uint64_t bytes = ext2fs_blocks_count(w->fs->super) * BLOCK_BYTES;
    ext2fs_mark_super_dirty(w->fs);
    ext2fs_mark_bb_dirty(w->fs);
    ext2fs_mark_ib_dirty(w->fs);
    errcode_t r = ext2fs_flush(w->fs);
    if (r)
        return ext4_failed(w, r, "write the tables", e);
    if (ftruncate(w->fd, (off_t)bytes))
        return err_sys(e, errno, "set the image's length");
    *ret_bytes = bytes;
    return 0;
}
