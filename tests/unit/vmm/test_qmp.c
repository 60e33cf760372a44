/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/qmp.h"

#include "base/alloc.h"
#include "base/cleanup.h"

#include <stdio.h>

#include "unit.h"

#define GREETING "{\"QMP\": {\"version\": {\"package\": \"x\"}, \"capabilities\": [\"oob\"]}}\r\n"
#define READY GREETING "{\"return\": {}, \"id\": 1}\r\n"

/* What came, as "kind name description data;". */
static char heard[2048];

static void on_message(void *context, const struct qmp_message *m)
{
    (void)context;
    static const char *const kinds[] = {"greeting", "return", "error", "event"};
    auto_free char *data = m->data ? json_dumps(m->data, JSON_COMPACT) : NULL;
    size_t used = strlen(heard);
    snprintf(heard + used, sizeof heard - used, "%s %s %s %s;", kinds[m->kind], m->name, m->description, data ? data : "");
}

static int feed(struct qmp *q, const char *text, struct err *e)
{
    heard[0] = 0;
    return qmp_feed(q, text, strlen(text), on_message, NULL, e);
}

static void assert_output(struct qmp *q, const char *expected)
{
    assert_int_equal(q->out.len, strlen(expected));
    assert_memory_equal(buf_data(&q->out), expected, strlen(expected));
    buf_consume(&q->out, q->out.len);
}

static void test_feed_greets_and_answers(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct qmp q;
    qmp_init(&q);
    assert_output(&q, "{\"execute\":\"qmp_capabilities\",\"id\":1}\n");
    assert_int_equal(feed(&q, GREETING, &e), 0);
    assert_string_equal(heard, "greeting   ;");
    assert_int_equal(q.state, QMP_STATE_CAPABILITIES);
    assert_int_equal(feed(&q, "{\"return\": {}, \"id\": 1}\r\n", &e), 0);
    assert_int_equal(q.state, QMP_STATE_READY);
    assert_int_equal(qmp_command(&q, "stop", NULL, &e), 0);
    assert_int_equal(qmp_command(&q, "getfd", json_pack("{s:s}", "fdname", "a\"b"), &e), 0);
    assert_output(&q,
                  "{\"execute\":\"stop\",\"id\":2}\n{\"execute\":\"getfd\",\"id\":3,\"arguments\":{\"fdname\":\"a\\\"b\"}}\n");
    assert_true(qmp_is_pending(&q, "stop"));
    assert_int_equal(feed(&q,
                          "{\"timestamp\": {\"seconds\": 1}, \"event\": \"STOP\"}\r\n{\"return\": {\"x\": 1}, \"id\": 2}\r\n"
                          "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no such\"}, \"id\": 3}\r\n",
                          &e),
                     0);
    assert_string_equal(heard, "event STOP  ;return stop  {\"x\":1};error getfd no such ;");
    assert_false(qmp_is_pending(&q, "stop"));
    qmp_done(&q);
}

static void test_feed_takes_any_cuts(void **state)
{
    (void)state;
    const char *text = READY "\r\n{\"event\": \"RESET\", \"data\": {\"guest\": true, \"reason\": \"guest-reset\"}}\r\n";
    for (size_t piece = 1; piece < strlen(text); piece++) {
        struct err e = ERR_INIT;
        struct qmp q;
        qmp_init(&q);
        heard[0] = 0;
        for (size_t at = 0; at < strlen(text); at += piece) {
            size_t len = strlen(text) - at < piece ? strlen(text) - at : piece;
            assert_int_equal(qmp_feed(&q, text + at, len, on_message, NULL, &e), 0);
        }
        assert_string_equal(heard, "greeting   ;return qmp_capabilities  {};event RESET  "
                                   "{\"guest\":true,\"reason\":\"guest-reset\"};");
        qmp_done(&q);
    }
}

