/* SPDX-License-Identifier: Apache-2.0 */
/* An engine as the rest of the program sees it: a bus on which functions are registered and called. Two kinds stand behind
 * it, with the same behaviour for our functions: the embedded engine (server.h) and the link to a real one (uplink.h).
 *
 * A handler gets an invocation and ends it, at once or later, with exactly one invocation_reply or invocation_fail. Handlers
 * run on the loop and never block it. Everything here is for one thread, the one that runs the loop. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct engine;
struct invocation;

typedef void (*engine_handler)(struct invocation *call, void *context);

/* All texts are copied. The JSON members are texts, NULL to leave one out. */
struct engine_function {
    const char *id, *description;
    const char *request_format, *response_format, *metadata;
    engine_handler handler;
    void *context;
};

/* ERR_INVALID for a bad id or JSON, or an id that is taken. */
int engine_register(struct engine *engine, const struct engine_function *function, struct err *e)
    __attribute__((nonnull, warn_unused_result));
void engine_unregister(struct engine *engine, const char *id) __attribute__((nonnull)); /* open calls of it go on */
/* Ends everything without answers; handlers must not touch their open calls any more. Not from inside a callback of this
 * engine; the loop must run its close callbacks. NULL is fine. */
void engine_free(struct engine *engine);
uv_loop_t *engine_loop(struct engine *engine) __attribute__((nonnull));

/* ---- one call of ours ---- */

const char *invocation_function(const struct invocation *call) __attribute__((nonnull));
const char *invocation_id(const struct invocation *call) __attribute__((nonnull));
const char *invocation_caller(const struct invocation *call) __attribute__((nonnull)); /* worker id, "" when unknown */
json_t *invocation_data(const struct invocation *call) __attribute__((nonnull));       /* borrowed; without _caller_worker_id */
json_t *invocation_metadata(const struct invocation *call) __attribute__((nonnull));   /* borrowed, may be NULL */
struct engine *invocation_engine(const struct invocation *call) __attribute__((nonnull));
/* W3C trace context of the call, NULL when it brought none. */
const char *invocation_traceparent(const struct invocation *call) __attribute__((nonnull));
/* Called once if nobody waits for the answer any more (the caller or the link is lost). The call must still be ended. */
void invocation_on_gone(struct invocation *call, void (*on_gone)(struct invocation *call, void *context), void *context)
    __attribute__((nonnull(1)));
/* Both end the call and free it. result is taken over; NULL is null. */
void invocation_reply(struct invocation *call, json_t *result) __attribute__((nonnull(1)));
void invocation_fail(struct invocation *call, const char *code, const char *message) __attribute__((nonnull));

/* ---- our own calls ---- */

/* Exactly one of result (borrowed) and code is set. Codes of our own: TIMEOUT, invocation_stopped. */
typedef void (*engine_on_result)(void *context, json_t *result, const char *code, const char *message);

struct engine_call {
    const char *function_id;
    json_t *data;                  /* borrowed; NULL: {} */
    const struct invocation *from; /* the call on whose behalf: its trace context is passed on; may be NULL */
    uint64_t timeout_ms;           /* 0: 30 s */
};

/* Returns a handle that is never 0; the result comes later, never during the call. */
uint64_t engine_call(struct engine *engine, const struct engine_call *call, engine_on_result on_result, void *context)
    __attribute__((nonnull(1, 2, 3)));
void engine_call_forget(struct engine *engine, uint64_t handle) __attribute__((nonnull)); /* its result is dropped */
