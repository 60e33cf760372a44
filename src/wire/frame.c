/* SPDX-License-Identifier: Apache-2.0 */
/* The frame codec. Each kind is one row of the table below: where it may stand, whether it has a channel, whether it may be
 * cut into pieces, how long its body may be. The decoder checks a header against its row before it waits for the body, so
 * that nonsense ends the link at once and a lying length never makes us hold more than one frame. After the first error the
 * decoder stays broken: bytes behind a bad header have no meaning. */
#include "wire/frame.h"

#include "base/check.h"
#include "base/reader.h"

#include <assert.h>

struct kind_row {
    const char *name;
    bool on_link;     /* stream 0, else every other stream */
    bool has_channel; /* else the channel byte is 0 */
    bool may_continue;
    uint32_t body_min, body_max;
    uint32_t assembled_max; /* of all pieces together */
};

static const struct kind_row kind_rows[] = {
    [WIRE_HELLO] = {"HELLO", .on_link = true, .body_max = WIRE_BODY_MAX},
    [WIRE_REQUEST] = {"REQUEST", .may_continue = true, .body_max = WIRE_BODY_MAX, .assembled_max = WIRE_REQUEST_MAX},
    [WIRE_REPLY] = {"REPLY", .may_continue = true, .body_max = WIRE_BODY_MAX, .assembled_max = WIRE_REPLY_MAX},
    [WIRE_ERROR] = {"ERROR", .body_max = WIRE_BODY_MAX},
    [WIRE_DATA] = {"DATA", .has_channel = true, .body_min = 1, .body_max = WIRE_BODY_MAX},
    [WIRE_EOF] = {"EOF", .has_channel = true},
    [WIRE_CREDIT] = {"CREDIT", .has_channel = true, .body_min = 4, .body_max = 4},
    [WIRE_CANCEL] = {"CANCEL"},
    [WIRE_SIGNAL] = {"SIGNAL", .body_min = 4, .body_max = 4},
    [WIRE_RESIZE] = {"RESIZE", .body_min = 4, .body_max = 4},
    [WIRE_PING] = {"PING", .on_link = true, .body_max = WIRE_BODY_MAX},
    [WIRE_PONG] = {"PONG", .on_link = true, .body_max = WIRE_BODY_MAX},
    [WIRE_PANIC] = {"PANIC", .on_link = true, .body_max = WIRE_BODY_MAX},
};
static_assert(sizeof kind_rows / sizeof *kind_rows == WIRE_KIND_END, "one row per kind");

struct header {
    uint32_t body_bytes, stream;
    uint8_t kind, channel;
    uint16_t flags;
};

static const struct kind_row *row_of(unsigned kind)
{
    return kind > 0 && kind < WIRE_KIND_END ? &kind_rows[kind] : NULL;
}

const char *wire_kind_name(enum wire_kind kind)
{
    const struct kind_row *row = row_of((unsigned)kind);
    return row ? row->name : "?";
}

static int header_check(const struct header *h, struct err *e)
{
    const struct kind_row *row = row_of(h->kind);
    if (!row)
        return err_set(e, ERR_PROTOCOL, "frame of the unknown kind %u", h->kind);
    if ((h->stream == 0) != row->on_link)
        return err_set(e, ERR_PROTOCOL, "%s frame on stream %u", row->name, h->stream);
    if (h->channel >= (row->has_channel ? WIRE_CHANNEL_COUNT : 1))
        return err_set(e, ERR_PROTOCOL, "%s frame on channel %u", row->name, h->channel);
    if (h->flags & ~(row->may_continue ? WIRE_FLAG_MORE : 0u))
        return err_set(e, ERR_PROTOCOL, "%s frame with flags 0x%x", row->name, h->flags);
    if (h->body_bytes < row->body_min || h->body_bytes > row->body_max)
        return err_set(e, ERR_PROTOCOL, "%s frame with a body of %u bytes", row->name, h->body_bytes);
    return 0;
}

int wire_frame_append(struct buf *out, const struct wire_frame *frame, struct err *e)
{
    struct header h = {frame->body_bytes, frame->stream, frame->kind, frame->channel, frame->flags};
    CHECK(frame->body_bytes <= WIRE_BODY_MAX);
    CHECK(header_check(&h, e) == 0); /* we never send what the same code would refuse */
    uint8_t *room;
    if (buf_reserve(out, WIRE_HEADER_BYTES + (size_t)frame->body_bytes, &room, e))
        return -1;
    /* the room is there: none of these can fail */
    if (buf_append_u32(out, h.body_bytes, e) || buf_append_u32(out, h.stream, e) || buf_append_u8(out, h.kind, e) ||
        buf_append_u8(out, h.channel, e) || buf_append_u16(out, h.flags, e))
        return -1;
    return buf_append(out, frame->body, frame->body_bytes, e);
}

