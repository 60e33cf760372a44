/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of one engine, as a table; written in Prometheus' text format. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#include <stdint.h>

#define METRICS_TABLE(X)                                                                                                         \
    X(CONNECTIONS, "connections", "gauge", "open worker connections")                                                            \
    X(FUNCTIONS, "functions", "gauge", "registered functions")                                                                   \
    X(CALLS_OPEN, "calls_open", "gauge", "calls that wait for their answer")                                                     \
    X(CHANNELS, "channels", "gauge", "channels with an open or unused end")                                                      \
    X(HELD_BYTES, "held_bytes", "gauge", "bytes that wait for slow peers")                                                       \
    X(CALLS, "calls_total", "counter", "calls accepted")                                                                         \
    X(CALLS_FAILED, "calls_failed_total", "counter", "calls answered with an error")                                             \
    X(MESSAGES_IN, "messages_received_total", "counter", "messages received")                                                    \
    X(MESSAGES_DROPPED, "messages_dropped_total", "counter", "messages that were malformed, unknown or out of place")            \
    X(CONNECTIONS_ACCEPTED, "connections_accepted_total", "counter", "upgrades accepted")                                        \
    X(CONNECTIONS_REFUSED, "connections_refused_total", "counter", "requests refused (token, origin, host, path, limit)")        \
    X(SLOW_DROPPED, "slow_connections_dropped_total", "counter", "connections dropped because they read too slowly")             \
    X(CHANNEL_BYTES, "channel_bytes_total", "counter", "bytes that went through channels")                                       \
    X(SPANS_EXPORTED, "spans_exported_total", "counter", "spans taken by the collector")                                         \
    X(SPANS_DROPPED, "spans_dropped_total", "counter", "spans lost: queue full or collector unreachable")

enum metric {
#define X(name, text, type, help) METRIC_##name,
    METRICS_TABLE(X)
#undef X
        METRIC_COUNT
};

struct metrics {
    uint64_t values[METRIC_COUNT];
};

static inline void metric_add(struct metrics *metrics, enum metric metric, int64_t change)
{
    metrics->values[metric] += (uint64_t)change;
}

int metrics_write(const struct metrics *metrics, struct buf *out, struct err *e) __attribute__((nonnull, warn_unused_result));
