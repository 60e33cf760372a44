/* SPDX-License-Identifier: Apache-2.0 */
/* Against frames of the real npm client, recorded on the wire (frames/). */
#include "engine/messages.h"

#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"

#include <stdlib.h>

#include "unit.h"

static struct message decode(const char *text)
{
    struct message message;
    struct err e = ERR_INIT;
    assert_int_equal(message_decode(text, strlen(text), &message, &e), 0);
    return message;
}

static void assert_text(const struct buf *out, const char *text)
{
    assert_int_equal(out->len, strlen(text));
    assert_memory_equal(buf_data(out), text, out->len);
}

/* Every recorded frame is one of ours, with its kind. */
static size_t count_kinds(const char *file, size_t *counts)
{
    struct err e = ERR_INIT;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FRAMES"), file);
    auto_free char *text = NULL;
    size_t len, lines = 0;
    assert_int_equal(file_read(path, SMALL_FILE_MAX, &text, &len, &e), 0);
    for (char *line = text; *line; lines++) {
        char *end = line + strcspn(line, "\n");
        struct message message;
        assert_int_equal(message_decode(line, (size_t)(end - line), &message, &e), 0);
        assert_int_not_equal(message.kind, MESSAGE_UNKNOWN);
        counts[message.kind]++;
        line = *end ? end + 1 : end;
    }
    return lines;
}

static void test_decode_takes_every_recorded_frame(void **state)
{
    (void)state;
    size_t counts[MESSAGE_KIND_COUNT] = {0};
    assert_true(count_kinds("client.jsonl", counts) > 40);
    assert_true(count_kinds("engine.jsonl", counts) > 40);
    static const enum message_kind seen[] = {MESSAGE_WORKER_REGISTERED,
                                             MESSAGE_REATTACH,
                                             MESSAGE_REGISTER_FUNCTION,
                                             MESSAGE_UNREGISTER_FUNCTION,
                                             MESSAGE_REGISTER_TRIGGER_TYPE,
                                             MESSAGE_UNREGISTER_TRIGGER_TYPE,
                                             MESSAGE_REGISTER_TRIGGER,
                                             MESSAGE_UNREGISTER_TRIGGER,
                                             MESSAGE_TRIGGER_REGISTRATION_RESULT,
                                             MESSAGE_INVOKE_FUNCTION,
                                             MESSAGE_INVOCATION_RESULT};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        assert_true(counts[seen[i]] > 0);
}

static void test_decode_keeps_payloads_as_they_came(void **state)
{
    (void)state;
    struct message m = decode("{\"data\":{\"n\":1e400,\"s\":\"\\ud800\"},\"function_id\":\"t::echo\",\"invocation_id\":"
                              "\"63cc9510\",\"metadata\":{\"m\":[1]},"
                              "\"type\":\"invokefunction\",\"unknown\":{\"x\":[]}}");
    assert_int_equal(m.kind, MESSAGE_INVOKE_FUNCTION);
    assert_int_equal(m.action, MESSAGE_ACTION_CALL);
    assert_true(json_slice_is(m.fields[MESSAGE_FIELD_FUNCTION_ID], "t::echo"));
    assert_memory_equal(m.fields[MESSAGE_FIELD_DATA].text, "{\"n\":1e400,\"s\":\"\\ud800\"}", 24);
    assert_memory_equal(m.fields[MESSAGE_FIELD_METADATA].text, "{\"m\":[1]}", 9);
}

static void test_decode_treats_null_as_absent_but_in_payloads(void **state)
{
    (void)state;
    struct message m = decode("{\"type\":\"invokefunction\",\"function_id\":\"f\",\"invocation_id\":null,\"data\":null,"
                              "\"action\":null,\"namespace\":null}");
    assert_null(m.fields[MESSAGE_FIELD_INVOCATION_ID].text);
    assert_null(m.fields[MESSAGE_FIELD_NAMESPACE].text);
    assert_int_equal(json_slice_kind(m.fields[MESSAGE_FIELD_DATA]), JSON_KIND_NULL);
    m = decode("{\"type\":\"invocationresult\",\"invocation_id\":\"x\",\"result\":null,\"error\":null}");
    assert_int_equal(json_slice_kind(m.fields[MESSAGE_FIELD_RESULT]), JSON_KIND_NULL);
    assert_false(message_error_is_set(m.fields[MESSAGE_FIELD_ERROR]));
}

