/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/server_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- answering ---- */

/* Who asked, and under which id; all pointers live during one message only. */
struct asker {
    struct server *server;
    struct worker *worker; /* NULL: ours, or nobody */
    const char *id;        /* NULL: wants no answer */
    const char *function_id;
    struct json_slice traceparent, baggage;
};

static void answer_error(const struct asker *to, const char *code, const char *text)
{
    struct server *server = to->server;
    metric_add(&server->base.metrics, METRIC_CALLS_FAILED, 1);
    if (!to->id)
        return;
    struct err e = ERR_INIT;
    if (to->worker) {
        auto_buf message = message_begin();
        struct message_error error = {.code = code, .message = text};
        if (!message_write_failure(&message, to->id, to->function_id, &error, to->traceparent, to->baggage, &e))
            (void)worker_send(to->worker, &message);
        return;
    }
    struct table_entry *entry = table_find(&server->base.calls, to->id);
    if (entry)
        own_call_fail(&server->base, CONTAINER_OF(entry, struct own_call, by_id), code, text);
}

static void answer_result(const struct asker *to, struct json_slice result, struct json_slice error)
{
    struct server *server = to->server;
    struct err e = ERR_INIT;
    if (message_error_is_set(error))
        metric_add(&server->base.metrics, METRIC_CALLS_FAILED, 1);
    if (!to->id)
        return;
    if (to->worker) {
        auto_buf message = message_begin();
        if (message_write_result(&message, to->id, to->function_id, result, error, to->traceparent, to->baggage, &e)) {
            err_clear(&e);
            answer_error(to, "result_too_large", "the result is over the limit for one message");
            return;
        }
        (void)worker_send(to->worker, &message);
        return;
    }
    struct table_entry *entry = table_find(&server->base.calls, to->id);
    if (entry)
        own_call_result(&server->base, CONTAINER_OF(entry, struct own_call, by_id), result, error);
}

/* ---- pending calls ---- */

static struct pending *pending_new(const struct asker *from, struct worker *executor)
{
    struct server *server = from->server;
    struct pending *pending = xcalloc(1, sizeof *pending);
    pending->id = from->id ? (struct uuid){{0}} : uuid_make();
    if (from->id)
        memcpy(pending->id.text, from->id, sizeof pending->id.text);
    pending->function_id = xstrdup(from->function_id);
    pending->traceparent = json_slice_text(from->traceparent, ENGINE_ID_MAX);
    pending->started_ns = clock_realtime_ns();
    pending->executor = executor;
    pending->caller = from->id ? from->worker : NULL;
    pending->own = from->id && !from->worker;
    list_init(&pending->of_caller);
    list_init(&pending->of_executor);
    if (pending->caller) {
        list_add_last(&pending->caller->calls_made, &pending->of_caller);
        pending->caller->calls_made_len++;
    }
    if (executor) {
        list_add_last(&executor->calls_served, &pending->of_executor);
        executor->calls_served_len++;
    }
    table_add(&server->pending, &pending->by_id, pending->id.text);
    return pending;
}

static void pending_free(struct server *server, struct pending *pending)
{
    if (pending->caller)
        pending->caller->calls_made_len--;
    if (pending->executor)
        pending->executor->calls_served_len--;
    list_remove(&pending->of_caller);
    list_remove(&pending->of_executor);
    table_remove(&server->pending, &pending->by_id);
    free(pending->function_id);
    free(pending->traceparent);
    free(pending);
}

static struct asker asker_of(struct server *server, const struct pending *pending)
{
    bool waits = pending->caller || pending->own;
    return (struct asker){
        .server = server, .worker = pending->caller, .id = waits ? pending->id.text : NULL, .function_id = pending->function_id};
}

static struct pending *find_pending(struct server *server, const char *id)
{
    struct table_entry *entry = table_find(&server->pending, id);
    return entry ? CONTAINER_OF(entry, struct pending, by_id) : NULL;
}

/* ---- calling ---- */

static void call_builtin(const struct asker *from, const struct builtin *builtin, const struct message *message)
{
    struct err e = ERR_INIT;
    auto_buf result = BUF_INIT(ENGINE_MESSAGE_MAX);
    struct json_slice data = message->fields[MESSAGE_FIELD_DATA];
    json_error_t error;
    json_t *input = NULL;
    if (!data.text || json_slice_kind(data) == JSON_KIND_NULL)
        input = json_object();
    else if (json_slice_kind(data) == JSON_KIND_OBJECT)
        input = json_loadb(data.text, data.len, 0, &error);
    if (!input) {
        auto_free char *text = xasprintf("%s: the input is not an object that can be read", builtin->id);
        answer_error(from, "deserialization_error", text);
        return;
    }
    struct builtin_call call = {.server = from->server, .caller = from->worker, .input = input, .result = &result, .e = &e};
    if (builtin->run(&call))
        answer_error(from, call.code ? call.code : "invocation_error", e.text);
    else
        answer_result(from, (struct json_slice){(const char *)buf_data(&result), result.len}, (struct json_slice){0});
    json_decref(input);
}

