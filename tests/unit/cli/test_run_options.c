/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/run_options.h"

#include <stdlib.h>

#include "unit.h"

const struct cli_command *const cli_commands[] = {NULL};

static struct image python_image(void)
{
    static char name[] = "python", workdir[] = "/work", user[] = "";
    struct image image = {.name = name, .workdir = workdir, .user = user};
    strv_add(&image.env, "LANG=C.UTF-8");
    strv_add(&image.env, "PATH=/image/bin");
    return image;
}

static void test_make_image_env_is_overridden_by_ours(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct run_options options = {0};
    char *argv[] = {(char[]){"a"}, (char[]){"b c"}};
    struct cli_words words = {.command = argv, .command_len = 2};
    struct image image = python_image();
    struct wire_request request;
    setenv("FROM_HERE", "here", 1);
    strv_add(&options.env, "PATH=/mine");
    strv_add(&options.env, "X=a=b\nc");
    strv_add(&options.env, "X=last");
    strv_add(&options.env, "FROM_HERE");
    assert_int_equal(run_request_make(&options, &words, &image, &request, &e), 0);
    assert_int_equal(request.exec.env.len, 4);
    assert_string_equal(request.exec.env.items[0], "LANG=C.UTF-8");
    assert_string_equal(request.exec.env.items[1], "PATH=/mine");
    assert_string_equal(request.exec.env.items[2], "X=last");
    assert_string_equal(request.exec.env.items[3], "FROM_HERE=here");
    assert_string_equal(request.exec.argv.items[1], "b c");
    assert_string_equal(request.exec.cwd, "/work");
    wire_request_done(&request);
    strv_done(&image.env);
    run_options_done(&options);
}

static void test_make_command_comes_from_the_image(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct run_options options = {0};
    struct cli_words words = {0};
    struct image image = python_image();
    struct wire_request request;
    assert_int_equal(run_request_make(&options, &words, &image, &request, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    strv_add(&image.entrypoint, "/entry");
    strv_add(&image.command, "arg");
    err_clear(&e);
    assert_int_equal(run_request_make(&options, &words, &image, &request, &e), 0);
    assert_int_equal(request.exec.argv.len, 2);
    assert_string_equal(request.exec.argv.items[0], "/entry");
    assert_string_equal(request.exec.argv.items[1], "arg");
    wire_request_done(&request);
    strv_done(&image.env);
    strv_done(&image.entrypoint);
    strv_done(&image.command);
}

static void test_make_language_runs_the_script_with_its_arguments(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct run_options options = {0};
    options.lang = "Python";
    char *argv[] = {(char[]){"1"}};
    struct cli_words words = {.command = argv, .command_len = 1};
    struct image image = python_image();
    struct wire_request request;
    assert_int_equal(run_request_make(&options, &words, &image, &request, &e), 0);
    assert_int_equal(request.exec.argv.len, 3);
    assert_string_equal(request.exec.argv.items[0], "python3");
    assert_string_equal(request.exec.argv.items[1], "/tmp/run.py");
    assert_string_equal(request.exec.argv.items[2], "1");
    wire_request_done(&request);
    strv_done(&image.env);
}

static void check_refused(struct run_options options, size_t words_len, char **words, const char *message)
{
    struct cli_words given = {.words = words, .words_len = words_len};
    struct err e = ERR_INIT;
    assert_int_equal(run_options_check(&options, &given, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    if (!strstr(e.text, message))
        fail_msg("'%s' does not say '%s'", e.text, message);
}

static void test_check_says_what_is_wrong(void **state)
{
    (void)state;
    char *words[] = {(char[]){"python"}, (char[]){"x"}, (char[]){"y"}};
    struct run_options options = {0};
    check_refused(options, 0, words, "which image?");
    check_refused(options, 2, words, "'x' is one word too many");
    options.lang = "cobol";
    check_refused(options, 2, words, "--lang cobol");
    options.lang = "sh";
    check_refused(options, 1, words, "needs a script");
    check_refused(options, 3, words, "'y' is one word too many");
    options = (struct run_options){0};
    options.accel = "xen";
    check_refused(options, 1, words, "--accel xen");
    options = (struct run_options){0};
    strv_add(&options.env, "1A=x");
    check_refused(options, 1, words, "--env '1A'");
    run_options_done(&options);
    strv_add(&options.env, "NOT_SET_ANYWHERE_1");
    check_refused(options, 1, words, "it is not set here either");
    run_options_done(&options);
}

UNIT_MAIN(cmocka_unit_test(test_make_image_env_is_overridden_by_ours), cmocka_unit_test(test_make_command_comes_from_the_image),
          cmocka_unit_test(test_make_language_runs_the_script_with_its_arguments),
          cmocka_unit_test(test_check_says_what_is_wrong))
