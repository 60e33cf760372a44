/* SPDX-License-Identifier: Apache-2.0 */
/* From a path in an archive to a place in the image. A walk over the tree in memory: links are read from the image and
 * followed inside it only; ".." in a link stops at the root, ".." in an archive's own path is refused. */
#include "imager/ext4_priv.h"

#include "base/cleanup.h"

#include <string.h>

struct walk {
    struct ext4 *w;
    struct ext4_time when; /* of the entry that made it necessary, for folders that are made on the way */
    uint32_t folder;
    unsigned depth, hops;
};

static int make_folder(struct walk *walk, const char *name, size_t len, struct err *e)
{
    struct ext4_attrs attrs = {.mode = 0755, .mtime = walk->when, .atime = walk->when};
    struct ext4_place place = {.folder = walk->folder, .name = name, .len = len};
    uint32_t inode;
    if (ext4_folder(walk->w, &place, &attrs, &inode, e))
        return -1;
    walk->folder = tree_find(&walk->w->tree, walk->folder, name, len);
    return 0;
}

/* The target of a link, from its inode or its one block. */
static int read_link(struct ext4 *w, uint32_t inode, char target[IMAGE_SYMLINK_MAX + 1], struct err *e)
{
    struct ext2_inode_large node;
    if (ext4_read_inode(w, inode, &node, e))
        return -1;
    size_t len = EXT2_I_SIZE(&node);
    if (len > IMAGE_SYMLINK_MAX)
        return err_set(e, ERR_INVALID, "a link of %zu bytes", len);
    if (len < sizeof node.i_block) {
        memcpy(target, node.i_block, len);
    } else {
        blk64_t block;
        char bytes[BLOCK_BYTES];
        errcode_t r = ext2fs_bmap2(w->fs, inode, (struct ext2_inode *)&node, NULL, 0, 0, NULL, &block);
        /* content is written beside the cache, so this reads what the file holds; such a block is never in the cache */
        if (!r)
            r = io_channel_read_blk64(w->fs->io, block, -(int)sizeof bytes, bytes);
        if (r)
            return ext4_failed(w, r, "read a link", e);
        memcpy(target, bytes, len);
    }
    target[len] = 0;
    return 0;
}

static int walk_path(struct walk *walk, const char *path, size_t len, bool own, struct err *e);

/* One component that has to be a folder. `own`: from the archive's path, not from a link. */
static int walk_component(struct walk *walk, const char *name, size_t len, bool own, struct err *e)
{
    struct tree *t = &walk->w->tree;
    if (len == 0 || (len == 1 && name[0] == '.'))
        return 0;
    if (len == 2 && !memcmp(name, "..", 2)) {
        if (own)
            return err_set(e, ERR_INVALID, "'..' in a path");
        if (walk->folder != TREE_ROOT)
            walk->depth--;
        walk->folder = t->nodes[walk->folder].parent;
        return 0;
    }
    if (len > IMAGE_NAME_MAX)
        return err_set(e, ERR_LIMIT, "a name of %zu bytes (IMAGE_NAME_MAX is %u)", len, (unsigned)IMAGE_NAME_MAX);
    uint32_t node = tree_find(t, walk->folder, name, len);
    if (node != TREE_NONE && tree_kind(t, node) == EXT2_FT_SYMLINK) {
        auto_free char *target = calloc(1, IMAGE_SYMLINK_MAX + 1);
        if (!target)
            return err_set(e, ERR_NOMEM, "no memory for a link");
        if (++walk->hops > IMAGE_SYMLINK_HOPS_MAX)
            return err_set(e, ERR_INVALID, "more than %u links on the way (IMAGE_SYMLINK_HOPS_MAX)",
                           (unsigned)IMAGE_SYMLINK_HOPS_MAX);
        if (read_link(walk->w, t->nodes[node].inode, target, e))
            return -1;
        if (target[0] == '/') {
            walk->folder = TREE_ROOT;
            walk->depth = 0;
        }
        return walk_path(walk, target, strlen(target), false, e);
    }
    if (++walk->depth > IMAGE_DEPTH_MAX)
        return err_set(e, ERR_LIMIT, "more than %u folders deep (IMAGE_DEPTH_MAX)", (unsigned)IMAGE_DEPTH_MAX);
    if (node == TREE_NONE)
        return make_folder(walk, name, len, e);
    if (tree_kind(t, node) != EXT2_FT_DIR)
        return err_set(e, ERR_INVALID, "'%.*s' on the way is not a folder", (int)len, name);
    walk->folder = node;
    return 0;
}

/* Recursion is bounded by the hops. */
static int walk_path(struct walk *walk, const char *path, size_t len, bool own, struct err *e)
{
    for (const char *at = path, *end = path + len; at < end;) {
        const char *slash = memchr(at, '/', (size_t)(end - at));
        size_t part = (size_t)((slash ? slash : end) - at);
        if (walk_component(walk, at, part, own, e))
            return -1;
        at += part + 1;
    }
    return 0;
}

int ext4_place(struct ext4 *w, const char *path, struct ext4_time when, struct ext4_place *ret_place, struct err *e)
{
    size_t len = strnlen(path, IMAGE_PATH_MAX + 1);
    if (len > IMAGE_PATH_MAX)
        return err_set(e, ERR_LIMIT, "a path of more than %u bytes (IMAGE_PATH_MAX)", (unsigned)IMAGE_PATH_MAX);
    struct walk walk = {.w = w, .when = when, .folder = TREE_ROOT};
    /* "a/b/" and "a/b/." name b */
    while (len && (path[len - 1] == '/' || (path[len - 1] == '.' && (len == 1 || path[len - 2] == '/'))))
        len--;
    size_t start = len;
    while (start && path[start - 1] != '/')
        start--;
    if (walk_path(&walk, path, start, true, e))
        return -1;
    struct ext4_place place = {.folder = walk.folder, .name = path + start, .len = len - start};
    if (place.len == 2 && !memcmp(place.name, "..", 2))
        return err_set(e, ERR_INVALID, "'..' in a path");
    if (place.len > IMAGE_NAME_MAX)
        return err_set(e, ERR_LIMIT, "a name of %zu bytes (IMAGE_NAME_MAX is %u)", place.len, (unsigned)IMAGE_NAME_MAX);
    *ret_place = place;
    return 0;
}
