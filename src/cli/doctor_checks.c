/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/doctor_checks.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/path.h"
#include "base/text.h"
#include "cli/store.h"
#include "jail/jail.h"
#include "vmm/vmm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>

#define ENGINE_PORT 49134
#define MEMORY_COMFORT_MB 1024u
#define DISK_COMFORT_MB 2048u
#define DISK_LEAST_MB 512u

static void found(struct doctor_finding *f, enum doctor_verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void found(struct doctor_finding *f, enum doctor_verdict verdict, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    f->verdict = verdict;
    vsnprintf(f->detail, sizeof f->detail, format, args);
    va_end(args);
}

static void remedy(struct doctor_finding *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void remedy(struct doctor_finding *f, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(f->remedy, sizeof f->remedy, format, args);
    va_end(args);
}

/* "sudo " for a command that only root may run. */
static const char *as_root(void)
{
    return geteuid() ? "sudo " : "";
}

/* --- the machine --- */

static void look_kvm(struct doctor_finding *f)
{
    struct kvm_probe probe;
    kvm_probe(&probe);
    if (probe.usable) {
        found(f, DOCTOR_OK, "KVM runs guest code (%llu M loops/s)", (unsigned long long)(probe.loops_per_sec / 1000000));
        return;
    }
    found(f, DOCTOR_DEGRADED, "machines are emulated, slower and behind a weaker boundary: %s", probe.reason);
    if (access("/dev/kvm", F_OK))
        remedy(f, "enable virtualisation in the firmware, then: %smodprobe -a kvm_intel kvm_amd", as_root());
    else if (access("/dev/kvm", R_OK | W_OK)) {
        const struct passwd *me = getpwuid(geteuid());
        remedy(f, "sudo usermod -aG kvm %s, then log in again", me ? me->pw_name : "$USER");
    } else {
        remedy(f, "run on hardware, or ask for nested virtualisation; this /dev/kvm opens but does not run guests at speed");
    }
}

static void look_qemu(struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    struct kvm_probe probe;
    enum vm_accel accel = vm_accel_choose(&probe);
    if (vmm_qemu.probe(accel, &e) == 0) {
        found(f, DOCTOR_OK, "QEMU starts (accelerator %s)", vm_accel_name(accel));
        return;
    }
    found(f, DOCTOR_MISSING, "%s", e.text);
#if defined(__aarch64__)
    remedy(f, "%sapt-get install qemu-system-arm", as_root());
#else
    remedy(f, "%sapt-get install qemu-system-x86", as_root());
#endif
}

static void look_memory(struct doctor_finding *f)
{
    struct sysinfo info;
    if (sysinfo(&info)) {
        found(f, DOCTOR_DEGRADED, "the memory size cannot be read: %s", strerror(errno));
        return;
    }
    unsigned long long free_mb = (info.freeram + info.bufferram) * info.mem_unit / MIB;
    char *text = NULL;
    struct err e = ERR_INIT;
    if (file_read("/proc/meminfo", SMALL_FILE_MAX, &text, NULL, &e) == 0) {
        static const char name[] = "MemAvailable:";
        const char *line = strstr(text, name);
        const char *value = line ? line + strlen(name) + strspn(line + strlen(name), " ") : "";
        auto_free char *digits = xstrndup(value, strspn(value, "0123456789"));
        uint64_t kib;
        if (text_parse_u64(digits, UINT64_MAX, &kib, &e) == 0)
            free_mb = kib / 1024;
    }
    free(text);
    found(f, free_mb < MEMORY_COMFORT_MB ? DOCTOR_DEGRADED : DOCTOR_OK,
          "%llu MiB available; a machine takes 512 unless told otherwise", free_mb);
    remedy(f, "end something, or give smaller machines: --memory 256");
}

/* --- what prepares images --- */

static void look_tools(struct doctor_finding *f)
{
    static const struct {
        const char *program, *package;
    } needs[] = {{"mke2fs", "e2fsprogs"}, {"mmdebstrap", "mmdebstrap"}, {"apt-get", "apt"}, {"dpkg-deb", "dpkg"}};
    char programs[128] = "", packages[128] = "";
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        struct err e = ERR_INIT;
        auto_free char *path = path_find_in_path(needs[i].program, &e);
        if (path)
            continue;
        snprintf(programs + strlen(programs), sizeof programs - strlen(programs), " %s", needs[i].program);
        snprintf(packages + strlen(packages), sizeof packages - strlen(packages), " %s", needs[i].package);
    }
    if (!*programs) {
        found(f, DOCTOR_OK, "mmdebstrap, mke2fs, apt-get and dpkg-deb are here");
        return;
    }
    found(f, DOCTOR_MISSING, "images cannot be prepared without%s", programs);
    remedy(f, "%sapt-get install%s", as_root(), packages);
}

static void look_helpers(struct doctor_finding *f)
{
    static const char *const programs[] = {"iii-sandbox-agent", "iii-sandbox-image"};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        struct err e = ERR_INIT;
        auto_free char *path = path_program(programs[i], &e);
        if (!path) {
            found(f, DOCTOR_MISSING, "%s", e.text);
            remedy(f, "make install");
            return;
        }
    }
    found(f, DOCTOR_OK, "iii-sandbox-agent and iii-sandbox-image are here");
}

