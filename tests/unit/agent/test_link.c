/* SPDX-License-Identifier: Apache-2.0 */
/* The real link with real programs, over a socketpair and without control groups: what a host sees on the wire. */
#include "agent/link.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "wire/credit.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "unit.h"

struct answer {
    struct buf out, err, body;
    unsigned eofs;
    bool failed;
    struct wire_exit exit;
    unsigned code; /* of a failure */
    char message[300];
};

static struct {
    int fd;
    pid_t pid;
    uint32_t next;
    struct wire_decoder decoder;
    uint32_t granted; /* credit that came for IN of any stream */
    char panic[300];
} host;

static int start(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    memset(&host, 0, sizeof host);
    host.pid = fork();
    if (host.pid == 0) {
        struct err e = ERR_INIT;
        struct link_options options = {.port_fd = fds[1], .upper_dirfd = -1};
        close(fds[0]);
        exit(link_run(&options, &e) ? 1 : 0);
    }
    close(fds[1]);
    host.fd = fds[0];
    host.next = 1;
    wire_decoder_init(&host.decoder);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    int status;
    close(host.fd);
    wire_decoder_done(&host.decoder);
    return waitpid(host.pid, &status, 0) == host.pid && WIFEXITED(status) ? 0 : -1;
}

static void put(const struct wire_frame *frame)
{
    auto_buf out = BUF_INIT(WIRE_FRAME_MAX);
    struct err e = ERR_INIT;
    assert_int_equal(wire_frame_append(&out, frame, &e), 0);
    assert_int_equal(fd_write_all(host.fd, buf_data(&out), out.len, &e), 0);
}

/* The next frame within 20 s; false when the link has ended. */
static bool take(struct wire_frame *frame)
{
    for (;;) {
        struct err e = ERR_INIT;
        int got = wire_decoder_next(&host.decoder, frame, &e);
        assert_true(got >= 0);
        if (got)
            return true;
        struct pollfd poller = {.fd = host.fd, .events = POLLIN};
        if (poll(&poller, 1, 20000) != 1)
            fail_msg("the agent is silent");
        uint8_t *room;
        size_t len;
        assert_int_equal(wire_decoder_room(&host.decoder, &room, &len, &e), 0);
        ssize_t n = fd_read(host.fd, room, len);
        if (n <= 0)
            return false;
        wire_decoder_fed(&host.decoder, (size_t)n);
    }
}

static uint32_t request_send(struct wire_request *request)
{
    auto_buf body = BUF_INIT(WIRE_REQUEST_MAX), out = BUF_INIT(2 * WIRE_REQUEST_MAX);
    struct err e = ERR_INIT;
    assert_int_equal(wire_request_encode(&body, request, &e), 0);
    assert_int_equal(wire_pieces_append(&out, WIRE_REQUEST, host.next, buf_data(&body), body.len, &e), 0);
    assert_int_equal(fd_write_all(host.fd, buf_data(&out), out.len, &e), 0);
    return host.next++;
}

static struct wire_request shell(const char *script)
{
    struct wire_request request = {.operation = WIRE_OP_EXEC};
    strv_add(&request.exec.argv, "sh");
    strv_add(&request.exec.argv, "-c");
    strv_add(&request.exec.argv, script);
    return request;
}

static uint32_t send_shell(const char *script)
{
    struct wire_request request = shell(script);
    uint32_t stream = request_send(&request);
    wire_request_done(&request);
    return stream;
}

static void grant(uint32_t stream, uint8_t channel, uint32_t bytes)
{
    auto_buf out = BUF_INIT(100);
    struct err e = ERR_INIT;
    assert_int_equal(wire_u32_append(&out, WIRE_CREDIT, stream, channel, bytes, &e), 0);
    assert_int_equal(fd_write_all(host.fd, buf_data(&out), out.len, &e), 0);
}