int wire_pieces_append(struct buf *out, enum wire_kind kind, uint32_t stream, const void *body, size_t body_bytes, struct err *e)
{
    const struct kind_row *row = row_of((unsigned)kind);
    CHECK(row && row->may_continue);
    if (body_bytes > row->assembled_max)
        return err_set(e, ERR_LIMIT, "%s of %zu bytes is over the limit of %u", row->name, body_bytes, row->assembled_max);
    size_t pieces = body_bytes ? (body_bytes + WIRE_BODY_MAX - 1) / WIRE_BODY_MAX : 1;
    uint8_t *room; /* all or nothing: half a request must not stay in the buffer */
    if (buf_reserve(out, body_bytes + pieces * WIRE_HEADER_BYTES, &room, e))
        return -1;
    const uint8_t *bytes = body;
    for (size_t at = 0, i = 0; i < pieces; i++) {
        size_t len = body_bytes - at < WIRE_BODY_MAX ? body_bytes - at : WIRE_BODY_MAX;
        struct wire_frame frame = {.stream = stream,
                                   .kind = (uint8_t)kind,
                                   .flags = i + 1 < pieces ? WIRE_FLAG_MORE : 0,
                                   .body = len ? bytes + at : NULL,
                                   .body_bytes = (uint32_t)len};
        if (wire_frame_append(out, &frame, e))
            return -1;
        at += len;
    }
    return 0;
}

int wire_u32_append(struct buf *out, enum wire_kind kind, uint32_t stream, uint8_t channel, uint32_t value, struct err *e)
{
    uint8_t body[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16), (uint8_t)(value >> 24)};
    struct wire_frame frame = {
        .stream = stream, .kind = (uint8_t)kind, .channel = channel, .body = body, .body_bytes = sizeof body};
    return wire_frame_append(out, &frame, e);
}

uint32_t wire_frame_u32(const struct wire_frame *frame)
{
    struct reader r = reader_of(frame->body, frame->body_bytes);
    return reader_u32(&r);
}

int wire_assembly_add(struct wire_assembly *a, const struct wire_frame *frame, struct err *e)
{
    const struct kind_row *row = row_of(frame->kind);
    CHECK(row && row->may_continue);
    a->bytes.bytes_max = row->assembled_max;
    if (a->bytes.len > row->assembled_max - frame->body_bytes)
        return err_set(e, ERR_PROTOCOL, "%s of more than %u bytes", row->name, row->assembled_max);
    if (buf_append(&a->bytes, frame->body, frame->body_bytes, e))
        return -1;
    return frame->flags & WIRE_FLAG_MORE ? 0 : 1;
}

void wire_assembly_done(struct wire_assembly *a)
{
    if (a)
        buf_done(&a->bytes);
}

void wire_decoder_init(struct wire_decoder *d)
{
    /* one unfinished frame, and what is fed on top of it */
    *d = (struct wire_decoder){.bytes = BUF_INIT(2 * (size_t)WIRE_FRAME_MAX)};
}

void wire_decoder_done(struct wire_decoder *d)
{
    if (!d)
        return;
    buf_done(&d->bytes);
    d->taken = 0;
}

static void drop_taken(struct wire_decoder *d)
{
    buf_consume(&d->bytes, d->taken);
    d->taken = 0;
}

int wire_decoder_room(struct wire_decoder *d, uint8_t **ret_room, size_t *ret_len, struct err *e)
{
    drop_taken(d);
    uint8_t *room;
    if (buf_reserve(&d->bytes, WIRE_FRAME_MAX, &room, e))
        return err_wrap(e, "frame decoder");
    *ret_room = room;
    *ret_len = WIRE_FRAME_MAX;
    return 0;
}

void wire_decoder_fed(struct wire_decoder *d, size_t len)
{
    CHECK(len <= WIRE_FRAME_MAX && d->taken == 0);
    buf_commit(&d->bytes, len);
}

int wire_decoder_next(struct wire_decoder *d, struct wire_frame *ret_frame, struct err *e)
{
    drop_taken(d);
    if (d->broken)
        return err_set(e, ERR_PROTOCOL, "the stream of frames is broken");
    if (d->bytes.len < WIRE_HEADER_BYTES)
        return 0;
    struct reader r = reader_of(buf_data(&d->bytes), d->bytes.len);
    struct header h = {0};
    h.body_bytes = reader_u32(&r);
    h.stream = reader_u32(&r);
    h.kind = reader_u8(&r);
    h.channel = reader_u8(&r);
    h.flags = reader_u16(&r);
    if (header_check(&h, e)) {
        d->broken = true;
        return -1;
    }
    if (reader_left(&r) < h.body_bytes)
        return 0;
    *ret_frame = (struct wire_frame){.stream = h.stream,
                                     .kind = h.kind,
                                     .channel = h.channel,
                                     .flags = h.flags,
                                     .body = reader_bytes(&r, h.body_bytes),
                                     .body_bytes = h.body_bytes};
    d->taken = WIRE_HEADER_BYTES + (size_t)h.body_bytes;
    return 1;
}
