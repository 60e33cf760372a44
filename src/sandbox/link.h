/* SPDX-License-Identifier: Apache-2.0 */
/* The host's end of the guest link: frames on one socket, one stream per call (wire/frame.h, docs/WIRE.md).
 *
 * A call is opened by link_call and ends exactly once, by on_end: with the guest's reply, its failure, or the loss of the
 * link. Bytes that the guest sends arrive by on_data and count as in flight until link_call_taken: a consumer that stops
 * taking stops only its own channel. Bytes to the guest are accepted up to the channel's window; on_writable says when more fit.
 * Nothing the guest sends is believed: a malformed frame, a stream that is not open, or bytes without credit break the
 * link (on_broken), which ends every open call; the machine's owner then ends the machine.
 * Callbacks never come from inside a call into this module, except on_end of the calls that link_free ends. */
#pragma once

#include "base/err.h"
#include "wire/frame.h"
#include "wire/message.h"

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct link;

struct link_events {
    void *context;
    void (*on_hello)(void *context, const struct wire_hello *hello); /* once, first of all */
    /* Once, after the open calls have ended. `closed`: the peer went away; else it broke the protocol or gave up. */
    void (*on_broken)(void *context, const struct err *why, bool closed);
};

struct link_call_events {
    void *context;
    void (*on_data)(void *context, enum wire_channel channel, const uint8_t *bytes, size_t len); /* may be NULL: taken at once */
    void (*on_channel_end)(void *context, enum wire_channel channel);                            /* may be NULL */
    void (*on_writable)(void *context);                                                          /* may be NULL */
    /* reply: len bytes of an encoded reply, with failure NULL; or failure set. The call id is dead from here on. ERR_BOOT and
     * ERR_STOPPED mean that the link is gone, and are never the guest's own words. */
    void (*on_end)(void *context, const uint8_t *reply, size_t len, const struct err *failure);
};

/* Takes ownership of fd (a connected stream socket), also on failure. */
struct link *link_new(uv_loop_t *loop, int fd, const struct link_events *events, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* Ends every open call with ERR_STOPPED, closes. The memory goes in the loop's close callback. Safe on NULL. */
void link_free(struct link *link);

/* Opens a call; *ret_call is its stream number (never 0). ERR_EXEC_CAP when WIRE_STREAMS_MAX are open, ERR_STOPPED on a broken
 * link. */
int link_call(struct link *link, const struct wire_request *request, const struct link_call_events *events, uint32_t *ret_call,
              struct err *e) __attribute__((nonnull, warn_unused_result));
/* How many of len bytes were accepted for channel IN; 0 when the window is full or the call is gone. */
size_t link_call_write(struct link *link, uint32_t call, const void *bytes, size_t len) __attribute__((nonnull(1)));
size_t link_call_window(const struct link *link, uint32_t call)
    __attribute__((nonnull)); /* bytes link_call_write would take now */
void link_call_end_input(struct link *link, uint32_t call) __attribute__((nonnull));
void link_call_taken(struct link *link, uint32_t call, enum wire_channel channel, size_t len) __attribute__((nonnull));
void link_call_cancel(struct link *link, uint32_t call) __attribute__((nonnull));
/* No event of this call comes any more; what it still sends is dropped. For a caller that goes away. */
void link_call_forget(struct link *link, uint32_t call) __attribute__((nonnull));
void link_call_signal(struct link *link, uint32_t call, int signal_number) __attribute__((nonnull));
void link_call_resize(struct link *link, uint32_t call, unsigned rows, unsigned columns) __attribute__((nonnull));
