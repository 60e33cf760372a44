/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's own functions. Unknown members of their input are ignored, wrong types are deserialization_error. */
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/text.h"
#include "engine/server_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int fail(struct builtin_call *call, const char *code, const char *text)
{
    call->code = code;
    return err_set(call->e, ERR_INVALID, "%s", text);
}

/* An optional string member; *ret_text is borrowed, NULL when absent or null. */
static int get_text(struct builtin_call *call, const char *name, const char **ret_text)
{
    json_t *value = json_object_get(call->input, name);
    if (value && !json_is_null(value) && !json_is_string(value)) {
        call->code = "deserialization_error";
        return err_set(call->e, ERR_INVALID, "'%s' must be a string", name);
    }
    *ret_text = json_string_value(value);
    return 0;
}

static int get_bool(struct builtin_call *call, const char *name, bool *ret_value)
{
    json_t *value = json_object_get(call->input, name);
    if (value && !json_is_null(value) && !json_is_boolean(value)) {
        call->code = "deserialization_error";
        return err_set(call->e, ERR_INVALID, "'%s' must be true or false", name);
    }
    *ret_value = json_is_true(value);
    return 0;
}

/* ---- engine::workers ---- */

/* At most ENGINE_NAME_MAX characters, without control characters. */
static void keep_text(char **place, const json_t *value)
{
    free(*place);
    *place = NULL;
    const char *from = json_string_value(value);
    if (!from)
        return;
    char *text = xmalloc(ENGINE_NAME_MAX * 4 + 1), *to = text;
    size_t characters = 0;
    for (; *from; from++) {
        unsigned char c = (unsigned char)*from;
        if (c < 0x20 || c == 0x7f)
            continue;
        if ((c & 0xc0) != 0x80 && ++characters > ENGINE_NAME_MAX)
            break;
        *to++ = (char)c;
    }
    *to = 0;
    *place = text;
}

static int workers_register(struct builtin_call *call)
{
    struct worker *worker = call->caller;
    if (!worker)
        return fail(call, "INVALID_ARGUMENTS", "only a worker connection can announce itself");
    keep_text(&worker->name, json_object_get(call->input, "name"));
    keep_text(&worker->description, json_object_get(call->input, "description"));
    keep_text(&worker->runtime, json_object_get(call->input, "runtime"));
    keep_text(&worker->version, json_object_get(call->input, "version"));
    keep_text(&worker->os, json_object_get(call->input, "os"));
    keep_text(&worker->isolation, json_object_get(call->input, "isolation"));
    worker->pid = json_integer_value(json_object_get(call->input, "pid"));
    return buf_appendf(call->result, call->e, "{\"success\":true}");
}

static void write_text_or_null(struct json_writer *w, const char *key, const char *text)
{
    if (text)
        json_write_text(w, key, text);
    else
        json_write_slice(w, key, (struct json_slice){"null", 4});
}

static void write_worker(struct json_writer *w, const struct worker *worker)
{
    json_write_text(w, "name", worker->name ? worker->name : "");
    write_text_or_null(w, "description", worker->description);
    write_text_or_null(w, "version", worker->version);
    json_write_text(w, "id", worker->id.text);
    json_write_text(w, "namespace", "default");
    write_text_or_null(w, "runtime", worker->runtime);
    write_text_or_null(w, "os", worker->os);
    json_write_text(w, "status", "connected");
    json_write_number(w, "function_count", worker->functions_len);
    json_write_number(w, "connected_at_ms", worker->connected_ms);
    json_write_number(w, "active_invocations", worker->calls_served_len);
    write_text_or_null(w, "isolation", worker->isolation);
    write_text_or_null(w, "ip_address", worker->peer);
}

static size_t count_local_functions(struct server *server)
{
    size_t count = 0;
    struct table *functions = &server->base.functions;
    for (struct table_entry *entry = table_next(functions, NULL); entry; entry = table_next(functions, entry))
        count += !CONTAINER_OF(entry, struct function, by_id)->worker;
    return count;
}

/* The engine itself as a row. */
static void write_self(struct json_writer *w, struct server *server)
{
    json_write_text(w, "name", "iii-sandbox");
    write_text_or_null(w, "description", "the embedded engine and its functions");
    json_write_text(w, "version", III_SANDBOX_VERSION);
    json_write_text(w, "id", "iii-sandbox");
    json_write_text(w, "namespace", "default");
    json_write_text(w, "runtime", "engine");
    write_text_or_null(w, "os", NULL);
    json_write_text(w, "status", "available");
    json_write_number(w, "function_count", count_local_functions(server));
    json_write_number(w, "connected_at_ms", server->started_ms);
    json_write_number(w, "active_invocations", 0);
    write_text_or_null(w, "isolation", NULL);
    write_text_or_null(w, "ip_address", NULL);
}

