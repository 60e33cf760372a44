/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/message.h"

#include "base/limits.h"

#include <stdlib.h>

#include "unit.h"

static struct wire_request exec_request(void)
{
    struct wire_request request = {.operation = WIRE_OP_EXEC};
    strv_add(&request.exec.argv, "sh");
    strv_add(&request.exec.argv, "");
    strv_add(&request.exec.env, "A=b\nc\"\xc3\xa4");
    request.exec.cwd = xstrdup("/tmp");
    request.exec.timeout_ms = 0xfffffffffffffff0ull;
    request.exec.has_stdin = 1;
    request.exec.tty_cols = 80;
    return request;
}

static void test_exec_request_comes_back_as_it_was(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(WIRE_REQUEST_MAX);
    struct err e = ERR_INIT;
    struct wire_request sent = exec_request(), got = {0};
    assert_int_equal(wire_request_encode(&out, &sent, &e), 0);
    assert_int_equal(wire_request_decode(buf_data(&out), out.len, &got, &e), 0);
    assert_int_equal(got.operation, WIRE_OP_EXEC);
    assert_int_equal(got.exec.argv.len, 2);
    assert_string_equal(got.exec.argv.items[0], "sh");
    assert_string_equal(got.exec.argv.items[1], "");
    assert_null(got.exec.argv.items[2]);
    assert_string_equal(got.exec.env.items[0], "A=b\nc\"\xc3\xa4");
    assert_string_equal(got.exec.cwd, "/tmp");
    assert_null(got.exec.user);
    assert_true(got.exec.timeout_ms == 0xfffffffffffffff0ull);
    assert_int_equal(got.exec.has_stdin, 1);
    assert_int_equal(got.exec.tty_rows, 0);
    assert_int_equal(got.exec.tty_cols, 80);
    wire_request_done(&sent);
    wire_request_done(&got);
}

static void test_every_other_request_comes_back(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(WIRE_REQUEST_MAX);
    struct err e = ERR_INIT;
    uint8_t seed[32] = {1, 0, 2};
    struct wire_request identity = {.operation = WIRE_OP_IDENTITY,
                                    .identity = {.hostname = (char[]){"h"},
                                                 .seed = {seed, sizeof seed},
                                                 .boot_id = (char[]){"b"},
                                                 .machine_id = (char[]){"m"},
                                                 .realtime_ns = 5}};
    struct wire_request got = {0};
    assert_int_equal(wire_request_encode(&out, &identity, &e), 0);
    assert_int_equal(wire_request_decode(buf_data(&out), out.len, &got, &e), 0);
    assert_string_equal(got.identity.hostname, "h");
    assert_int_equal(got.identity.seed.len, 32);
    assert_memory_equal(got.identity.seed.data, seed, 32);
    assert_int_equal(got.identity.realtime_ns, 5);
    wire_request_done(&got);
    buf_clear(&out);

    struct wire_request off = {.operation = WIRE_OP_SHUTDOWN};
    assert_int_equal(wire_request_encode(&out, &off, &e), 0);
    assert_int_equal(out.len, 10);
    assert_int_equal(wire_request_decode(buf_data(&out), out.len, &got, &e), 0);
    assert_int_equal(got.operation, WIRE_OP_SHUTDOWN);
    wire_request_done(&got);
    buf_clear(&out);

    struct wire_request tar = {.operation = WIRE_OP_TAR_OUT,
                               .tar = {.path = (char[]){"/x"}, .name = (char[]){""}, .make_parents = 1}};
    assert_int_equal(wire_request_encode(&out, &tar, &e), 0);
    assert_int_equal(wire_request_decode(buf_data(&out), out.len, &got, &e), 0);
    assert_string_equal(got.tar.path, "/x");
    assert_string_equal(got.tar.name, "");
    assert_int_equal(got.tar.make_parents, 1);
    wire_request_done(&got);
    buf_clear(&out);

    struct wire_request write = {.operation = WIRE_OP_WRITE,
                                 .write = {.path = (char[]){"/tmp/x"}, .mode = 0644, .make_parents = 1}};
    assert_int_equal(wire_request_encode(&out, &write, &e), 0);
    assert_int_equal(wire_request_decode(buf_data(&out), out.len, &got, &e), 0);
    assert_string_equal(got.write.path, "/tmp/x");
    assert_int_equal(got.write.mode, 0644);
    assert_int_equal(got.write.make_parents, 1);
    wire_request_done(&got);
}

