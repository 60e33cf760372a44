/* SPDX-License-Identifier: Apache-2.0 */
/* Content: gathered into pieces of IMAGE_PIECE_BYTES, written straight to the descriptor, described by extents. The first
 * four extents fit into the inode; from the fifth on libext2fs keeps the extent tree. */
#include "imager/ext4_priv.h"

#include "base/check.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int ext4_read_inode(struct ext4 *w, uint32_t inode, struct ext2_inode_large *node, struct err *e)
{
    errcode_t r = ext2fs_read_inode_full(w->fs, inode, (struct ext2_inode *)node, sizeof *node);
    return r ? ext4_failed(w, r, "read an inode", e) : 0;
}

int ext4_write_inode(struct ext4 *w, uint32_t inode, struct ext2_inode_large *node, struct err *e)
{
    errcode_t r = ext2fs_write_inode_full(w->fs, inode, (struct ext2_inode *)node, sizeof *node);
    return r ? ext4_failed(w, r, "write an inode", e) : 0;
}

void ext4_content_begin(struct ext4 *w, uint32_t inode, const struct ext2_inode_large *node)
{
    CHECK(!w->content.inode);
    w->content = (struct ext4_content){.node = *node, .inode = inode};
}

void ext4_content_drop(struct ext4 *w)
{
    if (w->content.more)
        ext2fs_extent_free(w->content.more);
    w->content = (struct ext4_content){0};
}

static int insert_extent(struct ext4 *w, struct ext2fs_extent *extent, struct err *e)
{
    errcode_t r = ext2fs_extent_insert(w->content.more, EXT2_EXTENT_INSERT_AFTER, extent);
    if (!r)
        r = ext2fs_extent_fix_parents(w->content.more);
    return r ? ext4_failed(w, r, "add an extent", e) : 0;
}

static int open_extent_tree(struct ext4 *w, struct err *e)
{
    struct ext4_content *c = &w->content;
    c->node.i_flags |= EXT4_EXTENTS_FL;
    memset(c->node.i_block, 0, sizeof c->node.i_block);
    if (ext4_write_inode(w, c->inode, &c->node, e))
        return -1;
    errcode_t r = ext2fs_extent_open2(w->fs, c->inode, (struct ext2_inode *)&c->node, &c->more);
    if (r)
        return ext4_failed(w, r, "open the extents", e);
    for (unsigned i = 0; i < c->extents_len; i++)
        if (insert_extent(w, &c->extents[i], e))
            return -1;
    return 0;
}

/* The growing extent is complete. */
static int keep_extent(struct ext4 *w, struct err *e)
{
    struct ext4_content *c = &w->content;
    struct ext2fs_extent extent = c->last;
    c->last = (struct ext2fs_extent){0};
    if (!extent.e_len)
        return 0;
    if (!c->more && c->extents_len < 4) {
        c->extents[c->extents_len++] = extent;
        return 0;
    }
    if (!c->more && open_extent_tree(w, e))
        return -1;
    return insert_extent(w, &extent, e);
}

static int write_piece(struct ext4 *w, uint32_t block, size_t len, struct err *e)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(w->fd, w->piece + done, len - done, (off_t)block * BLOCK_BYTES + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, errno, "write the image");
        done += (size_t)n;
    }
    return 0;
}

static int flush_piece(struct ext4 *w, struct err *e)
{
    struct ext4_content *c = &w->content;
    if (!c->piece_len)
        return 0;
    uint32_t blocks = (uint32_t)((c->piece_len + BLOCK_BYTES - 1) / BLOCK_BYTES), block;
    memset(w->piece + c->piece_len, 0, (size_t)blocks * BLOCK_BYTES - c->piece_len);
    if (ext4_take_blocks(w, blocks, &block, e) || write_piece(w, block, (size_t)blocks * BLOCK_BYTES, e))
        return -1;
    ext2fs_iblk_add_blocks(w->fs, (struct ext2_inode *)&c->node, blocks);
    struct ext2fs_extent *last = &c->last;
    bool joins = last->e_len && last->e_lblk + last->e_len == c->piece_block && last->e_pblk + last->e_len == block;
    if (!joins || last->e_len + blocks > EXTENT_BLOCKS_MAX) {
        if (keep_extent(w, e))
            return -1;
        *last = (struct ext2fs_extent){.e_lblk = c->piece_block, .e_pblk = block};
    }
    last->e_len += blocks;
    c->piece_block += blocks;
    c->piece_len = 0;
    return 0;
}

