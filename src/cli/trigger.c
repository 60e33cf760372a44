/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/engine_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trigger_options {
    struct engine_call_options engine;
    const char *json;
};

static const struct cli_option option_table[] = {
    ENGINE_CALL_OPTIONS(struct trigger_options),
    {"json", 'j', CLI_TEXT, offsetof(struct trigger_options, json), 0, 0, "JSON",
     "the whole payload; key=value words override its members"},
    {0},
};

/* key=value: the value is JSON where it is JSON, else text. */
static int add_pair(json_t *data, const char *word, struct err *e)
{
    const char *sign = strchr(word, '=');
    if (!sign || sign == word)
        return err_set(e, ERR_USAGE, "'%s' is neither key=value nor a JSON object", word);
    json_t *value = json_loads(sign + 1, JSON_DECODE_ANY, NULL);
    if (!value)
        value = json_string(sign + 1);
    char *key = xstrndup(word, (size_t)(sign - word));
    int failed = !value || json_object_set_new(data, key, value);
    free(key);
    return failed ? err_set(e, ERR_USAGE, "'%s' is not UTF-8", word) : 0;
}

static json_t *load_payload(const char *text, struct err *e)
{
    json_error_t error;
    json_t *data = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!data)
        err_set(e, ERR_USAGE, "the payload is not JSON: %s", error.text);
    return data;
}

/* The payload from --json, from one word of JSON, or from key=value words; {} from nothing. */
static json_t *build_payload(const struct trigger_options *options, const struct cli_words *words, struct err *e)
{
    size_t next = 1;
    const char *text = options->json;
    if (!text && words->words_len > 1 && strchr("{[\"", words->words[1][0]))
        text = words->words[next++];
    json_t *data = text ? load_payload(text, e) : json_object();
    if (data && next < words->words_len && !json_is_object(data)) {
        err_set(e, ERR_USAGE, "key=value words need a payload that is an object");
        json_decref(data);
        return NULL;
    }
    for (; data && next < words->words_len; next++)
        if (add_pair(data, words->words[next], e)) {
            json_decref(data);
            return NULL;
        }
    return data;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct err e = ERR_INIT;
    struct trigger_options options = {0};
    struct cli_words words;
    if (cli_parse(command, argc, argv, &options, &words, &e))
        return cli_fail(command, &e, CLI_FAILED);
    if (!words.words_len || words.command)
        err_set(&e, ERR_USAGE, "which function?");
    json_t *data = err_is_set(&e) ? NULL : build_payload(&options, &words, &e);
    if (!data)
        return cli_fail(command, &e, CLI_FAILED);
    struct client_answer answer = {0};
    int status = engine_call_run(command, &options.engine, words.words[0], data, &answer);
    json_decref(data);
    if (status == CLI_OK)
        engine_call_print(answer.result);
    client_answer_done(&answer);
    return status;
}

const struct cli_command cli_trigger = {
    .name = "trigger",
    .summary = "call a function of an engine",
    .synopsis = "trigger [FLAGS] FUNCTION [JSON | KEY=VALUE ...]",
    .description =
        "Prints the result as JSON; nothing for null. A failure of the function goes to standard error, exit status 1.\n"
        "\n"
        "  iii-sandbox trigger engine::functions::list prefix=sandbox::\n"
        "  iii-sandbox trigger sandbox::list '{}'",
    .options = option_table,
    .run = run,
};
