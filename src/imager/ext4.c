/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/ext4_priv.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "imager/io.h"

#include <string.h>
#include <sys/stat.h>

/* Fixed, so that the same entries give the same bytes. Nothing needs them to differ between images. */
static const uint8_t image_uuid[16] = {0x11, 0x15, 0xa4, 0xdb, 0x0c, 0x5e, 0x4b, 0x1d,
                                       0x9f, 0x3e, 0x69, 0x61, 0x67, 0x65, 0x72, 0x31};
static const uint32_t hash_seed[4] = {0x69696973, 0x616e6462, 0x6f782d69, 0x6d616765};

int ext4_failed(struct ext4 *w, errcode_t failure, const char *what, struct err *e)
{
    int reason = w->fs && w->fs->io ? io_first_errno(w->fs->io) : 0;
    if (err_is_set(e)) /* a callback of ours has said it better */
        return -1;
    if (reason)
        return err_sys(e, reason, "%s", what);
    if (failure == EXT2_ET_BLOCK_ALLOC_FAIL)
        return err_set(e, ERR_LIMIT, "%s: the image is at its greatest size", what);
    if (failure == EXT2_ET_EA_NO_SPACE)
        return err_set(e, ERR_LIMIT, "%s: too large for ext4", what);
    return err_set(e, ERR_SYSTEM, "%s: %s", what, error_message(failure));
}

int ext4_take_blocks(struct ext4 *w, uint32_t count, uint32_t *ret_block, struct err *e)
{
    uint64_t all = ext2fs_blocks_count(w->fs->super);
    if (count > all - w->block_next)
        return err_set(e, ERR_LIMIT, "the image would be larger than %llu bytes (IMAGE_BYTES_MAX)",
                       (unsigned long long)all * BLOCK_BYTES);
    ext2fs_block_alloc_stats_range(w->fs, w->block_next, count, +1);
    *ret_block = w->block_next;
    w->block_next += count;
    return 0;
}

/* Blocks that libext2fs itself wants (extent tree, attributes); it marks them. */
static errcode_t take_block_for_library(ext2_filsys fs, blk64_t goal, blk64_t *ret_block)
{
    (void)goal;
    struct ext4 *w = fs->priv_data;
    if (w->block_next >= ext2fs_blocks_count(fs->super))
        return EXT2_ET_BLOCK_ALLOC_FAIL;
    *ret_block = w->block_next++;
    return 0;
}

int ext4_make_groups(struct ext4 *w, uint32_t group, struct err *e)
{
    CHECK(group < w->fs->group_desc_count);
    for (; w->groups_made <= group; w->groups_made++) {
        uint32_t block;
        if (ext4_take_blocks(w, 2 + TABLE_BLOCKS, &block, e))
            return -1;
        ext2fs_block_bitmap_loc_set(w->fs, w->groups_made, block);
        ext2fs_inode_bitmap_loc_set(w->fs, w->groups_made, block + 1);
        ext2fs_inode_table_loc_set(w->fs, w->groups_made, block + 2);
    }
    return 0;
}

static int take_inode(struct ext4 *w, bool folder, uint32_t *ret_inode, struct err *e)
{
    uint32_t inode = w->inode_next;
    if (inode > w->fs->super->s_inodes_count)
        return err_set(e, ERR_LIMIT, "more than %u inodes", w->fs->super->s_inodes_count);
    if (ext4_make_groups(w, (inode - 1) / GROUP_INODES, e))
        return -1;
    ext2fs_inode_alloc_stats2(w->fs, inode, +1, folder);
    w->inode_next++;
    *ret_inode = inode;
    return 0;
}

static void describe(struct ext2_super_block *super, uint64_t bytes_max)
{
    *super = (struct ext2_super_block){.s_rev_level = EXT2_DYNAMIC_REV,
                                       .s_log_block_size = 2,
                                       .s_log_cluster_size = 2,
                                       .s_inode_size = 256,
                                       .s_blocks_per_group = GROUP_BLOCKS,
                                       .s_log_groups_per_flex = 4,
                                       .s_first_ino = 11};
    ext2fs_blocks_count_set(super, bytes_max / BLOCK_BYTES / GROUP_BLOCKS * GROUP_BLOCKS);
    super->s_inodes_count = (uint32_t)(bytes_max / BLOCK_BYTES / GROUP_BLOCKS * GROUP_INODES);
    ext2fs_set_feature_filetype(super);
    ext2fs_set_feature_extents(super);
    ext2fs_set_feature_flex_bg(super);
    ext2fs_set_feature_sparse_super2(super); /* with no backup at all: an image is made again, never repaired */
    ext2fs_set_feature_large_file(super);
    ext2fs_set_feature_huge_file(super);
    ext2fs_set_feature_extra_isize(super);
    ext2fs_set_feature_dir_nlink(super);
    ext2fs_set_feature_dir_index(super);
    ext2fs_set_feature_xattr(super);
    ext2fs_set_feature_gdt_csum(super);
}

