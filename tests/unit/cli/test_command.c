/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/command.h"

#include "unit.h"

struct values {
    bool loud;
    const char *name;
    uint64_t count, wait_ms;
    struct strv env;
};

static const struct cli_option options[] = {
    {"loud", 'l', CLI_FLAG, offsetof(struct values, loud), 0, 0, NULL, ""},
    {"name", 'n', CLI_TEXT, offsetof(struct values, name), 0, 0, "NAME", ""},
    {"count", 0, CLI_NUMBER, offsetof(struct values, count), 1, 10, "N", ""},
    {"wait", 0, CLI_DURATION, offsetof(struct values, wait_ms), 0, 0, "DURATION", ""},
    {"env", 'e', CLI_LIST, offsetof(struct values, env), 0, 0, "K=V", ""},
    {0},
};

static const struct cli_command command = {.name = "try", .summary = "", .synopsis = "", .options = options};
const struct cli_command *const cli_commands[] = {&command, NULL};

static void test_parse_flags_stand_before_or_after_words(void **state)
{
    (void)state;
    char *argv[] = {(char[]){"try"}, (char[]){"-e"},      (char[]){"A=1"},    (char[]){"image"}, (char[]){"--count=7"},
                    (char[]){"-l"},  (char[]){"-eB=--x"}, (char[]){"--wait"}, (char[]){"2s"},    (char[]){"second"},
                    (char[]){"--"},  (char[]){"cmd"},     (char[]){"--loud"}, (char[]){"--"}};
    struct values values = {0};
    struct cli_words words;
    struct err e = ERR_INIT;
    assert_int_equal(cli_parse(&command, 14, argv, &values, &words, &e), 0);
    assert_true(values.loud);
    assert_int_equal(values.count, 7);
    assert_int_equal(values.wait_ms, 2000);
    assert_int_equal(values.env.len, 2);
    assert_string_equal(values.env.items[1], "B=--x");
    assert_int_equal(words.words_len, 2);
    assert_string_equal(words.words[0], "image");
    assert_string_equal(words.words[1], "second");
    assert_int_equal(words.command_len, 3);
    assert_string_equal(words.command[1], "--loud");
    strv_done(&values.env);
}

static void check_refused(const char *one, const char *two, const char *message)
{
    char *argv[] = {(char[]){"try"}, (char *)(uintptr_t)one, (char *)(uintptr_t)two, NULL};
    struct values values = {0};
    struct cli_words words;
    struct err e = ERR_INIT;
    assert_int_equal(cli_parse(&command, two ? 3 : 2, argv, &values, &words, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    if (!strstr(e.text, message))
        fail_msg("'%s' does not say '%s'", e.text, message);
    strv_done(&values.env);
}

static void test_parse_says_what_is_wrong(void **state)
{
    (void)state;
    check_refused("--cuont", "3", "did you mean --count?");
    check_refused("--zzz", NULL, "unknown flag '--zzz'");
    check_refused("-z", NULL, "unknown flag '-z'");
    check_refused("--count", NULL, "--count needs a value: N");
    check_refused("--count", "--", "--count needs a value");
    check_refused("--count", "11", "'11' is not a number from 0 to 10");
    check_refused("--count", "0", "0 is below 1");
    check_refused("--count=", NULL, "'' is not a number");
    check_refused("--loud=yes", NULL, "takes no value");
    check_refused("--wait", "5", "is not a duration");
}

static void test_parse_single_dash_is_a_word(void **state)
{
    (void)state;
    char *argv[] = {(char[]){"try"}, (char[]){"-"}};
    struct values values = {0};
    struct cli_words words;
    struct err e = ERR_INIT;
    assert_int_equal(cli_parse(&command, 2, argv, &values, &words, &e), 0);
    assert_int_equal(words.words_len, 1);
    assert_null(words.command);
}

static void test_nearest_command(void **state)
{
    (void)state;
    assert_string_equal(cli_nearest("tyr"), "try");
    assert_null(cli_nearest("something"));
    assert_null(cli_find("tr"));
}

UNIT_MAIN(cmocka_unit_test(test_parse_flags_stand_before_or_after_words), cmocka_unit_test(test_parse_says_what_is_wrong),
          cmocka_unit_test(test_parse_single_dash_is_a_word), cmocka_unit_test(test_nearest_command))
