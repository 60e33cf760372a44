/* SPDX-License-Identifier: Apache-2.0 */
#include "base/reader.h"

#include "unit.h"

static void test_short_read_fails_for_good(void **state)
{
    (void)state;
    struct reader r = reader_of("\x01\x02\x03\x04\x05", 5);
    assert_int_equal(reader_u16(&r), 0x0201);
    assert_int_equal(reader_u32(&r), 0);
    assert_true(r.failed);
    assert_int_equal(reader_left(&r), 0);
    assert_int_equal(reader_u8(&r), 0);
}

static void test_reads_to_the_last_byte(void **state)
{
    (void)state;
    struct reader r = reader_of("\x01\x02\x03\x04\x05\x06\x07\x08zz", 10);
    assert_true(reader_u64(&r) == 0x0807060504030201ull);
    assert_memory_equal(reader_bytes(&r, 2), "zz", 2);
    assert_false(r.failed);
    assert_int_equal(reader_left(&r), 0);
    assert_null(reader_bytes(&r, 1));
    assert_true(r.failed);
}

UNIT_MAIN(cmocka_unit_test(test_short_read_fails_for_good), cmocka_unit_test(test_reads_to_the_last_byte))
