/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ws.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/table.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <libwebsockets.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static_assert(WS_HEADROOM >= LWS_PRE, "libwebsockets writes its frame head in front of the payload");

#define SWEEP_MS 1000u
#define DESTROY_TURNS 8u
#define STOP_MS 1000u /* for the close frames of the connections that were closed last */
#define HANDSHAKE_MS 10000u
#define CLOSING_MS 5000u         /* for a peer that does not take our last bytes and close frame */
#define WRITE_BUDGET (256 * KIB) /* per turn of one connection, so that others get theirs */
#define READ_BUFFER (64 * KIB)
#define CONNECTIONS_EXTRA 64u /* accepted past the limit, only to be told 503 */

/* HTTP: accepted, no upgrade yet. CONNECTING: made by us. OPEN: both ways. CLOSING: the owner is gone, what is queued and a
 * close frame still go out. DEAD: to be dropped at the next turn. libwebsockets frees the connection in all states. */
enum conn_state { CONN_HTTP, CONN_CONNECTING, CONN_OPEN, CONN_CLOSING, CONN_DEAD, CONN_STATE_COUNT };

struct ws_item {
    struct ws_item *next;
    enum ws_kind kind;
    bool first, last;
    size_t len, sent;
    uint8_t *bytes; /* WS_HEADROOM, then len */
};

struct ws_conn {
    struct ws_service *service;
    struct list all;
    struct lws *wsi;
    enum conn_state state;
    const struct ws_events *events; /* NULL: nobody listens */
    void *owner;
    struct ws_listener *listener; /* NULL for one that we made */
    struct ws_item *queue_first, **queue_last;
    size_t queued;
    struct buf incoming; /* a message in pieces */
    uint64_t since_ms, received_ms, progress_ms;
    unsigned close_code, peer_code, http_status;
    char close_reason[64];
    char failure[128];
    char *token;
    bool ping_due, was_full, paused, in_connect;
    bool close_sent;
    bool patient; /* its owner set no limit for unsent bytes that wait, so closing has none either */
};

struct ws_listener {
    struct list all;
    struct ws_service *service;
    int fd;
    uv_poll_t poll;
    bool polling;
    ws_on_request on_request;
    void *context;
};

struct ws_service {
    uv_loop_t *loop;
    struct lws_context *context;
    struct lws_vhost *server, *client;
    uv_timer_t sweep;
    struct list conns, listeners;
    size_t conns_len, held;
    bool stopping, sweeping, tls, destroying;
    unsigned turns_left;
};

static int on_lws(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len);

static const struct lws_protocols protocols[] = {{.name = "iii", .callback = on_lws, .rx_buffer_size = READ_BUFFER}, {0}};
/* Our own timer does this: with libwebsockets' a paused connection would be taken for a dead one. */
static const lws_retry_bo_t no_validity_checks = {.secs_since_valid_ping = 0, .secs_since_valid_hangup = 0};

static void on_lws_log(int level, const char *line)
{
    (void)level;
    log_debug("%.*s", (int)strcspn(line, "\n"), line);
}

/* No delay; and probes by the kernel, which also find a host that vanished behind a reader that pauses, where a WebSocket ping
 * would be left unread. Failures cost nothing but that. */
static void set_socket_options(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                   {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, 60},
                   {IPPROTO_TCP, TCP_KEEPINTVL, 15},
                   {IPPROTO_TCP, TCP_KEEPCNT, 4}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof options[i].value);
}

/* ---- connections ---- */

static void held_change(struct ws_conn *conn, size_t less, size_t more);

static struct ws_conn *conn_new(struct ws_service *service, enum conn_state state)
{
    struct ws_conn *conn = xcalloc(1, sizeof *conn);
    conn->service = service;
    conn->state = state;
    conn->queue_last = &conn->queue_first;
    conn->since_ms = conn->received_ms = conn->progress_ms = clock_now_ms();
    list_add_last(&service->conns, &conn->all);
    service->conns_len++;
    return conn;
}

static void item_free(struct ws_item *item)
{
    free(item->bytes);
    free(item);
}

static void conn_forget_queue(struct ws_conn *conn)
{
    while (conn->queue_first) {
        struct ws_item *item = conn->queue_first;
        conn->queue_first = item->next;
        item_free(item);
    }
    conn->queue_last = &conn->queue_first;
    conn->service->held -= conn->queued;
    conn->queued = 0;
}

static void conn_forget_incoming(struct ws_conn *conn)
{
    conn->service->held -= conn->incoming.len;
    buf_done(&conn->incoming);
}

