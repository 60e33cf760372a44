/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between host and guest: one byte stream (a virtio-console port), the same pure code on both ends.
 *
 * A frame is a 12-byte little-endian header {u32 body_bytes, u32 stream, u8 kind, u8 channel, u16 flags} and its body, at
 * most WIRE_FRAME_MAX together. Stream 0 belongs to the link itself; the host opens every other stream with WIRE_REQUEST and
 * a number it has not used before; the stream ends with the guest's WIRE_REPLY or WIRE_ERROR. A request or reply larger
 * than one frame is cut into pieces, all but the last with WIRE_FLAG_MORE. Bytes flow on numbered channels of a stream as
 * WIRE_DATA and end with WIRE_EOF; a sender may have WIRE_WINDOW bytes in flight per stream and channel, and each WIRE_CREDIT
 * allows that many more. docs/WIRE.md has the whole protocol. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define WIRE_HEADER_BYTES 12u
#define WIRE_BODY_MAX (WIRE_FRAME_MAX - WIRE_HEADER_BYTES)
#define WIRE_PROTOCOL_VERSION 1u

enum wire_kind {
    WIRE_HELLO = 1, /* guest → host, stream 0: the root is mounted, requests are served; body: struct wire_hello */
    WIRE_REQUEST,   /* host → guest: opens a stream; body: pieces of an encoded request */
    WIRE_REPLY,     /* guest → host: success, ends the stream; body: pieces of an encoded reply */
    WIRE_ERROR,     /* guest → host: failure, ends the stream; body: struct wire_failure */
    WIRE_DATA,      /* both: bytes of a channel */
    WIRE_EOF,       /* both: the channel ends; empty body */
    WIRE_CREDIT,    /* both: body u32: that many more bytes may be sent on the channel */
    WIRE_CANCEL,    /* host → guest: end the request at once (kill its whole control group); its answer still comes */
    WIRE_SIGNAL,    /* host → guest: body u32 signal number, to the program's process group */
    WIRE_RESIZE,    /* host → guest: body u16 rows, u16 columns of its terminal */
    WIRE_PING,      /* host → guest, stream 0: body echoed by WIRE_PONG */
    WIRE_PONG,
    WIRE_PANIC, /* guest → host, stream 0: the agent gives up; body: text. The machine ends */
    WIRE_KIND_END
};

enum wire_channel { WIRE_CHANNEL_IN = 0, WIRE_CHANNEL_OUT = 1, WIRE_CHANNEL_ERR = 2, WIRE_CHANNEL_COUNT };

#define WIRE_FLAG_MORE 1u

struct wire_frame {
    uint32_t stream;
    uint8_t kind;        /* enum wire_kind, already checked by the decoder */
    uint8_t channel;     /* enum wire_channel, already checked */
    uint16_t flags;      /* only known flags, already checked */
    const uint8_t *body; /* inside the decoder's buffer: valid until the next wire_decoder_* call */
    uint32_t body_bytes;
};

/* Appends one frame. The caller keeps body_bytes <= WIRE_BODY_MAX (CHECKed). */
int wire_frame_append(struct buf *out, const struct wire_frame *frame, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* Appends a REQUEST or REPLY body of any size up to its limit as frames with WIRE_FLAG_MORE. */
int wire_pieces_append(struct buf *out, enum wire_kind kind, uint32_t stream, const void *body, size_t body_bytes, struct err *e)
    __attribute__((nonnull(1, 6), warn_unused_result));

/* Incremental decoder. Feed bytes as they come (wire_decoder_room + wire_decoder_fed, at most WIRE_FRAME_MAX at a time),
 * then take frames until wire_decoder_next returns 0. 1: a frame; 0: more bytes are needed; -1: ERR_PROTOCOL, for good. */
struct wire_decoder {
    struct buf bytes;
    size_t taken; /* bytes of the frame handed out last, consumed by the next call */
    bool broken;
};

void wire_decoder_init(struct wire_decoder *d) __attribute__((nonnull));
void wire_decoder_done(struct wire_decoder *d);
int wire_decoder_room(struct wire_decoder *d, uint8_t **ret_room, size_t *ret_len, struct err *e)
    __attribute__((nonnull, warn_unused_result));
void wire_decoder_fed(struct wire_decoder *d, size_t len) __attribute__((nonnull));
int wire_decoder_next(struct wire_decoder *d, struct wire_frame *ret_frame, struct err *e)
    __attribute__((nonnull, warn_unused_result));

/* WIRE_CREDIT, WIRE_SIGNAL and WIRE_RESIZE (rows in the low half) have a body of one u32: append one, read one. */
int wire_u32_append(struct buf *out, enum wire_kind kind, uint32_t stream, uint8_t channel, uint32_t value, struct err *e)
    __attribute__((nonnull, warn_unused_result));
uint32_t wire_frame_u32(const struct wire_frame *frame) __attribute__((nonnull));

/* Puts the pieces of one REQUEST or REPLY together. Zero-initialise; wire_assembly_done frees. */
struct wire_assembly {
    struct buf bytes;
};

/* 1: the frame was the last piece and a->bytes is the whole body; 0: more must come; -1: over the kind's limit
 * (ERR_PROTOCOL) or out of memory (ERR_NOMEM). */
int wire_assembly_add(struct wire_assembly *a, const struct wire_frame *frame, struct err *e)
    __attribute__((nonnull, warn_unused_result));
void wire_assembly_done(struct wire_assembly *a);

const char *wire_kind_name(enum wire_kind kind); /* "REQUEST"; "?" for an unknown one */
