/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/stop.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int stop_signals[] = {SIGINT, SIGTERM, SIGHUP};
#define STOP_SIGNALS (sizeof stop_signals / sizeof *stop_signals)

struct stop {
    uv_signal_t signals[STOP_SIGNALS];
    uv_poll_t lifeline, process;
    int lifeline_fd, process_fd; /* -1: none */
    void (*on_stop)(void *context, const char *why);
    void *context;
    unsigned handles; /* to be closed */
};

static void stop_once(struct stop *stop, const char *why)
{
    void (*on_stop)(void *, const char *) = stop->on_stop;
    stop->on_stop = NULL;
    if (on_stop)
        on_stop(stop->context, why);
}

static void on_signal(uv_signal_t *handle, int number)
{
    stop_once(handle->data, number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "SIGHUP");
}

static void on_lifeline(uv_poll_t *poll, int status, int events)
{
    (void)events;
    struct stop *stop = poll->data;
    char ignored[256];
    ssize_t got = status < 0 ? 0 : fd_read(stop->lifeline_fd, ignored, sizeof ignored);
    if (got > 0 || (got < 0 && errno == EAGAIN))
        return; /* nothing is ever written, but a byte is not the end */
    uv_poll_stop(poll);
    stop_once(stop, "the engine is gone (lifeline)");
}

static void on_process(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    uv_poll_stop(poll);
    stop_once(poll->data, "the engine is gone (process)");
}

/* A pipe or nothing: a number that came in by accident must not be read from. */
static int take_lifeline(void)
{
    const char *text = getenv("III_LIFELINE_FD");
    uint64_t fd;
    struct stat status;
    struct err e = ERR_INIT;
    if (!text)
        return -1;
    bool good = text_parse_u64(text, 1 << 20, &fd, &e) == 0 && fd > 2 && fstat((int)fd, &status) == 0 &&
                S_ISFIFO(status.st_mode) && fd_set_cloexec((int)fd, true, &e) == 0 && fd_set_nonblocking((int)fd, true, &e) == 0;
    if (!good)
        log_warn("III_LIFELINE_FD does not name a pipe, ignoring");
    unsetenv("III_LIFELINE_FD");
    return good ? (int)fd : -1;
}

/* *ret_gone: it has ended already. */
static int take_engine_pid(bool *ret_gone)
{
    const char *text = getenv("III_ENGINE_PID");
    uint64_t pid;
    struct err e = ERR_INIT;
    *ret_gone = false;
    if (!text)
        return -1;
    if (text_parse_u64(text, 1 << 22, &pid, &e) || pid < 2) {
        log_warn("III_ENGINE_PID is not a process number, ignoring");
        return -1;
    }
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    *ret_gone = fd < 0 && errno == ESRCH;
    return fd;
}

static void on_closed(uv_handle_t *handle)
{
    struct stop *stop = handle->data;
    if (--stop->handles)
        return;
    if (stop->lifeline_fd >= 0)
        close(stop->lifeline_fd);
    if (stop->process_fd >= 0)
        close(stop->process_fd);
    free(stop);
}

void stop_free(struct stop *stop)
{
    if (!stop)
        return;
    stop->on_stop = NULL;
    stop->handles = STOP_SIGNALS + (stop->lifeline_fd >= 0) + (stop->process_fd >= 0);
    for (size_t i = 0; i < STOP_SIGNALS; i++)
        uv_close((uv_handle_t *)&stop->signals[i], on_closed);
    if (stop->lifeline_fd >= 0)
        uv_close((uv_handle_t *)&stop->lifeline, on_closed);
    if (stop->process_fd >= 0)
        uv_close((uv_handle_t *)&stop->process, on_closed);
}

static int watch_fd(uv_loop_t *loop, uv_poll_t *poll, int *fd, uv_poll_cb on_ready, struct stop *stop)
{
    if (*fd < 0)
        return 0;
    if (uv_poll_init(loop, poll, *fd)) {
        close(*fd);
        *fd = -1;
        return -1;
    }
    poll->data = stop;
    uv_poll_start(poll, UV_READABLE, on_ready);
    return 0;
}

struct stop *stop_watch(uv_loop_t *loop, void (*on_stop)(void *context, const char *why), void *context, struct err *e)
{
    struct stop *stop = xcalloc(1, sizeof *stop);
    stop->on_stop = on_stop;
    stop->context = context;
    for (size_t i = 0; i < STOP_SIGNALS; i++) {
        uv_signal_init(loop, &stop->signals[i]);
        stop->signals[i].data = stop;
        uv_signal_start(&stop->signals[i], on_signal, stop_signals[i]);
    }
    bool gone;
    stop->lifeline_fd = take_lifeline();
    stop->process_fd = take_engine_pid(&gone);
    if (watch_fd(loop, &stop->lifeline, &stop->lifeline_fd, on_lifeline, stop) ||
        watch_fd(loop, &stop->process, &stop->process_fd, on_process, stop) || gone) {
        err_set(e, ERR_ENVIRONMENT, gone ? "the engine that started this process is gone" : "the engine's end cannot be watched");
        stop_free(stop);
        return NULL;
    }
    return stop;
}
