/* SPDX-License-Identifier: Apache-2.0 */
/* QEMU's control channel (QMP, docs/interop/qmp-spec.rst of QEMU), pure: bytes in, messages out; commands in, bytes out.
 *
 * Each message is one JSON object on one line. QEMU speaks first: a greeting {"QMP": {...}}. Then every command we send,
 * {"execute", "arguments", "id"}, is answered in order by {"return", "id"} or {"error": {"class", "desc"}, "id"}, with
 * {"event", "data", "timestamp"} in between. The first command must be qmp_capabilities; it may be written before the
 * greeting has come. Once that is answered the channel is ready.
 *
 * The process at the other end may have been taken over by its guest. Whatever it sends is either one of these messages, or
 * ERR_PROTOCOL, after which the channel is dead: a line that is too long, no JSON, an unknown shape, an answer that nobody
 * waits for, a second greeting. Nothing it sends can make this allocate more than a line's worth or abort. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/limits.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum qmp_state {
    QMP_STATE_GREETING,     /* nothing has come yet → CAPABILITIES by the greeting */
    QMP_STATE_CAPABILITIES, /* → READY by the answer to qmp_capabilities */
    QMP_STATE_READY,
    QMP_STATE_FAILED, /* the peer broke the protocol; only qmp_done */
    QMP_STATE_COUNT
};

enum qmp_kind { QMP_GREETING, QMP_RETURN, QMP_ERROR, QMP_EVENT };

/* All pointers are valid during the callback only. */
struct qmp_message {
    enum qmp_kind kind;
    const char *name;        /* of the event, or of the command that is answered; "" for the greeting */
    const char *description; /* QMP_ERROR: QEMU's text; else "" */
    const json_t *data;      /* QMP_EVENT: its data, QMP_RETURN: the value; else NULL. May be NULL. */
};

struct qmp {
    enum qmp_state state;
    struct buf line; /* of the message that is coming in */
    struct buf out;  /* bytes for QEMU; the owner sends and consumes them */
    uint64_t next_id;
    struct {
        uint64_t id;
        char command[QMP_NAME_MAX];
    } pending[QMP_PENDING_MAX]; /* sent and not answered, oldest first */
    size_t pending_len;
};

typedef void qmp_on_message(void *context, const struct qmp_message *message);

/* Puts qmp_capabilities into the output. */
void qmp_init(struct qmp *q) __attribute__((nonnull));
void qmp_done(struct qmp *q) __attribute__((nonnull));
/* Takes bytes from QEMU and calls back for each complete message. ERR_PROTOCOL: the state is FAILED. */
int qmp_feed(struct qmp *q, const void *bytes, size_t len, qmp_on_message *on_message, void *context, struct err *e)
    __attribute__((nonnull(1, 4, 6), warn_unused_result));
/* Puts a command into the output. `arguments` is taken over (also on failure), NULL: none. ERR_LIMIT when too many commands
 * wait for their answers. */
int qmp_command(struct qmp *q, const char *name, json_t *arguments, struct err *e)
    __attribute__((nonnull(1, 2, 4), warn_unused_result));
bool qmp_is_pending(const struct qmp *q, const char *name) __attribute__((nonnull)); /* sent, not answered */
const char *qmp_state_name(enum qmp_state state);
