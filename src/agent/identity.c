/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/identity.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <fcntl.h>
#include <linux/random.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_FILE "/run/.boot_id"
#define SEED_BYTES 32
#define HOSTNAME_BYTES_MAX 64
#define CLOCK_TOLERANCE_NS 100000000ull

/* A regular file of our own at path: images ship links there, into /run and elsewhere. */
static int own_file(const char *path, mode_t mode)
{
    struct stat status;
    if (lstat(path, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        log_warn("'%s' cannot be made: %s, ignoring", path, strerror(errno));
    return fd;
}

static int rewrite(int fd, const char *text, const char *what, struct err *e)
{
    size_t len = strlen(text);
    if (fd < 0)
        return 0;
    if (pwrite(fd, text, len, 0) != (ssize_t)len || ftruncate(fd, (off_t)len))
        return err_sys(e, errno, "write %s", what);
    return 0;
}

static int prepare_boot_id(void)
{
    const unsigned long read_only = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    auto_close fd = open(BOOT_ID_FILE, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    auto_free char *current = NULL;
    struct err e = ERR_INIT;
    if (fd < 0 || file_read(BOOT_ID_PATH, 64, &current, NULL, &e) || rewrite(fd, current, "boot id", &e))
        return -1;
    int failed = mount(BOOT_ID_FILE, BOOT_ID_PATH, NULL, MS_BIND, NULL);
    if (!failed)
        mount(NULL, BOOT_ID_PATH, NULL, read_only, NULL);
    unlink(BOOT_ID_FILE);
    return failed ? -1 : STEAL_FD(fd);
}

void identity_prepare(struct identity *identity)
{
    struct err e = ERR_INIT;
    mkdir("/etc", 0755);
    *identity = (struct identity){
        .random_fd = open("/dev/urandom", O_RDWR | O_CLOEXEC),
        .boot_id_fd = prepare_boot_id(),
        .hostname_fd = own_file("/etc/hostname", 0644),
        .hosts_fd = own_file("/etc/hosts", 0644),
        .machine_id_fd = own_file("/etc/machine-id", 0444),
    };
    /* copied up to the writable layer now, not in each clone */
    if (rewrite(identity->hostname_fd, "localhost\n", "host name", &e) ||
        rewrite(identity->hosts_fd, "127.0.0.1 localhost\n", "hosts", &e) ||
        rewrite(identity->machine_id_fd, "uninitialized\n", "machine id", &e))
        log_warn("%s, ignoring", e.text);
}

void identity_release_files(struct identity *identity)
{
    int *fds[] = {&identity->hostname_fd, &identity->hosts_fd, &identity->machine_id_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

void identity_set_clock(uint64_t realtime_ns)
{
    uint64_t now = clock_realtime_ns();
    uint64_t off = now > realtime_ns ? now - realtime_ns : realtime_ns - now;
    if (!realtime_ns || off <= CLOCK_TOLERANCE_NS)
        return;
    struct timespec time = {(time_t)(realtime_ns / 1000000000u), (long)(realtime_ns % 1000000000u)};
    if (clock_settime(CLOCK_REALTIME, &time))
        log_warn("the clock cannot be set: %s, ignoring", strerror(errno));
}

bool identity_hostname_is_valid(const char *hostname)
{
    size_t len = strlen(hostname), label = 0;
    if (!len || len > HOSTNAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i <= len; i++) {
        char c = hostname[i];
        if (c == '.' || !c) {
            if (!label || hostname[i - 1] == '-')
                return false;
            label = 0;
            continue;
        }
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && (c != '-' || !label))
            return false;
        label++;
    }
    return true;
}

static bool is_hex_like(const char *text, const char *pattern)
{
    for (; *text && *pattern; text++, pattern++) {
        bool hex = (*text >= '0' && *text <= '9') || (*text >= 'a' && *text <= 'f');
        if (*pattern == 'x' ? !hex : *text != *pattern)
            return false;
    }
    return *text == *pattern;
}

static int seed_random(int fd, const struct wire_bytes *seed, struct err *e)
{
    /* struct rand_pool_info with its bytes behind it */
    int entropy[2 + SEED_BYTES / sizeof(int)] = {SEED_BYTES * 8, SEED_BYTES};
    memcpy(&entropy[2], seed->data, SEED_BYTES);
    if (fd < 0 || ioctl(fd, RNDADDENTROPY, entropy) || ioctl(fd, RNDRESEEDCRNG))
        return err_sys(e, errno, "seed the random generator");
    return 0;
}

int identity_apply(const struct identity *identity, const struct wire_identity *values, struct err *e)
{
    if (values->seed.len != SEED_BYTES)
        return err_set(e, ERR_INVALID, "a seed of %zu bytes instead of %d", values->seed.len, SEED_BYTES);
    if (!identity_hostname_is_valid(values->hostname))
        return err_set(e, ERR_INVALID, "'%.100s' is no host name", values->hostname);
    if (!is_hex_like(values->boot_id, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"))
        return err_set(e, ERR_INVALID, "'%.100s' is no boot id", values->boot_id);
    if (!is_hex_like(values->machine_id, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"))
        return err_set(e, ERR_INVALID, "'%.100s' is no machine id", values->machine_id);
    if (seed_random(identity->random_fd, &values->seed, e))
        return -1;
    identity_set_clock(values->realtime_ns);
    if (sethostname(values->hostname, strlen(values->hostname)))
        return err_sys(e, errno, "set the host name");
    char text[256];
    snprintf(text, sizeof text, "%s\n", values->hostname);
    if (rewrite(identity->hostname_fd, text, "/etc/hostname", e))
        return -1;
    snprintf(text, sizeof text, "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 %s\n",
             values->hostname);
    if (rewrite(identity->hosts_fd, text, "/etc/hosts", e))
        return -1;
    snprintf(text, sizeof text, "%s\n", values->machine_id);
    if (rewrite(identity->machine_id_fd, text, "/etc/machine-id", e))
        return -1;
    snprintf(text, sizeof text, "%s\n", values->boot_id);
    return rewrite(identity->boot_id_fd, text, "the boot id", e);
}
