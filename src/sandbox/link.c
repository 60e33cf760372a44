/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/link.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "wire/credit.h"

#include <string.h>

struct call {
    uint32_t stream; /* 0: free slot */
    struct link_call_events events;
    struct credit_sender to_guest;
    struct credit_receiver from_guest[WIRE_CHANNEL_COUNT];
    bool channel_ended[WIRE_CHANNEL_COUNT];
    bool input_ended, wants_room;
    struct buf reply; /* pieces so far */
};

struct link {
    uv_pipe_t pipe;
    uv_write_t write;
    uv_prepare_t flush; /* collects what one loop turn wrote into one write */
    struct link_events events;
    struct wire_decoder decoder;
    struct buf pending, writing; /* frames to send; the part that uv_write holds */
    bool write_runs, hello_seen, broken, closing;
    unsigned handles_open;
    struct err why, overflow;
    uint32_t last_stream;
    struct call calls[WIRE_STREAMS_MAX];
};

static struct call *call_of(struct link *link, uint32_t stream)
{
    for (size_t i = 0; stream && i < WIRE_STREAMS_MAX; i++)
        if (link->calls[i].stream == stream)
            return &link->calls[i];
    return NULL;
}

static void call_end(struct call *call, const uint8_t *reply, size_t len, const struct err *failure)
{
    struct link_call_events events = call->events;
    struct buf pieces = call->reply;
    *call = (struct call){0}; /* before the callback: it may open the next call */
    if (events.on_end)
        events.on_end(events.context, reply, len, failure);
    buf_done(&pieces);
}

static void end_all_calls(struct link *link, const struct err *why)
{
    for (size_t i = 0; i < WIRE_STREAMS_MAX; i++)
        if (link->calls[i].stream)
            call_end(&link->calls[i], NULL, 0, why);
}

/* The one place where a link becomes broken; tells the owner from the loop. */
static void break_link(struct link *link, const struct err *why, bool closed)
{
    if (link->broken || link->closing)
        return;
    link->broken = true;
    link->why = *why;
    uv_read_stop((uv_stream_t *)&link->pipe);
    end_all_calls(link, &link->why);
    if (!link->closing)
        link->events.on_broken(link->events.context, &link->why, closed);
}

/* --- sending --- */

static void start_write(struct link *link);

static void on_written(uv_write_t *request, int status)
{
    struct link *link = request->data;
    link->write_runs = false;
    buf_clear(&link->writing);
    if (link->closing)
        return;
    if (status < 0) {
        struct err e = ERR_INIT;
        err_set(&e, ERR_BOOT, "the machine's link is gone: %s", uv_strerror(status));
        break_link(link, &e, true);
        return;
    }
    start_write(link);
}

static void start_write(struct link *link)
{
    if (link->write_runs || link->broken || link->closing || !link->pending.len)
        return;
    struct buf swap = link->writing;
    link->writing = link->pending;
    link->pending = swap;
    uv_buf_t piece = uv_buf_init((char *)(uintptr_t)buf_data(&link->writing), (unsigned)link->writing.len);
    link->write.data = link;
    link->write_runs = true;
    int status = uv_write(&link->write, (uv_stream_t *)&link->pipe, &piece, 1, on_written);
    if (status < 0) {
        link->write_runs = false;
        buf_clear(&link->writing); /* reading will see the end of the link and break it */
    }
}

static void on_flush(uv_prepare_t *handle)
{
    struct link *link = handle->data;
    uv_prepare_stop(handle);
    if (err_is_set(&link->overflow))
        break_link(link, &link->overflow, false);
    start_write(link);
}

/* Frames are small and bounded by the windows; LINK_PENDING_MAX is only met by a caller that opens huge requests faster than
 * the guest reads. */
static int send_frame(struct link *link, const struct wire_frame *frame, struct err *e)
{
    if (link->broken || link->closing)
        return err_set(e, ERR_STOPPED, "the machine is gone");
    if (wire_frame_append(&link->pending, frame, e))
        return -1;
    if (!link->write_runs)
        uv_prepare_start(&link->flush, on_flush);
    return 0;
}

static void send_control(struct link *link, uint32_t stream, enum wire_kind kind, enum wire_channel channel, const void *body,
                         uint32_t len)
{
    struct err e = ERR_INIT;
    struct wire_frame frame = {
        .stream = stream, .kind = (uint8_t)kind, .channel = (uint8_t)channel, .body = body, .body_bytes = len};
    if (send_frame(link, &frame, &e) && e.code != ERR_STOPPED) {
        link->overflow = e; /* a lost control frame would hang its call: the next loop turn breaks the link */
        uv_prepare_start(&link->flush, on_flush);
    }
}

