/* SPDX-License-Identifier: Apache-2.0 */
/* The small pure parts: UUIDs, URLs, the uplink's back-off, counters. */
#include "engine/metrics.h"
#include "engine/uplink.h"
#include "engine/url.h"
#include "engine/uuid.h"

#include "unit.h"

static void test_uuid_make_is_version_4_and_unlike(void **state)
{
    (void)state;
    struct uuid last = {{0}};
    for (int i = 0; i < 100; i++) {
        struct uuid id = uuid_make();
        assert_true(uuid_is_valid(id.text));
        assert_int_equal(id.text[14], '4');
        assert_non_null(strchr("89ab", id.text[19]));
        assert_string_not_equal(id.text, last.text);
        last = id;
    }
}

static void test_uuid_is_valid_by_shape(void **state)
{
    (void)state;
    assert_true(uuid_is_valid("63CC9510-0000-0000-0000-00000000000a"));
    static const char *const bad[] = {"",
                                      "63cc9510",
                                      "63cc9510-0000-0000-0000-00000000000g",
                                      "63cc9510-0000-0000-0000-00000000000",
                                      "63cc9510-0000-0000-0000-00000000000aa",
                                      "63cc9510x0000-0000-0000-00000000000a"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(uuid_is_valid(bad[i]));
}

static void test_url_parse_forms(void **state)
{
    (void)state;
    static const struct {
        const char *text, *scheme, *host;
        uint16_t port;
        const char *path;
    } rows[] = {{"ws://localhost:49134", "ws", "localhost", 49134, "/"},
                {"WS://h/", "ws", "h", 80, "/"},
                {"wss://engine.example/base/", "wss", "engine.example", 443, "/base"},
                {"ws://[::1]:5/x", "ws", "::1", 5, "/x"},
                {"http://127.0.0.1:4318", "http", "127.0.0.1", 4318, "/"},
                {"https://c.example", "https", "c.example", 443, "/"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct url url;
        struct err e = ERR_INIT;
        assert_int_equal(url_parse(rows[i].text, &url, &e), 0);
        assert_string_equal(url.scheme, rows[i].scheme);
        assert_string_equal(url.host, rows[i].host);
        assert_int_equal(url.port, rows[i].port);
        assert_string_equal(url.path, rows[i].path);
    }
}

static void test_url_parse_refuses(void **state)
{
    (void)state;
    static const char *const bad[] = {"",         "localhost:49134", "ftp://h",     "ws://",       "ws://:5",
                                      "ws://h:0", "ws://h:65536",    "ws://h:x",    "ws://user@h", "ws://h/?token=x",
                                      "ws://h#f", "ws://[::1",       "ws://[::1]x", "ws://a b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct url url;
        struct err e = ERR_INIT;
        assert_int_equal(url_parse(bad[i], &url, &e), -1);
        assert_int_equal(e.code, ERR_INVALID);
    }
}

static void test_backoff_doubles_to_thirty_seconds(void **state)
{
    (void)state;
    static const unsigned middles[] = {1000, 2000, 4000, 8000, 16000, 30000, 30000};
    for (unsigned i = 0; i < sizeof middles / sizeof *middles; i++) {
        assert_int_equal(uplink_backoff_ms(i, 0), middles[i] * 7 / 10);
        assert_int_equal(uplink_backoff_ms(i, UINT32_MAX), middles[i] * 13 / 10);
    }
    assert_int_equal(uplink_backoff_ms(4000000000u, 0), 21000);
}

static void test_metrics_write_prometheus_text(void **state)
{
    (void)state;
    struct metrics metrics = {0};
    struct err e = ERR_INIT;
    auto_buf out = BUF_INIT(100000);
    metric_add(&metrics, METRIC_CALLS, 7);
    metric_add(&metrics, METRIC_FUNCTIONS, 3);
    metric_add(&metrics, METRIC_FUNCTIONS, -1);
    assert_int_equal(metrics_write(&metrics, &out, &e), 0);
    assert_int_equal(buf_append_u8(&out, 0, &e), 0);
    const char *text = (const char *)buf_data(&out);
    assert_non_null(strstr(text, "# TYPE iii_engine_calls_total counter\niii_engine_calls_total 7\n"));
    assert_non_null(strstr(text, "iii_engine_functions 2\n"));
}

UNIT_MAIN(cmocka_unit_test(test_uuid_make_is_version_4_and_unlike), cmocka_unit_test(test_uuid_is_valid_by_shape),
          cmocka_unit_test(test_url_parse_forms), cmocka_unit_test(test_url_parse_refuses),
          cmocka_unit_test(test_backoff_doubles_to_thirty_seconds), cmocka_unit_test(test_metrics_write_prometheus_text))
