/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the embedded engine among each other. Nothing else includes this. */
#pragma once

#include "base/alloc.h"
#include "engine/internal.h"
#include "engine/server.h"

struct server {
    struct engine base;
    char *host, *token;
    struct strv allowed_origins;
    void (*on_metrics)(void *context, struct buf *out);
    void *metrics_context;
    uint64_t started_ms; /* Unix time */
    struct list workers;
    struct table workers_by_id, pending, channels, trigger_types, triggers;
    struct list reap;           /* workers whose connection we ended */
    struct list ready_channels; /* with an end of ours that has something to do */
    size_t channel_bytes;
    uv_idle_t turn;   /* runs what must not run inside a caller */
    uv_timer_t sweep; /* channels that were never opened */
    unsigned closing;
};

/* A worker connection: a client of the bus. conn is NULL once we ended it; it is then on the reap list. */
struct worker {
    struct server *server;
    struct list all, reap;
    struct table_entry by_id;
    struct ws_conn *conn;
    struct uuid id, token;
    char peer[64];
    char *name, *description, *runtime, *version, *os, *isolation;
    long long pid; /* 0: never announced */
    uint64_t connected_ms;
    struct list functions, calls_made, calls_served, types, triggers;
    size_t functions_len, calls_made_len, calls_served_len, types_len, triggers_len, channels_len, registered_bytes;
};

static inline struct server *server_of(struct engine *engine)
{
    return CONTAINER_OF(engine, struct server, base);
}

/* server.c */
/* Queues a message (it starts with WS_HEADROOM). A worker whose queue is full is ended; -1 then, or when it is ended. */
int worker_send(struct worker *worker, struct buf *message);
void worker_drop(struct worker *worker, unsigned code, const char *reason); /* ends the connection; cleaned up next turn */
struct buf message_begin(void);                                             /* a buffer with its headroom */
void server_turn_soon(struct server *server);

/* registry.c: what workers register */
void registry_add_function(struct worker *worker, const struct message *message);
void registry_remove_function(struct worker *worker, const struct message *message);
void registry_forget_worker(struct worker *worker);
struct worker *registry_find_worker(struct server *server, const char *id);
const char *function_worker_name(const struct function *function, char *text, size_t size);

/* triggers.c */
void trigger_add_type(struct worker *worker, const struct message *message);
void trigger_remove_type(struct worker *worker, const struct message *message);
void trigger_add(struct worker *worker, const struct message *message);
void trigger_remove(struct worker *worker, const struct message *message);
void trigger_relay_result(struct worker *worker, const struct message *message);
void triggers_forget_worker(struct worker *worker);
int triggers_write_worker(const struct worker *worker, struct buf *out, struct err *e);
int triggers_write_of(struct server *server, const char *function_id, struct buf *out, struct err *e); /* a JSON array */

/* invocations.c: a call on its way */
struct pending {
    struct table_entry by_id;
    struct uuid id;
    struct list of_caller, of_executor;
    struct worker *caller;   /* NULL: void, ours, or gone */
    struct worker *executor; /* NULL: a function of this process */
    struct invocation *local;
    bool own; /* a call of ours: look in base.calls */
    char *function_id, *traceparent;
    uint64_t started_ns;
};

void invocations_call(struct worker *caller, const struct message *message);
void invocations_result(struct worker *executor, const struct message *message);
void invocations_forget_worker(struct worker *worker);
void invocations_send_own(struct engine *engine, struct own_call *call, const struct message_call *message);
void invocations_answer_local(struct engine *engine, struct invocation *call, struct json_slice result,
                              const struct message_error *error);
void invocations_done(struct server *server);

/* builtins.c: engine::* */
struct builtin_call {
    struct server *server;
    struct worker *caller; /* NULL: this process */
    json_t *input;         /* an object, always */
    struct buf *result;    /* JSON text */
    const char *code;      /* set on failure */
    struct err *e;         /* its text */
};
struct builtin {
    const char *id, *description;
    int (*run)(struct builtin_call *call); /* -1: code and e are set */
};
extern const struct builtin builtins[]; /* ended by an id of NULL */
const struct builtin *builtin_find(const char *id);

/* channels.c */
int channels_create(struct server *server, struct worker *creator, unsigned messages, struct buf *result, struct err *e);
void channels_on_request(struct server *server, const struct ws_request *request, struct ws_conn *conn, struct ws_answer *answer);
void channels_forget_worker(struct worker *worker); /* channels have no owner: only the count ends */
void channels_turn(struct server *server);
void channels_sweep(struct server *server);
void channels_done(struct server *server);
struct channel_reader *channels_open_reader(struct engine *engine, const struct channel_ref *ref,
                                            const struct channel_reader_events *events, void *context, bool paused,
                                            struct err *e);
struct channel_writer *channels_open_writer(struct engine *engine, const struct channel_ref *ref,
                                            const struct channel_writer_events *events, void *context, struct err *e);