static void settle_superblock(struct ext4 *w)
{
    struct ext2_super_block *super = w->fs->super;
    memcpy(super->s_uuid, image_uuid, sizeof image_uuid);
    memcpy(super->s_hash_seed, hash_seed, sizeof hash_seed);
    super->s_def_hash_version = EXT2_HASH_HALF_MD4;
    super->s_flags |= EXT2_FLAGS_UNSIGNED_HASH;
    super->s_default_mount_opts = EXT2_DEFM_XATTR_USER | EXT2_DEFM_ACL;
    super->s_max_mnt_count = -1;
    super->s_checkinterval = 0;
    super->s_mkfs_time = super->s_lastcheck = super->s_wtime = 1;
    super->s_mtime = 0;
    super->s_kbytes_written = 0;
    super->s_min_extra_isize = super->s_want_extra_isize = sizeof(struct ext2_inode_large) - EXT2_GOOD_OLD_INODE_SIZE;
    super->s_state = EXT2_VALID_FS;
    super->s_r_blocks_count = 0;
    w->fs->now = 1; /* libext2fs asks the clock when this is 0 */
}

static void put_time(struct ext4_time when, uint32_t *secs, uint32_t *extra)
{
    /* ext4 holds -2^31 to 2^34 - 2^31 seconds: 32 bits as a signed number, two more as an epoch */
    int64_t lowest = INT32_MIN, highest = (3LL << 32) + INT32_MAX;
    int64_t t = when.secs < lowest ? lowest : when.secs > highest ? highest : when.secs;
    *secs = (uint32_t)t;
    *extra = (uint32_t)(((t - (int32_t)t) >> 32) & 3) | when.nanos << 2;
}

static void put_attrs(struct ext2_inode_large *node, const struct ext4_attrs *attrs)
{
    node->i_mode = (uint16_t)((node->i_mode & LINUX_S_IFMT) | (attrs->mode & 07777));
    node->i_uid = (uint16_t)attrs->uid;
    node->i_gid = (uint16_t)attrs->gid;
    ext2fs_set_i_uid_high(*node, attrs->uid >> 16);
    ext2fs_set_i_gid_high(*node, attrs->gid >> 16);
    put_time(attrs->mtime, &node->i_mtime, &node->i_mtime_extra);
    put_time(attrs->mtime, &node->i_ctime, &node->i_ctime_extra);
    put_time(attrs->mtime, &node->i_crtime, &node->i_crtime_extra);
    put_time(attrs->atime, &node->i_atime, &node->i_atime_extra);
    node->i_extra_isize = sizeof(struct ext2_inode_large) - EXT2_GOOD_OLD_INODE_SIZE;
}

static struct ext2_inode_large node_of(uint32_t kind, const struct ext4_attrs *attrs)
{
    struct ext2_inode_large node = {.i_mode = (uint16_t)kind, .i_links_count = kind == LINUX_S_IFDIR ? 2 : 1};
    put_attrs(&node, attrs);
    return node;
}

/* The inodes below 11 are the file system's own; 2 is the root. */
static int reserve_inodes(struct ext4 *w, struct err *e)
{
    for (uint32_t inode = 1; inode < 11; inode++) {
        uint32_t taken;
        if (take_inode(w, inode == EXT2_ROOT_INO, &taken, e))
            return -1;
    }
    struct ext2_inode_large root = node_of(LINUX_S_IFDIR, &(struct ext4_attrs){.mode = 0755});
    return ext4_write_inode(w, EXT2_ROOT_INO, &root, e);
}

struct ext4 *ext4_new(int fd, uint64_t bytes_max, struct err *e)
{
    CHECK(bytes_max >= 128 * (uint64_t)MIB && bytes_max <= IMAGE_BYTES_MAX);
    struct ext4 *w = xcalloc(1, sizeof *w);
    w->fd = fd;
    w->piece = xmalloc(IMAGE_PIECE_BYTES);
    w->inode_next = 1;
    struct ext2_super_block wanted;
    describe(&wanted, bytes_max);
    char name[16];
    snprintf(name, sizeof name, "%d", fd);
    errcode_t r = ext2fs_initialize(name, 0, &wanted, &io_on_descriptor, &w->fs);
    if (r) {
        ext4_failed(w, r, "lay out the image", e);
        goto fail;
    }
    CHECK(w->fs->super->s_inodes_per_group == GROUP_INODES && w->fs->inode_blocks_per_group == TABLE_BLOCKS);
    w->fs->priv_data = w;
    ext2fs_set_alloc_block_callback(w->fs, take_block_for_library, NULL);
    settle_superblock(w);
    w->block_next = 1 + w->fs->desc_blocks;
    if (tree_init(&w->tree, EXT2_ROOT_INO, EXT2_FT_DIR, e) || reserve_inodes(w, e))
        goto fail;
    return w;
fail:
    ext4_free(w);
    return NULL;
}

