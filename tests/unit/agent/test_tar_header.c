/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/tar.h"

#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>

#include "unit.h"

static void put_checksum(uint8_t *block)
{
    unsigned sum = 0;
    memset(block + 148, ' ', 8);
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += block[i];
    snprintf((char *)block + 148, 7, "%06o", sum);
}

static void put(uint8_t *block, size_t at, const char *text)
{
    for (; *text; text++)
        block[at++] = (uint8_t)*text;
}

/* A plain header "x", which the case then spoils. */
static void plain(uint8_t *block)
{
    memset(block, 0, TAR_BLOCK);
    put(block, 0, "x");
    put(block, 100, "0000644");
    put(block, 124, "00000000005");
    put(block, 136, "00000000012");
    put(block, 156, "0");
    put(block, 257, "ustar");
    put(block, 263, "00");
    put_checksum(block);
}

static struct tar_header header;
static struct tar_overrides overrides;

static void test_decode_reads_a_plain_header(void **state)
{
    (void)state;
    uint8_t block[TAR_BLOCK];
    struct err e = ERR_INIT;
    plain(block);
    put(block, 345, "some/prefix");
    put_checksum(block);
    assert_int_equal(tar_header_decode(block, &header, &e), 1);
    assert_string_equal(header.path, "some/prefix/x");
    assert_int_equal(header.mode, 0644);
    assert_int_equal(header.size, 5);
    assert_int_equal(header.mtime, 10);
    assert_int_equal(header.type, '0');
}

static void test_decode_knows_the_end_and_refuses_nonsense(void **state)
{
    (void)state;
    uint8_t block[TAR_BLOCK] = {0};
    struct err e = ERR_INIT;
    assert_int_equal(tar_header_decode(block, &header, &e), 0);
    plain(block);
    block[0]++;
    assert_int_equal(tar_header_decode(block, &header, &e), -1);
    assert_int_equal(e.code, ERR_FS_REQUEST);
    static const struct {
        size_t at;
        uint8_t byte;
    } cases[] = {{124, 'x'}, {130, '9'}, {100, '-'}, {124, 0xff}, {124, 0xc0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plain(block);
        block[cases[i].at] = cases[i].byte;
        put_checksum(block);
        err_clear(&e);
        if (tar_header_decode(block, &header, &e) != -1)
            fail_msg("case %zu was taken", i);
    }
}

static void test_decode_takes_binary_sizes(void **state)
{
    (void)state;
    uint8_t block[TAR_BLOCK];
    struct err e = ERR_INIT;
    plain(block);
    memset(block + 124, 0, 12);
    block[124] = 0x80;
    block[131] = 3; /* 3 << 32 */
    put_checksum(block);
    assert_int_equal(tar_header_decode(block, &header, &e), 1);
    assert_true(header.size == 3ull << 32);
}

static void test_encode_comes_back(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 99, 100, 101, 999, 1000, 4000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        static struct tar_header sent, got;
        memset(&sent, 0, sizeof sent);
        memset(sent.path, 'p', lengths[i]);
        memset(sent.link, 'l', lengths[i]);
        sent.type = '2';
        sent.mode = 04755;
        sent.mtime = 1700000000;
        auto_buf out = BUF_INIT(64 * 1024);
        struct err e = ERR_INIT;
        assert_int_equal(tar_header_encode(&out, &sent, &e), 0);
        assert_int_equal(out.len % TAR_BLOCK, 0);
        const uint8_t *at = buf_data(&out);
        memset(&overrides, 0, sizeof overrides);
        assert_int_equal(tar_header_decode(at, &got, &e), 1);
        if (got.type == 'x') {
            assert_int_equal(tar_extension_decode('x', (const char *)at + TAR_BLOCK, got.size, &overrides, &e), 0);
            at += TAR_BLOCK + (got.size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
            assert_int_equal(tar_header_decode(at, &got, &e), 1);
        }
        tar_overrides_apply(&overrides, &got);
        assert_string_equal(got.path, sent.path);
        assert_string_equal(got.link, sent.link);
        assert_int_equal(got.mode, 04755);
        assert_int_equal(got.mtime, 1700000000);
    }
}

static void test_extension_refuses_malformed_records(void **state)
{
    (void)state;
    static const char *const bad[] = {"",         "5 a=b\n ",     "x a=b\n",        "6 a=b",
                                      "60 a=b\n", "6 ab c\n",     "99999999 a=b\n", "3 \n",
                                      "0 a=b\n",  "12 size=1x\n", "6a=bc\n",        "27 size=9999999999999999999\n"};
    for (size_t i = 1; i < sizeof bad / sizeof *bad; i++) {
        struct err e = ERR_INIT;
        memset(&overrides, 0, sizeof overrides);
        if (tar_extension_decode('x', bad[i], strlen(bad[i]), &overrides, &e) != -1 || e.code != ERR_FS_REQUEST)
            fail_msg("'%s' was taken", bad[i]);
    }
}

static void test_extension_takes_names_and_ignores_the_rest(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    static const char pax[] = "11 path=ab\n18 SCHILY.x=y\0z==\n19 mtime=1234.5678\n";
    memset(&overrides, 0, sizeof overrides);
    assert_int_equal(tar_extension_decode('x', pax, sizeof pax - 1, &overrides, &e), 0);
    assert_string_equal(overrides.path, "ab");
    assert_int_equal(overrides.mtime, 1234);
    assert_int_equal(tar_extension_decode('K', "target\0", 7, &overrides, &e), 0);
    assert_string_equal(overrides.link, "target");
    assert_int_equal(tar_extension_decode('g', "nonsense", 8, &overrides, &e), 0);
    char *big = calloc(1, AGENT_TAR_PATH_MAX + 1);
    assert_non_null(big);
    memset(big, 'x', AGENT_TAR_PATH_MAX);
    assert_int_equal(tar_extension_decode('L', big, AGENT_TAR_PATH_MAX, &overrides, &e), -1);
    free(big);
}

UNIT_MAIN(cmocka_unit_test(test_decode_reads_a_plain_header), cmocka_unit_test(test_decode_knows_the_end_and_refuses_nonsense),
          cmocka_unit_test(test_decode_takes_binary_sizes), cmocka_unit_test(test_encode_comes_back),
          cmocka_unit_test(test_extension_refuses_malformed_records),
          cmocka_unit_test(test_extension_takes_names_and_ignores_the_rest))
