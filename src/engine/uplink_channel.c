/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/uplink_channel.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "engine/internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static int append_encoded(struct buf *out, const char *text, struct err *e)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = isalnum(c) || strchr("-_.~", c);
        if (plain ? buf_append_u8(out, c, e) : buf_appendf(out, e, "%%%02X", c))
            return -1;
    }
    return 0;
}

static struct ws_conn *open_end(struct ws_service *ws, const struct ws_target *target, const struct channel_ref *ref,
                                const char *direction, const struct ws_events *events, void *owner, struct err *e)
{
    auto_buf path = BUF_INIT(4 * KIB);
    if (buf_appendf(&path, e, "%s/ws/channels/", strcmp(target->path, "/") == 0 ? "" : target->path) ||
        append_encoded(&path, ref->channel_id, e) || buf_appendf(&path, e, "?key=") ||
        append_encoded(&path, ref->access_key, e) || buf_appendf(&path, e, "&dir=%s", direction) || buf_append_u8(&path, 0, e))
        return NULL;
    struct ws_target end = *target;
    end.path = (const char *)buf_data(&path);
    end.token = NULL; /* the key guards it, and SDKs send no headers here */
    return ws_connect(ws, &end, events, owner, e);
}

static enum channel_end end_of(const struct ws_end *end)
{
    if (end->http >= 400)
        return CHANNEL_END_REFUSED;
    return end->code == 1000 || end->code == 1001 || end->code == 1005 ? CHANNEL_END_CLOSED : CHANNEL_END_LOST;
}

/* ---- reader ---- */

struct uplink_reader {
    struct channel_reader base;
    struct ws_conn *conn;
};

static void reader_free(struct uplink_reader *reader)
{
    buf_done(&reader->base.text);
    free(reader);
}

static void on_reader_open(void *owner)
{
    struct uplink_reader *reader = owner;
    if (reader->base.paused)
        ws_pause(reader->conn);
}

static void on_reader_piece(void *owner, enum ws_kind kind, const uint8_t *bytes, size_t len, bool first, bool last)
{
    (void)first;
    struct uplink_reader *reader = owner;
    struct ws_conn *conn = reader->conn;
    const struct channel_reader_events *events = reader->base.events;
    void *context = reader->base.context;
    if (channel_reader_take(&reader->base, kind, bytes, len, last))
        return;
    ws_close(conn, WS_CLOSE_TOO_BIG, "text message too big");
    events->on_end(context, CHANNEL_END_LOST);
    reader_free(reader);
}

static void on_reader_close(void *owner, const struct ws_end *end)
{
    struct uplink_reader *reader = owner;
    reader->base.events->on_end(reader->base.context, end_of(end));
    reader_free(reader);
}

static const struct ws_events reader_events = {
    .on_open = on_reader_open, .on_piece = on_reader_piece, .on_close = on_reader_close, .queue_max = MIB};

static void reader_pause(struct channel_reader *base)
{
    base->paused = true;
    ws_pause(((struct uplink_reader *)base)->conn);
}

static void reader_resume(struct channel_reader *base)
{
    base->paused = false;
    ws_resume(((struct uplink_reader *)base)->conn);
}

static void reader_close(struct channel_reader *base)
{
    struct uplink_reader *reader = (struct uplink_reader *)base;
    ws_close(reader->conn, WS_CLOSE_NORMAL, "channel_close");
    reader_free(reader);
}

static const struct channel_reader_ops reader_ops = {.pause = reader_pause, .resume = reader_resume, .close = reader_close};

struct channel_reader *uplink_reader_open(struct ws_service *ws, const struct ws_target *target, const struct channel_ref *ref,
                                          const struct channel_reader_events *events, void *context, bool paused, struct err *e)
{
    struct uplink_reader *reader = xcalloc(1, sizeof *reader);
    reader->base = (struct channel_reader){.ops = &reader_ops, .events = events, .context = context, .paused = paused};
    reader->conn = open_end(ws, target, ref, "read", &reader_events, reader, e);
    if (reader->conn)
        return &reader->base;
    reader_free(reader);
    return NULL;
}

/* ---- writer ---- */

struct uplink_writer {
    struct channel_writer base;
    struct ws_conn *conn;
    bool is_open, ending; /* ending: closed by its owner before the socket was open */
};

static void on_writer_open(void *owner)
{
    struct uplink_writer *writer = owner;
    writer->is_open = true;
    if (!writer->ending)
        return;
    ws_close(writer->conn, WS_CLOSE_NORMAL, "stream_complete");
    free(writer);
}

static void on_writer_piece(void *owner, enum ws_kind kind, const uint8_t *bytes, size_t len, bool first, bool last)
{
    (void)owner; /* an engine says nothing to a writer */
    (void)kind;
    (void)bytes;
    (void)len;
    (void)first;
    (void)last;
}

static void on_writer_drain(void *owner)
{
    struct uplink_writer *writer = owner;
    if (!writer->base.was_full)
        return;
    writer->base.was_full = false;
    writer->base.events->on_room(writer->base.context);
}

static void on_writer_close(void *owner, const struct ws_end *end)
{
    struct uplink_writer *writer = owner;
    if (!writer->ending)
        writer->base.events->on_end(writer->base.context, end_of(end));
    free(writer);
}

static const struct ws_events writer_events = {.on_open = on_writer_open,
                                               .on_piece = on_writer_piece,
                                               .on_drain = on_writer_drain,
                                               .on_close = on_writer_close,
                                               .queue_max = ENGINE_QUEUE_MAX,
                                               .drain_bytes = ENGINE_CHANNEL_BYTES_MAX / 2};

static size_t writer_room(const struct channel_writer *base)
{
    size_t queued = ws_queued(((const struct uplink_writer *)base)->conn);
    return queued >= ENGINE_CHANNEL_BYTES_MAX ? 0 : ENGINE_CHANNEL_BYTES_MAX - queued;
}

static int writer_send(struct channel_writer *base, enum ws_kind kind, const void *bytes, size_t len, struct err *e)
{
    return ws_send_piece(((struct uplink_writer *)base)->conn, kind, bytes, len, true, true, e);
}

static void writer_close(struct channel_writer *base, bool clean)
{
    struct uplink_writer *writer = (struct uplink_writer *)base;
    if (clean && !writer->is_open) {
        writer->ending = true; /* even an empty stream needs its socket, or the reader waits for minutes */
        return;
    }
    if (clean)
        ws_close(writer->conn, WS_CLOSE_NORMAL, "stream_complete");
    else
        ws_kill(writer->conn);
    free(writer);
}

static const struct channel_writer_ops writer_ops = {.room = writer_room, .send = writer_send, .close = writer_close};

struct channel_writer *uplink_writer_open(struct ws_service *ws, const struct ws_target *target, const struct channel_ref *ref,
                                          const struct channel_writer_events *events, void *context, struct err *e)
{
    struct uplink_writer *writer = xcalloc(1, sizeof *writer);
    writer->base = (struct channel_writer){.ops = &writer_ops, .events = events, .context = context};
    writer->conn = open_end(ws, target, ref, "write", &writer_events, writer, e);
    if (writer->conn)
        return &writer->base;
    free(writer);
    return NULL;
}
