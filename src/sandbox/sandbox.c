/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/sandbox.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>

#define STORAGE_RETRY_MS 1000u
#define STORAGE_WAIT_MS 30000u
#define STORAGE_SAME_SHORTAGE_MS 5000u
#define LINK_LOSS_GRACE_MS 2000u /* the link of a dying machine ends a moment before its process: wait for the better reason */

static const char *const state_names[] = {"booting", "identity", "ready", "ended"};
static_assert(sizeof state_names / sizeof *state_names == SANDBOX_STATE_COUNT, "one name per state");

struct sandbox {
    uv_loop_t *loop;
    enum sandbox_state state;
    struct sandbox_events events;
    const struct vmm_backend *backend;
    struct vm *vm;
    struct link *link;
    uv_timer_t storage;                            /* the next try while the host's disk is full */
    uint64_t storage_since_ms, storage_resumed_ms; /* of the shortage; 0: none yet */
    unsigned timers_open;
    uv_timer_t timer; /* the boot deadline, later the wait for the process after a lost link */
    char *hostname;
    struct err loss; /* why the link was lost; the machine's own end may tell more */
};

static void set_state(struct sandbox *s, enum sandbox_state next)
{
    static const bool allowed[SANDBOX_STATE_COUNT][SANDBOX_STATE_COUNT] = {
        [SANDBOX_BOOTING] = {[SANDBOX_IDENTITY] = true, [SANDBOX_ENDED] = true},
        [SANDBOX_IDENTITY] = {[SANDBOX_READY] = true, [SANDBOX_ENDED] = true},
        [SANDBOX_READY] = {[SANDBOX_ENDED] = true},
    };
    CHECK(allowed[s->state][next]);
    s->state = next;
}

/* The last lines of the console, for a message: at most `room` bytes, printable. */
static void console_excerpt(const struct vm *vm, char *text, size_t room)
{
    const char *console = vm_console_tail(vm);
    size_t len = strlen(console);
    const char *from = len > room - 1 ? console + len - (room - 1) : console;
    size_t at = 0;
    for (; *from; from++)
        if (*from != '\r')
            text[at++] = (char)((*from >= ' ' && *from < 127) || *from == '\n' ? *from : '?');
    while (at && text[at - 1] == '\n')
        at--;
    text[at] = 0;
}

/* The one way to ENDED; `why` is told to the owner. */
static void end(struct sandbox *s, const struct err *why)
{
    if (s->state == SANDBOX_ENDED)
        return;
    bool was_ready = s->state == SANDBOX_READY;
    set_state(s, SANDBOX_ENDED);
    uv_timer_stop(&s->timer);
    uv_timer_stop(&s->storage);
    struct err told = *why;
    char excerpt[480];
    console_excerpt(s->vm, excerpt, sizeof excerpt);
    if (!was_ready && *excerpt) {
        size_t used = strlen(told.text);
        snprintf(told.text + used, sizeof told.text - used, "\nlast lines of its console:\n%s", excerpt);
    }
    if (vm_state(s->vm) != VM_STATE_ENDED)
        s->backend->stop(s->vm);
    s->events.on_end(s->events.context, &told);
}

static void on_vm_end(void *context, const struct err *reason)
{
    end(context, reason);
}

/* --- the host's disk is full: the machine waits with the write in hand, so nothing is lost while it does --- */

static void on_storage_retry(uv_timer_t *timer)
{
    struct sandbox *s = timer->data;
    s->storage_resumed_ms = clock_now_ms();
    s->backend->resume(s->vm);
}

/* The write is tried again each second; a new pause soon after a try belongs to the same shortage. */
static void on_vm_storage_full(void *context)
{
    struct sandbox *s = context;
    uint64_t now_ms = clock_now_ms();
    if (s->state == SANDBOX_ENDED)
        return;
    if (!s->storage_since_ms || now_ms - s->storage_resumed_ms > STORAGE_SAME_SHORTAGE_MS)
        s->storage_since_ms = now_ms;
    if (now_ms - s->storage_since_ms < STORAGE_WAIT_MS) {
        uv_timer_start(&s->storage, on_storage_retry, STORAGE_RETRY_MS, 0);
        return;
    }
    struct err e = ERR_INIT;
    err_set(&e, ERR_BOOT, "the host's disk is full: what the guest wrote could not be stored for %u s", STORAGE_WAIT_MS / 1000);
    end(s, &e);
}

static void on_deadline(uv_timer_t *timer)
{
    struct sandbox *s = timer->data;
    struct err e = ERR_INIT;
    if (err_is_set(&s->loss))
        e = s->loss;
    else
        err_set(&e, ERR_BOOT, "the machine was not ready within %u s (%s)", BOOT_MS_MAX / 1000, sandbox_state_name(s->state));
    end(s, &e);
}

/* A guest that broke the protocol or gave up ends at once. A closed link: the machine's process ends in a moment and knows why.
 */
