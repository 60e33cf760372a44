/* SPDX-License-Identifier: Apache-2.0 */
/* The child between clone and exec. It owns a copy of the parent's memory but must not allocate, log or return: every step
 * either succeeds or is reported through the pipe with its stage and errno. The order matters where it says so. */
#include "base/file.h"
#include "base/limits.h"
#include "jail/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void report(const struct jail_plan *plan, enum jail_stage stage, int error)
{
    struct jail_report r = {.stage = stage, .missing = plan->missing, .error = error};
    if (fd_write(plan->report_fd, &r, sizeof r) != (ssize_t)sizeof r)
        _exit(127); /* the parent is gone, or sees the end of the child */
}

static _Noreturn void fail(const struct jail_plan *plan, enum jail_stage stage, int error)
{
    report(plan, stage, error);
    _exit(127);
}

static void reset_signals(const struct jail_plan *plan)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    for (int number = 1; number < NSIG; number++)
        sigaction(number, &plain, NULL); /* SIGKILL, SIGSTOP and libc's own two refuse: nothing to reset there */
    sigset_t none;
    sigemptyset(&none);
    if (sigprocmask(SIG_SETMASK, &none, NULL))
        fail(plan, JAIL_STAGE_SIGNALS, errno);
}

static int write_proc(const char *path, const char *text, size_t len)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = fd_write(fd, text, len);
    int saved = errno;
    close(fd);
    errno = saved;
    return n == (ssize_t)len ? 0 : -1;
}

int jail_write_maps(uid_t inside_uid, uid_t uid, gid_t inside_gid, gid_t gid)
{
    /* A process that has changed its ids does not own its files in /proc until it is dumpable again. */
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
        return -1;
    if (write_proc("/proc/self/setgroups", "deny", 4))
        return -1;
    char map[64];
    int len = snprintf(map, sizeof map, "%u %u 1", (unsigned)inside_uid, (unsigned)uid);
    if (write_proc("/proc/self/uid_map", map, (size_t)len))
        return -1;
    len = snprintf(map, sizeof map, "%u %u 1", (unsigned)inside_gid, (unsigned)gid);
    return write_proc("/proc/self/gid_map", map, (size_t)len);
}

static void enter_user_namespace(struct jail_plan *plan)
{
    /* A root without CAP_SYS_ADMIN (a container) stays itself outside, but does not look powerful inside. */
    bool hide_root = plan->spec->ids == JAIL_IDS_NOBODY && plan->uid == 0;
    if (hide_root)
        plan->missing |= JAIL_LAYER_IDS;
    if (jail_write_maps(hide_root ? JAIL_UID : plan->uid, plan->uid, hide_root ? JAIL_UID : plan->gid, plan->gid))
        fail(plan, JAIL_STAGE_USER_NAMESPACE, errno);
}

static void make_mounts_private(const struct jail_plan *plan)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        fail(plan, JAIL_STAGE_MOUNTS, errno);
    if (!(plan->namespaces & CLONE_NEWPID))
        return;
    /* A /proc of the new pid namespace, which does not show the host's processes. A host that hides parts of /proc refuses
     * this to a user namespace; the child then has the old one, where the kernel's checks protect the others. */
    const char *options = plan->spec->caps == JAIL_CAPS_DROP ? "hidepid=2,subset=pid" : "";
    int refused = mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, options);
    (void)refused;
}

static void mark_all_cloexec(const struct jail_plan *plan)
{
    if (syscall(SYS_close_range, 0u, ~0u, CLOSE_RANGE_CLOEXEC) == 0)
        return;
    if (errno != ENOSYS && errno != EINVAL) /* before Linux 5.11 */
        fail(plan, JAIL_STAGE_DESCRIPTORS, errno);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        fail(plan, JAIL_STAGE_DESCRIPTORS, errno);
    for (int fd = 0; (rlim_t)fd < limit.rlim_cur; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* Sources and targets may overlap in any way: all sources first move above every number in use, then everything is marked
 * close-on-exec, then the copies go to their targets, which dup2 leaves open over the exec. */
static void arrange_descriptors(struct jail_plan *plan)
{
    const struct jail_spec *spec = plan->spec;
    int high[JAIL_FDS_MAX], as_of[JAIL_FDS_MAX], above = 2;
    if (spec->fds_len > JAIL_FDS_MAX)
        fail(plan, JAIL_STAGE_DESCRIPTORS, E2BIG);
    for (size_t i = 0; i < spec->fds_len; i++) {
        as_of[i] = spec->fds[i].as < 0 ? spec->fds[i].fd : spec->fds[i].as;
        above = as_of[i] > above ? as_of[i] : above;
        above = spec->fds[i].fd > above ? spec->fds[i].fd : above;
    }
    int report_high = fcntl(plan->report_fd, F_DUPFD_CLOEXEC, above + 1);
    int program_high = fcntl(plan->program_fd, F_DUPFD_CLOEXEC, above + 1);
    if (report_high < 0 || program_high < 0)
        fail(plan, JAIL_STAGE_DESCRIPTORS, errno);
    plan->report_fd = report_high;
    plan->program_fd = program_high;
    for (size_t i = 0; i < spec->fds_len; i++) {
        high[i] = fcntl(spec->fds[i].fd, F_DUPFD_CLOEXEC, above + 1);
        if (high[i] < 0)
            fail(plan, JAIL_STAGE_DESCRIPTORS, errno);
    }
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    int null_high = null_fd < 0 ? -1 : fcntl(null_fd, F_DUPFD_CLOEXEC, above + 1);
    if (null_high < 0)
        fail(plan, JAIL_STAGE_DESCRIPTORS, errno);
    mark_all_cloexec(plan);
    for (int fd = 0; fd <= 2; fd++) {
        if (dup2(null_high, fd) < 0)
            fail(plan, JAIL_STAGE_DESCRIPTORS, errno);
    }
    for (size_t i = 0; i < spec->fds_len; i++) {
        if (dup2(high[i], as_of[i]) < 0)
            fail(plan, JAIL_STAGE_DESCRIPTORS, errno);
    }
}

static int lower_limit(int resource, uint64_t value)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit))
        return -1;
    if (limit.rlim_max != RLIM_INFINITY && value > limit.rlim_max)
        value = limit.rlim_max; /* tighter already */
    limit = (struct rlimit){.rlim_cur = value, .rlim_max = value};
    return setrlimit((__rlimit_resource_t)resource, &limit);
}