static void test_hello_exit_and_failure_come_back(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(WIRE_REQUEST_MAX);
    struct err e = ERR_INIT;
    struct wire_hello hello = {1, (char[]){"6.1"}, 99}, hello2 = {0};
    assert_int_equal(wire_hello_encode(&out, &hello, &e), 0);
    assert_int_equal(wire_hello_decode(buf_data(&out), out.len, &hello2, &e), 0);
    assert_int_equal(hello2.version, 1);
    assert_string_equal(hello2.kernel_release, "6.1");
    assert_int_equal(hello2.boot_us, 99);
    wire_hello_done(&hello2);
    buf_clear(&out);

    struct wire_exit code = {137, 9, WIRE_TIMED_OUT, 1, 2, 3, 4}, code2 = {0};
    assert_int_equal(wire_exit_encode(&out, &code, &e), 0);
    assert_int_equal(wire_exit_decode(buf_data(&out), out.len, &code2, &e), 0);
    assert_memory_equal(&code, &code2, sizeof code);
    buf_clear(&out);
    struct wire_exit zero = {0};
    assert_int_equal(wire_exit_encode(&out, &zero, &e), 0);
    assert_int_equal(wire_exit_decode(buf_data(&out), out.len, &code2, &e), 0);
    assert_memory_equal(&zero, &code2, sizeof zero);
    buf_clear(&out);

    struct wire_failure failure = {211, 2, (char[]){"no such"}}, failure2 = {0};
    assert_int_equal(wire_failure_encode(&out, &failure, &e), 0);
    assert_int_equal(wire_failure_decode(buf_data(&out), out.len, &failure2, &e), 0);
    assert_int_equal(failure2.code, 211);
    assert_int_equal(failure2.sys_errno, 2);
    assert_string_equal(failure2.message, "no such");
    wire_failure_done(&failure2);
}

#define OPERATION(n) "\1\1" n "\0\0\0\0\0\0\0"