static void answer_done(struct answer *answer)
{
    buf_done(&answer->out);
    buf_done(&answer->err);
    buf_done(&answer->body);
}

#define auto_answer __attribute__((cleanup(answer_done))) struct answer
#define ANSWER_INIT                                                                                                              \
    {                                                                                                                            \
        .out = BUF_INIT(16 * MIB), .err = BUF_INIT(16 * MIB), .body = BUF_INIT(WIRE_REPLY_MAX)                                   \
    }

static void take_answer_frame(const struct wire_frame *frame, struct answer *answer)
{
    struct err e = ERR_INIT;
    switch (frame->kind) {
    case WIRE_DATA:
        assert_int_equal(
            buf_append(frame->channel == WIRE_CHANNEL_OUT ? &answer->out : &answer->err, frame->body, frame->body_bytes, &e), 0);
        grant(frame->stream, frame->channel, frame->body_bytes);
        break;
    case WIRE_EOF:
        answer->eofs++;
        break;
    case WIRE_CREDIT:
        host.granted += wire_frame_u32(frame);
        break;
    case WIRE_REPLY:
        assert_int_equal(buf_append(&answer->body, frame->body, frame->body_bytes, &e), 0);
        break;
    case WIRE_ERROR: {
        struct wire_failure failure = {0};
        assert_int_equal(wire_failure_decode(frame->body, frame->body_bytes, &failure, &e), 0);
        answer->failed = true;
        answer->code = (unsigned)failure.code;
        snprintf(answer->message, sizeof answer->message, "%s", failure.message);
        wire_failure_done(&failure);
        break;
    }
    default:
        fail_msg("frame of kind %u", frame->kind);
    }
}

/* Everything of one stream until its answer, giving credit as it goes; other streams' frames are dropped. */
static void collect(uint32_t stream, struct answer *answer)
{
    struct wire_frame frame;
    struct err e = ERR_INIT;
    for (;;) {
        assert_true(take(&frame));
        if (frame.kind == WIRE_HELLO || frame.stream != stream)
            continue;
        take_answer_frame(&frame, answer);
        if (frame.kind == WIRE_ERROR || (frame.kind == WIRE_REPLY && !(frame.flags & WIRE_FLAG_MORE)))
            break;
    }
    if (!answer->failed && answer->body.len)
        assert_int_equal(wire_exit_decode(buf_data(&answer->body), answer->body.len, &answer->exit, &e), 0);
}

static void check_shell(const char *script, unsigned code, const char *out, const char *err)
{
    auto_answer answer = ANSWER_INIT;
    collect(send_shell(script), &answer);
    assert_false(answer.failed);
    if (answer.exit.exit_code != code || answer.out.len != strlen(out) ||
        memcmp(buf_data(&answer.out), out, answer.out.len) != 0 || answer.err.len != strlen(err) ||
        memcmp(buf_data(&answer.err), err, answer.err.len) != 0)
        fail_msg("%s: %u, '%.*s', '%.*s'", script, (unsigned)answer.exit.exit_code, (int)answer.out.len,
                 (const char *)buf_data(&answer.out), (int)answer.err.len, (const char *)buf_data(&answer.err));
    assert_int_equal(answer.eofs, 2);
    assert_int_equal(answer.exit.stdout_bytes, answer.out.len);
    assert_int_equal(answer.exit.stderr_bytes, answer.err.len);
}

static void test_hello_is_the_first_frame(void **state)
{
    (void)state;
    struct wire_frame frame;
    struct wire_hello hello = {0};
    struct err e = ERR_INIT;
    assert_true(take(&frame));
    assert_int_equal(frame.kind, WIRE_HELLO);
    assert_int_equal(wire_hello_decode(frame.body, frame.body_bytes, &hello, &e), 0);
    assert_int_equal(hello.version, WIRE_PROTOCOL_VERSION);
    wire_hello_done(&hello);
    put(&(struct wire_frame){.kind = WIRE_PING, .body = (const uint8_t *)"echo", .body_bytes = 4});
    assert_true(take(&frame));
    assert_int_equal(frame.kind, WIRE_PONG);
    assert_memory_equal(frame.body, "echo", 4);
}

