/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/tree.h"

#include "base/check.h"
#include "base/limits.h"

#include <stdlib.h>
#include <string.h>

static uint32_t hash_of(uint32_t folder, const char *name, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u ^ folder; /* FNV-1a, then a finish that spreads it to the low bits */
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)name[i]) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

const char *tree_name(const struct tree *t, uint32_t node, size_t *ret_len)
{
    const uint8_t *at = t->names + t->nodes[node].name;
    *ret_len = at[1];
    return (const char *)at + 2;
}

uint8_t tree_kind(const struct tree *t, uint32_t node)
{
    return t->names[t->nodes[node].name];
}

/* The slot that holds (folder, name), dead or alive, or the free slot where it belongs. */
static uint32_t slot_of(const struct tree *t, uint32_t folder, const char *name, size_t len)
{
    uint32_t mask = t->slots_len - 1;
    for (uint32_t slot = hash_of(folder, name, len) & mask;; slot = (slot + 1) & mask) {
        uint32_t node = t->slots[slot];
        if (node == TREE_NONE)
            return slot;
        size_t node_len;
        const char *node_name = tree_name(t, node, &node_len);
        if (t->nodes[node].parent == folder && node_len == len && !memcmp(node_name, name, len))
            return slot;
    }
}

static int grow_slots(struct tree *t, struct err *e)
{
    uint32_t len = t->slots_len ? t->slots_len * 2 : 1024;
    uint32_t *slots = malloc(len * sizeof *slots);
    if (!slots)
        return err_set(e, ERR_NOMEM, "no memory for %u names", len);
    memset(slots, 0xff, len * sizeof *slots);
    free(t->slots);
    t->slots = slots;
    t->slots_len = len;
    for (uint32_t node = 1; node < t->nodes_len; node++) {
        size_t name_len;
        const char *name = tree_name(t, node, &name_len);
        slots[slot_of(t, t->nodes[node].parent, name, name_len)] = node;
    }
    return 0;
}

static int make_room(struct tree *t, size_t name_len, struct err *e)
{
    if (t->nodes_len >= IMAGE_ENTRIES_MAX)
        return err_set(e, ERR_LIMIT, "more than %u entries (IMAGE_ENTRIES_MAX)", (unsigned)IMAGE_ENTRIES_MAX);
    if (t->names_len + name_len + 2 > IMAGE_NAMES_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "more than %u bytes of names (IMAGE_NAMES_BYTES_MAX)", (unsigned)IMAGE_NAMES_BYTES_MAX);
    if (t->nodes_len == t->nodes_capacity) {
        uint32_t capacity = t->nodes_capacity ? t->nodes_capacity * 2 : 1024;
        struct tree_node *nodes = realloc(t->nodes, capacity * sizeof *nodes);
        if (!nodes)
            return err_set(e, ERR_NOMEM, "no memory for %u entries", capacity);
        t->nodes = nodes;
        t->nodes_capacity = capacity;
    }
    if (t->names_len + name_len + 2 > t->names_capacity) {
        size_t capacity = t->names_capacity ? t->names_capacity * 2 : 16384;
        uint8_t *names = realloc(t->names, capacity);
        if (!names)
            return err_set(e, ERR_NOMEM, "no memory for %zu bytes of names", capacity);
        t->names = names;
        t->names_capacity = capacity;
    }
    /* at most three quarters full */
    return (uint64_t)t->nodes_len * 4 >= (uint64_t)t->slots_len * 3 ? grow_slots(t, e) : 0;
}

static uint32_t append(struct tree *t, uint32_t folder, const char *name, size_t len, uint32_t inode, uint8_t kind)
{
    uint32_t node = t->nodes_len++;
    t->nodes[node] = (struct tree_node){
        .parent = folder, .sibling = TREE_NONE, .child = TREE_NONE, .name = (uint32_t)t->names_len, .inode = inode};
    t->names[t->names_len] = kind;
    t->names[t->names_len + 1] = (uint8_t)len;
    memcpy(t->names + t->names_len + 2, name, len);
    t->names_len += len + 2;
    return node;
}

int tree_init(struct tree *t, uint32_t root_inode, uint8_t root_kind, struct err *e)
{
    *t = (struct tree){0};
    if (make_room(t, 0, e))
        return -1;
    append(t, TREE_ROOT, "", 0, root_inode, root_kind);
    return 0;
}

void tree_done(struct tree *t)
{
    free(t->nodes);
    free(t->names);
    free(t->slots);
    *t = (struct tree){0};
}

uint32_t tree_find(const struct tree *t, uint32_t folder, const char *name, size_t len)
{
    uint32_t node = t->slots[slot_of(t, folder, name, len)];
    return node != TREE_NONE && t->nodes[node].inode ? node : TREE_NONE;
}

int tree_add(struct tree *t, uint32_t folder, const char *name, size_t len, uint32_t inode, uint8_t kind, uint32_t *ret_node,
             struct err *e)
{
    CHECK(inode && len > 0 && len <= IMAGE_NAME_MAX);
    if (make_room(t, len, e))
        return -1;
    uint32_t slot = slot_of(t, folder, name, len);
    uint32_t node = t->slots[slot];
    if (node != TREE_NONE) {
        CHECK(!t->nodes[node].inode);
        t->nodes[node].inode = inode;
        t->names[t->nodes[node].name] = kind;
    } else {
        node = append(t, folder, name, len, inode, kind);
        t->nodes[node].sibling = t->nodes[folder].child;
        t->nodes[folder].child = node;
        t->slots[slot] = node;
    }
    *ret_node = node;
    return 0;
}

void tree_remove(struct tree *t, uint32_t node)
{
    CHECK(node != TREE_ROOT && tree_first_child(t, node) == TREE_NONE);
    t->nodes[node].inode = 0;
}

static uint32_t first_living(const struct tree *t, uint32_t node)
{
    while (node != TREE_NONE && !t->nodes[node].inode)
        node = t->nodes[node].sibling;
    return node;
}

uint32_t tree_first_child(const struct tree *t, uint32_t folder)
{
    return first_living(t, t->nodes[folder].child);
}

uint32_t tree_next_sibling(const struct tree *t, uint32_t node)
{
    return first_living(t, t->nodes[node].sibling);
}