static void test_decode_refuses_every_malformed_body(void **state)
{
    (void)state;
#define CASE(what, bytes)                                                                                                        \
    {                                                                                                                            \
        what, bytes, sizeof(bytes) - 1                                                                                           \
    }
    static const struct {
        const char *what, *bytes;
        size_t len;
    } cases[] = {
        CASE("nothing", ""),
        CASE("operation cut off", "\1\1\1\0"),
        CASE("operation 0", OPERATION("\0")),
        CASE("unknown operation", OPERATION("\x7f")),
        CASE("operation as bytes", "\1\2\0\0\0\0"),
        CASE("another field in front", "\2\2\1\0\0\0x"),
        CASE("no argv", OPERATION("\2")),
        CASE("half a header", OPERATION("\2") "\2"),
        CASE("type 0", OPERATION("\2") "\2\0\1\0\0\0x"),
        CASE("type 3", OPERATION("\2") "\2\3\1\0\0\0x"),
        CASE("type 3 of an unknown tag", OPERATION("\2") "\2\2\1\0\0\0x\x63\3"),
        CASE("wrong type", OPERATION("\2") "\2\1\1\0\0\0\0\0\0\0"),
        CASE("number as bytes", OPERATION("\2") "\2\2\1\0\0\0x\6\2\1\0\0\0y"),
        CASE("length past the end", OPERATION("\2") "\2\2\2\0\0\0x"),
        CASE("length of 4 GiB", OPERATION("\2") "\2\2\xff\xff\xff\xffx"),
        CASE("NUL in an item", OPERATION("\2") "\2\2\3\0\0\0a\0b"),
        CASE("NUL in a string", OPERATION("\2") "\2\2\1\0\0\0x\4\2\1\0\0\0\0"),
        CASE("string twice", OPERATION("\2") "\2\2\1\0\0\0x\4\2\1\0\0\0a\4\2\1\0\0\0b"),
        CASE("number twice", OPERATION("\2") "\2\2\1\0\0\0x\6\1\1\0\0\0\0\0\0\0\6\1\1\0\0\0\0\0\0\0"),
        CASE("number cut off", OPERATION("\2") "\2\2\1\0\0\0x\6\1\1\0\0"),
        CASE("identity without a seed", OPERATION("\1") "\2\2\1\0\0\0x"),
        CASE("tar without a path", OPERATION("\4") "\3\2\1\0\0\0x"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct wire_request request = {0};
        struct err e = ERR_INIT;
        if (wire_request_decode(cases[i].bytes, cases[i].len, &request, &e) != -1 || e.code != ERR_PROTOCOL)
            fail_msg("%s was not refused", cases[i].what);
    }
}

static void test_decode_skips_unknown_tags(void **state)
{
    (void)state;
    static const char bytes[] = OPERATION("\2") "\xc8\2\2\0\0\0\0z\2\2\1\0\0\0x\xc9\1\1\0\0\0\0\0\0\0";
    struct wire_request request = {0};
    struct err e = ERR_INIT;
    assert_int_equal(wire_request_decode(bytes, sizeof bytes - 1, &request, &e), 0);
    assert_int_equal(request.exec.argv.len, 1);
    assert_string_equal(request.exec.argv.items[0], "x");
    wire_request_done(&request);
}

static void test_lists_have_a_limit_on_both_ends(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(WIRE_REQUEST_MAX);
    struct err e = ERR_INIT;
    struct wire_request request = {.operation = WIRE_OP_EXEC}, got = {0};
    for (unsigned i = 0; i < WIRE_LIST_MAX; i++)
        strv_addf(&request.exec.argv, "%u", i);
    assert_int_equal(wire_request_encode(&out, &request, &e), 0);
    assert_int_equal(wire_request_decode(buf_data(&out), out.len, &got, &e), 0);
    assert_int_equal(got.exec.argv.len, WIRE_LIST_MAX);
    assert_string_equal(got.exec.argv.items[WIRE_LIST_MAX - 1], "4095");
    assert_null(got.exec.argv.items[WIRE_LIST_MAX]);
    wire_request_done(&got);
    assert_int_equal(buf_append(&out, "\2\2\1\0\0\0x", 7, &e), 0);
    assert_int_equal(wire_request_decode(buf_data(&out), out.len, &got, &e), -1);
    assert_int_equal(e.code, ERR_PROTOCOL);
    err_clear(&e);
    strv_add(&request.exec.argv, "one more");
    size_t before = out.len;
    assert_int_equal(wire_request_encode(&out, &request, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_int_equal(out.len, before);
    wire_request_done(&request);
}

static void test_request_over_the_limit_is_refused(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(2 * WIRE_REQUEST_MAX);
    struct err e = ERR_INIT;
    char *big = malloc(WIRE_REQUEST_MAX);
    assert_non_null(big);
    memset(big, 'x', WIRE_REQUEST_MAX);
    big[WIRE_REQUEST_MAX - 1] = 0;
    struct wire_request request = {.operation = WIRE_OP_EXEC};
    strv_take(&request.exec.argv, big);
    assert_int_equal(wire_request_encode(&out, &request, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_int_equal(out.len, 0);
    wire_request_done(&request);
}

UNIT_MAIN(cmocka_unit_test(test_exec_request_comes_back_as_it_was), cmocka_unit_test(test_every_other_request_comes_back),
          cmocka_unit_test(test_hello_exit_and_failure_come_back), cmocka_unit_test(test_decode_refuses_every_malformed_body),
          cmocka_unit_test(test_decode_skips_unknown_tags), cmocka_unit_test(test_lists_have_a_limit_on_both_ends),
          cmocka_unit_test(test_request_over_the_limit_is_refused))
