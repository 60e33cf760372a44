/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_TIMEOUT_MS 30000u

static void on_calls_timer(uv_timer_t *timer);
static void on_settle_turn(uv_idle_t *idle);

void engine_init(struct engine *engine, const struct engine_ops *ops, uv_loop_t *loop)
{
    engine->ops = ops;
    engine->loop = loop;
    table_init(&engine->functions);
    table_init(&engine->calls);
    list_init(&engine->invocations);
    list_init(&engine->settled);
    uv_timer_init(loop, &engine->calls_timer);
    uv_idle_init(loop, &engine->settle_turn);
    engine->calls_timer.data = engine->settle_turn.data = engine;
}

uv_loop_t *engine_loop(struct engine *engine)
{
    return engine->loop;
}

void engine_free(struct engine *engine)
{
    if (engine)
        engine->ops->free(engine);
}

/* ---- functions ---- */

void function_free(struct function *function)
{
    if (!function)
        return;
    free(function->id);
    free(function->description);
    free(function->request_format);
    free(function->response_format);
    free(function->metadata);
    free(function);
}

struct function *function_find(struct engine *engine, const char *id)
{
    struct table_entry *entry = table_find(&engine->functions, id);
    return entry ? CONTAINER_OF(entry, struct function, by_id) : NULL;
}

bool function_metadata_hides(struct json_slice metadata)
{
    if (json_slice_kind(metadata) != JSON_KIND_OBJECT)
        return false;
    struct json_members members = json_members_of(metadata.text, metadata.len);
    struct json_slice key, value;
    bool hides = false;
    while (json_members_next(&members, &key, &value))
        if (json_slice_is(key, "internal"))
            hides = value.len == 4 && memcmp(value.text, "true", 4) == 0;
    return hides;
}

static int copy_json(const char *text, const char *what, char **ret_text, struct err *e)
{
    if (!text)
        return 0;
    if (!json_is_valid(text, strlen(text)))
        return err_set(e, ERR_INVALID, "the %s is not JSON", what);
    *ret_text = xstrdup(text);
    return 0;
}

int engine_register(struct engine *engine, const struct engine_function *function, struct err *e)
{
    size_t id_len = strlen(function->id);
    if (!id_len || id_len > ENGINE_ID_MAX)
        return err_set(e, ERR_INVALID, "a function id has 1 to %u bytes", ENGINE_ID_MAX);
    if (function_find(engine, function->id))
        return err_set(e, ERR_INVALID, "function '%s' is already registered", function->id);
    struct function *own = xcalloc(1, sizeof *own);
    own->id = xstrdup(function->id);
    own->description = function->description ? xstrdup(function->description) : NULL;
    own->handler = function->handler;
    own->context = function->context;
    list_init(&own->of_worker);
    if (copy_json(function->request_format, "request format", &own->request_format, e) ||
        copy_json(function->response_format, "response format", &own->response_format, e) ||
        copy_json(function->metadata, "metadata", &own->metadata, e)) {
        function_free(own);
        return err_wrap(e, "register '%s'", function->id);
    }
    if (own->metadata)
        own->hidden = function_metadata_hides((struct json_slice){own->metadata, strlen(own->metadata)});
    table_add(&engine->functions, &own->by_id, own->id);
    metric_add(&engine->metrics, METRIC_FUNCTIONS, 1);
    engine->ops->function_added(engine, own);
    return 0;
}

void engine_unregister(struct engine *engine, const char *id)
{
    struct function *function = function_find(engine, id);
    if (!function || function->worker)
        return;
    table_remove(&engine->functions, &function->by_id);
    metric_add(&engine->metrics, METRIC_FUNCTIONS, -1);
    engine->ops->function_removed(engine, function);
    function_free(function);
}

/* ---- calls that we serve ---- */

static void invocation_free(struct invocation *call)
{
    list_remove(&call->all);
    free(call->function_id);
    json_decref(call->data);
    json_decref(call->metadata);
    free(call->traceparent);
    free(call->baggage);
    free(call);
}

