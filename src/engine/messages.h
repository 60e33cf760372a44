/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of the iii bus, decoded and encoded. Pure.
 *
 * One message is one JSON object in one WebSocket message; `type` selects it, other members are snake_case. Unknown members
 * and kinds are tolerated, an absent member and null mean the same except where a payload is any JSON (data, config, result).
 * There is no login: after the upgrade both sides may send at once. The engine says `workerregistered` unasked; a client
 * registers functions without acknowledgement, calls with `invokefunction` and is answered by `invocationresult` under the
 * invocation id that it made itself. A decoded message is a set of slices of the received bytes: payloads are forwarded as
 * they came, never parsed here. Every table row below is one kind, with the members that it cannot do without; a message
 * that lacks one is dropped by its receiver, the connection stays. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "engine/json_text.h"

#include <stdbool.h>
#include <stddef.h>

enum message_kind {
    MESSAGE_UNKNOWN, /* well-formed, of a type that we do not know: ignored */
    MESSAGE_WORKER_REGISTERED,
    MESSAGE_REGISTRATION_REJECTED,
    MESSAGE_ERROR,
    MESSAGE_REATTACH,
    MESSAGE_REGISTER_FUNCTION,
    MESSAGE_UNREGISTER_FUNCTION,
    MESSAGE_REGISTER_TRIGGER_TYPE,
    MESSAGE_UNREGISTER_TRIGGER_TYPE,
    MESSAGE_REGISTER_TRIGGER,
    MESSAGE_TRIGGER_REGISTRATION_RESULT,
    MESSAGE_UNREGISTER_TRIGGER,
    MESSAGE_INVOKE_FUNCTION,
    MESSAGE_INVOCATION_RESULT,
    MESSAGE_REGISTER_SERVICE,
    MESSAGE_PING,
    MESSAGE_PONG,
    MESSAGE_KIND_COUNT
};

/* Name on the wire, what it must be when present, and whether null counts as a value. */
#define MESSAGE_FIELD_TABLE(X)                                                                                                   \
    X(TYPE, "type", JSON_KIND_STRING)                                                                                            \
    X(ID, "id", JSON_KIND_STRING)                                                                                                \
    X(FUNCTION_ID, "function_id", JSON_KIND_STRING)                                                                              \
    X(INVOCATION_ID, "invocation_id", JSON_KIND_STRING)                                                                          \
    X(DATA, "data", JSON_KIND_ABSENT)                                                                                            \
    X(RESULT, "result", JSON_KIND_ABSENT)                                                                                        \
    X(CONFIG, "config", JSON_KIND_ABSENT)                                                                                        \
    X(ERROR, "error", JSON_KIND_ABSENT)                                                                                          \
    X(ACTION, "action", JSON_KIND_OBJECT)                                                                                        \
    X(METADATA, "metadata", JSON_KIND_ABSENT)                                                                                    \
    X(TRACEPARENT, "traceparent", JSON_KIND_STRING)                                                                              \
    X(BAGGAGE, "baggage", JSON_KIND_STRING)                                                                                      \
    X(NAMESPACE, "namespace", JSON_KIND_STRING)                                                                                  \
    X(TRIGGER_NAMESPACE, "trigger_namespace", JSON_KIND_STRING)                                                                  \
    X(DESCRIPTION, "description", JSON_KIND_STRING)                                                                              \
    X(REQUEST_FORMAT, "request_format", JSON_KIND_ABSENT)                                                                        \
    X(RESPONSE_FORMAT, "response_format", JSON_KIND_ABSENT)                                                                      \
    X(INVOCATION, "invocation", JSON_KIND_OBJECT)                                                                                \
    X(TRIGGER_TYPE, "trigger_type", JSON_KIND_STRING)                                                                            \
    X(TRIGGER_REQUEST_FORMAT, "trigger_request_format", JSON_KIND_ABSENT)                                                        \
    X(CALL_REQUEST_FORMAT, "call_request_format", JSON_KIND_ABSENT)                                                              \
    X(WORKER_ID, "worker_id", JSON_KIND_STRING)                                                                                  \
    X(REATTACH_TOKEN, "reattach_token", JSON_KIND_STRING)                                                                        \
    X(PREVIOUS_WORKER_ID, "previous_worker_id", JSON_KIND_STRING)                                                                \
    X(CODE, "code", JSON_KIND_STRING)                                                                                            \
    X(WORKER_NAME, "worker_name", JSON_KIND_STRING)                                                                              \
    X(OWNER_WORKER_ID, "owner_worker_id", JSON_KIND_STRING)

