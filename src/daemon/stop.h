/* SPDX-License-Identifier: Apache-2.0 */
/* What ends a daemon: SIGINT, SIGTERM and SIGHUP; and, when an engine started it, the end of the lifeline pipe that
 * III_LIFELINE_FD names, or of the process that III_ENGINE_PID names. */
#pragma once

#include "base/err.h"

#include <uv.h>

struct stop;

/* on_stop is called once, with a sentence for the log. The variable of the lifeline is unset, so that no child takes it over. */
struct stop *stop_watch(uv_loop_t *loop, void (*on_stop)(void *context, const char *why), void *context, struct err *e)
    __attribute__((nonnull(1, 2, 4), warn_unused_result));
void stop_free(struct stop *stop); /* the loop must run its close callbacks */
