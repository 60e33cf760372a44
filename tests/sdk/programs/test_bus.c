/* SPDX-License-Identifier: Apache-2.0 */
/* The engine library as a program of its own, for the tests: with `serve PORT` an embedded engine, with `worker URL` a worker
 * of a real one; in both cases the functions demo::*. What happens is said in lines on standard output. Standard input at its
 * end, or SIGTERM, ends it. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "daemon/stop.h"
#include "engine/channel.h"
#include "engine/uplink.h"
#include "engine/server.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uv_loop_t loop;
static struct engine *engine;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

/* ---- plain calls ---- */

static void echo(struct invocation *call, void *context)
{
    (void)context;
    invocation_reply(call, json_incref(invocation_data(call)));
}

static void describe(struct invocation *call, void *context)
{
    (void)context;
    json_t *metadata = invocation_metadata(call);
    const char *trace = invocation_traceparent(call);
    invocation_reply(call, json_pack("{s:O, s:O?, s:s, s:s?}", "data", invocation_data(call), "metadata", metadata, "caller",
                                     invocation_caller(call), "traceparent", trace));
}

static void fail(struct invocation *call, void *context)
{
    (void)context;
    const char *code = json_string_value(json_object_get(invocation_data(call), "code"));
    const char *message = json_string_value(json_object_get(invocation_data(call), "message"));
    if (code && message)
        invocation_fail(call, code, message);
    else
        invocation_fail(call, "S001", "'code' and 'message' are needed");
}

struct delay {
    uv_timer_t timer;
    struct invocation *call;
};

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void on_delay(uv_timer_t *timer)
{
    struct delay *delay = timer->data;
    invocation_reply(delay->call, json_string("late"));
    uv_close((uv_handle_t *)timer, on_timer_closed);
}

static void on_gone(struct invocation *call, void *context)
{
    (void)context;
    say("gone %s", invocation_function(call));
}

static void slow(struct invocation *call, void *context)
{
    (void)context;
    struct delay *delay = xcalloc(1, sizeof *delay);
    delay->call = call;
    uv_timer_init(&loop, &delay->timer);
    delay->timer.data = delay;
    invocation_on_gone(call, on_gone, NULL);
    uv_timer_start(&delay->timer, on_delay, (uint64_t)json_integer_value(json_object_get(invocation_data(call), "ms")), 0);
}

static size_t count_fds(void)
{
    auto_dir dir = opendir("/proc/self/fd");
    size_t count = 0;
    while (dir && readdir(dir))
        count++;
    return count - 3; /* ".", ".." and the folder's own */
}

static long long memory_kb(const char *field)
{
    auto_file file = fopen("/proc/self/status", "re");
    char line[256];
    uint64_t value = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (!text_has_prefix(line, field))
            continue;
        char *digits = line + strcspn(line, "0123456789");
        digits[strspn(digits, "0123456789")] = 0;
        struct err e = ERR_INIT;
        if (text_parse_u64(digits, UINT64_MAX, &value, &e))
            value = 0;
    }
    return (long long)value;
}

static void stats(struct invocation *call, void *context)
{
    (void)context;
    if (json_is_true(json_object_get(invocation_data(call), "reset"))) {
        auto_file file = fopen("/proc/self/clear_refs", "we");
        if (file)
            fputs("5", file); /* the peak starts again */
    }
    invocation_reply(call, json_pack("{s:I, s:I, s:I}", "fds", (json_int_t)count_fds(), "rss_kb", (json_int_t)memory_kb("VmRSS:"),
                                     "peak_kb", (json_int_t)memory_kb("VmHWM:")));
}

/* ---- our own calls ---- */

static void on_relayed(void *context, json_t *result, const char *code, const char *message)
{
    struct invocation *call = context;
    if (code)
        invocation_reply(call, json_pack("{s:s, s:s}", "code", code, "message", message));
    else
        invocation_reply(call, json_pack("{s:O}", "result", result));
}

static void relay(struct invocation *call, void *context)
{
    (void)context;
    json_t *data = invocation_data(call);
    const char *id = json_string_value(json_object_get(data, "function_id"));
    if (!id) {
        invocation_fail(call, "S001", "'function_id' is needed");
        return;
    }
    struct engine_call own = {.function_id = id, .data = json_object_get(data, "data"), .from = call};
    own.timeout_ms = (uint64_t)json_integer_value(json_object_get(data, "timeout_ms"));
    engine_call(engine, &own, on_relayed, call);
}

/* ---- channels ---- */

#define HASH_START 0xcbf29ce484222325u