/* The payload as a tree. Whole numbers past 64 bits, which JSON.stringify writes without an exponent, become reals. */
static json_t *load_json(struct json_slice slice)
{
    json_error_t error;
    size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *value = json_loadb(slice.text, slice.len, flags, &error);
    if (!value && json_error_code(&error) == json_error_numeric_overflow)
        value = json_loadb(slice.text, slice.len, flags | JSON_DECODE_INT_AS_REAL, &error);
    return value;
}

static void invocation_end(struct invocation *call, struct json_slice result, const struct message_error *error)
{
    struct engine *engine = call->engine;
    if (!engine) { /* it was freed meanwhile */
        invocation_free(call);
        return;
    }
    tracer_add(engine->tracer, call->function_id, call->traceparent, call->started_ns, clock_realtime_ns(),
               error ? error->code : NULL);
    if (error)
        metric_add(&engine->metrics, METRIC_CALLS_FAILED, 1);
    engine->ops->answer(engine, call, result, error);
    invocation_free(call);
}

struct invocation *invocation_new(struct engine *engine, const struct function *function, const char *id, const char *caller,
                                  const struct message *message, bool answered)
{
    const struct json_slice *fields = message->fields;
    struct invocation *call = xcalloc(1, sizeof *call);
    call->engine = engine;
    call->answered = answered;
    call->started_ns = clock_realtime_ns();
    call->function_id = xstrdup(function->id);
    list_add_last(&engine->invocations, &call->all);
    snprintf(call->id.text, sizeof call->id.text, "%s", id);
    if (strlen(caller) < sizeof call->caller)
        memcpy(call->caller, caller, strlen(caller));
    call->traceparent = json_slice_text(fields[MESSAGE_FIELD_TRACEPARENT], ENGINE_ID_MAX);
    call->baggage = json_slice_text(fields[MESSAGE_FIELD_BAGGAGE], 8 * KIB);
    struct json_slice data = fields[MESSAGE_FIELD_DATA].text ? fields[MESSAGE_FIELD_DATA] : (struct json_slice){"{}", 2};
    call->data = load_json(data);
    if (fields[MESSAGE_FIELD_METADATA].text)
        call->metadata = load_json(fields[MESSAGE_FIELD_METADATA]);
    json_t *from = json_object_get(call->data, "_caller_worker_id");
    if (json_is_string(from) && !*call->caller && json_string_length(from) < sizeof call->caller)
        memcpy(call->caller, json_string_value(from), json_string_length(from));
    json_object_del(call->data, "_caller_worker_id");
    return call;
}

void invocation_run(struct invocation *call, const struct function *function)
{
    if (call->data)
        function->handler(call, function->context);
    else
        invocation_fail(call, "deserialization_error",
                        "the payload cannot be read: a lone surrogate, a NUL in a name, or too many levels");
}

void invocation_lost(struct invocation *call)
{
    if (call->gone)
        return;
    call->gone = true;
    if (call->on_gone)
        call->on_gone(call, call->gone_context);
}

const char *invocation_function(const struct invocation *call)
{
    return call->function_id;
}

const char *invocation_id(const struct invocation *call)
{
    return call->id.text;
}

const char *invocation_caller(const struct invocation *call)
{
    return call->caller;
}

json_t *invocation_data(const struct invocation *call)
{
    return call->data;
}

json_t *invocation_metadata(const struct invocation *call)
{
    return call->metadata;
}

struct engine *invocation_engine(const struct invocation *call)
{
    return call->engine;
}

const char *invocation_traceparent(const struct invocation *call)
{
    return call->traceparent;
}

void invocation_on_gone(struct invocation *call, void (*on_gone)(struct invocation *call, void *context), void *context)
{
    call->on_gone = on_gone;
    call->gone_context = context;
}

