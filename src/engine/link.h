/* SPDX-License-Identifier: Apache-2.0 */
/* The link to a real engine: this process as a worker, or as a caller only. */
#pragma once

#include "base/err.h"
#include "engine/engine.h"

#include <stdbool.h>
#include <stdint.h>

enum link_state {
    LINK_WAITING,    /* for the next attempt */
    LINK_RESOLVING,  /* the host name */
    LINK_CONNECTING, /* TCP, TLS and upgrade */
    LINK_OPEN,
    LINK_REFUSED, /* the engine does not take a worker of this name: final */
    LINK_CLOSED,  /* by us: final */
    LINK_STATE_COUNT
};

struct link_config {
    const char *url;  /* ws:// or wss:// */
    const char *name; /* of this worker, unlike any other's */
    const char *description;
    const char *token;         /* NULL: none is sent */
    const char *otlp_endpoint; /* NULL: spans are not exported */
    /* Each change, with the reason of a failure; may be NULL. */
    void (*on_state)(void *context, enum link_state state, const char *reason);
    void *context;
};

/* Connects, and goes on connecting until engine_free. */
struct engine *link_new(uv_loop_t *loop, const struct link_config *config, struct err *e)
    __attribute__((nonnull, warn_unused_result));
enum link_state link_state_of(const struct engine *engine) __attribute__((nonnull));
const char *link_state_name(enum link_state state);

/* The delay before attempt `failures` + 1: 1 s, doubling to 30 s, spread by 30 % with `random`. Pure. */
unsigned link_backoff_ms(unsigned failures, uint32_t random);
