/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands that speak to an engine share. */
#pragma once

#include "cli/command.h"
#include "daemon/client.h"

#include <stddef.h>

struct engine_call_options {
    const char *engine;
    uint64_t timeout_ms;
};

/* The rows of the option table; the command's struct has them in a member named `engine`. */
#define ENGINE_CALL_OPTIONS(type)                                                                                                \
    {"engine", 0, CLI_TEXT, offsetof(type, engine.engine),                                                                       \
     0,        0, "URL",    "the engine (default: $III_ENGINE_URL, $III_URL, ws://127.0.0.1:49134)"},                            \
    {                                                                                                                            \
        "timeout", 't', CLI_DURATION, offsetof(type, engine.timeout_ms), 0, 0, "TIME", "how long to wait (default 30s)"          \
    }

/* Calls, and tells a failure on standard error. The exit status; the answer holds a result for CLI_OK. */
int engine_call_run(const struct cli_command *command, const struct engine_call_options *options, const char *function_id,
                    json_t *data, struct client_answer *ret_answer) __attribute__((nonnull, warn_unused_result));
void engine_call_print(const json_t *value); /* pretty; nothing for null */
