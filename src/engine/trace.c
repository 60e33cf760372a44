/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/trace.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/json_text.h"
#include "engine/resolve.h"
#include "engine/url.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define EXPORT_AFTER_MS 1000u
#define EXPORT_TIMEOUT_MS 10000u

static bool is_lower_hex(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!text[i] || !strchr("0123456789abcdef", text[i]))
            return false;
    return true;
}

bool trace_parse(const char *traceparent, struct trace_context *ret_context)
{
    if (strlen(traceparent) < 55 || !is_lower_hex(traceparent, 2) || traceparent[2] != '-' ||
        !is_lower_hex(traceparent + 3, 32) || traceparent[35] != '-' || !is_lower_hex(traceparent + 36, 16) ||
        traceparent[52] != '-' || !is_lower_hex(traceparent + 53, 2))
        return false;
    /* Version ff is forbidden; 00 has exactly these fields, later ones may have more behind a dash. */
    if (strncmp(traceparent, "ff", 2) == 0 || (traceparent[55] && (strncmp(traceparent, "00", 2) == 0 || traceparent[55] != '-')))
        return false;
    if (strspn(traceparent + 3, "0") >= 32 || strspn(traceparent + 36, "0") >= 16)
        return false;
    memcpy(ret_context->trace_id, traceparent + 3, 32);
    memcpy(ret_context->span_id, traceparent + 36, 16);
    ret_context->trace_id[32] = ret_context->span_id[16] = 0;
    ret_context->sampled = strchr("13579bdf", traceparent[54]) != NULL;
    return true;
}

static int write_span(const struct span *span, struct buf *out, struct err *e)
{
    if (buf_appendf(out, e, "{\"traceId\":\"%s\",\"spanId\":\"%s\",", span->trace_id, span->span_id) ||
        (span->parent_id[0] && buf_appendf(out, e, "\"parentSpanId\":\"%s\",", span->parent_id)) ||
        buf_appendf(out, e, "\"name\":") || json_append_string(out, span->name, strlen(span->name), e) ||
        buf_appendf(out, e, ",\"kind\":2,\"startTimeUnixNano\":\"%" PRIu64 "\",\"endTimeUnixNano\":\"%" PRIu64 "\"",
                    span->started_ns, span->ended_ns))
        return -1;
    if (!span->error_code[0])
        return buf_appendf(out, e, ",\"status\":{\"code\":1}}");
    if (buf_appendf(out, e, ",\"status\":{\"code\":2,\"message\":") ||
        json_append_string(out, span->error_code, strlen(span->error_code), e))
        return -1;
    return buf_appendf(out, e, "}}");
}

int spans_write(const struct span *spans, size_t len, struct buf *out, struct err *e)
{
    if (buf_appendf(out, e,
                    "{\"resourceSpans\":[{\"resource\":{\"attributes\":[{\"key\":\"service.name\",\"value\":{\"stringValue\":"
                    "\"iii-sandbox\"}},{\"key\":\"service.version\",\"value\":{\"stringValue\":\"" III_SANDBOX_VERSION
                    "\"}}]},\"scopeSpans\":[{\"scope\":{\"name\":\"iii-sandbox\"},\"spans\":["))
        return -1;
    for (size_t i = 0; i < len; i++)
        if ((i && buf_append_u8(out, ',', e)) || write_span(&spans[i], out, e))
            return -1;
    return buf_appendf(out, e, "]}]}]}");
}

/* ---- the exporter: one POST at a time ---- */

struct tracer {
    uv_loop_t *loop;
    struct url url;
    struct metrics *metrics;
    struct span *queue; /* a ring of ENGINE_SPANS_MAX */
    size_t first, len;
    uv_timer_t timer;
    struct export *export; /* NULL: none under way */
    bool failing;          /* the failure was logged */
};

/* Resolves, connects, sends, reads the status line. Its own object, so that a tracer can go while it closes. */
struct export
{
    struct tracer *tracer; /* NULL: nobody waits for it */
    struct resolution *resolution;
    uv_tcp_t tcp;
    uv_timer_t timeout;
    uv_connect_t connect;
    uv_write_t write;
    struct buf body;
    size_t spans_len;
    char answer[512];
    size_t answer_len;
    int handles;
};