static void call_local(const struct asker *from, struct function *function, const struct message *message)
{
    struct pending *pending = pending_new(from, NULL);
    pending->local = invocation_new(&from->server->base, function, pending->id.text, from->worker ? from->worker->id.text : "",
                                    message, from->id != NULL);
    invocation_run(pending->local, function);
}

static void call_worker(const struct asker *from, struct function *function, const struct message *message)
{
    struct err e = ERR_INIT;
    const struct json_slice *fields = message->fields;
    struct pending *pending = pending_new(from, function->worker);
    struct message_call call = {
        .invocation_id = pending->id.text,
        .function_id = function->id,
        .data = fields[MESSAGE_FIELD_DATA],
        .caller_worker_id = from->worker ? from->worker->id.text : NULL,
        .metadata = fields[MESSAGE_FIELD_METADATA],
        .traceparent = fields[MESSAGE_FIELD_TRACEPARENT],
        .baggage = fields[MESSAGE_FIELD_BAGGAGE],
    };
    auto_buf out = message_begin();
    int failed = message_write_call(&out, &call, &e);
    if (!failed && function->worker->conn)
        failed = ws_send(function->worker->conn, &out, &e);
    else if (!failed)
        failed = err_set(&e, ERR_ENVIRONMENT, "the worker was just lost");
    if (failed) {
        pending_free(from->server, pending);
        answer_error(from, "channel_send_failed", e.text);
    } else if (ws_queued(function->worker->conn) >= ENGINE_QUEUE_PAUSE) {
        ws_pause(function->worker->conn);
    }
}

static bool over_limits(const struct asker *from)
{
    if (from->id && find_pending(from->server, from->id)) {
        answer_error(from, "invocation_error", "this invocation id is already in use");
        return true;
    }
    size_t mine = from->worker ? from->worker->calls_made_len : 0;
    if (from->server->pending.len >= ENGINE_CALLS_MAX || mine >= ENGINE_CALLS_PER_CONNECTION_MAX) {
        answer_error(from, "limit_exceeded", "too many calls wait for their answers");
        return true;
    }
    return false;
}

static void route(const struct asker *from, const struct message *message)
{
    struct server *server = from->server;
    metric_add(&server->base.metrics, METRIC_CALLS, 1);
    if (message->action == MESSAGE_ACTION_ENQUEUE) {
        answer_error(from, "enqueue_error", "no queue provider is installed in this engine");
        return;
    }
    auto_free char *namespace = json_slice_text(message->fields[MESSAGE_FIELD_NAMESPACE], ENGINE_ID_MAX);
    if (namespace && !namespace[strspn(namespace, " \t\r\n")]) {
        answer_error(from, "INVALID_NAMESPACE", "the namespace is blank");
        return;
    }
    bool here = !message->fields[MESSAGE_FIELD_NAMESPACE].text || (namespace && strcmp(namespace, "default") == 0);
    const struct builtin *builtin = here ? builtin_find(from->function_id) : NULL;
    struct function *function = here ? function_find(&server->base, from->function_id) : NULL;
    if (!builtin && !function) {
        auto_free char *text = xasprintf("Function %.128s not found in namespace %.64s.", from->function_id,
                                         here        ? "default"
                                         : namespace ? namespace
                                                     : "?");
        answer_error(from, "function_not_found", text);
    } else if (builtin) {
        call_builtin(from, builtin, message);
    } else if (!over_limits(from)) {
        if (function->worker)
            call_worker(from, function, message);
        else
            call_local(from, function, message);
    }
}

void invocations_call(struct worker *caller, const struct message *message)
{
    const struct json_slice *fields = message->fields;
    auto_free char *function_id = json_slice_text(fields[MESSAGE_FIELD_FUNCTION_ID], ENGINE_ID_MAX);
    auto_free char *id = json_slice_text(fields[MESSAGE_FIELD_INVOCATION_ID], 36);
    if (fields[MESSAGE_FIELD_INVOCATION_ID].text && (!id || !uuid_is_valid(id))) {
        metric_add(&caller->server->base.metrics, METRIC_MESSAGES_DROPPED, 1);
        return;
    }
    struct asker from = {
        .server = caller->server,
        .worker = caller,
        .id = message->action == MESSAGE_ACTION_VOID ? NULL : id,
        .function_id = function_id ? function_id : "", /* too long, or not to be written in C: nobody has registered it */
        .traceparent = fields[MESSAGE_FIELD_TRACEPARENT],
        .baggage = fields[MESSAGE_FIELD_BAGGAGE],
    };
    route(&from, message);
}

