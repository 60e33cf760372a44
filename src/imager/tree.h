/* SPDX-License-Identifier: Apache-2.0 */
/* The names of an image while it is written: a tree in memory with one hash table over (folder, name), so that a folder of
 * any size costs the same per name. Only names and inode numbers live here; everything else is in the image already. About
 * 30 bytes a name besides the name itself. Pure.
 *
 * A node is an index; TREE_ROOT is the root folder. A removed node keeps its place (a later entry of the same name takes it
 * again) and has inode number 0. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TREE_NONE UINT32_MAX
#define TREE_ROOT 0u

struct tree_node {
    uint32_t parent, sibling, child; /* sibling: next of the same folder; child: the newest one */
    uint32_t name;                   /* offset in names: kind, length, bytes */
    uint32_t inode;                  /* 0: removed */
};

struct tree {
    struct tree_node *nodes;
    uint32_t nodes_len, nodes_capacity;
    uint8_t *names;
    size_t names_len, names_capacity;
    uint32_t *slots; /* hash table of node indices, TREE_NONE: free; a power of two */
    uint32_t slots_len;
};

int tree_init(struct tree *t, uint32_t root_inode, uint8_t root_kind, struct err *e) __attribute__((nonnull, warn_unused_result));
void tree_done(struct tree *t) __attribute__((nonnull));

/* The living child of that name, or TREE_NONE. */
uint32_t tree_find(const struct tree *t, uint32_t folder, const char *name, size_t len) __attribute__((nonnull));
/* Adds a name that tree_find does not find. ERR_LIMIT naming the limit. `kind` is the directory entry's file type. */
int tree_add(struct tree *t, uint32_t folder, const char *name, size_t len, uint32_t inode, uint8_t kind, uint32_t *ret_node,
             struct err *e) __attribute__((nonnull, warn_unused_result));
void tree_remove(struct tree *t, uint32_t node) __attribute__((nonnull)); /* the caller removed its children before */

const char *tree_name(const struct tree *t, uint32_t node, size_t *ret_len) __attribute__((nonnull)); /* not terminated */
uint8_t tree_kind(const struct tree *t, uint32_t node) __attribute__((nonnull));
/* The first living child, and the next living sibling; TREE_NONE at the end. Newest first. */
uint32_t tree_first_child(const struct tree *t, uint32_t folder) __attribute__((nonnull));
uint32_t tree_next_sibling(const struct tree *t, uint32_t node) __attribute__((nonnull));
