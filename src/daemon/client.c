/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/client.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "engine/uplink.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *client_url(const char *given)
{
    const char *const choices[] = {given, getenv("III_ENGINE_URL"), getenv("III_URL")};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i] && *choices[i])
            return choices[i];
    return "ws://127.0.0.1:49134";
}

void client_answer_done(struct client_answer *answer)
{
    if (!answer)
        return;
    json_decref(answer->result);
    free(answer->code);
    free(answer->message);
    *answer = (struct client_answer){0};
}

struct client {
    struct engine *engine;
    struct client_answer answer;
    const char *url;
    struct err *e;
    bool over;
};

static void finish(struct client *client)
{
    if (client->over)
        return;
    client->over = true;
    uv_stop(engine_loop(client->engine)); /* an engine is not freed from inside its callbacks */
}

static void on_result(void *context, json_t *result, const char *code, const char *message)
{
    struct client *client = context;
    if (code && strcmp(code, "TIMEOUT") == 0)
        err_set(client->e, ERR_TIMEOUT, "%s did not answer in time", client->url);
    else if (code)
        client->answer = (struct client_answer){.code = xstrdup(code), .message = xstrdup(message)};
    else
        client->answer.result = json_incref(result);
    finish(client);
}

/* A command does not wait for an engine that is not there. */
static void on_state(void *context, enum uplink_state state, const char *reason)
{
    struct client *client = context;
    if (state != UPLINK_WAITING || client->over || !client->engine)
        return;
    err_set(client->e, ERR_ENVIRONMENT, "no engine at %s: %s", client->url, reason ? reason : "not reachable");
    finish(client);
}

int client_call(const char *url, const char *function_id, json_t *data, uint64_t timeout_ms, struct client_answer *ret_answer,
                struct err *e)
{
    uv_loop_t loop;
    struct client client = {.url = url, .e = e};
    auto_free char *name = xasprintf("iii-sandbox-cli:%d", (int)getpid());
    struct uplink_config config = {
        .url = url, .name = name, .token = getenv("III_ENGINE_TOKEN"), .on_state = on_state, .context = &client};
    CHECK(uv_loop_init(&loop) == 0);
    client.engine = uplink_new(&loop, &config, e);
    if (client.engine) {
        struct engine_call call = {.function_id = function_id, .data = data, .timeout_ms = timeout_ms};
        engine_call(client.engine, &call, on_result, &client);
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    engine_free(client.engine);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&loop) == 0);
    if (err_is_set(e)) {
        client_answer_done(&client.answer);
        return -1;
    }
    *ret_answer = client.answer;
    return 0;
}