static void test_decode_knows_actions(void **state)
{
    (void)state;
    assert_int_equal(decode("{\"type\":\"invokefunction\",\"function_id\":\"f\",\"action\":{\"type\":\"void\"}}").action,
                     MESSAGE_ACTION_VOID);
    assert_int_equal(
        decode("{\"type\":\"invokefunction\",\"function_id\":\"f\",\"action\":{\"queue\":\"q\",\"type\":\"enqueue\"}}").action,
        MESSAGE_ACTION_ENQUEUE);
    assert_int_equal(decode("{\"type\":\"invokefunction\",\"function_id\":\"f\",\"action\":{\"type\":\"later\"}}").action,
                     MESSAGE_ACTION_UNKNOWN);
}

static void test_decode_tolerates_unknown_kinds_and_blank_text(void **state)
{
    (void)state;
    assert_int_equal(decode("{\"type\":\"fromthefuture\",\"x\":1}").kind, MESSAGE_UNKNOWN);
    assert_int_equal(decode(" \r\n\t").kind, MESSAGE_UNKNOWN);
    assert_int_equal(decode("{\"\\u0074ype\":\"ping\"}").kind, MESSAGE_PING);
}

static void test_decode_drops_what_is_no_message(void **state)
{
    (void)state;
    static const char *const bad[] = {"x",
                                      "[]",
                                      "{}",
                                      "{\"type\":7}",
                                      "{\"type\":\"registerfunction\"}",
                                      "{\"type\":\"invokefunction\",\"function_id\":7}",
                                      "{\"type\":\"invokefunction\"}",
                                      "{\"type\":\"reattach\"}",
                                      "{\"type\":\"registertrigger\",\"id\":\"x\",\"trigger_type\":\"t\"}",
                                      "{\"type\":\"invocationresult\"}",
                                      "{\"type\":\"ping\"",
                                      "{\"type\":\"invokefunction\",\"function_id\":\"f\",\"action\":\"void\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct message message;
        struct err e = ERR_INIT;
        assert_int_equal(message_decode(bad[i], strlen(bad[i]), &message, &e), -1);
        assert_int_equal(e.code, ERR_PROTOCOL);
    }
}

static void write_data(const char *data, const char *expected)
{
    struct err e = ERR_INIT;
    auto_buf out = BUF_INIT(10000);
    struct message_call call = {.invocation_id = "i", .function_id = "f", .caller_worker_id = "w"};
    call.data = (struct json_slice){data, data ? strlen(data) : 0};
    assert_int_equal(message_write_call(&out, &call, &e), 0);
    char text[1000];
    snprintf(text, sizeof text, "{\"type\":\"invokefunction\",\"invocation_id\":\"i\",\"function_id\":\"f\",\"data\":%s}",
             expected);
    assert_text(&out, text);
}

static void test_write_call_adds_the_caller_to_objects_only(void **state)
{
    (void)state;
    write_data("{\"a\":1}", "{\"a\":1,\"_caller_worker_id\":\"w\"}");
    write_data("{ }", "{ \"_caller_worker_id\":\"w\"}");
    write_data(NULL, "{\"_caller_worker_id\":\"w\"}");
    write_data("{\"_caller_worker_id\":\"forged\",\"a\":1}", "{\"a\":1,\"_caller_worker_id\":\"w\"}");
    write_data("{\"_caller_worker_id\":\"forged\"}", "{\"_caller_worker_id\":\"w\"}");
    write_data("[1,2]", "[1,2]");
    write_data("\"text\"", "\"text\"");
    write_data("null", "null");
    write_data("-5", "-5");
}

