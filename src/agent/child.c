/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/child.h"

#include "agent/environment.h"
#include "agent/tar.h"
#include "agent/users.h"
#include "agent/write.h"
#include "base/cleanup.h"
#include "base/file.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PASSWD_BYTES_MAX (4 * MIB)

static noreturn void fail(const struct child_setup *setup, unsigned code, int sys_errno, const char *text)
{
    struct child_failure failure = {.code = code, .sys_errno = sys_errno};
    snprintf(failure.text, sizeof failure.text, "%s", text);
    fd_write(setup->status_fd, &failure, sizeof failure); /* under PIPE_BUF: whole or not at all */
    _exit(125);
}

static noreturn void fail_errno(const struct child_setup *setup, unsigned code, const char *what)
{
    int sys_errno = errno;
    char text[AGENT_FAILURE_TEXT_MAX];
    snprintf(text, sizeof text, "%s: %s", what, strerror(sys_errno));
    fail(setup, code, sys_errno, text);
}

static void reset_signals(void)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    for (int number = 1; number < NSIG; number++)
        sigaction(number, &standard, NULL); /* refused for SIGKILL and SIGSTOP */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* 0, 1, 2 become what they shall be; the descriptors in `stdio` are all above 2 (the agent keeps 0 to 2 open). */
static void take_stdio(const struct child_setup *setup)
{
    if (setsid() < 0)
        fail_errno(setup, 300, "start a session");
    if (setup->tty && ioctl(setup->stdio[0], TIOCSCTTY, 0))
        fail_errno(setup, 300, "take the terminal");
    for (int fd = 0; fd < 3; fd++)
        if (dup2(setup->stdio[fd], fd) < 0)
            fail_errno(setup, 300, "set up standard input and output");
}

static void leave_agent(struct child_setup *setup)
{
    reset_signals();
    if (setup->leaf_dirfd >= 0) {
        auto_close procs = openat(setup->leaf_dirfd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
        if (procs < 0 || fd_write(procs, "0", 1) != 1)
            fail_errno(setup, 300, "enter the control group");
    }
    auto_close score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score >= 0)
        fd_write(score, "0", 1);
    take_stdio(setup);
    umask(022);
    /* At once, not at execve: a worker that never calls it, or an execve that waits for a file system, must not hold the
     * other programs' pipes open. */
    if (setup->status_fd != 3 && dup3(setup->status_fd, 3, O_CLOEXEC) < 0)
        _exit(125);
    setup->status_fd = 3;
    if (syscall(SYS_close_range, 4u, ~0u, 0u))
        fail_errno(setup, 300, "close the agent's descriptors");
}

static void enter_cwd(const struct child_setup *setup, const char *cwd)
{
    if (chdir("/") == 0 && (!cwd || !*cwd || chdir(cwd) == 0))
        return;
    int sys_errno = errno;
    char text[AGENT_FAILURE_TEXT_MAX];
    snprintf(text, sizeof text, "working directory '%.200s': %s", cwd ? cwd : "/", strerror(sys_errno));
    unsigned code = sys_errno == ENOENT ? 211 : sys_errno == ENOTDIR ? 212 : sys_errno == EACCES ? 215 : 216;
    fail(setup, code, sys_errno, text);
}

static char *read_or_null(const char *path)
{
    struct err e = ERR_INIT;
    char *text = NULL;
    return file_read(path, PASSWD_BYTES_MAX, &text, NULL, &e) ? NULL : text;
}

static void become(const struct child_setup *setup, const char *spec, struct user *user)
{
    struct err e = ERR_INIT;
    auto_free char *passwd = read_or_null("/etc/passwd");
    auto_free char *group = read_or_null("/etc/group");
    if (users_resolve(spec, passwd, group, user, &e))
        fail(setup, 1, 0, e.text);
    if (geteuid() != 0) { /* not a machine of ours: an ordinary user runs programs as itself */
        if (spec && *spec && user->uid != geteuid())
            fail(setup, 1, EPERM, "only root can run a program as another user");
        return;
    }
    /* the pipes are root's: a program of another user could not open /dev/stdout again */
    for (int fd = 0; fd < 3 && user->uid; fd++) {
        struct stat status; /* an empty standard input is /dev/null: that one stays root's */
        if (fstat(fd, &status) || (!S_ISFIFO(status.st_mode) && !setup->tty))
            continue;
        if (fchown(fd, user->uid, setup->tty ? (gid_t)-1 : user->gid))
            fail_errno(setup, 300, "hand over standard input and output");
    }
    if (setgroups(user->group_count, user->groups) || setresgid(user->gid, user->gid, user->gid) ||
        setresuid(user->uid, user->uid, user->uid))
        fail_errno(setup, 300, "become the user");
}

static noreturn void run_program(const struct child_setup *setup)
{
    struct wire_exec exec = setup->request->exec; /* the child's copy: it may grow */
    struct user user;
    enter_cwd(setup, exec.cwd);
    become(setup, exec.user, &user);
    environment_complete(&exec.env, &user, setup->tty);
    if (exec.no_aslr)
        personality(ADDR_NO_RANDOMIZE);
    int exec_errno = environment_exec(exec.argv.items, &exec.env);
    char *text;
    int code = environment_exec_failure(exec_errno, exec.argv.items, &exec.env, &text);
    fd_write(2, text, strlen(text));
    _exit(code);
}

static int run_file_request(const struct wire_request *request, struct err *e)
{
    switch (request->operation) {
    case WIRE_OP_TAR_IN:
        return tar_unpack(0, request->tar.path, request->tar.make_parents, e);
    case WIRE_OP_TAR_OUT:
        return tar_pack(1, request->tar.path, request->tar.name, e);
    case WIRE_OP_WRITE:
        return file_replace(0, request->write.path, (mode_t)request->write.mode & 07777, request->write.make_parents, e);
    case WIRE_OP_IDENTITY:
    case WIRE_OP_EXEC:
    case WIRE_OP_SHUTDOWN:
    case WIRE_OP_END:
        break;
    }
    return err_set(e, ERR_FS_REQUEST, "not a file request");
}

static noreturn void serve_files(const struct child_setup *setup)
{
    struct err e = ERR_INIT;
    signal(SIGPIPE, SIG_IGN);
    if (run_file_request(setup->request, &e))
        fail(setup, tar_failure_code(&e), e.sys_errno, e.text);
    _exit(0);
}

noreturn void child_main(struct child_setup *setup)
{
    leave_agent(setup);
    if (setup->request->operation == WIRE_OP_EXEC)
        run_program(setup);
    serve_files(setup);
}
