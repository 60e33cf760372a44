/* SPDX-License-Identifier: Apache-2.0 */
/* One call to an engine, made by a command: connects, calls, waits. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <stdint.h>

/* The engine's URL: the given one, else III_ENGINE_URL, III_URL, else this host's port 49134. Borrowed. */
const char *client_url(const char *given);

/* The answer of a function: result, or code and message when the function failed. All owned by the caller. */
struct client_answer {
    json_t *result;
    char *code, *message;
};

void client_answer_done(struct client_answer *answer);
/* -1 when no answer came: no engine there, or the time is over (ERR_TIMEOUT). The token is III_ENGINE_TOKEN. */
int client_call(const char *url, const char *function_id, json_t *data, uint64_t timeout_ms, struct client_answer *ret_answer,
                struct err *e) __attribute__((nonnull(1, 2, 5, 6), warn_unused_result));