static void test_write_call_void_has_no_id(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_buf out = BUF_INIT(10000);
    struct message_call call = {.function_id = "engine::workers::register", .void_action = true};
    assert_int_equal(message_write_call(&out, &call, &e), 0);
    assert_text(
        &out,
        "{\"type\":\"invokefunction\",\"function_id\":\"engine::workers::register\",\"data\":{},\"action\":{\"type\":\"void\"}}");
}

static void test_write_failure_leaves_the_stack_out(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_buf out = BUF_INIT(10000);
    struct message_error error = {.code = "S211", .message = "no \"file\""};
    assert_int_equal(message_write_failure(&out, "i", "f", &error, (struct json_slice){0}, (struct json_slice){0}, &e), 0);
    assert_text(&out, "{\"type\":\"invocationresult\",\"invocation_id\":\"i\",\"function_id\":\"f\",\"error\":{\"code\":\"S211\","
                      "\"message\":\"no \\\"file\\\"\"}}");
}

static void test_error_decode_reads_odd_bodies(void **state)
{
    (void)state;
    static const struct {
        const char *body, *code, *message;
    } rows[] = {{"{\"code\":\"S300\",\"message\":\"m\",\"stacktrace\":null}", "S300", "m"},
                {"\"just text\"", "UNKNOWN", "\"just text\""},
                {"{\"message\":\"m\"}", "UNKNOWN", "{\"message\":\"m\"}"},
                {"{\"code\":7,\"message\":\"m\"}", "UNKNOWN", "{\"code\":7,\"message\":\"m\"}"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        auto_free char *code = NULL, *message = NULL;
        struct json_slice body = {rows[i].body, strlen(rows[i].body)};
        assert_true(message_error_is_set(body));
        message_error_decode(body, &code, &message);
        assert_string_equal(code, rows[i].code);
        assert_string_equal(message, rows[i].message);
    }
    static const char *const unset[] = {"null", "false", "0", "\"\""};
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++)
        assert_false(message_error_is_set((struct json_slice){unset[i], strlen(unset[i])}));
}

static void test_write_trigger_and_others(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_buf out = BUF_INIT(10000);
    struct message_trigger trigger = {.id = "i", .trigger_type = "t", .function_id = "f"};
    assert_int_equal(message_write_trigger(&out, MESSAGE_REGISTER_TRIGGER, &trigger, &e), 0);
    assert_text(&out, "{\"type\":\"registertrigger\",\"id\":\"i\",\"trigger_type\":\"t\",\"function_id\":\"f\",\"config\":null}");
    buf_clear(&out);
    assert_int_equal(message_write_worker_registered(&out, "w", "r", &e), 0);
    assert_text(&out, "{\"type\":\"workerregistered\",\"worker_id\":\"w\",\"reattach_token\":\"r\"}");
    buf_clear(&out);
    assert_int_equal(message_write_reattach(&out, "w", NULL, &e), 0);
    assert_text(&out, "{\"type\":\"reattach\",\"previous_worker_id\":\"w\"}");
    buf_clear(&out);
    assert_int_equal(message_write_rejected(&out, "f", "o", &e), 0);
    assert_text(&out, "{\"type\":\"registrationrejected\",\"code\":\"FUNCTION_NAMESPACE_CONFLICT\",\"namespace\":\"default\","
                      "\"function_id\":\"f\",\"owner_worker_id\":\"o\"}");
}

UNIT_MAIN(cmocka_unit_test(test_decode_takes_every_recorded_frame), cmocka_unit_test(test_decode_keeps_payloads_as_they_came),
          cmocka_unit_test(test_decode_treats_null_as_absent_but_in_payloads), cmocka_unit_test(test_decode_knows_actions),
          cmocka_unit_test(test_decode_tolerates_unknown_kinds_and_blank_text),
          cmocka_unit_test(test_decode_drops_what_is_no_message),
          cmocka_unit_test(test_write_call_adds_the_caller_to_objects_only), cmocka_unit_test(test_write_call_void_has_no_id),
          cmocka_unit_test(test_write_failure_leaves_the_stack_out), cmocka_unit_test(test_error_decode_reads_odd_bodies),
          cmocka_unit_test(test_write_trigger_and_others))