static void on_timer(uv_timer_t *timer);

static void on_export_closed(uv_handle_t *handle)
{
    struct export *export = handle->data;
    if (--export->handles)
        return;
    buf_done(&export->body);
    free(export);
}

static void export_end(struct export *export, const char *failure)
{
    if (uv_is_closing((uv_handle_t *)&export->timeout))
        return;
    struct tracer *tracer = export->tracer;
    export->tracer = NULL;
    resolve_cancel(export->resolution);
    export->resolution = NULL;
    export->handles = 2;
    uv_close((uv_handle_t *)&export->timeout, on_export_closed);
    uv_close((uv_handle_t *)&export->tcp, on_export_closed);
    if (!tracer)
        return;
    tracer->export = NULL;
    metric_add(tracer->metrics, failure ? METRIC_SPANS_DROPPED : METRIC_SPANS_EXPORTED, (int64_t) export->spans_len);
    if (failure && !tracer->failing)
        log_debug("export of spans to %s: %s, dropping them", tracer->url.host, failure);
    tracer->failing = failure != NULL;
    if (tracer->len)
        uv_timer_start(&tracer->timer, on_timer, failure ? EXPORT_AFTER_MS : 0, 0);
}

static void on_export_timeout(uv_timer_t *timer)
{
    export_end(timer->data, "no answer within 10 s");
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct export *export = handle->data;
    *buf = uv_buf_init(export->answer + export->answer_len, (unsigned)(sizeof export->answer - 1 - export->answer_len));
}

static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buf)
{
    (void)buf;
    struct export *export = stream->data;
    if (len < 0) {
        export_end(export, "the collector closed the connection");
        return;
    }
    export->answer_len += (size_t)len;
    export->answer[export->answer_len] = 0;
    if (!strchr(export->answer, '\n') && export->answer_len + 1 < sizeof export->answer)
        return;
    bool good = strncmp(export->answer, "HTTP/1.", 7) == 0 && export->answer[8] == ' ' && export->answer[9] == '2';
    export_end(export, good ? NULL : "the collector refused them");
}

static void on_written(uv_write_t *write, int status)
{
    if (status < 0 && status != UV_ECANCELED)
        export_end(write->data, uv_strerror(status));
}

static void on_connected(uv_connect_t *connect, int status)
{
    struct export *export = connect->data;
    if (status < 0) {
        if (status != UV_ECANCELED)
            export_end(export, uv_strerror(status));
        return;
    }
    uv_buf_t bytes = uv_buf_init((char *)(uintptr_t)buf_data(&export->body), (unsigned)export->body.len);
    export->write.data = export;
    if (uv_read_start((uv_stream_t *)&export->tcp, on_alloc, on_read) ||
        uv_write(&export->write, (uv_stream_t *)&export->tcp, &bytes, 1, on_written))
        export_end(export, "the connection broke at once");
}

static void on_resolved(void *context, const char *address, const char *failure)
{
    struct export *export = context;
    export->resolution = NULL;
    if (!address) {
        export_end(export, failure);
        return;
    }
    struct sockaddr_storage to;
    int port = export->tracer->url.port;
    if (uv_ip4_addr(address, port, (struct sockaddr_in *)&to) && uv_ip6_addr(address, port, (struct sockaddr_in6 *)&to)) {
        export_end(export, "no address");
        return;
    }
    export->connect.data = export;
    int code = uv_tcp_connect(&export->connect, &export->tcp, (const struct sockaddr *)&to, on_connected);
    if (code)
        export_end(export, uv_strerror(code));
}

static int build_request(struct tracer *tracer, const struct span *spans, size_t len, struct buf *out, struct err *e)
{
    auto_buf body = BUF_INIT(MIB);
    if (spans_write(spans, len, &body, e))
        return -1;
    const char *path = strcmp(tracer->url.path, "/") == 0 ? "" : tracer->url.path;
    if (buf_appendf(out, e,
                    "POST %s/v1/traces HTTP/1.1\r\nHost: %s:%u\r\nContent-Type: application/json\r\nContent-Length: "
                    "%zu\r\nConnection: close\r\n\r\n",
                    path, tracer->url.host, tracer->url.port, body.len))
        return -1;
    return buf_append(out, buf_data(&body), body.len, e);
}

