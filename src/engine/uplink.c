/* SPDX-License-Identifier: Apache-2.0 */
/* The link: one worker connection to a real engine, made again whenever it is lost.
 *
 * An attempt resolves the host in a child, connects and upgrades, 10 s each. After the upgrade we send, without waiting for
 * anything: `reattach` when we were connected before, so that the engine retires what is left of the old connection; the
 * announcement engine::workers::register, without which a new engine holds our functions back for 5 s; all functions; the
 * calls of ours that waited. Pings every 20 s, dead after 60 s of silence. Failures are followed by 1 s, doubling to 30 s, with
 * 30 % jitter, and an upgrade that succeeds starts at 1 s again, unless the engine refused our login with an `error` message.
 *
 * A call of ours that was sent on a connection that broke fails at once: whether it ran is unknown. A call of one of our
 * functions that outlives its connection goes on, its result is dropped. Channel ends are sockets of their own to the same
 * address. The engine is not trusted: its messages are bounded and decoded like anybody's. */
#include "engine/uplink.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/internal.h"
#include "engine/resolve.h"
#include "engine/uplink_channel.h"
#include "engine/url.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <unistd.h>

#define BACKOFF_FIRST_MS 1000u
#define BACKOFF_LAST_MS 30000u

struct uplink {
    struct engine base;
    struct url url;
    char *name, *description, *token;
    void (*on_state)(void *context, enum uplink_state state, const char *reason);
    void *context;
    enum uplink_state state;
    unsigned failures, failures_before; /* _before: when the open connection was made */
    uint64_t epoch;                     /* of the connection: results of an older one are dropped */
    char address[64];
    struct ws_conn *conn; /* CONNECTING and OPEN */
    struct resolution *resolution;
    struct list waiting; /* own calls to be sent */
    char *worker_id, *reattach_token;
    uv_timer_t retry;
    unsigned closing;
};

static const char *const state_names[] = {"waiting", "resolving", "connecting", "open", "refused", "closed"};
static_assert(sizeof state_names / sizeof *state_names == UPLINK_STATE_COUNT, "one name per state");

const char *uplink_state_name(enum uplink_state state)
{
    CHECK((unsigned)state < UPLINK_STATE_COUNT);
    return state_names[state];
}

static struct uplink *link_of(struct engine *engine)
{
    return CONTAINER_OF(engine, struct uplink, base);
}

enum uplink_state uplink_state_of(const struct engine *engine)
{
    return CONTAINER_OF(engine, const struct uplink, base)->state;
}

unsigned uplink_backoff_ms(unsigned failures, uint32_t random)
{
    unsigned delay = failures < 5 ? BACKOFF_FIRST_MS << failures : BACKOFF_LAST_MS;
    if (delay > BACKOFF_LAST_MS)
        delay = BACKOFF_LAST_MS;
    unsigned spread = delay * 6 / 10; /* from 70 % to 130 % */
    return delay - spread / 2 + (unsigned)((uint64_t)random * (spread + 1) >> 32);
}

static void set_state(struct uplink *link, enum uplink_state state, const char *reason)
{
    link->state = state;
    if (link->on_state)
        link->on_state(link->context, state, reason);
}

static void on_retry(uv_timer_t *timer);

/* After a failed attempt or a lost connection. */
static void wait_and_retry(struct uplink *link, const char *reason)
{
    uint32_t random = 0;
    (void)!getrandom(&random, sizeof random, 0);
    uv_timer_start(&link->retry, on_retry, uplink_backoff_ms(link->failures, random), 0);
    link->failures++;
    set_state(link, UPLINK_WAITING, reason);
}

/* ---- sending ---- */

static struct buf begin_message(void)
{
    struct buf message = BUF_INIT(WS_HEADROOM + ENGINE_MESSAGE_MAX);
    struct err e = ERR_INIT;
    uint8_t *room;
    CHECK(buf_reserve(&message, WS_HEADROOM, &room, &e) == 0);
    buf_commit(&message, WS_HEADROOM);
    return message;
}

static void lose_connection(struct uplink *link, const char *reason);

static void send_message(struct uplink *link, struct buf *message)
{
    struct err e = ERR_INIT;
    if (link->state != UPLINK_OPEN || !ws_send(link->conn, message, &e))
        return;
    ws_kill(link->conn);
    lose_connection(link, "the engine reads too slowly");
}

