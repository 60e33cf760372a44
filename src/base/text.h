/* SPDX-License-Identifier: Apache-2.0 */
/* Text to values and back, strictly: the only place that parses numbers. Pure. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decimal digits only, no sign, no blanks, at most max. ERR_INVALID quoting the text otherwise. */
int text_parse_u64(const char *text, uint64_t max, uint64_t *ret_value, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* "500ms", "30s", "5m", "2h", "1h 30m", "1h30m"; a bare number is refused. Milliseconds, at most ten years. */
int text_parse_duration_ms(const char *text, uint64_t *ret_ms, struct err *e) __attribute__((nonnull, warn_unused_result));
bool text_is_utf8(const void *bytes, size_t len); /* RFC 3629: no surrogates, no overlong forms */
bool text_has_prefix(const char *text, const char *prefix) __attribute__((nonnull));
bool text_has_suffix(const char *text, const char *suffix) __attribute__((nonnull));
bool text_is_one_of(const char *text, const char *const *list) __attribute__((nonnull)); /* NULL-terminated list */
/* [A-Za-z_][A-Za-z0-9_]* : a portable environment name. len is that of the name alone. */
bool text_is_env_name(const char *name, size_t len) __attribute__((nonnull));
/* Lower-case hex of len bytes into text[2 * len + 1]. */
void text_hex(const void *bytes, size_t len, char *text) __attribute__((nonnull));
/* Standard base64 with padding (RFC 4648), owned by the caller. */
char *text_base64(const void *bytes, size_t len) __attribute__((warn_unused_result));
/* Edit distance, for "did you mean"; texts over 64 bytes are far from everything. */
unsigned text_distance(const char *a, const char *b) __attribute__((nonnull));
/* The nearest of several known names to a misspelt one, at most `distance_max` edits away: start with TEXT_NEAREST_INIT, offer
 * each name, read `best` (NULL: none is near; borrowed). */
struct text_nearest {
    const char *name, *best;
    unsigned distance_max;
};
#define TEXT_NEAREST_INIT(word, max) ((struct text_nearest){.name = (word), .distance_max = (max)})
void text_nearest_offer(struct text_nearest *nearest, const char *known) __attribute__((nonnull));
/* Replaces control characters by '?' in place: for what a peer said and a terminal or a log will show. */
void text_make_printable(char *text) __attribute__((nonnull));