static void service_freed_conn(struct ws_service *service);

static void conn_free(struct ws_conn *conn)
{
    conn_forget_queue(conn);
    conn_forget_incoming(conn);
    list_remove(&conn->all);
    conn->service->conns_len--;
    free(conn->token);
    service_freed_conn(conn->service);
    free(conn);
}

/* The owner hears of the end exactly once, whatever callback comes first. */
static void conn_ended(struct ws_conn *conn)
{
    const struct ws_events *events = conn->events;
    conn->events = NULL;
    conn->state = CONN_DEAD;
    if (!events)
        return;
    struct ws_end end = {.code = conn->peer_code, .http = conn->http_status};
    end.reason = conn->failure[0] ? conn->failure : end.code ? "closed by the peer" : "the connection was lost";
    events->on_close(conn->owner, &end);
}

static void conn_detach(struct ws_conn *conn, enum conn_state state)
{
    conn->events = NULL;
    conn->owner = NULL;
    conn->state = state;
    conn->since_ms = clock_now_ms();
    conn_forget_incoming(conn);
    if (conn->paused)
        ws_resume(conn); /* so that its end is noticed */
}

void ws_kill(struct ws_conn *conn)
{
    conn_detach(conn, CONN_DEAD);
    conn_forget_queue(conn);
    if (!conn->wsi)
        return;
    /* Wakes the connection even when its send buffer is full: the next turn returns the error that drops it. */
    shutdown(lws_get_socket_fd(conn->wsi), SHUT_RDWR);
    lws_callback_on_writable(conn->wsi);
}

void ws_close(struct ws_conn *conn, unsigned code, const char *reason)
{
    if (conn->state != CONN_OPEN) {
        ws_kill(conn);
        return;
    }
    conn->close_code = code;
    snprintf(conn->close_reason, sizeof conn->close_reason, "%s", reason);
    conn->patient = conn->events && !conn->events->stall_ms;
    conn_detach(conn, CONN_CLOSING);
    lws_callback_on_writable(conn->wsi);
}

/* Over the sum of all: the connection that holds the most pays, its owner hears that it was lost. */
static void hold_to_limit(struct ws_service *service)
{
    while (service->held > ENGINE_HELD_MAX) {
        struct ws_conn *largest = NULL;
        for (struct list *item = service->conns.next; item != &service->conns; item = item->next) {
            struct ws_conn *conn = CONTAINER_OF(item, struct ws_conn, all);
            if (!largest || conn->queued + conn->incoming.len > largest->queued + largest->incoming.len)
                largest = conn;
        }
        if (!largest || largest->queued + largest->incoming.len == 0)
            return;
        log_debug("%zu bytes wait for slow peers, dropping the slowest", service->held);
        largest->peer_code = 0;
        snprintf(largest->failure, sizeof largest->failure, "it read too slowly");
        conn_forget_queue(largest);
        conn_forget_incoming(largest);
        largest->state = CONN_DEAD; /* its events come from the close callback, never from inside a send */
        shutdown(lws_get_socket_fd(largest->wsi), SHUT_RDWR);
        lws_callback_on_writable(largest->wsi);
    }
}

static void held_change(struct ws_conn *conn, size_t less, size_t more)
{
    conn->service->held = conn->service->held - less + more;
    if (more > less)
        hold_to_limit(conn->service);
}

void ws_pause(struct ws_conn *conn)
{
    if (conn->paused || conn->state != CONN_OPEN)
        return;
    conn->paused = true;
    lws_rx_flow_control(conn->wsi, 0);
}

void ws_resume(struct ws_conn *conn)
{
    if (!conn->paused)
        return;
    conn->paused = false;
    conn->received_ms = clock_now_ms();
    lws_rx_flow_control(conn->wsi, 1);
}

size_t ws_queued(const struct ws_conn *conn)
{
    return conn->queued;
}

/* ---- sending ---- */

static void enqueue(struct ws_conn *conn, struct ws_item *item)
{
    if (!conn->queued)
        conn->progress_ms = clock_now_ms();
    *conn->queue_last = item;
    conn->queue_last = &item->next;
    conn->queued += item->len;
    if (conn->events && conn->queued >= conn->events->drain_bytes)
        conn->was_full = true;
    held_change(conn, 0, item->len);
    if (conn->wsi && conn->state != CONN_CONNECTING)
        lws_callback_on_writable(conn->wsi);
}

