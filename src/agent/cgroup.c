/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/cgroup.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>

static bool write_at(int dirfd, const char *name, const char *text)
{
    auto_close fd = openat(dirfd, name, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && fd_write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

/* The number behind "key " in a file of such lines; 0 when it is not there. */
static uint64_t read_key(int dirfd, const char *name, const char *key)
{
    char text[512];
    auto_close fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : fd_read(fd, text, sizeof text - 1);
    if (len < 0)
        return 0;
    text[len] = 0;
    size_t key_len = strlen(key);
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        uint64_t value;
        struct err e = ERR_INIT;
        if (!strncmp(line, key, key_len) && line[key_len] == ' ' && !text_parse_u64(line + key_len + 1, UINT64_MAX, &value, &e))
            return value;
    }
    return 0;
}

static uint64_t read_number(const char *path, uint64_t otherwise)
{
    auto_free char *text = NULL;
    struct err e = ERR_INIT;
    uint64_t value;
    if (file_read(path, 64, &text, NULL, &e))
        return otherwise;
    text[strcspn(text, "\n")] = 0;
    return text_parse_u64(text, UINT64_MAX, &value, &e) ? otherwise : value;
}

static uint64_t memory_total(void)
{
    auto_free char *text = NULL;
    struct err e = ERR_INIT;
    if (file_read("/proc/meminfo", 64 * KIB, &text, NULL, &e))
        return 0;
    char *at = strstr(text, "MemTotal:");
    if (!at)
        return 0;
    at += strlen("MemTotal:");
    at += strspn(at, " ");
    at[strspn(at, "0123456789")] = 0;
    uint64_t kib;
    return text_parse_u64(at, UINT64_MAX / 1024, &kib, &e) ? 0 : kib * 1024;
}

/* Limits are a protection, not a promise to the caller: a kernel without one of them still serves. */
static void limit_exec_group(struct cgroups *groups)
{
    char text[32];
    uint64_t pids = read_number("/proc/sys/kernel/threads-max", 1024), pid_max = read_number("/proc/sys/kernel/pid_max", 32768);
    if (pids > pid_max)
        pids = pid_max;
    pids = pids > 2 * AGENT_PIDS_RESERVE ? pids - AGENT_PIDS_RESERVE : pids / 2;
    if (pids > AGENT_PIDS_MAX)
        pids = AGENT_PIDS_MAX;
    groups->leaf_pids_max = pids - pids / 8;
    snprintf(text, sizeof text, "%llu", (unsigned long long)pids);
    write_at(groups->exec_dirfd, "pids.max", text);
    uint64_t memory = memory_total();
    if (memory > 2 * AGENT_MEMORY_RESERVE) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)memory - AGENT_MEMORY_RESERVE);
        write_at(groups->exec_dirfd, "memory.max", text);
    }
}

static void enable_controllers(int dirfd)
{
    static const char *const controllers[] = {"+memory", "+pids", "+cpu"};
    for (size_t i = 0; i < sizeof controllers / sizeof *controllers; i++)
        write_at(dirfd, "cgroup.subtree_control", controllers[i]);
}