static void send_credit(struct link *link, uint32_t stream, enum wire_channel channel, uint32_t bytes)
{
    uint8_t body[4] = {(uint8_t)bytes, (uint8_t)(bytes >> 8), (uint8_t)(bytes >> 16), (uint8_t)(bytes >> 24)};
    if (bytes)
        send_control(link, stream, WIRE_CREDIT, channel, body, sizeof body);
}

/* --- receiving: each handler returns -1 with the reason when the guest broke the protocol --- */

static int take_hello(struct link *link, const struct wire_frame *frame, struct err *e)
{
    struct wire_hello hello = {0};
    if (link->hello_seen)
        return err_set(e, ERR_PROTOCOL, "a second HELLO");
    if (wire_hello_decode(frame->body, frame->body_bytes, &hello, e))
        return -1;
    if (hello.version != WIRE_PROTOCOL_VERSION) {
        err_set(e, ERR_PROTOCOL, "the guest agent speaks version %llu, this program %u", (unsigned long long)hello.version,
                WIRE_PROTOCOL_VERSION);
        wire_hello_done(&hello);
        return -1;
    }
    link->hello_seen = true;
    link->events.on_hello(link->events.context, &hello);
    wire_hello_done(&hello);
    return 0;
}

static int take_link_frame(struct link *link, const struct wire_frame *frame, struct err *e)
{
    if (frame->kind == WIRE_HELLO)
        return take_hello(link, frame, e);
    if (frame->kind == WIRE_PONG && link->hello_seen)
        return 0;
    if (frame->kind == WIRE_PANIC)
        return err_set(e, ERR_BOOT, "the guest agent gave up: %.*s", (int)(frame->body_bytes < 600 ? frame->body_bytes : 600),
                       (const char *)frame->body);
    return err_set(e, ERR_PROTOCOL, "unexpected %s on the link", wire_kind_name((enum wire_kind)frame->kind));
}

static int take_data(struct link *link, struct call *call, const struct wire_frame *frame, struct err *e)
{
    enum wire_channel channel = (enum wire_channel)frame->channel;
    if (channel == WIRE_CHANNEL_IN || call->channel_ended[channel])
        return err_set(e, ERR_PROTOCOL, "data on channel %d that is not open", (int)channel);
    if (credit_receiver_arrived(&call->from_guest[channel], frame->body_bytes, e))
        return -1;
    if (call->events.on_data)
        call->events.on_data(call->events.context, channel, frame->body, frame->body_bytes);
    else
        link_call_taken(link, frame->stream, channel, frame->body_bytes);
    return 0;
}

static int take_channel_end(struct call *call, const struct wire_frame *frame, struct err *e)
{
    enum wire_channel channel = (enum wire_channel)frame->channel;
    if (call->channel_ended[channel])
        return err_set(e, ERR_PROTOCOL, "channel %d ended twice", (int)channel);
    call->channel_ended[channel] = true;
    if (channel != WIRE_CHANNEL_IN && call->events.on_channel_end)
        call->events.on_channel_end(call->events.context, channel);
    return 0;
}

static int take_credit(struct call *call, const struct wire_frame *frame, struct err *e)
{
    if (frame->body_bytes != 4 || frame->channel != WIRE_CHANNEL_IN)
        return err_set(e, ERR_PROTOCOL, "a malformed credit");
    const uint8_t *b = frame->body;
    uint32_t bytes = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    if (credit_sender_grant(&call->to_guest, bytes, e))
        return -1;
    if (call->wants_room && call->events.on_writable) {
        call->wants_room = false;
        call->events.on_writable(call->events.context);
    }
    return 0;
}

static int take_reply(struct call *call, const struct wire_frame *frame, struct err *e)
{
    if (buf_append(&call->reply, frame->body, frame->body_bytes, e))
        return err_recode(e, ERR_PROTOCOL);
    if (frame->flags & WIRE_FLAG_MORE)
        return 0;
    call_end(call, buf_data(&call->reply), call->reply.len, NULL);
    return 0;
}

