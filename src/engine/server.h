/* SPDX-License-Identifier: Apache-2.0 */
/* The embedded engine: the bus itself, on a port of this host. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "engine/engine.h"

#include <stddef.h>
#include <stdint.h>

#define SERVER_PORT 49134

struct server_config {
    const char *host; /* numeric address; NULL: 127.0.0.1, and ::1 where there is one */
    uint16_t port;    /* 0: a free one */
    const char *token;
    char *const *allowed_origins;                       /* NULL-terminated; NULL: none */
    const char *otlp_endpoint;                          /* NULL: spans are not exported */
    void (*on_metrics)(void *context, struct buf *out); /* appended to /metrics; may be NULL */
    void *metrics_context;
};

struct engine *server_new(uv_loop_t *loop, const struct server_config *config, uint16_t *ret_port, struct err *e)
    __attribute__((nonnull, warn_unused_result));
