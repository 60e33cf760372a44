/* SPDX-License-Identifier: Apache-2.0 */
/* The embedded engine: one port, four paths. `/` is a worker connection: the client registers functions and calls, we say
 * `workerregistered` first and never wait for anything. `/otel` is every Node client's telemetry: taken and thrown away, for a
 * refused one retries for ever. `/ws/channels/ID?key=K&dir=D` is one end of a channel. `/metrics` is plain HTTP. Everything
 * else is 404.
 *
 * Who may come in: requests whose Host names this host (a page of the web that resolves its name to us does not), without an
 * Origin or with a listed one, and, where a token is configured, with it in Authorization on `/` (SDKs send headers nowhere
 * else; channel sockets are guarded by their key). A call is routed in this order: built-in, function of this process,
 * function of a worker, function_not_found. A worker that is lost takes its functions along, ends the calls that ran on it with
 * invocation_stopped, and drops the answers it waited for. Nothing a client sends or leaves unread costs more than its own
 * connection: every queue has its limit, a connection that reads nothing is ended. */
#include "engine/server.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/server_internal.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CHANNEL_SWEEP_MS 60000u

struct buf message_begin(void)
{
    struct buf message = BUF_INIT(WS_HEADROOM + ENGINE_MESSAGE_MAX + 64 * KIB);
    struct err e = ERR_INIT;
    uint8_t *room;
    CHECK(buf_reserve(&message, WS_HEADROOM, &room, &e) == 0);
    buf_commit(&message, WS_HEADROOM);
    return message;
}

/* ---- worker connections ---- */

static void worker_free(struct worker *worker)
{
    struct server *server = worker->server;
    registry_forget_worker(worker);
    triggers_forget_worker(worker);
    invocations_forget_worker(worker);
    channels_forget_worker(worker);
    list_remove(&worker->all);
    list_remove(&worker->reap);
    table_remove(&server->workers_by_id, &worker->by_id);
    metric_add(&server->base.metrics, METRIC_CONNECTIONS, -1);
    char **texts[] = {&worker->name, &worker->description, &worker->runtime, &worker->version, &worker->os, &worker->isolation};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(*texts[i]);
    free(worker);
}

void worker_drop(struct worker *worker, unsigned code, const char *reason)
{
    if (!worker->conn)
        return;
    ws_close(worker->conn, code, reason);
    worker->conn = NULL;
    list_add_last(&worker->server->reap, &worker->reap);
    server_turn_soon(worker->server);
}

int worker_send(struct worker *worker, struct buf *message)
{
    struct err e = ERR_INIT;
    if (!worker->conn)
        return -1;
    if (ws_send(worker->conn, message, &e)) {
        metric_add(&worker->server->base.metrics, METRIC_SLOW_DROPPED, 1);
        worker_drop(worker, WS_CLOSE_POLICY, "you read too slowly");
        return -1;
    }
    if (ws_queued(worker->conn) >= ENGINE_QUEUE_PAUSE)
        ws_pause(worker->conn);
    return 0;
}

static void on_reattach(struct worker *worker, const struct message *message)
{
    auto_free char *id = json_slice_text(message->fields[MESSAGE_FIELD_PREVIOUS_WORKER_ID], 64);
    auto_free char *token = json_slice_text(message->fields[MESSAGE_FIELD_REATTACH_TOKEN], 64);
    struct worker *old = id ? registry_find_worker(worker->server, id) : NULL;
    if (!old || old == worker || !token || !text_equals_constant_time(token, old->token.text))
        return; /* the frame is ignored */
    if (old->conn)
        ws_close(old->conn, WS_CLOSE_NORMAL, "replaced by a new connection");
    old->conn = NULL;
    worker_free(old); /* at once: the registrations that follow need their names */
}

static void send_pong(struct worker *worker)
{
    struct err e = ERR_INIT;
    auto_buf message = message_begin();
    if (!message_write_pong(&message, &e))
        (void)worker_send(worker, &message);
}

