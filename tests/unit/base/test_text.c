/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdlib.h>

#include "unit.h"

static void test_parse_u64_edges(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    uint64_t value = 7;
    assert_int_equal(text_parse_u64("18446744073709551615", UINT64_MAX, &value, &e), 0);
    assert_true(value == UINT64_MAX);
    const char *bad[] = {"", "-1", "+1", " 1", "1 ", "0x10", "18446744073709551616", "99999999999999999999999", "1e3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        value = 7;
        assert_int_equal(text_parse_u64(bad[i], UINT64_MAX, &value, &e), -1);
        assert_int_equal(e.code, ERR_INVALID);
        assert_true(value == 7);
        err_clear(&e);
    }
    assert_int_equal(text_parse_u64("256", 255, &value, &e), -1);
    err_clear(&e);
    assert_int_equal(text_parse_u64("255", 255, &value, &e), 0);
    assert_int_equal(text_parse_u64("7", 3, &value, &e), -1);
}

static void test_parse_duration_forms(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t ms;
    } good[] = {{"500ms", 500},      {"30s", 30000},     {"5m", 300000},   {"2h", 7200000},
                {"1h 30m", 5400000}, {"1h30m", 5400000}, {"1d", 86400000}, {"0s", 0}};
    struct err e = ERR_INIT;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t ms = 1;
        assert_int_equal(text_parse_duration_ms(good[i].text, &ms, &e), 0);
        assert_true(ms == good[i].ms);
    }
    const char *bad[] = {"", "30", "s", "30 s", "1h 30", "30S", "-5s", "9999999999999h", "1h,30m"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t ms;
        assert_int_equal(text_parse_duration_ms(bad[i], &ms, &e), -1);
        assert_int_equal(e.code, ERR_INVALID);
        err_clear(&e);
    }
}

static void test_is_utf8_refuses_what_rfc3629_refuses(void **state)
{
    (void)state;
    assert_true(text_is_utf8("", 0));
    assert_true(text_is_utf8("a\0b", 3));
    assert_true(text_is_utf8("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf", 13));
    static const char *const bad[] = {"\x80",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x80\x80",
                                      "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff",
                                      "\xe2\x82",     "\xf5\x80\x80\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(text_is_utf8(bad[i], strlen(bad[i])));
}

static void test_env_name_and_distance(void **state)
{
    (void)state;
    assert_true(text_is_env_name("A_1", 3));
    assert_true(text_is_env_name("_", 1));
    assert_false(text_is_env_name("", 0));
    assert_false(text_is_env_name("1A", 2));
    assert_false(text_is_env_name("A-B", 3));
    assert_int_equal(text_distance("memory", "memory"), 0);
    assert_int_equal(text_distance("memroy", "memory"), 2);
    assert_int_equal(text_distance("", "abc"), 3);
    char hex[7];
    static const char *const base64[][2] = {{"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
                                            {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xff\xfe\xfd", "//79"}};
    for (size_t i = 0; i < sizeof base64 / sizeof *base64; i++) {
        char *text = text_base64(base64[i][0], strlen(base64[i][0]));
        assert_string_equal(text, base64[i][1]);
        free(text);
    }
    text_hex("\x00\xab\xff", 3, hex);
    assert_string_equal(hex, "00abff");
}

static void test_make_printable_replaces_control_characters(void **state)
{
    (void)state;
    char text[] = "a\x1b[2J\nb\x7f\xc3\xa4";
    text_make_printable(text);
    assert_string_equal(text, "a?[2J?b?\xc3\xa4");
}

UNIT_MAIN(cmocka_unit_test(test_make_printable_replaces_control_characters), cmocka_unit_test(test_parse_u64_edges),
          cmocka_unit_test(test_parse_duration_forms), cmocka_unit_test(test_is_utf8_refuses_what_rfc3629_refuses),
          cmocka_unit_test(test_env_name_and_distance))
