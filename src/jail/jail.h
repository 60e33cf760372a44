/* SPDX-License-Identifier: Apache-2.0 */
/* Every child of the program starts through jail_spawn and nothing else; our own helper programs then lock themselves down
 * with jail_lockdown once they have opened what they need.
 *
 * jail_spawn (between clone and exec): new namespaces where the host allows them, private mounts, rlimits, capabilities
 * dropped from all sets and the bounding set, groups and ids, no_new_privs, parent-death signal (after the ids: changing them
 * clears it; the parent is checked to be alive still), new session, default signal handlers and an empty mask, and every
 * descriptor closed but the listed ones. A failure in the child comes back as an error that names its stage. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Nobody on any distribution: above the system ids, below the ranges for user namespaces, not the overflow id 65534 (which
 * other programs use, and whose files would then be ours). */
#define JAIL_UID 65000

/* One descriptor that the child gets: `fd` here becomes `as` there; as -1 keeps its number. */
struct jail_fd {
    int fd, as;
};

enum jail_ids {
    JAIL_IDS_KEEP,   /* run as the caller (mmdebstrap, apt-get) */
    JAIL_IDS_NOBODY, /* as root: uid and gid JAIL_UID; as a user: mapped to itself in a user namespace where allowed */
};

enum jail_caps { JAIL_CAPS_DROP, JAIL_CAPS_KEEP };

struct jail_spec {
    const char *name;          /* for messages: "qemu" */
    const char *program;       /* absolute path */
    char *const *argv;         /* NULL-terminated */
    char *const *env;          /* NULL-terminated; NULL: empty environment */
    const char *cwd;           /* NULL: "/" */
    const struct jail_fd *fds; /* besides 0, 1, 2, which are /dev/null unless listed with `as` 0, 1 or 2 */
    size_t fds_len;
    bool namespaces; /* mount, pid, net, ipc, uts, cgroup (and user, when not root), each where allowed */
    bool network;    /* with namespaces: keep the host's network (apt-get, registry access) */
    enum jail_ids ids;
    gid_t extra_group; /* a supplementary group that NOBODY keeps (that of /dev/kvm); 0: none */
    enum jail_caps caps;
    bool lockdown_follows;  /* one of our helpers: with caps dropped, keeps CAP_SYS_ADMIN over its namespaces for jail_lockdown */
    bool allow_new_privs;   /* only for host tools that need setuid helpers; never for anything that meets untrusted bytes */
    uint64_t file_size_max; /* RLIMIT_FSIZE in bytes, 0: unlimited */
    uint64_t fds_max;       /* RLIMIT_NOFILE, 0: as inherited */
    uint64_t cpu_secs_max;  /* RLIMIT_CPU, 0: unlimited */
    uint64_t memory_max;    /* RLIMIT_AS in bytes, 0: unlimited */
};

struct jail_child {
    pid_t pid;
    int pidfd;        /* owned by the caller; readable when the child has ended */
    unsigned missing; /* bits of enum jail_layer that the host did not allow */
};

enum jail_layer {
    JAIL_LAYER_NAMESPACES = 1,     /* at least one of the namespaces that were asked for */
    JAIL_LAYER_USER_NAMESPACE = 2, /* not root, and no user namespace either */
    JAIL_LAYER_IDS = 4,            /* the ids of the caller were kept although NOBODY was asked for */
    JAIL_LAYER_ROOT = 8,           /* jail_lockdown: the host's root stays visible */
};

/* Blocks until the child has executed its program (about a millisecond). A program that is missing or may not be executed
 * is ERR_ENVIRONMENT. */
int jail_spawn(const struct jail_spec *spec, struct jail_child *ret_child, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* Waits for the end of the child (blocking) and reaps it. *ret_status as from waitpid. Closes the pidfd. */
int jail_wait(struct jail_child *child, int *ret_status, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Sends a signal. A child that has ended already is success; it stays to be reaped. */
int jail_signal(const struct jail_child *child, int number, struct err *e) __attribute__((nonnull, warn_unused_result));
/* SIGKILL, reap, close the pidfd. One that does not end within 10 s (it hangs in the kernel) is left behind. Safe on a child that
 * was already reaped by jail_wait. */
void jail_kill(struct jail_child *child) __attribute__((nonnull));

/* For our helper programs, called by themselves after start: an empty read-only root where namespaces allow it, no
 * capability, a seccomp allow list (what it does not name kills the process). `syscalls` is a list of names ended by NULL;
 * names that this architecture lacks are skipped, a name that no architecture has is ERR_INVALID. Leaving, aborting and
 * writing a last message are always allowed, and what AddressSanitizer needs in builds with it. *ret_missing are the
 * layers that the host did not allow. */
int jail_lockdown(const char *const *syscalls, unsigned *ret_missing, struct err *e) __attribute__((nonnull, warn_unused_result));
/* As jail_lockdown, with the folder root_fd as the whole, writable file tree (no set-id programs, no devices), which is also the
 * working directory; root keeps its rights over files there (CAP_DAC_OVERRIDE, CAP_FOWNER). Where the host does not allow a
 * new root, the working directory is the folder all the same, without those rights. Closes root_fd. */
int jail_lockdown_into(int root_fd, const char *const *syscalls, unsigned *ret_missing, struct err *e)
    __attribute__((nonnull, warn_unused_result));