static int take_failure(struct call *call, const struct wire_frame *frame, struct err *e)
{
    struct wire_failure failure = {0};
    if (wire_failure_decode(frame->body, frame->body_bytes, &failure, e))
        return -1;
    enum err_code code = failure.code == 1     ? ERR_INVALID
                         : failure.code == 3   ? ERR_EXEC_CAP
                         : failure.code == 200 ? ERR_TIMEOUT
                         : failure.code == 300 ? ERR_SYSTEM
                                               : err_code_from_guest((unsigned)(failure.code > 999 ? 999 : failure.code));
    struct err reason = ERR_INIT;
    err_set(&reason, code, "%s", failure.message ? failure.message : err_code_sentence(code));
    wire_failure_done(&failure);
    call_end(call, NULL, 0, &reason);
    return 0;
}

static int take_frame(struct link *link, const struct wire_frame *frame, struct err *e)
{
    if (frame->stream == 0)
        return take_link_frame(link, frame, e);
    struct call *call = call_of(link, frame->stream);
    if (!call)
        return err_set(e, ERR_PROTOCOL, "%s for stream %u, which is not open", wire_kind_name((enum wire_kind)frame->kind),
                       frame->stream);
    switch ((enum wire_kind)frame->kind) {
    case WIRE_DATA:
        return take_data(link, call, frame, e);
    case WIRE_EOF:
        return take_channel_end(call, frame, e);
    case WIRE_CREDIT:
        return take_credit(call, frame, e);
    case WIRE_REPLY:
        return take_reply(call, frame, e);
    case WIRE_ERROR:
        return take_failure(call, frame, e);
    case WIRE_HELLO:
    case WIRE_REQUEST:
    case WIRE_CANCEL:
    case WIRE_SIGNAL:
    case WIRE_RESIZE:
    case WIRE_PING:
    case WIRE_PONG:
    case WIRE_PANIC:
    case WIRE_KIND_END:
        break;
    }
    return err_set(e, ERR_PROTOCOL, "unexpected %s from the guest", wire_kind_name((enum wire_kind)frame->kind));
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_room)
{
    (void)suggested;
    struct link *link = handle->data;
    struct err e = ERR_INIT;
    uint8_t *room;
    size_t len;
    if (wire_decoder_room(&link->decoder, &room, &len, &e))
        len = 0; /* libuv then reports ENOBUFS */
    *ret_room = uv_buf_init(len ? (char *)room : NULL, (unsigned)len);
}

static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *room)
{
    (void)room;
    struct link *link = stream->data;
    struct err e = ERR_INIT;
    if (len < 0) {
        if (len == UV_EOF)
            err_set(&e, ERR_BOOT, "the machine closed its link");
        else
            err_set(&e, ERR_BOOT, "the machine's link is gone: %s", uv_strerror((int)len));
        break_link(link, &e, true);
        return;
    }
    wire_decoder_fed(&link->decoder, (size_t)len);
    struct wire_frame frame;
    int more = 0;
    while (!link->broken && !link->closing && (more = wire_decoder_next(&link->decoder, &frame, &e)) > 0)
        if (take_frame(link, &frame, &e)) {
            more = -1;
            break;
        }
    if (more < 0) {
        if (e.code == ERR_PROTOCOL)
            err_wrap(&e, "the guest broke the protocol");
        break_link(link, &e, false);
    }
}

/* --- life --- */

static void on_closed(uv_handle_t *handle)
{
    struct link *link = handle->data;
    if (--link->handles_open)
        return;
    wire_decoder_done(&link->decoder);
    buf_done(&link->pending);
    buf_done(&link->writing);
    free(link);
}

struct link *link_new(uv_loop_t *loop, int fd, const struct link_events *events, struct err *e)
{
    struct link *link = xcalloc(1, sizeof *link);
    link->events = *events;
    link->pending = link->writing = BUF_INIT(LINK_PENDING_MAX);
    wire_decoder_init(&link->decoder);
    CHECK(uv_pipe_init(loop, &link->pipe, 0) == 0);
    CHECK(uv_prepare_init(loop, &link->flush) == 0);
    link->pipe.data = link->flush.data = link;
    link->handles_open = 2;
    int status = uv_pipe_open(&link->pipe, fd);
    if (status == 0)
        status = uv_read_start((uv_stream_t *)&link->pipe, on_room, on_read);
    else
        close(fd);
    if (status == 0)
        return link;
    err_set(e, ERR_SYSTEM, "open the machine's link: %s", uv_strerror(status));
    link_free(link);
    return NULL;
}

void link_free(struct link *link)
{
    if (!link || link->closing)
        return;
    struct err stopped = ERR_INIT;
    err_set(&stopped, ERR_STOPPED, "the machine was stopped");
    link->closing = true;
    end_all_calls(link, &stopped);
    uv_close((uv_handle_t *)&link->pipe, on_closed);
    uv_close((uv_handle_t *)&link->flush, on_closed);
}