/* As an ordinary user mmdebstrap needs a range of ids of that user. */
static void look_rights(struct doctor_finding *f)
{
    if (geteuid() == 0) {
        found(f, DOCTOR_OK, "root: machines run as uid %d", JAIL_UID);
        return;
    }
    const struct passwd *me = getpwuid(geteuid());
    const char *name = me ? me->pw_name : "";
    char *text = NULL;
    struct err e = ERR_INIT;
    bool listed = false;
    if (file_read("/etc/subuid", SMALL_FILE_MAX, &text, NULL, &e) == 0) {
        auto_free char *needle = xasprintf("%s:", name);
        for (const char *at = text; *name && (at = strstr(at, needle)); at++)
            if (at == text || at[-1] == '\n')
                listed = true;
    }
    free(text);
    err_clear(&e);
    auto_free char *newuidmap = path_find_in_path("newuidmap", &e);
    if (listed && newuidmap) {
        found(f, DOCTOR_OK, "%s may prepare images: a range of ids in /etc/subuid, and newuidmap", name);
        return;
    }
    found(f, DOCTOR_DEGRADED, "%s cannot prepare debian: images: %s", *name ? name : "this user",
          listed ? "newuidmap is missing" : "no range of ids in /etc/subuid");
    remedy(f,
           listed ? "sudo apt-get install uidmap"
                  : "sudo apt-get install uidmap && sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s",
           name);
}

/* --- isolation --- */

static void look_namespaces(struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    char *argv[] = {(char[]){"true"}, NULL};
    struct jail_spec spec = {.name = "namespace probe",
                             .program = "/bin/true",
                             .argv = argv,
                             .namespaces = true,
                             .ids = JAIL_IDS_NOBODY,
                             .caps = JAIL_CAPS_DROP};
    struct jail_child child;
    int status = 0;
    if (jail_spawn(&spec, &child, &e) || jail_wait(&child, &status, &e)) {
        found(f, DOCTOR_MISSING, "a jailed child cannot be started: %s", e.text);
        return;
    }
    unsigned missing = child.missing;
    if (!missing) {
        found(f, DOCTOR_OK, "machines get namespaces of their own");
        return;
    }
    found(f, DOCTOR_DEGRADED, "this host does not allow%s%s%s", missing & JAIL_LAYER_NAMESPACES ? " namespaces" : "",
          missing & JAIL_LAYER_USER_NAMESPACE ? " user namespaces" : "", missing & JAIL_LAYER_IDS ? " another user id" : "");
    remedy(f, "%ssysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000", as_root());
}

static void look_seccomp(struct doctor_finding *f)
{
    char *text = NULL;
    struct err e = ERR_INIT;
    bool can_kill =
        file_read("/proc/sys/kernel/seccomp/actions_avail", SMALL_FILE_MAX, &text, NULL, &e) == 0 && strstr(text, "kill_process");
    free(text);
    if (can_kill)
        found(f, DOCTOR_OK, "system call filters work");
    else
        found(f, DOCTOR_MISSING, "this kernel has no system call filters that kill (CONFIG_SECCOMP_FILTER, Linux 4.14)");
    remedy(f, "boot a kernel with CONFIG_SECCOMP_FILTER");
}

static void look_cgroups(struct doctor_finding *f)
{
    char *text = NULL;
    struct err e = ERR_INIT;
    bool memory_v2 =
        file_read("/sys/fs/cgroup/cgroup.controllers", SMALL_FILE_MAX, &text, NULL, &e) == 0 && strstr(text, "memory");
    free(text);
    if (memory_v2)
        found(f, DOCTOR_OK, "control groups v2 with the memory controller");
    else if (access("/sys/fs/cgroup/memory", F_OK) == 0)
        found(f, DOCTOR_OK, "control groups v1 (hybrid)");
    else
        found(f, DOCTOR_DEGRADED, "no control group with a memory controller: machines are limited by their own size alone");
    remedy(f, "mount control groups v2 on /sys/fs/cgroup (systemd does)");
}

/* --- places --- */

/* The data folder, or the nearest folder above it that exists. */
static char *nearest_folder(struct err *e)
{
    char *path = path_data_dir(e);
    struct stat s;
    while (path && stat(path, &s)) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) {
            free(path);
            return xstrdup("/");
        }
        *slash = 0;
    }
    return path;
}

