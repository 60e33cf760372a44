/* SPDX-License-Identifier: Apache-2.0 */
/* Flow control of one channel in one direction: pure counters, one struct per end.
 * The sender spends its window; the receiver returns what its reader took, in grants of at least a quarter window so that
 * small reads do not make a frame each. A peer that sends more than it may is a protocol error. */
#pragma once

#include "base/err.h"

#include <stdint.h>

struct credit_sender {
    uint32_t window; /* bytes that may still be sent */
};

struct credit_receiver {
    uint32_t in_flight; /* bytes the peer may still send, as we know it */
    uint32_t owed;      /* bytes taken by our reader and not yet granted again */
};

void credit_sender_init(struct credit_sender *s) __attribute__((nonnull));
void credit_sender_spend(struct credit_sender *s, uint32_t bytes) __attribute__((nonnull)); /* CHECKs bytes <= window */
/* ERR_PROTOCOL when the window would exceed WIRE_WINDOW. */
int credit_sender_grant(struct credit_sender *s, uint32_t bytes, struct err *e) __attribute__((nonnull, warn_unused_result));

void credit_receiver_init(struct credit_receiver *r) __attribute__((nonnull));
/* Bytes have come; ERR_PROTOCOL when the peer had no credit for them. */
int credit_receiver_arrived(struct credit_receiver *r, uint32_t bytes, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* The reader took bytes; returns the grant to send now, 0 when it is not worth a frame yet. */
uint32_t credit_receiver_taken(struct credit_receiver *r, uint32_t bytes) __attribute__((nonnull));