static void send_function(struct uplink *link, const struct function *function)
{
    struct err e = ERR_INIT;
    auto_buf message = begin_message();
    struct message_function row = {.id = function->id, .description = function->description};
    struct {
        const char *from;
        struct json_slice *to;
    } parts[] = {{function->request_format, &row.request_format},
                 {function->response_format, &row.response_format},
                 {function->metadata, &row.metadata}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].from)
            *parts[i].to = (struct json_slice){parts[i].from, strlen(parts[i].from)};
    if (!message_write_function(&message, &row, &e))
        send_message(link, &message);
}

static void send_announcement(struct uplink *link)
{
    struct err e = ERR_INIT;
    struct utsname host = {0};
    uname(&host);
    auto_free char *os = xasprintf("linux %.64s (%.32s)", host.release, host.machine);
    auto_buf data = BUF_INIT(64 * KIB);
    struct json_writer w = json_writer_begin(&data, &e);
    json_write_text(&w, "runtime", "c");
    json_write_text(&w, "version", III_SANDBOX_VERSION);
    json_write_text(&w, "name", link->name);
    json_write_text(&w, "description", link->description);
    json_write_text(&w, "os", os);
    json_write_number(&w, "pid", (unsigned long long)getpid());
    const char *isolation = getenv("III_ISOLATION");
    if (isolation)
        json_write_text(&w, "isolation", isolation);
    else
        json_write_slice(&w, "isolation", (struct json_slice){"null", 4});
    auto_buf message = begin_message();
    struct message_call call = {.function_id = "engine::workers::register", .void_action = true};
    if (json_writer_end(&w))
        return;
    call.data = (struct json_slice){(const char *)buf_data(&data), data.len};
    if (!message_write_call(&message, &call, &e))
        send_message(link, &message);
}

static void send_reattach(struct uplink *link)
{
    struct err e = ERR_INIT;
    auto_buf message = begin_message();
    if (link->worker_id && !message_write_reattach(&message, link->worker_id, link->reattach_token, &e))
        send_message(link, &message);
}

static void on_open(void *owner)
{
    struct uplink *link = owner;
    link->epoch++;
    link->failures_before = link->failures;
    link->failures = 0;
    set_state(link, UPLINK_OPEN, NULL);
    send_reattach(link);
    send_announcement(link);
    struct table *functions = &link->base.functions;
    for (struct table_entry *entry = table_next(functions, NULL); entry; entry = table_next(functions, entry))
        send_function(link, CONTAINER_OF(entry, struct function, by_id));
    while (link->state == UPLINK_OPEN && !list_is_empty(&link->waiting)) {
        struct own_call *call = CONTAINER_OF(link->waiting.next, struct own_call, sent);
        list_remove(&call->sent);
        send_message(link, &call->message);
    }
}

/* ---- receiving ---- */

static void answer_failure(struct uplink *link, const char *id, const char *function_id, const char *code, const char *text)
{
    struct err e = ERR_INIT;
    auto_buf message = begin_message();
    struct message_error error = {.code = code, .message = text};
    if (id && !message_write_failure(&message, id, function_id, &error, (struct json_slice){0}, (struct json_slice){0}, &e))
        send_message(link, &message);
}

static void on_call(struct uplink *link, const struct message *message)
{
    auto_free char *function_id = json_slice_text(message->fields[MESSAGE_FIELD_FUNCTION_ID], ENGINE_ID_MAX);
    struct json_slice id_slice = message->fields[MESSAGE_FIELD_INVOCATION_ID];
    auto_free char *id = json_slice_text(id_slice, 36);
    if (!function_id || (id_slice.text && !id)) {
        metric_add(&link->base.metrics, METRIC_MESSAGES_DROPPED, 1);
        return;
    }
    metric_add(&link->base.metrics, METRIC_CALLS, 1);
    struct function *function = function_find(&link->base, function_id);
    if (!function) {
        answer_failure(link, id, function_id, "function_not_found", "Function not found");
        return;
    }
    if (link->base.metrics.values[METRIC_CALLS_OPEN] >= ENGINE_CALLS_MAX) {
        answer_failure(link, id, function_id, "limit_exceeded", "too many calls wait for their answers");
        return;
    }
    metric_add(&link->base.metrics, METRIC_CALLS_OPEN, 1);
    struct invocation *call = invocation_new(&link->base, function, id ? id : "", "", message, id != NULL);
    call->epoch = link->epoch;
    invocation_run(call, function);
}