static int by_worker_name(const void *a, const void *b)
{
    const struct worker *const *left = a, *const *right = b;
    return strcmp((*left)->name ? (*left)->name : "", (*right)->name ? (*right)->name : "");
}

static bool contains(const char *text, const char *part)
{
    return text && strcasestr(text, part);
}

static int workers_list(struct builtin_call *call)
{
    const char *search, *runtime, *status;
    if (get_text(call, "search", &search) || get_text(call, "runtime", &runtime) || get_text(call, "status", &status))
        return -1;
    struct server *server = call->server;
    auto_free struct worker **rows = xcalloc(server->workers_by_id.len + 1, sizeof(void *));
    size_t len = 0;
    for (struct list *item = server->workers.next; item != &server->workers; item = item->next) {
        struct worker *worker = CONTAINER_OF(item, struct worker, all);
        if (!worker->pid || !worker->conn ||
            (search && !contains(worker->name, search) && !contains(worker->description, search)) ||
            (runtime && (!worker->runtime || strcmp(runtime, worker->runtime) != 0)) ||
            (status && strcmp(status, "connected") != 0))
            continue;
        rows[len++] = worker;
    }
    qsort(rows, len, sizeof(void *), by_worker_name);
    if (buf_appendf(call->result, call->e, "{\"workers\":["))
        return -1;
    bool self = !search && (!runtime || strcmp(runtime, "engine") == 0) && (!status || strcmp(status, "available") == 0);
    if (self) {
        struct json_writer w = json_writer_begin(call->result, call->e);
        write_self(&w, server);
        if (json_writer_end(&w))
            return -1;
    }
    for (size_t i = 0; i < len; i++) {
        if ((i || self) && buf_append_u8(call->result, ',', call->e))
            return -1;
        struct json_writer w = json_writer_begin(call->result, call->e);
        write_worker(&w, rows[i]);
        if (json_writer_end(&w))
            return -1;
    }
    return buf_appendf(call->result, call->e, "]}");
}

/* ---- engine::functions ---- */

static struct json_slice slice_of(const char *text)
{
    return (struct json_slice){text, text ? strlen(text) : 0};
}

static void write_function_head(struct json_writer *w, const struct function *function)
{
    char text[ENGINE_ID_MAX + 1];
    json_write_text(w, "function_id", function->id);
    json_write_text(w, "namespace", "default");
    json_write_text(w, "worker_name", function_worker_name(function, text, sizeof text));
    json_write_text(w, "description", function->description);
}

static int by_id(const void *a, const void *b)
{
    const struct function *const *left = a, *const *right = b;
    return strcmp((*left)->id, (*right)->id);
}

static int write_builtin_row(struct builtin_call *call, const struct builtin *builtin)
{
    struct json_writer w = json_writer_begin(call->result, call->e);
    json_write_text(&w, "function_id", builtin->id);
    json_write_text(&w, "namespace", "default");
    json_write_text(&w, "worker_name", "engine");
    json_write_text(&w, "description", builtin->description);
    return json_writer_end(&w);
}

struct functions_filter {
    const char *search, *prefix, *worker;
    json_t *workers;
    bool internal;
};

static bool worker_is_wanted(const struct functions_filter *filter, const char *name)
{
    if (filter->worker && strcmp(filter->worker, name) != 0)
        return false;
    size_t i;
    json_t *item;
    if (!filter->workers)
        return true;
    json_array_foreach (filter->workers, i, item) {
        if (json_is_string(item) && strcmp(json_string_value(item), name) == 0)
            return true;
    }
    return false;
}

static bool is_wanted(const struct functions_filter *filter, const char *id, const char *description, const char *worker_name)
{
    return (!filter->search || contains(id, filter->search) || contains(description, filter->search)) &&
           (!filter->prefix || text_has_prefix(id, filter->prefix)) && worker_is_wanted(filter, worker_name);
}

