/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/frame.h"

#include <stdlib.h>

#include "unit.h"

static void feed(struct wire_decoder *d, const void *bytes, size_t len)
{
    struct err e = ERR_INIT;
    uint8_t *room;
    size_t room_len;
    assert_int_equal(wire_decoder_room(d, &room, &room_len, &e), 0);
    assert_true(len <= room_len);
    memcpy(room, bytes, len);
    wire_decoder_fed(d, len);
}

/* Decodes one header-only or short frame given as raw bytes: what wire_decoder_next says. */
static int decode_raw(const uint8_t *bytes, size_t len, enum err_code *ret_code)
{
    struct wire_decoder d;
    struct wire_frame frame;
    struct err e = ERR_INIT;
    wire_decoder_init(&d);
    feed(&d, bytes, len);
    int got = wire_decoder_next(&d, &frame, &e);
    *ret_code = e.code;
    wire_decoder_done(&d);
    return got;
}

static void test_frame_bytes_are_the_documented_ones(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(1000);
    struct err e = ERR_INIT;
    struct wire_frame frame = {
        .stream = 0x01020304, .kind = WIRE_DATA, .channel = 2, .body = (const uint8_t *)"abc", .body_bytes = 3};
    assert_int_equal(wire_frame_append(&out, &frame, &e), 0);
    assert_int_equal(out.len, 15);
    assert_memory_equal(buf_data(&out), "\3\0\0\0\4\3\2\1\5\2\0\0abc", 15);
}

static void test_decoder_takes_frames_in_any_cut(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(1000);
    struct err e = ERR_INIT;
    struct wire_frame first = {.stream = 7, .kind = WIRE_DATA, .channel = 1, .body = (const uint8_t *)"hello", .body_bytes = 5};
    struct wire_frame second = {.stream = 7, .kind = WIRE_EOF, .channel = 1};
    assert_int_equal(wire_frame_append(&out, &first, &e), 0);
    assert_int_equal(wire_frame_append(&out, &second, &e), 0);
    for (size_t cut = 1; cut <= out.len; cut++) {
        struct wire_decoder d;
        wire_decoder_init(&d);
        unsigned frames = 0;
        for (size_t at = 0; at < out.len; at += cut) {
            feed(&d, buf_data(&out) + at, at + cut > out.len ? out.len - at : cut);
            struct wire_frame frame;
            int got;
            while ((got = wire_decoder_next(&d, &frame, &e)) == 1) {
                const struct wire_frame *want = frames++ ? &second : &first;
                assert_int_equal(frame.stream, want->stream);
                assert_int_equal(frame.kind, want->kind);
                assert_int_equal(frame.channel, want->channel);
                assert_int_equal(frame.body_bytes, want->body_bytes);
                if (want->body_bytes)
                    assert_memory_equal(frame.body, want->body, want->body_bytes);
            }
            assert_int_equal(got, 0);
        }
        assert_int_equal(frames, 2);
        wire_decoder_done(&d);
    }
}