int ws_send(struct ws_conn *conn, struct buf *message, struct err *e)
{
    CHECK(message->len >= WS_HEADROOM && message->start == 0);
    size_t len = message->len - WS_HEADROOM;
    if (conn->state == CONN_DEAD)
        return 0; /* its end is on the way to the owner */
    if (conn->events && conn->queued && conn->queued + len > conn->events->queue_max)
        return err_set(e, ERR_LIMIT, "%zu bytes wait to be sent to this peer", conn->queued);
    struct ws_item *item = xcalloc(1, sizeof *item);
    *item = (struct ws_item){.kind = WS_TEXT, .first = true, .last = true, .len = len, .bytes = message->bytes};
    *message = BUF_INIT(message->bytes_max);
    enqueue(conn, item);
    return 0;
}

int ws_send_piece(struct ws_conn *conn, enum ws_kind kind, const void *bytes, size_t len, bool first, bool last, struct err *e)
{
    if (conn->state == CONN_DEAD)
        return 0;
    struct ws_item *item = xcalloc(1, sizeof *item);
    *item = (struct ws_item){.kind = kind, .first = first, .last = last, .len = len, .bytes = malloc(WS_HEADROOM + len)};
    if (!item->bytes) {
        item_free(item);
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes to send", len);
    }
    if (len)
        memcpy(item->bytes + WS_HEADROOM, bytes, len);
    enqueue(conn, item);
    return 0;
}

static int write_ping(struct ws_conn *conn)
{
    uint8_t nothing[LWS_PRE + 1];
    conn->ping_due = false;
    return lws_write(conn->wsi, nothing + LWS_PRE, 0, LWS_WRITE_PING) < 0 ? -1 : 0;
}

/* One frame of at most ENGINE_CHANNEL_PIECE: a big message leaves in fragments, so that libwebsockets never copies it whole. */
static int write_frame(struct ws_conn *conn, size_t *budget)
{
    struct ws_item *item = conn->queue_first;
    size_t left = item->len - item->sent, len = left < ENGINE_CHANNEL_PIECE ? left : ENGINE_CHANNEL_PIECE;
    int flags = lws_write_ws_flags(item->kind == WS_TEXT ? LWS_WRITE_TEXT : LWS_WRITE_BINARY, item->first && !item->sent,
                                   item->last && len == left);
    int written = lws_write(conn->wsi, item->bytes + WS_HEADROOM + item->sent, len, (enum lws_write_protocol)flags);
    if (written < 0)
        return -1;
    item->sent += len;
    conn->queued -= len;
    conn->service->held -= len;
    conn->progress_ms = clock_now_ms();
    *budget -= len < *budget ? len : *budget;
    if (item->sent == item->len) {
        conn->queue_first = item->next;
        if (!conn->queue_first)
            conn->queue_last = &conn->queue_first;
        item_free(item);
    }
    return 0;
}

/* libwebsockets' own number for it, which lws-write.h leaves out of its list. */
#define WRITE_CLOSE ((enum lws_write_protocol)4)

/* Not by lws_close_reason: Debian's build closes a second time behind it, which drops the connection before its close frame is
 * out. The connection then waits for the peer's frame or end. */
static int write_close(struct ws_conn *conn)
{
    uint8_t frame[LWS_PRE + 2 + sizeof conn->close_reason];
    size_t len = 0;
    if (conn->close_code) {
        frame[LWS_PRE] = (uint8_t)(conn->close_code >> 8);
        frame[LWS_PRE + 1] = (uint8_t)conn->close_code;
        len = 2 + strlen(conn->close_reason);
        memcpy(frame + LWS_PRE + 2, conn->close_reason, len - 2);
    }
    conn->close_sent = true;
    conn->since_ms = clock_now_ms();
    return lws_write(conn->wsi, frame + LWS_PRE, len, WRITE_CLOSE) < 0 ? -1 : 0;
}

static int on_writable(struct ws_conn *conn)
{
    if (conn->state == CONN_DEAD)
        return -1;
    if (conn->ping_due && write_ping(conn))
        return -1;
    size_t budget = WRITE_BUDGET;
    for (bool first = true; conn->queue_first && budget && (first || !lws_send_pipe_choked(conn->wsi)); first = false)
        if (write_frame(conn, &budget))
            return -1;
    if (conn->state == CONN_CLOSING && !conn->queue_first && !conn->close_sent && !lws_partial_buffered(conn->wsi))
        return write_close(conn);
    if (conn->queue_first || (conn->state == CONN_CLOSING && !conn->close_sent))
        lws_callback_on_writable(conn->wsi);
    if (conn->was_full && conn->events && conn->queued < conn->events->drain_bytes) {
        conn->was_full = false;
        if (conn->events->on_drain)
            conn->events->on_drain(conn->owner);
    }
    return conn->state == CONN_DEAD ? -1 : 0;
}

