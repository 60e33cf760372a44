/* SPDX-License-Identifier: Apache-2.0 */
/* One sandbox: a machine, its guest link and the identity step, from start to end.
 *
 * States (sandbox_state), and who moves them on:
 *   BOOTING    the machine starts                      → IDENTITY (HELLO) or ENDED (machine ended, deadline, protocol)
 *   IDENTITY   the identity request is on its way      → READY (its reply) or ENDED
 *   READY      calls are served                        → ENDED (sandbox_stop, machine ended, protocol)
 *   ENDED      on_end was called or will never be; open calls have ended; only sandbox_free is allowed
 * When the host's disk is full the machine pauses with the write in hand; it is tried again each second for 30 s, then the
 * sandbox ends with that reason. Nothing of a sandbox is left on the host afterwards: its disk is an unnamed file that goes with
 * the last descriptor. */
#pragma once

#include "base/err.h"
#include "sandbox/link.h"
#include "vmm/vmm.h"

#include <uv.h>

enum sandbox_state { SANDBOX_BOOTING, SANDBOX_IDENTITY, SANDBOX_READY, SANDBOX_ENDED, SANDBOX_STATE_COUNT };

struct sandbox;

struct sandbox_events {
    void *context;
    void (*on_ready)(void *context);
    /* Once, unless sandbox_stop or sandbox_free came first. ERR_BOOT with the cause and, when it never was ready, the console's
     * last lines; open calls have ended before. */
    void (*on_end)(void *context, const struct err *why);
};

struct sandbox_spec {
    struct vm_spec vm;
    const struct vmm_backend *backend;
    const char *hostname; /* at most 63 characters of [a-z0-9-] */
};

/* Descriptors of the spec are borrowed for the call. */
struct sandbox *sandbox_start(uv_loop_t *loop, const struct sandbox_spec *spec, const struct sandbox_events *events,
                              struct err *e) __attribute__((nonnull, warn_unused_result));
enum sandbox_state sandbox_state(const struct sandbox *sandbox) __attribute__((nonnull));
const char *sandbox_state_name(enum sandbox_state state);
/* The link for calls (link.h), NULL unless READY. */
struct link *sandbox_link(const struct sandbox *sandbox) __attribute__((nonnull));
const struct vm *sandbox_vm(const struct sandbox *sandbox) __attribute__((nonnull));
/* Kills the machine, waits for its process (some milliseconds), ends open calls with ERR_STOPPED; frees. Safe on NULL. */
void sandbox_free(struct sandbox *sandbox);