void ext4_free(struct ext4 *w)
{
    if (!w)
        return;
    ext4_content_drop(w);
    if (w->fs)
        ext2fs_free(w->fs);
    tree_done(&w->tree);
    free(w->piece);
    free(w);
}

/* One name less for an inode; the last one frees it. */
static int drop_name(struct ext4 *w, uint32_t node, struct err *e)
{
    uint32_t inode = w->tree.nodes[node].inode;
    bool folder = tree_kind(&w->tree, node) == EXT2_FT_DIR;
    tree_remove(&w->tree, node);
    struct ext2_inode_large in;
    if (ext4_read_inode(w, inode, &in, e))
        return -1;
    if (folder || in.i_links_count <= 1)
        return ext4_release_inode(w, inode, e);
    in.i_links_count--;
    return ext4_write_inode(w, inode, &in, e);
}

/* Removes a name with everything below it, children first; the tree's own links serve as the stack. */
static int remove_all(struct ext4 *w, uint32_t top, struct err *e)
{
    for (uint32_t at = top;;) {
        uint32_t child = tree_first_child(&w->tree, at);
        if (child != TREE_NONE) {
            at = child;
            continue;
        }
        uint32_t parent = w->tree.nodes[at].parent;
        if (drop_name(w, at, e))
            return -1;
        if (at == top)
            return 0;
        at = parent;
    }
}

/* Puts a new inode under the place's name, in the stead of what was there. */
static int put_name(struct ext4 *w, const struct ext4_place *place, uint32_t inode, uint8_t kind, struct err *e)
{
    if (!place->len)
        return err_set(e, ERR_INVALID, "the root is not a folder in this archive");
    uint32_t old = tree_find(&w->tree, place->folder, place->name, place->len), node;
    if (old != TREE_NONE && remove_all(w, old, e))
        return -1;
    return tree_add(&w->tree, place->folder, place->name, place->len, inode, kind, &node, e);
}

static uint32_t find_place(struct ext4 *w, const struct ext4_place *place)
{
    return place->len ? tree_find(&w->tree, place->folder, place->name, place->len) : TREE_ROOT;
}

int ext4_folder(struct ext4 *w, const struct ext4_place *place, const struct ext4_attrs *attrs, uint32_t *ret_inode,
                struct err *e)
{
    uint32_t old = find_place(w, place), inode;
    struct ext2_inode_large node = node_of(LINUX_S_IFDIR, attrs);
    if (old != TREE_NONE && tree_kind(&w->tree, old) == EXT2_FT_DIR) {
        /* attributes of the earlier entry go: what this entry says is all there is */
        inode = w->tree.nodes[old].inode;
        struct ext2_inode_large before;
        if (ext4_read_inode(w, inode, &before, e))
            return -1;
        blk64_t xattrs = ext2fs_file_acl_block(w->fs, (struct ext2_inode *)&before);
        if (xattrs)
            ext2fs_block_alloc_stats2(w->fs, xattrs, -1);
    } else if (take_inode(w, true, &inode, e) || put_name(w, place, inode, EXT2_FT_DIR, e)) {
        return -1;
    }
    if (ext4_write_inode(w, inode, &node, e))
        return -1;
    *ret_inode = inode;
    return 0;
}

int ext4_symlink(struct ext4 *w, const struct ext4_place *place, const struct ext4_attrs *attrs, const char *target,
                 uint32_t *ret_inode, struct err *e)
{
    size_t len = strlen(target);
    uint32_t inode;
    if (!len || len > IMAGE_SYMLINK_MAX)
        return err_set(e, len ? ERR_LIMIT : ERR_INVALID, "a link's target of %zu bytes (IMAGE_SYMLINK_MAX is %u)", len,
                       (unsigned)IMAGE_SYMLINK_MAX);
    if (take_inode(w, false, &inode, e) || put_name(w, place, inode, EXT2_FT_SYMLINK, e))
        return -1;
    struct ext2_inode_large node = node_of(LINUX_S_IFLNK, attrs);
    *ret_inode = inode;
    if (len >= sizeof node.i_block) {
        ext4_content_begin(w, inode, &node);
        return ext4_content_write(w, target, len, 0, e) ? -1 : ext4_content_end(w, len, e);
    }
    node.i_size = (uint32_t)len;
    memcpy(node.i_block, target, len);
    return ext4_write_inode(w, inode, &node, e);
}

