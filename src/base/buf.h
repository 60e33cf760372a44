/* SPDX-License-Identifier: Apache-2.0 */
/* A growable byte buffer with a mandatory maximum. Bytes are appended at the end and consumed at the front. Growing past
 * the maximum or out of memory is an error of the append, never an abort: peers choose how much is put in here. */
#pragma once

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *bytes; /* start of the live bytes is bytes + start */
    size_t start, len, capacity;
    size_t bytes_max;
};

#define BUF_INIT(max) ((struct buf){.bytes_max = (max)})

void buf_done(struct buf *b); /* frees; the buffer is empty and usable again */
const uint8_t *buf_data(const struct buf *b) __attribute__((nonnull));
void buf_clear(struct buf *b) __attribute__((nonnull)); /* keeps the memory */

/* ERR_LIMIT past bytes_max, ERR_NOMEM without memory; the content is then unchanged. */
int buf_append(struct buf *b, const void *bytes, size_t len, struct err *e) __attribute__((nonnull(1, 4), warn_unused_result));
/* Room for len bytes at the end; *ret_room is valid until the next call. Follow with buf_commit(used <= len). */
int buf_reserve(struct buf *b, size_t len, uint8_t **ret_room, struct err *e) __attribute__((nonnull, warn_unused_result));
void buf_commit(struct buf *b, size_t used) __attribute__((nonnull));
void buf_consume(struct buf *b, size_t len) __attribute__((nonnull)); /* CHECKs len <= b->len */

/* Little-endian integers, for the wire. */
int buf_append_u8(struct buf *b, uint8_t value, struct err *e) __attribute__((nonnull, warn_unused_result));
int buf_append_u16(struct buf *b, uint16_t value, struct err *e) __attribute__((nonnull, warn_unused_result));
int buf_append_u32(struct buf *b, uint32_t value, struct err *e) __attribute__((nonnull, warn_unused_result));
int buf_append_u64(struct buf *b, uint64_t value, struct err *e) __attribute__((nonnull, warn_unused_result));
int buf_appendf(struct buf *b, struct err *e, const char *format, ...)
    __attribute__((nonnull(1, 2, 3), format(printf, 3, 4), warn_unused_result));

#define auto_buf __attribute__((cleanup(buf_done), unused)) struct buf
