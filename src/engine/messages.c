/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/messages.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct field_row {
    const char *name;
    enum json_kind kind; /* JSON_KIND_ABSENT: any */
};

static const struct field_row field_rows[] = {
#define X(name, text, kind) {text, kind},
    MESSAGE_FIELD_TABLE(X)
#undef X
};
static_assert(sizeof field_rows / sizeof *field_rows == MESSAGE_FIELD_COUNT, "one row per field");

#define NEEDS(field) (1u << MESSAGE_FIELD_##field)
static_assert(MESSAGE_FIELD_COUNT <= 32, "the required fields are one bit each");

static const struct kind_row {
    const char *name;
    unsigned required;
} kind_rows[] = {
    [MESSAGE_UNKNOWN] = {"unknown", 0},
    [MESSAGE_WORKER_REGISTERED] = {"workerregistered", NEEDS(WORKER_ID)},
    [MESSAGE_REGISTRATION_REJECTED] = {"registrationrejected", NEEDS(CODE)},
    [MESSAGE_ERROR] = {"error", 0},
    [MESSAGE_REATTACH] = {"reattach", NEEDS(PREVIOUS_WORKER_ID)},
    [MESSAGE_REGISTER_FUNCTION] = {"registerfunction", NEEDS(ID)},
    [MESSAGE_UNREGISTER_FUNCTION] = {"unregisterfunction", NEEDS(ID)},
    [MESSAGE_REGISTER_TRIGGER_TYPE] = {"registertriggertype", NEEDS(ID)},
    [MESSAGE_UNREGISTER_TRIGGER_TYPE] = {"unregistertriggertype", NEEDS(ID)},
    [MESSAGE_REGISTER_TRIGGER] = {"registertrigger", NEEDS(ID) | NEEDS(TRIGGER_TYPE) | NEEDS(FUNCTION_ID)},
    [MESSAGE_TRIGGER_REGISTRATION_RESULT] = {"triggerregistrationresult", NEEDS(ID)},
    [MESSAGE_UNREGISTER_TRIGGER] = {"unregistertrigger", NEEDS(ID)},
    [MESSAGE_INVOKE_FUNCTION] = {"invokefunction", NEEDS(FUNCTION_ID)},
    [MESSAGE_INVOCATION_RESULT] = {"invocationresult", NEEDS(INVOCATION_ID)},
    [MESSAGE_REGISTER_SERVICE] = {"registerservice", 0},
    [MESSAGE_PING] = {"ping", 0},
    [MESSAGE_PONG] = {"pong", 0},
};
static_assert(sizeof kind_rows / sizeof *kind_rows == MESSAGE_KIND_COUNT, "one row per kind");

static const struct json_slice slice_null = {"null", 4}, slice_empty_object = {"{}", 2};

const char *message_kind_name(enum message_kind kind)
{
    CHECK((unsigned)kind < MESSAGE_KIND_COUNT);
    return kind_rows[kind].name;
}

/* Payloads for which null is a value of its own. */
static bool field_takes_null(enum message_field field)
{
    return field == MESSAGE_FIELD_DATA || field == MESSAGE_FIELD_RESULT || field == MESSAGE_FIELD_CONFIG;
}

static int store_field(struct message *m, struct json_slice key, struct json_slice value, struct err *e)
{
    for (unsigned i = 0; i < MESSAGE_FIELD_COUNT; i++) {
        if (!json_slice_is(key, field_rows[i].name))
            continue;
        enum json_kind kind = json_slice_kind(value);
        if (kind == JSON_KIND_NULL && !field_takes_null(i)) {
            m->fields[i] = (struct json_slice){0};
            return 0;
        }
        if (field_rows[i].kind != JSON_KIND_ABSENT && field_rows[i].kind != kind)
            return err_set(e, ERR_PROTOCOL, "member '%s' is of the wrong type", field_rows[i].name);
        m->fields[i] = value; /* of several with the same name the last counts, as in every JSON library of the field */
        return 0;
    }
    return 0;
}

static enum message_action decode_action(struct json_slice action)
{
    if (!action.text)
        return MESSAGE_ACTION_CALL;
    struct json_members members = json_members_of(action.text, action.len);
    struct json_slice key, value;
    enum message_action found = MESSAGE_ACTION_UNKNOWN;
    while (json_members_next(&members, &key, &value))
        if (json_slice_is(key, "type"))
            found = json_slice_is(value, "void")      ? MESSAGE_ACTION_VOID
                    : json_slice_is(value, "enqueue") ? MESSAGE_ACTION_ENQUEUE
                                                      : MESSAGE_ACTION_UNKNOWN;
    return found;
}

static bool is_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\r\n", text[i]) || !text[i])
            return false;
    return true;
}

