/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/credit.h"

#include "base/limits.h"

#include "unit.h"

static void test_grant_beyond_the_window_is_refused(void **state)
{
    (void)state;
    struct credit_sender s;
    struct err e = ERR_INIT;
    credit_sender_init(&s);
    assert_int_equal(s.window, WIRE_WINDOW);
    credit_sender_spend(&s, 100);
    assert_int_equal(credit_sender_grant(&s, 101, &e), -1);
    assert_int_equal(e.code, ERR_PROTOCOL);
    assert_int_equal(s.window, WIRE_WINDOW - 100);
    err_clear(&e);
    assert_int_equal(credit_sender_grant(&s, 0xffffffffu, &e), -1);
    err_clear(&e);
    assert_int_equal(credit_sender_grant(&s, 100, &e), 0);
    assert_int_equal(s.window, WIRE_WINDOW);
}

static void test_arrival_without_credit_is_refused(void **state)
{
    (void)state;
    struct credit_receiver r;
    struct err e = ERR_INIT;
    credit_receiver_init(&r);
    assert_int_equal(credit_receiver_arrived(&r, WIRE_WINDOW, &e), 0);
    assert_int_equal(credit_receiver_arrived(&r, 1, &e), -1);
    assert_int_equal(e.code, ERR_PROTOCOL);
}

static void test_small_reads_are_granted_together(void **state)
{
    (void)state;
    struct credit_receiver r;
    struct err e = ERR_INIT;
    credit_receiver_init(&r);
    assert_int_equal(credit_receiver_arrived(&r, WIRE_WINDOW, &e), 0);
    assert_int_equal(credit_receiver_taken(&r, WIRE_WINDOW / 4 - 1), 0);
    assert_int_equal(credit_receiver_taken(&r, 1), WIRE_WINDOW / 4);
    assert_int_equal(credit_receiver_arrived(&r, WIRE_WINDOW / 4, &e), 0);
    assert_int_equal(credit_receiver_arrived(&r, 1, &e), -1);
}

/* A full window taken byte by byte comes back whole enough for the sender never to starve. */
static void test_sender_and_receiver_agree_over_a_long_stream(void **state)
{
    (void)state;
    struct credit_sender s;
    struct credit_receiver r;
    struct err e = ERR_INIT;
    credit_sender_init(&s);
    credit_receiver_init(&r);
    uint32_t unread = 0;
    for (unsigned i = 1; i < 20000; i++) {
        uint32_t send = (i * 7919) % 40000;
        if (send > s.window)
            send = s.window;
        credit_sender_spend(&s, send);
        assert_int_equal(credit_receiver_arrived(&r, send, &e), 0);
        unread += send;
        uint32_t take = (i * 104729) % 50000;
        if (take > unread)
            take = unread;
        unread -= take;
        assert_int_equal(credit_sender_grant(&s, credit_receiver_taken(&r, take), &e), 0);
        assert_int_equal(s.window, r.in_flight);
        assert_true(s.window + unread > WIRE_WINDOW - WIRE_WINDOW / 4);
    }
}

UNIT_MAIN(cmocka_unit_test(test_grant_beyond_the_window_is_refused), cmocka_unit_test(test_arrival_without_credit_is_refused),
          cmocka_unit_test(test_small_reads_are_granted_together),
          cmocka_unit_test(test_sender_and_receiver_agree_over_a_long_stream))