/* ---- receiving ---- */

static void too_big(struct ws_conn *conn)
{
    const struct ws_events *events = conn->events;
    void *owner = conn->owner;
    struct ws_end end = {.reason = "it sent a message over the limit"};
    ws_close(conn, WS_CLOSE_TOO_BIG, "message too big");
    events->on_close(owner, &end);
}

static void on_whole(struct ws_conn *conn, enum ws_kind kind, const uint8_t *bytes, size_t len, bool last)
{
    if (conn->incoming.len + len > conn->events->message_max) {
        too_big(conn);
        return;
    }
    if (last && !conn->incoming.len) {
        conn->events->on_message(conn->owner, kind, bytes, len);
        return;
    }
    struct err e = ERR_INIT;
    conn->incoming.bytes_max = conn->events->message_max;
    if (buf_append(&conn->incoming, bytes, len, &e)) {
        too_big(conn);
        return;
    }
    held_change(conn, 0, len);
    if (!last || conn->state != CONN_OPEN)
        return;
    /* The owner may close the connection, which frees `incoming`: the message gets a life of its own. */
    auto_buf whole = conn->incoming;
    conn->service->held -= whole.len;
    conn->incoming = BUF_INIT(conn->events->message_max);
    conn->events->on_message(conn->owner, kind, buf_data(&whole), whole.len);
}

static int on_receive(struct ws_conn *conn, const uint8_t *bytes, size_t len)
{
    conn->received_ms = clock_now_ms();
    if (!conn->events || conn->state != CONN_OPEN)
        return conn->state == CONN_DEAD ? -1 : 0;
    enum ws_kind kind = lws_frame_is_binary(conn->wsi) ? WS_BINARY : WS_TEXT;
    bool first = lws_is_first_fragment(conn->wsi);
    bool last = lws_is_final_fragment(conn->wsi) && lws_remaining_packet_payload(conn->wsi) == 0;
    if (conn->events->on_message)
        on_whole(conn, kind, bytes, len, last);
    else
        conn->events->on_piece(conn->owner, kind, bytes, len, first, last);
    return conn->state == CONN_DEAD ? -1 : 0;
}

static void on_peer_close(struct ws_conn *conn, const uint8_t *bytes, size_t len)
{
    conn->peer_code = len >= 2 ? (unsigned)bytes[0] << 8 | bytes[1] : 1005;
    if (len > 2)
        snprintf(conn->failure, sizeof conn->failure, "%.*s", (int)(len - 2), (const char *)bytes + 2);
    text_make_printable(conn->failure);
}

/* ---- accepting ---- */

static int respond(struct lws *wsi, const struct ws_answer *answer)
{
    uint8_t head[LWS_PRE + 512], *p = head + LWS_PRE, *end = head + sizeof head - 1;
    const char *type = answer->type ? answer->type : "text/plain";
    if (lws_add_http_common_headers(wsi, answer->status, type, answer->body.len, &p, end) ||
        lws_add_http_header_by_name(wsi, (const unsigned char *)"cache-control:", (const unsigned char *)"no-store", 8, &p,
                                    end) ||
        lws_finalize_write_http_header(wsi, head + LWS_PRE, &p, end))
        return -1;
    if (!answer->body.len)
        return 0;
    /* libwebsockets keeps what the socket does not take at once. */
    uint8_t *copy = xmalloc(LWS_PRE + answer->body.len);
    memcpy(copy + LWS_PRE, buf_data(&answer->body), answer->body.len);
    int written = lws_write(wsi, copy + LWS_PRE, answer->body.len, LWS_WRITE_HTTP_FINAL);
    free(copy);
    return written < 0 ? -1 : 0;
}

void ws_answer_text(struct ws_answer *answer, unsigned status, const char *text)
{
    struct err e = ERR_INIT;
    answer->status = buf_append(&answer->body, text, strlen(text), &e) ? 500 : status;
}

static const char *header(struct lws *wsi, enum lws_token_indexes token, char *text, size_t size)
{
    int len = lws_hdr_copy(wsi, text, (int)size, token);
    return len > 0 ? text : len < 0 && lws_hdr_total_length(wsi, token) ? "" : NULL;
}

