/* SPDX-License-Identifier: Apache-2.0 */
#include "image/catalog.h"

#include "base/cleanup.h"

#include "unit.h"

static void test_catalog_find_knows_the_presets(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct recipe r;
    assert_int_equal(catalog_find("python", &r, &e), 0);
    assert_string_equal(r.source,
                        "debian:bookworm+python3,python3-pip,python3-venv,python-is-python3,ca-certificates,procps,xxd");
    assert_string_equal(r.env.items[0], "PIP_BREAK_SYSTEM_PACKAGES=1");
    assert_int_equal(r.env.len, 3);
    recipe_done(&r);
    assert_int_equal(catalog_find("node", &r, &e), 0);
    assert_string_equal(r.env.items[0], "NODE_OPTIONS=--experimental-global-webcrypto");
    recipe_done(&r);
}

static void test_catalog_find_refuses_an_unknown_name(void **state)
{
    (void)state;
    static const char *const names[] = {"ruby", "", "tar:", "docker:x", "Python"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct err e = ERR_INIT;
        struct recipe r;
        assert_int_equal(catalog_find(names[i], &r, &e), -1);
        assert_int_equal(e.code, ERR_IMAGE_REFUSED);
        assert_non_null(strstr(e.text, "python"));
    }
}

static void test_catalog_find_refuses_a_relative_path(void **state)
{
    (void)state;
    static const char *const names[] = {"tar:x", "dir:../x"};
    for (size_t i = 0; i < 2; i++) {
        struct err e = ERR_INIT;
        struct recipe r;
        assert_int_equal(catalog_find(names[i], &r, &e), -1);
        assert_int_equal(e.code, ERR_IMAGE_REFUSED);
        assert_non_null(strstr(e.text, "absolute"));
    }
}

static void test_catalog_file_name_is_safe_and_distinct(void **state)
{
    (void)state;
    char long_a[600], long_b[600];
    memset(long_a, 'a', sizeof long_a);
    memset(long_b, 'a', sizeof long_b);
    memcpy(long_a, "tar:/", 5), memcpy(long_b, "tar:/", 5);
    long_a[599] = long_b[599] = 0;
    long_b[598] = 'b';
    auto_free char *plain = catalog_file_name("python"), *path = catalog_file_name("tar:/a/../b");
    auto_free char *dot = catalog_file_name("../x"), *a = catalog_file_name(long_a), *b = catalog_file_name(long_b);
    assert_string_equal(plain, "python");
    assert_string_equal(path, "tar%3A%2Fa%2F..%2Fb");
    assert_string_equal(dot, "%2E.%2Fx");
    assert_true(strlen(a) < 200);
    assert_string_not_equal(a, b);
}

static struct record a_record(void)
{
    struct record r = {.bytes = 4096, .made_secs = 17};
    memset(r.digest, 'a', 64);
    r.recipe = (struct recipe){.name = xstrdup("x"), .source = xstrdup("tar:/x"), .workdir = xstrdup("/w"), .user = xstrdup("")};
    strv_add(&r.recipe.env, "A=line 1\nline 2\\n");
    strv_add(&r.recipe.command, "sh");
    strv_add(&r.recipe.command, "");
    return r;
}

static void test_record_parse_reads_what_record_format_wrote(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct record in = a_record(), out;
    auto_free char *text = record_format(&in);
    assert_int_equal(record_parse(text, &out, &e), 0);
    assert_true(recipe_equals(&in.recipe, &out.recipe));
    assert_string_equal(out.recipe.env.items[0], "A=line 1\nline 2\\n");
    assert_int_equal(out.recipe.command.len, 2);
    assert_string_equal(out.digest, in.digest);
    assert_int_equal(out.bytes, 4096);
    assert_int_equal(out.made_secs, 17);
    record_done(&in), record_done(&out);
}

static void test_record_parse_refuses_every_cut(void **state)
{
    (void)state;
    struct record in = a_record(), out;
    auto_free char *text = record_format(&in);
    size_t whole = strlen(text) - 2; /* without the blank and the line end after "end" it is still whole */
    for (size_t len = 0; len < whole; len++) {
        struct err e = ERR_INIT;
        auto_free char *cut = xstrndup(text, len);
        assert_int_equal(record_parse(cut, &out, &e), -1);
    }
    record_done(&in);
}

static void test_record_parse_refuses_garbage(void **state)
{
    (void)state;
    static const char *const texts[] = {"\xff\xfe\n", "digest ../../etc/passwd\nend\n", "bytes 99999999999999999999\nend\n",
                                        "end\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct err e = ERR_INIT;
        struct record out;
        assert_int_equal(record_parse(texts[i], &out, &e), -1);
        assert_true(e.code == ERR_INVALID || e.code == ERR_LIMIT);
    }
}

UNIT_MAIN(cmocka_unit_test(test_catalog_find_knows_the_presets), cmocka_unit_test(test_catalog_find_refuses_an_unknown_name),
          cmocka_unit_test(test_catalog_find_refuses_a_relative_path),
          cmocka_unit_test(test_catalog_file_name_is_safe_and_distinct),
          cmocka_unit_test(test_record_parse_reads_what_record_format_wrote),
          cmocka_unit_test(test_record_parse_refuses_every_cut), cmocka_unit_test(test_record_parse_refuses_garbage))
