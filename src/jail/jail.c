/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's side of a spawn: choose the namespaces, clone, read what the child reports.
 *
 * Namespaces are asked for all at once; a host that refuses is asked again without one of them at a time (a kernel built
 * without it), at last without any, and what is missing is told to the caller, who decides whether that is enough. A child
 * that got its namespaces but may not use them (some hosts allow user namespaces without rights in them) counts as refused.
 * Without CAP_SYS_ADMIN the namespaces come through a user namespace that maps the caller to itself. */
#include "jail/jail.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "jail/internal.h"

#include <assert.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define JAIL_START_MS 10000 /* a child that has not executed its program by then hangs in the kernel or a file system */
#define JAIL_KILL_MS 10000

static const uint64_t namespace_flags[] = {CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP};
#define NAMESPACE_FLAGS_LEN (sizeof namespace_flags / sizeof *namespace_flags)

static const char *const stage_names[] = {
    [JAIL_STAGE_NONE] = "start",
    [JAIL_STAGE_SIGNALS] = "reset signals",
    [JAIL_STAGE_USER_NAMESPACE] = "map ids of the user namespace",
    [JAIL_STAGE_MOUNTS] = "make mounts private",
    [JAIL_STAGE_DESCRIPTORS] = "arrange descriptors",
    [JAIL_STAGE_LIMITS] = "set resource limits",
    [JAIL_STAGE_BOUNDS] = "drop the capability bounding set",
    [JAIL_STAGE_IDS] = "change ids",
    [JAIL_STAGE_CAPABILITIES] = "drop capabilities",
    [JAIL_STAGE_NO_NEW_PRIVS] = "set no_new_privs",
    [JAIL_STAGE_PARENT] = "tie to the parent",
    [JAIL_STAGE_SESSION] = "start a session",
    [JAIL_STAGE_FOLDER] = "enter the working folder",
    [JAIL_STAGE_EXEC] = "execute",
};
static_assert(sizeof stage_names / sizeof *stage_names == JAIL_STAGE_COUNT, "one name per stage");

/* 0 in the child, the pid in the parent, -1. */
static pid_t clone_child(uint64_t flags, int *ret_pidfd)
{
    int pidfd = -1;
    struct clone_args args = {.flags = flags | CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0 && errno == ENOSYS) /* container run-times hide clone3 because their filters cannot look into it */
        pid = syscall(SYS_clone, flags | CLONE_PIDFD | SIGCHLD, NULL, &pidfd, NULL, NULL);
    if (pid > 0)
        *ret_pidfd = pidfd;
    return (pid_t)pid;
}

/* Signals are blocked over the clone: a handler of the parent must not run in the child, where its pipes are shared. */
static pid_t clone_quietly(struct jail_plan *plan, int *ret_pidfd)
{
    sigset_t all, before;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, &before) == 0);
    pid_t pid = clone_child(plan->namespaces, ret_pidfd);
    if (pid == 0)
        jail_child_run(plan);
    int saved = errno;
    CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    errno = saved;
    return pid;
}

/* Reads reports until the child has executed or failed. Returns 1 when `*report` holds a failure. */
static int read_reports(int fd, struct jail_report *report, unsigned *missing, struct err *e)
{
    uint64_t deadline = clock_now_ms() + JAIL_START_MS;
    for (;;) {
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        uint64_t now = clock_now_ms();
        int n = now < deadline ? poll(&waiting, 1, (int)(deadline - now)) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, errno, "wait for the child");
        if (n == 0)
            return err_set(e, ERR_SYSTEM, "the child did not execute its program within %d s", JAIL_START_MS / 1000);
        ssize_t got = fd_read(fd, report, sizeof *report);
        if (got < 0)
            return err_sys(e, errno, "read the child's report");
        if (got == 0)
            return 0;
        CHECK(got == (ssize_t)sizeof *report && report->stage < JAIL_STAGE_COUNT); /* small writes to a pipe are atomic */
        *missing |= report->missing;
        if (report->stage != JAIL_STAGE_NONE)
            return 1;
    }
}

static bool is_refusal(const struct jail_report *report)
{
    return report->stage == JAIL_STAGE_USER_NAMESPACE || report->stage == JAIL_STAGE_MOUNTS;
}

static int report_failure(const struct jail_spec *spec, const struct jail_report *report, struct err *e)
{
    int error = report->error;
    if (report->stage == JAIL_STAGE_EXEC) {
        bool absent = error == ENOENT || error == EACCES || error == ENOTDIR || error == ENOEXEC;
        return err_sys_code(e, absent ? ERR_ENVIRONMENT : ERR_SYSTEM, error, "execute '%s'", spec->program);
    }
    if (report->stage == JAIL_STAGE_FOLDER)
        return err_sys(e, error, "enter the working folder '%s'", spec->cwd ? spec->cwd : "/");
    return err_sys(e, error, "%s", stage_names[report->stage]);
}