static void look_store(struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    auto_free char *data = path_data_dir(&e);
    auto_free char *nearest = data ? nearest_folder(&e) : NULL;
    if (!nearest) {
        found(f, DOCTOR_MISSING, "%s", e.text);
        remedy(f, "export HOME=/absolute/path");
    } else if (access(nearest, W_OK | X_OK)) {
        found(f, DOCTOR_MISSING, "%s is not writable: %s", nearest, strerror(errno));
        if (errno == EROFS)
            remedy(f, "set III_SANDBOX_DATA_DIR to a folder on a file system that is not read-only");
        else
            remedy(f, "%schown %u %s, or set III_SANDBOX_DATA_DIR to a folder of yours", as_root(), geteuid(), nearest);
    } else if (strcmp(nearest, data) != 0) {
        found(f, DOCTOR_DEGRADED, "%s is not there yet (the first run makes it)", data);
        remedy(f, "iii-sandbox doctor --fix");
    } else {
        found(f, DOCTOR_OK, "%s", data);
    }
}

static int mend_store(struct err *e)
{
    auto_free char *data = path_data_dir(e);
    return data ? dir_make(data, 0700, e) : -1;
}

/* --- what is prepared --- */

/* Runs a look at the opened store; a store that cannot be opened is told by its own row. */
static void look_in_store(struct doctor_finding *f, int (*look)(struct store *store, struct doctor_finding *f, struct err *e))
{
    struct config config;
    struct err e = ERR_INIT;
    auto_free char *data = path_data_dir(&e);
    if (!data || access(data, F_OK)) {
        found(f, DOCTOR_DEGRADED, "nothing is prepared yet (the first run does it)");
        remedy(f, "iii-sandbox image pull python");
        return;
    }
    struct store *store = cli_store_open(NULL, &config, &e);
    if (!store || look(store, f, &e)) {
        found(f, DOCTOR_MISSING, "%s", e.text);
        remedy(f, "iii-sandbox image verify");
    }
    cli_store_close(store);
    config_done(&config);
}

static int look_at_kernel(struct store *store, struct doctor_finding *f, struct err *e)
{
    auto_free char *release = kernel_prepared_release(store, e);
    if (release)
        found(f, DOCTOR_OK, "%s", release);
    else if (err_is_set(e))
        return -1;
    else
        found(f, DOCTOR_DEGRADED, "no kernel is prepared yet (the first run does it)");
    remedy(f, "iii-sandbox run python -- true, or name one: `kernel:` and `kernel_modules:` in the configuration");
    return 0;
}

static void look_kernel(struct doctor_finding *f)
{
    look_in_store(f, look_at_kernel);
}

static int look_at_images(struct store *store, struct doctor_finding *f, struct err *e)
{
    struct image_list images;
    if (image_list(store, &images, e))
        return -1;
    found(f, images.len ? DOCTOR_OK : DOCTOR_DEGRADED,
          images.len ? "prepared:" : "no image is prepared yet (the first run does it)");
    for (size_t i = 0; i < images.len; i++) {
        size_t used = strlen(f->detail);
        snprintf(f->detail + used, sizeof f->detail - used, "%s %s", i ? "," : "", images.items[i].name);
    }
    remedy(f, "iii-sandbox image pull python");
    image_list_done(&images);
    return 0;
}

static void look_images(struct doctor_finding *f)
{
    look_in_store(f, look_at_images);
}

static void look_disk(struct doctor_finding *f)
{
    struct err e = ERR_INIT;
    auto_free char *place = nearest_folder(&e);
    struct statvfs space;
    if (!place || statvfs(place, &space)) {
        found(f, DOCTOR_MISSING, "the free space cannot be read: %s", place ? strerror(errno) : e.text);
        return;
    }
    unsigned long long free_mb = (unsigned long long)space.f_bavail * space.f_frsize / MIB;
    enum doctor_verdict verdict = free_mb < DISK_LEAST_MB     ? DOCTOR_MISSING
                                  : free_mb < DISK_COMFORT_MB ? DOCTOR_DEGRADED
                                                              : DOCTOR_OK;
    found(f, verdict, "%llu MiB free in %s", free_mb, place);
    remedy(f, "iii-sandbox image prune, or free some space in %s", place);
}

static void look_port(struct doctor_finding *f)
{
    auto_close fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(ENGINE_PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, (struct sockaddr *)&address, sizeof address) == 0)
        found(f, DOCTOR_OK, "port %d is free for an engine", ENGINE_PORT);
    else if (errno == EADDRINUSE)
        found(f, DOCTOR_OK, "something listens on port %d already (an engine?)", ENGINE_PORT);
    else
        found(f, DOCTOR_DEGRADED, "port %d on loopback: %s", ENGINE_PORT, strerror(errno));
}

const struct doctor_check doctor_checks[] = {
    {"kvm", look_kvm, NULL},
    {"qemu", look_qemu, NULL},
    {"programs", look_helpers, NULL},
    {"tools", look_tools, NULL},
    {"store", look_store, mend_store},
    {"kernel", look_kernel, NULL},
    {"images", look_images, NULL},
    {"disk", look_disk, NULL},
    {"memory", look_memory, NULL},
    {"rights", look_rights, NULL},
    {"namespaces", look_namespaces, NULL},
    {"seccomp", look_seccomp, NULL},
    {"cgroups", look_cgroups, NULL},
    {"port", look_port, NULL},
    {0},
};