void invocation_reply(struct invocation *call, json_t *result)
{
    auto_free char *text = result ? json_dumps(result, JSON_ENCODE_ANY | JSON_COMPACT) : xstrdup("null");
    json_decref(result);
    if (!text) {
        invocation_fail(call, "serialization_error", "the result cannot be written as JSON");
        return;
    }
    size_t len = strlen(text);
    if (len > ENGINE_MESSAGE_MAX - 4 * KIB) {
        invocation_fail(call, "result_too_large", "the result is over the limit of 16 MiB for one message; use a channel");
        return;
    }
    invocation_end(call, (struct json_slice){text, len}, NULL);
}

void invocation_fail(struct invocation *call, const char *code, const char *message)
{
    struct message_error error = {.code = code, .message = message};
    invocation_end(call, (struct json_slice){0}, &error);
}

/* ---- calls that we make ---- */

static void own_call_free(struct engine *engine, struct own_call *call)
{
    if (table_find(&engine->calls, call->id.text) == &call->by_id)
        table_remove(&engine->calls, &call->by_id);
    list_remove(&call->sent);
    list_remove(&call->settled);
    buf_done(&call->message);
    json_decref(call->result);
    free(call->function_id);
    free(call->owned);
    free(call->code);
    free(call->text);
    free(call);
}

static void arm_timer(struct engine *engine)
{
    uint64_t now = clock_now_ms(), next = UINT64_MAX;
    for (struct table_entry *entry = table_next(&engine->calls, NULL); entry; entry = table_next(&engine->calls, entry)) {
        struct own_call *call = CONTAINER_OF(entry, struct own_call, by_id);
        next = call->deadline_ms < next ? call->deadline_ms : next;
    }
    if (next != UINT64_MAX)
        uv_timer_start(&engine->calls_timer, on_calls_timer, next > now ? next - now : 0, 0);
}

static void settle(struct engine *engine, struct own_call *call)
{
    table_remove(&engine->calls, &call->by_id);
    list_remove(&call->sent);
    list_add_last(&engine->settled, &call->settled);
    uv_idle_start(&engine->settle_turn, on_settle_turn);
}

void own_call_fail(struct engine *engine, struct own_call *call, const char *code, const char *text)
{
    call->code = xstrdup(code);
    call->text = xstrdup(text);
    settle(engine, call);
}

void own_call_result(struct engine *engine, struct own_call *call, struct json_slice result, struct json_slice error)
{
    if (message_error_is_set(error)) {
        message_error_decode(error, &call->code, &call->text);
    } else {
        call->result = result.text ? load_json(result) : json_null();
        if (!call->result) {
            call->code = xstrdup("deserialization_error");
            call->text = xstrdup("the result cannot be read");
        }
    }
    settle(engine, call);
}

static void on_calls_timer(uv_timer_t *timer)
{
    struct engine *engine = timer->data;
    uint64_t now = clock_now_ms();
    for (struct table_entry *entry = table_next(&engine->calls, NULL), *next; entry; entry = next) {
        next = table_next(&engine->calls, entry);
        struct own_call *call = CONTAINER_OF(entry, struct own_call, by_id);
        if (call->deadline_ms <= now)
            own_call_fail(engine, call, "TIMEOUT", "the call was not answered in time");
    }
    arm_timer(engine);
}

static void on_settle_turn(uv_idle_t *idle)
{
    struct engine *engine = idle->data;
    uv_idle_stop(idle);
    /* Only what is settled now: a callback that calls again waits for its turn. */
    struct list ready;
    list_init(&ready);
    while (!list_is_empty(&engine->settled)) {
        struct list *item = engine->settled.next;
        list_remove(item);
        list_add_last(&ready, item);
    }
    while (!list_is_empty(&ready)) {
        struct own_call *call = CONTAINER_OF(ready.next, struct own_call, settled);
        list_remove(&call->settled);
        if (call->on_result)
            call->on_result(call->context, call->code ? NULL : call->result, call->code, call->text);
        own_call_free(engine, call);
    }
}

uint64_t engine_call(struct engine *engine, const struct engine_call *spec, engine_on_result on_result, void *context)
{
    return engine_call_owning(engine, spec, on_result, context, NULL);
}