int ext4_special(struct ext4 *w, const struct ext4_place *place, const struct ext4_attrs *attrs, uint32_t kind, uint32_t major,
                 uint32_t minor, uint32_t *ret_inode, struct err *e)
{
    uint8_t file_type = kind == S_IFCHR ? EXT2_FT_CHRDEV : kind == S_IFBLK ? EXT2_FT_BLKDEV : EXT2_FT_FIFO;
    uint32_t inode;
    if (major >= 1u << 12 || minor >= 1u << 20)
        return err_set(e, ERR_LIMIT, "device number %u:%u is more than Linux has", major, minor);
    if (take_inode(w, false, &inode, e) || put_name(w, place, inode, file_type, e))
        return -1;
    struct ext2_inode_large node = node_of(kind, attrs);
    if (kind != S_IFIFO && major < 256 && minor < 256)
        node.i_block[0] = major << 8 | minor; /* the old form, as the kernel writes it */
    else if (kind != S_IFIFO)
        node.i_block[1] = (minor & 0xff) | major << 8 | (minor & ~0xffu) << 12;
    *ret_inode = inode;
    return ext4_write_inode(w, inode, &node, e);
}

int ext4_hard_link(struct ext4 *w, const struct ext4_place *place, const struct ext4_place *target, struct err *e)
{
    uint32_t of = find_place(w, target);
    if (of == TREE_NONE)
        return err_set(e, ERR_INVALID, "a hard link to a name that is not there");
    uint8_t kind = tree_kind(&w->tree, of);
    if (kind == EXT2_FT_DIR)
        return err_set(e, ERR_INVALID, "a hard link to a folder");
    uint32_t inode = w->tree.nodes[of].inode, old = find_place(w, place);
    if (old != TREE_NONE && w->tree.nodes[old].inode == inode)
        return 0;
    struct ext2_inode_large node;
    if (ext4_read_inode(w, inode, &node, e))
        return -1;
    if (node.i_links_count >= IMAGE_FILE_LINKS_MAX)
        return err_set(e, ERR_LIMIT, "more than %u names of one file (IMAGE_FILE_LINKS_MAX)", (unsigned)IMAGE_FILE_LINKS_MAX);
    node.i_links_count++; /* before the old entry goes: what it removes may hold the target's other names */
    return ext4_write_inode(w, inode, &node, e) ? -1 : put_name(w, place, inode, kind, e);
}

int ext4_file_begin(struct ext4 *w, const struct ext4_place *place, const struct ext4_attrs *attrs, uint64_t size,
                    uint32_t *ret_inode, struct err *e)
{
    uint32_t inode;
    if (size > IMAGE_FILE_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "a file of %llu bytes (IMAGE_FILE_BYTES_MAX is %llu)", (unsigned long long)size,
                       (unsigned long long)IMAGE_FILE_BYTES_MAX);
    if (take_inode(w, false, &inode, e) || put_name(w, place, inode, EXT2_FT_REG_FILE, e))
        return -1;
    struct ext2_inode_large node = node_of(LINUX_S_IFREG, attrs);
    node.i_size = (uint32_t)size; /* kept by ext4_file_end */
    node.i_size_high = (uint32_t)(size >> 32);
    ext4_content_begin(w, inode, &node);
    *ret_inode = inode;
    return 0;
}

int ext4_file_write(struct ext4 *w, const void *bytes, size_t len, uint64_t offset, struct err *e)
{
    return ext4_content_write(w, bytes, len, offset, e);
}

int ext4_file_end(struct ext4 *w, struct err *e)
{
    return ext4_content_end(w, EXT2_I_SIZE(&w->content.node), e);
}

int ext4_xattr(struct ext4 *w, uint32_t inode, const char *name, const void *value, size_t len, struct err *e)
{
    struct ext2_xattr_handle *handle;
    errcode_t r = ext2fs_xattrs_open(w->fs, inode, &handle);
    if (r)
        return ext4_failed(w, r, "open attributes", e);
    r = ext2fs_xattrs_read(handle);
    if (!r)
        r = ext2fs_xattr_set(handle, name, value, len);
    errcode_t closed = ext2fs_xattrs_close(&handle);
    if (!r)
        r = closed;
    if (!r)
        return 0;
    ext4_failed(w, r, "store", e);
    return err_wrap(e, "attribute '%s' of %zu bytes", name, len);
}
