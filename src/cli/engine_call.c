/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/engine_call.h"

#include "base/text.h"

#include <stdio.h>

int engine_call_run(const struct cli_command *command, const struct engine_call_options *options, const char *function_id,
                    json_t *data, struct client_answer *ret_answer)
{
    struct err e = ERR_INIT;
    if (client_call(client_url(options->engine), function_id, data, options->timeout_ms, ret_answer, &e))
        return cli_fail(command, &e, CLI_FAILED);
    if (!ret_answer->code)
        return CLI_OK;
    text_make_printable(ret_answer->code);
    fprintf(stderr, "error: %s: ", ret_answer->code);
    for (const char *at = ret_answer->message; *at; at++) /* lines stay lines; a terminal must obey nothing else */
        fputc((unsigned char)*at < 0x20 && *at != '\n' && *at != '\t' ? '?' : *at, stderr);
    fputc('\n', stderr);
    return CLI_FAILED;
}

void engine_call_print(const json_t *value)
{
    if (!value || json_is_null(value))
        return;
    json_dumpf(value, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    putchar('\n');
}