static void answer(struct engine *engine, struct invocation *call, struct json_slice result, const struct message_error *error)
{
    struct uplink *link = link_of(engine);
    metric_add(&engine->metrics, METRIC_CALLS_OPEN, -1);
    if (!call->answered || link->state != UPLINK_OPEN || call->epoch != link->epoch)
        return;
    struct err e = ERR_INIT;
    auto_buf message = begin_message(), trace = BUF_INIT(16 * KIB), baggage = BUF_INIT(64 * KIB);
    struct json_slice trace_slice = {0}, baggage_slice = {0};
    if (call->traceparent && !json_append_string(&trace, call->traceparent, strlen(call->traceparent), &e))
        trace_slice = (struct json_slice){(const char *)buf_data(&trace), trace.len};
    if (call->baggage && !json_append_string(&baggage, call->baggage, strlen(call->baggage), &e))
        baggage_slice = (struct json_slice){(const char *)buf_data(&baggage), baggage.len};
    err_clear(&e);
    int failed = error ? message_write_failure(&message, call->id.text, call->function_id, error, trace_slice, baggage_slice, &e)
                       : message_write_result(&message, call->id.text, call->function_id, result, (struct json_slice){0},
                                              trace_slice, baggage_slice, &e);
    if (failed)
        answer_failure(link, call->id.text, call->function_id, "result_too_large", e.text);
    else
        send_message(link, &message);
}

static void on_result(struct uplink *link, const struct message *message)
{
    auto_free char *id = json_slice_text(message->fields[MESSAGE_FIELD_INVOCATION_ID], 64);
    struct table_entry *entry = id ? table_find(&link->base.calls, id) : NULL;
    if (entry)
        own_call_result(&link->base, CONTAINER_OF(entry, struct own_call, by_id), message->fields[MESSAGE_FIELD_RESULT],
                        message->fields[MESSAGE_FIELD_ERROR]);
    else
        metric_add(&link->base.metrics, METRIC_MESSAGES_DROPPED, 1);
}

static void on_registered(struct uplink *link, const struct message *message)
{
    free(link->worker_id);
    free(link->reattach_token);
    link->worker_id = json_slice_text(message->fields[MESSAGE_FIELD_WORKER_ID], 64);
    link->reattach_token = json_slice_text(message->fields[MESSAGE_FIELD_REATTACH_TOKEN], 64);
}

static void on_rejected(struct uplink *link, const struct message *message)
{
    auto_free char *code = json_slice_text(message->fields[MESSAGE_FIELD_CODE], ENGINE_ID_MAX);
    auto_free char *function_id = json_slice_text(message->fields[MESSAGE_FIELD_FUNCTION_ID], ENGINE_ID_MAX);
    if (!code || strcmp(code, "WORKER_NAMESPACE_CONFLICT") != 0) {
        if (function_id)
            text_make_printable(function_id);
        if (code)
            text_make_printable(code);
        auto_free char *why = xasprintf("the engine does not take function '%.200s' (%.64s): another worker offers it",
                                        function_id ? function_id : "?", code ? code : "?");
        set_state(link, link->state, why);
        return;
    }
    auto_free char *reason = xasprintf("the engine has a worker named '%.200s' already", link->name);
    ws_kill(link->conn);
    lose_connection(link, NULL);
    set_state(link, UPLINK_REFUSED, reason);
}

static void on_login_error(struct uplink *link, const struct message *message)
{
    auto_free char *code = NULL, *text = NULL;
    message_error_decode(message->fields[MESSAGE_FIELD_ERROR], &code, &text);
    text_make_printable(code);
    text_make_printable(text);
    auto_free char *why = xasprintf("the engine refuses this worker: %.64s: %.200s", code, text);
    set_state(link, link->state, why);
    link->failures = link->failures_before;
}

