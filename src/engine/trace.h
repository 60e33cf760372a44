/* SPDX-License-Identifier: Apache-2.0 */
/* W3C trace context (https://www.w3.org/TR/trace-context/) and the export of spans as OTLP/HTTP JSON. Spans carry names,
 * times and error codes, never payloads. They wait in a bounded queue; what does not fit or cannot be delivered is dropped
 * and counted. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "engine/metrics.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct trace_context {
    char trace_id[33], span_id[17];
    bool sampled;
};

/* "00-<32 hex>-<16 hex>-<2 hex>"; false for anything else, also for ids of zeros. */
bool trace_parse(const char *traceparent, struct trace_context *ret_context) __attribute__((nonnull));

struct tracer;

/* endpoint: the base URL of a collector, "http://HOST:PORT[/path]"; spans go to its /v1/traces. ERR_INVALID otherwise. */
struct tracer *tracer_new(uv_loop_t *loop, const char *endpoint, struct metrics *metrics, struct err *e)
    __attribute__((nonnull, warn_unused_result));
void tracer_free(struct tracer *tracer); /* the loop must run its close callbacks */
/* One finished span. traceparent NULL or malformed: a trace of its own. error_code NULL: it went well. */
void tracer_add(struct tracer *tracer, const char *name, const char *traceparent, uint64_t started_ns, uint64_t ended_ns,
                const char *error_code);

struct span {
    char name[128], trace_id[33], parent_id[17], span_id[17], error_code[64];
    uint64_t started_ns, ended_ns;
};
/* The body of one export. Pure. */
int spans_write(const struct span *spans, size_t len, struct buf *out, struct err *e)
    __attribute__((nonnull, warn_unused_result));
