/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/qmp.h"

#include "base/check.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QMP_OUT_MAX (QMP_PENDING_MAX * 4 * KIB)

static const char *const state_names[] = {"greeting", "capabilities", "ready", "failed"};
static_assert(sizeof state_names / sizeof *state_names == QMP_STATE_COUNT, "one name per state");

static void put_json(json_t *json)
{
    json_decref(json);
}

static void cleanup_json(json_t **json)
{
    if (*json)
        put_json(*json);
}

#define auto_json __attribute__((cleanup(cleanup_json), unused)) json_t *

const char *qmp_state_name(enum qmp_state state)
{
    CHECK((unsigned)state < QMP_STATE_COUNT);
    return state_names[state];
}

static void set_state(struct qmp *q, enum qmp_state state)
{
    CHECK(state == QMP_STATE_FAILED || state == q->state + 1);
    q->state = state;
}

void qmp_init(struct qmp *q)
{
    *q = (struct qmp){.line = BUF_INIT(QMP_LINE_MAX), .out = BUF_INIT(QMP_OUT_MAX), .next_id = 1};
    struct err e = ERR_INIT;
    CHECK(qmp_command(q, "qmp_capabilities", NULL, &e) == 0);
}

void qmp_done(struct qmp *q)
{
    buf_done(&q->line);
    buf_done(&q->out);
    q->pending_len = 0;
}

bool qmp_is_pending(const struct qmp *q, const char *name)
{
    for (size_t i = 0; i < q->pending_len; i++) {
        if (strcmp(q->pending[i].command, name) == 0)
            return true;
    }
    return false;
}

int qmp_command(struct qmp *q, const char *name, json_t *arguments, struct err *e)
{
    auto_json owned = arguments;
    CHECK(strlen(name) < QMP_NAME_MAX);
    if (q->state == QMP_STATE_FAILED)
        return err_set(e, ERR_PROTOCOL, "the control channel has failed");
    if (q->pending_len == QMP_PENDING_MAX)
        return err_set(e, ERR_LIMIT, "%d commands wait for the machine's answer", QMP_PENDING_MAX);
    auto_json command = json_pack("{s:s, s:I, s:O*}", "execute", name, "id", (json_int_t)q->next_id, "arguments", owned);
    char *text = command ? json_dumps(command, JSON_COMPACT) : NULL;
    if (!text)
        return err_set(e, ERR_NOMEM, "no memory for the command '%s'", name);
    size_t len = strlen(text);
    text[len] = '\n'; /* in place of the terminator: QEMU takes white space between commands */
    int result = buf_append(&q->out, text, len + 1, e);
    free(text);
    if (result)
        return err_wrap(e, "send '%s'", name);
    q->pending[q->pending_len].id = q->next_id++;
    snprintf(q->pending[q->pending_len++].command, QMP_NAME_MAX, "%s", name);
    return 0;
}

static int take_greeting(struct qmp *q, const json_t *message, struct qmp_message *out, struct err *e)
{
    if (q->state != QMP_STATE_GREETING || !json_is_object(json_object_get(message, "QMP")))
        return err_set(e, ERR_PROTOCOL, "a greeting out of place");
    set_state(q, QMP_STATE_CAPABILITIES);
    *out = (struct qmp_message){.kind = QMP_GREETING, .name = "", .description = ""};
    return 0;
}

static int take_event(const json_t *message, struct qmp_message *out, struct err *e)
{
    const char *name = json_string_value(json_object_get(message, "event"));
    const json_t *data = json_object_get(message, "data");
    if (!name || (data && !json_is_object(data)))
        return err_set(e, ERR_PROTOCOL, "a malformed event");
    if (strlen(name) >= QMP_NAME_MAX)
        return err_set(e, ERR_PROTOCOL, "an event's name is too long");
    *out = (struct qmp_message){.kind = QMP_EVENT, .name = name, .description = "", .data = data};
    return 0;
}

/* Answers come in the order of the commands. `command` receives the name, since the place in the queue is freed. */
static int take_answer(struct qmp *q, const json_t *message, char *command, struct qmp_message *out, struct err *e)
{
    const json_t *id = json_object_get(message, "id"), *error = json_object_get(message, "error");
    const char *description = json_string_value(json_object_get(error, "desc"));
    if (error && !description)
        return err_set(e, ERR_PROTOCOL, "a malformed error");
    if (!json_is_integer(id) || q->pending_len == 0 || json_integer_value(id) != (json_int_t)q->pending[0].id)
        return err_set(e, ERR_PROTOCOL, "an answer to no command%s%s", error ? ": " : "", error ? description : "");
    memcpy(command, q->pending[0].command, QMP_NAME_MAX);
    memmove(q->pending, q->pending + 1, --q->pending_len * sizeof *q->pending);
    if (q->state == QMP_STATE_CAPABILITIES) {
        if (error)
            return err_set(e, ERR_PROTOCOL, "capabilities are refused: %s", description);
        set_state(q, QMP_STATE_READY);
    }
    *out = (struct qmp_message){.kind = error ? QMP_ERROR : QMP_RETURN,
                                .name = command,
                                .description = error ? description : "",
                                .data = error ? NULL : json_object_get(message, "return")};
    return 0;
}

static int take_line(struct qmp *q, qmp_on_message *on_message, void *context, struct err *e)
{
    json_error_t failure;
    auto_json message = json_loadb((const char *)buf_data(&q->line), q->line.len, 0, &failure);
    buf_clear(&q->line);
    if (!json_is_object(message))
        return err_set(e, ERR_PROTOCOL, "not a JSON object: %s", message ? "another value" : failure.text);
    struct qmp_message out;
    char command[QMP_NAME_MAX];
    int result;
    if (json_object_get(message, "QMP"))
        result = take_greeting(q, message, &out, e);
    else if (q->state == QMP_STATE_GREETING)
        result = err_set(e, ERR_PROTOCOL, "no greeting");
    else if (json_object_get(message, "event"))
        result = take_event(message, &out, e);
    else if (json_object_get(message, "return") || json_object_get(message, "error"))
        result = take_answer(q, message, command, &out, e);
    else
        result = err_set(e, ERR_PROTOCOL, "an unknown kind of message");
    if (result)
        return -1;
    on_message(context, &out);
    return 0;
}

static int feed_piece(struct qmp *q, const char *piece, size_t len, bool ends, qmp_on_message *on_message, void *context,
                      struct err *e)
{
    if (buf_append(&q->line, piece, len, e))
        return err_recode(e, err_is_set(e) && e->code == ERR_LIMIT ? ERR_PROTOCOL : e->code);
    bool blank = q->line.len == 0 || (q->line.len == 1 && *buf_data(&q->line) == '\r');
    if (ends && blank)
        buf_clear(&q->line);
    return ends && !blank ? take_line(q, on_message, context, e) : 0;
}

int qmp_feed(struct qmp *q, const void *bytes, size_t len, qmp_on_message *on_message, void *context, struct err *e)
{
    const char *at = bytes;
    while (len > 0 && q->state != QMP_STATE_FAILED) {
        const char *end = memchr(at, '\n', len);
        size_t piece = end ? (size_t)(end - at) : len, used = piece + (end ? 1 : 0);
        if (feed_piece(q, at, piece, end != NULL, on_message, context, e)) {
            set_state(q, QMP_STATE_FAILED);
            return err_wrap(e, "control channel");
        }
        at += used;
        len -= used;
    }
    if (q->state == QMP_STATE_FAILED)
        return err_set(e, ERR_PROTOCOL, "the control channel has failed");
    return 0;
}
