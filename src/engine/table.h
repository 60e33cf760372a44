/* SPDX-License-Identifier: Apache-2.0 */
/* Doubly linked lists and a hash table by text, both intrusive: the entry lives in the object that it finds. The table's
 * hash is seeded per process, so that peers who choose the keys cannot choose the buckets. Keys belong to the object. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define LIST_INIT(name)                                                                                                          \
    {                                                                                                                            \
        &(name), &(name)                                                                                                         \
    }
#define CONTAINER_OF(pointer, type, member)                                                                                      \
    ((type *)(void *)((char *)(1 ? (pointer) : &((type *)0)->member) - offsetof(type, member)))

static inline void list_init(struct list *head)
{
    head->next = head->prev = head;
}

static inline bool list_is_empty(const struct list *head)
{
    return head->next == head;
}

static inline void list_add_last(struct list *head, struct list *item)
{
    item->prev = head->prev;
    item->next = head;
    head->prev->next = item;
    head->prev = item;
}

/* Leaves the item empty, so that removing twice is harmless. */
static inline void list_remove(struct list *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
    list_init(item);
}

struct table_entry {
    struct table_entry *next;
    const char *key;
    size_t hash;
};

struct table {
    struct table_entry **buckets;
    size_t buckets_len, len; /* buckets_len is a power of two */
};

void table_init(struct table *table) __attribute__((nonnull));
void table_done(struct table *table) __attribute__((nonnull)); /* CHECKs that it is empty */
struct table_entry *table_find(const struct table *table, const char *key) __attribute__((nonnull));
void table_add(struct table *table, struct table_entry *entry, const char *key) __attribute__((nonnull)); /* CHECKs: new key */
void table_remove(struct table *table, struct table_entry *entry) __attribute__((nonnull));               /* CHECKs: is there */
/* Walks all entries, in no order; start with NULL. Nothing may be added or removed on the way. */
struct table_entry *table_next(const struct table *table, const struct table_entry *entry) __attribute__((nonnull(1)));