bool ws_request_query(const struct ws_request *request, const char *name, char *text, size_t size)
{
    char with_sign[64], member[1024]; /* any other member has to fit too, or the walk ends early */
    snprintf(with_sign, sizeof with_sign, "%s=", name);
    struct lws *wsi = (struct lws *)(uintptr_t)request->handle;
    const char *value = lws_get_urlarg_by_name(wsi, with_sign, member, sizeof member);
    return value && snprintf(text, size, "%s", value) < (int)size;
}

/* 0: go on with the upgrade. 1: answered. -1: drop. */
static int decide(struct ws_conn *conn, bool upgrade, const char *protocol)
{
    if (!conn || !conn->listener || conn->state != CONN_HTTP || (upgrade && strcasecmp(protocol, "websocket") != 0))
        return -1;
    char path[512], host[256], origin[512], authorization[1024], peer[64] = "";
    lws_get_peer_simple(conn->wsi, peer, sizeof peer);
    struct ws_request request = {.upgrade = upgrade, .peer = peer, .handle = conn->wsi};
    request.path = header(conn->wsi, WSI_TOKEN_GET_URI, path, sizeof path);
    request.host = header(conn->wsi, WSI_TOKEN_HOST, host, sizeof host);
    request.origin = header(conn->wsi, WSI_TOKEN_ORIGIN, origin, sizeof origin);
    request.authorization = header(conn->wsi, WSI_TOKEN_HTTP_AUTHORIZATION, authorization, sizeof authorization);
    struct ws_answer answer = {.status = 404, .body = BUF_INIT(MIB)};
    if (conn->service->conns_len > ENGINE_CONNECTIONS_MAX) {
        ws_answer_text(&answer, 503, "Too many connections");
    } else if (request.path) {
        conn->listener->on_request(conn->listener->context, &request, conn, &answer);
    }
    int result = 0;
    if (answer.status == 101) {
        conn->events = answer.events;
        conn->owner = answer.owner;
    } else {
        result = respond(conn->wsi, &answer) ? -1 : 1;
        if (!upgrade && (result < 0 || lws_http_transaction_completed(conn->wsi)))
            result = -1;
    }
    buf_done(&answer.body);
    return result;
}

static void sweep_start(struct ws_service *service);

static void accept_one(struct ws_listener *listener, int fd)
{
    struct ws_service *service = listener->service;
    if (service->conns_len >= ENGINE_CONNECTIONS_MAX + CONNECTIONS_EXTRA) {
        close(fd);
        return;
    }
    lws_sock_file_fd_type descriptor = {.sockfd = fd};
    struct lws *wsi = lws_adopt_descriptor_vhost(service->server, LWS_ADOPT_HTTP | LWS_ADOPT_SOCKET, descriptor, NULL, NULL);
    if (!wsi)
        return; /* libwebsockets closed fd */
    struct ws_conn *conn = conn_new(service, CONN_HTTP);
    conn->wsi = wsi;
    conn->listener = listener;
    lws_set_opaque_user_data(wsi, conn);
    sweep_start(service);
}

static void on_acceptable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    struct ws_listener *listener = poll->data;
    for (int i = 0; i < 64; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            accept_one(listener, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            log_debug("accept: %s, waiting a second", strerror(errno));
            uv_poll_stop(&listener->poll);
            listener->polling = false;
            sweep_start(listener->service);
        }
        if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

static int bind_socket(const char *address, uint16_t port, uint16_t *ret_port, struct err *e)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    bool is_four = inet_pton(AF_INET, address, &four.sin_addr) == 1;
    if (!is_four && inet_pton(AF_INET6, address, &six.sin6_addr) != 1)
        return err_set(e, ERR_INVALID, "'%s' is not a numeric address to listen on", address);
    auto_close fd = socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_sys(e, errno, "a socket for '%s'", address);
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!is_four)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    const struct sockaddr *to = is_four ? (const struct sockaddr *)&four : (const struct sockaddr *)&six;
    if (bind(fd, to, is_four ? sizeof four : sizeof six) || listen(fd, 512))
        return err_sys_code(e, ERR_ENVIRONMENT, errno, "listen on %s port %u", address, port);
    socklen_t len = is_four ? sizeof four : sizeof six;
    if (getsockname(fd, is_four ? (struct sockaddr *)&four : (struct sockaddr *)&six, &len))
        return err_sys(e, errno, "getsockname");
    *ret_port = ntohs(is_four ? four.sin_port : six.sin6_port);
    return STEAL_FD(fd);
}

