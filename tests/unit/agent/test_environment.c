/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

static struct user ann(void)
{
    static char name[] = "ann", home[] = "/people/ann", shell[] = "/bin/zsh";
    return (struct user){.uid = 1000, .name = name, .home = home, .shell = shell};
}

static void test_complete_adds_only_what_is_absent(void **state)
{
    (void)state;
    auto_strv env = {0};
    struct user user = ann();
    strv_add(&env, "HOME=/elsewhere");
    strv_add(&env, "SHELL=");
    strv_add(&env, "PATHS=x");
    environment_complete(&env, &user, false);
    assert_string_equal(environment_get(&env, "HOME"), "/elsewhere");
    assert_string_equal(environment_get(&env, "SHELL"), "");
    assert_string_equal(environment_get(&env, "PATH"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    assert_string_equal(environment_get(&env, "USER"), "ann");
    assert_string_equal(environment_get(&env, "LOGNAME"), "ann");
    assert_null(environment_get(&env, "TERM"));
    assert_int_equal(env.len, 6);
    environment_complete(&env, &user, true);
    assert_string_equal(environment_get(&env, "TERM"), "xterm");
    assert_int_equal(env.len, 7);
}

static char folder[] = "/tmp/test-environment-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"plain", "text", "no_interpreter"};
    char path[100];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static void put(const char *name, const char *content, mode_t mode)
{
    char path[100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, strlen(content)), strlen(content));
    fchmod(fd, mode);
    close(fd);
}

/* What environment_exec gives for a name under a PATH, and the text of the failure. */
static int exec_code(const char *name, const char *path, char **ret_text)
{
    auto_strv env = {0}, argv = {0};
    strv_addf(&env, "PATH=%s", path);
    strv_add(&argv, name);
    int failure = environment_exec(argv.items, &env);
    return environment_exec_failure(failure, argv.items, &env, ret_text);
}

static void check(const char *name, const char *path, int code, const char *text)
{
    char *got_text;
    int got = exec_code(name, path, &got_text);
    if (got != code || !strstr(got_text, text))
        fail_msg("'%s' under '%s': %d, %s", name, path, got, got_text);
    free(got_text);
}

static void test_exec_says_why_it_failed(void **state)
{
    (void)state;
    char path[200];
    put("plain", "x", 0644);
    put("text", "hello", 0755);
    put("no_interpreter", "#!/no/such/thing\n", 0755);
    check("nosuch", "/usr/bin:/bin", 127, "exec: nosuch: not found\n");
    check("", "/bin", 127, "not found\n");
    check("/no/such/file", "/bin", 127, "exec: /no/such/file: not found\n");
    check("/etc/passwd/x", "/bin", 127, "not found\n");
    check("/etc/passwd", "/bin", 126, "exec: /etc/passwd: permission denied\n");
    check("/etc", "/bin", 126, "permission denied\n");
    check("plain", folder, 126, "permission denied\n");
    check("text", folder, 126, "not a program");
    snprintf(path, sizeof path, "%s/no_interpreter", folder);
    check(path, "/bin", 127, "interpreter was not found");
    snprintf(path, sizeof path, "/nowhere::/etc/passwd:%s", folder);
    check("nosuch", path, 127, "not found\n");
    check("plain", path, 126, "permission denied\n"); /* found later, after folders that are none */
}

static void test_exec_with_a_long_string_names_the_limit(void **state)
{
    (void)state;
    auto_strv env = {0}, argv = {0};
    char *big = malloc(200 * 1024 + 3);
    assert_non_null(big);
    memset(big, 'x', 200 * 1024 + 2);
    memcpy(big, "B=", 2);
    big[200 * 1024 + 2] = 0;
    strv_take(&env, big);
    strv_add(&argv, "/bin/true");
    int failure = environment_exec(argv.items, &env);
    assert_int_equal(failure, E2BIG);
    char *text;
    assert_int_equal(environment_exec_failure(failure, argv.items, &env, &text), 126);
    assert_non_null(strstr(text, "over 128 KiB"));
    free(text);
}

static void test_exec_finds_by_the_childs_path(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        struct strv env = {0}, argv = {0};
        strv_add(&env, "PATH=/nowhere:/bin:/usr/bin");
        strv_add(&argv, "false");
        environment_exec(argv.items, &env);
        _exit(99);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete_adds_only_what_is_absent), cmocka_unit_test(test_exec_says_why_it_failed),
        cmocka_unit_test(test_exec_with_a_long_string_names_the_limit), cmocka_unit_test(test_exec_finds_by_the_childs_path)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