static void test_exec_answers_with_output_and_code(void **state)
{
    (void)state;
    check_shell("echo hi; echo there >&2; exit 7", 7, "hi\n", "there\n");
    check_shell("kill -15 $$", 143, "", "");
    check_shell("kill -9 $$", 137, "", "");
    check_shell("cat; echo end", 0, "end\n", ""); /* no input: at its end at once */
    check_shell("umask; pwd; ls /proc/self/fd | wc -l", 0, "0022\n/\n4\n", "");
}

static void test_exec_of_what_cannot_run(void **state)
{
    (void)state;
    struct wire_request request = {.operation = WIRE_OP_EXEC};
    strv_add(&request.exec.argv, "no-such-program");
    auto_answer absent = ANSWER_INIT, folder = ANSWER_INIT, file = ANSWER_INIT, user = ANSWER_INIT;
    collect(request_send(&request), &absent);
    assert_int_equal(absent.exit.exit_code, 127);
    assert_int_equal(absent.err.len, 33);
    assert_memory_equal(buf_data(&absent.err), "exec: no-such-program: not found\n", 33);
    request.exec.cwd = xstrdup("/no/such/folder");
    collect(request_send(&request), &folder);
    assert_true(folder.failed);
    assert_int_equal(folder.code, 211);
    assert_non_null(strstr(folder.message, "/no/such/folder"));
    free(request.exec.cwd);
    request.exec.cwd = xstrdup("/etc/passwd");
    collect(request_send(&request), &file);
    assert_int_equal(file.code, 212);
    free(request.exec.cwd);
    request.exec.cwd = NULL;
    request.exec.user = xstrdup("no-such-user");
    collect(request_send(&request), &user);
    assert_int_equal(user.code, 1);
    assert_non_null(strstr(user.message, "no-such-user"));
    wire_request_done(&request);
}

static void test_exec_streams_input_and_output_under_credit(void **state)
{
    (void)state;
    enum { TOTAL = 3 * MIB };
    struct wire_request request = shell("cat");
    request.exec.has_stdin = 1;
    uint32_t stream = request_send(&request);
    wire_request_done(&request);
    auto_answer answer = ANSWER_INIT;
    static uint8_t bytes[16 * KIB];
    uint32_t sent = 0;
    struct wire_frame frame;
    while (!answer.body.len) {
        while (sent < TOTAL && sent + sizeof bytes <= WIRE_WINDOW + host.granted) {
            for (size_t i = 0; i < sizeof bytes; i++)
                bytes[i] = (uint8_t)((sent + i) * 31 >> 4);
            put(&(struct wire_frame){.stream = stream, .kind = WIRE_DATA, .body = bytes, .body_bytes = sizeof bytes});
            sent += sizeof bytes;
            if (sent == TOTAL)
                put(&(struct wire_frame){.stream = stream, .kind = WIRE_EOF});
        }
        assert_true(take(&frame));
        if (frame.stream == stream)
            take_answer_frame(&frame, &answer);
    }
    assert_int_equal(answer.out.len, TOTAL);
    for (size_t i = 0; i < TOTAL; i++)
        if (buf_data(&answer.out)[i] != (uint8_t)(i * 31 >> 4))
            fail_msg("byte %zu is wrong", i);
}