static void on_link_broken(void *context, const struct err *why, bool closed)
{
    struct sandbox *s = context;
    if (s->state == SANDBOX_ENDED)
        return;
    s->loss = *why;
    if (!closed)
        end(s, why);
    else
        uv_timer_start(&s->timer, on_deadline, LINK_LOSS_GRACE_MS, 0);
}

/* --- the identity step: everything random or unique about the machine comes from this host --- */

static void on_identity_end(void *context, const uint8_t *reply, size_t len, const struct err *failure)
{
    (void)reply;
    (void)len;
    struct sandbox *s = context;
    if (s->state != SANDBOX_IDENTITY)
        return;
    if (failure) {
        if (failure->code == ERR_STOPPED || failure->code == ERR_BOOT)
            return; /* the loss of the link is told by on_link_broken */
        struct err e = *failure;
        err_wrap(&e, "give the machine its identity");
        err_recode(&e, ERR_BOOT);
        end(s, &e);
        return;
    }
    set_state(s, SANDBOX_READY);
    uv_timer_stop(&s->timer);
    s->events.on_ready(s->events.context);
}

static char *random_uuid(void)
{
    uint8_t b[16];
    CHECK(getrandom(b, sizeof b, 0) == (ssize_t)sizeof b);
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40); /* RFC 9562, version 4 */
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    char hex[33];
    text_hex(b, sizeof b, hex);
    return xasprintf("%.8s-%.4s-%.4s-%.4s-%s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

static void on_hello(void *context, const struct wire_hello *hello)
{
    (void)hello;
    struct sandbox *s = context;
    set_state(s, SANDBOX_IDENTITY);
    uint8_t seed[32], machine[16];
    char machine_id[33];
    CHECK(getrandom(seed, sizeof seed, 0) == (ssize_t)sizeof seed);
    CHECK(getrandom(machine, sizeof machine, 0) == (ssize_t)sizeof machine);
    text_hex(machine, sizeof machine, machine_id);
    auto_free char *boot_id = random_uuid();
    struct wire_request request = {
        .operation = WIRE_OP_IDENTITY,
        .identity = {.hostname = s->hostname,
                     .seed = {.data = seed, .len = sizeof seed},
                     .boot_id = boot_id,
                     .machine_id = machine_id,
                     .realtime_ns = clock_realtime_ns()},
    };
    struct link_call_events events = {.context = s, .on_end = on_identity_end};
    uint32_t call;
    struct err e = ERR_INIT;
    if (link_call(s->link, &request, &events, &call, &e)) {
        s->loss = e;
        uv_timer_start(&s->timer, on_deadline, 0, 0); /* not from inside the link's own event */
    }
}

/* --- life --- */

static void on_timer_closed(uv_handle_t *handle)
{
    struct sandbox *s = handle->data;
    if (--s->timers_open)
        return;
    free(s->hostname);
    free(s);
}

struct sandbox *sandbox_start(uv_loop_t *loop, const struct sandbox_spec *spec, const struct sandbox_events *events,
                              struct err *e)
{
    struct sandbox *s = xcalloc(1, sizeof *s);
    s->loop = loop;
    s->events = *events;
    s->backend = spec->backend;
    s->hostname = xstrdup(spec->hostname);
    s->timer.data = s->storage.data = s;
    CHECK(uv_timer_init(loop, &s->timer) == 0 && uv_timer_init(loop, &s->storage) == 0);
    s->timers_open = 2;
    struct vm_events vm_events = {.context = s, .on_end = on_vm_end, .on_storage_full = on_vm_storage_full};
    auto_close link_fd = -1;
    if (s->backend->start(loop, &spec->vm, &vm_events, &s->vm, &link_fd, e))
        goto failed;
    struct link_events link_events = {.context = s, .on_hello = on_hello, .on_broken = on_link_broken};
    s->link = link_new(loop, STEAL_FD(link_fd), &link_events, e);
    if (!s->link)
        goto failed;
    uv_update_time(
        loop); /* the caller may have blocked for minutes: the loop's idea of now would make the deadline pass at once */
    uv_timer_start(&s->timer, on_deadline, BOOT_MS_MAX, 0);
    return s;
failed:
    sandbox_free(s);
    return NULL;
}

void sandbox_free(struct sandbox *s)
{
    if (!s)
        return;
    s->state = SANDBOX_ENDED; /* no event reaches the owner from here on */
    link_free(s->link);
    vm_free(s->vm);
    uv_close((uv_handle_t *)&s->timer, on_timer_closed);
    uv_close((uv_handle_t *)&s->storage, on_timer_closed);
}

enum sandbox_state sandbox_state(const struct sandbox *s)
{
    return s->state;
}

const char *sandbox_state_name(enum sandbox_state state)
{
    CHECK((unsigned)state < SANDBOX_STATE_COUNT);
    return state_names[state];
}

struct link *sandbox_link(const struct sandbox *s)
{
    return s->state == SANDBOX_READY ? s->link : NULL;
}

const struct vm *sandbox_vm(const struct sandbox *s)
{
    return s->vm;
}
