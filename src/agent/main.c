/* SPDX-License-Identifier: Apache-2.0 */
/* PID 1 of the guest, /init of its initramfs. It sets the machine up, starts one link child, and from then on only reaps
 * orphans and watches that child: nothing that comes from the host or from a program is ever parsed here. The link's end is
 * the machine's end, whatever the cause; a failure is told on the kernel console and, when the port is free, to the host.
 *
 * The kernel line may hold: iii.verbose (the steps of the boot with their times on the console). */
#include "agent/identity.h"
#include "agent/link.h"
#include "agent/mount.h"
#include "agent/port.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"

#include <fcntl.h>
#include <net/if.h>
#include <signal.h>
#include <stdnoreturn.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

static noreturn void machine_off(void)
{
    sync();
    reboot(RB_AUTOBOOT); /* the machine monitor ends instead of booting again */
    for (;;)
        pause();
}

static noreturn void machine_panic(const char *text)
{
    struct err e = ERR_INIT;
    log_error("agent: %s", text);
    auto_close port = port_open(0, &e);
    auto_buf out = BUF_INIT(WIRE_FRAME_MAX);
    struct wire_frame frame = {.kind = WIRE_PANIC, .body = (const uint8_t *)text, .body_bytes = (uint32_t)strlen(text)};
    err_clear(&e);
    if (port >= 0 && wire_frame_append(&out, &frame, &e) == 0)
        port_write_last(port, buf_data(&out), out.len);
    machine_off();
}

static void step(const char *what)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    log_info("agent: %lld.%03ld s: %s", (long long)t.tv_sec, t.tv_nsec / 1000000, what);
}

static void open_console(void)
{
    int fd = open("/dev/console", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 3 && fd >= 0; i++)
        dup2(fd, i);
    if (fd > 2)
        close(fd);
}

static void read_kernel_line(void)
{
    struct err e = ERR_INIT;
    auto_free char *line = NULL;
    if (file_read("/proc/cmdline", 64 * KIB, &line, NULL, &e))
        return;
    char *rest = line;
    for (char *word; (word = strsep(&rest, " \n"));)
        if (!strcmp(word, "iii.verbose"))
            log_set_level(LOG_INFO);
}

static int loopback_up(struct err *e)
{
    auto_close fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request))
        return err_sys_code(e, ERR_BOOT, errno, "bring the loopback interface up");
    return 0;
}

static int set_limits(struct err *e)
{
    struct rlimit files = {AGENT_NOFILE_MAX, AGENT_NOFILE_MAX};
    if (setrlimit(RLIMIT_NOFILE, &files))
        return err_sys_code(e, ERR_BOOT, errno, "set the limit of open files");
    auto_close score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score < 0 || fd_write(score, "-1000", 5) != 5)
        return err_sys_code(e, ERR_BOOT, errno, "protect the agent from the memory killer");
    if (sethostname("localhost", 9))
        return err_sys_code(e, ERR_BOOT, errno, "set the host name");
    reboot(RB_DISABLE_CAD);
    return 0;
}

static int boot(struct root *root, struct identity *identity, struct err *e)
{
    if (mount_kernel_files(e))
        return -1;
    open_console();
    read_kernel_line();
    step("console");
    mount_load_modules();
    step("modules");
    if (mount_root(root, e))
        return -1;
    step("root");
    if (mount_program_files(e) || loopback_up(e) || set_limits(e))
        return -1;
    identity_prepare(identity);
    step("ready for programs");
    return 0;
}

static int link_main(const struct root *root, struct identity *identity)
{
    struct err e = ERR_INIT;
    struct link_options options = {.cgroup_root = "/sys/fs/cgroup",
                                   .owns_machine = true,
                                   .upper_dirfd = root->upper_dirfd,
                                   .identity = identity,
                                   .port_fd = port_open(AGENT_DEVICE_WAIT_MS, &e)};
    if (options.port_fd >= 0 && link_run(&options, &e) == 0)
        return 0;
    log_error("agent: link: %s", e.text);
    return 1;
}

static noreturn void reap(pid_t link, const sigset_t *waited)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0) {
            sigwaitinfo(waited, NULL); /* an interruption only means one more look */
            continue;
        }
        if (pid != link)
            continue;
        if (WIFEXITED(status))
            machine_off(); /* asked for, or told already */
        machine_panic("the agent's link process was killed");
    }
}

int main(void)
{
    if (getpid() != 1) {
        fputs("iii-sandbox-agent is the first process of a sandbox's machine; it does nothing elsewhere\n", stderr);
        return 2;
    }
    struct err e = ERR_INIT;
    struct root root = {.upper_dirfd = -1};
    struct identity identity;
    sigset_t waited, before;
    sigemptyset(&waited);
    sigaddset(&waited, SIGCHLD);
    sigprocmask(SIG_BLOCK, &waited, &before);
    if (boot(&root, &identity, &e))
        machine_panic(e.text);
    pid_t link = fork();
    if (link < 0)
        machine_panic("the agent's link process cannot be started");
    if (link == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        _exit(link_main(&root, &identity));
    }
    /* the link remounts through its own copies at the end: ours must not keep the files busy */
    identity_release_files(&identity);
    if (root.upper_dirfd >= 0)
        close(root.upper_dirfd);
    reap(link, &waited);
}
