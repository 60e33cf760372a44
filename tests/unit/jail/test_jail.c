/* SPDX-License-Identifier: Apache-2.0 */
#include "jail/jail.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#include "child.h"

/* Values that depend on being root are checked when the tests run as root; the others everywhere. */
static bool is_root(void)
{
    return geteuid() == 0;
}

static void test_spawn_closes_all_but_the_listed_descriptors(void **state)
{
    (void)state;
    char text[512];
    auto_close leak = open("/dev/null", O_RDONLY); /* no close-on-exec: the jail closes it */
    auto_close high = fcntl(leak, F_DUPFD, 900);
    assert_true(leak >= 0 && high >= 900);
    struct jail_fd fds[] = {{.fd = leak, .as = 40}};
    int status = run_probe((struct jail_spec){.fds = fds, .fds_len = 1}, ARGS("descriptors"), text, sizeof text, NULL);
    assert_int_equal(status, 0);
    assert_string_equal(text, "0 1 2 40 ");
}

/* 3 → 5, 4 → 3, 5 → 4: each target is another one's source. */
static void test_spawn_moves_overlapping_descriptors(void **state)
{
    (void)state;
    char text[512];
    int files[3], wanted[3] = {5, 3, 4};
    struct jail_fd fds[3];
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "file%d", i);
        int made = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        assert_int_equal(pwrite(made, name, strlen(name), 0), 5);
        files[i] = fcntl(made, F_DUPFD_CLOEXEC, 50);
        close(made);
    }
    int saved[3];
    for (int i = 0; i < 3; i++) { /* whatever is at 3, 4, 5 in this process comes back afterwards */
        saved[i] = fcntl(3 + i, F_DUPFD_CLOEXEC, 100);
        assert_int_equal(dup3(files[i], 3 + i, O_CLOEXEC), 3 + i);
        fds[i] = (struct jail_fd){.fd = 3 + i, .as = wanted[i]};
    }
    int status = run_probe((struct jail_spec){.fds = fds, .fds_len = 3}, ARGS("numbers", "3", "4", "5"), text, sizeof text, NULL);
    for (int i = 0; i < 3; i++) {
        close(3 + i);
        close(files[i]);
        if (saved[i] >= 0) {
            dup2(saved[i], 3 + i);
            close(saved[i]);
        }
    }
    assert_int_equal(status, 0);
    assert_string_equal(text, "3=file1 4=file2 5=file0 ");
}

static void test_spawn_gives_an_empty_environment_and_its_own_session(void **state)
{
    (void)state;
    char text[512];
    assert_int_equal(setenv("SECRET_OF_THE_PARENT", "x", 1), 0);
    assert_int_equal(run_probe((struct jail_spec){0}, ARGS("self", "a b"), text, sizeof text, NULL), 0);
    assert_non_null(strstr(text, "sid_is_own=1 env=0 pdeathsig=9 arg=a b"));
    char *env[] = {(char[]){"ONE=1"}, NULL};
    assert_int_equal(run_probe((struct jail_spec){.env = env}, ARGS("self"), text, sizeof text, NULL), 0);
    assert_non_null(strstr(text, "env=1 pdeathsig=9 arg= ONE=1"));
}

