/* SPDX-License-Identifier: Apache-2.0 */
/* The byte ways between this program's standard streams and a call in the guest, each bounded by the call's window.
 *
 * The streams are inherited and shared with whoever started us, so they are never made non-blocking: readiness comes from an
 * epoll descriptor that libuv watches, and each write is small enough not to block once the stream is ready. Regular files
 * cannot be watched and are always ready. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "sandbox/link.h"

#include <stdbool.h>
#include <uv.h>

/* Readiness of a borrowed descriptor. */
struct fd_watch {
    uv_poll_t poll;
    int epoll_fd; /* -1: the descriptor is always ready */
    int fd;
    bool open;
};

/* Guest output to one of our streams. */
struct output_pump {
    struct fd_watch watch;
    struct link *link; /* NULL once the call has ended: what is pending is still written */
    uint32_t call;
    enum wire_channel channel;
    struct buf pending;
    bool failed; /* the reader is gone or the disk full: the rest is discarded */
    struct err failure;
    void *context;
    void (*on_idle)(void *context);   /* everything pending was written or the pump failed */
    void (*on_failed)(void *context); /* failure is set; EPIPE included */
};

void output_pump_init(struct output_pump *pump, uv_loop_t *loop, int fd, enum wire_channel channel) __attribute__((nonnull));
void output_pump_add(struct output_pump *pump, const uint8_t *bytes, size_t len) __attribute__((nonnull(1)));
bool output_pump_is_idle(const struct output_pump *pump) __attribute__((nonnull));
void output_pump_close(struct output_pump *pump) __attribute__((nonnull));

/* Our standard input to the guest. */
struct input_pump {
    struct fd_watch watch;
    struct link *link;
    uint32_t call;
    bool ended;
};

void input_pump_init(struct input_pump *pump, uv_loop_t *loop, int fd) __attribute__((nonnull));
void input_pump_start(struct input_pump *pump, struct link *link, uint32_t call) __attribute__((nonnull));
void input_pump_continue(struct input_pump *pump) __attribute__((nonnull)); /* the window opened */
void input_pump_stop(struct input_pump *pump) __attribute__((nonnull));     /* the call has ended */
void input_pump_close(struct input_pump *pump) __attribute__((nonnull));