static void on_timer(uv_timer_t *timer)
{
    struct tracer *tracer = timer->data;
    if (tracer->export || !tracer->len)
        return;
    size_t len = tracer->len < ENGINE_SPANS_BATCH ? tracer->len : ENGINE_SPANS_BATCH;
    auto_free struct span *batch = xcalloc(len, sizeof *batch);
    for (size_t i = 0; i < len; i++)
        batch[i] = tracer->queue[(tracer->first + i) % ENGINE_SPANS_MAX];
    tracer->first = (tracer->first + len) % ENGINE_SPANS_MAX;
    tracer->len -= len;
    struct export *export = xcalloc(1, sizeof *export);
    struct err e = ERR_INIT;
    export->body = BUF_INIT(2 * MIB);
    if (build_request(tracer, batch, len, &export->body, &e)) {
        metric_add(tracer->metrics, METRIC_SPANS_DROPPED, (int64_t)len);
        buf_done(&export->body);
        free(export);
        return;
    }
    export->tracer = tracer;
    export->spans_len = len;
    tracer->export = export;
    uv_tcp_init(tracer->loop, &export->tcp);
    uv_timer_init(tracer->loop, &export->timeout);
    export->tcp.data = export->timeout.data = export;
    uv_timer_start(&export->timeout, on_export_timeout, EXPORT_TIMEOUT_MS, 0);
    export->resolution = resolve_start(tracer->loop, tracer->url.host, on_resolved, export);
}

struct tracer *tracer_new(uv_loop_t *loop, const char *endpoint, struct metrics *metrics, struct err *e)
{
    struct url url;
    if (url_parse(endpoint, &url, e)) {
        err_wrap(e, "the endpoint for spans");
        return NULL;
    }
    if (strcmp(url.scheme, "http") != 0) {
        err_set(e, ERR_INVALID, "the endpoint for spans must be http://HOST:PORT: '%s'", endpoint);
        return NULL;
    }
    struct tracer *tracer = xcalloc(1, sizeof *tracer);
    *tracer = (struct tracer){.loop = loop, .url = url, .metrics = metrics};
    tracer->queue = xcalloc(ENGINE_SPANS_MAX, sizeof *tracer->queue);
    uv_timer_init(loop, &tracer->timer);
    tracer->timer.data = tracer;
    return tracer;
}

static void on_tracer_closed(uv_handle_t *handle)
{
    struct tracer *tracer = handle->data;
    free(tracer->queue);
    free(tracer);
}

void tracer_free(struct tracer *tracer)
{
    if (!tracer)
        return;
    if (tracer->export) {
        struct export *export = tracer->export;
        export->tracer = NULL;
        export_end(export, NULL);
    }
    uv_close((uv_handle_t *)&tracer->timer, on_tracer_closed);
}

void tracer_add(struct tracer *tracer, const char *name, const char *traceparent, uint64_t started_ns, uint64_t ended_ns,
                const char *error_code)
{
    if (!tracer)
        return;
    if (tracer->len == ENGINE_SPANS_MAX) {
        metric_add(tracer->metrics, METRIC_SPANS_DROPPED, 1);
        return;
    }
    struct span *span = &tracer->queue[(tracer->first + tracer->len) % ENGINE_SPANS_MAX];
    struct trace_context context;
    uint8_t random[24];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return;
    *span = (struct span){.started_ns = started_ns, .ended_ns = ended_ns};
    text_hex(random, 8, span->span_id);
    if (traceparent && trace_parse(traceparent, &context)) {
        if (!context.sampled)
            return;
        memcpy(span->trace_id, context.trace_id, sizeof span->trace_id);
        memcpy(span->parent_id, context.span_id, sizeof span->parent_id);
    } else {
        text_hex(random + 8, 16, span->trace_id);
    }
    snprintf(span->name, sizeof span->name, "%s", name);
    if (!text_is_utf8(span->name, strlen(span->name))) /* cut inside a character */
        span->name[0] = 0;
    snprintf(span->error_code, sizeof span->error_code, "%s", error_code ? error_code : "");
    tracer->len++;
    if (!tracer->export && !uv_is_active((uv_handle_t *)&tracer->timer))
        uv_timer_start(&tracer->timer, on_timer, EXPORT_AFTER_MS, 0);
}