/* Makes `offset` the next byte of the piece: the rest of a begun block is zeros, whole blocks between are a hole. */
static int move_to(struct ext4 *w, uint64_t offset, struct err *e)
{
    struct ext4_content *c = &w->content;
    uint64_t end = (uint64_t)c->piece_block * BLOCK_BYTES + c->piece_len;
    if (offset == end)
        return 0;
    uint64_t block_end = (end + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    if (!c->piece_len || offset >= block_end) {
        if (flush_piece(w, e))
            return -1;
        c->piece_block = (uint32_t)(offset / BLOCK_BYTES);
        end = (uint64_t)c->piece_block * BLOCK_BYTES;
    }
    memset(w->piece + c->piece_len, 0, (size_t)(offset - end));
    c->piece_len += (size_t)(offset - end);
    return 0;
}

int ext4_content_write(struct ext4 *w, const void *bytes, size_t len, uint64_t offset, struct err *e)
{
    struct ext4_content *c = &w->content;
    CHECK(c->inode);
    if (offset < c->reached || offset > IMAGE_FILE_BYTES_MAX || len > IMAGE_FILE_BYTES_MAX - offset)
        return err_set(e, ERR_INVALID, "content at %llu, after %llu was reached", (unsigned long long)offset,
                       (unsigned long long)c->reached);
    if (!len)
        return 0;
    if (move_to(w, offset, e))
        return -1;
    c->reached = offset + len;
    while (len) {
        size_t room = IMAGE_PIECE_BYTES - c->piece_len, n = len < room ? len : room;
        memcpy(w->piece + c->piece_len, bytes, n);
        c->piece_len += n;
        bytes = (const uint8_t *)bytes + n;
        len -= n;
        if (c->piece_len == IMAGE_PIECE_BYTES && flush_piece(w, e))
            return -1;
    }
    return 0;
}

/* The extents of a file that needed no tree: header and up to four entries in the inode (ext4's on-disk form). */
static void put_extents(struct ext4_content *c)
{
    struct {
        struct ext3_extent_header header;
        struct ext3_extent extents[4];
    } in = {.header = {.eh_magic = EXT3_EXT_MAGIC, .eh_entries = (uint16_t)c->extents_len, .eh_max = 4}};
    static_assert(sizeof in == sizeof c->node.i_block, "the inode holds a header and four extents");
    for (unsigned i = 0; i < c->extents_len; i++)
        in.extents[i] = (struct ext3_extent){.ee_block = (uint32_t)c->extents[i].e_lblk,
                                             .ee_len = (uint16_t)c->extents[i].e_len,
                                             .ee_start_hi = (uint16_t)(c->extents[i].e_pblk >> 32),
                                             .ee_start = (uint32_t)c->extents[i].e_pblk};
    memcpy(c->node.i_block, &in, sizeof in);
}

int ext4_content_end(struct ext4 *w, uint64_t size, struct err *e)
{
    struct ext4_content *c = &w->content;
    if (c->reached > size)
        return err_set(e, ERR_INVALID, "%llu bytes of content for a size of %llu", (unsigned long long)c->reached,
                       (unsigned long long)size);
    if (flush_piece(w, e) || keep_extent(w, e))
        return -1;
    c->node.i_flags |= EXT4_EXTENTS_FL;
    if (!c->more)
        put_extents(c);
    c->node.i_size = (uint32_t)size;
    c->node.i_size_high = (uint32_t)(size >> 32);
    if (ext4_write_inode(w, c->inode, &c->node, e))
        return -1;
    ext4_content_drop(w);
    return 0;
}

/* The bytes of a freed block are nobody's: give them back to the host. A host that cannot do that loses only space. */
static int release_block(ext2_filsys fs, blk64_t *block, e2_blkcnt_t logical, blk64_t reference, int offset, void *context)
{
    (void)logical;
    (void)reference;
    (void)offset;
    struct ext4 *w = context;
    (void)fallocate(w->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)*block * BLOCK_BYTES, BLOCK_BYTES);
    ext2fs_block_alloc_stats2(fs, *block, -1);
    return 0;
}

int ext4_release_inode(struct ext4 *w, uint32_t inode, struct err *e)
{
    struct ext2_inode_large node;
    if (ext4_read_inode(w, inode, &node, e))
        return -1;
    if (ext2fs_inode_has_valid_blocks2(w->fs, (struct ext2_inode *)&node)) {
        errcode_t r = ext2fs_block_iterate3(w->fs, inode, BLOCK_FLAG_READ_ONLY, NULL, release_block, w);
        if (r)
            return ext4_failed(w, r, "free blocks", e);
    }
    blk64_t xattrs = ext2fs_file_acl_block(w->fs, (struct ext2_inode *)&node);
    if (xattrs)
        release_block(w->fs, &xattrs, 0, 0, 0, w);
    ext2fs_inode_alloc_stats2(w->fs, inode, -1, LINUX_S_ISDIR(node.i_mode));
    memset(&node, 0, sizeof node);
    return ext4_write_inode(w, inode, &node, e);
}
