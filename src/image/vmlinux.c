/* SPDX-License-Identifier: Apache-2.0 */
#include "image/vmlinux.h"

#include "base/cleanup.h"
#include "base/limits.h"
#include "base/reader.h"

#include <lz4.h>
#include <string.h>

#define LZ4_LEGACY_MAGIC 0x184c2102u
#define LZ4_LEGACY_BLOCK (8u * MIB) /* each block but the last unpacks to this */

static uint32_t u32_at(const void *bytes, size_t len, size_t offset)
{
    if (len < 4 || offset > len - 4)
        return 0;
    struct reader r = reader_of((const uint8_t *)bytes + offset, 4);
    return reader_u32(&r);
}

/* The payload inside the file, or a reader of nothing. */
static struct reader find_payload(const uint8_t *file, size_t len)
{
    if (len < 0x250 || memcmp(file + 0x202, "HdrS", 4) != 0)
        return reader_of(file, 0);
    size_t setup_sectors = file[0x1f1] ? file[0x1f1] : 4;
    uint64_t start = (setup_sectors + 1) * 512 + (uint64_t)u32_at(file, len, 0x248), size = u32_at(file, len, 0x24c);
    if (start > len || size > len - start)
        return reader_of(file, 0);
    return reader_of(file + start, (size_t)size);
}

static int unpack_block(struct reader *in, uint32_t packed_len, struct buf *elf, struct err *e)
{
    const uint8_t *packed = reader_bytes(in, packed_len);
    uint8_t *room;
    if (!packed || packed_len > INT32_MAX)
        return err_set(e, ERR_INVALID, "the kernel's payload is cut");
    if (buf_reserve(elf, LZ4_LEGACY_BLOCK, &room, e))
        return err_wrap(e, "unpack the kernel");
    int n = LZ4_decompress_safe((const char *)packed, (char *)room, (int)packed_len, (int)LZ4_LEGACY_BLOCK);
    if (n < 0)
        return err_set(e, ERR_INVALID, "the kernel's payload is damaged");
    buf_commit(elf, (size_t)n);
    return 0;
}

int vmlinux_unpack(const void *bzimage, size_t len, struct buf *elf, bool *ret_found, struct err *e)
{
    struct reader in = find_payload(bzimage, len);
    if (reader_left(&in) < 12 || reader_u32(&in) != LZ4_LEGACY_MAGIC) {
        *ret_found = false;
        return 0;
    }
    /* the last four bytes are the length of the whole, put there by the kernel's build */
    while (reader_left(&in) > 4)
        if (unpack_block(&in, reader_u32(&in), elf, e))
            return -1;
    uint32_t whole = reader_u32(&in);
    if (whole != elf->len || elf->len < 4 || memcmp(buf_data(elf), "\177ELF", 4) != 0)
        return err_set(e, ERR_INVALID, "the kernel's payload unpacks to %zu bytes, not to an ELF file of %u", elf->len, whole);
    *ret_found = true;
    return 0;
}
