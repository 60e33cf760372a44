/* SPDX-License-Identifier: Apache-2.0 */
/* The typed bodies. A message is a table of fields: tag, kind, place in the struct. One encoder and one decoder walk any
 * table. A request begins with its operation (tag 1), whose row names the table of the rest; the tags of request fields
 * start at 2. Absent fields are zero, NULL or empty, and such values are not sent (an empty string is: it differs from
 * NULL). The decoder copies into memory of its own, one allocation per string, bounded by the body it came in. */
#include "wire/message.h"

#include "base/check.h"
#include "base/limits.h"
#include "base/reader.h"
#include "wire/frame.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum wire_type { WIRE_U64 = 1, WIRE_BYTES = 2 };
enum field_kind { FIELD_U64, FIELD_STRING, FIELD_BYTES, FIELD_LIST };

struct field {
    const char *name;
    uint8_t tag;
    uint8_t kind; /* enum field_kind */
    bool required;
    size_t at; /* in the struct */
};

struct message {
    const char *name;
    const struct field *fields;
    size_t field_count;
    size_t body_max;
};

#define FIELD(type, member, tag, kind, required)                                                                                 \
    {                                                                                                                            \
#member, tag, kind, required, offsetof(struct type, member)                                                              \
    }
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct field identity_fields[] = {
    FIELD(wire_identity, hostname, 2, FIELD_STRING, true),  FIELD(wire_identity, seed, 3, FIELD_BYTES, true),
    FIELD(wire_identity, boot_id, 4, FIELD_STRING, true),   FIELD(wire_identity, machine_id, 5, FIELD_STRING, true),
    FIELD(wire_identity, realtime_ns, 6, FIELD_U64, false),
};
static const struct field exec_fields[] = {
    FIELD(wire_exec, argv, 2, FIELD_LIST, true),       FIELD(wire_exec, env, 3, FIELD_LIST, false),
    FIELD(wire_exec, cwd, 4, FIELD_STRING, false),     FIELD(wire_exec, user, 5, FIELD_STRING, false),
    FIELD(wire_exec, timeout_ms, 6, FIELD_U64, false), FIELD(wire_exec, realtime_ns, 7, FIELD_U64, false),
    FIELD(wire_exec, has_stdin, 8, FIELD_U64, false),  FIELD(wire_exec, tty_rows, 9, FIELD_U64, false),
    FIELD(wire_exec, tty_cols, 10, FIELD_U64, false),  FIELD(wire_exec, no_aslr, 11, FIELD_U64, false),
};
static const struct field tar_fields[] = {
    FIELD(wire_tar, path, 2, FIELD_STRING, true),
    FIELD(wire_tar, name, 3, FIELD_STRING, false),
    FIELD(wire_tar, make_parents, 4, FIELD_U64, false),
};
static const struct field write_fields[] = {
    FIELD(wire_write, path, 2, FIELD_STRING, true),
    FIELD(wire_write, mode, 3, FIELD_U64, false),
    FIELD(wire_write, make_parents, 4, FIELD_U64, false),
};
static const struct field hello_fields[] = {
    FIELD(wire_hello, version, 1, FIELD_U64, true),
    FIELD(wire_hello, kernel_release, 2, FIELD_STRING, true),
    FIELD(wire_hello, boot_us, 3, FIELD_U64, false),
};
static const struct field exit_fields[] = {
    FIELD(wire_exit, exit_code, 1, FIELD_U64, false),    FIELD(wire_exit, signal, 2, FIELD_U64, false),
    FIELD(wire_exit, reason, 3, FIELD_U64, false),       FIELD(wire_exit, oom_killed, 4, FIELD_U64, false),
    FIELD(wire_exit, duration_us, 5, FIELD_U64, false),  FIELD(wire_exit, stdout_bytes, 6, FIELD_U64, false),
    FIELD(wire_exit, stderr_bytes, 7, FIELD_U64, false),
};
static const struct field failure_fields[] = {
    FIELD(wire_failure, code, 1, FIELD_U64, true),
    FIELD(wire_failure, sys_errno, 2, FIELD_U64, false),
    FIELD(wire_failure, message, 3, FIELD_STRING, true),
};

