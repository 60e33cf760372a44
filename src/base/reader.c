/* SPDX-License-Identifier: Apache-2.0 */
#include "base/reader.h"

struct reader reader_of(const void *bytes, size_t len)
{
    return (struct reader){.bytes = bytes, .len = len};
}

size_t reader_left(const struct reader *r)
{
    return r->failed ? 0 : r->len - r->at;
}

const uint8_t *reader_bytes(struct reader *r, size_t len)
{
    if (reader_left(r) < len) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *bytes = r->bytes + r->at;
    r->at += len;
    return bytes;
}

static uint64_t read_le(struct reader *r, size_t size)
{
    const uint8_t *bytes = reader_bytes(r, size);
    uint64_t value = 0;
    for (size_t i = 0; bytes && i < size; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

uint8_t reader_u8(struct reader *r)
{
    return (uint8_t)read_le(r, 1);
}

uint16_t reader_u16(struct reader *r)
{
    return (uint16_t)read_le(r, 2);
}

uint32_t reader_u32(struct reader *r)
{
    return (uint32_t)read_le(r, 4);
}

uint64_t reader_u64(struct reader *r)
{
    return read_le(r, 8);
}
