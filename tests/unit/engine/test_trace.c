/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/trace.h"

#include "unit.h"

static void test_parse_takes_w3c_contexts(void **state)
{
    (void)state;
    struct trace_context context;
    assert_true(trace_parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", &context));
    assert_string_equal(context.trace_id, "0af7651916cd43dd8448eb211c80319c");
    assert_string_equal(context.span_id, "b7ad6b7169203331");
    assert_true(context.sampled);
    assert_true(trace_parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", &context));
    assert_false(context.sampled);
    assert_true(trace_parse("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes", &context));
}

static void test_parse_refuses_the_rest(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "00",
                                      "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                      "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                                      "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                                      "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
                                      "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
                                      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct trace_context context;
        assert_false(trace_parse(bad[i], &context));
    }
}

static void test_spans_write_otlp_json(void **state)
{
    (void)state;
    struct span spans[] = {{.name = "a::\"b\"",
                            .trace_id = "0af7651916cd43dd8448eb211c80319c",
                            .parent_id = "b7ad6b7169203331",
                            .span_id = "00f067aa0ba902b7",
                            .started_ns = 5,
                            .ended_ns = 7},
                           {.name = "c",
                            .trace_id = "0af7651916cd43dd8448eb211c80319c",
                            .span_id = "00f067aa0ba902b8",
                            .error_code = "S211",
                            .started_ns = 1,
                            .ended_ns = 2}};
    struct err e = ERR_INIT;
    auto_buf out = BUF_INIT(10000);
    assert_int_equal(spans_write(spans, 2, &out, &e), 0);
    assert_int_equal(buf_append_u8(&out, 0, &e), 0);
    const char *text = (const char *)buf_data(&out);
    assert_non_null(strstr(
        text,
        "{\"traceId\":\"0af7651916cd43dd8448eb211c80319c\",\"spanId\":\"00f067aa0ba902b7\",\"parentSpanId\":\"b7ad6b7169203331\","
        "\"name\":\"a::\\\"b\\\"\",\"kind\":2,\"startTimeUnixNano\":\"5\",\"endTimeUnixNano\":\"7\",\"status\":{\"code\":1}}"));
    assert_non_null(strstr(text, "\"status\":{\"code\":2,\"message\":\"S211\"}"));
}

UNIT_MAIN(cmocka_unit_test(test_parse_takes_w3c_contexts), cmocka_unit_test(test_parse_refuses_the_rest),
          cmocka_unit_test(test_spans_write_otlp_json))