static int functions_filter_of(struct builtin_call *call, struct functions_filter *filter)
{
    if (get_text(call, "search", &filter->search) || get_text(call, "prefix", &filter->prefix) ||
        get_text(call, "worker", &filter->worker) || get_bool(call, "include_internal", &filter->internal))
        return -1;
    filter->workers = json_object_get(call->input, "workers");
    if (json_is_null(filter->workers))
        filter->workers = NULL;
    if (filter->workers && !json_is_array(filter->workers))
        return fail(call, "deserialization_error", "'workers' must be an array");
    return 0;
}

static int functions_list(struct builtin_call *call)
{
    struct functions_filter filter = {0};
    if (functions_filter_of(call, &filter))
        return -1;
    struct table *functions = &call->server->base.functions;
    auto_free const struct function **rows = xcalloc(functions->len + 1, sizeof(void *));
    size_t len = 0;
    for (struct table_entry *entry = table_next(functions, NULL); entry; entry = table_next(functions, entry)) {
        const struct function *function = CONTAINER_OF(entry, struct function, by_id);
        char name[ENGINE_ID_MAX + 1];
        if ((filter.internal || (!function->hidden && !text_has_prefix(function->id, "engine::"))) &&
            is_wanted(&filter, function->id, function->description, function_worker_name(function, name, sizeof name)))
            rows[len++] = function;
    }
    qsort(rows, len, sizeof(void *), by_id);
    bool any = false;
    if (buf_appendf(call->result, call->e, "{\"functions\":["))
        return -1;
    for (const struct builtin *builtin = builtins; filter.internal && builtin->id; builtin++) {
        if (!is_wanted(&filter, builtin->id, builtin->description, "engine"))
            continue;
        if ((any && buf_append_u8(call->result, ',', call->e)) || write_builtin_row(call, builtin))
            return -1;
        any = true;
    }
    for (size_t i = 0; i < len; i++) {
        if (any && buf_append_u8(call->result, ',', call->e))
            return -1;
        any = true;
        struct json_writer w = json_writer_begin(call->result, call->e);
        write_function_head(&w, rows[i]);
        json_write_slice(&w, "metadata", slice_of(rows[i]->metadata));
        if (json_writer_end(&w))
            return -1;
    }
    return buf_appendf(call->result, call->e, "]}");
}

static int write_detail(struct builtin_call *call, const struct function *function)
{
    auto_buf triggers = BUF_INIT(ENGINE_MESSAGE_MAX);
    if (triggers_write_of(call->server, function->id, &triggers, call->e))
        return -1;
    struct json_writer w = json_writer_begin(call->result, call->e);
    write_function_head(&w, function);
    json_write_slice(&w, "request_schema", slice_of(function->request_format));
    json_write_slice(&w, "response_schema", slice_of(function->response_format));
    json_write_slice(&w, "metadata", slice_of(function->metadata));
    json_write_slice(&w, "registered_triggers", (struct json_slice){(const char *)buf_data(&triggers), triggers.len});
    return json_writer_end(&w);
}

static int write_builtin_detail(struct builtin_call *call, const struct builtin *builtin)
{
    struct json_writer w = json_writer_begin(call->result, call->e);
    json_write_text(&w, "function_id", builtin->id);
    json_write_text(&w, "namespace", "default");
    json_write_text(&w, "worker_name", "engine");
    json_write_text(&w, "description", builtin->description);
    json_write_slice(&w, "registered_triggers", slice_of("[]"));
    return json_writer_end(&w);
}

static int functions_info_many(struct builtin_call *call, json_t *ids)
{
    if (!json_is_array(ids))
        return fail(call, "deserialization_error", "'function_ids' must be an array");
    if (json_array_size(ids) == 0 || json_array_size(ids) > ENGINE_INFO_IDS_MAX)
        return fail(call, "INVALID_ARGUMENTS", "'function_ids' takes 1 to 32 ids");
    if (buf_appendf(call->result, call->e, "{\"functions\":["))
        return -1;
    json_t *seen = json_object();
    int failed = 0;
    for (size_t i = 0; i < json_array_size(ids) && !failed; i++) {
        const char *id = json_string_value(json_array_get(ids, i));
        if (!id)
            failed = fail(call, "deserialization_error", "'function_ids' must hold strings");
        if (failed || json_object_get(seen, id))
            continue;
        if (json_object_size(seen))
            failed = buf_append_u8(call->result, ',', call->e);
        json_object_set_new(seen, id, json_true());
        const struct builtin *builtin = builtin_find(id);
        const struct function *function = function_find(&call->server->base, id);
        if (failed)
            break;
        if (builtin) {
            failed = write_builtin_detail(call, builtin);
        } else if (function) {
            failed = write_detail(call, function);
        } else {
            struct json_writer w = json_writer_begin(call->result, call->e);
            json_write_text(&w, "function_id", id);
            json_write_text(&w, "error", "not_found");
            failed = json_writer_end(&w);
        }
    }
    json_decref(seen);
    return failed ? -1 : buf_appendf(call->result, call->e, "]}");
}