int ws_listen(struct ws_service *service, const char *address, uint16_t port, ws_on_request on_request, void *context,
              uint16_t *ret_port, struct err *e)
{
    uint16_t bound;
    int fd = bind_socket(address, port, &bound, e);
    if (fd < 0)
        return -1;
    struct ws_listener *listener = xcalloc(1, sizeof *listener);
    *listener = (struct ws_listener){.service = service, .fd = fd, .on_request = on_request, .context = context};
    int code = uv_poll_init(service->loop, &listener->poll, fd);
    if (code) {
        close(fd);
        free(listener);
        return err_sys(e, -code, "watch a listening socket");
    }
    listener->poll.data = listener;
    uv_poll_start(&listener->poll, UV_READABLE, on_acceptable);
    listener->polling = true;
    list_add_last(&service->listeners, &listener->all);
    *ret_port = bound;
    return 0;
}

/* ---- connecting ---- */

static int make_client_vhost(struct ws_service *service, struct err *e)
{
    if (service->client)
        return 0;
    struct lws_context_creation_info info = {.port = CONTEXT_PORT_NO_LISTEN, .protocols = protocols, .vhost_name = "client"};
    info.retry_and_idle_policy = &no_validity_checks;
    info.options = service->tls ? LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT : 0;
    service->client = lws_create_vhost(service->context, &info);
    if (!service->client)
        return err_set(e, ERR_SYSTEM, "libwebsockets cannot prepare client connections");
    return 0;
}

struct ws_conn *ws_connect(struct ws_service *service, const struct ws_target *target, const struct ws_events *events,
                           void *owner, struct err *e)
{
    if (make_client_vhost(service, e))
        return NULL;
    struct ws_conn *conn = conn_new(service, CONN_CONNECTING);
    conn->token = target->token ? xstrdup(target->token) : NULL;
    auto_free char *host = strchr(target->host, ':') ? xasprintf("[%s]:%u", target->host, target->port)
                                                     : xasprintf("%s:%u", target->host, target->port);
    struct lws_client_connect_info info = {
        .context = service->context,
        .vhost = service->client,
        .address = target->address,
        .port = target->port,
        .path = target->path,
        .host = host,
        .local_protocol_name = "iii",
        .alpn = "http/1.1",
        .ssl_connection = target->tls ? LCCSCF_USE_SSL : 0,
        .opaque_user_data = conn,
        .pwsi = &conn->wsi,
        .retry_and_idle_policy = &no_validity_checks,
    };
    conn->in_connect = true;
    struct lws *wsi = lws_client_connect_via_info(&info);
    conn->in_connect = false;
    if (!wsi || conn->state == CONN_DEAD) {
        err_set(e, ERR_ENVIRONMENT, "connect to %s: %s", host, conn->failure[0] ? conn->failure : "it failed at once");
        if (!wsi)
            conn_free(conn);
        return NULL;
    }
    conn->events = events;
    conn->owner = owner;
    sweep_start(service);
    return conn;
}

static int add_token(struct ws_conn *conn, uint8_t **place, size_t len)
{
    if (!conn->token)
        return 0;
    auto_free char *value = xasprintf("Bearer %s", conn->token);
    return lws_add_http_header_by_token(conn->wsi, WSI_TOKEN_HTTP_AUTHORIZATION, (unsigned char *)value, (int)strlen(value),
                                        place, *place + len);
}

static void on_connect_error(struct ws_conn *conn, const char *text, size_t len)
{
    conn->http_status = lws_http_client_http_response(conn->wsi);
    if (conn->http_status == 101)
        conn->http_status = 0;
    if (conn->http_status)
        snprintf(conn->failure, sizeof conn->failure, "the server answered HTTP %u", conn->http_status);
    else if (text)
        snprintf(conn->failure, sizeof conn->failure, "%.*s", (int)len, text);
    if (conn->in_connect)
        conn->state = CONN_DEAD;
    else
        conn_ended(conn);
}

/* ---- the callback ---- */

static void on_established(struct ws_conn *conn)
{
    set_socket_options(lws_get_socket_fd(conn->wsi));
    conn->state = CONN_OPEN;
    conn->since_ms = conn->received_ms = conn->progress_ms = clock_now_ms();
    if (conn->queue_first)
        lws_callback_on_writable(conn->wsi);
    if (conn->events && conn->events->on_open)
        conn->events->on_open(conn->owner);
}

