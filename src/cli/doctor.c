/* SPDX-License-Identifier: Apache-2.0 */
/* `iii-sandbox doctor`: what this host offers, what it lacks, and the exact command that mends it.
 *
 * Each need is a row of the table of doctor_checks.c; this file runs them, prints them, and mends what can be mended without
 * asking (--fix): only things that cannot lose or install anything. */
#include "base/check.h"
#include "cli/commands.h"
#include "cli/doctor_checks.h"

#include <stdio.h>
#include <string.h>

#define EXIT_DEGRADED 3

static const char *const verdict_names[] = {"ok", "degraded", "missing"};
_Static_assert(sizeof verdict_names / sizeof *verdict_names == DOCTOR_VERDICT_COUNT, "one name per verdict");

struct doctor_options {
    bool json, fix;
};

static const struct cli_option option_table[] = {
    {"json", 0, CLI_FLAG, offsetof(struct doctor_options, json), 0, 0, NULL, "print the findings as JSON"},
    {"fix", 0, CLI_FLAG, offsetof(struct doctor_options, fix), 0, 0, NULL,
     "mend what can be mended without installing or losing anything"},
    {0},
};

static void print_json_text(const char *name, const char *text)
{
    printf("\"%s\":\"", name);
    for (const unsigned char *at = (const unsigned char *)text; *at; at++)
        if (*at == '"' || *at == '\\')
            printf("\\%c", *at);
        else if (*at < ' ')
            printf("\\u%04x", *at);
        else
            putchar(*at);
    putchar('"');
}

static void print_finding(const struct doctor_check *check, const struct doctor_finding *finding, bool json, bool first)
{
    if (!json) {
        printf("%-9s %-11s %s\n", verdict_names[finding->verdict], check->name, finding->detail);
        if (finding->verdict != DOCTOR_OK && finding->remedy[0])
            printf("%21s → %s\n", "", finding->remedy);
        return;
    }
    fputs(first ? "{" : ",{", stdout);
    print_json_text("name", check->name);
    putchar(',');
    print_json_text("verdict", verdict_names[finding->verdict]);
    putchar(',');
    print_json_text("detail", finding->detail);
    putchar(',');
    print_json_text("remedy", finding->verdict == DOCTOR_OK ? "" : finding->remedy);
    putchar('}');
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct doctor_options options = {0};
    struct cli_words words;
    struct err e = ERR_INIT;
    if (cli_parse(command, argc, argv, &options, &words, &e))
        return cli_fail(command, &e, CLI_FAILED);
    if (words.words_len || words.command) {
        err_set(&e, ERR_USAGE, "doctor takes no words");
        return cli_fail(command, &e, CLI_FAILED);
    }
    enum doctor_verdict worst = DOCTOR_OK;
    if (options.json)
        fputs("{\"findings\":[", stdout);
    for (size_t i = 0; doctor_checks[i].name; i++) {
        const struct doctor_check *check = &doctor_checks[i];
        struct doctor_finding finding = {0};
        check->look(&finding);
        CHECK((unsigned)finding.verdict < DOCTOR_VERDICT_COUNT);
        if (options.fix && finding.verdict != DOCTOR_OK && check->mend && check->mend(&e) == 0) {
            finding = (struct doctor_finding){0};
            check->look(&finding);
        } else if (err_is_set(&e)) {
            fprintf(stderr, "cannot mend %s: %s\n", check->name, e.text);
            err_clear(&e);
        }
        print_finding(check, &finding, options.json, i == 0);
        if (finding.verdict > worst)
            worst = finding.verdict;
    }
    if (options.json)
        printf("],\"verdict\":\"%s\"}\n", verdict_names[worst]);
    return worst == DOCTOR_OK ? CLI_OK : worst == DOCTOR_DEGRADED ? EXIT_DEGRADED : CLI_FAILED;
}

const struct cli_command cli_doctor = {
    .name = "doctor",
    .summary = "say what this host offers and lacks, and how to mend it",
    .synopsis = "doctor [--fix] [--json]",
    .description =
        "Exit status: 0 when all is well, 3 when machines work but something is degraded, 1 when something is missing.",
    .options = option_table,
    .run = run,
};