/* One attempt. 0, -1 (final), or 1 when the host refused these namespaces. */
static int try_spawn(struct jail_plan *plan, struct jail_child *ret_child, struct err *e)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return err_sys(e, errno, "make a pipe");
    auto_close read_fd = ends[0];
    auto_close write_fd = ends[1];
    plan->report_read_fd = read_fd;
    plan->report_fd = write_fd;
    struct jail_child child = {.pidfd = -1};
    child.pid = clone_quietly(plan, &child.pidfd);
    if (child.pid < 0) {
        bool refused = errno == EPERM || errno == EINVAL || errno == ENOSPC || errno == EUSERS || errno == ENOSYS;
        if (plan->namespaces && refused)
            return 1;
        return err_sys(e, errno, "make a process");
    }
    close(STEAL_FD(write_fd));
    struct jail_report report = {0};
    unsigned missing = plan->missing;
    int result = read_reports(read_fd, &report, &missing, e);
    if (result == 0) {
        child.missing = missing;
        *ret_child = child;
        return 0;
    }
    jail_kill(&child);
    if (result < 0)
        return -1;
    if (plan->namespaces && is_refusal(&report))
        return 1;
    return report_failure(plan->spec, &report, e);
}

int jail_spawn(const struct jail_spec *spec, struct jail_child *ret_child, struct err *e)
{
    CHECK(spec->name && spec->program && spec->argv);
    auto_close program_fd = open(spec->program, O_PATH | O_CLOEXEC);
    if (program_fd < 0) {
        err_sys_code(e, ERR_ENVIRONMENT, errno, "execute '%s'", spec->program);
        return err_wrap(e, "start %s", spec->name);
    }
    uint64_t wanted = 0;
    for (size_t i = 0; spec->namespaces && i < NAMESPACE_FLAGS_LEN; i++) {
        if (namespace_flags[i] != CLONE_NEWNET || !spec->network)
            wanted |= namespace_flags[i];
    }
    bool privileged = jail_caps_has(CAP_SYS_ADMIN);
    /* Setuid helpers (newuidmap) are of no use inside a user namespace that maps one id. */
    if (wanted && !privileged && spec->allow_new_privs)
        wanted = 0;
    unsigned none_missing =
        (spec->namespaces ? JAIL_LAYER_NAMESPACES : 0) | (spec->namespaces && !privileged ? JAIL_LAYER_USER_NAMESPACE : 0);
    for (size_t attempt = wanted ? 0 : NAMESPACE_FLAGS_LEN + 1; attempt < NAMESPACE_FLAGS_LEN + 2; attempt++) {
        struct jail_plan plan = {.spec = spec, .uid = geteuid(), .gid = getegid(), .program_fd = program_fd};
        if (attempt <= NAMESPACE_FLAGS_LEN)
            plan.namespaces = (attempt ? wanted & ~namespace_flags[attempt - 1] : wanted) | (privileged ? 0 : CLONE_NEWUSER);
        if (attempt > 0)
            plan.missing = attempt <= NAMESPACE_FLAGS_LEN ? JAIL_LAYER_NAMESPACES : none_missing;
        int result = try_spawn(&plan, ret_child, e);
        if (result == 0)
            return 0;
        if (result < 0)
            return err_wrap(e, "start %s", spec->name);
    }
    err_set(e, ERR_SYSTEM, "the host refuses to make a process"); /* the last attempt has no namespace to refuse */
    return err_wrap(e, "start %s", spec->name);
}

static void forget(struct jail_child *child)
{
    if (child->pidfd >= 0)
        close(child->pidfd);
    child->pidfd = -1;
    child->pid = 0;
}

int jail_wait(struct jail_child *child, int *ret_status, struct err *e)
{
    CHECK(child->pid > 0);
    int status = 0;
    pid_t pid;
    do
        pid = waitpid(child->pid, &status, 0);
    while (pid < 0 && errno == EINTR);
    int failure = errno;
    forget(child);
    if (pid < 0)
        return err_sys(e, failure, "wait for a child");
    *ret_status = status;
    return 0;
}

int jail_signal(const struct jail_child *child, int number, struct err *e)
{
    CHECK(child->pid > 0);
    if (syscall(SYS_pidfd_send_signal, child->pidfd, number, NULL, 0) && errno != ESRCH)
        return err_sys(e, errno, "send signal %d to a child", number);
    return 0;
}

void jail_kill(struct jail_child *child)
{
    if (child->pid <= 0)
        return;
    kill(child->pid, SIGKILL); /* it is not reaped yet, so the pid is still its own */
    uint64_t deadline = clock_now_ms() + JAIL_KILL_MS;
    struct pollfd end = {.fd = child->pidfd, .events = POLLIN};
    int n;
    do {
        uint64_t now = clock_now_ms();
        n = poll(&end, 1, now < deadline ? (int)(deadline - now) : 0);
    } while (n < 0 && errno == EINTR);
    waitpid(child->pid, NULL, WNOHANG);
    forget(child);
}