static const struct message request_messages[] = {
    [WIRE_OP_IDENTITY] = {"identity", identity_fields, COUNT(identity_fields), WIRE_REQUEST_MAX},
    [WIRE_OP_EXEC] = {"exec", exec_fields, COUNT(exec_fields), WIRE_REQUEST_MAX},
    [WIRE_OP_SHUTDOWN] = {"shutdown", NULL, 0, WIRE_REQUEST_MAX},
    [WIRE_OP_TAR_IN] = {"tar in", tar_fields, COUNT(tar_fields), WIRE_REQUEST_MAX},
    [WIRE_OP_TAR_OUT] = {"tar out", tar_fields, COUNT(tar_fields), WIRE_REQUEST_MAX},
    [WIRE_OP_WRITE] = {"write", write_fields, COUNT(write_fields), WIRE_REQUEST_MAX},
};
static_assert(COUNT(request_messages) == WIRE_OP_END, "one row per operation");
static const struct message hello_message = {"hello", hello_fields, COUNT(hello_fields), WIRE_BODY_MAX};
static const struct message exit_message = {"exit", exit_fields, COUNT(exit_fields), WIRE_REPLY_MAX};
static const struct message failure_message = {"failure", failure_fields, COUNT(failure_fields), WIRE_BODY_MAX};

static int append_bytes(struct buf *out, uint8_t tag, const void *bytes, size_t len, struct err *e)
{
    if (len > WIRE_REQUEST_MAX)
        return err_set(e, ERR_LIMIT, "a field of %zu bytes is too long", len);
    if (buf_append_u8(out, tag, e) || buf_append_u8(out, WIRE_BYTES, e) || buf_append_u32(out, (uint32_t)len, e))
        return -1;
    return buf_append(out, bytes, len, e);
}

static int append_u64(struct buf *out, uint8_t tag, uint64_t value, struct err *e)
{
    if (buf_append_u8(out, tag, e) || buf_append_u8(out, WIRE_U64, e))
        return -1;
    return buf_append_u64(out, value, e);
}

static int encode_list(struct buf *out, const struct field *field, const struct strv *list, struct err *e)
{
    if (list->len > WIRE_LIST_MAX)
        return err_set(e, ERR_LIMIT, "%zu items, the limit is %u", list->len, WIRE_LIST_MAX);
    for (size_t i = 0; i < list->len; i++)
        if (append_bytes(out, field->tag, list->items[i], strlen(list->items[i]), e))
            return -1;
    return 0;
}

static int encode_field(struct buf *out, const struct field *field, const uint8_t *base, struct err *e)
{
    const void *at = base + field->at;
    switch ((enum field_kind)field->kind) {
    case FIELD_U64: {
        uint64_t value = *(const uint64_t *)at;
        return value || field->required ? append_u64(out, field->tag, value, e) : 0;
    }
    case FIELD_STRING: {
        const char *text = *(char *const *)at;
        return text ? append_bytes(out, field->tag, text, strlen(text), e) : 0;
    }
    case FIELD_BYTES: {
        const struct wire_bytes *bytes = at;
        return bytes->len || field->required ? append_bytes(out, field->tag, bytes->data, bytes->len, e) : 0;
    }
    case FIELD_LIST:
        return encode_list(out, field, at, e);
    }
    CHECK(!"a field of no kind");
    return -1;
}

/* What was in the buffer before stays as it was when this fails. */
static int message_encode(struct buf *out, const struct message *message, const void *base, const uint64_t *operation,
                          struct err *e)
{
    auto_buf body = BUF_INIT(message->body_max);
    if (operation && append_u64(&body, 1, *operation, e))
        return err_wrap(e, "%s message", message->name);
    for (size_t i = 0; i < message->field_count; i++)
        if (encode_field(&body, &message->fields[i], base, e))
            return err_wrap(e, "%s message: %s", message->name, message->fields[i].name);
    return buf_append(out, buf_data(&body), body.len, e);
}

