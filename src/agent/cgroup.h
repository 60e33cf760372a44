/* SPDX-License-Identifier: Apache-2.0 */
/* Control groups: the programs live in leaves below <root>/exec, PID 1 and the link stay in the root group. The parent
 * `exec` caps memory and processes of all programs together so that the agent always has its reserve; each leaf dies as one
 * on out-of-memory, and may take at most 7/8 of the processes so that one fork bomb leaves room for another program. A
 * leaf whose program left orphans stays with them and is removed once they are gone; an empty one is used again (making one
 * costs 0.4 ms warm and 9 ms cold under emulation). Without cgroup2 every call works and does nothing; `leaf_kill` is false. */
#pragma once

#include "base/err.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct leaf {
    unsigned id;
    int dirfd;                 /* -1: there is no control group */
    uint64_t oom_kills_before; /* count when it was taken */
};

struct cgroups {
    int exec_dirfd; /* -1: none */
    uint64_t leaf_pids_max;
    unsigned next_id;
    struct leaf spare[AGENT_SPARE_CGROUPS_MAX];
    size_t spare_count;
    unsigned *lingering;
    size_t lingering_count;
};

/* root: where cgroup2 is mounted; NULL: do without. */
int cgroups_init(struct cgroups *groups, const char *root, struct err *e) __attribute__((nonnull(1, 3), warn_unused_result));
void cgroups_done(struct cgroups *groups);
int cgroups_take(struct cgroups *groups, struct leaf *ret_leaf, struct err *e) __attribute__((nonnull, warn_unused_result));
void cgroups_give_back(struct cgroups *groups, struct leaf *leaf) __attribute__((nonnull));
bool cgroups_kill_all(struct cgroups *groups) __attribute__((nonnull));
bool cgroups_are_empty(const struct cgroups *groups) __attribute__((nonnull));               /* true without control groups */
void cgroups_wait_empty(const struct cgroups *groups, int wait_ms) __attribute__((nonnull)); /* blocks, at most that long */
/* cgroup.events of all programs for EPOLLPRI, -1 without; the caller closes it. */
int cgroups_events_open(const struct cgroups *groups) __attribute__((nonnull));

bool leaf_kill(const struct leaf *leaf) __attribute__((nonnull)); /* false: kill the process group instead */
bool leaf_was_oom_killed(const struct leaf *leaf) __attribute__((nonnull));