static int functions_info(struct builtin_call *call)
{
    const char *id;
    json_t *ids = json_object_get(call->input, "function_ids");
    if (get_text(call, "function_id", &id))
        return -1;
    if (!id == (!ids || json_is_null(ids)))
        return fail(call, "INVALID_ARGUMENTS", "exactly one of 'function_id' and 'function_ids' is needed");
    if (!id)
        return functions_info_many(call, ids);
    const struct builtin *builtin = builtin_find(id);
    if (builtin)
        return write_builtin_detail(call, builtin);
    const struct function *function = function_find(&call->server->base, id);
    if (function)
        return write_detail(call, function);
    call->code = "NOT_FOUND";
    return err_set(call->e, ERR_INVALID, "Function '%s' is not registered.", id);
}

/* ---- engine::workers::info ---- */

static int workers_info(struct builtin_call *call)
{
    const char *name;
    if (get_text(call, "name", &name))
        return -1;
    if (!name)
        return fail(call, "INVALID_ARGUMENTS", "'name' is needed");
    struct worker *found = NULL;
    struct server *server = call->server;
    for (struct list *item = server->workers.next; item != &server->workers && !found; item = item->next) {
        struct worker *worker = CONTAINER_OF(item, struct worker, all);
        if (worker->name && strcmp(worker->name, name) == 0)
            found = worker;
    }
    if (!found) {
        call->code = "NOT_FOUND";
        return err_set(call->e, ERR_INVALID, "Worker '%s' is not connected.", name);
    }
    if (buf_appendf(call->result, call->e, "{\"worker\":"))
        return -1;
    struct json_writer w = json_writer_begin(call->result, call->e);
    write_worker(&w, found);
    json_write_number(&w, "pid", found->pid > 0 ? (unsigned long long)found->pid : 0);
    json_write_slice(&w, "internal", slice_of("false"));
    if (json_writer_end(&w) || buf_appendf(call->result, call->e, ",\"functions\":["))
        return -1;
    for (struct list *item = found->functions.next; item != &found->functions; item = item->next) {
        struct json_writer row = json_writer_begin(call->result, call->e);
        write_function_head(&row, CONTAINER_OF(item, struct function, of_worker));
        if (json_writer_end(&row) || (item->next != &found->functions && buf_append_u8(call->result, ',', call->e)))
            return -1;
    }
    if (buf_appendf(call->result, call->e, "],") || triggers_write_worker(found, call->result, call->e))
        return -1;
    return buf_append_u8(call->result, '}', call->e);
}

/* ---- engine::channels ---- */

static int channels_create_call(struct builtin_call *call)
{
    json_t *size = json_object_get(call->input, "buffer_size");
    if (size && !json_is_null(size) && !json_is_integer(size))
        return fail(call, "deserialization_error", "'buffer_size' must be a whole number");
    long long messages = json_is_integer(size) ? json_integer_value(size) : ENGINE_CHANNEL_MESSAGES_DEFAULT;
    messages = messages < 1 ? 1 : messages > ENGINE_CHANNEL_MESSAGES_MAX ? ENGINE_CHANNEL_MESSAGES_MAX : messages;
    if (channels_create(call->server, call->caller, (unsigned)messages, call->result, call->e)) {
        call->code = "limit_exceeded";
        return -1;
    }
    return 0;
}

const struct builtin builtins[] = {
    {"engine::channels::create", "makes a channel and returns its two references", channels_create_call},
    {"engine::functions::info", "describes one function, or up to 32", functions_info},
    {"engine::functions::list", "lists the functions that can be called", functions_list},
    {"engine::workers::info", "describes one connected worker by name", workers_info},
    {"engine::workers::list", "lists the connected workers", workers_list},
    {"engine::workers::register", "a worker announces itself", workers_register},
    {0},
};

const struct builtin *builtin_find(const char *id)
{
    for (const struct builtin *builtin = builtins; builtin->id; builtin++)
        if (strcmp(builtin->id, id) == 0)
            return builtin;
    return NULL;
}
