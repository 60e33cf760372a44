/* SPDX-License-Identifier: Apache-2.0 */
/* The link against a guest that the test plays: honest, slow, and lying. */
#include "sandbox/link.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"

#include <sys/socket.h>

#include "unit.h"

struct scene {
    uv_loop_t loop;
    struct link *link;
    int guest; /* our end */
    unsigned hellos, broken, ends, writable, channel_ends;
    bool closed;
    struct err why, failure;
    char reply[64];
    size_t reply_len, data_len[WIRE_CHANNEL_COUNT];
    bool take; /* credit data at once */
    uint32_t call;
};

static void on_hello(void *context, const struct wire_hello *hello)
{
    struct scene *s = context;
    s->hellos += hello->version == WIRE_PROTOCOL_VERSION;
}

static void on_broken(void *context, const struct err *why, bool closed)
{
    struct scene *s = context;
    s->broken++;
    s->closed = closed;
    s->why = *why;
}

static void on_data(void *context, enum wire_channel channel, const uint8_t *bytes, size_t len)
{
    struct scene *s = context;
    (void)bytes;
    s->data_len[channel] += len;
    if (s->take)
        link_call_taken(s->link, s->call, channel, len);
}

static void on_channel_end(void *context, enum wire_channel channel)
{
    struct scene *s = context;
    (void)channel;
    s->channel_ends++;
}

static void on_writable(void *context)
{
    ((struct scene *)context)->writable++;
}

static void on_end(void *context, const uint8_t *reply, size_t len, const struct err *failure)
{
    struct scene *s = context;
    s->ends++;
    s->reply_len = len;
    if (failure)
        s->failure = *failure;
    else
        memcpy(s->reply, reply, len < sizeof s->reply ? len : sizeof s->reply);
}