int message_decode(const void *text, size_t len, struct message *ret_message, struct err *e)
{
    struct message m = {.kind = MESSAGE_UNKNOWN};
    if (is_blank(text, len)) {
        *ret_message = m;
        return 0;
    }
    struct json_members members = json_members_of(text, len);
    struct json_slice key, value;
    while (json_members_next(&members, &key, &value))
        if (store_field(&m, key, value, e))
            return -1;
    if (members.failed)
        return err_set(e, ERR_PROTOCOL, "not a message: %s at byte %zu", members.failure, members.at);
    if (!m.fields[MESSAGE_FIELD_TYPE].text)
        return err_set(e, ERR_PROTOCOL, "a message without a type");
    for (unsigned kind = MESSAGE_UNKNOWN + 1; kind < MESSAGE_KIND_COUNT; kind++)
        if (json_slice_is(m.fields[MESSAGE_FIELD_TYPE], kind_rows[kind].name))
            m.kind = kind;
    for (unsigned i = 0; i < MESSAGE_FIELD_COUNT; i++)
        if ((kind_rows[m.kind].required & 1u << i) && !m.fields[i].text)
            return err_set(e, ERR_PROTOCOL, "%s without '%s'", kind_rows[m.kind].name, field_rows[i].name);
    m.action = decode_action(m.fields[MESSAGE_FIELD_ACTION]);
    *ret_message = m;
    return 0;
}

bool message_error_is_set(struct json_slice error)
{
    switch (json_slice_kind(error)) {
    case JSON_KIND_ABSENT:
    case JSON_KIND_NULL:
        return false;
    case JSON_KIND_BOOL:
        return *error.text == 't';
    case JSON_KIND_STRING:
        return error.len > 2;
    case JSON_KIND_NUMBER:
        return !(error.len == 1 && *error.text == '0');
    case JSON_KIND_OBJECT:
    case JSON_KIND_ARRAY:
        break;
    }
    return true;
}

void message_error_decode(struct json_slice error, char **ret_code, char **ret_message)
{
    auto_free char *code = NULL, *message = NULL;
    if (json_slice_kind(error) == JSON_KIND_OBJECT) {
        struct json_members members = json_members_of(error.text, error.len);
        struct json_slice key, value;
        while (json_members_next(&members, &key, &value)) {
            char **place = json_slice_is(key, "code") ? &code : json_slice_is(key, "message") ? &message : NULL;
            if (place) {
                free(*place);
                *place = json_slice_text(value, ENGINE_MESSAGE_MAX);
            }
        }
    }
    if (!code || !message) {
        free(code);
        free(message);
        code = xstrdup("UNKNOWN");
        message = xstrndup(error.text ? error.text : "no error body", error.text && error.len < 4096 ? error.len : 4096);
    }
    *ret_code = STEAL_PTR(code);
    *ret_message = STEAL_PTR(message);
}

/* The object `data` with `_caller_worker_id` as its last member; one that the caller put in himself is cut out. */
static int append_data_of(struct buf *out, struct json_slice data, const char *caller, struct err *e)
{
    struct json_members members = json_members_of(data.text, data.len);
    struct json_slice key, value;
    bool any = false;
    if (buf_append_u8(out, '{', e))
        return -1;
    while (json_members_next(&members, &key, &value)) {
        if (json_slice_is(key, "_caller_worker_id"))
            continue;
        if ((any && buf_append_u8(out, ',', e)) || buf_append(out, key.text, key.len, e) || buf_append_u8(out, ':', e) ||
            buf_append(out, value.text, value.len, e))
            return -1;
        any = true;
    }
    return buf_appendf(out, e, "%s\"_caller_worker_id\":\"%s\"}", any ? "," : "", caller);
}

static bool object_is_empty(struct json_slice object)
{
    for (size_t i = 1; i + 1 < object.len; i++)
        if (!strchr(" \t\r\n", object.text[i]))
            return false;
    return true;
}

static int append_data(struct buf *out, struct json_slice data, const char *caller, struct err *e)
{
    if (!data.text)
        data = slice_empty_object;
    if (!caller || json_slice_kind(data) != JSON_KIND_OBJECT)
        return buf_append(out, data.text, data.len, e);
    /* The member name spelt with escapes is not cut here; the one that we add comes last and counts. */
    if (memmem(data.text, data.len, "_caller_worker_id", strlen("_caller_worker_id")))
        return append_data_of(out, data, caller, e);
    if (buf_append(out, data.text, data.len - 1, e))
        return -1;
    return buf_appendf(out, e, "%s\"_caller_worker_id\":\"%s\"}", object_is_empty(data) ? "" : ",", caller);
}

