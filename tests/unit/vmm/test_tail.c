/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/tail.h"

#include "unit.h"

static void test_append_keeps_the_end_at_a_line_start(void **state)
{
    (void)state;
    struct tail t = TAIL_INIT(16);
    assert_string_equal(tail_text(&t), "");
    tail_append(&t, "first\nsecond\n", 13);
    tail_append(&t, "third\n", 6);
    assert_string_equal(tail_text(&t), "third\n");
    tail_append(&t, "0123456789abcdefXYZ", 19);
    assert_string_equal(tail_text(&t), "3456789abcdefXYZ");
    tail_done(&t);
    assert_string_equal(tail_text(&t), "");
}

static void test_append_never_exceeds_its_maximum(void **state)
{
    (void)state;
    struct tail t = TAIL_INIT(100);
    for (int i = 0; i < 1000; i++) {
        tail_append(&t, "ab\n", 3);
        assert_true(strlen(tail_text(&t)) <= 100);
        assert_true(strlen(tail_text(&t)) == t.len);
    }
    assert_true(t.len > 50);
    assert_memory_equal(tail_text(&t), "ab\nab\n", 6);
    tail_done(&t);
}

static void test_append_does_not_end_at_a_nul(void **state)
{
    (void)state;
    struct tail t = TAIL_INIT(32);
    tail_append(&t, "a\0b", 3);
    assert_string_equal(tail_text(&t), "a?b");
    tail_done(&t);
}

static void test_find_line_takes_the_last(void **state)
{
    (void)state;
    struct tail t = TAIL_INIT(200);
    char line[32];
    assert_int_equal(tail_find_line(&t, "panic: ", line, sizeof line), -1);
    const char *text = "[1] panic: one\r\n[2] panic: two\r\nlater\n";
    tail_append(&t, text, strlen(text));
    assert_int_equal(tail_find_line(&t, "panic: ", line, sizeof line), 0);
    assert_string_equal(line, "panic: two");
    assert_int_equal(tail_find_line(&t, "absent", line, sizeof line), -1);
    tail_done(&t);
}

UNIT_MAIN(cmocka_unit_test(test_append_keeps_the_end_at_a_line_start), cmocka_unit_test(test_append_never_exceeds_its_maximum),
          cmocka_unit_test(test_append_does_not_end_at_a_nul), cmocka_unit_test(test_find_line_takes_the_last))
