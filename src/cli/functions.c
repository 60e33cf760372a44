/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/engine_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct functions_options {
    struct engine_call_options engine;
    bool json, all;
};

static const struct cli_option option_table[] = {
    ENGINE_CALL_OPTIONS(struct functions_options),
    {"json", 'j', CLI_FLAG, offsetof(struct functions_options, json), 0, 0, NULL, "print the engine's answer as it is"},
    {"all", 'a', CLI_FLAG, offsetof(struct functions_options, all), 0, 0, NULL, "also the engine's own and hidden functions"},
    {0},
};

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

/* What comes from a worker is printed without its control characters: a terminal obeys them. */
static void print_clean(const char *text)
{
    for (; *text; text++)
        putchar((unsigned char)*text < 0x20 || *text == 0x7f ? ' ' : *text);
}

static void print_padded(const char *text, size_t width)
{
    print_clean(text);
    for (size_t len = strlen(text); len < width; len++)
        putchar(' ');
}

static size_t widest(const json_t *rows, const char *name)
{
    size_t i, width = 0;
    json_t *row;
    json_array_foreach (rows, i, row) {
        size_t len = strlen(text_of(row, name));
        width = len > width ? len : width;
    }
    return width;
}

static void print_list(const json_t *answer)
{
    const json_t *rows = json_object_get(answer, "functions");
    size_t i, width = widest(rows, "function_id");
    json_t *row;
    json_array_foreach (rows, i, row) {
        const char *description = text_of(row, "description");
        print_padded(text_of(row, "function_id"), *description ? width + 2 : 0);
        print_clean(description);
        putchar('\n');
    }
}

static bool is_required(const json_t *schema, const char *name)
{
    size_t i;
    json_t *item;
    json_array_foreach (json_object_get(schema, "required"), i, item) {
        if (json_is_string(item) && strcmp(json_string_value(item), name) == 0)
            return true;
    }
    return false;
}

static void print_fields(json_t *schema)
{
    json_t *properties = json_object_get(schema, "properties"), *property;
    const char *name;
    size_t width = 0;
    json_object_foreach (properties, name, property) {
        width = strlen(name) > width ? strlen(name) : width;
    }
    json_object_foreach (properties, name, property) {
        fputs("  ", stdout);
        print_padded(name, width + 2);
        const char *type = text_of(property, "type");
        print_padded(*type ? type : "any", 9);
        fputs(is_required(schema, name) ? "required  " : "optional  ", stdout);
        print_clean(text_of(property, "description"));
        putchar('\n');
    }
}

static void print_one(const json_t *answer)
{
    print_clean(text_of(answer, "function_id"));
    fputs(" (worker ", stdout);
    print_clean(text_of(answer, "worker_name"));
    puts(")");
    if (*text_of(answer, "description")) {
        print_clean(text_of(answer, "description"));
        putchar('\n');
    }
    json_t *request = json_object_get(answer, "request_schema");
    if (json_object_size(json_object_get(request, "properties"))) {
        puts("\nrequest:");
        print_fields(request);
    }
    json_t *response = json_object_get(answer, "response_schema");
    if (json_object_size(json_object_get(response, "properties"))) {
        puts("\nresponse:");
        print_fields(response);
    }
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct err e = ERR_INIT;
    struct functions_options options = {0};
    struct cli_words words;
    if (cli_parse(command, argc, argv, &options, &words, &e))
        return cli_fail(command, &e, CLI_FAILED);
    if (words.words_len > 1 || words.command)
        err_set(&e, ERR_USAGE, "one function id at most");
    if (err_is_set(&e))
        return cli_fail(command, &e, CLI_FAILED);
    bool one = words.words_len == 1;
    json_t *data = one ? json_pack("{s:s}", "function_id", words.words[0]) : json_pack("{s:b}", "include_internal", options.all);
    struct client_answer answer = {0};
    int status =
        engine_call_run(command, &options.engine, one ? "engine::functions::info" : "engine::functions::list", data, &answer);
    json_decref(data);
    if (status == CLI_OK && options.json)
        engine_call_print(answer.result);
    else if (status == CLI_OK)
        (one ? print_one : print_list)(answer.result);
    client_answer_done(&answer);
    return status;
}

const struct cli_command cli_functions = {
    .name = "functions",
    .summary = "list the functions of an engine, or describe one",
    .synopsis = "functions [FLAGS] [ID]",
    .description = "  iii-sandbox functions\n"
                   "  iii-sandbox functions sandbox::exec",
    .options = option_table,
    .run = run,
};