static int leaf_make(struct cgroups *groups, struct leaf *ret_leaf, struct err *e)
{
    char name[32], text[32];
    unsigned id = groups->next_id++;
    snprintf(name, sizeof name, "%u", id);
    if (mkdirat(groups->exec_dirfd, name, 0755) && errno != EEXIST)
        return err_sys(e, errno, "make control group %s", name);
    int dirfd = openat(groups->exec_dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        return err_sys(e, errno, "open control group %s", name);
    write_at(dirfd, "memory.oom.group", "1");
    snprintf(text, sizeof text, "%llu", (unsigned long long)groups->leaf_pids_max);
    write_at(dirfd, "pids.max", text);
    *ret_leaf = (struct leaf){.id = id, .dirfd = dirfd};
    return 0;
}

int cgroups_init(struct cgroups *groups, const char *root, struct err *e)
{
    *groups = (struct cgroups){.exec_dirfd = -1};
    if (!root)
        return 0;
    auto_close root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0)
        return err_sys(e, errno, "open '%s'", root);
    enable_controllers(root_fd);
    if (mkdirat(root_fd, "exec", 0755) && errno != EEXIST)
        return err_sys(e, errno, "make control group '%s/exec'", root);
    groups->exec_dirfd = openat(root_fd, "exec", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (groups->exec_dirfd < 0)
        return err_sys(e, errno, "open control group '%s/exec'", root);
    enable_controllers(groups->exec_dirfd);
    limit_exec_group(groups);
    while (groups->spare_count < AGENT_SPARE_CGROUPS_MAX) {
        if (leaf_make(groups, &groups->spare[groups->spare_count], e))
            return -1;
        groups->spare_count++;
    }
    return 0;
}

void cgroups_done(struct cgroups *groups)
{
    if (!groups)
        return;
    for (size_t i = 0; i < groups->spare_count; i++)
        close(groups->spare[i].dirfd);
    if (groups->exec_dirfd >= 0)
        close(groups->exec_dirfd);
    free(groups->lingering);
    *groups = (struct cgroups){.exec_dirfd = -1};
}

static bool leaf_remove(struct cgroups *groups, unsigned id)
{
    char name[32];
    snprintf(name, sizeof name, "%u", id);
    return unlinkat(groups->exec_dirfd, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

/* Removes a few groups whose orphans are gone; the kernel refuses the others. */
static void collect_lingering(struct cgroups *groups)
{
    for (size_t tries = 0, at = 0; tries < 8 && at < groups->lingering_count; tries++) {
        if (leaf_remove(groups, groups->lingering[at]))
            groups->lingering[at] = groups->lingering[--groups->lingering_count];
        else
            at++;
    }
    if (groups->lingering_count > 8) { /* begin elsewhere next time */
        unsigned first = groups->lingering[0];
        memmove(groups->lingering, groups->lingering + 1, (groups->lingering_count - 1) * sizeof first);
        groups->lingering[groups->lingering_count - 1] = first;
    }
}

int cgroups_take(struct cgroups *groups, struct leaf *ret_leaf, struct err *e)
{
    *ret_leaf = (struct leaf){.dirfd = -1};
    if (groups->exec_dirfd < 0)
        return 0;
    collect_lingering(groups);
    if (groups->spare_count) {
        *ret_leaf = groups->spare[--groups->spare_count];
        return 0;
    }
    return leaf_make(groups, ret_leaf, e);
}

void cgroups_give_back(struct cgroups *groups, struct leaf *leaf)
{
    if (leaf->dirfd < 0)
        return;
    bool populated = read_key(leaf->dirfd, "cgroup.events", "populated") != 0;
    if (!populated && groups->spare_count < AGENT_SPARE_CGROUPS_MAX) {
        leaf->oom_kills_before = read_key(leaf->dirfd, "memory.events", "oom_kill");
        groups->spare[groups->spare_count++] = *leaf;
    } else {
        close(leaf->dirfd);
        if (!leaf_remove(groups, leaf->id) && groups->lingering_count < AGENT_LINGERING_MAX) {
            if (!groups->lingering)
                groups->lingering = xcalloc(AGENT_LINGERING_MAX, sizeof *groups->lingering);
            groups->lingering[groups->lingering_count++] = leaf->id;
        }
    }
    *leaf = (struct leaf){.dirfd = -1};
}

bool cgroups_kill_all(struct cgroups *groups)
{
    return groups->exec_dirfd >= 0 && write_at(groups->exec_dirfd, "cgroup.kill", "1");
}

bool cgroups_are_empty(const struct cgroups *groups)
{
    return groups->exec_dirfd < 0 || read_key(groups->exec_dirfd, "cgroup.events", "populated") == 0;
}

int cgroups_events_open(const struct cgroups *groups)
{
    return groups->exec_dirfd < 0 ? -1 : openat(groups->exec_dirfd, "cgroup.events", O_RDONLY | O_CLOEXEC);
}

void cgroups_wait_empty(const struct cgroups *groups, int wait_ms)
{
    struct pollfd poller = {.fd = cgroups_events_open(groups), .events = POLLPRI};
    uint64_t end_ms = clock_now_ms() + (uint64_t)wait_ms;
    char text[256];
    while (poller.fd >= 0 && pread(poller.fd, text, sizeof text, 0) >= 0 && !cgroups_are_empty(groups)) {
        uint64_t now_ms = clock_now_ms();
        if (now_ms >= end_ms || poll(&poller, 1, (int)(end_ms - now_ms)) < 0)
            break;
    }
    if (poller.fd >= 0)
        close(poller.fd);
}

bool leaf_kill(const struct leaf *leaf)
{
    return leaf->dirfd >= 0 && write_at(leaf->dirfd, "cgroup.kill", "1");
}

bool leaf_was_oom_killed(const struct leaf *leaf)
{
    return leaf->dirfd >= 0 && read_key(leaf->dirfd, "memory.events", "oom_kill") > leaf->oom_kills_before;
}