int message_write_call(struct buf *out, const struct message_call *call, struct err *e)
{
    struct json_writer w = json_writer_begin(out, e);
    json_write_text(&w, "type", kind_rows[MESSAGE_INVOKE_FUNCTION].name);
    json_write_text(&w, "invocation_id", call->invocation_id);
    json_write_text(&w, "function_id", call->function_id);
    if (!w.failed)
        w.failed = buf_appendf(out, e, ",\"data\":") || append_data(out, call->data, call->caller_worker_id, e);
    json_write_slice(&w, "traceparent", call->traceparent);
    json_write_slice(&w, "baggage", call->baggage);
    json_write_slice(&w, "metadata", call->metadata);
    if (call->void_action)
        json_write_slice(&w, "action", (struct json_slice){"{\"type\":\"void\"}", 15});
    return json_writer_end(&w);
}

int message_write_result(struct buf *out, const char *invocation_id, const char *function_id, struct json_slice result,
                         struct json_slice error, struct json_slice traceparent, struct json_slice baggage, struct err *e)
{
    struct json_writer w = json_writer_begin(out, e);
    json_write_text(&w, "type", kind_rows[MESSAGE_INVOCATION_RESULT].name);
    json_write_text(&w, "invocation_id", invocation_id);
    json_write_text(&w, "function_id", function_id);
    json_write_slice(&w, "result", result);
    json_write_slice(&w, "error", error);
    json_write_slice(&w, "traceparent", traceparent);
    json_write_slice(&w, "baggage", baggage);
    return json_writer_end(&w);
}

int message_write_failure(struct buf *out, const char *invocation_id, const char *function_id, const struct message_error *error,
                          struct json_slice traceparent, struct json_slice baggage, struct err *e)
{
    auto_buf body = BUF_INIT(out->bytes_max);
    struct json_writer w = json_writer_begin(&body, e);
    json_write_text(&w, "code", error->code);
    json_write_text(&w, "message", error->message);
    json_write_text(&w, "stacktrace", error->stacktrace);
    if (json_writer_end(&w))
        return -1;
    struct json_slice slice = {(const char *)buf_data(&body), body.len};
    return message_write_result(out, invocation_id, function_id, (struct json_slice){0}, slice, traceparent, baggage, e);
}

int message_write_worker_registered(struct buf *out, const char *worker_id, const char *token, struct err *e)
{
    struct json_writer w = json_writer_begin(out, e);
    json_write_text(&w, "type", kind_rows[MESSAGE_WORKER_REGISTERED].name);
    json_write_text(&w, "worker_id", worker_id);
    json_write_text(&w, "reattach_token", token);
    return json_writer_end(&w);
}

int message_write_rejected(struct buf *out, const char *function_id, const char *owner_worker_id, struct err *e)
{
    struct json_writer w = json_writer_begin(out, e);
    json_write_text(&w, "type", kind_rows[MESSAGE_REGISTRATION_REJECTED].name);
    json_write_text(&w, "code", "FUNCTION_NAMESPACE_CONFLICT");
    json_write_text(&w, "namespace", "default");
    json_write_text(&w, "function_id", function_id);
    json_write_text(&w, "owner_worker_id", owner_worker_id);
    return json_writer_end(&w);
}

int message_write_reattach(struct buf *out, const char *worker_id, const char *token, struct err *e)
{
    struct json_writer w = json_writer_begin(out, e);
    json_write_text(&w, "type", kind_rows[MESSAGE_REATTACH].name);
    json_write_text(&w, "previous_worker_id", worker_id);
    json_write_text(&w, "reattach_token", token);
    return json_writer_end(&w);
}

int message_write_pong(struct buf *out, struct err *e)
{
    struct json_writer w = json_writer_begin(out, e);
    json_write_text(&w, "type", kind_rows[MESSAGE_PONG].name);
    return json_writer_end(&w);
}

int message_write_function(struct buf *out, const struct message_function *function, struct err *e)
{
    struct json_writer w = json_writer_begin(out, e);
    json_write_text(&w, "type", kind_rows[MESSAGE_REGISTER_FUNCTION].name);
    json_write_text(&w, "id", function->id);
    json_write_text(&w, "description", function->description);
    json_write_slice(&w, "request_format", function->request_format);
    json_write_slice(&w, "response_format", function->response_format);
    json_write_slice(&w, "metadata", function->metadata);
    return json_writer_end(&w);
}

int message_write_trigger(struct buf *out, enum message_kind kind, const struct message_trigger *trigger, struct err *e)
{
    struct json_writer w = json_writer_begin(out, e);
    json_write_text(&w, "type", kind_rows[kind].name);
    json_write_text(&w, "id", trigger->id);
    json_write_text(&w, "trigger_type", trigger->trigger_type);
    json_write_text(&w, "function_id", trigger->function_id);
    if (kind == MESSAGE_REGISTER_TRIGGER)
        json_write_slice(&w, "config", trigger->config.text ? trigger->config : slice_null);
    json_write_slice(&w, "metadata", trigger->metadata);
    json_write_slice(&w, "error", trigger->error);
    return json_writer_end(&w);
}