static int on_lws(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    (void)user;
    struct ws_conn *conn = wsi ? lws_get_opaque_user_data(wsi) : NULL;
    switch ((int)reason) {
    case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE:
        return decide(conn, true, in);
    case LWS_CALLBACK_HTTP:
        return decide(conn, false, NULL) < 0 ? -1 : 0;
    default:
        break;
    }
    if (!conn)
        return 0;
    switch ((int)reason) {
    case LWS_CALLBACK_ESTABLISHED:
    case LWS_CALLBACK_CLIENT_ESTABLISHED:
        if (conn->state == CONN_DEAD)
            return -1;
        on_established(conn);
        return conn->state == CONN_DEAD ? -1 : 0;
    case LWS_CALLBACK_RECEIVE:
    case LWS_CALLBACK_CLIENT_RECEIVE:
        return on_receive(conn, in, len);
    case LWS_CALLBACK_RECEIVE_PONG:
    case LWS_CALLBACK_CLIENT_RECEIVE_PONG:
        conn->received_ms = clock_now_ms();
        return 0;
    case LWS_CALLBACK_SERVER_WRITEABLE:
    case LWS_CALLBACK_CLIENT_WRITEABLE:
        return on_writable(conn);
    case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE:
        on_peer_close(conn, in, len);
        return conn->close_sent ? -1 : 0; /* -1: both frames were there, nothing is left to say */
    case LWS_CALLBACK_CLIENT_APPEND_HANDSHAKE_HEADER:
        return add_token(conn, in, len);
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
        on_connect_error(conn, in, in ? len : 0);
        return 0;
    case LWS_CALLBACK_CLOSED:
    case LWS_CALLBACK_CLIENT_CLOSED:
        conn_ended(conn);
        return 0;
    case LWS_CALLBACK_WSI_DESTROY:
        conn->wsi = NULL;
        if (conn->in_connect) { /* ws_connect frees it */
            conn->state = CONN_DEAD;
            return 0;
        }
        conn_ended(conn);
        conn_free(conn);
        return 0;
    default:
        return 0;
    }
}

/* ---- the timer ---- */

static void conn_fail(struct ws_conn *conn, const char *why)
{
    const struct ws_events *events = conn->events;
    void *owner = conn->owner;
    ws_kill(conn);
    struct ws_end end = {.reason = why};
    if (events)
        events->on_close(owner, &end);
}

static void sweep_conn(struct ws_conn *conn, uint64_t now)
{
    const struct ws_events *events = conn->events;
    switch (conn->state) {
    case CONN_HTTP:
    case CONN_CONNECTING:
        if (now - conn->since_ms >= HANDSHAKE_MS)
            conn_fail(conn, "the handshake took over 10 s");
        return;
    case CONN_CLOSING:
        if (now - conn->since_ms >= CLOSING_MS && !(conn->patient && conn->queued))
            ws_kill(conn);
        return;
    case CONN_OPEN:
        break;
    case CONN_DEAD:
    case CONN_STATE_COUNT:
        return;
    }
    if (!events)
        return;
    if (events->stall_ms && conn->queued && now - conn->progress_ms >= events->stall_ms) {
        conn_fail(conn, "it read nothing for too long");
        return;
    }
    uint64_t silent = now - conn->received_ms;
    if (conn->paused)
        return;
    if (events->dead_ms && silent >= events->dead_ms) {
        conn_fail(conn, "it was silent for too long");
        return;
    }
    if (events->ping_ms && silent >= events->ping_ms && now - conn->since_ms >= events->ping_ms) {
        conn->ping_due = true;
        conn->since_ms = now; /* of the last ping, while open */
        lws_callback_on_writable(conn->wsi);
    }
}

static void on_sweep(uv_timer_t *timer)
{
    struct ws_service *service = timer->data;
    uint64_t now = clock_now_ms();
    for (struct list *item = service->listeners.next; item != &service->listeners; item = item->next) {
        struct ws_listener *listener = CONTAINER_OF(item, struct ws_listener, all);
        if (!listener->polling)
            listener->polling = uv_poll_start(&listener->poll, UV_READABLE, on_acceptable) == 0;
    }
    /* An event may end other connections, but libwebsockets frees none before its next turn of the loop. */
    for (struct list *item = service->conns.next, *next; item != &service->conns; item = next) {
        next = item->next;
        sweep_conn(CONTAINER_OF(item, struct ws_conn, all), now);
    }
    if (list_is_empty(&service->conns)) {
        uv_timer_stop(timer);
        service->sweeping = false;
    }
}