static int set_up(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    struct err e = ERR_INIT;
    int pair[2];
    CHECK(s && uv_loop_init(&s->loop) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    s->guest = pair[1];
    CHECK(fd_set_nonblocking(s->guest, true, &e) == 0);
    struct link_events events = {.context = s, .on_hello = on_hello, .on_broken = on_broken};
    s->link = link_new(&s->loop, pair[0], &events, &e);
    *state = s;
    return s->link ? 0 : -1;
}

static int tear_down(void **state)
{
    struct scene *s = *state;
    link_free(s->link);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    close(s->guest);
    int result = uv_loop_close(&s->loop);
    free(s);
    return result;
}

static void turn(struct scene *s)
{
    for (int i = 0; i < 20; i++)
        uv_run(&s->loop, UV_RUN_NOWAIT);
}

/* What the guest says. */
static void say(struct scene *s, uint32_t stream, enum wire_kind kind, enum wire_channel channel, uint16_t flags,
                const void *body, uint32_t len)
{
    auto_buf out = BUF_INIT(WIRE_FRAME_MAX);
    struct err e = ERR_INIT;
    struct wire_frame frame = {
        .stream = stream, .kind = (uint8_t)kind, .channel = (uint8_t)channel, .flags = flags, .body = body, .body_bytes = len};
    assert_int_equal(wire_frame_append(&out, &frame, &e), 0);
    for (size_t done = 0; done < out.len;) {
        ssize_t n = write(s->guest, buf_data(&out) + done, out.len - done);
        if (n < 0 && errno == EAGAIN) {
            turn(s);
            continue;
        }
        assert_true(n > 0);
        done += (size_t)n;
    }
    turn(s);
}

static void say_hello(struct scene *s)
{
    auto_buf body = BUF_INIT(WIRE_FRAME_MAX);
    struct err e = ERR_INIT;
    struct wire_hello hello = {.version = WIRE_PROTOCOL_VERSION, .kernel_release = (char[]){"6.1"}};
    assert_int_equal(wire_hello_encode(&body, &hello, &e), 0);
    say(s, 0, WIRE_HELLO, WIRE_CHANNEL_IN, 0, buf_data(&body), (uint32_t)body.len);
}

static void open_call(struct scene *s)
{
    struct err e = ERR_INIT;
    struct wire_request request = {.operation = WIRE_OP_SHUTDOWN};
    struct link_call_events events = {
        .context = s, .on_data = on_data, .on_channel_end = on_channel_end, .on_writable = on_writable, .on_end = on_end};
    assert_int_equal(link_call(s->link, &request, &events, &s->call, &e), 0);
    turn(s);
}

/* Bytes of DATA that the guest has received so far. */
static size_t heard_data(struct scene *s)
{
    static uint8_t room[1 << 20];
    size_t data = 0, have = 0;
    turn(s);
    for (ssize_t n; (n = read(s->guest, room + have, sizeof room - have)) > 0; have += (size_t)n)
        turn(s);
    for (size_t at = 0; at + WIRE_HEADER_BYTES <= have;) {
        size_t body = room[at] | (size_t)room[at + 1] << 8 | (size_t)room[at + 2] << 16;
        if (room[at + 8] == WIRE_DATA)
            data += body;
        at += WIRE_HEADER_BYTES + body;
    }
    return data;
}

static void test_call_ends_once_with_the_pieces_put_together(void **state)
{
    struct scene *s = *state;
    say_hello(s);
    assert_int_equal(s->hellos, 1);
    open_call(s);
    say(s, s->call, WIRE_REPLY, WIRE_CHANNEL_IN, WIRE_FLAG_MORE, "abc", 3);
    assert_int_equal(s->ends, 0);
    say(s, s->call, WIRE_REPLY, WIRE_CHANNEL_IN, 0, "def", 3);
    assert_int_equal(s->ends, 1);
    assert_int_equal(s->reply_len, 6);
    assert_memory_equal(s->reply, "abcdef", 6);
    assert_int_equal(s->broken, 0);
    say(s, s->call, WIRE_REPLY, WIRE_CHANNEL_IN, 0, "x", 1); /* a stream that has ended */
    assert_int_equal(s->broken, 1);
    assert_int_equal(s->why.code, ERR_PROTOCOL);
    assert_false(s->closed);
    assert_int_equal(s->ends, 1);
}

static void test_guest_failure_keeps_its_code_and_text(void **state)
{
    struct scene *s = *state;
    auto_buf body = BUF_INIT(WIRE_FRAME_MAX);
    struct err e = ERR_INIT;
    struct wire_failure failure = {.code = 211, .message = (char[]){"workdir '/x' does not exist"}};
    say_hello(s);
    open_call(s);
    assert_int_equal(wire_failure_encode(&body, &failure, &e), 0);
    say(s, s->call, WIRE_ERROR, WIRE_CHANNEL_IN, 0, buf_data(&body), (uint32_t)body.len);
    assert_int_equal(s->ends, 1);
    assert_int_equal(s->failure.code, ERR_FS_NOT_FOUND);
    assert_string_equal(s->failure.text, "workdir '/x' does not exist");
}

static void test_window_bounds_what_goes_to_the_guest(void **state)
{
    struct scene *s = *state;
    static uint8_t bytes[2 * WIRE_WINDOW];
    say_hello(s);
    open_call(s);
    assert_int_equal(link_call_write(s->link, s->call, bytes, sizeof bytes), WIRE_WINDOW);
    assert_int_equal(link_call_write(s->link, s->call, bytes, 1), 0);
    assert_int_equal(link_call_window(s->link, s->call), 0);
    assert_int_equal(heard_data(s), WIRE_WINDOW);
    uint8_t grant[4] = {0, 0, 1, 0}; /* 65,536 */
    say(s, s->call, WIRE_CREDIT, WIRE_CHANNEL_IN, 0, grant, 4);
    assert_int_equal(s->writable, 1);
    assert_int_equal(link_call_write(s->link, s->call, bytes, sizeof bytes), 65536);
    link_call_end_input(s->link, s->call);
    assert_int_equal(link_call_window(s->link, s->call), 0);
    uint8_t too_much[4] = {0, 0, 16, 0}; /* more than makes a full window */
    say(s, s->call, WIRE_CREDIT, WIRE_CHANNEL_IN, 0, too_much, 4);
    assert_int_equal(s->broken, 1);
    assert_int_equal(s->ends, 1);
    assert_int_equal(s->failure.code, ERR_PROTOCOL);
}

static void test_guest_that_sends_without_credit_is_cut_off(void **state)
{
    struct scene *s = *state;
    static uint8_t bytes[WIRE_BODY_MAX];
    say_hello(s);
    open_call(s);
    size_t sent = 0;
    for (; sent + WIRE_BODY_MAX <= WIRE_WINDOW; sent += WIRE_BODY_MAX)
        say(s, s->call, WIRE_DATA, WIRE_CHANNEL_OUT, 0, bytes, WIRE_BODY_MAX);
    assert_int_equal(s->broken, 0);
    assert_int_equal(s->data_len[WIRE_CHANNEL_OUT], sent);
    say(s, s->call, WIRE_DATA, WIRE_CHANNEL_ERR, 0, bytes, 100); /* the other channel has its own window */
    assert_int_equal(s->data_len[WIRE_CHANNEL_ERR], 100);
    say(s, s->call, WIRE_DATA, WIRE_CHANNEL_OUT, 0, bytes, WIRE_BODY_MAX);
    assert_int_equal(s->broken, 1);
    assert_int_equal(s->data_len[WIRE_CHANNEL_OUT], sent);
}

static void test_reader_that_takes_keeps_the_stream_flowing(void **state)
{
    struct scene *s = *state;
    static uint8_t bytes[WIRE_BODY_MAX];
    s->take = true;
    say_hello(s);
    open_call(s);
    for (int i = 0; i < 64; i++)
        say(s, s->call, WIRE_DATA, WIRE_CHANNEL_OUT, 0, bytes, WIRE_BODY_MAX);
    assert_int_equal(s->broken, 0);
    assert_int_equal(s->data_len[WIRE_CHANNEL_OUT], 64 * WIRE_BODY_MAX);
    say(s, s->call, WIRE_EOF, WIRE_CHANNEL_OUT, 0, NULL, 0);
    assert_int_equal(s->channel_ends, 1);
    say(s, s->call, WIRE_DATA, WIRE_CHANNEL_OUT, 0, bytes, 1); /* after its end */
    assert_int_equal(s->broken, 1);
}

static void test_closed_peer_ends_the_calls(void **state)
{
    struct scene *s = *state;
    say_hello(s);
    open_call(s);
    shutdown(s->guest, SHUT_RDWR);
    turn(s);
    assert_int_equal(s->broken, 1);
    assert_true(s->closed);
    assert_int_equal(s->ends, 1);
    assert_int_equal(s->failure.code, ERR_BOOT);
    struct err e = ERR_INIT;
    struct wire_request request = {.operation = WIRE_OP_SHUTDOWN};
    struct link_call_events events = {.context = s, .on_end = on_end};
    assert_int_equal(link_call(s->link, &request, &events, &s->call, &e), -1);
    assert_int_equal(e.code, ERR_STOPPED);
}

static void test_garbage_breaks_the_link(void **state)
{
    struct scene *s = *state;
    assert_int_equal(write(s->guest, "GET / HTTP/1.1\r\n\r\n", 18), 18);
    turn(s);
    assert_int_equal(s->broken, 1);
    assert_int_equal(s->why.code, ERR_PROTOCOL);
    assert_non_null(strstr(s->why.text, "broke the protocol"));
}

static void test_second_hello_and_wrong_version_break_the_link(void **state)
{
    struct scene *s = *state;
    say_hello(s);
    say_hello(s);
    assert_int_equal(s->broken, 1);
    assert_int_equal(s->hellos, 1);
}

static void test_panic_is_told_in_the_agents_words(void **state)
{
    struct scene *s = *state;
    say(s, 0, WIRE_PANIC, WIRE_CHANNEL_IN, 0, "mount /dev/vda: Invalid argument", 32);
    assert_int_equal(s->broken, 1);
    assert_int_equal(s->why.code, ERR_BOOT);
    assert_string_equal(s->why.text, "the guest agent gave up: mount /dev/vda: Invalid argument");
}

static void test_more_calls_than_streams_are_refused(void **state)
{
    struct scene *s = *state;
    struct err e = ERR_INIT;
    say_hello(s);
    for (unsigned i = 0; i < WIRE_STREAMS_MAX; i++)
        open_call(s);
    struct wire_request request = {.operation = WIRE_OP_SHUTDOWN};
    struct link_call_events events = {.context = s, .on_end = on_end};
    assert_int_equal(link_call(s->link, &request, &events, &s->call, &e), -1);
    assert_int_equal(e.code, ERR_EXEC_CAP);
    link_free(s->link);
    assert_int_equal(s->ends, WIRE_STREAMS_MAX);
    assert_int_equal(s->failure.code, ERR_STOPPED);
    s->link = NULL;
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

UNIT_MAIN(CASE(test_call_ends_once_with_the_pieces_put_together), CASE(test_guest_failure_keeps_its_code_and_text),
          CASE(test_window_bounds_what_goes_to_the_guest), CASE(test_guest_that_sends_without_credit_is_cut_off),
          CASE(test_reader_that_takes_keeps_the_stream_flowing), CASE(test_closed_peer_ends_the_calls),
          CASE(test_garbage_breaks_the_link), CASE(test_second_hello_and_wrong_version_break_the_link),
          CASE(test_panic_is_told_in_the_agents_words), CASE(test_more_calls_than_streams_are_refused))