static void on_worker_message(void *owner, enum ws_kind kind, const uint8_t *bytes, size_t len)
{
    struct worker *worker = owner;
    struct metrics *metrics = &worker->server->base.metrics;
    struct message message;
    struct err e = ERR_INIT;
    metric_add(metrics, METRIC_MESSAGES_IN, 1);
    bool telemetry =
        kind == WS_BINARY && len >= 4 && (!memcmp(bytes, "OTLP", 4) || !memcmp(bytes, "MTRC", 4) || !memcmp(bytes, "LOGS", 4));
    if (telemetry)
        return;
    if (message_decode(bytes, len, &message, &e)) {
        metric_add(metrics, METRIC_MESSAGES_DROPPED, 1);
        log_debug("worker %s: %s, ignoring", worker->id.text, e.text);
        return;
    }
    switch (message.kind) {
    case MESSAGE_REATTACH:
        on_reattach(worker, &message);
        return;
    case MESSAGE_REGISTER_FUNCTION:
        registry_add_function(worker, &message);
        return;
    case MESSAGE_UNREGISTER_FUNCTION:
        registry_remove_function(worker, &message);
        return;
    case MESSAGE_REGISTER_TRIGGER_TYPE:
        trigger_add_type(worker, &message);
        return;
    case MESSAGE_UNREGISTER_TRIGGER_TYPE:
        trigger_remove_type(worker, &message);
        return;
    case MESSAGE_REGISTER_TRIGGER:
        trigger_add(worker, &message);
        return;
    case MESSAGE_UNREGISTER_TRIGGER:
        trigger_remove(worker, &message);
        return;
    case MESSAGE_TRIGGER_REGISTRATION_RESULT:
        trigger_relay_result(worker, &message);
        return;
    case MESSAGE_INVOKE_FUNCTION:
        invocations_call(worker, &message);
        return;
    case MESSAGE_INVOCATION_RESULT:
        invocations_result(worker, &message);
        return;
    case MESSAGE_PING:
        send_pong(worker);
        return;
    case MESSAGE_REGISTER_SERVICE: /* grouping only */
    case MESSAGE_PONG:
        return;
    case MESSAGE_UNKNOWN:
    case MESSAGE_WORKER_REGISTERED:
    case MESSAGE_REGISTRATION_REJECTED:
    case MESSAGE_ERROR:
    case MESSAGE_KIND_COUNT:
        metric_add(metrics, METRIC_MESSAGES_DROPPED, 1);
        return;
    }
}

static void on_worker_open(void *owner)
{
    struct worker *worker = owner;
    struct err e = ERR_INIT;
    auto_buf message = message_begin();
    if (!message_write_worker_registered(&message, worker->id.text, worker->token.text, &e))
        (void)worker_send(worker, &message);
}

static void on_worker_drain(void *owner)
{
    struct worker *worker = owner;
    ws_resume(worker->conn);
}

static void on_worker_close(void *owner, const struct ws_end *end)
{
    struct worker *worker = owner;
    log_debug("worker %s: %s", worker->id.text, end->reason);
    worker->conn = NULL;
    worker_free(worker);
}

static const struct ws_events worker_events = {
    .on_open = on_worker_open,
    .on_message = on_worker_message,
    .on_drain = on_worker_drain,
    .on_close = on_worker_close,
    .message_max = ENGINE_MESSAGE_MAX,
    .queue_max = ENGINE_QUEUE_MAX,
    .drain_bytes = ENGINE_QUEUE_PAUSE,
    .ping_ms = 30000,
    .dead_ms = 75000,
    .stall_ms = 30000,
};

static struct worker *worker_new(struct server *server, const struct ws_request *request, struct ws_conn *conn)
{
    struct worker *worker = xcalloc(1, sizeof *worker);
    worker->server = server;
    worker->conn = conn;
    worker->id = uuid_make();
    worker->token = uuid_make();
    worker->connected_ms = clock_realtime_ns() / 1000000;
    snprintf(worker->peer, sizeof worker->peer, "%s", request->peer);
    struct list *lists[] = {
        &worker->reap, &worker->functions, &worker->calls_made, &worker->calls_served, &worker->types, &worker->triggers, NULL};
    for (size_t i = 0; lists[i]; i++)
        list_init(lists[i]);
    list_add_last(&server->workers, &worker->all);
    table_add(&server->workers_by_id, &worker->by_id, worker->id.text);
    metric_add(&server->base.metrics, METRIC_CONNECTIONS, 1);
    return worker;
}

/* ---- telemetry: read and forgotten ---- */

static void on_otel_piece(void *owner, enum ws_kind kind, const uint8_t *bytes, size_t len, bool first, bool last)
{
    (void)owner;
    (void)kind;
    (void)bytes;
    (void)len;
    (void)first;
    (void)last;
}

static void on_otel_close(void *owner, const struct ws_end *end)
{
    (void)owner;
    (void)end;
}

static const struct ws_events otel_events = {
    .on_piece = on_otel_piece, .on_close = on_otel_close, .queue_max = KIB, .ping_ms = 30000, .dead_ms = 75000};