static void test_unread_input_disturbs_nobody(void **state)
{
    (void)state;
    static const uint8_t bytes[WIRE_BODY_MAX];
    struct wire_request request = shell("exec sleep 30");
    request.exec.has_stdin = 1;
    uint32_t sleeper = request_send(&request);
    wire_request_done(&request);
    for (uint32_t sent = 0; sent + sizeof bytes <= WIRE_WINDOW; sent += sizeof bytes)
        put(&(struct wire_frame){.stream = sleeper, .kind = WIRE_DATA, .body = bytes, .body_bytes = sizeof bytes});
    check_shell("echo fine", 0, "fine\n", "");
    put(&(struct wire_frame){.stream = sleeper, .kind = WIRE_CANCEL});
    auto_answer answer = ANSWER_INIT;
    collect(sleeper, &answer);
    assert_int_equal(answer.exit.reason, WIRE_CANCELLED);
    assert_int_equal(answer.exit.exit_code, 137);
    /* what still comes for the answered stream is ignored */
    put(&(struct wire_frame){.stream = sleeper, .kind = WIRE_EOF});
    put(&(struct wire_frame){.stream = sleeper, .kind = WIRE_CANCEL});
    check_shell("echo on", 0, "on\n", "");
}

static void test_input_closed_early_returns_its_credit(void **state)
{
    (void)state;
    static const uint8_t bytes[WIRE_BODY_MAX];
    struct wire_request request = shell("exec <&-; echo closed; sleep 0.5");
    request.exec.has_stdin = 1;
    uint32_t stream = request_send(&request);
    wire_request_done(&request);
    auto_answer answer = ANSWER_INIT;
    struct wire_frame frame;
    uint32_t sent = 0;
    while (!answer.body.len) {
        while (sent < 1 * MIB && sent + sizeof bytes <= WIRE_WINDOW + host.granted) {
            put(&(struct wire_frame){.stream = stream, .kind = WIRE_DATA, .body = bytes, .body_bytes = sizeof bytes});
            sent += sizeof bytes;
        }
        assert_true(take(&frame));
        if (frame.stream == stream)
            take_answer_frame(&frame, &answer);
    }
    assert_true(host.granted >= MIB - WIRE_WINDOW);
}

static void test_output_stops_at_the_window(void **state)
{
    (void)state;
    uint32_t stream = send_shell("head -c 1000000 /dev/zero");
    check_shell("sleep 0.3; echo other", 0, "other\n", "");
    struct wire_frame frame;
    /* nothing was granted: what came of the first stream is a window, dropped by collect() above; all the rest comes now */
    grant(stream, WIRE_CHANNEL_OUT, WIRE_WINDOW);
    uint32_t got = 0;
    while (got < WIRE_WINDOW) {
        assert_true(take(&frame));
        if (frame.kind == WIRE_DATA)
            got += frame.body_bytes;
    }
    assert_int_equal(got, WIRE_WINDOW);
    put(&(struct wire_frame){.stream = stream, .kind = WIRE_CANCEL});
    auto_answer answer = ANSWER_INIT;
    collect(stream, &answer);
    assert_int_equal(answer.exit.reason, WIRE_CANCELLED);
    assert_int_equal(answer.out.len, 0);
    assert_int_equal(answer.exit.stdout_bytes, 2 * WIRE_WINDOW);
}

static void test_deadline_kills_and_keeps_partial_output(void **state)
{
    (void)state;
    struct wire_request request = shell("trap '' TERM; echo partial; while :; do sleep 1; done");
    request.exec.timeout_ms = 300;
    auto_answer answer = ANSWER_INIT;
    uint64_t begin_ms = clock_now_ms();
    collect(request_send(&request), &answer);
    wire_request_done(&request);
    assert_int_equal(answer.exit.reason, WIRE_TIMED_OUT);
    assert_int_equal(answer.exit.exit_code, 137);
    assert_int_equal(answer.out.len, 8);
    assert_memory_equal(buf_data(&answer.out), "partial\n", 8);
    assert_in_range(clock_now_ms() - begin_ms, 300, 10000);
}

