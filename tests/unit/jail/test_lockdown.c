/* SPDX-License-Identifier: Apache-2.0 */
#include "jail/jail.h"

#include <signal.h>
#include <sys/syscall.h>

#include "child.h"

static const struct jail_spec helper = {.namespaces = true, .ids = JAIL_IDS_NOBODY, .lockdown_follows = true};

static void test_lockdown_leaves_an_empty_root(void **state)
{
    (void)state;
    char text[512];
    unsigned missing = 99;
    assert_int_equal(run_probe(helper, ARGS("lock", "root"), text, sizeof text, &missing), 0);
    if (missing)
        skip();
    assert_string_equal(text, "missing=0 entries=2 created=0 error=30"); /* EROFS */
}

/* Without the flag the helper makes a user namespace of its own; a host that forbids that is told as a missing layer. */
static void test_lockdown_without_the_capability_uses_a_user_namespace(void **state)
{
    (void)state;
    char text[512];
    assert_int_equal(run_probe((struct jail_spec){.ids = JAIL_IDS_NOBODY}, ARGS("lock", "root"), text, sizeof text, NULL), 0);
    if (strncmp(text, "missing=8", 9) == 0)
        skip();
    assert_string_equal(text, "missing=0 entries=2 created=0 error=30");
}

static void assert_locked(const char *text)
{
    assert_non_null(strstr(text, "CapInh:\t0000000000000000"));
    assert_non_null(strstr(text, "CapPrm:\t0000000000000000"));
    assert_non_null(strstr(text, "CapEff:\t0000000000000000"));
    assert_non_null(strstr(text, "CapAmb:\t0000000000000000"));
    assert_non_null(strstr(text, "NoNewPrivs:\t1"));
    assert_non_null(strstr(text, "Seccomp:\t2"));
}

static void test_lockdown_drops_capabilities_and_filters(void **state)
{
    (void)state;
    char text[8192];
    assert_int_equal(run_probe(helper, ARGS("lock", "status"), text, sizeof text, NULL), 0);
    assert_locked(text);
    assert_int_equal(run_probe((struct jail_spec){0}, ARGS("lock", "status"), text, sizeof text, NULL), 0);
    assert_locked(text);
}

static void assert_killed_by(const char *what, int signal_number)
{
    char text[512];
    int status = run_probe(helper, ARGS("lock", what), text, sizeof text, NULL);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), signal_number);
}

static void test_lockdown_kills_on_a_forbidden_call(void **state)
{
    (void)state;
    assert_killed_by("socket", SIGSYS);
    assert_killed_by("kill", SIGSYS);
}

/* A failed CHECK must still end the process. As pid 1 of its namespace the signal alone would not, and abort goes on to a trap.
 */
static void test_lockdown_lets_the_process_abort(void **state)
{
    (void)state;
    char text[512];
    int status = run_probe((struct jail_spec){.lockdown_follows = true}, ARGS("lock", "abort"), text, sizeof text, NULL);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    status = run_probe(helper, ARGS("lock", "abort"), text, sizeof text, NULL);
    assert_true(WIFSIGNALED(status));
}

static void test_lockdown_refuses_a_misspelt_call(void **state)
{
    (void)state;
    char text[512];
    assert_int_not_equal(run_probe(helper, ARGS("lock", "typo"), text, sizeof text, NULL), 0);
    assert_string_equal(text, "lock down: there is no system call 'raed'");
}

static void test_lockdown_works_for_an_ordinary_user(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* then all tests here are of an ordinary user */
    pid_t pid = fork();
    if (pid == 0) {
        char text[8192];
        unsigned missing = 0;
        if (syscall(SYS_setgroups, 0, NULL) || setresgid(65533, 65533, 65533) || setresuid(65533, 65533, 65533))
            _exit(90);
        if (run_probe(helper, ARGS("lock", "root"), text, sizeof text, &missing) != 0)
            _exit(91);
        if (missing == 0 && strcmp(text, "missing=0 entries=2 created=0 error=30") != 0)
            _exit(92);
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
        cmocka_unit_test(test_lockdown_leaves_an_empty_root),
        cmocka_unit_test(test_lockdown_without_the_capability_uses_a_user_namespace),
        cmocka_unit_test(test_lockdown_drops_capabilities_and_filters),
        cmocka_unit_test(test_lockdown_kills_on_a_forbidden_call),
        cmocka_unit_test(test_lockdown_lets_the_process_abort),
        cmocka_unit_test(test_lockdown_refuses_a_misspelt_call),
        cmocka_unit_test(test_lockdown_works_for_an_ordinary_user),
    };
    return cmocka_run_group_tests(tests, copy_probe, remove_probe);
}
