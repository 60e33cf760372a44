/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/loop.h"

#include "base/cleanup.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

int loop_init(struct loop *loop, struct err *e)
{
    *loop = (struct loop){.epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
    if (loop->epoll_fd < 0)
        return err_sys(e, errno, "epoll");
    return 0;
}

void loop_done(struct loop *loop)
{
    if (!loop || loop->epoll_fd < 0)
        return;
    close(loop->epoll_fd);
    loop->epoll_fd = -1;
}

void loop_want(struct loop *loop, struct source *source, uint32_t events)
{
    if (source->fd < 0 || source->wanted == events)
        return;
    struct epoll_event event = {.events = events, .data.ptr = source};
    int operation = !events ? EPOLL_CTL_DEL : source->wanted ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(loop->epoll_fd, operation, source->fd, &event)) {
        if (!err_is_set(&loop->failure))
            err_sys(&loop->failure, errno, "epoll control");
        return;
    }
    source->wanted = events;
}

void loop_close(struct loop *loop, struct source *source)
{
    if (source->fd < 0)
        return;
    loop_want(loop, source, 0);
    close(source->fd);
    source->fd = -1;
    source->wanted = 0;
}

int loop_step(struct loop *loop, struct err *e)
{
    struct epoll_event event;
    int got = epoll_wait(loop->epoll_fd, &event, 1, -1);
    if (got < 0 && errno != EINTR)
        return err_sys(e, errno, "epoll wait");
    if (got == 1) {
        struct source *source = event.data.ptr;
        source->on_ready(source->owner, event.events);
    }
    if (err_is_set(&loop->failure)) {
        *e = loop->failure;
        return -1;
    }
    return 0;
}

int loop_timer_open(struct loop *loop, struct source *source, uint64_t ms, struct err *e)
{
    if (!ms)
        return 0;
    auto_close fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct itimerspec when = {.it_value = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000}};
    if (ms > INT32_MAX * 1000ull) /* 68 years: the kernel's clock would overflow */
        when.it_value.tv_sec = INT32_MAX;
    if (fd < 0 || timerfd_settime(fd, 0, &when, NULL))
        return err_sys(e, errno, "timer");
    source->fd = STEAL_FD(fd);
    loop_want(loop, source, EPOLLIN);
    return 0;
}