static void test_decoder_refuses_every_malformed_header(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint8_t bytes[12];
    } cases[] = {
        {"kind 0", {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}},
        {"kind past the end", {0, 0, 0, 0, 1, 0, 0, 0, WIRE_KIND_END, 0, 0, 0}},
        {"kind 255", {0, 0, 0, 0, 1, 0, 0, 0, 255, 0, 0, 0}},
        {"request on stream 0", {0, 0, 0, 0, 0, 0, 0, 0, WIRE_REQUEST, 0, 0, 0}},
        {"hello on stream 1", {0, 0, 0, 0, 1, 0, 0, 0, WIRE_HELLO, 0, 0, 0}},
        {"data on channel 3", {1, 0, 0, 0, 1, 0, 0, 0, WIRE_DATA, 3, 0, 0}},
        {"request with a channel", {1, 0, 0, 0, 1, 0, 0, 0, WIRE_REQUEST, 1, 0, 0}},
        {"unknown flag", {1, 0, 0, 0, 1, 0, 0, 0, WIRE_REQUEST, 0, 2, 0}},
        {"high flag", {1, 0, 0, 0, 1, 0, 0, 0, WIRE_REQUEST, 0, 0, 128}},
        {"more on data", {1, 0, 0, 0, 1, 0, 0, 0, WIRE_DATA, 0, 1, 0}},
        {"empty data", {0, 0, 0, 0, 1, 0, 0, 0, WIRE_DATA, 0, 0, 0}},
        {"eof with a body", {1, 0, 0, 0, 1, 0, 0, 0, WIRE_EOF, 0, 0, 0}},
        {"short credit", {3, 0, 0, 0, 1, 0, 0, 0, WIRE_CREDIT, 0, 0, 0}},
        {"long credit", {5, 0, 0, 0, 1, 0, 0, 0, WIRE_CREDIT, 0, 0, 0}},
        {"cancel with a body", {1, 0, 0, 0, 1, 0, 0, 0, WIRE_CANCEL, 0, 0, 0}},
        {"short signal", {1, 0, 0, 0, 1, 0, 0, 0, WIRE_SIGNAL, 0, 0, 0}},
        {"short resize", {2, 0, 0, 0, 1, 0, 0, 0, WIRE_RESIZE, 0, 0, 0}},
        {"body one over the limit", {0xf5, 0x7f, 0, 0, 1, 0, 0, 0, WIRE_DATA, 0, 0, 0}},
        {"body of 4 GiB", {255, 255, 255, 255, 1, 0, 0, 0, WIRE_DATA, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum err_code code;
        if (decode_raw(cases[i].bytes, 12, &code) != -1 || code != ERR_PROTOCOL)
            fail_msg("%s was not refused", cases[i].what);
    }
}

static void test_decoder_stays_broken(void **state)
{
    (void)state;
    struct wire_decoder d;
    struct wire_frame frame;
    struct err e = ERR_INIT;
    wire_decoder_init(&d);
    feed(&d, "\0\0\0\0\1\0\0\0\0\0\0\0", 12);
    assert_int_equal(wire_decoder_next(&d, &frame, &e), -1);
    err_clear(&e);
    feed(&d, "\0\0\0\0\1\0\0\0\7\0\0\0", 12);
    assert_int_equal(wire_decoder_next(&d, &frame, &e), -1);
    assert_int_equal(e.code, ERR_PROTOCOL);
    wire_decoder_done(&d);
}

static void test_decoder_keeps_the_largest_frame_and_a_full_feed(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(1 * MIB);
    struct err e = ERR_INIT;
    static uint8_t body[WIRE_BODY_MAX];
    memset(body, 'x', sizeof body);
    struct wire_frame frame = {.stream = 1, .kind = WIRE_DATA, .body = body, .body_bytes = sizeof body};
    for (int i = 0; i < 3; i++)
        assert_int_equal(wire_frame_append(&out, &frame, &e), 0);
    struct wire_decoder d;
    wire_decoder_init(&d);
    feed(&d, buf_data(&out), WIRE_FRAME_MAX - 1);
    assert_int_equal(wire_decoder_next(&d, &frame, &e), 0);
    feed(&d, buf_data(&out) + WIRE_FRAME_MAX - 1, WIRE_FRAME_MAX);
    assert_int_equal(wire_decoder_next(&d, &frame, &e), 1);
    assert_int_equal(frame.body_bytes, WIRE_BODY_MAX);
    assert_int_equal(frame.body[WIRE_BODY_MAX - 1], 'x');
    assert_int_equal(wire_decoder_next(&d, &frame, &e), 0);
    wire_decoder_done(&d);
}

static void check_pieces(size_t len, size_t frames_wanted)
{
    auto_buf out = BUF_INIT(8 * MIB);
    struct err e = ERR_INIT;
    uint8_t *body = malloc(len + 1);
    assert_non_null(body);
    for (size_t i = 0; i < len; i++)
        body[i] = (uint8_t)(i * 31 >> 3);
    assert_int_equal(wire_pieces_append(&out, WIRE_REQUEST, 9, body, len, &e), 0);
    struct wire_decoder d;
    struct wire_assembly assembly = {0};
    wire_decoder_init(&d);
    size_t frames = 0, at = 0;
    bool complete = false;
    while (at < out.len) {
        size_t cut = out.len - at < WIRE_FRAME_MAX ? out.len - at : WIRE_FRAME_MAX;
        feed(&d, buf_data(&out) + at, cut);
        at += cut;
        struct wire_frame frame;
        while (wire_decoder_next(&d, &frame, &e) == 1) {
            frames++;
            assert_false(complete);
            int got = wire_assembly_add(&assembly, &frame, &e);
            assert_true(got >= 0);
            complete = got;
        }
    }
    assert_true(complete);
    assert_int_equal(frames, frames_wanted);
    assert_int_equal(assembly.bytes.len, len);
    assert_memory_equal(buf_data(&assembly.bytes), body, len);
    wire_assembly_done(&assembly);
    wire_decoder_done(&d);
    free(body);
}

static void test_pieces_come_together_at_every_size(void **state)
{
    (void)state;
    check_pieces(0, 1);
    check_pieces(1, 1);
    check_pieces(WIRE_BODY_MAX, 1);
    check_pieces(WIRE_BODY_MAX + 1, 2);
    check_pieces(WIRE_REQUEST_MAX, WIRE_REQUEST_MAX / WIRE_BODY_MAX + 1);
}

static void test_pieces_over_the_limit_are_refused_whole(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(8 * MIB), small = BUF_INIT(WIRE_FRAME_MAX);
    struct err e = ERR_INIT;
    uint8_t *body = calloc(1, WIRE_REQUEST_MAX + 1);
    assert_non_null(body);
    assert_int_equal(wire_pieces_append(&out, WIRE_REQUEST, 1, body, WIRE_REQUEST_MAX + 1, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    err_clear(&e);
    assert_int_equal(wire_pieces_append(&small, WIRE_REPLY, 1, body, 2 * WIRE_BODY_MAX, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_int_equal(small.len, 0);
    free(body);
}

static void test_assembly_refuses_an_endless_request(void **state)
{
    (void)state;
    struct wire_assembly assembly = {0};
    struct err e = ERR_INIT;
    static uint8_t body[WIRE_BODY_MAX];
    struct wire_frame frame = {
        .stream = 1, .kind = WIRE_REQUEST, .flags = WIRE_FLAG_MORE, .body = body, .body_bytes = sizeof body};
    size_t taken = 0;
    int got;
    while ((got = wire_assembly_add(&assembly, &frame, &e)) == 0)
        taken += sizeof body;
    assert_int_equal(got, -1);
    assert_int_equal(e.code, ERR_PROTOCOL);
    assert_true(taken <= WIRE_REQUEST_MAX && taken > WIRE_REQUEST_MAX - WIRE_BODY_MAX);
    wire_assembly_done(&assembly);
}

static void test_u32_bodies_come_back(void **state)
{
    (void)state;
    auto_buf out = BUF_INIT(100);
    struct err e = ERR_INIT;
    assert_int_equal(wire_u32_append(&out, WIRE_CREDIT, 3, WIRE_CHANNEL_ERR, 0x89abcdef, &e), 0);
    struct wire_decoder d;
    struct wire_frame frame;
    wire_decoder_init(&d);
    feed(&d, buf_data(&out), out.len);
    assert_int_equal(wire_decoder_next(&d, &frame, &e), 1);
    assert_int_equal(frame.channel, WIRE_CHANNEL_ERR);
    assert_true(wire_frame_u32(&frame) == 0x89abcdef);
    wire_decoder_done(&d);
}

static void test_kind_name_of_known_and_unknown(void **state)
{
    (void)state;
    assert_string_equal(wire_kind_name(WIRE_REQUEST), "REQUEST");
    assert_string_equal(wire_kind_name(WIRE_PANIC), "PANIC");
    assert_string_equal(wire_kind_name((enum wire_kind)0), "?");
    assert_string_equal(wire_kind_name(WIRE_KIND_END), "?");
}

UNIT_MAIN(cmocka_unit_test(test_frame_bytes_are_the_documented_ones), cmocka_unit_test(test_decoder_takes_frames_in_any_cut),
          cmocka_unit_test(test_decoder_refuses_every_malformed_header), cmocka_unit_test(test_decoder_stays_broken),
          cmocka_unit_test(test_decoder_keeps_the_largest_frame_and_a_full_feed),
          cmocka_unit_test(test_pieces_come_together_at_every_size),
          cmocka_unit_test(test_pieces_over_the_limit_are_refused_whole),
          cmocka_unit_test(test_assembly_refuses_an_endless_request), cmocka_unit_test(test_u32_bodies_come_back),
          cmocka_unit_test(test_kind_name_of_known_and_unknown))
