/* SPDX-License-Identifier: Apache-2.0 */
/* Frames from the port are decoded and given to their stream: the first REQUEST frame opens it, the last piece starts a job,
 * everything else goes to the running job. Frames of a stream that is not open are ignored: they crossed its answer on the
 * way. What goes out is appended to one bounded queue; above AGENT_OUT_HIGH no pipe of a program is read, above
 * AGENT_OUT_STOP the port is not read either, so a host that stops reading costs a fixed amount of memory.
 *
 * A port whose host end is closed reads as an end and polls as hung up for ever: it is then asked again by a timer with
 * growing pauses, because the host end may come back (a restored machine). A socket that ends is gone, and so is the link.
 *
 * SHUTDOWN: TERM to every process, at most 200 ms, kill, sync, file systems read-only, the reply, and the end of this process,
 * at which PID 1 turns the machine off. */
#include "agent/link.h"

#include "agent/job.h"
#include "agent/port.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"

#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>

static void fail(struct link *link, const struct err *e)
{
    if (!err_is_set(&link->failure))
        link->failure = *e;
}

void link_break(struct link *link, const struct err *e)
{
    fail(link, e);
}

void link_send(struct link *link, const struct wire_frame *frame)
{
    struct err e = ERR_INIT;
    if (wire_frame_append(&link->out, frame, &e))
        fail(link, &e);
}

void link_send_u32(struct link *link, enum wire_kind kind, uint32_t stream, uint8_t channel, uint32_t value)
{
    struct err e = ERR_INIT;
    if (wire_u32_append(&link->out, kind, stream, channel, value, &e))
        fail(link, &e);
}

void link_send_reply(struct link *link, uint32_t stream, const struct buf *body)
{
    struct err e = ERR_INIT;
    if (wire_pieces_append(&link->out, WIRE_REPLY, stream, buf_data(body), body->len, &e))
        fail(link, &e);
}

void link_send_failure(struct link *link, uint32_t stream, unsigned code, int sys_errno, const char *text)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", text);
    struct wire_failure failure = {.code = code, .sys_errno = (uint64_t)(sys_errno > 0 ? sys_errno : 0), .message = message};
    auto_buf body = BUF_INIT(WIRE_BODY_MAX);
    struct err e = ERR_INIT;
    if (wire_failure_encode(&body, &failure, &e)) {
        fail(link, &e);
        return;
    }
    struct wire_frame frame = {.stream = stream, .kind = WIRE_ERROR, .body = buf_data(&body), .body_bytes = (uint32_t)body.len};
    link_send(link, &frame);
}

static struct stream *stream_find(struct link *link, uint32_t id)
{
    for (size_t i = 0; i < sizeof link->streams / sizeof *link->streams; i++)
        if (link->streams[i].state != STREAM_FREE && link->streams[i].id == id)
            return &link->streams[i];
    return NULL;
}

static struct stream *stream_open(struct link *link, uint32_t id)
{
    for (size_t i = 0; i < sizeof link->streams / sizeof *link->streams; i++)
        if (link->streams[i].state == STREAM_FREE) {
            link->streams[i] = (struct stream){.state = STREAM_RECEIVING, .id = id};
            return &link->streams[i];
        }
    return NULL;
}

static size_t streams_running(const struct link *link)
{
    size_t count = 0;
    for (size_t i = 0; i < sizeof link->streams / sizeof *link->streams; i++)
        count += link->streams[i].state == STREAM_RUNNING;
    return count;
}

static void stream_close(struct stream *stream)
{
    wire_assembly_done(&stream->assembly);
    job_free(stream->job);
    *stream = (struct stream){.state = STREAM_FREE};
}

void link_stream_end(struct link *link, uint32_t id)
{
    struct stream *stream = stream_find(link, id);
    if (stream)
        stream_close(stream);
}

static void on_drain(void *owner, uint32_t events)
{
    (void)events;
    struct drain *drain = owner;
    static uint8_t bytes[64 * KIB];
    ssize_t n = fd_read(drain->source.fd, bytes, sizeof bytes);
    if (n == 0 || (n < 0 && errno != EAGAIN)) /* the last holder is gone */
        loop_close(&drain->link->loop, &drain->source);
}

