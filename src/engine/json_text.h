/* SPDX-License-Identifier: Apache-2.0 */
/* JSON as text: a strict, allocation-free scanner (RFC 8259, UTF-8 checked, bounded depth) that hands out the members of an
 * object as slices of the source, and a writer. The engine forwards payloads as they came: numbers of any size, lone
 * surrogates and member order survive, and an 8 MiB payload costs one pass and no tree. Pure. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* A JSON value as text inside somebody else's bytes; text NULL: absent. Strings keep their quotes and escapes. */
struct json_slice {
    const char *text;
    size_t len;
};

enum json_kind {
    JSON_KIND_ABSENT,
    JSON_KIND_OBJECT,
    JSON_KIND_ARRAY,
    JSON_KIND_STRING,
    JSON_KIND_NUMBER,
    JSON_KIND_BOOL,
    JSON_KIND_NULL
};

/* By the first byte alone: for slices that the scanner made. */
enum json_kind json_slice_kind(struct json_slice slice);
bool json_slice_is(struct json_slice slice, const char *text) __attribute__((nonnull)); /* a string equal to text */
/* The string's content as UTF-8, NUL-terminated, caller frees. NULL when it is no string, longer than len_max, holds a NUL
 * or a lone surrogate, or memory is gone. */
char *json_slice_text(struct json_slice slice, size_t len_max) __attribute__((warn_unused_result));

/* Walks the members of one object. Values are checked as they are passed; nothing but white space may follow the object. */
struct json_members {
    const char *text;
    size_t len, at;
    bool started, ended, failed;
    const char *failure; /* fixed sentence */
};

struct json_members json_members_of(const void *text, size_t len);
/* The next member; false at the end, and on failure with `failed` set. The key has its quotes. */
bool json_members_next(struct json_members *m, struct json_slice *ret_key, struct json_slice *ret_value)
    __attribute__((nonnull, warn_unused_result));
/* Whether the bytes are one JSON value (of any kind) and nothing else. */
bool json_is_valid(const void *text, size_t len);

/* Writes one flat object, member by member, at the end of a buffer. The first failure stays; check it at the end. */
struct json_writer {
    struct buf *out;
    struct err *e;
    bool failed, any;
};

struct json_writer json_writer_begin(struct buf *out, struct err *e) __attribute__((nonnull));
void json_write_text(struct json_writer *w, const char *key, const char *text)
    __attribute__((nonnull(1, 2))); /* NULL: left out */
void json_write_slice(struct json_writer *w, const char *key, struct json_slice value)
    __attribute__((nonnull)); /* absent: left out */
void json_write_number(struct json_writer *w, const char *key, unsigned long long value) __attribute__((nonnull));
int json_writer_end(struct json_writer *w) __attribute__((nonnull, warn_unused_result));
int json_append_string(struct buf *out, const char *text, size_t len, struct err *e) __attribute__((nonnull, warn_unused_result));
