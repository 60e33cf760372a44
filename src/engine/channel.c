/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/channel.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "engine/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int copy_member(const json_t *value, const char *name, char *text, size_t size, struct err *e)
{
    const json_t *member = json_object_get(value, name);
    if (!json_is_string(member) || json_string_length(member) >= size ||
        strlen(json_string_value(member)) != json_string_length(member))
        return err_set(e, ERR_INVALID, "a channel reference needs '%s', a short string", name);
    memcpy(text, json_string_value(member), json_string_length(member) + 1);
    return 0;
}

int channel_ref_decode(const json_t *value, bool write, struct channel_ref *ret_ref, struct err *e)
{
    struct channel_ref ref = {.write = write};
    char direction[8];
    if (copy_member(value, "channel_id", ref.channel_id, sizeof ref.channel_id, e) ||
        copy_member(value, "access_key", ref.access_key, sizeof ref.access_key, e) ||
        copy_member(value, "direction", direction, sizeof direction, e))
        return -1;
    if (strcmp(direction, write ? "write" : "read") != 0)
        return err_set(e, ERR_INVALID, "a channel reference with direction '%s' is needed", write ? "write" : "read");
    *ret_ref = ref;
    return 0;
}

json_t *channel_ref_encode(const struct channel_ref *ref)
{
    return json_pack("{s:s, s:s, s:s}", "channel_id", ref->channel_id, "access_key", ref->access_key, "direction",
                     ref->write ? "write" : "read");
}

struct creation {
    channel_on_created on_created;
    void *context;
};

static void on_create_result(void *context, json_t *result, const char *code, const char *message)
{
    struct creation *creation = context;
    struct channel_ref reader = {0}, writer = {0};
    struct err e = ERR_INIT;
    if (!code && (channel_ref_decode(json_object_get(result, "reader"), false, &reader, &e) ||
                  channel_ref_decode(json_object_get(result, "writer"), true, &writer, &e))) {
        code = "invocation_error";
        message = e.text;
    }
    creation->on_created(creation->context, code ? NULL : &reader, code ? NULL : &writer, code, message);
}

uint64_t channel_create(struct engine *engine, unsigned messages, channel_on_created on_created, void *context)
{
    struct creation *creation = xcalloc(1, sizeof *creation);
    *creation = (struct creation){.on_created = on_created, .context = context};
    json_t *data = json_object();
    if (messages)
        json_object_set_new(data, "buffer_size", json_integer((json_int_t)messages));
    struct engine_call call = {.function_id = "engine::channels::create", .data = data};
    uint64_t handle = engine_call_owning(engine, &call, on_create_result, creation, creation);
    json_decref(data);
    return handle;
}

/* ---- ends ---- */

struct channel_reader *channel_reader_open(struct engine *engine, const struct channel_ref *ref,
                                           const struct channel_reader_events *events, void *context, bool paused, struct err *e)
{
    return engine->ops->reader_open(engine, ref, events, context, paused, e);
}

void channel_reader_pause(struct channel_reader *reader)
{
    if (!reader->paused)
        reader->ops->pause(reader);
}

void channel_reader_resume(struct channel_reader *reader)
{
    if (reader->paused)
        reader->ops->resume(reader);
}

void channel_reader_close(struct channel_reader *reader)
{
    if (reader)
        reader->ops->close(reader);
}

bool channel_reader_take(struct channel_reader *reader, enum ws_kind kind, const uint8_t *bytes, size_t len, bool last)
{
    if (kind == WS_BINARY) {
        if (len)
            reader->events->on_bytes(reader->context, bytes, len);
        return true;
    }
    if (!reader->events->on_text)
        return true;
    struct err e = ERR_INIT;
    reader->text.bytes_max = ENGINE_CHANNEL_TEXT_MAX;
    if (buf_append(&reader->text, bytes, len, &e))
        return false;
    if (!last)
        return true;
    auto_buf text = reader->text; /* the callback may close the reader */
    reader->text = BUF_INIT(ENGINE_CHANNEL_TEXT_MAX);
    reader->events->on_text(reader->context, (const char *)buf_data(&text), text.len);
    return true;
}

struct channel_writer *channel_writer_open(struct engine *engine, const struct channel_ref *ref,
                                           const struct channel_writer_events *events, void *context, struct err *e)
{
    return engine->ops->writer_open(engine, ref, events, context, e);
}

size_t channel_writer_room(const struct channel_writer *writer)
{
    return writer->ops->room(writer);
}

int channel_writer_bytes(struct channel_writer *writer, const void *bytes, size_t len, struct err *e)
{
    size_t room = writer->ops->room(writer);
    if (len > room)
        return err_set(e, ERR_LIMIT, "the channel takes %zu bytes now, not %zu", room, len);
    for (size_t at = 0; at < len;) {
        size_t part = len - at < ENGINE_CHANNEL_PIECE ? len - at : ENGINE_CHANNEL_PIECE;
        if (writer->ops->send(writer, WS_BINARY, (const uint8_t *)bytes + at, part, e))
            return -1;
        at += part;
    }
    if (writer->ops->room(writer) == 0)
        writer->was_full = true;
    return 0;
}

int channel_writer_text(struct channel_writer *writer, const char *text, size_t len, struct err *e)
{
    return writer->ops->send(writer, WS_TEXT, text, len, e);
}

void channel_writer_close(struct channel_writer *writer)
{
    if (writer)
        writer->ops->close(writer, true);
}

void channel_writer_abort(struct channel_writer *writer)
{
    if (writer)
        writer->ops->close(writer, false);
}
