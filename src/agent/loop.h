/* SPDX-License-Identifier: Apache-2.0 */
/* A small epoll loop. A source is a descriptor with the events it waits for now; it is registered only while it waits for
 * some, because a hung-up pipe would report for ever otherwise. One event is taken at a time, so a callback may free any
 * object. A failure of epoll itself is kept in the loop and ends it. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct source {
    int fd; /* owned; -1: closed */
    uint32_t wanted;
    void (*on_ready)(void *owner, uint32_t events);
    void *owner;
};

struct loop {
    int epoll_fd;
    struct err failure; /* set: the loop cannot go on */
};

int loop_init(struct loop *loop, struct err *e) __attribute__((nonnull, warn_unused_result));
void loop_done(struct loop *loop);
/* EPOLLIN, EPOLLOUT, EPOLLPRI or 0 for none. */
void loop_want(struct loop *loop, struct source *source, uint32_t events) __attribute__((nonnull));
void loop_close(struct loop *loop, struct source *source) __attribute__((nonnull)); /* forgets and closes */
/* Waits for one event and calls its source. */
int loop_step(struct loop *loop, struct err *e) __attribute__((nonnull, warn_unused_result));
/* A timer source: fires once after ms (0: never). */
int loop_timer_open(struct loop *loop, struct source *source, uint64_t ms, struct err *e)
    __attribute__((nonnull, warn_unused_result));
