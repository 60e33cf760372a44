/* SPDX-License-Identifier: Apache-2.0 */
/* Triggers: a binder wants a function called when something happens, a provider offers the type of happening. The engine only
 * introduces the two: it hands bindings to the provider of their type, parks those whose type nobody offers yet, and hands all
 * of them out again to a new provider. Firing is an ordinary call by the provider. */
#include "base/cleanup.h"
#include "base/limits.h"
#include "engine/server_internal.h"

#include <stdlib.h>
#include <string.h>

struct trigger_type {
    struct table_entry by_id;
    struct list of_worker;
    struct worker *worker;
    char *id;
};

struct trigger {
    struct table_entry by_id;
    struct list of_worker;
    struct worker *worker; /* the binder */
    char *id, *type, *function_id, *config, *metadata;
    size_t bytes;
};

static struct trigger_type *find_type(struct server *server, const char *id)
{
    struct table_entry *entry = table_find(&server->trigger_types, id);
    return entry ? CONTAINER_OF(entry, struct trigger_type, by_id) : NULL;
}

static struct trigger *find_trigger(struct server *server, const char *id)
{
    struct table_entry *entry = table_find(&server->triggers, id);
    return entry ? CONTAINER_OF(entry, struct trigger, by_id) : NULL;
}

static struct json_slice slice_of(const char *text)
{
    return (struct json_slice){text, text ? strlen(text) : 0};
}

static void send_trigger(struct worker *to, enum message_kind kind, const struct trigger *trigger, struct json_slice error)
{
    struct err e = ERR_INIT;
    auto_buf out = message_begin();
    bool full = kind != MESSAGE_UNREGISTER_TRIGGER;
    struct message_trigger message = {
        .id = trigger->id, .trigger_type = trigger->type, .function_id = full ? trigger->function_id : NULL, .error = error};
    if (kind == MESSAGE_REGISTER_TRIGGER) {
        message.config = slice_of(trigger->config);
        message.metadata = slice_of(trigger->metadata);
    }
    if (!message_write_trigger(&out, kind, &message, &e))
        (void)worker_send(to, &out);
}

static void drop_message(struct worker *worker)
{
    metric_add(&worker->server->base.metrics, METRIC_MESSAGES_DROPPED, 1);
}

void trigger_add_type(struct worker *worker, const struct message *message)
{
    struct server *server = worker->server;
    auto_free char *id = json_slice_text(message->fields[MESSAGE_FIELD_ID], ENGINE_ID_MAX);
    struct trigger_type *type = id ? find_type(server, id) : NULL;
    if (!id || (type && type->worker != worker) || (!type && worker->types_len >= ENGINE_TRIGGERS_PER_CONNECTION_MAX)) {
        drop_message(worker);
        return;
    }
    if (!type) {
        type = xcalloc(1, sizeof *type);
        type->worker = worker;
        type->id = STEAL_PTR(id);
        worker->types_len++;
        list_add_last(&worker->types, &type->of_worker);
        table_add(&server->trigger_types, &type->by_id, type->id);
    }
    for (struct table_entry *entry = table_next(&server->triggers, NULL); entry; entry = table_next(&server->triggers, entry)) {
        struct trigger *trigger = CONTAINER_OF(entry, struct trigger, by_id);
        if (strcmp(trigger->type, type->id) == 0)
            send_trigger(worker, MESSAGE_REGISTER_TRIGGER, trigger, (struct json_slice){0});
    }
}

static void remove_type(struct server *server, struct trigger_type *type)
{
    type->worker->types_len--;
    list_remove(&type->of_worker);
    table_remove(&server->trigger_types, &type->by_id);
    free(type->id);
    free(type);
}

void trigger_remove_type(struct worker *worker, const struct message *message)
{
    auto_free char *id = json_slice_text(message->fields[MESSAGE_FIELD_ID], ENGINE_ID_MAX);
    struct trigger_type *type = id ? find_type(worker->server, id) : NULL;
    if (type && type->worker == worker)
        remove_type(worker->server, type);
}

static void remove_trigger(struct server *server, struct trigger *trigger)
{
    struct trigger_type *type = find_type(server, trigger->type);
    if (type)
        send_trigger(type->worker, MESSAGE_UNREGISTER_TRIGGER, trigger, (struct json_slice){0});
    trigger->worker->triggers_len--;
    trigger->worker->registered_bytes -= trigger->bytes;
    list_remove(&trigger->of_worker);
    table_remove(&server->triggers, &trigger->by_id);
    char *texts[] = {trigger->id, trigger->type, trigger->function_id, trigger->config, trigger->metadata};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    free(trigger);
}

