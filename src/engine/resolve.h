/* SPDX-License-Identifier: Apache-2.0 */
/* Host names to numeric addresses off the loop: a child process (getent) asks the system's resolver, so that a name server
 * that does not answer holds up nothing. Numeric addresses and "localhost" need no child. */
#pragma once

#include "base/err.h"

#include <uv.h>

struct resolution;

/* Exactly one of address and failure is set. The resolution is freed after it. */
typedef void (*resolve_on_done)(void *context, const char *address, const char *failure);

/* Never calls back during the call. Gives up after 10 s. */
struct resolution *resolve_start(uv_loop_t *loop, const char *name, resolve_on_done on_done, void *context)
    __attribute__((nonnull(1, 2, 3), returns_nonnull));
void resolve_cancel(struct resolution *resolution); /* no callback; NULL is fine */