void link_drain(struct link *link, int fd)
{
    struct drain *drain = NULL;
    for (size_t i = 0; i < AGENT_DRAINS_MAX && !drain; i++)
        if (link->drains[i].source.fd < 0)
            drain = &link->drains[i];
    if (!drain) { /* its orphan gets SIGPIPE */
        drain = &link->drains[link->drain_next];
        link->drain_next = (link->drain_next + 1) % AGENT_DRAINS_MAX;
        loop_close(&link->loop, &drain->source);
    }
    *drain = (struct drain){.link = link, .source = {.fd = fd, .on_ready = on_drain, .owner = drain}};
    loop_want(&link->loop, &drain->source, EPOLLIN);
}

static void port_update(struct link *link)
{
    uint32_t events = link->out.len ? EPOLLOUT : 0;
    if (link->out.len < AGENT_OUT_STOP)
        events |= EPOLLIN;
    loop_want(&link->loop, &link->port, link->port_retry.fd >= 0 ? 0 : events);
}

static void remount_read_only(struct link *link)
{
    char path[64];
    if (link->options.identity)
        identity_release_files(link->options.identity);
    sync();
    mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    if (link->options.upper_dirfd >= 0) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", link->options.upper_dirfd);
        mount(NULL, path, NULL, MS_REMOUNT | MS_RDONLY, NULL);
    }
    sync();
}

static void stop_finish(struct link *link)
{
    loop_close(&link->loop, &link->stop_timer);
    loop_close(&link->loop, &link->stop_events);
    cgroups_kill_all(&link->groups);
    if (link->options.owns_machine) {
        kill(-1, SIGKILL); /* all but PID 1 and us */
        /* killed processes need a moment to let go of their files, else the remount is refused */
        cgroups_wait_empty(&link->groups, AGENT_STOP_GRACE_MS);
        remount_read_only(link);
    }
    auto_buf empty = BUF_INIT(0);
    link_send_reply(link, link->stopping_stream, &empty);
    link->finished = true;
}

static void on_stop_timer(void *owner, uint32_t events)
{
    (void)events;
    stop_finish(owner);
}

static void on_stop_events(void *owner, uint32_t events)
{
    (void)events;
    struct link *link = owner;
    char text[256];
    if (pread(link->stop_events.fd, text, sizeof text, 0) >= 0 && cgroups_are_empty(&link->groups)) /* reading rearms it */
        stop_finish(link);
}

static void stop_begin(struct link *link, uint32_t stream)
{
    struct err e = ERR_INIT;
    link->stopping_stream = stream;
    if (link->options.owns_machine)
        kill(-1, SIGTERM);
    for (size_t i = 0; i < sizeof link->streams / sizeof *link->streams; i++)
        if (link->streams[i].state == STREAM_RUNNING)
            job_signal(link->streams[i].job, SIGTERM);
    bool empty = link->options.owns_machine ? cgroups_are_empty(&link->groups) : streams_running(link) == 0;
    if (empty || loop_timer_open(&link->loop, &link->stop_timer, AGENT_STOP_GRACE_MS, &e)) {
        stop_finish(link);
        return;
    }
    link->stop_events.fd = cgroups_events_open(&link->groups);
    loop_want(&link->loop, &link->stop_events, EPOLLPRI);
}

static void serve_identity(struct link *link, uint32_t stream, const struct wire_identity *identity)
{
    struct err e = ERR_INIT;
    auto_buf empty = BUF_INIT(0);
    if (link->options.identity && identity_apply(link->options.identity, identity, &e))
        link_send_failure(link, stream, e.code == ERR_INVALID ? 1 : 300, e.sys_errno, e.text);
    else
        link_send_reply(link, stream, &empty);
}

/* The request is whole: answers it, or leaves its stream RUNNING with a job. */
static void serve(struct link *link, struct stream *stream, const struct wire_request *request)
{
    struct err e = ERR_INIT;
    switch (request->operation) {
    case WIRE_OP_IDENTITY:
        serve_identity(link, stream->id, &request->identity);
        break;
    case WIRE_OP_SHUTDOWN:
        stop_begin(link, stream->id);
        break;
    case WIRE_OP_EXEC:
        if (link->options.owns_machine)
            identity_set_clock(request->exec.realtime_ns);
        __attribute__((fallthrough));
    case WIRE_OP_TAR_IN:
    case WIRE_OP_TAR_OUT:
    case WIRE_OP_WRITE:
        if (streams_running(link) >= WIRE_STREAMS_MAX)
            link_send_failure(link, stream->id, 3, 0, "too many requests run in this machine");
        else if (job_start(link, stream->id, request, &stream->job, &e))
            link_send_failure(link, stream->id, 300, e.sys_errno, e.text);
        else
            stream->state = STREAM_RUNNING;
        break;
    case WIRE_OP_END:
        break;
    }
    if (stream->state != STREAM_RUNNING)
        stream_close(stream);
}

