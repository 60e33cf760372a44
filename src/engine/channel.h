/* SPDX-License-Identifier: Apache-2.0 */
/* Our own ends of channels. A channel is a one-way, ordered pipe through the engine with one writer and one reader: bytes,
 * and between them text messages. What is on the way is bounded; a reader that does not take its bytes makes the writer's
 * room shrink to 0, whichever of the two is ours. A writer that is lost is told apart from one that ended. */
#pragma once

#include "base/err.h"
#include "engine/engine.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct channel_reader;
struct channel_writer;

struct channel_ref {
    char channel_id[64], access_key[64];
    bool write; /* what the holder may do */
};

/* ERR_INVALID unless the value is an object with channel_id, access_key and the wanted direction. */
int channel_ref_decode(const json_t *value, bool write, struct channel_ref *ret_ref, struct err *e)
    __attribute__((nonnull(3, 4), warn_unused_result));
json_t *channel_ref_encode(const struct channel_ref *ref) __attribute__((nonnull)); /* a new reference */

/* Makes a channel. `code` is NULL on success, then both refs are set. Never called during channel_create. */
typedef void (*channel_on_created)(void *context, const struct channel_ref *reader, const struct channel_ref *writer,
                                   const char *code, const char *message);
/* Returns the handle of the call (engine_call_forget). */
uint64_t channel_create(struct engine *engine, unsigned messages, channel_on_created on_created, void *context)
    __attribute__((nonnull(1, 3)));

enum channel_end {
    CHANNEL_END_CLOSED,  /* the writer ended its stream */
    CHANNEL_END_LOST,    /* the writer, or the way to it, was lost: what was read may be incomplete */
    CHANNEL_END_REFUSED, /* no such channel, or the end is taken */
    CHANNEL_END_COUNT
};

struct channel_reader_events {
    void (*on_bytes)(void *context, const uint8_t *bytes, size_t len);
    void (*on_text)(void *context, const char *text, size_t len); /* whole; NULL: dropped */
    void (*on_end)(void *context, enum channel_end end);          /* last event; the reader is freed after it */
};

/* Never calls back during the call. Paused when `paused` is set. */
struct channel_reader *channel_reader_open(struct engine *engine, const struct channel_ref *ref,
                                           const struct channel_reader_events *events, void *context, bool paused, struct err *e)
    __attribute__((nonnull(1, 2, 3, 6), warn_unused_result));
void channel_reader_pause(struct channel_reader *reader) __attribute__((nonnull));
void channel_reader_resume(struct channel_reader *reader) __attribute__((nonnull));
void channel_reader_close(struct channel_reader *reader); /* no more events; tells the writer. NULL is fine */

struct channel_writer_events {
    void (*on_room)(void *context);                      /* there is room again after it was 0 */
    void (*on_end)(void *context, enum channel_end end); /* the reader is gone; the writer is freed after it */
};

struct channel_writer *channel_writer_open(struct engine *engine, const struct channel_ref *ref,
                                           const struct channel_writer_events *events, void *context, struct err *e)
    __attribute__((nonnull(1, 2, 3, 5), warn_unused_result));
size_t channel_writer_room(const struct channel_writer *writer) __attribute__((nonnull)); /* bytes it takes now */
/* Takes at most the room; more is ERR_LIMIT. Bytes are copied. Text does not count against the room. */
int channel_writer_bytes(struct channel_writer *writer, const void *bytes, size_t len, struct err *e)
    __attribute__((nonnull(1, 4), warn_unused_result));
int channel_writer_text(struct channel_writer *writer, const char *text, size_t len, struct err *e)
    __attribute__((nonnull, warn_unused_result));
void channel_writer_close(struct channel_writer *writer); /* the end of the stream, after what was written */
void channel_writer_abort(struct channel_writer *writer); /* the reader learns that the writer was lost */
