/* SPDX-License-Identifier: Apache-2.0 */
#include "image/tool.h"

#include <unistd.h>

#include "unit.h"

static int shell(const char *script, struct strv *lines, struct err *e)
{
    const char *argv[] = {"sh", "-c", script, NULL};
    return tool_run("the tool", "/bin/sh", argv, "/tmp", TOOL_PACKAGES, NULL, lines, e);
}

static void test_tool_run_gives_the_lines_of_its_output(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_strv lines = {0};
    assert_int_equal(shell("echo one; printf 'two'", &lines, &e), 0);
    assert_int_equal(lines.len, 2);
    assert_string_equal(lines.items[0], "one");
    assert_string_equal(lines.items[1], "two");
}

static void test_tool_run_tells_status_and_last_words(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    assert_int_equal(shell("seq 1 1000 >&2; echo the disk is full >&2; exit 3", NULL, &e), -1);
    assert_int_equal(e.code, ERR_IMAGE_PREPARE);
    assert_non_null(strstr(e.text, "the tool failed (exit status 3): "));
    assert_non_null(strstr(e.text, "1000; the disk is full"));
    assert_null(strstr(e.text, "; 1; 2; 3;"));
}

static void test_tool_run_tells_a_signal(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    /* a real fault: the tool is process 1 of its namespace, which ignores signals that are sent */
    assert_int_equal(shell("exec /usr/bin/python3 -c 'import ctypes; ctypes.string_at(0)'", NULL, &e), -1);
    assert_non_null(strstr(e.text, "was ended by signal 11"));
}

static void test_tool_run_of_a_missing_program(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    const char *argv[] = {"x", NULL};
    assert_int_equal(tool_run("x", "/nonexistent/x", argv, "/tmp", TOOL_ISOLATED, NULL, NULL, &e), -1);
    assert_int_equal(e.code, ERR_ENVIRONMENT);
    assert_non_null(strstr(e.text, "/nonexistent/x"));
}

static void test_tool_run_does_not_wait_for_who_holds_the_pipes(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_strv lines = {0};
    assert_int_equal(shell("sleep 1000 & echo done", &lines, &e), 0);
    assert_string_equal(lines.items[0], "done");
}

static void test_tool_run_ends_when_cancelled(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    volatile sig_atomic_t cancelled = 1;
    struct image_progress progress = {.cancelled = &cancelled};
    const char *argv[] = {"sleep", "1000", NULL};
    assert_int_equal(tool_run("sleep", "/bin/sleep", argv, "/tmp", TOOL_ISOLATED, &progress, NULL, &e), -1);
    assert_int_equal(e.code, ERR_INTERRUPTED);
}

UNIT_MAIN(cmocka_unit_test(test_tool_run_gives_the_lines_of_its_output),
          cmocka_unit_test(test_tool_run_tells_status_and_last_words), cmocka_unit_test(test_tool_run_tells_a_signal),
          cmocka_unit_test(test_tool_run_of_a_missing_program),
          cmocka_unit_test(test_tool_run_does_not_wait_for_who_holds_the_pipes),
          cmocka_unit_test(test_tool_run_ends_when_cancelled))
