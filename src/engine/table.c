/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/table.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define BUCKETS_FIRST 64u

/* FNV-1a over a secret start, finished by a multiply-shift that mixes the secret in again. */
static size_t hash_of(const char *key)
{
    static uint64_t secret[2];
    if (!secret[1]) {
        CHECK(getrandom(secret, sizeof secret, 0) == sizeof secret);
        secret[1] |= 1;
    }
    uint64_t hash = 0xcbf29ce484222325u ^ secret[0];
    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * 0x100000001b3u;
    hash = (hash ^ hash >> 32) * secret[1];
    return (size_t)(hash ^ hash >> 29);
}

void table_init(struct table *table)
{
    *table = (struct table){.buckets = xcalloc(BUCKETS_FIRST, sizeof(void *)), .buckets_len = BUCKETS_FIRST};
}

void table_done(struct table *table)
{
    CHECK(table->len == 0);
    free(table->buckets);
    *table = (struct table){0};
}

static struct table_entry **bucket_of(const struct table *table, size_t hash)
{
    return &table->buckets[hash & (table->buckets_len - 1)];
}

struct table_entry *table_find(const struct table *table, const char *key)
{
    size_t hash = hash_of(key);
    for (struct table_entry *entry = *bucket_of(table, hash); entry; entry = entry->next)
        if (entry->hash == hash && strcmp(entry->key, key) == 0)
            return entry;
    return NULL;
}

/* Twice the buckets; without memory the chains just stay longer. */
static void grow(struct table *table)
{
    struct table bigger = {.buckets_len = table->buckets_len * 2, .len = table->len};
    bigger.buckets = calloc(bigger.buckets_len, sizeof(void *));
    if (!bigger.buckets)
        return;
    for (size_t i = 0; i < table->buckets_len; i++) {
        while (table->buckets[i]) {
            struct table_entry *entry = table->buckets[i];
            table->buckets[i] = entry->next;
            struct table_entry **bucket = bucket_of(&bigger, entry->hash);
            entry->next = *bucket;
            *bucket = entry;
        }
    }
    free(table->buckets);
    *table = bigger;
}

void table_add(struct table *table, struct table_entry *entry, const char *key)
{
    CHECK(!table_find(table, key));
    if (table->len >= table->buckets_len)
        grow(table);
    entry->key = key;
    entry->hash = hash_of(key);
    struct table_entry **bucket = bucket_of(table, entry->hash);
    entry->next = *bucket;
    *bucket = entry;
    table->len++;
}

void table_remove(struct table *table, struct table_entry *entry)
{
    struct table_entry **place = bucket_of(table, entry->hash);
    while (*place && *place != entry)
        place = &(*place)->next;
    CHECK(*place == entry);
    *place = entry->next;
    entry->next = NULL;
    table->len--;
}

struct table_entry *table_next(const struct table *table, const struct table_entry *entry)
{
    if (entry && entry->next)
        return entry->next;
    size_t i = entry ? (entry->hash & (table->buckets_len - 1)) + 1 : 0;
    for (; i < table->buckets_len; i++)
        if (table->buckets[i])
            return table->buckets[i];
    return NULL;
}
