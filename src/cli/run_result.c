/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/run_result.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/text.h"

#include <jansson.h>
#include <string.h>

void captured_add(struct captured *stream, const uint8_t *bytes, size_t len)
{
    struct err e = ERR_INIT;
    if (!stream->kept.bytes_max)
        stream->kept = BUF_INIT(RESULT_OUTPUT_MAX);
    size_t room = RESULT_OUTPUT_MAX - stream->kept.len;
    stream->bytes += len;
    if (buf_append(&stream->kept, bytes, len < room ? len : room, &e))
        return; /* no memory: it counts as truncated */
}

static void set(json_t *object, const char *name, json_t *value)
{
    CHECK(value && json_object_set_new(object, name, value) == 0);
}

/* Cuts an incomplete character at the end, so that truncation alone does not make text binary. */
static size_t whole_text_len(const struct captured *stream)
{
    size_t len = stream->kept.len;
    const uint8_t *bytes = buf_data(&stream->kept);
    if (stream->bytes == len)
        return len;
    for (size_t back = 1; back < 4 && back <= len; back++)
        if (text_is_utf8(bytes, len - back) && !text_is_utf8(bytes, len))
            return len - back;
    return len;
}

static void set_stream(json_t *object, const char *name, const struct captured *stream)
{
    auto_free char *count = xasprintf("%s_bytes", name), *cut = xasprintf("%s_truncated", name),
                   *binary = xasprintf("%s_b64", name);
    size_t len = whole_text_len(stream);
    const uint8_t *bytes = buf_data(&stream->kept);
    if (text_is_utf8(bytes, len)) {
        set(object, name, json_stringn((const char *)bytes, len));
    } else {
        auto_free char *encoded = text_base64(bytes, stream->kept.len);
        set(object, name, json_string(""));
        set(object, binary, json_string(encoded));
    }
    set(object, count, json_integer((json_int_t)stream->bytes));
    set(object, cut, json_boolean(stream->bytes > stream->kept.len));
}

static void set_failure(json_t *object, const struct err *failure)
{
    json_t *error = json_object();
    set(error, "code", json_string(err_code_wire(failure->code)));
    set(error, "type", json_string(err_code_type(failure->code)));
    bool readable = text_is_utf8(failure->text, strlen(failure->text));
    set(error, "message", json_string(readable ? failure->text : err_code_sentence(failure->code)));
    set(error, "retryable", json_boolean(err_code_is_retryable(failure->code)));
    set(object, "error", error);
}

int run_result_print(const struct run_result *result, struct err *e)
{
    const struct wire_exit *end = result->end;
    json_t *object = json_object();
    bool timed_out = end && end->reason == WIRE_TIMED_OUT;
    set(object, "exit_code", end && !timed_out ? json_integer((json_int_t)end->exit_code) : json_null());
    set(object, "signal", json_integer(end ? (json_int_t)end->signal : 0));
    set(object, "timed_out", json_boolean(timed_out || (result->failure && result->failure->code == ERR_TIMEOUT)));
    set(object, "oom_killed", json_boolean(end && end->oom_killed));
    set(object, "duration_ms", json_integer(end ? (json_int_t)(end->duration_us / 1000) : 0));
    set(object, "ready_ms", json_integer((json_int_t)result->ready_ms));
    set_stream(object, "stdout", result->out);
    set_stream(object, "stderr", result->err);
    if (result->failure)
        set_failure(object, result->failure);
    int failed = json_dumpf(object, stdout, JSON_COMPACT) || putchar('\n') == EOF || fflush(stdout);
    json_decref(object);
    return failed ? err_sys(e, errno, "write standard output") : 0;
}
