/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/command.h"

#include "base/check.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define NEAR_ENOUGH 2u

const struct cli_command *cli_find(const char *name)
{
    for (size_t i = 0; cli_commands[i]; i++)
        if (strcmp(cli_commands[i]->name, name) == 0)
            return cli_commands[i];
    return NULL;
}

const char *cli_nearest(const char *name)
{
    struct text_nearest nearest = TEXT_NEAREST_INIT(name, NEAR_ENOUGH);
    for (size_t i = 0; cli_commands[i]; i++)
        text_nearest_offer(&nearest, cli_commands[i]->name);
    return nearest.best;
}

static const struct cli_option *find_long(const struct cli_option *options, const char *name, size_t len)
{
    for (; options && options->name; options++)
        if (strlen(options->name) == len && strncmp(options->name, name, len) == 0)
            return options;
    return NULL;
}

static const struct cli_option *find_letter(const struct cli_option *options, char letter)
{
    for (; options && options->name; options++)
        if (options->letter == letter)
            return options;
    return NULL;
}

static int fail_unknown(const struct cli_option *options, const char *word, struct err *e)
{
    struct text_nearest nearest = TEXT_NEAREST_INIT(word + strspn(word, "-"), NEAR_ENOUGH);
    for (; options && options->name; options++)
        text_nearest_offer(&nearest, options->name);
    if (nearest.best)
        return err_set(e, ERR_USAGE, "unknown flag '%s' (did you mean --%s?)", word, nearest.best);
    return err_set(e, ERR_USAGE, "unknown flag '%s'; the guest's command goes after --", word);
}

static int store_value(const struct cli_option *option, const char *word, void *values, struct err *e)
{
    CHECK(values);
    void *place = (char *)values + option->offset;
    struct err inner = ERR_INIT;
    switch (option->kind) {
    case CLI_FLAG:
        *(bool *)place = true;
        return 0;
    case CLI_TEXT:
        *(const char **)place = word;
        return 0;
    case CLI_LIST:
        strv_add(place, word);
        return 0;
    case CLI_NUMBER: {
        uint64_t value;
        if (text_parse_u64(word, option->max, &value, &inner))
            return err_set(e, ERR_USAGE, "--%s: %s", option->name, inner.text);
        if (value < option->min)
            return err_set(e, ERR_USAGE, "--%s: %s is below %llu", option->name, word, (unsigned long long)option->min);
        *(uint64_t *)place = value;
        return 0;
    }
    case CLI_DURATION:
        if (text_parse_duration_ms(word, place, &inner))
            return err_set(e, ERR_USAGE, "--%s: %s", option->name, inner.text);
        return 0;
    case CLI_OPTION_KIND_COUNT:
        break;
    }
    check_failed("option kind", __FILE__, __LINE__);
}

/* One word that starts with '-'. *at is its index and moves on when the value is the next word. */
static int parse_flag(const struct cli_command *command, int argc, char **argv, int *at, void *values, struct err *e)
{
    const char *word = argv[*at], *value = NULL;
    const struct cli_option *option;
    if (word[1] == '-') {
        const char *equals = strchr(word, '=');
        option = find_long(command->options, word + 2, equals ? (size_t)(equals - word - 2) : strlen(word + 2));
        value = equals ? equals + 1 : NULL;
    } else {
        option = find_letter(command->options, word[1]);
        value = option && word[2] ? word + 2 : NULL;
    }
    if (!option)
        return fail_unknown(command->options, word, e);
    if (option->kind == CLI_FLAG) {
        if (value)
            return err_set(e, ERR_USAGE, "'%s': --%s takes no value", word, option->name);
    } else if (!value) {
        if (*at + 1 >= argc || strcmp(argv[*at + 1], "--") == 0)
            return err_set(e, ERR_USAGE, "--%s needs a value: %s", option->name, option->value);
        value = argv[++*at];
    }
    return store_value(option, value, values, e);
}

int cli_parse(const struct cli_command *command, int argc, char **argv, void *values, struct cli_words *ret_words, struct err *e)
{
    struct cli_words words = {.words = argv + 1};
    for (int at = 1; at < argc; at++) {
        if (strcmp(argv[at], "--") == 0) {
            words.command = argv + at + 1;
            words.command_len = (size_t)(argc - at - 1);
            break;
        }
        if (argv[at][0] == '-' && argv[at][1]) {
            if (parse_flag(command, argc, argv, &at, values, e))
                return -1;
        } else {
            words.words[words.words_len++] = argv[at]; /* never ahead of `at` */
        }
    }
    *ret_words = words;
    return 0;
}

int cli_fail(const struct cli_command *command, const struct err *e, int otherwise)
{
    if (e->code == ERR_USAGE) {
        fprintf(stderr, "error: %s\ntry: iii-sandbox help %s\n", e->text, command->name);
        return CLI_USAGE;
    }
    fprintf(stderr, "error: [%s] %s\n", err_code_wire(e->code), e->text);
    return otherwise;
}

void cli_help_command(const struct cli_command *command)
{
    printf("%s\n\nusage: iii-sandbox %s\n", command->summary, command->synopsis);
    if (command->options && command->options->name)
        puts("\nflags:");
    for (const struct cli_option *option = command->options; option && option->name; option++) {
        char left[64];
        if (option->letter)
            snprintf(left, sizeof left, "-%c, --%s %s", option->letter, option->name, option->value ? option->value : "");
        else
            snprintf(left, sizeof left, "    --%s %s", option->name, option->value ? option->value : "");
        printf("  %-28s %s\n", left, option->help);
    }
    if (command->description)
        printf("\n%s\n", command->description);
}
