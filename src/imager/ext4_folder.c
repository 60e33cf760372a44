/* SPDX-License-Identifier: Apache-2.0 */
/* Folders on disk. One that fits into a block is a plain list. A larger one gets ext4's hashed index (Linux
 * Documentation/filesystems/ext4/directory.rst): block 0 is the index root (disguised as "." and ".."), then index blocks
 * when one level is not enough, then leaves filled in the order of the names' hashes. An index entry is (lowest hash of the
 * leaf, leaf's block); when equal hashes cross from one leaf into the next, the next one's hash has its lowest bit set. */
#include "imager/ext4_priv.h"

#include "base/check.h"
#include "base/cleanup.h"

#include <string.h>

#define DOTS_BYTES 24u
#define ROOT_ENTRIES_MAX ((BLOCK_BYTES - 32) / 8)
#define NODE_ENTRIES_MAX ((BLOCK_BYTES - 8) / 8)

struct item {
    uint32_t hash, minor, node;
};

struct leaf {
    uint32_t first, hash; /* index of its first item; its hash in the index */
};

struct folder {
    struct ext4 *w;
    uint32_t node;
    struct item *items;
    uint32_t items_len;
    struct leaf *leaves;
    uint32_t leaves_len;
    uint32_t subfolders;
    size_t list_bytes; /* as a plain list */
    uint64_t written;
};

static size_t entry_bytes(size_t name_len)
{
    return (8 + name_len + 3) / 4 * 4;
}

static void put_entry(uint8_t *at, uint32_t inode, size_t bytes, const char *name, size_t len, uint8_t kind)
{
    struct ext2_dir_entry_2 head = {.inode = inode, .rec_len = (uint16_t)bytes, .name_len = (uint8_t)len, .file_type = kind};
    memcpy(at, &head, 8);
    memcpy(at + 8, name, len);
}

/* The entries [from, to) into a block at `used`; the last one takes the rest of the block. */
static void put_entries(const struct folder *f, uint8_t *block, size_t used, uint32_t from, uint32_t to)
{
    const struct tree *t = &f->w->tree;
    for (uint32_t i = from; i < to; i++) {
        size_t len;
        const char *name = tree_name(t, f->items[i].node, &len);
        size_t bytes = i + 1 == to ? BLOCK_BYTES - used : entry_bytes(len);
        put_entry(block + used, t->nodes[f->items[i].node].inode, bytes, name, len, tree_kind(t, f->items[i].node));
        used += bytes;
    }
}

static int append_block(struct folder *f, const uint8_t *block, struct err *e)
{
    f->written += BLOCK_BYTES;
    return ext4_content_write(f->w, block, BLOCK_BYTES, f->written - BLOCK_BYTES, e);
}

static uint32_t folder_inode(const struct folder *f)
{
    return f->w->tree.nodes[f->node].inode;
}

static uint32_t parent_inode(const struct folder *f)
{
    return f->w->tree.nodes[f->w->tree.nodes[f->node].parent].inode;
}

static int write_list(struct folder *f, struct err *e)
{
    uint8_t block[BLOCK_BYTES] = {0};
    put_entry(block, folder_inode(f), 12, ".", 1, EXT2_FT_DIR);
    put_entry(block + 12, parent_inode(f), f->items_len ? 12 : BLOCK_BYTES - 12, "..", 2, EXT2_FT_DIR);
    put_entries(f, block, DOTS_BYTES, 0, f->items_len);
    return append_block(f, block, e);
}