static void test_exec_answers_when_the_program_ends_not_its_children(void **state)
{
    (void)state;
    uint64_t begin_ms = clock_now_ms();
    check_shell("sleep 5 & echo hi", 0, "hi\n", "");
    assert_in_range(clock_now_ms() - begin_ms, 0, 4500);
    /* an orphan that goes on writing is drained, so it is not blocked: it gets to write its mark */
    char mark[] = "/tmp/test-link-XXXXXX", script[200];
    int fd = mkstemp(mark);
    assert_true(fd >= 0);
    snprintf(script, sizeof script, "(sleep 0.2; head -c 300000 /dev/zero; echo x > %s) & echo go", mark);
    check_shell(script, 0, "go\n", "");
    char byte = 0;
    uint64_t end_ms = clock_now_ms() + 10000;
    while (pread(fd, &byte, 1, 0) != 1 && clock_now_ms() < end_ms)
        check_shell("sleep 0.1", 0, "", "");
    assert_int_equal(byte, 'x');
    close(fd);
    unlink(mark);
}

static void test_signal_reaches_the_programs_group(void **state)
{
    (void)state;
    uint32_t stream = send_shell("trap 'echo got; exit 5' INT; echo ready; while :; do sleep 0.1; done");
    struct wire_frame frame;
    do
        assert_true(take(&frame));
    while (frame.kind != WIRE_DATA);
    auto_buf out = BUF_INIT(100);
    struct err e = ERR_INIT;
    assert_int_equal(wire_u32_append(&out, WIRE_SIGNAL, stream, 0, SIGINT, &e), 0);
    assert_int_equal(fd_write_all(host.fd, buf_data(&out), out.len, &e), 0);
    auto_answer answer = ANSWER_INIT;
    collect(stream, &answer);
    assert_int_equal(answer.exit.exit_code, 5);
    assert_memory_equal(buf_data(&answer.out), "got\n", 4);
}

static void test_terminal_has_its_size_and_one_stream(void **state)
{
    (void)state;
    struct wire_request request = shell("stty size; test -t 0 && test -t 2 && echo tty $TERM >&2");
    request.exec.tty_rows = 33;
    request.exec.tty_cols = 77;
    auto_answer answer = ANSWER_INIT;
    collect(request_send(&request), &answer);
    wire_request_done(&request);
    assert_int_equal(answer.exit.exit_code, 0);
    assert_int_equal(answer.out.len, 18);
    assert_memory_equal(buf_data(&answer.out), "33 77\r\ntty xterm\r\n", 18);
    assert_int_equal(answer.err.len, 0);
    assert_int_equal(answer.eofs, 2);
}

static void test_malformed_request_costs_only_its_stream(void **state)
{
    (void)state;
    put(&(struct wire_frame){.stream = 1000, .kind = WIRE_REQUEST, .body = (const uint8_t *)"junk", .body_bytes = 4});
    auto_answer answer = ANSWER_INIT;
    collect(1000, &answer);
    assert_int_equal(answer.code, 1);
    check_shell("echo on", 0, "on\n", "");
}

/* The link must not go on with a host that breaks the rules; it says why. */
static void check_broken(const struct wire_frame *frames, size_t count, const char *why)
{
    struct wire_frame frame;
    for (size_t i = 0; i < count; i++)
        put(&frames[i]);
    while (take(&frame))
        if (frame.kind == WIRE_PANIC)
            snprintf(host.panic, sizeof host.panic, "%.*s", (int)frame.body_bytes, (const char *)frame.body);
    if (!strstr(host.panic, why))
        fail_msg("'%s' does not say '%s'", host.panic, why);
}

static void test_data_without_credit_breaks_the_link(void **state)
{
    (void)state;
    static const uint8_t bytes[WIRE_BODY_MAX];
    struct wire_request request = shell("exec sleep 30");
    struct wire_frame frames[9];
    request.exec.has_stdin = 1;
    uint32_t stream = request_send(&request);
    wire_request_done(&request);
    for (size_t i = 0; i < 9; i++)
        frames[i] = (struct wire_frame){.stream = stream, .kind = WIRE_DATA, .body = bytes, .body_bytes = sizeof bytes};
    check_broken(frames, 9, "credit");
}

