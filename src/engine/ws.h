/* SPDX-License-Identifier: Apache-2.0 */
/* WebSocket connections on a libuv loop: the only part that knows libwebsockets.
 *
 * A service owns any number of listeners and connections, accepted or made. A connection belongs to an owner (one pointer and
 * a table of events). It has a queue of unsent messages, which is bounded: ws_send fails when it is full, and the owner
 * decides what that means. Reading can be paused, so that back-pressure reaches the peer by TCP. Pings, silence, a send
 * queue that makes no progress and half-open handshakes are watched by one timer per service.
 *
 * After on_close, or after the owner called ws_close or ws_kill, the connection no longer exists for its owner. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define WS_HEADROOM 16 /* free bytes in front of a message given to ws_send */

enum ws_kind { WS_TEXT, WS_BINARY };
enum ws_close_code {
    WS_CLOSE_NORMAL = 1000,
    WS_CLOSE_AWAY = 1001,
    WS_CLOSE_POLICY = 1008,
    WS_CLOSE_TOO_BIG = 1009,
    WS_CLOSE_LOST = 1011
};

struct ws_service;
struct ws_conn;

struct ws_end {
    unsigned code;      /* of the peer's close frame, 1005 when it gave none; 0: the connection was lost without one */
    unsigned http;      /* status of a refused upgrade, 0 otherwise */
    const char *reason; /* prose, never NULL */
};

struct ws_events {
    void (*on_open)(void *owner);                                                         /* may be NULL */
    void (*on_message)(void *owner, enum ws_kind kind, const uint8_t *bytes, size_t len); /* whole messages; NULL: pieces */
    void (*on_piece)(void *owner, enum ws_kind kind, const uint8_t *bytes, size_t len, bool first, bool last);
    void (*on_drain)(void *owner); /* unsent bytes fell under drain_bytes; may be NULL */
    void (*on_close)(void *owner, const struct ws_end *end);
    size_t message_max; /* for on_message: a longer one ends the connection with 1009 */
    size_t queue_max;   /* unsent bytes */
    size_t drain_bytes;
    unsigned ping_ms;  /* a ping after this much silence, 0: none */
    unsigned dead_ms;  /* lost after this much silence, 0: never */
    unsigned stall_ms; /* lost when unsent bytes make no progress for so long, 0: never */
};

/* tls: whether wss targets will be connected to. */
struct ws_service *ws_service_new(uv_loop_t *loop, bool tls, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Drops every connection without events, but for those that ws_close is closing, which get up to a second. Frees itself once
 * the loop has run its close callbacks. */
void ws_service_free(struct ws_service *service);
size_t ws_service_held(const struct ws_service *service) __attribute__((nonnull)); /* unsent and half-received bytes */

/* What an accepted connection asked for; valid during the callback. */
struct ws_request {
    bool upgrade;
    const char *path, *host, *origin, *authorization; /* NULL: no such header */
    const char *peer;                                 /* numeric address */
    const void *handle;
};
/* A query parameter, percent-decoded, into text; false when it is absent or too long. */
bool ws_request_query(const struct ws_request *request, const char *name, char *text, size_t size) __attribute__((nonnull));

struct ws_answer {
    unsigned status; /* 101 accepts an upgrade; owner and events are then set */
    const struct ws_events *events;
    void *owner;
    const char *type; /* of the body, which the callback fills */
    struct buf body;
};

void ws_answer_text(struct ws_answer *answer, unsigned status, const char *text) __attribute__((nonnull));

/* Decides on one request. For an upgrade it accepts, it puts `conn` into its owner. */
typedef void (*ws_on_request)(void *context, const struct ws_request *request, struct ws_conn *conn, struct ws_answer *answer);

/* Binds and listens; port 0 takes a free one, *ret_port says which. ERR_ENVIRONMENT when the address is in use. */
int ws_listen(struct ws_service *service, const char *address, uint16_t port, ws_on_request on_request, void *context,
              uint16_t *ret_port, struct err *e) __attribute__((nonnull(1, 2, 4, 6, 7), warn_unused_result));

struct ws_target {
    bool tls;
    const char *host;    /* as the user gave it: Host header, TLS name */
    const char *address; /* numeric */
    uint16_t port;
    const char *path;
    const char *token; /* NULL: no Authorization header */
};
struct ws_conn *ws_connect(struct ws_service *service, const struct ws_target *target, const struct ws_events *events,
                           void *owner, struct err *e) __attribute__((nonnull, warn_unused_result));

/* Queues one text message: `message` starts with WS_HEADROOM free bytes; its memory is taken over. ERR_LIMIT when the queue
 * is full (nothing is queued then). */
int ws_send(struct ws_conn *conn, struct buf *message, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Queues a copy of a piece of a message. Never refused: the caller keeps within its own budget. */
int ws_send_piece(struct ws_conn *conn, enum ws_kind kind, const void *bytes, size_t len, bool first, bool last, struct err *e)
    __attribute__((nonnull(1, 7), warn_unused_result));
size_t ws_queued(const struct ws_conn *conn) __attribute__((nonnull));
void ws_pause(struct ws_conn *conn) __attribute__((nonnull));
void ws_resume(struct ws_conn *conn) __attribute__((nonnull));
/* Sends what is queued, then a close frame (an empty one for code 0); no more events. */
void ws_close(struct ws_conn *conn, unsigned code, const char *reason) __attribute__((nonnull));
/* Drops the connection at once; no more events. */
void ws_kill(struct ws_conn *conn) __attribute__((nonnull));