static void assert_no_rights(const char *status_text)
{
    static const char *const lines[] = {"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
                                        "CapAmb:\t0000000000000000", "NoNewPrivs:\t1"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_non_null(strstr(status_text, lines[i]));
}

static void test_spawn_drops_capabilities_and_new_privileges(void **state)
{
    (void)state;
    char text[8192];
    struct jail_spec spec = {.ids = JAIL_IDS_NOBODY};
    assert_int_equal(run_probe(spec, ARGS("file", "/proc/self/status"), text, sizeof text, NULL), 0);
    assert_no_rights(text);
    spec.namespaces = true;
    assert_int_equal(run_probe(spec, ARGS("file", "/proc/self/status"), text, sizeof text, NULL), 0);
    assert_no_rights(text);
    if (is_root())
        assert_non_null(strstr(text, "CapBnd:\t0000000000000000"));
    spec.ids = JAIL_IDS_KEEP;
    assert_int_equal(run_probe(spec, ARGS("file", "/proc/self/status"), text, sizeof text, NULL), 0);
    assert_no_rights(text);
}

static void test_spawn_as_root_becomes_nobody(void **state)
{
    (void)state;
    if (!is_root())
        skip();
    char text[512];
    unsigned missing = 99;
    struct jail_spec spec = {.ids = JAIL_IDS_NOBODY};
    assert_int_equal(run_probe(spec, ARGS("self"), text, sizeof text, &missing), 0);
    assert_non_null(strstr(text, "uid=65000 gid=65000 groups=0 "));
    assert_int_equal(missing, 0);
    spec.extra_group = 12;
    assert_int_equal(run_probe(spec, ARGS("self"), text, sizeof text, &missing), 0);
    assert_non_null(strstr(text, "uid=65000 gid=65000 groups=1 "));
}

static void test_spawn_gives_its_own_namespaces(void **state)
{
    (void)state;
    char text[8192];
    unsigned missing = 99;
    struct jail_spec spec = {.namespaces = true, .ids = JAIL_IDS_NOBODY};
    assert_int_equal(run_probe(spec, ARGS("self"), text, sizeof text, &missing), 0);
    if (missing)
        skip(); /* this host allows none */
    assert_memory_equal(text, "pid=1 ", 6);
    assert_int_equal(run_probe(spec, ARGS("file", "/proc/self/net/dev"), text, sizeof text, NULL), 0);
    assert_non_null(strstr(text, "lo:"));
    assert_null(strstr(text, "eth"));
    /* the host's processes are not in sight, not even the parent */
    char parent[64];
    snprintf(parent, sizeof parent, "/proc/%d/status", (int)getpid());
    assert_int_not_equal(run_probe(spec, ARGS("file", parent), text, sizeof text, NULL), 0);
    assert_non_null(strstr(text, "No such file"));
}

static void test_spawn_sets_limits(void **state)
{
    (void)state;
    char text[512];
    struct jail_spec spec = {.file_size_max = 123456, .fds_max = 77, .cpu_secs_max = 33};
    assert_int_equal(run_probe(spec, ARGS("limits"), text, sizeof text, NULL), 0);
    assert_string_equal(text, "0 123456 77 33 ");
}

static void test_spawn_names_a_missing_program(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct jail_child child;
    char *argv[] = {(char[]){"x"}, NULL};
    struct jail_spec spec = {.name = "thing", .program = "/nowhere/thing", .argv = argv};
    assert_int_equal(jail_spawn(&spec, &child, &e), -1);
    assert_int_equal(e.code, ERR_ENVIRONMENT);
    assert_string_equal(e.text, "start thing: execute '/nowhere/thing': No such file or directory");
    err_clear(&e);
    spec.program = "/etc/passwd";
    assert_int_equal(jail_spawn(&spec, &child, &e), -1);
    assert_int_equal(e.code, ERR_ENVIRONMENT);
    assert_string_equal(e.text, "start thing: execute '/etc/passwd': Permission denied");
    err_clear(&e);
    spec = (struct jail_spec){.name = "probe", .program = probe_path, .argv = argv, .cwd = "/nowhere"};
    assert_int_equal(jail_spawn(&spec, &child, &e), -1);
    assert_string_equal(e.text, "start probe: enter the working folder '/nowhere': No such file or directory");
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no zombie stays of the failures */
    assert_int_equal(errno, ECHILD);
}

/* The folder is closed to others, as root's home is: the program runs all the same. */
static void test_spawn_as_nobody_runs_a_program_in_a_closed_folder(void **state)
{
    (void)state;
    if (!is_root())
        skip();
    char text[512];
    assert_int_equal(chmod(folder, 0700), 0);
    int status = run_probe((struct jail_spec){.ids = JAIL_IDS_NOBODY, .namespaces = true}, ARGS("self"), text, sizeof text, NULL);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(status, 0);
    assert_non_null(strstr(text, "uid=65000"));
}

static void test_wait_and_kill_report_the_end(void **state)
{
    (void)state;
    char text[64];
    int status = run_probe((struct jail_spec){0}, ARGS("exit"), text, sizeof text, NULL);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
    struct err e = ERR_INIT;
    struct jail_child child;
    char *argv[] = {(char[]){"probe"}, (char[]){"hold"}, NULL};
    struct jail_spec spec = {.name = "probe", .program = probe_path, .argv = argv, .namespaces = true};
    assert_int_equal(jail_spawn(&spec, &child, &e), 0);
    struct pollfd end = {.fd = child.pidfd, .events = POLLIN};
    assert_int_equal(poll(&end, 1, 0), 0);
    pid_t pid = child.pid;
    jail_kill(&child);
    assert_int_equal(kill(pid, 0), -1);
    assert_int_equal(child.pidfd, -1);
    jail_kill(&child); /* again: nothing happens */
}

/* A middle process spawns the child and is killed; the child, pid 1 of its own namespace, must end too. */
static void dies_with_parent(bool namespaces)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t middle = fork();
    if (middle == 0) {
        struct err e = ERR_INIT;
        struct jail_child child;
        struct jail_fd fds[] = {{.fd = ends[1], .as = 1}};
        char *argv[] = {(char[]){"probe"}, (char[]){"hold"}, NULL};
        struct jail_spec spec = {
            .name = "probe", .program = probe_path, .argv = argv, .fds = fds, .fds_len = 1, .namespaces = namespaces};
        if (jail_spawn(&spec, &child, &e))
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    char text[8] = "";
    assert_int_equal(fd_read(ends[0], text, 5), 5);
    assert_string_equal(text, "ready");
    struct pollfd output = {.fd = ends[0], .events = POLLIN};
    assert_int_equal(poll(&output, 1, 0), 0);
    assert_int_equal(kill(middle, SIGKILL), 0);
    assert_int_equal(waitpid(middle, NULL, 0), middle);
    assert_int_equal(poll(&output, 1, 5000), 1); /* the last holder of the pipe is gone */
    assert_int_equal(fd_read(ends[0], text, 5), 0);
    close(ends[0]);
}

static void test_child_dies_when_its_parent_is_killed(void **state)
{
    (void)state;
    dies_with_parent(false);
    dies_with_parent(true);
}

/* All of it again as an ordinary user (when the tests run as root): a process that gave up its ids calls jail_spawn. */
static void test_spawn_as_ordinary_user(void **state)
{
    (void)state;
    if (!is_root())
        skip();
    pid_t pid = fork();
    if (pid == 0) {
        char text[8192];
        unsigned missing = 0;
        if (syscall(SYS_setgroups, 0, NULL) || setresgid(65533, 65533, 65533) || setresuid(65533, 65533, 65533))
            _exit(90);
        struct jail_spec spec = {.namespaces = true, .ids = JAIL_IDS_NOBODY};
        if (run_probe(spec, ARGS("self"), text, sizeof text, &missing) != 0 || !strstr(text, "uid=65533 gid=65533"))
            _exit(91);
        if (!strstr(text, "pdeathsig=9") || !strstr(text, "sid_is_own=1"))
            _exit(92);
        if (missing != 0 && missing != (JAIL_LAYER_NAMESPACES | JAIL_LAYER_USER_NAMESPACE))
            _exit(93);
        if (missing == 0 && strncmp(text, "pid=1 ", 6) != 0)
            _exit(94);
        if (run_probe(spec, ARGS("file", "/proc/self/status"), text, sizeof text, NULL) != 0)
            _exit(95);
        if (!strstr(text, "CapEff:\t0000000000000000") || !strstr(text, "NoNewPrivs:\t1"))
            _exit(96);
        if (missing == 0 && !strstr(text, "CapBnd:\t0000000000000000"))
            _exit(97);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spawn_closes_all_but_the_listed_descriptors),
        cmocka_unit_test(test_spawn_moves_overlapping_descriptors),
        cmocka_unit_test(test_spawn_gives_an_empty_environment_and_its_own_session),
        cmocka_unit_test(test_spawn_drops_capabilities_and_new_privileges),
        cmocka_unit_test(test_spawn_as_root_becomes_nobody),
        cmocka_unit_test(test_spawn_gives_its_own_namespaces),
        cmocka_unit_test(test_spawn_sets_limits),
        cmocka_unit_test(test_spawn_names_a_missing_program),
        cmocka_unit_test(test_spawn_as_nobody_runs_a_program_in_a_closed_folder),
        cmocka_unit_test(test_wait_and_kill_report_the_end),
        cmocka_unit_test(test_child_dies_when_its_parent_is_killed),
        cmocka_unit_test(test_spawn_as_ordinary_user),
    };
    return cmocka_run_group_tests(tests, copy_probe, remove_probe);
}