static int compare_items(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    if (x->minor != y->minor)
        return x->minor < y->minor ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

static int hash_items(struct folder *f, struct err *e)
{
    struct ext2_super_block *super = f->w->fs->super;
    for (uint32_t i = 0; i < f->items_len; i++) {
        struct item *item = &f->items[i];
        size_t len;
        const char *name = tree_name(&f->w->tree, item->node, &len);
        errcode_t r = ext2fs_dirhash(EXT2_HASH_HALF_MD4_UNSIGNED, name, (int)len, super->s_hash_seed, &item->hash, &item->minor);
        if (r)
            return ext4_failed(f->w, r, "hash a name", e);
    }
    qsort(f->items, f->items_len, sizeof *f->items, compare_items);
    return 0;
}

static int plan_leaves(struct folder *f, struct err *e)
{
    /* two names of 255 bytes never share less than a block: this many leaves are enough */
    f->leaves = calloc(f->list_bytes / (BLOCK_BYTES - entry_bytes(IMAGE_NAME_MAX)) + 2, sizeof *f->leaves);
    if (!f->leaves)
        return err_set(e, ERR_NOMEM, "no memory for the index of a folder of %u names", f->items_len);
    size_t used = BLOCK_BYTES;
    for (uint32_t i = 0; i < f->items_len; i++) {
        size_t len;
        (void)tree_name(&f->w->tree, f->items[i].node, &len);
        if (used + entry_bytes(len) > BLOCK_BYTES) {
            bool continued = i && f->items[i - 1].hash == f->items[i].hash;
            f->leaves[f->leaves_len++] = (struct leaf){.first = i, .hash = f->items[i].hash | continued};
            used = 0;
        }
        used += entry_bytes(len);
    }
    return 0;
}

/* Index entries at `at`: the first has no hash, its place holds the limit and the count. */
static void put_index(uint8_t *at, unsigned limit, unsigned count, const struct leaf *leaves, unsigned step, uint32_t first_block)
{
    struct ext2_dx_countlimit head = {.limit = (uint16_t)limit, .count = (uint16_t)count};
    memcpy(at, &head, sizeof head);
    for (unsigned i = 0; i < count; i++) {
        uint32_t hash = leaves[(size_t)i * step].hash, block = first_block + i;
        if (i)
            memcpy(at + 8 * (size_t)i, &hash, 4);
        memcpy(at + 8 * (size_t)i + 4, &block, 4);
    }
}

static int write_index(struct folder *f, struct err *e)
{
    uint32_t nodes = f->leaves_len <= ROOT_ENTRIES_MAX ? 0 : (f->leaves_len + NODE_ENTRIES_MAX - 1) / NODE_ENTRIES_MAX;
    CHECK(nodes <= ROOT_ENTRIES_MAX); /* IMAGE_ENTRIES_MAX is far below what two levels hold */
    uint8_t block[BLOCK_BYTES] = {0};
    put_entry(block, folder_inode(f), 12, ".", 1, EXT2_FT_DIR);
    put_entry(block + 12, parent_inode(f), BLOCK_BYTES - 12, "..", 2, EXT2_FT_DIR);
    struct ext2_dx_root_info info = {.hash_version = EXT2_HASH_HALF_MD4, .info_length = 8, .indirect_levels = nodes ? 1 : 0};
    memcpy(block + 24, &info, sizeof info);
    put_index(block + 32, ROOT_ENTRIES_MAX, nodes ? nodes : f->leaves_len, f->leaves, nodes ? NODE_ENTRIES_MAX : 1, 1);
    if (append_block(f, block, e))
        return -1;
    for (uint32_t i = 0; i < nodes; i++) {
        uint32_t first = i * NODE_ENTRIES_MAX, left = f->leaves_len - first;
        memset(block, 0, sizeof block);
        put_entry(block, 0, BLOCK_BYTES, "", 0, 0);
        put_index(block + 8, NODE_ENTRIES_MAX, left < NODE_ENTRIES_MAX ? left : NODE_ENTRIES_MAX, f->leaves + first, 1,
                  1 + nodes + first);
        if (append_block(f, block, e))
            return -1;
    }
    return 0;
}

static int write_leaves(struct folder *f, struct err *e)
{
    for (uint32_t i = 0; i < f->leaves_len; i++) {
        uint8_t block[BLOCK_BYTES] = {0};
        put_entries(f, block, 0, f->leaves[i].first, i + 1 < f->leaves_len ? f->leaves[i + 1].first : f->items_len);
        if (append_block(f, block, e))
            return -1;
    }
    return 0;
}

static int gather(struct folder *f, struct err *e)
{
    const struct tree *t = &f->w->tree;
    for (uint32_t at = tree_first_child(t, f->node); at != TREE_NONE; at = tree_next_sibling(t, at))
        f->items_len++;
    f->items = calloc(f->items_len ? f->items_len : 1, sizeof *f->items);
    if (!f->items)
        return err_set(e, ERR_NOMEM, "no memory for a folder of %u names", f->items_len);
    uint32_t i = f->items_len; /* the tree gives the newest first */
    f->list_bytes = DOTS_BYTES;
    for (uint32_t at = tree_first_child(t, f->node); at != TREE_NONE; at = tree_next_sibling(t, at)) {
        size_t len;
        (void)tree_name(t, at, &len);
        f->items[--i].node = at;
        f->list_bytes += entry_bytes(len);
        f->subfolders += tree_kind(t, at) == EXT2_FT_DIR;
    }
    return 0;
}

static int write_folder(struct folder *f, struct err *e)
{
    struct ext2_inode_large node;
    if (gather(f, e) || ext4_read_inode(f->w, folder_inode(f), &node, e))
        return -1;
    bool indexed = f->list_bytes > BLOCK_BYTES;
    /* "." and the name in the parent, and ".." of each folder in it; 1 says "too many to count" (dir_nlink) */
    node.i_links_count = f->subfolders + 2 >= EXT2_LINK_MAX ? 1 : (uint16_t)(f->subfolders + 2);
    node.i_flags |= indexed ? EXT2_INDEX_FL : 0;
    ext2fs_iblk_set(f->w->fs, (struct ext2_inode *)&node, ext2fs_file_acl_block(f->w->fs, (struct ext2_inode *)&node) ? 1 : 0);
    ext4_content_begin(f->w, folder_inode(f), &node);
    if (indexed ? hash_items(f, e) || plan_leaves(f, e) || write_index(f, e) || write_leaves(f, e) : write_list(f, e))
        return -1;
    return ext4_content_end(f->w, f->written, e);
}

int ext4_write_folders(struct ext4 *w, struct err *e)
{
    for (uint32_t node = 0; node < w->tree.nodes_len; node++) {
        if (!w->tree.nodes[node].inode || tree_kind(&w->tree, node) != EXT2_FT_DIR)
            continue;
        struct folder f = {.w = w, .node = node};
        int failed = write_folder(&f, e);
        free(f.items);
        free(f.leaves);
        if (failed)
            return -1;
    }
    return 0;
}