static void on_message(void *owner, enum ws_kind kind, const uint8_t *bytes, size_t len)
{
    (void)kind; /* JSON is taken from binary messages too */
    struct uplink *link = owner;
    struct message message;
    struct err e = ERR_INIT;
    metric_add(&link->base.metrics, METRIC_MESSAGES_IN, 1);
    if (message_decode(bytes, len, &message, &e)) {
        metric_add(&link->base.metrics, METRIC_MESSAGES_DROPPED, 1);
        log_debug("from the engine: %s, ignoring", e.text);
        return;
    }
    if (message.kind == MESSAGE_INVOKE_FUNCTION)
        on_call(link, &message);
    else if (message.kind == MESSAGE_INVOCATION_RESULT)
        on_result(link, &message);
    else if (message.kind == MESSAGE_WORKER_REGISTERED)
        on_registered(link, &message);
    else if (message.kind == MESSAGE_REGISTRATION_REJECTED)
        on_rejected(link, &message);
    else if (message.kind == MESSAGE_ERROR)
        on_login_error(link, &message);
}

/* ---- connecting ---- */

/* The connection no longer exists. reason NULL: no further attempt. */
static void lose_connection(struct uplink *link, const char *reason)
{
    bool was_open = link->state == UPLINK_OPEN;
    link->conn = NULL;
    link->state = UPLINK_WAITING;
    if (was_open) {
        struct table *calls = &link->base.calls;
        for (struct table_entry *entry = table_next(calls, NULL), *next; entry; entry = next) {
            next = table_next(calls, entry);
            struct own_call *call = CONTAINER_OF(entry, struct own_call, by_id);
            if (list_is_empty(&call->sent))
                own_call_fail(&link->base, call, "invocation_stopped",
                              "the link to the engine was lost; whether the call ran is unknown");
        }
        /* A call may end while it hears of its loss, and take others with it: the walk begins again after each. */
        for (struct list *item = link->base.invocations.next; item != &link->base.invocations;) {
            struct invocation *call = CONTAINER_OF(item, struct invocation, all);
            item = call->gone ? item->next : link->base.invocations.next;
            invocation_lost(call);
        }
    }
    if (reason)
        wait_and_retry(link, reason);
}

static void on_close(void *owner, const struct ws_end *end)
{
    lose_connection(owner, end->reason);
}

static const struct ws_events link_events = {
    .on_open = on_open,
    .on_message = on_message,
    .on_close = on_close,
    .message_max = ENGINE_MESSAGE_MAX,
    .queue_max = ENGINE_QUEUE_MAX,
    .drain_bytes = ENGINE_QUEUE_PAUSE,
    .ping_ms = 20000,
    .dead_ms = 60000,
    .stall_ms = 60000,
};

static void on_resolved(void *context, const char *address, const char *failure)
{
    struct uplink *link = context;
    struct err e = ERR_INIT;
    link->resolution = NULL;
    if (!address) {
        auto_free char *reason = xasprintf("look up '%s': %s", link->url.host, failure);
        wait_and_retry(link, reason);
        return;
    }
    snprintf(link->address, sizeof link->address, "%s", address);
    struct ws_target target = {
        .tls = strcmp(link->url.scheme, "wss") == 0,
        .host = link->url.host,
        .address = link->address,
        .port = link->url.port,
        .path = link->url.path,
        .token = link->token,
    };
    link->conn = ws_connect(link->base.ws, &target, &link_events, link, &e);
    if (link->conn)
        set_state(link, UPLINK_CONNECTING, NULL);
    else
        wait_and_retry(link, e.text);
}

static void on_retry(uv_timer_t *timer)
{
    struct uplink *link = timer->data;
    link->resolution = resolve_start(link->base.loop, link->url.host, on_resolved, link);
    set_state(link, UPLINK_RESOLVING, NULL);
}

/* ---- as an engine ---- */

static void function_added(struct engine *engine, struct function *function)
{
    send_function(link_of(engine), function);
}

static void function_removed(struct engine *engine, struct function *function)
{
    struct err e = ERR_INIT;
    auto_buf message = begin_message();
    struct json_writer w = json_writer_begin(&message, &e);
    json_write_text(&w, "type", message_kind_name(MESSAGE_UNREGISTER_FUNCTION));
    json_write_text(&w, "id", function->id);
    if (!json_writer_end(&w))
        send_message(link_of(engine), &message);
}

