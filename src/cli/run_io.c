/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/run_io.h"

#include "base/check.h"
#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

/* A pipe that is ready for writing takes PIPE_BUF bytes without blocking. */
#define WRITE_PIECE PIPE_BUF
#define READ_PIECE (64 * KIB)

static void watch_init(struct fd_watch *watch, uv_loop_t *loop, int fd, uint32_t events)
{
    *watch = (struct fd_watch){.epoll_fd = epoll_create1(EPOLL_CLOEXEC), .fd = fd};
    CHECK(watch->epoll_fd >= 0);
    struct epoll_event event = {.events = events};
    if (epoll_ctl(watch->epoll_fd, EPOLL_CTL_ADD, fd, &event)) {
        close(watch->epoll_fd); /* EPERM: a regular file */
        watch->epoll_fd = -1;
        return;
    }
    CHECK(uv_poll_init(loop, &watch->poll, watch->epoll_fd) == 0);
    watch->open = true;
}

static void watch_start(struct fd_watch *watch, uv_poll_cb callback, void *data)
{
    if (!watch->open)
        return;
    watch->poll.data = data;
    uv_poll_start(&watch->poll, UV_READABLE, callback);
}

static void watch_stop(struct fd_watch *watch)
{
    if (watch->open)
        uv_poll_stop(&watch->poll);
}

static void watch_close(struct fd_watch *watch)
{
    if (watch->open)
        uv_close((uv_handle_t *)&watch->poll, NULL);
    if (watch->epoll_fd >= 0)
        close(watch->epoll_fd);
    watch->open = false;
    watch->epoll_fd = -1;
}

static bool is_ready(const struct fd_watch *watch, short events)
{
    if (watch->epoll_fd < 0)
        return true;
    struct pollfd ready = {.fd = watch->fd, .events = events};
    return poll(&ready, 1, 0) > 0;
}

/* --- output --- */

void output_pump_init(struct output_pump *pump, uv_loop_t *loop, int fd, enum wire_channel channel)
{
    *pump = (struct output_pump){.channel = channel, .pending = BUF_INIT(2 * WIRE_WINDOW)};
    watch_init(&pump->watch, loop, fd, EPOLLOUT);
}

static void took(struct output_pump *pump, size_t len)
{
    buf_consume(&pump->pending, len);
    if (pump->link)
        link_call_taken(pump->link, pump->call, pump->channel, len);
}

static void fail(struct output_pump *pump, int failure)
{
    pump->failed = true;
    err_sys(&pump->failure, failure, "write standard %s", pump->channel == WIRE_CHANNEL_ERR ? "error" : "output");
    took(pump, pump->pending.len);
    if (pump->on_failed)
        pump->on_failed(pump->context);
}

static void on_writable(uv_poll_t *poll, int status, int events);

/* Writes what the stream takes without blocking; watches it when something is left. */
static void flush(struct output_pump *pump)
{
    while (pump->pending.len && !pump->failed) {
        if (!is_ready(&pump->watch, POLLOUT)) {
            watch_start(&pump->watch, on_writable, pump);
            return;
        }
        size_t piece = pump->watch.epoll_fd >= 0 && pump->pending.len > WRITE_PIECE ? WRITE_PIECE : pump->pending.len;
        ssize_t n = fd_write(pump->watch.fd, buf_data(&pump->pending), piece);
        if (n >= 0) {
            took(pump, (size_t)n);
        } else if (errno == EAGAIN) { /* somebody made it non-blocking */
            watch_start(&pump->watch, on_writable, pump);
            return;
        } else {
            fail(pump, errno);
        }
    }
    watch_stop(&pump->watch);
    if (pump->on_idle)
        pump->on_idle(pump->context);
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    flush(poll->data);
}

void output_pump_add(struct output_pump *pump, const uint8_t *bytes, size_t len)
{
    struct err e = ERR_INIT;
    if (pump->failed) {
        if (pump->link)
            link_call_taken(pump->link, pump->call, pump->channel, len);
        return;
    }
    CHECK(buf_append(&pump->pending, bytes, len, &e) == 0); /* the window bounds what can be pending */
    flush(pump);
}

bool output_pump_is_idle(const struct output_pump *pump)
{
    return pump->failed || !pump->pending.len;
}

void output_pump_close(struct output_pump *pump)
{
    watch_close(&pump->watch);
    buf_done(&pump->pending);
}

/* --- input --- */

static void on_readable(uv_poll_t *poll, int status, int events);

void input_pump_init(struct input_pump *pump, uv_loop_t *loop, int fd)
{
    *pump = (struct input_pump){0};
    watch_init(&pump->watch, loop, fd, EPOLLIN);
}

static void end_input(struct input_pump *pump)
{
    pump->ended = true;
    watch_stop(&pump->watch);
    link_call_end_input(pump->link, pump->call);
}

/* Reads while there is something to read and room in the window, so that no byte is ever held here. */
void input_pump_continue(struct input_pump *pump)
{
    uint8_t bytes[READ_PIECE];
    while (!pump->ended && pump->link) {
        size_t room = link_call_window(pump->link, pump->call);
        if (!room) {
            watch_stop(&pump->watch);
            link_call_write(pump->link, pump->call, "", 1); /* asks for on_writable: nothing is accepted now */
            return;
        }
        if (!is_ready(&pump->watch, POLLIN)) {
            watch_start(&pump->watch, on_readable, pump);
            return;
        }
        ssize_t n = fd_read(pump->watch.fd, bytes, room < sizeof bytes ? room : sizeof bytes);
        if (n < 0 && errno == EAGAIN) {
            watch_start(&pump->watch, on_readable, pump);
            return;
        }
        if (n <= 0) { /* the end; EIO: the terminal is gone or not ours */
            end_input(pump);
            return;
        }
        if (link_call_write(pump->link, pump->call, bytes, (size_t)n) < (size_t)n) {
            input_pump_stop(pump); /* the link broke: the call's end follows */
            return;
        }
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    input_pump_continue(poll->data);
}

void input_pump_start(struct input_pump *pump, struct link *link, uint32_t call)
{
    pump->link = link;
    pump->call = call;
    input_pump_continue(pump);
}

void input_pump_stop(struct input_pump *pump)
{
    pump->link = NULL;
    watch_stop(&pump->watch);
}

void input_pump_close(struct input_pump *pump)
{
    watch_close(&pump->watch);
}
