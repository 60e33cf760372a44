/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/server_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct worker *registry_find_worker(struct server *server, const char *id)
{
    struct table_entry *entry = table_find(&server->workers_by_id, id);
    return entry ? CONTAINER_OF(entry, struct worker, by_id) : NULL;
}

const char *function_worker_name(const struct function *function, char *text, size_t size)
{
    if (function->worker && function->worker->name)
        return function->worker->name;
    const char *end = strstr(function->id, "::");
    snprintf(text, size, "%.*s", end ? (int)(end - function->id) : (int)strlen(function->id), function->id);
    return text;
}

static char *slice_copy(struct json_slice slice)
{
    return slice.text ? strndup(slice.text, slice.len) : NULL;
}

static void remove_function(struct server *server, struct function *function)
{
    struct worker *worker = function->worker;
    worker->functions_len--;
    worker->registered_bytes -= function->bytes;
    list_remove(&function->of_worker);
    table_remove(&server->base.functions, &function->by_id);
    metric_add(&server->base.metrics, METRIC_FUNCTIONS, -1);
    function_free(function);
}

static void reject(struct worker *worker, const char *id, const struct function *taken)
{
    struct err e = ERR_INIT;
    auto_buf message = message_begin();
    const char *owner = taken->worker ? taken->worker->id.text : "00000000-0000-0000-0000-000000000000";
    log_debug("worker %s: a function that belongs to another worker is refused", worker->id.text);
    if (!message_write_rejected(&message, id, owner, &e))
        (void)worker_send(worker, &message);
}

void registry_add_function(struct worker *worker, const struct message *message)
{
    struct server *server = worker->server;
    const struct json_slice *fields = message->fields;
    auto_free char *id = json_slice_text(fields[MESSAGE_FIELD_ID], ENGINE_ID_MAX);
    if (!id || !*id || fields[MESSAGE_FIELD_INVOCATION].text) {
        /* HTTP-invoked functions are not offered: calling one ends in function_not_found. */
        metric_add(&server->base.metrics, METRIC_MESSAGES_DROPPED, 1);
        return;
    }
    struct function *taken = function_find(&server->base, id);
    if ((taken && taken->worker != worker) || builtin_find(id)) {
        struct function nobody = {0};
        reject(worker, id, taken ? taken : &nobody);
        return;
    }
    size_t bytes = sizeof(struct function) + fields[MESSAGE_FIELD_DESCRIPTION].len + fields[MESSAGE_FIELD_REQUEST_FORMAT].len +
                   fields[MESSAGE_FIELD_RESPONSE_FORMAT].len + fields[MESSAGE_FIELD_METADATA].len;
    if (taken)
        remove_function(server, taken);
    if (worker->functions_len >= ENGINE_FUNCTIONS_PER_CONNECTION_MAX ||
        worker->registered_bytes + bytes > ENGINE_REGISTERED_MAX) {
        worker_drop(worker, WS_CLOSE_POLICY, "too many functions registered");
        return;
    }
    struct function *function = xcalloc(1, sizeof *function);
    function->worker = worker;
    function->bytes = bytes;
    function->id = STEAL_PTR(id);
    function->description = json_slice_text(fields[MESSAGE_FIELD_DESCRIPTION], ENGINE_REGISTERED_MAX);
    function->request_format = slice_copy(fields[MESSAGE_FIELD_REQUEST_FORMAT]);
    function->response_format = slice_copy(fields[MESSAGE_FIELD_RESPONSE_FORMAT]);
    function->metadata = slice_copy(fields[MESSAGE_FIELD_METADATA]);
    function->hidden = function_metadata_hides(fields[MESSAGE_FIELD_METADATA]);
    worker->functions_len++;
    worker->registered_bytes += bytes;
    list_add_last(&worker->functions, &function->of_worker);
    table_add(&server->base.functions, &function->by_id, function->id);
    metric_add(&server->base.metrics, METRIC_FUNCTIONS, 1);
}

void registry_remove_function(struct worker *worker, const struct message *message)
{
    auto_free char *id = json_slice_text(message->fields[MESSAGE_FIELD_ID], ENGINE_ID_MAX);
    struct function *function = id ? function_find(&worker->server->base, id) : NULL;
    if (function && function->worker == worker)
        remove_function(worker->server, function);
}

void registry_forget_worker(struct worker *worker)
{
    while (!list_is_empty(&worker->functions))
        remove_function(worker->server, CONTAINER_OF(worker->functions.next, struct function, of_worker));
}
