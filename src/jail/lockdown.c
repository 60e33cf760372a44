/* SPDX-License-Identifier: Apache-2.0 */
/* What a helper of ours does to itself once it has opened what it needs: nothing to see (an empty read-only root), nothing
 * to be allowed (no capability), nothing to call (a seccomp allow list). The capability to change its root comes from
 * jail_spawn (lockdown_follows) or, without that, from a user namespace made here. */
#include "base/check.h"
#include "jail/internal.h"

#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define JAIL_SANITIZED 1
#else
#define JAIL_SANITIZED 0
#endif

/* Leaving, and the way of a failed CHECK: a line, then abort (tgkill is allowed too, to this process alone). */
static const char *const base_syscalls[] = {"exit",         "exit_group",     "rt_sigreturn", "restart_syscall", "write",
                                            "rt_sigaction", "rt_sigprocmask", "getpid",       "gettid",          NULL};

#if JAIL_SANITIZED
static const char *const sanitizer_syscalls[] = {
    "sigaltstack", "mmap",        "munmap", "mprotect",          "madvise",   "mremap",        "brk",
    "futex",       "sched_yield", "prctl",  "prlimit64",         "getrlimit", "clock_gettime", "readlink",
    "readlinkat",  "close",       "openat", "getdents64",        "read",      "lseek",         "set_robust_list",
    "rseq",        "newfstatat",  "fstat",  "sched_getaffinity", NULL};

/* The leak check at exit needs /proc and ptrace, which a locked process has not. */
static bool locked;
int __lsan_is_turned_off(void);
__attribute__((visibility("default"))) int __lsan_is_turned_off(void)
{
    return locked;
}
#endif

/* CAP_SYS_ADMIN over a mount namespace of our own: what jail_spawn left, or a user namespace. */
static int own_mounts(void)
{
    if (jail_caps_has(CAP_SYS_ADMIN))
        return unshare(CLONE_NEWNS);
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
        return -1;
    return jail_write_maps(uid, uid, gid, gid);
}

static int cover_empty(const char *place)
{
    return mount("empty", place, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,nr_inodes=1,mode=555");
}

static int cover_folder(const char *place, int folder_fd)
{
    char source[32];
    snprintf(source, sizeof source, "/proc/self/fd/%d", folder_fd);
    if (mount(source, place, NULL, MS_BIND | MS_REC, NULL))
        return -1;
    /* A user namespace may not loosen what is locked there, and need not. */
    if (mount(NULL, place, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL))
        errno = 0;
    return 0;
}

/* A new root: the folder, or an empty one (-1). */
static int new_root(int folder_fd)
{
    static const char *const places[] = {"/tmp", "/usr", "/dev", "/proc"}; /* any folder will do: it is covered, not changed */
    if (own_mounts() || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return -1;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (folder_fd >= 0 ? cover_folder(places[i], folder_fd) : cover_empty(places[i]))
            continue;
        if (chdir(places[i]))
            return -1;
        /* The old root lands on top of the new one and is taken away. */
        if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH))
            return -1;
        return chdir("/");
    }
    return -1;
}

static int allow(scmp_filter_ctx filter, const char *name, struct err *e)
{
    int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR)
        return err_set(e, ERR_INVALID, "there is no system call '%s'", name);
    if (number < 0)
        return 0; /* of another architecture */
    int failure = seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 0);
    return failure ? err_sys(e, -failure, "allow system call '%s'", name) : 0;
}

static int allow_all(scmp_filter_ctx filter, const char *const *names, struct err *e)
{
    for (size_t i = 0; names[i]; i++) {
        if (allow(filter, names[i], e))
            return -1;
    }
    return 0;
}

static int fill_filter(scmp_filter_ctx filter, const char *const *syscalls, struct err *e)
{
    int failure = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (failure)
        return err_sys(e, -failure, "refuse other architectures");
    if (allow_all(filter, base_syscalls, e) || allow_all(filter, syscalls, e))
        return -1;
#if JAIL_SANITIZED
    if (allow_all(filter, sanitizer_syscalls, e))
        return -1;
#endif
    failure = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid()));
    return failure ? err_sys(e, -failure, "allow system call 'tgkill'") : 0;
}

static int load_filter(const char *const *syscalls, struct err *e)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    if (!filter)
        return err_set(e, ERR_NOMEM, "no memory for a seccomp filter");
    int result = fill_filter(filter, syscalls, e);
    int failure = result ? 0 : seccomp_load(filter);
    seccomp_release(filter);
    if (failure)
        return err_sys_code(e, ERR_ENVIRONMENT, -failure, "load the seccomp filter");
    return result;
}

/* The part after the root: no capability but those over files when asked, no new privileges, the filter. */
static int lock(bool keep_files, const char *const *syscalls, struct err *e)
{
    if (jail_caps_bound(false) || (keep_files ? jail_caps_keep_files() : jail_caps_drop(false)))
        return err_sys(e, errno, "lock down: drop capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
        return err_sys(e, errno, "lock down: set process flags");
#if JAIL_SANITIZED
    locked = true;
#endif
    return load_filter(syscalls, e) ? err_wrap(e, "lock down") : 0;
}

int jail_lockdown(const char *const *syscalls, unsigned *ret_missing, struct err *e)
{
    unsigned missing = new_root(-1) ? JAIL_LAYER_ROOT : 0;
    if (lock(false, syscalls, e))
        return -1;
    *ret_missing = missing;
    return 0;
}

int jail_lockdown_into(int root_fd, const char *const *syscalls, unsigned *ret_missing, struct err *e)
{
    unsigned missing = new_root(root_fd) ? JAIL_LAYER_ROOT : 0;
    if (missing && fchdir(root_fd))
        return err_sys(e, errno, "lock down: enter the folder");
    close(root_fd);
    if (lock(!missing, syscalls, e)) /* rights over files only where no file but those is in sight */
        return -1;
    *ret_missing = missing;
    return 0;
}