static void set_limits(const struct jail_plan *plan)
{
    const struct jail_spec *spec = plan->spec;
    if (lower_limit(RLIMIT_CORE, 0) || (spec->file_size_max && lower_limit(RLIMIT_FSIZE, spec->file_size_max)) ||
        (spec->fds_max && lower_limit(RLIMIT_NOFILE, spec->fds_max)) ||
        (spec->cpu_secs_max && lower_limit(RLIMIT_CPU, spec->cpu_secs_max)) ||
        (spec->memory_max && lower_limit(RLIMIT_AS, spec->memory_max)))
        fail(plan, JAIL_STAGE_LIMITS, errno);
}

static void become_nobody(struct jail_plan *plan)
{
    const struct jail_spec *spec = plan->spec;
    if (spec->ids != JAIL_IDS_NOBODY || plan->uid != 0 || (plan->namespaces & CLONE_NEWUSER))
        return; /* a user is its own nobody; in a user namespace the maps did it */
    if (!jail_caps_has(CAP_SETUID) || !jail_caps_has(CAP_SETGID)) {
        plan->missing |= JAIL_LAYER_IDS;
        return;
    }
    gid_t group = spec->extra_group;
    if (setgroups(group ? 1 : 0, group ? &group : NULL) || setresgid(JAIL_UID, JAIL_UID, JAIL_UID))
        fail(plan, JAIL_STAGE_IDS, errno);
    if (spec->lockdown_follows && prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
        fail(plan, JAIL_STAGE_IDS, errno);
    if (setresuid(JAIL_UID, JAIL_UID, JAIL_UID))
        fail(plan, JAIL_STAGE_IDS, errno);
}

static void drop_rights(struct jail_plan *plan)
{
    bool drop = plan->spec->caps == JAIL_CAPS_DROP, keep = plan->spec->lockdown_follows;
    if (drop && jail_caps_bound(keep))
        fail(plan, JAIL_STAGE_BOUNDS, errno);
    become_nobody(plan);
    if (drop && jail_caps_drop(keep))
        fail(plan, JAIL_STAGE_CAPABILITIES, errno);
    if (!plan->spec->allow_new_privs && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        fail(plan, JAIL_STAGE_NO_NEW_PRIVS, errno);
}

/* After the ids, because changing them clears the signal. The parent may have died before it was set; in a new pid namespace
 * getppid says nothing, but only the parent holds the reading end of the pipe. */
static void die_with_parent(const struct jail_plan *plan)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))
        fail(plan, JAIL_STAGE_PARENT, errno);
    struct pollfd reader = {.fd = plan->report_fd};
    if (poll(&reader, 1, 0) < 0)
        fail(plan, JAIL_STAGE_PARENT, errno);
    if (reader.revents & POLLERR)
        _exit(127);
}

_Noreturn void jail_child_run(struct jail_plan *plan)
{
    const struct jail_spec *spec = plan->spec;
    close(plan->report_read_fd);
    reset_signals(plan);
    if (plan->namespaces & CLONE_NEWUSER)
        enter_user_namespace(plan);
    if (plan->namespaces & CLONE_NEWNS)
        make_mounts_private(plan);
    arrange_descriptors(plan);
    set_limits(plan);
    drop_rights(plan);
    die_with_parent(plan);
    if (setsid() < 0)
        fail(plan, JAIL_STAGE_SESSION, errno);
    if (chdir(spec->cwd ? spec->cwd : "/"))
        fail(plan, JAIL_STAGE_FOLDER, errno);
    umask(022);
    if (plan->missing)
        report(plan, JAIL_STAGE_NONE, 0);
    char *const no_env[] = {NULL};
    char *const *env = spec->env ? spec->env : no_env;
    execve(spec->program, spec->argv, env);
    if (errno == EACCES) /* nobody may not walk into the folder (a build in root's home), but may run the file */
        syscall(SYS_execveat, plan->program_fd, "", spec->argv, env, AT_EMPTY_PATH);
    fail(plan, JAIL_STAGE_EXEC, errno);
}