static void test_second_request_on_a_stream_breaks_the_link(void **state)
{
    (void)state;
    uint32_t stream = send_shell("sleep 30");
    struct wire_frame frame = {.stream = stream, .kind = WIRE_REQUEST, .body = (const uint8_t *)"x", .body_bytes = 1};
    check_broken(&frame, 1, "second request");
}

static void test_shutdown_ends_programs_and_the_link(void **state)
{
    (void)state;
    uint32_t polite = send_shell("trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done");
    struct wire_frame frame;
    do
        assert_true(take(&frame));
    while (frame.kind != WIRE_DATA);
    struct wire_request request = {.operation = WIRE_OP_SHUTDOWN};
    uint32_t off = request_send(&request);
    bool said_bye = false, replied = false;
    while (take(&frame)) {
        said_bye |= frame.stream == polite && frame.kind == WIRE_DATA && memcmp(frame.body, "bye\n", 4) == 0;
        replied |= frame.stream == off && frame.kind == WIRE_REPLY;
    }
    assert_true(said_bye);
    assert_true(replied);
}

static void test_tar_goes_in_and_out(void **state)
{
    (void)state;
    struct wire_request request = {.operation = WIRE_OP_TAR_OUT, .tar = {.path = (char[]){"/etc/passwd"}, .name = (char[]){"p"}}};
    auto_answer packed = ANSWER_INIT, absent = ANSWER_INIT, unpacked = ANSWER_INIT;
    collect(request_send(&request), &packed);
    assert_false(packed.failed);
    assert_int_equal(packed.out.len % 512, 0);
    assert_true(packed.out.len > 1024 && packed.out.len < WIRE_BODY_MAX);
    request.tar.path = (char[]){"/no/such"};
    collect(request_send(&request), &absent);
    assert_int_equal(absent.code, 211);

    char folder[] = "/tmp/test-link-XXXXXX", path[100];
    assert_non_null(mkdtemp(folder));
    struct wire_request in = {.operation = WIRE_OP_TAR_IN, .tar = {.path = folder}};
    uint32_t stream = request_send(&in);
    put(&(struct wire_frame){
        .stream = stream, .kind = WIRE_DATA, .body = buf_data(&packed.out), .body_bytes = (uint32_t)packed.out.len});
    put(&(struct wire_frame){.stream = stream, .kind = WIRE_EOF});
    collect(stream, &unpacked);
    if (unpacked.failed)
        fail_msg("%u: %s", unpacked.code, unpacked.message);
    snprintf(path, sizeof path, "%s/p", folder);
    assert_int_equal(unlink(path), 0);
    rmdir(folder);
}

#define LINK_TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

UNIT_MAIN(LINK_TEST(test_hello_is_the_first_frame), LINK_TEST(test_exec_answers_with_output_and_code),
          LINK_TEST(test_exec_of_what_cannot_run), LINK_TEST(test_exec_streams_input_and_output_under_credit),
          LINK_TEST(test_unread_input_disturbs_nobody), LINK_TEST(test_input_closed_early_returns_its_credit),
          LINK_TEST(test_output_stops_at_the_window), LINK_TEST(test_deadline_kills_and_keeps_partial_output),
          LINK_TEST(test_exec_answers_when_the_program_ends_not_its_children), LINK_TEST(test_signal_reaches_the_programs_group),
          LINK_TEST(test_terminal_has_its_size_and_one_stream), LINK_TEST(test_malformed_request_costs_only_its_stream),
          LINK_TEST(test_data_without_credit_breaks_the_link), LINK_TEST(test_second_request_on_a_stream_breaks_the_link),
          LINK_TEST(test_shutdown_ends_programs_and_the_link), LINK_TEST(test_tar_goes_in_and_out))