struct value {
    uint8_t tag, type;
    uint64_t number;
    const uint8_t *bytes;
    size_t len;
};

static int value_read(struct reader *r, struct value *ret_value, struct err *e)
{
    struct value v = {.tag = reader_u8(r), .type = 0};
    v.type = reader_u8(r);
    if (v.type == WIRE_U64) {
        v.number = reader_u64(r);
    } else if (v.type == WIRE_BYTES) {
        v.len = reader_u32(r);
        v.bytes = reader_bytes(r, v.len);
    } else if (!r->failed) {
        return err_set(e, ERR_PROTOCOL, "field %u has the unknown type %u", v.tag, v.type);
    }
    if (r->failed)
        return err_set(e, ERR_PROTOCOL, "cut off inside a field");
    *ret_value = v;
    return 0;
}

static int take_string(const struct value *v, char **ret_text, struct err *e)
{
    if (v->len && memchr(v->bytes, 0, v->len))
        return err_set(e, ERR_PROTOCOL, "a NUL byte inside a string");
    char *text = malloc(v->len + 1);
    if (!text)
        return err_set(e, ERR_NOMEM, "no memory for a string of %zu bytes", v->len);
    if (v->len)
        memcpy(text, v->bytes, v->len);
    text[v->len] = 0;
    *ret_text = text;
    return 0;
}

static int take_item(const struct value *v, struct strv *list, struct err *e)
{
    if (list->len >= WIRE_LIST_MAX)
        return err_set(e, ERR_PROTOCOL, "more than %u items", WIRE_LIST_MAX);
    if ((list->len & (list->len + 1)) == 0) { /* the room was 2^n with the NULL behind the items: double it */
        char **items = realloc(list->items, 2 * (list->len + 1) * sizeof *items);
        if (!items)
            return err_set(e, ERR_NOMEM, "no memory for a list");
        list->items = items;
    }
    list->items[list->len] = NULL;
    if (take_string(v, &list->items[list->len], e))
        return -1;
    list->items[++list->len] = NULL;
    return 0;
}

static int take_value(const struct field *field, const struct value *v, uint8_t *base, bool seen, struct err *e)
{
    if (v->type != (field->kind == FIELD_U64 ? WIRE_U64 : WIRE_BYTES))
        return err_set(e, ERR_PROTOCOL, "has the wrong type");
    if (seen && field->kind != FIELD_LIST)
        return err_set(e, ERR_PROTOCOL, "given twice");
    void *at = base + field->at;
    switch ((enum field_kind)field->kind) {
    case FIELD_U64:
        *(uint64_t *)at = v->number;
        return 0;
    case FIELD_STRING:
        return take_string(v, at, e);
    case FIELD_BYTES: {
        struct wire_bytes *bytes = at;
        uint8_t *data = malloc(v->len ? v->len : 1);
        if (!data)
            return err_set(e, ERR_NOMEM, "no memory for %zu bytes", v->len);
        if (v->len)
            memcpy(data, v->bytes, v->len);
        *bytes = (struct wire_bytes){data, v->len};
        return 0;
    }
    case FIELD_LIST:
        return take_item(v, at, e);
    }
    CHECK(!"a field of no kind");
    return -1;
}

static void message_done(const struct message *message, void *base)
{
    for (size_t i = 0; i < message->field_count; i++) {
        void *at = (uint8_t *)base + message->fields[i].at;
        switch ((enum field_kind)message->fields[i].kind) {
        case FIELD_U64:
            *(uint64_t *)at = 0;
            break;
        case FIELD_STRING:
            free(*(char **)at);
            *(char **)at = NULL;
            break;
        case FIELD_BYTES:
            free(((struct wire_bytes *)at)->data);
            *(struct wire_bytes *)at = (struct wire_bytes){0};
            break;
        case FIELD_LIST:
            strv_done(at);
            *(struct strv *)at = (struct strv){0};
            break;
        }
    }
}

