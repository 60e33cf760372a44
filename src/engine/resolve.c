/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/resolve.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/path.h"
#include "jail/jail.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>

#define RESOLVE_MS 10000u

/* The child writes lines "ADDRESS TYPE NAME"; the first address counts, as for getaddrinfo. Its end of file comes before its
 * end, so the pidfd is watched last. */
struct resolution {
    uv_timer_t timer;
    uv_poll_t pipe, process;
    bool has_pipe, has_process, running;
    int handles; /* still to be closed */
    int pipe_fd;
    struct jail_child child;
    struct buf answer;
    resolve_on_done on_done; /* NULL: over */
    void *context;
    char known[64]; /* an address that needed no child */
    char failure[256];
};

static void on_closed(uv_handle_t *handle)
{
    struct resolution *resolution = handle->data;
    if (--resolution->handles)
        return;
    if (resolution->running)
        jail_kill(&resolution->child);
    if (resolution->pipe_fd >= 0)
        close(resolution->pipe_fd);
    buf_done(&resolution->answer);
    free(resolution);
}

void resolve_cancel(struct resolution *resolution)
{
    if (!resolution)
        return;
    resolution->on_done = NULL;
    if (uv_is_closing((uv_handle_t *)&resolution->timer))
        return;
    resolution->handles = 1 + resolution->has_pipe + resolution->has_process;
    uv_close((uv_handle_t *)&resolution->timer, on_closed);
    if (resolution->has_pipe)
        uv_close((uv_handle_t *)&resolution->pipe, on_closed);
    if (resolution->has_process)
        uv_close((uv_handle_t *)&resolution->process, on_closed);
}

static void finish(struct resolution *resolution, const char *address, const char *failure)
{
    resolve_on_done on_done = resolution->on_done;
    void *context = resolution->context;
    char address_copy[64] = "", failure_copy[256] = "";
    snprintf(address_copy, sizeof address_copy, "%s", address ? address : "");
    snprintf(failure_copy, sizeof failure_copy, "%s", failure ? failure : "");
    resolve_cancel(resolution);
    if (on_done)
        on_done(context, address ? address_copy : NULL, address ? NULL : failure_copy);
}

static bool is_numeric(const char *text)
{
    unsigned char bytes[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, text, bytes) == 1 || inet_pton(AF_INET6, text, bytes) == 1;
}

static void on_process(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    struct resolution *resolution = poll->data;
    struct err e = ERR_INIT;
    int child_status = -1;
    uv_poll_stop(poll);
    resolution->running = false;
    if (jail_wait(&resolution->child, &child_status, &e)) {
        finish(resolution, NULL, e.text);
        return;
    }
    char text[64] = "";
    size_t len = 0;
    const char *answer = (const char *)buf_data(&resolution->answer);
    while (len < resolution->answer.len && len + 1 < sizeof text && answer[len] != ' ' && answer[len] != '\t' &&
           answer[len] != '\n')
        len++;
    memcpy(text, answer, len);
    if (WIFEXITED(child_status) && WEXITSTATUS(child_status) == 0 && is_numeric(text))
        finish(resolution, text, NULL);
    else
        finish(resolution, NULL, "no such host, or the resolver does not answer");
}

static void on_pipe(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    struct resolution *resolution = poll->data;
    char chunk[1024];
    struct err e = ERR_INIT;
    ssize_t got = fd_read(resolution->pipe_fd, chunk, sizeof chunk);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got > 0) {
        if (buf_append(&resolution->answer, chunk, (size_t)got, &e))
            uv_poll_stop(poll); /* absurdly long: the first lines are enough */
        else
            return;
    }
    uv_poll_stop(poll);
    if (uv_poll_init(poll->loop, &resolution->process, resolution->child.pidfd)) {
        finish(resolution, NULL, "the resolver's end cannot be watched");
        return;
    }
    resolution->has_process = true;
    resolution->process.data = resolution;
    uv_poll_start(&resolution->process, UV_READABLE, on_process);
}

static void on_timer(uv_timer_t *timer)
{
    struct resolution *resolution = timer->data;
    if (*resolution->known)
        finish(resolution, resolution->known, NULL);
    else
        finish(resolution, NULL, *resolution->failure ? resolution->failure : "the resolver did not answer within 10 s");
}

static int start_child(struct resolution *resolution, uv_loop_t *loop, const char *name, struct err *e)
{
    auto_free char *program = path_find_in_path("getent", e);
    if (!program)
        return -1;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return err_sys(e, errno, "a pipe");
    auto_close write_fd = fds[1];
    resolution->pipe_fd = fds[0];
    char *argv[] = {(char *)"getent", (char *)"ahosts", (char *)(uintptr_t)name, NULL};
    struct jail_fd pass[] = {{write_fd, 1}};
    struct jail_spec spec = {.name = "resolver",
                             .program = program,
                             .argv = argv,
                             .fds = pass,
                             .fds_len = 1,
                             .ids = JAIL_IDS_NOBODY,
                             .caps = JAIL_CAPS_DROP,
                             .cpu_secs_max = 5};
    if (fd_set_nonblocking(fds[0], true, e) || jail_spawn(&spec, &resolution->child, e))
        return -1;
    resolution->running = true;
    if (uv_poll_init(loop, &resolution->pipe, fds[0]))
        return err_set(e, ERR_SYSTEM, "the resolver's pipe cannot be watched");
    resolution->has_pipe = true;
    resolution->pipe.data = resolution;
    uv_poll_start(&resolution->pipe, UV_READABLE, on_pipe);
    return 0;
}

struct resolution *resolve_start(uv_loop_t *loop, const char *name, resolve_on_done on_done, void *context)
{
    struct resolution *resolution = xcalloc(1, sizeof *resolution);
    resolution->pipe_fd = -1;
    resolution->answer = BUF_INIT(ENGINE_RESOLVE_MAX);
    resolution->on_done = on_done;
    resolution->context = context;
    uv_timer_init(loop, &resolution->timer);
    resolution->timer.data = resolution;
    uint64_t wait_ms = 0;
    struct err e = ERR_INIT;
    if (is_numeric(name))
        snprintf(resolution->known, sizeof resolution->known, "%s", name);
    else if (strcasecmp(name, "localhost") == 0)
        snprintf(resolution->known, sizeof resolution->known, "127.0.0.1");
    else if (*name == '-' || strlen(name) > 253)
        snprintf(resolution->failure, sizeof resolution->failure, "this is no host name");
    else if (start_child(resolution, loop, name, &e))
        snprintf(resolution->failure, sizeof resolution->failure, "%.200s", e.text);
    else
        wait_ms = RESOLVE_MS;
    uv_timer_start(&resolution->timer, on_timer, wait_ms, 0);
    return resolution;
}