static void assert_refused(const char *text, const char *expected)
{
    struct err e = ERR_INIT;
    struct qmp q;
    qmp_init(&q);
    assert_int_equal(feed(&q, text, &e), -1);
    assert_int_equal(e.code, ERR_PROTOCOL);
    assert_int_equal(strncmp(e.text, "control channel: ", 17), 0);
    if (!strstr(e.text, expected))
        fail_msg("'%s' does not say '%s'", e.text, expected);
    assert_int_equal(q.state, QMP_STATE_FAILED);
    err_clear(&e);
    assert_int_equal(feed(&q, READY, &e), -1); /* it stays dead */
    assert_string_equal(heard, "");
    err_clear(&e);
    assert_int_equal(qmp_command(&q, "stop", NULL, &e), -1);
    qmp_done(&q);
}

static void test_feed_refuses_what_is_no_message(void **state)
{
    (void)state;
    assert_refused("garbage\n", "not a JSON object");
    assert_refused("[1]\n", "not a JSON object");
    assert_refused("{\"event\": \"STOP\"}\n", "no greeting");
    assert_refused("{\"QMP\": 3}\n", "a greeting out of place");
    assert_refused(GREETING GREETING, "a greeting out of place");
    assert_refused(READY "{\"return\": {}, \"id\": 2}\n", "an answer to no command");
    assert_refused(GREETING "{\"return\": {}, \"id\": 2}\n", "an answer to no command");
    assert_refused(GREETING "{\"return\": {}}\n", "an answer to no command");
    assert_refused(GREETING "{\"error\": {\"class\": \"G\", \"desc\": \"parse\"}}\n", "an answer to no command: parse");
    assert_refused(GREETING "{\"error\": {\"class\": \"G\", \"desc\": \"no\"}, \"id\": 1}\n", "capabilities are refused: no");
    assert_refused(GREETING "{\"error\": 1, \"id\": 1}\n", "a malformed error");
    assert_refused(READY "{\"event\": 1}\n", "a malformed event");
    assert_refused(READY "{\"event\": \"X\", \"data\": []}\n", "a malformed event");
    assert_refused(READY "{\"other\": 1}\n", "an unknown kind of message");
    assert_refused(READY "{\"event\": \"\\u0000\"}\n", "not a JSON object");
}

static void test_feed_refuses_an_endless_line(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct qmp q;
    qmp_init(&q);
    auto_free char *piece = xmalloc(64 * KIB);
    memset(piece, 'x', 64 * KIB);
    int result = 0;
    size_t fed = 0;
    while (result == 0 && fed < 2 * QMP_LINE_MAX) {
        result = qmp_feed(&q, piece, 64 * KIB, on_message, NULL, &e);
        fed += 64 * KIB;
    }
    assert_int_equal(result, -1);
    assert_int_equal(e.code, ERR_PROTOCOL);
    assert_int_equal(fed, QMP_LINE_MAX + 64 * KIB);
    assert_true(q.line.capacity <= QMP_LINE_MAX);
    qmp_done(&q);
}

static void test_feed_refuses_deep_nesting(void **state)
{
    (void)state;
    auto_free char *text = xmalloc(100002);
    memset(text, '[', 100000);
    memcpy(text + 100000, "\n", 2);
    assert_refused(text, "not a JSON object");
}

static void test_command_refuses_too_many_unanswered(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct qmp q;
    qmp_init(&q);
    for (int i = 1; i < QMP_PENDING_MAX; i++)
        assert_int_equal(qmp_command(&q, "stop", NULL, &e), 0);
    assert_int_equal(qmp_command(&q, "stop", json_object(), &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    qmp_done(&q);
}

UNIT_MAIN(cmocka_unit_test(test_feed_greets_and_answers), cmocka_unit_test(test_feed_takes_any_cuts),
          cmocka_unit_test(test_feed_refuses_what_is_no_message), cmocka_unit_test(test_feed_refuses_an_endless_line),
          cmocka_unit_test(test_feed_refuses_deep_nesting), cmocka_unit_test(test_command_refuses_too_many_unanswered))