static void send_call(struct engine *engine, struct own_call *call, const struct message_call *spec)
{
    struct uplink *link = link_of(engine);
    struct err e = ERR_INIT;
    call->message = begin_message();
    if (message_write_call(&call->message, spec, &e)) {
        own_call_fail(engine, call, "payload_too_large", e.text);
        return;
    }
    if (link->state == UPLINK_OPEN)
        send_message(link, &call->message);
    else
        list_add_last(&link->waiting, &call->sent);
}

static struct ws_target channel_target(struct uplink *link)
{
    return (struct ws_target){.tls = strcmp(link->url.scheme, "wss") == 0,
                              .host = link->url.host,
                              .address = link->address,
                              .port = link->url.port,
                              .path = link->url.path};
}

static struct channel_reader *reader_open(struct engine *engine, const struct channel_ref *ref,
                                          const struct channel_reader_events *events, void *context, bool paused, struct err *e)
{
    struct ws_target target = channel_target(link_of(engine));
    if (!*target.address) {
        err_set(e, ERR_ENVIRONMENT, "there was no connection to the engine yet");
        return NULL;
    }
    return uplink_reader_open(engine->ws, &target, ref, events, context, paused, e);
}

static struct channel_writer *writer_open(struct engine *engine, const struct channel_ref *ref,
                                          const struct channel_writer_events *events, void *context, struct err *e)
{
    struct ws_target target = channel_target(link_of(engine));
    if (!*target.address) {
        err_set(e, ERR_ENVIRONMENT, "there was no connection to the engine yet");
        return NULL;
    }
    return uplink_writer_open(engine->ws, &target, ref, events, context, e);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct uplink *link = handle->data;
    if (--link->closing)
        return;
    free(link->name);
    free(link->description);
    free(link->token);
    free(link->worker_id);
    free(link->reattach_token);
    free(link);
}

static void on_base_closed(uv_handle_t *handle)
{
    struct engine *engine = handle->data;
    handle->data = link_of(engine);
    on_handle_closed(handle);
}

static void link_free(struct engine *engine)
{
    struct uplink *link = link_of(engine);
    resolve_cancel(link->resolution);
    if (link->conn)
        ws_close(link->conn, WS_CLOSE_NORMAL, "the worker stops");
    link->conn = NULL;
    link->state = UPLINK_CLOSED;
    engine_done(engine);
    ws_service_free(engine->ws);
    link->closing = ENGINE_HANDLES + 1;
    engine_close_handles(engine, on_base_closed);
    uv_close((uv_handle_t *)&link->retry, on_handle_closed);
}

static const struct engine_ops link_ops = {
    .function_added = function_added,
    .function_removed = function_removed,
    .answer = answer,
    .send_call = send_call,
    .reader_open = reader_open,
    .writer_open = writer_open,
    .free = link_free,
};

struct engine *uplink_new(uv_loop_t *loop, const struct uplink_config *config, struct err *e)
{
    struct url url;
    if (url_parse(config->url, &url, e)) {
        err_wrap(e, "the engine's URL");
        return NULL;
    }
    if (strcmp(url.scheme, "ws") != 0 && strcmp(url.scheme, "wss") != 0) {
        err_set(e, ERR_INVALID, "the engine's URL must begin with ws:// or wss://: '%.200s'", config->url);
        return NULL;
    }
    struct uplink *link = xcalloc(1, sizeof *link);
    engine_init(&link->base, &link_ops, loop);
    link->url = url;
    link->name = xstrdup(config->name);
    link->description = config->description ? xstrdup(config->description) : NULL;
    link->token = config->token ? xstrdup(config->token) : NULL;
    link->on_state = config->on_state;
    link->context = config->context;
    list_init(&link->waiting);
    uv_timer_init(loop, &link->retry);
    link->retry.data = link;
    link->base.ws = ws_service_new(loop, strcmp(url.scheme, "wss") == 0, e);
    if (link->base.ws && config->otlp_endpoint)
        link->base.tracer = tracer_new(loop, config->otlp_endpoint, &link->base.metrics, e);
    if (err_is_set(e)) {
        link_free(&link->base);
        return NULL;
    }
    uv_timer_start(&link->retry, on_retry, 0, 0);
    return &link->base;
}