enum message_field {
#define X(name, text, kind) MESSAGE_FIELD_##name,
    MESSAGE_FIELD_TABLE(X)
#undef X
        MESSAGE_FIELD_COUNT
};

enum message_action { MESSAGE_ACTION_CALL, MESSAGE_ACTION_VOID, MESSAGE_ACTION_ENQUEUE, MESSAGE_ACTION_UNKNOWN };

struct message {
    enum message_kind kind;
    enum message_action action;
    struct json_slice fields[MESSAGE_FIELD_COUNT]; /* text NULL: absent */
};

/* *ret_message points into text and lives as long. ERR_PROTOCOL: not an object of this protocol; drop it. White space alone
 * is MESSAGE_UNKNOWN. */
int message_decode(const void *text, size_t len, struct message *ret_message, struct err *e)
    __attribute__((nonnull(3, 4), warn_unused_result));
const char *message_kind_name(enum message_kind kind); /* "registerfunction" */

/* An error body. code and message are always strings; stacktrace is left out when NULL (a null would spoil the error). */
struct message_error {
    const char *code, *message, *stacktrace;
};

/* What an error body says, caller frees both. Peers send odd ones: then code is "UNKNOWN" and message its JSON text. */
void message_error_decode(struct json_slice error, char **ret_code, char **ret_message) __attribute__((nonnull));
/* Whether a result's `error` means failure (anything but absent, null, false, 0 and ""). */
bool message_error_is_set(struct json_slice error);

/* A call as one side hands it to the other. */
struct message_call {
    const char *invocation_id; /* NULL: left out */
    const char *function_id;
    struct json_slice data;       /* absent: {} */
    const char *caller_worker_id; /* put into data when it is an object; NULL: data unchanged */
    struct json_slice metadata, traceparent, baggage;
    bool void_action;
};

/* Encoders append one message to out. They fail by the buffer's limit or memory only. */
int message_write_call(struct buf *out, const struct message_call *call, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* With `error` absent and result absent, the answer has neither member. */
int message_write_result(struct buf *out, const char *invocation_id, const char *function_id, struct json_slice result,
                         struct json_slice error, struct json_slice traceparent, struct json_slice baggage, struct err *e)
    __attribute__((nonnull(1, 2, 3, 8), warn_unused_result));
int message_write_failure(struct buf *out, const char *invocation_id, const char *function_id, const struct message_error *error,
                          struct json_slice traceparent, struct json_slice baggage, struct err *e)
    __attribute__((nonnull(1, 2, 3, 4, 7), warn_unused_result));
int message_write_worker_registered(struct buf *out, const char *worker_id, const char *token, struct err *e)
    __attribute__((nonnull, warn_unused_result));
int message_write_rejected(struct buf *out, const char *function_id, const char *owner_worker_id, struct err *e)
    __attribute__((nonnull, warn_unused_result));
int message_write_reattach(struct buf *out, const char *worker_id, const char *token, struct err *e)
    __attribute__((nonnull(1, 2, 4), warn_unused_result));
int message_write_pong(struct buf *out, struct err *e) __attribute__((nonnull, warn_unused_result));

struct message_function {
    const char *id, *description;                                /* description may be NULL */
    struct json_slice request_format, response_format, metadata; /* absent: left out */
};
int message_write_function(struct buf *out, const struct message_function *function, struct err *e)
    __attribute__((nonnull, warn_unused_result));

/* To a trigger type's provider; `config` absent is null. */
struct message_trigger {
    const char *id, *trigger_type, *function_id; /* function_id NULL: left out */
    struct json_slice config, metadata, error;
};
int message_write_trigger(struct buf *out, enum message_kind kind, const struct message_trigger *trigger, struct err *e)
    __attribute__((nonnull, warn_unused_result));