/* ---- requests ---- */

static void refuse(struct server *server, struct ws_answer *answer, unsigned status, const char *text)
{
    metric_add(&server->base.metrics, METRIC_CONNECTIONS_REFUSED, 1);
    ws_answer_text(answer, status, text);
}

static bool is_address(const char *name)
{
    unsigned char address[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;
}

/* Whether the Host header names this host. Behind it is DNS rebinding: a web page whose name was pointed at our address sends
 * its own name here. A literal address cannot be rebound, so a server bound to all addresses takes any. */
static bool host_is_ours(const struct server *server, const char *header)
{
    char name[256];
    if (!header || snprintf(name, sizeof name, "%s", header) >= (int)sizeof name)
        return false;
    char *start = name;
    if (*name == '[') {
        start++;
        char *end = strchr(name, ']');
        if (!end)
            return false;
        *end = 0;
    } else {
        name[strcspn(name, ":")] = 0;
    }
    size_t len = strlen(start);
    if (len && start[len - 1] == '.')
        start[len - 1] = 0;
    static const char *const names[] = {"localhost", "::1", "100.96.0.1", "host.iii.internal", NULL};
    for (size_t i = 0; names[i]; i++)
        if (strcasecmp(start, names[i]) == 0)
            return true;
    struct in_addr four;
    if (inet_pton(AF_INET, start, &four) == 1 && ntohl(four.s_addr) >> 24 == 127)
        return true;
    if (!server->host)
        return false;
    bool all = strcmp(server->host, "0.0.0.0") == 0 || strcmp(server->host, "::") == 0;
    return strcasecmp(start, server->host) == 0 || (all && is_address(start));
}

static bool origin_is_allowed(const struct server *server, const char *origin)
{
    for (size_t i = 0; i < server->allowed_origins.len; i++)
        if (strcasecmp(server->allowed_origins.items[i], origin) == 0)
            return true;
    return false;
}

static bool token_is_right(const struct server *server, const char *authorization)
{
    if (!server->token)
        return true;
    return authorization && strncasecmp(authorization, "bearer ", 7) == 0 &&
           text_equals_constant_time(authorization + 7 + strspn(authorization + 7, " "), server->token);
}

static void answer_metrics(struct server *server, struct ws_answer *answer)
{
    struct err e = ERR_INIT;
    server->base.metrics.values[METRIC_CHANNELS] = server->channels.len;
    server->base.metrics.values[METRIC_CALLS_OPEN] = server->pending.len;
    server->base.metrics.values[METRIC_HELD_BYTES] = ws_service_held(server->base.ws) + server->channel_bytes;
    answer->status = 200;
    answer->type = "text/plain; version=0.0.4; charset=utf-8";
    if (metrics_write(&server->base.metrics, &answer->body, &e))
        answer->status = 500;
    else if (server->on_metrics)
        server->on_metrics(server->metrics_context, &answer->body);
}

static void on_request(void *context, const struct ws_request *request, struct ws_conn *conn, struct ws_answer *answer)
{
    struct server *server = context;
    bool worker_path = strcmp(request->path, "/") == 0, metrics_path = strcmp(request->path, "/metrics") == 0;
    if (!host_is_ours(server, request->host)) {
        refuse(server, answer, 403, "The Host header does not name this host");
    } else if (request->origin && !origin_is_allowed(server, request->origin)) {
        refuse(server, answer, 403, "This origin is not allowed");
    } else if ((worker_path || metrics_path) && !token_is_right(server, request->authorization)) {
        refuse(server, answer, 401, "A bearer token is needed");
    } else if (metrics_path && !request->upgrade) {
        answer_metrics(server, answer);
    } else if (!request->upgrade) {
        refuse(server, answer, worker_path ? 426 : 404, worker_path ? "This is a WebSocket" : "Not found");
    } else if (worker_path) {
        *answer = (struct ws_answer){
            .status = 101, .events = &worker_events, .owner = worker_new(server, request, conn), .body = answer->body};
    } else if (strcmp(request->path, "/otel") == 0) {
        *answer = (struct ws_answer){.status = 101, .events = &otel_events, .body = answer->body};
    } else if (text_has_prefix(request->path, "/ws/channels/")) {
        channels_on_request(server, request, conn, answer);
        if (answer->status != 101)
            metric_add(&server->base.metrics, METRIC_CONNECTIONS_REFUSED, 1);
    } else {
        refuse(server, answer, 404, "Not found");
    }
    if (answer->status == 101)
        metric_add(&server->base.metrics, METRIC_CONNECTIONS_ACCEPTED, 1);
}

/* ---- the engine ---- */

static void on_turn(uv_idle_t *idle)
{
    struct server *server = idle->data;
    uv_idle_stop(idle);
    while (!list_is_empty(&server->reap))
        worker_free(CONTAINER_OF(server->reap.next, struct worker, reap));
    channels_turn(server);
}

void server_turn_soon(struct server *server)
{
    uv_idle_start(&server->turn, on_turn);
}

static void on_channel_sweep(uv_timer_t *timer)
{
    channels_sweep(timer->data);
}

static void on_function_changed(struct engine *engine, struct function *function)
{
    (void)engine;
    (void)function;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct server *server = handle->data;
    if (--server->closing)
        return;
    free(server->host);
    free(server->token);
    strv_done(&server->allowed_origins);
    free(server);
}

static void on_base_closed(uv_handle_t *handle)
{
    struct engine *engine = handle->data;
    handle->data = server_of(engine);
    on_handle_closed(handle);
}

static void server_free(struct engine *engine)
{
    struct server *server = server_of(engine);
    while (!list_is_empty(&server->workers)) {
        struct worker *worker = CONTAINER_OF(server->workers.next, struct worker, all);
        if (worker->conn)
            ws_close(worker->conn, WS_CLOSE_AWAY, "the engine stops");
        worker->conn = NULL;
        worker_free(worker);
    }
    channels_done(server);
    invocations_done(server);
    engine_done(engine);
    ws_service_free(engine->ws);
    table_done(&server->workers_by_id);
    table_done(&server->pending);
    table_done(&server->channels);
    table_done(&server->trigger_types);
    table_done(&server->triggers);
    server->closing = ENGINE_HANDLES + 2;
    engine_close_handles(engine, on_base_closed);
    uv_close((uv_handle_t *)&server->turn, on_handle_closed);
    uv_close((uv_handle_t *)&server->sweep, on_handle_closed);
}

static const struct engine_ops server_ops = {
    .function_added = on_function_changed,
    .function_removed = on_function_changed,
    .answer = invocations_answer_local,
    .send_call = invocations_send_own,
    .reader_open = channels_open_reader,
    .writer_open = channels_open_writer,
    .free = server_free,
};

static int listen_all(struct server *server, uint16_t port, uint16_t *ret_port, struct err *e)
{
    if (ws_listen(server->base.ws, server->host ? server->host : "127.0.0.1", port, on_request, server, ret_port, e))
        return -1;
    struct err ignored = ERR_INIT;
    uint16_t same;
    if (!server->host && ws_listen(server->base.ws, "::1", *ret_port, on_request, server, &same, &ignored))
        log_debug("%s, ignoring", ignored.text); /* "localhost" is still reached by IPv4 */
    return 0;
}

struct engine *server_new(uv_loop_t *loop, const struct server_config *config, uint16_t *ret_port, struct err *e)
{
    struct server *server = xcalloc(1, sizeof *server);
    engine_init(&server->base, &server_ops, loop);
    server->host = config->host ? xstrdup(config->host) : NULL;
    server->token = config->token ? xstrdup(config->token) : NULL;
    for (size_t i = 0; config->allowed_origins && config->allowed_origins[i]; i++)
        strv_add(&server->allowed_origins, config->allowed_origins[i]);
    server->on_metrics = config->on_metrics;
    server->metrics_context = config->metrics_context;
    server->started_ms = clock_realtime_ns() / 1000000;
    list_init(&server->workers);
    list_init(&server->reap);
    list_init(&server->ready_channels);
    struct table *tables[] = {&server->workers_by_id, &server->pending,  &server->channels,
                              &server->trigger_types, &server->triggers, NULL};
    for (size_t i = 0; tables[i]; i++)
        table_init(tables[i]);
    uv_idle_init(loop, &server->turn);
    uv_timer_init(loop, &server->sweep);
    server->turn.data = server->sweep.data = server;
    server->base.ws = ws_service_new(loop, false, e);
    if (server->base.ws && config->otlp_endpoint)
        server->base.tracer = tracer_new(loop, config->otlp_endpoint, &server->base.metrics, e);
    if (err_is_set(e) || listen_all(server, config->port, ret_port, e)) {
        server_free(&server->base);
        return NULL;
    }
    uv_timer_start(&server->sweep, on_channel_sweep, CHANNEL_SWEEP_MS, CHANNEL_SWEEP_MS);
    return &server->base;
}