static int take_request(struct link *link, struct stream *stream, const struct wire_frame *frame, struct err *e)
{
    if (stream && stream->state == STREAM_RUNNING)
        return err_set(e, ERR_PROTOCOL, "a second request on stream %u", frame->stream);
    if (!stream)
        stream = stream_open(link, frame->stream);
    if (!stream)
        return err_set(e, ERR_PROTOCOL, "more than %u streams", WIRE_STREAMS_MAX + LINK_DOORSTEP);
    int complete = wire_assembly_add(&stream->assembly, frame, e);
    if (complete <= 0)
        return complete;
    struct wire_request request = {0};
    struct err refusal = ERR_INIT;
    if (link->stopping_stream)
        err_set(&refusal, ERR_STOPPED, "the machine is shutting down");
    else if (!wire_request_decode(buf_data(&stream->assembly.bytes), stream->assembly.bytes.len, &request, &refusal)) {
        wire_assembly_done(&stream->assembly);
        serve(link, stream, &request);
        wire_request_done(&request);
        return 0;
    }
    link_send_failure(link, frame->stream, refusal.code == ERR_STOPPED ? 4 : 1, 0, refusal.text);
    stream_close(stream);
    return 0;
}

static int take_frame(struct link *link, const struct wire_frame *frame, struct err *e)
{
    if (frame->kind == WIRE_PING) {
        struct wire_frame pong = {.kind = WIRE_PONG, .body = frame->body, .body_bytes = frame->body_bytes};
        link_send(link, &pong);
        return 0;
    }
    if (!frame->stream || frame->kind == WIRE_REPLY || frame->kind == WIRE_ERROR)
        return err_set(e, ERR_PROTOCOL, "%s frame from the host", wire_kind_name((enum wire_kind)frame->kind));
    struct stream *stream = stream_find(link, frame->stream);
    if (frame->kind == WIRE_REQUEST)
        return take_request(link, stream, frame, e);
    if (!stream)
        return 0;
    if (stream->state == STREAM_RECEIVING)
        return err_set(e, ERR_PROTOCOL, "%s frame inside the request of stream %u", wire_kind_name((enum wire_kind)frame->kind),
                       frame->stream);
    return job_take_frame(stream->job, frame, e);
}

static void on_port_retry(void *owner, uint32_t events)
{
    (void)events;
    struct link *link = owner;
    loop_close(&link->loop, &link->port_retry);
    port_update(link);
}

/* The host end is closed: a socket is gone, a virtio port may come back. */
static void port_hung_up(struct link *link)
{
    struct err e = ERR_INIT;
    int type;
    socklen_t len = sizeof type;
    if (getsockopt(link->port.fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0) {
        err_set(&e, ERR_INTERRUPTED, "the host closed the link");
        fail(link, &e);
        return;
    }
    link->retry_ms = link->retry_ms ? link->retry_ms * 2 : 5;
    if (link->retry_ms > 500)
        link->retry_ms = 500;
    if (loop_timer_open(&link->loop, &link->port_retry, link->retry_ms, &e))
        fail(link, &e);
    loop_want(&link->loop, &link->port, 0);
}

static void port_read(struct link *link)
{
    struct err e = ERR_INIT;
    uint8_t *room;
    size_t len;
    if (wire_decoder_room(&link->decoder, &room, &len, &e)) {
        fail(link, &e);
        return;
    }
    ssize_t n = fd_read(link->port.fd, room, len);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        port_hung_up(link);
        return;
    }
    link->retry_ms = 0;
    wire_decoder_fed(&link->decoder, (size_t)n);
    struct wire_frame frame;
    while (wire_decoder_next(&link->decoder, &frame, &e) == 1 && !link->finished)
        if (take_frame(link, &frame, &e))
            break;
    if (err_is_set(&e))
        fail(link, &e);
}

static void port_write(struct link *link)
{
    struct err e = ERR_INIT;
    while (link->out.len) {
        size_t len = link->out.len < WIRE_FRAME_MAX ? link->out.len : WIRE_FRAME_MAX;
        ssize_t n = fd_write(link->port.fd, buf_data(&link->out), len);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            err_sys(&e, errno, "write to the host");
            fail(link, &e);
            return;
        }
        buf_consume(&link->out, (size_t)n);
    }
}

static void on_port(void *owner, uint32_t events)
{
    struct link *link = owner;
    if (events & EPOLLOUT)
        port_write(link);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        port_read(link);
}

