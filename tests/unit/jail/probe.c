/* SPDX-License-Identifier: Apache-2.0 */
/* The program that the jail tests start: it says on descriptor 1 what it finds around itself. */
#include "base/cleanup.h"
#include "base/file.h"
#include "jail/jail.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

extern char **environ;

static int say_descriptors(void)
{
    for (int fd = 0; fd < 4096; fd++) {
        struct stat s;
        if (fstat(fd, &s) == 0)
            dprintf(1, "%d ", fd);
    }
    return 0;
}

static int say_file(const char *path)
{
    struct err e = ERR_INIT;
    auto_free char *text = NULL;
    if (file_read(path, 65536, &text, NULL, &e)) {
        dprintf(1, "%s\n", e.text);
        return 1;
    }
    dprintf(1, "%s", text);
    return 0;
}

static int say_self(char **argv)
{
    int signal_number = 0;
    prctl(PR_GET_PDEATHSIG, &signal_number);
    size_t env = 0;
    while (environ[env])
        env++;
    dprintf(1, "pid=%d uid=%d gid=%d groups=%d sid_is_own=%d env=%zu pdeathsig=%d arg=%s", (int)getpid(), (int)getuid(),
            (int)getgid(), getgroups(0, NULL), getsid(0) == getpid(), env, signal_number, argv[2] ? argv[2] : "");
    for (size_t i = 0; i < env; i++)
        dprintf(1, " %s", environ[i]);
    return 0;
}

static int say_limits(void)
{
    const int resources[] = {RLIMIT_CORE, RLIMIT_FSIZE, RLIMIT_NOFILE, RLIMIT_CPU};
    for (size_t i = 0; i < sizeof resources / sizeof *resources; i++) {
        struct rlimit limit;
        if (getrlimit((__rlimit_resource_t)resources[i], &limit))
            return 1;
        dprintf(1, "%llu ", (unsigned long long)limit.rlim_max);
    }
    return 0;
}

static int say_numbers(char **argv)
{
    for (int i = 2; argv[i]; i++) {
        char text[16] = "";
        int fd = argv[i][0] - '0';
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        dprintf(1, "%d=%s ", fd, n > 0 ? text : "?");
    }
    return 0;
}

static int lock_and(const char *what)
{
    static const char *const calls[] = {"read", "openat", "close", "newfstatat", "getdents64",
                                        "mmap", "munmap", "brk",   "fstat",      NULL};
    struct err e = ERR_INIT;
    unsigned missing = 0;
    if (strcmp(what, "status") == 0) { /* /proc is gone afterwards, but an open file of it stays readable */
        auto_close fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
        char text[8192];
        if (jail_lockdown(calls, &missing, &e))
            return 1;
        ssize_t n = 0;
        n = fd_read(fd, text, sizeof text);
        return fd_write_all(1, text, n > 0 ? (size_t)n : 0, &e) ? 1 : 0;
    }
    static const char *const typo[] = {"read", "raed", NULL};
    if (jail_lockdown(strcmp(what, "typo") ? calls : typo, &missing, &e)) {
        dprintf(1, "%s", e.text);
        return 1;
    }
    if (strcmp(what, "root") == 0) {
        char entries[4096];
        auto_close fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        long len = syscall(SYS_getdents64, fd, entries, sizeof entries);
        int created = open("/x", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        /* "." and "..": 24 bytes each */
        char text[64];
        int n = snprintf(text, sizeof text, "missing=%u entries=%ld created=%d error=%d", missing, len / 24, created >= 0, errno);
        return fd_write_all(1, text, (size_t)n, &e) ? 1 : 0;
    }
    if (strcmp(what, "socket") == 0)
        return socket(AF_INET, SOCK_STREAM, 0) >= 0;
    if (strcmp(what, "kill") == 0)
        return kill(1, 0);
    if (strcmp(what, "abort") == 0)
        abort();
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "descriptors") == 0)
        return say_descriptors();
    if (strcmp(what, "file") == 0)
        return say_file(argv[2]);
    if (strcmp(what, "self") == 0)
        return say_self(argv);
    if (strcmp(what, "limits") == 0)
        return say_limits();
    if (strcmp(what, "numbers") == 0)
        return say_numbers(argv);
    if (strcmp(what, "lock") == 0)
        return lock_and(argv[2]);
    if (strcmp(what, "exit") == 0)
        return 7;
    if (strcmp(what, "hold") == 0) { /* until killed */
        dprintf(1, "ready");
        for (;;)
            pause();
    }
    return 99;
}
