/* SPDX-License-Identifier: Apache-2.0 */
/* The link child: one epoll loop between the port and the programs. It is the only process of the guest that reads what the
 * host sends. Its end ends the machine. It also runs without a machine around it (a socketpair as port, no control groups,
 * nothing mounted), which is how it is tested. */
#pragma once

#include "agent/cgroup.h"
#include "agent/identity.h"
#include "agent/loop.h"
#include "base/buf.h"
#include "wire/frame.h"
#include "wire/message.h"

struct job;

struct link_options {
    int port_fd;               /* owned by link_run */
    const char *cgroup_root;   /* NULL: no control groups */
    bool owns_machine;         /* SHUTDOWN may signal every process and remount; never set outside a guest */
    int upper_dirfd;           /* the writable disk, remounted read-only at the end; -1: none */
    struct identity *identity; /* NULL: IDENTITY requests are accepted and change nothing */
};

/* A stream: LINK_STREAM_FREE (nothing valid); RECEIVING (`id` and `assembly`: pieces are coming); RUNNING (`id` and `job`).
 * link.c moves it on; a job ends its stream by link_stream_end. */
enum stream_state { STREAM_FREE, STREAM_RECEIVING, STREAM_RUNNING, STREAM_STATE_COUNT };

struct stream {
    enum stream_state state;
    uint32_t id;
    struct wire_assembly assembly;
    struct job *job;
};

#define LINK_DOORSTEP 8 /* slots for requests that come while WIRE_STREAMS_MAX run, so that each gets its refusal */

struct drain {
    struct source source;
    struct link *link;
};

struct link {
    struct link_options options;
    struct loop loop;
    struct source port, port_retry, stop_timer, stop_events;
    struct wire_decoder decoder;
    struct buf out;
    struct cgroups groups;
    struct stream streams[WIRE_STREAMS_MAX + LINK_DOORSTEP];
    struct drain drains[AGENT_DRAINS_MAX];
    size_t drain_next; /* the oldest, when all are used */
    uint64_t retry_ms;
    bool congested; /* too much is queued for the port: no pipe is read */
    bool finished;
    uint32_t stopping_stream; /* the SHUTDOWN to be answered, 0: none */
    struct err failure;
};

/* Sends HELLO, serves until the host has shut the machine down (0) or the link broke (-1). */
int link_run(const struct link_options *options, struct err *e) __attribute__((nonnull, warn_unused_result));

/* For jobs. A queue that overflows ends the link, so these need no error. */
void link_send(struct link *link, const struct wire_frame *frame) __attribute__((nonnull));
void link_send_u32(struct link *link, enum wire_kind kind, uint32_t stream, uint8_t channel, uint32_t value)
    __attribute__((nonnull));
void link_send_reply(struct link *link, uint32_t stream, const struct buf *body) __attribute__((nonnull));
void link_send_failure(struct link *link, uint32_t stream, unsigned code, int sys_errno, const char *text)
    __attribute__((nonnull));
void link_break(struct link *link, const struct err *e) __attribute__((nonnull)); /* the host broke the protocol */
/* The stream is answered; its job is freed. */
void link_stream_end(struct link *link, uint32_t stream) __attribute__((nonnull));
/* Reads a pipe and throws its bytes away until its last holder is gone; takes the descriptor. */
void link_drain(struct link *link, int fd) __attribute__((nonnull));
