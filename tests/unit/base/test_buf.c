/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "unit.h"

static void test_append_past_the_maximum_changes_nothing(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_buf b = BUF_INIT(10);
    assert_int_equal(buf_append(&b, "12345678", 8, &e), 0);
    assert_int_equal(buf_append(&b, "abc", 3, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_int_equal(b.len, 8);
    buf_consume(&b, 5);
    err_clear(&e);
    assert_int_equal(buf_append(&b, "abcdefg", 7, &e), 0);
    assert_memory_equal(buf_data(&b), "678abcdefg", 10);
    err_clear(&e);
    assert_int_equal(buf_append(&b, NULL, SIZE_MAX, &e), -1);
}

static void test_consume_and_append_keep_order(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_buf b = BUF_INIT(1 << 20);
    uint8_t next_in = 0, next_out = 0;
    for (unsigned round = 0; round < 2000; round++) {
        for (unsigned i = 0; i < round % 97; i++)
            assert_int_equal(buf_append_u8(&b, next_in++, &e), 0);
        size_t take = b.len < round % 89 ? b.len : round % 89;
        for (size_t i = 0; i < take; i++)
            assert_int_equal(buf_data(&b)[i], next_out++);
        buf_consume(&b, take);
    }
}

static void test_appendf_and_integers(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_buf b = BUF_INIT(64);
    assert_int_equal(buf_appendf(&b, &e, "%s=%d", "x", 42), 0);
    assert_int_equal(buf_append_u32(&b, 0x01020304, &e), 0);
    assert_int_equal(b.len, 8);
    assert_memory_equal(buf_data(&b), "x=42\x04\x03\x02\x01", 8);
}

UNIT_MAIN(cmocka_unit_test(test_append_past_the_maximum_changes_nothing), cmocka_unit_test(test_consume_and_append_keep_order),
          cmocka_unit_test(test_appendf_and_integers))