void trigger_add(struct worker *worker, const struct message *message)
{
    struct server *server = worker->server;
    const struct json_slice *fields = message->fields;
    auto_free char *id = json_slice_text(fields[MESSAGE_FIELD_ID], ENGINE_ID_MAX);
    auto_free char *type_id = json_slice_text(fields[MESSAGE_FIELD_TRIGGER_TYPE], ENGINE_ID_MAX);
    auto_free char *function_id = json_slice_text(fields[MESSAGE_FIELD_FUNCTION_ID], ENGINE_ID_MAX);
    struct trigger *taken = id ? find_trigger(server, id) : NULL;
    size_t bytes = sizeof *taken + fields[MESSAGE_FIELD_CONFIG].len + fields[MESSAGE_FIELD_METADATA].len;
    if (!id || !type_id || !function_id || (taken && taken->worker != worker)) {
        drop_message(worker);
        return;
    }
    if (taken)
        remove_trigger(server, taken);
    if (worker->triggers_len >= ENGINE_TRIGGERS_PER_CONNECTION_MAX || worker->registered_bytes + bytes > ENGINE_REGISTERED_MAX) {
        worker_drop(worker, WS_CLOSE_POLICY, "too many triggers registered");
        return;
    }
    struct trigger *trigger = xcalloc(1, sizeof *trigger);
    *trigger = (struct trigger){
        .worker = worker, .bytes = bytes, .id = STEAL_PTR(id), .type = STEAL_PTR(type_id), .function_id = STEAL_PTR(function_id)};
    if (fields[MESSAGE_FIELD_CONFIG].text)
        trigger->config = strndup(fields[MESSAGE_FIELD_CONFIG].text, fields[MESSAGE_FIELD_CONFIG].len);
    if (fields[MESSAGE_FIELD_METADATA].text)
        trigger->metadata = strndup(fields[MESSAGE_FIELD_METADATA].text, fields[MESSAGE_FIELD_METADATA].len);
    worker->triggers_len++;
    worker->registered_bytes += bytes;
    list_add_last(&worker->triggers, &trigger->of_worker);
    table_add(&server->triggers, &trigger->by_id, trigger->id);
    struct trigger_type *type = find_type(server, trigger->type);
    if (type)
        send_trigger(type->worker, MESSAGE_REGISTER_TRIGGER, trigger, (struct json_slice){0});
}

void trigger_remove(struct worker *worker, const struct message *message)
{
    auto_free char *id = json_slice_text(message->fields[MESSAGE_FIELD_ID], ENGINE_ID_MAX);
    struct trigger *trigger = id ? find_trigger(worker->server, id) : NULL;
    if (trigger && trigger->worker == worker)
        remove_trigger(worker->server, trigger);
}

void trigger_relay_result(struct worker *worker, const struct message *message)
{
    auto_free char *id = json_slice_text(message->fields[MESSAGE_FIELD_ID], ENGINE_ID_MAX);
    struct trigger *trigger = id ? find_trigger(worker->server, id) : NULL;
    struct trigger_type *type = trigger ? find_type(worker->server, trigger->type) : NULL;
    struct json_slice error = message->fields[MESSAGE_FIELD_ERROR];
    if (type && type->worker == worker && message_error_is_set(error))
        send_trigger(trigger->worker, MESSAGE_TRIGGER_REGISTRATION_RESULT, trigger, error);
}

void triggers_forget_worker(struct worker *worker)
{
    while (!list_is_empty(&worker->types))
        remove_type(worker->server, CONTAINER_OF(worker->types.next, struct trigger_type, of_worker));
    while (!list_is_empty(&worker->triggers))
        remove_trigger(worker->server, CONTAINER_OF(worker->triggers.next, struct trigger, of_worker));
}

int triggers_write_of(struct server *server, const char *function_id, struct buf *out, struct err *e)
{
    bool any = false;
    if (buf_append_u8(out, '[', e))
        return -1;
    for (struct table_entry *entry = table_next(&server->triggers, NULL); entry; entry = table_next(&server->triggers, entry)) {
        struct trigger *trigger = CONTAINER_OF(entry, struct trigger, by_id);
        if (strcmp(trigger->function_id, function_id) != 0)
            continue;
        if (any && buf_append_u8(out, ',', e))
            return -1;
        any = true;
        struct json_writer w = json_writer_begin(out, e);
        json_write_text(&w, "id", trigger->id);
        json_write_text(&w, "trigger_type", trigger->type);
        json_write_slice(&w, "config", trigger->config ? slice_of(trigger->config) : slice_of("null"));
        if (json_writer_end(&w))
            return -1;
    }
    return buf_append_u8(out, ']', e);
}

/* The rows of what one worker offers and wants: two members of engine::workers::info. */
int triggers_write_worker(const struct worker *worker, struct buf *out, struct err *e)
{
    const char *name = worker->name ? worker->name : "";
    if (buf_appendf(out, e, "\"trigger_types\":["))
        return -1;
    for (const struct list *item = worker->types.next; item != &worker->types; item = item->next) {
        struct json_writer w = json_writer_begin(out, e);
        json_write_text(&w, "id", CONTAINER_OF(item, const struct trigger_type, of_worker)->id);
        json_write_text(&w, "namespace", "default");
        json_write_text(&w, "worker_name", name);
        if (json_writer_end(&w) || (item->next != &worker->types && buf_append_u8(out, ',', e)))
            return -1;
    }
    if (buf_appendf(out, e, "],\"registered_triggers\":["))
        return -1;
    for (const struct list *item = worker->triggers.next; item != &worker->triggers; item = item->next) {
        const struct trigger *trigger = CONTAINER_OF(item, const struct trigger, of_worker);
        struct json_writer w = json_writer_begin(out, e);
        json_write_text(&w, "id", trigger->id);
        json_write_text(&w, "trigger_type", trigger->type);
        json_write_text(&w, "function_id", trigger->function_id);
        json_write_text(&w, "worker_name", name);
        json_write_slice(&w, "config", trigger->config ? slice_of(trigger->config) : slice_of("null"));
        if (json_writer_end(&w) || (item->next != &worker->triggers && buf_append_u8(out, ',', e)))
            return -1;
    }
    return buf_append_u8(out, ']', e);
}