void invocations_send_own(struct engine *engine, struct own_call *call, const struct message_call *spec)
{
    struct message message = {.kind = MESSAGE_INVOKE_FUNCTION};
    message.fields[MESSAGE_FIELD_DATA] = spec->data;
    message.fields[MESSAGE_FIELD_METADATA] = spec->metadata;
    message.fields[MESSAGE_FIELD_TRACEPARENT] = spec->traceparent;
    message.fields[MESSAGE_FIELD_BAGGAGE] = spec->baggage;
    struct asker from = {.server = server_of(engine),
                         .id = call->id.text,
                         .function_id = call->function_id,
                         .traceparent = spec->traceparent,
                         .baggage = spec->baggage};
    route(&from, &message);
}

/* ---- results ---- */

void invocations_result(struct worker *executor, const struct message *message)
{
    struct server *server = executor->server;
    const struct json_slice *fields = message->fields;
    auto_free char *id = json_slice_text(fields[MESSAGE_FIELD_INVOCATION_ID], 36);
    struct pending *pending = id ? find_pending(server, id) : NULL;
    if (!pending || pending->executor != executor) {
        metric_add(&server->base.metrics, METRIC_MESSAGES_DROPPED, 1); /* late, a second one, or not his to answer */
        return;
    }
    struct asker to = asker_of(server, pending);
    to.traceparent = fields[MESSAGE_FIELD_TRACEPARENT];
    to.baggage = fields[MESSAGE_FIELD_BAGGAGE];
    bool failed = message_error_is_set(fields[MESSAGE_FIELD_ERROR]);
    tracer_add(server->base.tracer, pending->function_id, pending->traceparent, pending->started_ns, clock_realtime_ns(),
               failed ? "invocation_failed" : NULL);
    answer_result(&to, fields[MESSAGE_FIELD_RESULT], fields[MESSAGE_FIELD_ERROR]);
    pending_free(server, pending);
}

void invocations_answer_local(struct engine *engine, struct invocation *call, struct json_slice result,
                              const struct message_error *error)
{
    struct server *server = server_of(engine);
    struct pending *pending = find_pending(server, call->id.text);
    CHECK(pending && pending->local == call);
    struct asker to = asker_of(server, pending);
    auto_buf trace = BUF_INIT(16 * KIB), baggage = BUF_INIT(64 * KIB);
    struct err e = ERR_INIT;
    if (call->traceparent && !json_append_string(&trace, call->traceparent, strlen(call->traceparent), &e))
        to.traceparent = (struct json_slice){(const char *)buf_data(&trace), trace.len};
    if (call->baggage && !json_append_string(&baggage, call->baggage, strlen(call->baggage), &e))
        to.baggage = (struct json_slice){(const char *)buf_data(&baggage), baggage.len};
    if (error) {
        metric_add(&engine->metrics, METRIC_CALLS_FAILED, -1); /* counted by the caller of this already */
        answer_error(&to, error->code, error->message);
    } else {
        answer_result(&to, result, (struct json_slice){0});
    }
    pending_free(server, pending);
}

/* ---- loss ---- */

void invocations_forget_worker(struct worker *worker)
{
    struct server *server = worker->server;
    while (!list_is_empty(&worker->calls_served)) {
        struct pending *pending = CONTAINER_OF(worker->calls_served.next, struct pending, of_executor);
        struct asker to = asker_of(server, pending);
        if (to.worker != worker)
            answer_error(&to, "invocation_stopped", "Invocation stopped");
        pending_free(server, pending);
    }
    while (!list_is_empty(&worker->calls_made)) {
        struct pending *pending = CONTAINER_OF(worker->calls_made.next, struct pending, of_caller);
        list_remove(&pending->of_caller);
        worker->calls_made_len--;
        pending->caller = NULL; /* the answer will be dropped */
        if (pending->local)
            invocation_lost(pending->local);
    }
}

void invocations_done(struct server *server)
{
    struct table_entry *entry;
    while ((entry = table_next(&server->pending, NULL)))
        pending_free(server, CONTAINER_OF(entry, struct pending, by_id));
}