static int decode_fields(struct reader *r, const struct message *message, uint8_t *base, struct err *e)
{
    uint64_t seen = 0; /* by place in the table */
    while (reader_left(r)) {
        struct value v;
        if (value_read(r, &v, e))
            return -1;
        for (size_t i = 0; i < message->field_count; i++) {
            const struct field *field = &message->fields[i];
            if (field->tag != v.tag)
                continue;
            if (take_value(field, &v, base, (seen >> i) & 1, e))
                return err_wrap(e, "%s", field->name);
            seen |= 1ull << i;
        }
    }
    for (size_t i = 0; i < message->field_count; i++)
        if (message->fields[i].required && !((seen >> i) & 1))
            return err_set(e, ERR_PROTOCOL, "%s is missing", message->fields[i].name);
    return 0;
}

/* base is a zeroed struct of the message's type; it is empty again on failure. */
static int message_decode(struct reader *r, const struct message *message, void *base, struct err *e)
{
    if (r->len > message->body_max)
        return err_set(e, ERR_PROTOCOL, "%s message of %zu bytes", message->name, r->len);
    if (decode_fields(r, message, base, e)) {
        message_done(message, base);
        return err_wrap(e, "%s message", message->name);
    }
    return 0;
}

static const struct message *request_message(uint64_t operation)
{
    return operation > 0 && operation < WIRE_OP_END ? &request_messages[operation] : NULL;
}

int wire_request_encode(struct buf *out, const struct wire_request *request, struct err *e)
{
    uint64_t operation = request->operation;
    const struct message *message = request_message(operation);
    CHECK(message);
    return message_encode(out, message, &request->identity, &operation, e);
}

int wire_request_decode(const void *bytes, size_t len, struct wire_request *ret_request, struct err *e)
{
    struct reader r = reader_of(bytes, len);
    struct value v;
    if (value_read(&r, &v, e))
        return err_wrap(e, "request");
    if (v.tag != 1 || v.type != WIRE_U64)
        return err_set(e, ERR_PROTOCOL, "request without an operation in front");
    const struct message *message = request_message(v.number);
    if (!message)
        return err_set(e, ERR_PROTOCOL, "request for the unknown operation %llu", (unsigned long long)v.number);
    struct wire_request request = {.operation = (enum wire_operation)v.number};
    if (message_decode(&r, message, &request.identity, e))
        return -1;
    *ret_request = request;
    return 0;
}

void wire_request_done(struct wire_request *request)
{
    if (!request)
        return;
    const struct message *message = request_message((uint64_t)request->operation);
    if (message)
        message_done(message, &request->identity);
}

int wire_hello_encode(struct buf *out, const struct wire_hello *hello, struct err *e)
{
    return message_encode(out, &hello_message, hello, NULL, e);
}

int wire_hello_decode(const void *bytes, size_t len, struct wire_hello *ret_hello, struct err *e)
{
    struct reader r = reader_of(bytes, len);
    struct wire_hello hello = {0};
    if (message_decode(&r, &hello_message, &hello, e))
        return -1;
    *ret_hello = hello;
    return 0;
}

void wire_hello_done(struct wire_hello *hello)
{
    if (hello)
        message_done(&hello_message, hello);
}

int wire_exit_encode(struct buf *out, const struct wire_exit *exit, struct err *e)
{
    return message_encode(out, &exit_message, exit, NULL, e);
}

int wire_exit_decode(const void *bytes, size_t len, struct wire_exit *ret_exit, struct err *e)
{
    struct reader r = reader_of(bytes, len);
    struct wire_exit exit = {0};
    if (message_decode(&r, &exit_message, &exit, e))
        return -1;
    *ret_exit = exit;
    return 0;
}

int wire_failure_encode(struct buf *out, const struct wire_failure *failure, struct err *e)
{
    return message_encode(out, &failure_message, failure, NULL, e);
}

int wire_failure_decode(const void *bytes, size_t len, struct wire_failure *ret_failure, struct err *e)
{
    struct reader r = reader_of(bytes, len);
    struct wire_failure failure = {0};
    if (message_decode(&r, &failure_message, &failure, e))
        return -1;
    *ret_failure = failure;
    return 0;
}

void wire_failure_done(struct wire_failure *failure)
{
    if (failure)
        message_done(&failure_message, failure);
}
