/* SPDX-License-Identifier: Apache-2.0 */
/* What the embedded engine and the link share: the functions of this process, the calls that they serve and the calls that
 * we make. Nothing outside src/engine includes this. */
#pragma once

#include "engine/channel.h"
#include "engine/engine.h"
#include "engine/messages.h"
#include "engine/metrics.h"
#include "engine/table.h"
#include "engine/trace.h"
#include "engine/uuid.h"
#include "engine/ws.h"

struct worker;

/* A function of the bus: of this process (worker NULL) or of a connection of the embedded engine. */
struct function {
    struct table_entry by_id;
    struct list of_worker;
    struct worker *worker;
    char *id, *description;
    char *request_format, *response_format, *metadata; /* JSON texts or NULL */
    bool hidden;                                       /* metadata.internal is true */
    size_t bytes;
    engine_handler handler;
    void *context;
};

/* A call that one of our functions serves. OPEN until it is replied to; GONE: nobody waits any more, the reply is dropped. */
struct invocation {
    struct engine *engine;
    struct list all;
    struct uuid id;
    char *function_id;
    char caller[37];
    json_t *data, *metadata;
    char *traceparent, *baggage; /* as JSON strings are decoded; NULL when absent */
    bool answered, gone;         /* answered: somebody waits for one (not void) */
    uint64_t started_ns;
    uint64_t epoch; /* of the link's connection that it came by */
    void (*on_gone)(struct invocation *call, void *context);
    void *gone_context;
};

/* A call that we made. */
struct own_call {
    struct table_entry by_id;
    struct uuid id;
    uint64_t handle;
    uint64_t deadline_ms;
    char *function_id;
    engine_on_result on_result; /* NULL: forgotten */
    void *context;
    void *owned;      /* freed with the call */
    struct list sent; /* link: waits for the connection; message holds it */
    struct buf message;
    struct list settled; /* its result is known and waits for the loop's next turn */
    json_t *result;
    char *code, *text;
};

struct engine_ops {
    void (*function_added)(struct engine *engine, struct function *function);
    void (*function_removed)(struct engine *engine, struct function *function);
    /* Exactly one of the two is absent. The call is freed by the caller. */
    void (*answer)(struct engine *engine, struct invocation *call, struct json_slice result, const struct message_error *error);
    void (*send_call)(struct engine *engine, struct own_call *call, const struct message_call *message);
    struct channel_reader *(*reader_open)(struct engine *engine, const struct channel_ref *ref,
                                          const struct channel_reader_events *events, void *context, bool paused, struct err *e);
    struct channel_writer *(*writer_open)(struct engine *engine, const struct channel_ref *ref,
                                          const struct channel_writer_events *events, void *context, struct err *e);
    void (*free)(struct engine *engine);
};

struct engine {
    const struct engine_ops *ops;
    uv_loop_t *loop;
    struct ws_service *ws;
    struct table functions; /* by id */
    struct list invocations;
    struct table calls; /* own calls by id */
    struct list settled;
    uv_timer_t calls_timer;
    uv_idle_t settle_turn; /* an idle handle: a timer of 0 that starts itself again would keep the loop from its sockets */
    uint64_t handles;
    struct metrics metrics;
    struct tracer *tracer; /* NULL: spans are not exported */
};

void engine_init(struct engine *engine, const struct engine_ops *ops, uv_loop_t *loop);
/* Everything but its handles, which engine_close_handles closes: on_closed is called for each, with data as the engine. */
void engine_done(struct engine *engine);
#define ENGINE_HANDLES 2u
void engine_close_handles(struct engine *engine, uv_close_cb on_closed);

struct function *function_find(struct engine *engine, const char *id);
bool function_metadata_hides(struct json_slice metadata); /* an object whose `internal` is true */
void function_free(struct function *function);

/* A call of one of our functions: made first, so that its owner can note it down, then run. A payload that jansson cannot
 * hold is answered with deserialization_error. After invocation_run the call may be gone. */
struct invocation *invocation_new(struct engine *engine, const struct function *function, const char *id, const char *caller,
                                  const struct message *message, bool answered);
void invocation_run(struct invocation *call, const struct function *function);
void invocation_lost(struct invocation *call); /* nobody waits any more */

/* The result of a call of ours, found by the caller in engine->calls; the call settles at the loop's next turn. */
void own_call_result(struct engine *engine, struct own_call *call, struct json_slice result, struct json_slice error);
uint64_t engine_call_owning(struct engine *engine, const struct engine_call *spec, engine_on_result on_result, void *context,
                            void *owned);
void own_call_fail(struct engine *engine, struct own_call *call, const char *code, const char *text);

/* Channel ends: the public type is one of these behind it. */
struct channel_reader_ops {
    void (*pause)(struct channel_reader *reader);
    void (*resume)(struct channel_reader *reader);
    void (*close)(struct channel_reader *reader);
};
struct channel_reader {
    const struct channel_reader_ops *ops;
    const struct channel_reader_events *events;
    void *context;
    struct buf text; /* a text message in pieces */
    bool paused;
};
struct channel_writer_ops {
    size_t (*room)(const struct channel_writer *writer);
    int (*send)(struct channel_writer *writer, enum ws_kind kind, const void *bytes, size_t len, struct err *e);
    void (*close)(struct channel_writer *writer, bool clean);
};
struct channel_writer {
    const struct channel_writer_ops *ops;
    const struct channel_writer_events *events;
    void *context;
    bool was_full;
};

/* Hands one piece to our reader. False when a text message is over its limit: the channel is then to be dropped. The reader
 * may be freed during the call. */
bool channel_reader_take(struct channel_reader *reader, enum ws_kind kind, const uint8_t *bytes, size_t len, bool last);
