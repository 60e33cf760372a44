/* SPDX-License-Identifier: Apache-2.0 */
#include "image/vmlinux.h"

#include "base/cleanup.h"

#include <lz4.h>

#include "unit.h"

#define FILE_BYTES 8192
#define START 1024 /* one setup sector */

static uint8_t file[FILE_BYTES];

static void put_u32(size_t at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        file[at + (size_t)i] = (uint8_t)(value >> 8 * i);
}

/* A bzImage whose payload is `content`, packed. Returns its length. */
static size_t build(const char *content, size_t len, uint32_t claimed)
{
    memset(file, 0, sizeof file);
    memcpy(file + 0x202, "HdrS", 4);
    file[0x1f1] = 1;
    int packed = LZ4_compress_default(content, (char *)file + START + 8, (int)len, FILE_BYTES - START - 12);
    assert_true(packed > 0);
    put_u32(0x248, 0);
    put_u32(0x24c, (uint32_t)packed + 12);
    put_u32(START, 0x184c2102);
    put_u32(START + 4, (uint32_t)packed);
    put_u32(START + 8 + (size_t)packed, claimed);
    return START + 12 + (size_t)packed;
}

static void test_vmlinux_unpack_gives_the_elf_file(void **state)
{
    (void)state;
    static const char content[] = "\177ELF and much much much much much more";
    struct err e = ERR_INIT;
    bool found = false;
    auto_buf elf = BUF_INIT(16 << 20);
    size_t len = build(content, sizeof content, sizeof content);
    assert_int_equal(vmlinux_unpack(file, len, &elf, &found, &e), 0);
    assert_true(found);
    assert_int_equal(elf.len, sizeof content);
    assert_memory_equal(buf_data(&elf), content, sizeof content);
}

static void test_vmlinux_unpack_leaves_what_it_does_not_know(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    bool found = true;
    auto_buf elf = BUF_INIT(16 << 20);
    assert_int_equal(vmlinux_unpack("\177ELF", 4, &elf, &found, &e), 0);
    assert_false(found);
    found = true;
    size_t len = build("\177ELF", 5, 5);
    file[START] = 0x1f; /* gzip */
    assert_int_equal(vmlinux_unpack(file, len, &elf, &found, &e), 0);
    assert_false(found);
    build("\177ELF", 5, 5);
    put_u32(0x24c, UINT32_MAX); /* a payload beyond the file */
    assert_int_equal(vmlinux_unpack(file, len, &elf, &found, &e), 0);
    assert_false(found);
}

static void test_vmlinux_unpack_refuses_damage(void **state)
{
    (void)state;
    bool found;
    for (int kind = 0; kind < 4; kind++) {
        struct err e = ERR_INIT;
        auto_buf elf = BUF_INIT(kind == 3 ? 100 : 16 << 20);
        size_t len = build(kind == 1 ? "not an ELF file" : "\177ELF", 5, kind == 0 ? 6 : 5);
        if (kind == 2)
            put_u32(START + 4, 2000); /* a block longer than what is left */
        assert_int_equal(vmlinux_unpack(file, len, &elf, &found, &e), -1);
        assert_int_equal(e.code, kind == 3 ? ERR_LIMIT : ERR_INVALID);
    }
}

UNIT_MAIN(cmocka_unit_test(test_vmlinux_unpack_gives_the_elf_file),
          cmocka_unit_test(test_vmlinux_unpack_leaves_what_it_does_not_know),
          cmocka_unit_test(test_vmlinux_unpack_refuses_damage))