static uint64_t hash_bytes(uint64_t hash, const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

struct consumer {
    struct invocation *call;
    struct channel_reader *reader;
    uv_timer_t timer;
    uint64_t bytes, hash, pause_ms, close_after;
    json_t *texts;
};

static const char *const end_names[] = {"closed", "lost", "refused"};

static void consumer_finish(struct consumer *consumer, const char *end)
{
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, consumer->hash);
    invocation_reply(consumer->call, json_pack("{s:I, s:s, s:o, s:s}", "bytes", (json_int_t)consumer->bytes, "hash", hash,
                                               "texts", consumer->texts, "end", end));
    uv_close((uv_handle_t *)&consumer->timer, on_timer_closed);
}

static void on_pause_over(uv_timer_t *timer)
{
    struct consumer *consumer = timer->data;
    channel_reader_resume(consumer->reader);
}

static void on_bytes(void *context, const uint8_t *bytes, size_t len)
{
    struct consumer *consumer = context;
    bool first = !consumer->bytes;
    consumer->bytes += len;
    consumer->hash = hash_bytes(consumer->hash, bytes, len);
    if (consumer->close_after && consumer->bytes >= consumer->close_after) {
        channel_reader_close(consumer->reader);
        consumer_finish(consumer, "by us");
        return;
    }
    if (first && consumer->pause_ms) {
        channel_reader_pause(consumer->reader);
        uv_timer_start(&consumer->timer, on_pause_over, consumer->pause_ms, 0);
    }
}

static void on_text(void *context, const char *text, size_t len)
{
    struct consumer *consumer = context;
    json_array_append_new(consumer->texts, json_stringn(text, len));
}

static void on_end(void *context, enum channel_end end)
{
    consumer_finish(context, end_names[end]);
}

static const struct channel_reader_events reader_events = {.on_bytes = on_bytes, .on_text = on_text, .on_end = on_end};

static void consume(struct invocation *call, void *context)
{
    (void)context;
    struct channel_ref ref;
    struct err e = ERR_INIT;
    json_t *data = invocation_data(call);
    if (channel_ref_decode(json_object_get(data, "reader"), false, &ref, &e)) {
        invocation_fail(call, "S001", e.text);
        return;
    }
    struct consumer *consumer = xcalloc(1, sizeof *consumer);
    consumer->call = call;
    consumer->hash = HASH_START;
    consumer->pause_ms = (uint64_t)json_integer_value(json_object_get(data, "pause_ms"));
    consumer->close_after = (uint64_t)json_integer_value(json_object_get(data, "close_after"));
    consumer->texts = json_array();
    uv_timer_init(&loop, &consumer->timer);
    consumer->timer.data = consumer;
    consumer->reader = channel_reader_open(engine, &ref, &reader_events, consumer, false, &e);
    if (consumer->reader)
        return;
    json_decref(consumer->texts);
    uv_close((uv_handle_t *)&consumer->timer, on_timer_closed);
    invocation_fail(call, "S001", e.text);
}

struct producer {
    struct invocation *call;
    struct channel_writer *writer;
    uint64_t left, sent, hash;
    bool aborts;
};

static void producer_finish(struct producer *producer, const char *end)
{
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, producer->hash);
    invocation_reply(producer->call, json_pack("{s:I, s:s, s:s}", "bytes", (json_int_t)producer->sent, "hash", hash, "end", end));
    free(producer);
}

static void produce_some(void *context)
{
    struct producer *producer = context;
    uint8_t block[64 * 1024];
    struct err e = ERR_INIT;
    for (;;) {
        size_t room = channel_writer_room(producer->writer), len = sizeof block;
        len = len > room ? room : len;
        len = len > producer->left ? producer->left : len;
        if (!len)
            break;
        for (size_t i = 0; i < len; i++)
            block[i] = (uint8_t)((producer->sent + i) * 31 + ((producer->sent + i) >> 8));
        CHECK(channel_writer_bytes(producer->writer, block, len, &e) == 0);
        producer->hash = hash_bytes(producer->hash, block, len);
        producer->sent += len;
        producer->left -= len;
    }
    if (producer->left)
        return;
    if (producer->aborts)
        channel_writer_abort(producer->writer);
    else
        channel_writer_close(producer->writer);
    producer_finish(producer, "written");
}

static void on_reader_gone(void *context, enum channel_end end)
{
    (void)end;
    producer_finish(context, "reader gone");
}

static const struct channel_writer_events writer_events = {.on_room = produce_some, .on_end = on_reader_gone};