uint64_t engine_call_owning(struct engine *engine, const struct engine_call *spec, engine_on_result on_result, void *context,
                            void *owned)
{
    struct own_call *call = xcalloc(1, sizeof *call);
    call->id = uuid_make();
    call->handle = ++engine->handles;
    call->deadline_ms = clock_now_ms() + (spec->timeout_ms ? spec->timeout_ms : CALL_TIMEOUT_MS);
    call->function_id = xstrdup(spec->function_id);
    call->on_result = on_result;
    call->context = context;
    call->owned = owned;
    list_init(&call->sent);
    list_init(&call->settled);
    call->message = BUF_INIT(ENGINE_MESSAGE_MAX + WS_HEADROOM);
    table_add(&engine->calls, &call->by_id, call->id.text);
    uint64_t handle = call->handle;
    struct err e = ERR_INIT;
    auto_free char *data = spec->data ? json_dumps(spec->data, JSON_ENCODE_ANY | JSON_COMPACT) : xstrdup("{}");
    auto_buf trace = BUF_INIT(16 * KIB), baggage = BUF_INIT(64 * KIB);
    struct message_call message = {.invocation_id = call->id.text, .function_id = call->function_id};
    if (spec->from && spec->from->traceparent &&
        !json_append_string(&trace, spec->from->traceparent, strlen(spec->from->traceparent), &e))
        message.traceparent = (struct json_slice){(const char *)buf_data(&trace), trace.len};
    if (spec->from && spec->from->baggage && !json_append_string(&baggage, spec->from->baggage, strlen(spec->from->baggage), &e))
        message.baggage = (struct json_slice){(const char *)buf_data(&baggage), baggage.len};
    if (!data) {
        own_call_fail(engine, call, "serialization_error", "the payload cannot be written as JSON");
        return handle;
    }
    message.data = (struct json_slice){data, strlen(data)};
    uint64_t timeout = call->deadline_ms - clock_now_ms();
    engine->ops->send_call(engine, call, &message);
    if (!uv_is_active((uv_handle_t *)&engine->calls_timer) || uv_timer_get_due_in(&engine->calls_timer) > timeout)
        arm_timer(engine);
    return handle;
}

void engine_call_forget(struct engine *engine, uint64_t handle)
{
    for (struct table_entry *entry = table_next(&engine->calls, NULL); entry; entry = table_next(&engine->calls, entry)) {
        struct own_call *call = CONTAINER_OF(entry, struct own_call, by_id);
        if (call->handle == handle)
            call->on_result = NULL;
    }
    for (struct list *item = engine->settled.next; item != &engine->settled; item = item->next) {
        struct own_call *call = CONTAINER_OF(item, struct own_call, settled);
        if (call->handle == handle)
            call->on_result = NULL;
    }
}

void engine_close_handles(struct engine *engine, uv_close_cb on_closed)
{
    uv_close((uv_handle_t *)&engine->calls_timer, on_closed);
    uv_close((uv_handle_t *)&engine->settle_turn, on_closed);
}

void engine_done(struct engine *engine)
{
    struct table_entry *entry;
    while ((entry = table_next(&engine->calls, NULL)))
        own_call_free(engine, CONTAINER_OF(entry, struct own_call, by_id));
    while (!list_is_empty(&engine->settled))
        own_call_free(engine, CONTAINER_OF(engine->settled.next, struct own_call, settled));
    while (!list_is_empty(&engine->invocations)) {
        struct invocation *call = CONTAINER_OF(engine->invocations.next, struct invocation, all);
        list_remove(&call->all);
        call->engine = NULL;
        invocation_lost(call); /* its handler ends it, now or later */
    }
    while ((entry = table_next(&engine->functions, NULL))) {
        table_remove(&engine->functions, entry);
        function_free(CONTAINER_OF(entry, struct function, by_id));
    }
    table_done(&engine->calls);
    table_done(&engine->functions);
    tracer_free(engine->tracer);
}