/* After every event: what was queued goes out at once if it can, and the pipes follow the state of the queue. */
static void settle(struct link *link)
{
    if (link->out.len && link->port_retry.fd < 0)
        port_write(link);
    bool congested = link->out.len >= (link->congested ? AGENT_OUT_HIGH / 2 : AGENT_OUT_HIGH);
    if (congested != link->congested) {
        link->congested = congested;
        for (size_t i = 0; i < sizeof link->streams / sizeof *link->streams; i++)
            if (link->streams[i].state == STREAM_RUNNING)
                job_refresh(link->streams[i].job);
    }
    port_update(link);
}

static int send_hello(struct link *link, struct err *e)
{
    struct utsname name;
    struct timespec since_boot;
    if (uname(&name) || clock_gettime(CLOCK_BOOTTIME, &since_boot))
        return err_sys(e, errno, "ask for the kernel's name");
    struct wire_hello hello = {.version = WIRE_PROTOCOL_VERSION,
                               .kernel_release = name.release,
                               .boot_us = (uint64_t)since_boot.tv_sec * 1000000u + (uint64_t)since_boot.tv_nsec / 1000u};
    auto_buf body = BUF_INIT(WIRE_BODY_MAX);
    if (wire_hello_encode(&body, &hello, e))
        return -1;
    struct wire_frame frame = {.kind = WIRE_HELLO, .body = buf_data(&body), .body_bytes = (uint32_t)body.len};
    link_send(link, &frame);
    return 0;
}

static int link_init(struct link *link, const struct link_options *options, struct err *e)
{
    link->options = *options;
    link->loop.epoll_fd = -1;
    link->out = BUF_INIT(AGENT_OUT_MAX);
    link->port = (struct source){.fd = options->port_fd, .on_ready = on_port, .owner = link};
    link->port_retry = (struct source){.fd = -1, .on_ready = on_port_retry, .owner = link};
    link->stop_timer = (struct source){.fd = -1, .on_ready = on_stop_timer, .owner = link};
    link->stop_events = (struct source){.fd = -1, .on_ready = on_stop_events, .owner = link};
    for (size_t i = 0; i < AGENT_DRAINS_MAX; i++)
        link->drains[i].source.fd = -1;
    link->groups.exec_dirfd = -1;
    wire_decoder_init(&link->decoder);
    signal(SIGPIPE, SIG_IGN);
    if (loop_init(&link->loop, e) || fd_set_nonblocking(options->port_fd, true, e))
        return -1;
    if (cgroups_init(&link->groups, options->cgroup_root, e))
        return -1;
    return send_hello(link, e);
}

/* Says why the machine ends, unless the host knows: it closed the link. */
static void send_panic(struct link *link, const struct err *why)
{
    struct err e = ERR_INIT;
    struct wire_frame frame = {.kind = WIRE_PANIC, .body = (const uint8_t *)why->text, .body_bytes = (uint32_t)strlen(why->text)};
    if (why->code != ERR_INTERRUPTED && wire_frame_append(&link->out, &frame, &e) == 0)
        port_write_last(link->port.fd, buf_data(&link->out), link->out.len);
}

static void link_done(struct link *link)
{
    for (size_t i = 0; i < sizeof link->streams / sizeof *link->streams; i++)
        stream_close(&link->streams[i]);
    for (size_t i = 0; i < AGENT_DRAINS_MAX; i++)
        loop_close(&link->loop, &link->drains[i].source);
    loop_close(&link->loop, &link->port_retry);
    loop_close(&link->loop, &link->stop_timer);
    loop_close(&link->loop, &link->stop_events);
    if (link->finished && link->out.len)
        port_write_last(link->port.fd, buf_data(&link->out), link->out.len);
    loop_close(&link->loop, &link->port);
    loop_done(&link->loop);
    cgroups_done(&link->groups);
    wire_decoder_done(&link->decoder);
    buf_done(&link->out);
}

int link_run(const struct link_options *options, struct err *e)
{
    struct link *link = xcalloc(1, sizeof *link); /* large: not on the stack */
    int result = link_init(link, options, e);
    if (!result)
        settle(link);
    while (!result && !link->finished && !err_is_set(&link->failure)) {
        result = loop_step(&link->loop, e);
        if (!result && !link->finished)
            settle(link);
    }
    if (!result && err_is_set(&link->failure)) {
        *e = link->failure;
        result = -1;
    }
    if (result)
        send_panic(link, e);
    link_done(link);
    free(link);
    return result;
}