static void produce(struct invocation *call, void *context)
{
    (void)context;
    struct channel_ref ref;
    struct err e = ERR_INIT;
    json_t *data = invocation_data(call);
    if (channel_ref_decode(json_object_get(data, "writer"), true, &ref, &e)) {
        invocation_fail(call, "S001", e.text);
        return;
    }
    struct producer *producer = xcalloc(1, sizeof *producer);
    producer->call = call;
    producer->hash = HASH_START;
    producer->left = (uint64_t)json_integer_value(json_object_get(data, "bytes"));
    producer->aborts = json_is_true(json_object_get(data, "abort"));
    producer->writer = channel_writer_open(engine, &ref, &writer_events, producer, &e);
    if (!producer->writer) {
        free(producer);
        invocation_fail(call, "S001", e.text);
        return;
    }
    const char *text = json_string_value(json_object_get(data, "text"));
    if (text)
        CHECK(channel_writer_text(producer->writer, text, strlen(text), &e) == 0);
    produce_some(producer);
}

static void on_created(void *context, const struct channel_ref *reader, const struct channel_ref *writer, const char *code,
                       const char *message)
{
    struct invocation *call = context;
    if (code)
        invocation_fail(call, code, message);
    else
        invocation_reply(call,
                         json_pack("{s:o, s:o}", "reader", channel_ref_encode(reader), "writer", channel_ref_encode(writer)));
}

static void make_channel(struct invocation *call, void *context)
{
    (void)context;
    channel_create(engine, 0, on_created, call);
}

static const struct engine_function functions[] = {
    {.id = "demo::echo",
     .description = "returns its input",
     .request_format = "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\",\"description\":\"anything\"}}}",
     .response_format = "{\"type\":\"object\"}",
     .metadata = "{\"team\":\"tests\"}",
     .handler = echo},
    {.id = "demo::describe", .handler = describe},
    {.id = "demo::fail", .handler = fail},
    {.id = "demo::slow", .handler = slow},
    {.id = "demo::stats", .metadata = "{\"internal\":true}", .handler = stats},
    {.id = "demo::relay", .handler = relay},
    {.id = "demo::consume", .handler = consume},
    {.id = "demo::produce", .handler = produce},
    {.id = "demo::channel", .handler = make_channel},
};

/* ---- the program ---- */

static struct stop *stopper;
static uv_pipe_t input;

static void end(void)
{
    if (!stopper)
        return;
    engine_free(engine);
    stop_free(stopper);
    stopper = NULL;
    uv_close((uv_handle_t *)&input, NULL);
}

static void on_stop(void *context, const char *why)
{
    (void)context;
    say("stop %s", why);
    end();
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)handle;
    (void)suggested;
    static char ignored[256];
    *buf = uv_buf_init(ignored, sizeof ignored);
}

static void on_input(uv_stream_t *stream, ssize_t len, const uv_buf_t *buf)
{
    (void)stream;
    (void)buf;
    if (len < 0)
        end();
}

static void on_state(void *context, enum uplink_state state, const char *reason)
{
    (void)context;
    say("state %s %" PRIu64 " %s", uplink_state_name(state), clock_now_ms(), reason ? reason : "");
}

static int start(int argc, char **argv, struct err *e)
{
    if (argc >= 3 && strcmp(argv[1], "serve") == 0) {
        uint64_t port;
        uint16_t bound;
        char *origins[] = {getenv("TEST_ORIGIN"), NULL};
        struct server_config config = {.host = getenv("TEST_HOST"),
                                       .token = getenv("TEST_TOKEN"),
                                       .allowed_origins = origins,
                                       .otlp_endpoint = getenv("OTEL_EXPORTER_OTLP_ENDPOINT")};
        if (text_parse_u64(argv[2], 65535, &port, e))
            return -1;
        config.port = (uint16_t)port;
        engine = server_new(&loop, &config, &bound, e);
        if (engine)
            say("listening %u", bound);
    } else if (argc >= 3 && strcmp(argv[1], "worker") == 0) {
        struct uplink_config config = {.url = argv[2],
                                     .name = "test-worker",
                                     .description = "the tests' worker",
                                     .token = getenv("TEST_TOKEN"),
                                     .on_state = on_state};
        engine = uplink_new(&loop, &config, e);
    } else {
        return err_set(e, ERR_USAGE, "usage: test_bus serve PORT | worker URL");
    }
    return engine ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;
    signal(SIGPIPE, SIG_IGN);
    log_set_level(getenv("TEST_DEBUG") ? LOG_DEBUG : LOG_WARN);
    CHECK(uv_loop_init(&loop) == 0);
    stopper = stop_watch(&loop, on_stop, NULL, &e);
    if (!stopper || start(argc, argv, &e)) {
        fprintf(stderr, "test_bus: %s\n", e.text);
        return 1;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        CHECK(engine_register(engine, &functions[i], &e) == 0);
    uv_pipe_init(&loop, &input, 0);
    if (uv_pipe_open(&input, 0) == 0)
        uv_read_start((uv_stream_t *)&input, on_alloc, on_input);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&loop) == 0);
    say("stopped");
    return 0;
}