/* --- calls --- */

static struct call *free_slot(struct link *link)
{
    for (size_t i = 0; i < WIRE_STREAMS_MAX; i++)
        if (!link->calls[i].stream)
            return &link->calls[i];
    return NULL;
}

int link_call(struct link *link, const struct wire_request *request, const struct link_call_events *events, uint32_t *ret_call,
              struct err *e)
{
    if (link->broken || link->closing)
        return err_set(e, ERR_STOPPED, "the machine is gone");
    struct call *call = free_slot(link);
    if (!call)
        return err_set(e, ERR_EXEC_CAP, "%u requests run in this machine already", WIRE_STREAMS_MAX);
    auto_buf body = BUF_INIT(WIRE_REQUEST_MAX);
    if (wire_request_encode(&body, request, e))
        return e->code == ERR_LIMIT ? (err_recode(e, ERR_INVALID), err_wrap(e, "the request is too large")) : -1;
    uint32_t stream = link->last_stream + 1 ? link->last_stream + 1 : 1;
    if (wire_pieces_append(&link->pending, WIRE_REQUEST, stream, buf_data(&body), body.len, e))
        return -1;
    link->last_stream = stream;
    *call = (struct call){.stream = stream, .events = *events, .reply = BUF_INIT(WIRE_REPLY_MAX)};
    credit_sender_init(&call->to_guest);
    for (size_t i = 0; i < WIRE_CHANNEL_COUNT; i++)
        credit_receiver_init(&call->from_guest[i]);
    if (!link->write_runs)
        uv_prepare_start(&link->flush, on_flush);
    *ret_call = stream;
    return 0;
}

size_t link_call_window(const struct link *link, uint32_t stream)
{
    const struct call *call = call_of((struct link *)(uintptr_t)link, stream);
    return call && !call->input_ended && !link->broken ? call->to_guest.window : 0;
}

size_t link_call_write(struct link *link, uint32_t stream, const void *bytes, size_t len)
{
    struct call *call = call_of(link, stream);
    size_t room = link_call_window(link, stream), done = 0;
    if (!call)
        return 0;
    while (done < len && done < room) {
        size_t piece = len - done < room - done ? len - done : room - done;
        if (piece > WIRE_BODY_MAX)
            piece = WIRE_BODY_MAX;
        struct wire_frame frame = {.stream = stream,
                                   .kind = WIRE_DATA,
                                   .channel = WIRE_CHANNEL_IN,
                                   .body = (const uint8_t *)bytes + done,
                                   .body_bytes = (uint32_t)piece};
        struct err e = ERR_INIT;
        if (send_frame(link, &frame, &e))
            break;
        credit_sender_spend(&call->to_guest, (uint32_t)piece);
        done += piece;
    }
    if (done < len)
        call->wants_room = true;
    return done;
}

void link_call_end_input(struct link *link, uint32_t stream)
{
    struct call *call = call_of(link, stream);
    if (!call || call->input_ended)
        return;
    call->input_ended = true;
    send_control(link, stream, WIRE_EOF, WIRE_CHANNEL_IN, NULL, 0);
}

void link_call_taken(struct link *link, uint32_t stream, enum wire_channel channel, size_t len)
{
    struct call *call = call_of(link, stream);
    if (call)
        send_credit(link, stream, channel, credit_receiver_taken(&call->from_guest[channel], (uint32_t)len));
}

void link_call_cancel(struct link *link, uint32_t stream)
{
    if (call_of(link, stream))
        send_control(link, stream, WIRE_CANCEL, WIRE_CHANNEL_IN, NULL, 0);
}

void link_call_forget(struct link *link, uint32_t stream)
{
    struct call *call = call_of(link, stream);
    if (call)
        call->events = (struct link_call_events){0};
}

void link_call_signal(struct link *link, uint32_t stream, int signal_number)
{
    uint8_t body[4] = {(uint8_t)signal_number};
    if (call_of(link, stream))
        send_control(link, stream, WIRE_SIGNAL, WIRE_CHANNEL_IN, body, sizeof body);
}

void link_call_resize(struct link *link, uint32_t stream, unsigned rows, unsigned columns)
{
    uint8_t body[4] = {(uint8_t)rows, (uint8_t)(rows >> 8), (uint8_t)columns, (uint8_t)(columns >> 8)};
    if (call_of(link, stream))
        send_control(link, stream, WIRE_RESIZE, WIRE_CHANNEL_IN, body, sizeof body);
}
