/* SPDX-License-Identifier: Apache-2.0 */
/* engine/messages.h and json_text.h: what jansson takes, our scanner takes; a message that was decoded, put into a new call or
 * result and decoded again is the same; a call never carries two caller ids. */
#include "fuzz.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "engine/messages.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static size_t count_openings(const uint8_t *bytes, size_t len)
{
    size_t count = 0;
    for (size_t i = 0; i < len; i++)
        count += bytes[i] == '[' || bytes[i] == '{';
    return count;
}

static void compare_parsers(const uint8_t *bytes, size_t len)
{
    if (memchr(bytes, 0, len))
        return; /* jansson takes a NUL for the end of the text */
    json_error_t error;
    json_t *tree = json_loadb((const char *)bytes, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    bool valid = json_is_valid(bytes, len);
    CHECK(!tree || valid || count_openings(bytes, len) > ENGINE_JSON_DEPTH_MAX);
    json_decref(tree);
}

static void same(struct json_slice a, struct json_slice b)
{
    CHECK(a.len == b.len && (a.len == 0 || memcmp(a.text, b.text, a.len) == 0));
}

static void try_call(const struct message *message)
{
    struct err e = ERR_INIT;
    auto_buf out = BUF_INIT(ENGINE_MESSAGE_MAX);
    auto_free char *function_id = json_slice_text(message->fields[MESSAGE_FIELD_FUNCTION_ID], ENGINE_ID_MAX);
    if (!function_id)
        return;
    struct message_call call = {
        .invocation_id = "00000000-0000-4000-8000-000000000000", .function_id = function_id, .caller_worker_id = "me"};
    call.data = message->fields[MESSAGE_FIELD_DATA];
    call.metadata = message->fields[MESSAGE_FIELD_METADATA];
    call.traceparent = message->fields[MESSAGE_FIELD_TRACEPARENT];
    CHECK(message_write_call(&out, &call, &e) == 0);
    struct message again;
    CHECK(message_decode(buf_data(&out), out.len, &again, &e) == 0 && again.kind == MESSAGE_INVOKE_FUNCTION);
    CHECK(json_slice_is(again.fields[MESSAGE_FIELD_FUNCTION_ID], function_id));
    same(again.fields[MESSAGE_FIELD_METADATA], call.metadata);
    struct json_slice data = again.fields[MESSAGE_FIELD_DATA];
    if (json_slice_kind(data) != JSON_KIND_OBJECT) {
        same(data, call.data);
        return;
    }
    struct json_members members = json_members_of(data.text, data.len);
    struct json_slice key, value, last = {0};
    while (json_members_next(&members, &key, &value))
        if (json_slice_is(key, "_caller_worker_id"))
            last = value;
    CHECK(!members.failed && json_slice_is(last, "me"));
}

static void try_result(const struct message *message)
{
    struct err e = ERR_INIT;
    auto_buf out = BUF_INIT(ENGINE_MESSAGE_MAX);
    const struct json_slice *fields = message->fields;
    CHECK(message_write_result(&out, "id", "f\n\"", fields[MESSAGE_FIELD_RESULT], fields[MESSAGE_FIELD_ERROR],
                               fields[MESSAGE_FIELD_TRACEPARENT], fields[MESSAGE_FIELD_BAGGAGE], &e) == 0);
    struct message again;
    CHECK(message_decode(buf_data(&out), out.len, &again, &e) == 0 && again.kind == MESSAGE_INVOCATION_RESULT);
    same(again.fields[MESSAGE_FIELD_RESULT], fields[MESSAGE_FIELD_RESULT]);
    same(again.fields[MESSAGE_FIELD_ERROR], fields[MESSAGE_FIELD_ERROR]);
    auto_free char *code = NULL, *text = NULL;
    message_error_decode(fields[MESSAGE_FIELD_ERROR], &code, &text);
    CHECK(code && text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct message message;
    struct err e = ERR_INIT;
    compare_parsers(bytes, len);
    if (message_decode(bytes, len, &message, &e)) {
        CHECK(e.code == ERR_PROTOCOL);
        return 0;
    }
    if (message.kind == MESSAGE_INVOKE_FUNCTION)
        try_call(&message);
    if (message.kind == MESSAGE_INVOCATION_RESULT)
        try_result(&message);
    return 0;
}