static void sweep_start(struct ws_service *service)
{
    if (service->sweeping || service->stopping)
        return;
    service->sweeping = true;
    uv_timer_start(&service->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
}

/* ---- the service ---- */

struct ws_service *ws_service_new(uv_loop_t *loop, bool tls, struct err *e)
{
    lws_set_log_level(LLL_ERR | LLL_WARN, on_lws_log);
    struct ws_service *service = xcalloc(1, sizeof *service);
    service->loop = loop;
    service->tls = tls;
    list_init(&service->conns);
    list_init(&service->listeners);
    void *loops[] = {loop};
    struct lws_context_creation_info info = {.port = CONTEXT_PORT_NO_LISTEN, .protocols = protocols, .foreign_loops = loops};
    info.options = LWS_SERVER_OPTION_LIBUV | LWS_SERVER_OPTION_EXPLICIT_VHOSTS | (tls ? LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT : 0);
    info.pt_serv_buf_size = READ_BUFFER;
    info.max_http_header_data = ENGINE_HEADERS_MAX;
    info.timeout_secs = HANDSHAKE_MS / 1000;
    info.retry_and_idle_policy = &no_validity_checks;
    service->context = lws_create_context(&info);
    if (!service->context) {
        free(service);
        err_set(e, ERR_ENVIRONMENT, "libwebsockets does not start on libuv (is libwebsockets-evlib-uv installed?)");
        return NULL;
    }
    struct lws_context_creation_info vhost = {
        .port = CONTEXT_PORT_NO_LISTEN_SERVER, .protocols = protocols, .vhost_name = "server"};
    vhost.retry_and_idle_policy = &no_validity_checks;
    vhost.keepalive_timeout = HANDSHAKE_MS / 1000;
    service->server = lws_create_vhost(service->context, &vhost);
    uv_timer_init(loop, &service->sweep);
    service->sweep.data = service;
    if (!service->server) {
        ws_service_free(service);
        err_set(e, ERR_ENVIRONMENT, "libwebsockets cannot serve");
        return NULL;
    }
    return service;
}

static void on_service_closed(uv_handle_t *handle)
{
    struct ws_service *service = handle->data;
    service->context = NULL;
    if (!service->conns_len)
        free(service);
}

/* libwebsockets needs some turns of a loop that is not its own to close its handles, and says nothing when it has: the second
 * call of lws_context_destroy then frees it. (1 ms: a timer of 0 started by a timer runs in the same turn.) */
static void on_destroy_turn(uv_timer_t *timer)
{
    struct ws_service *service = timer->data;
    if (service->turns_left--) {
        uv_timer_start(&service->sweep, on_destroy_turn, 1, 0);
        return;
    }
    lws_context_destroy(service->context);
    uv_close((uv_handle_t *)&service->sweep, on_service_closed);
}

static void on_stop_timer(uv_timer_t *timer)
{
    struct ws_service *service = timer->data;
    for (struct list *item = service->conns.next; item != &service->conns; item = item->next)
        CONTAINER_OF(item, struct ws_conn, all)->state = CONN_DEAD;
    service->destroying = true;
    service->turns_left = DESTROY_TURNS;
    lws_context_destroy(service->context);
    uv_timer_start(&service->sweep, on_destroy_turn, 1, 0);
}

/* The last connection is gone: the rest is done outside of libwebsockets' callbacks. */
static void service_freed_conn(struct ws_service *service)
{
    if (!service->stopping || service->conns_len)
        return;
    if (!service->context)
        free(service);
    else if (!service->destroying)
        uv_timer_start(&service->sweep, on_stop_timer, 0, 0);
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct ws_listener *listener = handle->data;
    close(listener->fd);
    free(listener);
}

void ws_service_free(struct ws_service *service)
{
    if (!service)
        return;
    service->stopping = true;
    while (!list_is_empty(&service->listeners)) {
        struct ws_listener *listener = CONTAINER_OF(service->listeners.next, struct ws_listener, all);
        list_remove(&listener->all);
        uv_close((uv_handle_t *)&listener->poll, on_listener_closed);
    }
    for (struct list *item = service->conns.next; item != &service->conns; item = item->next) {
        struct ws_conn *conn = CONTAINER_OF(item, struct ws_conn, all);
        conn->listener = NULL;
        if (conn->state != CONN_CLOSING)
            ws_kill(conn);
    }
    uv_timer_start(&service->sweep, on_stop_timer, list_is_empty(&service->conns) ? 0 : STOP_MS, 0);
}

size_t ws_service_held(const struct ws_service *service)
{
    return service->held;
}
