/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config.h"

#include "unit.h"

static int parse(struct config *config, const char *text, struct err *e)
{
    config_init(config);
    return config_parse(config, "c.yaml", text, strlen(text), e);
}

static void test_parse_reads_every_key(void **state)
{
    (void)state;
    struct config config;
    struct err e = ERR_INIT;
    assert_int_equal(
        parse(&config,
              "port: 4000\nhost: 0.0.0.0\ntoken: 's3: cret'\nallowed_origins:\n  - https://a.example\n  - https://b.example\n",
              &e),
        0);
    assert_int_equal(config.port, 4000);
    assert_string_equal(config.host, "0.0.0.0");
    assert_string_equal(config.token, "s3: cret");
    assert_int_equal(config.allowed_origins.len, 2);
    assert_string_equal(config.allowed_origins.items[1], "https://b.example");
    config_done(&config);
}

static void test_parse_defaults(void **state)
{
    (void)state;
    static const char *const empty[] = {"", "\n# nothing\n", "~", "{}", "token: ~\nhost:\n"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        struct config config;
        struct err e = ERR_INIT;
        assert_int_equal(parse(&config, empty[i], &e), 0);
        assert_int_equal(config.port, 49134);
        assert_null(config.host);
        assert_null(config.token);
        assert_int_equal(config.allowed_origins.len, 0);
        config_done(&config);
    }
}

static void test_parse_errors_name_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"port: 1\nallowed_origin: []\n",
         "c.yaml, line 2, column 1: 'allowed_origin' is not a known key (did you mean 'allowed_origins'?)"},
        {"nothing_like_it: 1\n", "c.yaml, line 1, column 1: 'nothing_like_it' is not a known key"},
        {"port: 70000\n", "c.yaml, line 1, column 7: 'port' must be a whole number in its range"},
        {"port: [1]\n", "c.yaml, line 1, column 7: 'port' must be a whole number in its range"},
        {"port: -1\n", "c.yaml, line 1, column 7: 'port' must be a whole number in its range"},
        {"host: {a: b}\n", "c.yaml, line 1, column 7: 'host' must be a text"},
        {"allowed_origins: x\n", "c.yaml, line 1, column 18: 'allowed_origins' must be a list"},
        {"allowed_origins: [[x]]\n", "c.yaml, line 1, column 19: 'allowed_origins' must be a list of texts"},
        {"port: 1\nport: 2\n", "c.yaml, line 2, column 1: 'port' is there twice"},
        {"- a\n", "c.yaml, line 1, column 1: 'the file' must be a mapping of keys"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct config config;
        struct err e = ERR_INIT;
        assert_int_equal(parse(&config, rows[i].text, &e), -1);
        assert_int_equal(e.code, ERR_USAGE);
        assert_string_equal(e.text, rows[i].message);
        config_done(&config);
    }
}

static void test_parse_broken_yaml(void **state)
{
    (void)state;
    struct config config;
    struct err e = ERR_INIT;
    assert_int_equal(parse(&config, "port: 1\n\ttoken: [\n", &e), -1);
    assert_non_null(strstr(e.text, "c.yaml, line 2"));
    config_done(&config);
}

static void test_load_named_file_must_exist(void **state)
{
    (void)state;
    struct config config;
    struct err e = ERR_INIT;
    config_init(&config);
    assert_int_equal(config_load(&config, "/nonexistent/config.yaml", &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    config_done(&config);
}

UNIT_MAIN(cmocka_unit_test(test_parse_reads_every_key), cmocka_unit_test(test_parse_defaults),
          cmocka_unit_test(test_parse_errors_name_the_place), cmocka_unit_test(test_parse_broken_yaml),
          cmocka_unit_test(test_load_named_file_must_exist))
