/* SPDX-License-Identifier: Apache-2.0 */
/* The link to a real engine: this process as a worker, or as a caller only. */
#pragma once

#include "base/err.h"
#include "engine/engine.h"

#include <stdbool.h>
#include <stdint.h>

enum uplink_state {
    UPLINK_WAITING,    /* for the next attempt */
    UPLINK_RESOLVING,  /* the host name */
    UPLINK_CONNECTING, /* TCP, TLS and upgrade */
    UPLINK_OPEN,
    UPLINK_REFUSED, /* the engine does not take a worker of this name: final */
    UPLINK_CLOSED,  /* by us: final */
    UPLINK_STATE_COUNT
};

struct uplink_config {
    const char *url;  /* ws:// or wss:// */
    const char *name; /* of this worker, unlike any other's */
    const char *description;
    const char *token;         /* NULL: none is sent */
    const char *otlp_endpoint; /* NULL: spans are not exported */
    /* Each change, with the reason of a failure. The same state again, with a reason: the engine refused something and the link
     * goes on. May be NULL. */
    void (*on_state)(void *context, enum uplink_state state, const char *reason);
    void *context;
};

/* Connects, and goes on connecting until engine_free. */
struct engine *uplink_new(uv_loop_t *loop, const struct uplink_config *config, struct err *e)
    __attribute__((nonnull, warn_unused_result));
enum uplink_state uplink_state_of(const struct engine *engine) __attribute__((nonnull));
const char *uplink_state_name(enum uplink_state state);

/* The delay before attempt `failures` + 1: 1 s, doubling to 30 s, spread by 30 % with `random`. Pure. */
unsigned uplink_backoff_ms(unsigned failures, uint32_t random);
