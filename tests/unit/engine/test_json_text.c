/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/json_text.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/limits.h"

#include "unit.h"

static void test_is_valid_takes_what_rfc8259_takes(void **state)
{
    (void)state;
    static const char *const good[] = {"{}",           "[]",
                                       " null ",       "true",
                                       "false",        "0",
                                       "-0",           "10",
                                       "-1.5e+3",      "1E5",
                                       "\"\"",         "\"\\u00e4\\n\"",
                                       "[[]]",         "[1,2]",
                                       "{\"a\":{}}",   "{\"a\":[{}],\"b\":\"c\"}",
                                       "\"\xc3\xa4\"", "[\"\\ud800\"]",
                                       "1e400",        "123456789012345678901234567890"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(json_is_valid(good[i], strlen(good[i])));
}

static void test_is_valid_refuses_the_rest(void **state)
{
    (void)state;
    static const char *const bad[] = {"",           " ",     "{",        "}",        "[1,]",         "{\"a\"}", "{\"a\":}",
                                      "{\"a\":1,}", "{a:1}", "[1 2]",    "01",       "1.",           ".5",      "-",
                                      "+1",         "1e",    "nul",      "tru",      "\"",           "\"\\x\"", "\"\\u12\"",
                                      "\"\n\"",     "[]]",   "1 2",      "\"\xff\"", "\"\xc0\x80\"", "[\"a]",   "{\"a\":1]",
                                      "[1}",        "NaN",   "Infinity", "'a'",      "{\"a\" 1}",    "//",      "\xef\xbb\xbf{}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(json_is_valid(bad[i], strlen(bad[i])));
    assert_false(json_is_valid("\"a\0\"", 4));
}

static void test_is_valid_bounds_the_depth(void **state)
{
    (void)state;
    size_t depth = ENGINE_JSON_DEPTH_MAX;
    auto_free char *text = xmalloc(2 * depth + 2);
    memset(text, '[', depth);
    memset(text + depth, ']', depth);
    assert_true(json_is_valid(text, 2 * depth));
    memset(text, '[', depth + 1);
    memset(text + depth + 1, ']', depth + 1);
    assert_false(json_is_valid(text, 2 * depth + 2));
}

static void test_members_next_walks_and_stops(void **state)
{
    (void)state;
    const char *text = " { \"a\" : [1, {\"x\":2}] , \"b\\n\":\"}\",\"c\":null } ";
    struct json_members m = json_members_of(text, strlen(text));
    struct json_slice key, value;
    assert_true(json_members_next(&m, &key, &value));
    assert_true(json_slice_is(key, "a"));
    assert_memory_equal(value.text, "[1, {\"x\":2}]", value.len);
    assert_int_equal(value.len, 12);
    assert_true(json_members_next(&m, &key, &value));
    assert_true(json_slice_is(key, "b\n"));
    assert_true(json_slice_is(value, "}"));
    assert_true(json_members_next(&m, &key, &value));
    assert_int_equal(json_slice_kind(value), JSON_KIND_NULL);
    assert_false(json_members_next(&m, &key, &value));
    assert_false(m.failed);
    assert_false(json_members_next(&m, &key, &value));
}

static void test_members_next_fails_where_the_text_is_wrong(void **state)
{
    (void)state;
    static const char *const bad[] = {"[]", "{\"a\":1", "{\"a\":1}x", "{\"a\":1 \"b\":2}", "{\"a\":1,}", "", "{,}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct json_members m = json_members_of(bad[i], strlen(bad[i]));
        struct json_slice key, value;
        while (json_members_next(&m, &key, &value))
            ;
        assert_true(m.failed);
        assert_non_null(m.failure);
    }
}

static void test_slice_text_decodes_escapes(void **state)
{
    (void)state;
    static const struct {
        const char *json, *text;
    } rows[] = {{"\"a\\\"\\\\\\/\\b\\f\\n\\r\\tz\"", "a\"\\/\b\f\n\r\tz"},
                {"\"\\u0041\\u00e4\\u20ac\\ud83d\\ude00\"", "A\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
                {"\"\"", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        auto_free char *text = json_slice_text((struct json_slice){rows[i].json, strlen(rows[i].json)}, 100);
        assert_string_equal(text, rows[i].text);
    }
    static const char *const refused[] = {"\"\\u0000\"", "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"",
                                          "7",           "null",        "\"toolong\""};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_null(json_slice_text((struct json_slice){refused[i], strlen(refused[i])}, 6));
    assert_null(json_slice_text((struct json_slice){0}, 6));
}

static void test_writer_escapes_and_leaves_out(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_buf out = BUF_INIT(1000);
    struct json_writer w = json_writer_begin(&out, &e);
    json_write_text(&w, "a", "x\"\n\x01\xc3\xa4");
    json_write_text(&w, "none", NULL);
    json_write_slice(&w, "b", (struct json_slice){"[1]", 3});
    json_write_slice(&w, "none", (struct json_slice){0});
    json_write_number(&w, "c", 18446744073709551615ull);
    assert_int_equal(json_writer_end(&w), 0);
    assert_int_equal(buf_append_u8(&out, 0, &e), 0);
    assert_string_equal((const char *)buf_data(&out), "{\"a\":\"x\\\"\\n\\u0001\xc3\xa4\",\"b\":[1],\"c\":18446744073709551615}");
}

static void test_writer_reports_a_full_buffer(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_buf out = BUF_INIT(8);
    struct json_writer w = json_writer_begin(&out, &e);
    json_write_text(&w, "key", "value");
    assert_int_equal(json_writer_end(&w), -1);
    assert_int_equal(e.code, ERR_LIMIT);
}

UNIT_MAIN(cmocka_unit_test(test_is_valid_takes_what_rfc8259_takes), cmocka_unit_test(test_is_valid_refuses_the_rest),
          cmocka_unit_test(test_is_valid_bounds_the_depth), cmocka_unit_test(test_members_next_walks_and_stops),
          cmocka_unit_test(test_members_next_fails_where_the_text_is_wrong), cmocka_unit_test(test_slice_text_decodes_escapes),
          cmocka_unit_test(test_writer_escapes_and_leaves_out), cmocka_unit_test(test_writer_reports_a_full_buffer))
