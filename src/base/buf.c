/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_done(struct buf *b)
{
    if (!b)
        return;
    free(b->bytes);
    *b = BUF_INIT(b->bytes_max);
}

const uint8_t *buf_data(const struct buf *b)
{
    return b->bytes ? b->bytes + b->start : (const uint8_t *)"";
}

void buf_clear(struct buf *b)
{
    b->start = b->len = 0;
}

int buf_reserve(struct buf *b, size_t len, uint8_t **ret_room, struct err *e)
{
    if (len > b->bytes_max || b->len > b->bytes_max - len)
        return err_set(e, ERR_LIMIT, "buffer would exceed its limit of %zu bytes", b->bytes_max);
    size_t need = b->len + len;
    if (b->start + need > b->capacity && b->start > 0) {
        memmove(b->bytes, b->bytes + b->start, b->len);
        b->start = 0;
    }
    if (need > b->capacity) {
        size_t capacity = b->capacity * 2 > need ? b->capacity * 2 : need;
        if (capacity < 256)
            capacity = 256;
        if (capacity > b->bytes_max)
            capacity = b->bytes_max;
        uint8_t *bytes = realloc(b->bytes, capacity ? capacity : 1);
        if (!bytes)
            return err_set(e, ERR_NOMEM, "no memory for a buffer of %zu bytes", capacity);
        b->bytes = bytes;
        b->capacity = capacity;
    }
    if (!b->bytes) { /* nothing was asked for and nothing is here: still a valid address */
        b->bytes = malloc(1);
        if (!b->bytes)
            return err_set(e, ERR_NOMEM, "no memory for a buffer");
    }
    *ret_room = b->bytes + b->start + b->len;
    return 0;
}

void buf_commit(struct buf *b, size_t used)
{
    CHECK(b->start + b->len + used <= b->capacity || used == 0);
    b->len += used;
}

int buf_append(struct buf *b, const void *bytes, size_t len, struct err *e)
{
    uint8_t *room;
    if (buf_reserve(b, len, &room, e))
        return -1;
    if (len)
        memcpy(room, bytes, len);
    buf_commit(b, len);
    return 0;
}

void buf_consume(struct buf *b, size_t len)
{
    CHECK(len <= b->len);
    b->start += len;
    b->len -= len;
    if (!b->len)
        b->start = 0;
}

static int append_le(struct buf *b, uint64_t value, unsigned size, struct err *e)
{
    uint8_t bytes[8];
    for (unsigned i = 0; i < size; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    return buf_append(b, bytes, size, e);
}

int buf_append_u8(struct buf *b, uint8_t value, struct err *e)
{
    return append_le(b, value, 1, e);
}

int buf_append_u16(struct buf *b, uint16_t value, struct err *e)
{
    return append_le(b, value, 2, e);
}

int buf_append_u32(struct buf *b, uint32_t value, struct err *e)
{
    return append_le(b, value, 4, e);
}

int buf_append_u64(struct buf *b, uint64_t value, struct err *e)
{
    return append_le(b, value, 8, e);
}

int buf_appendf(struct buf *b, struct err *e, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    uint8_t *room = NULL;
    int result = -1;
    if (len < 0)
        err_set(e, ERR_INVALID, "text cannot be formatted");
    else
        result = buf_reserve(b, (size_t)len + 1, &room, e);
    if (!result) {
        vsnprintf((char *)room, (size_t)len + 1, format, again);
        buf_commit(b, (size_t)len);
    }
    va_end(again);
    return result;
}
