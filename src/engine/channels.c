/* SPDX-License-Identifier: Apache-2.0 */
/* Channels of the embedded engine: one writer, one reader, each a socket or an end of this process, relayed piece by piece
 * with their opcode and message borders. Either end may come first. What is between the ends is bounded in bytes and
 * messages: past that the writer's socket is not read, or our writer has no room. The stream ends when the writer has closed
 * and everything is delivered; a lost writer is told apart: our reader hears LOST, a reader's socket is closed with 1011
 * instead of an empty close frame. A reader that goes away ends the writer. Each end can be taken once; what is never taken is
 * swept.
 *
 * Ends of this process are served from the loop's next turn, so that no function of channel.h calls back into its caller. */
#include "engine/channel.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/text.h"
#include "engine/server_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNUSED_MS (5 * 60 * 1000u)
#define READER_LOW (256 * KIB) /* unsent bytes of a reader's socket under which it gets more */

/* UNUSED: nobody came yet. OPEN: conn or local is set. DONE: came and went. */
enum end_state { END_UNUSED, END_OPEN, END_DONE };

struct channel_side {
    struct channel *channel;
    enum end_state state;
    struct ws_conn *conn;
};

struct piece {
    struct piece *next;
    enum ws_kind kind;
    bool first, last;
    size_t len, taken;
    uint8_t bytes[];
};

struct channel {
    struct table_entry by_id;
    struct server *server;
    struct uuid id, key, creator;
    uint64_t created_ms;
    unsigned messages_max;
    struct channel_side writer, reader;
    struct local_reader *local_reader;
    struct local_writer *local_writer;
    struct piece *first, **last;
    size_t bytes, messages;
    bool writer_lost, reader_lost;
    struct list ready;
    unsigned busy; /* callbacks of an end of ours on the stack: not to be freed */
};

struct local_reader {
    struct channel_reader base;
    struct channel *channel;
};

struct local_writer {
    struct channel_writer base;
    struct channel *channel;
};

static void pump(struct channel *channel);

static void mark_ready(struct channel *channel)
{
    if (list_is_empty(&channel->ready))
        list_add_last(&channel->server->ready_channels, &channel->ready);
    server_turn_soon(channel->server);
}

static size_t bytes_max(const struct channel *channel)
{
    return channel->server->channel_bytes > ENGINE_CHANNELS_HELD_MAX ? ENGINE_CHANNEL_BYTES_SCARCE : ENGINE_CHANNEL_BYTES_MAX;
}

static bool is_full(const struct channel *channel)
{
    return channel->bytes >= bytes_max(channel) || channel->messages >= channel->messages_max;
}

/* ---- making and freeing ---- */

static void count_creator(struct channel *channel, int change)
{
    struct worker *worker = registry_find_worker(channel->server, channel->creator.text);
    if (worker)
        worker->channels_len = (size_t)((long long)worker->channels_len + change);
}

static void write_ref(struct json_writer *w, const struct channel *channel, const char *direction)
{
    json_write_text(w, "channel_id", channel->id.text);
    json_write_text(w, "access_key", channel->key.text);
    json_write_text(w, "direction", direction);
}

int channels_create(struct server *server, struct worker *creator, unsigned messages, struct buf *result, struct err *e)
{
    if (server->channels.len >= ENGINE_CHANNELS_MAX || (creator && creator->channels_len >= ENGINE_CHANNELS_PER_CONNECTION_MAX))
        return err_set(e, ERR_LIMIT, "too many channels are open or unused");
    struct channel *channel = xcalloc(1, sizeof *channel);
    channel->server = server;
    channel->id = uuid_make();
    channel->key = uuid_make();
    channel->created_ms = clock_now_ms();
    channel->messages_max = messages;
    channel->writer.channel = channel->reader.channel = channel;
    channel->last = &channel->first;
    list_init(&channel->ready);
    if (creator)
        channel->creator = creator->id;
    table_add(&server->channels, &channel->by_id, channel->id.text);
    count_creator(channel, 1);
    if (buf_appendf(result, e, "{\"writer\":"))
        return -1;
    struct json_writer w = json_writer_begin(result, e);
    write_ref(&w, channel, "write");
    if (json_writer_end(&w) || buf_appendf(result, e, ",\"reader\":"))
        return -1;
    w = json_writer_begin(result, e);
    write_ref(&w, channel, "read");
    return json_writer_end(&w) || buf_append_u8(result, '}', e) ? -1 : 0;
}

static void drop_first(struct channel *channel)
{
    struct piece *piece = channel->first;
    channel->first = piece->next;
    if (!channel->first)
        channel->last = &channel->first;
    channel->bytes -= piece->len;
    channel->server->channel_bytes -= piece->len;
    channel->messages -= piece->last;
    free(piece);
}

static void drop_all(struct channel *channel)
{
    while (channel->first)
        drop_first(channel);
}

static void free_if_done(struct channel *channel)
{
    if (channel->busy || channel->writer.state != END_DONE || channel->reader.state != END_DONE || channel->local_reader ||
        channel->local_writer)
        return;
    drop_all(channel);
    count_creator(channel, -1);
    list_remove(&channel->ready);
    table_remove(&channel->server->channels, &channel->by_id);
    free(channel);
}

void channels_forget_worker(struct worker *worker)
{
    (void)worker; /* the count is in the worker itself; the creator's id finds nobody from now on */
}

/* ---- the stream ---- */

static void end_reader(struct channel *channel)
{
    struct ws_conn *conn = channel->reader.conn;
    channel->reader.state = END_DONE;
    channel->reader.conn = NULL;
    if (conn)
        ws_close(conn, channel->writer_lost ? WS_CLOSE_LOST : 0, "the writer was lost");
    if (channel->local_reader) {
        struct local_reader *reader = channel->local_reader;
        channel->local_reader = NULL;
        channel->busy++;
        reader->base.events->on_end(reader->base.context, channel->writer_lost ? CHANNEL_END_LOST : CHANNEL_END_CLOSED);
        channel->busy--;
        buf_done(&reader->base.text);
        free(reader);
    }
}

/* The reader is gone: nothing more can be delivered. */
static void end_writer(struct channel *channel)
{
    struct ws_conn *conn = channel->writer.conn;
    drop_all(channel);
    if (channel->writer.state == END_OPEN)
        channel->writer.state = END_DONE;
    channel->writer.conn = NULL;
    if (conn)
        ws_close(conn, WS_CLOSE_AWAY, "the reader is gone");
    if (channel->local_writer) {
        struct local_writer *writer = channel->local_writer;
        channel->local_writer = NULL;
        channel->busy++;
        writer->base.events->on_end(writer->base.context, channel->reader_lost ? CHANNEL_END_LOST : CHANNEL_END_CLOSED);
        channel->busy--;
        free(writer);
    }
}

static int send_first(struct channel *channel)
{
    struct piece *piece = channel->first;
    struct err e = ERR_INIT;
    if (ws_send_piece(channel->reader.conn, piece->kind, piece->bytes, piece->len, piece->first, piece->last, &e))
        return -1;
    drop_first(channel);
    return 0;
}

static void give_to_local(struct channel *channel)
{
    channel->busy++;
    while (channel->first && channel->local_reader && !channel->local_reader->base.paused) {
        struct piece *piece = channel->first;
        struct local_reader *reader = channel->local_reader;
        channel->first = piece->next;
        if (!channel->first)
            channel->last = &channel->first;
        channel->bytes -= piece->len;
        channel->server->channel_bytes -= piece->len;
        channel->messages -= piece->last;
        bool fits = channel_reader_take(&reader->base, piece->kind, piece->bytes, piece->len, piece->last);
        free(piece);
        if (!fits && channel->local_reader) { /* a text over its limit: as good as a broken writer */
            drop_all(channel);
            channel->writer_lost = true;
            if (channel->writer.conn)
                ws_close(channel->writer.conn, WS_CLOSE_TOO_BIG, "text message too big");
            channel->writer.conn = NULL;
            channel->writer.state = END_DONE;
        }
    }
    channel->busy--;
}

/* Moves what can be moved; wakes the writer; ends the reader when all is delivered. May free the channel. */
static void pump(struct channel *channel)
{
    channel->busy++;
    while (channel->first && channel->reader.conn && ws_queued(channel->reader.conn) < READER_LOW)
        if (send_first(channel))
            break;
    if (channel->local_reader)
        give_to_local(channel);
    if (channel->writer.conn && !is_full(channel))
        ws_resume(channel->writer.conn);
    if (channel->local_writer && channel->local_writer->base.was_full && channel_writer_room(&channel->local_writer->base))
        mark_ready(channel);
    if (channel->writer.state == END_DONE && channel->reader.state == END_OPEN && !channel->first &&
        !(channel->local_reader && channel->local_reader->base.paused))
        end_reader(channel);
    channel->busy--;
    free_if_done(channel);
}

static void push(struct channel *channel, enum ws_kind kind, const void *bytes, size_t len, bool first, bool last)
{
    struct err e = ERR_INIT;
    metric_add(&channel->server->base.metrics, METRIC_CHANNEL_BYTES, (int64_t)len);
    if (channel->reader.state == END_DONE)
        return;
    if (!channel->first && channel->reader.conn && ws_queued(channel->reader.conn) < READER_LOW) {
        if (!ws_send_piece(channel->reader.conn, kind, bytes, len, first, last, &e))
            return;
        err_clear(&e);
    }
    struct piece *piece = malloc(sizeof *piece + len);
    if (!piece) { /* bytes are lost: the stream cannot go on */
        channel->writer_lost = true;
        end_reader(channel);
        end_writer(channel);
        return;
    }
    *piece = (struct piece){.kind = kind, .first = first, .last = last, .len = len};
    if (len)
        memcpy(piece->bytes, bytes, len);
    *channel->last = piece;
    channel->last = &piece->next;
    channel->bytes += len;
    channel->server->channel_bytes += len;
    channel->messages += last;
    if (channel->local_reader)
        mark_ready(channel);
}

void channels_turn(struct server *server)
{
    struct list ready;
    list_init(&ready);
    while (!list_is_empty(&server->ready_channels)) {
        struct list *item = server->ready_channels.next;
        list_remove(item);
        list_add_last(&ready, item);
    }
    while (!list_is_empty(&ready)) {
        struct channel *channel = CONTAINER_OF(ready.next, struct channel, ready);
        list_remove(&channel->ready);
        channel->busy++;
        if (channel->reader.state == END_DONE)
            end_writer(channel);
        struct local_writer *writer = channel->local_writer;
        if (writer && writer->base.was_full && channel_writer_room(&writer->base)) {
            writer->base.was_full = false;
            writer->base.events->on_room(writer->base.context);
        }
        channel->busy--;
        pump(channel);
    }
}

/* ---- ends that are sockets ---- */

static void on_writer_piece(void *owner, enum ws_kind kind, const uint8_t *bytes, size_t len, bool first, bool last)
{
    struct channel *channel = ((struct channel_side *)owner)->channel;
    channel->busy++;
    push(channel, kind, bytes, len, first, last);
    if (channel->writer.conn && is_full(channel))
        ws_pause(channel->writer.conn);
    channel->busy--;
    free_if_done(channel);
}

static void on_writer_close(void *owner, const struct ws_end *end)
{
    struct channel *channel = ((struct channel_side *)owner)->channel;
    channel->writer.conn = NULL;
    channel->writer.state = END_DONE;
    channel->writer_lost = end->code != 1000 && end->code != 1001 && end->code != 1005;
    if (channel->local_reader)
        mark_ready(channel);
    else
        pump(channel);
}

static void on_reader_piece(void *owner, enum ws_kind kind, const uint8_t *bytes, size_t len, bool first, bool last)
{
    (void)owner; /* a reader has nothing to say */
    (void)kind;
    (void)bytes;
    (void)len;
    (void)first;
    (void)last;
}

static void on_reader_open(void *owner)
{
    pump(((struct channel_side *)owner)->channel);
}

static void on_reader_drain(void *owner)
{
    pump(((struct channel_side *)owner)->channel);
}

static void on_reader_close(void *owner, const struct ws_end *end)
{
    struct channel *channel = ((struct channel_side *)owner)->channel;
    channel->reader.conn = NULL;
    channel->reader.state = END_DONE;
    channel->reader_lost = end->code == 0;
    if (channel->local_writer) {
        mark_ready(channel);
        return;
    }
    end_writer(channel);
    free_if_done(channel);
}

/* Every byte budget is the channel's own; a reader may pause for as long as it likes. */
static const struct ws_events writer_events = {.on_piece = on_writer_piece, .on_close = on_writer_close, .queue_max = MIB};
static const struct ws_events reader_events = {.on_open = on_reader_open,
                                               .on_piece = on_reader_piece,
                                               .on_drain = on_reader_drain,
                                               .on_close = on_reader_close,
                                               .queue_max = ENGINE_QUEUE_MAX,
                                               .drain_bytes = READER_LOW};

/* A second open of an end: upgraded, and closed at once. The owner is the connection itself. */
static void on_taken_open(void *owner)
{
    ws_close(owner, 0, "");
}

static void on_taken_close(void *owner, const struct ws_end *end)
{
    (void)owner;
    (void)end;
}

static const struct ws_events taken_events = {.on_open = on_taken_open, .on_piece = on_reader_piece, .on_close = on_taken_close};

static struct channel *find_channel(struct server *server, const char *id, const char *key)
{
    struct table_entry *entry = table_find(&server->channels, id);
    struct channel *channel = entry ? CONTAINER_OF(entry, struct channel, by_id) : NULL;
    return channel && text_equals_constant_time(channel->key.text, key) ? channel : NULL;
}

void channels_on_request(struct server *server, const struct ws_request *request, struct ws_conn *conn, struct ws_answer *answer)
{
    char key[128], direction[16];
    if (!ws_request_query(request, "key", key, sizeof key) || !ws_request_query(request, "dir", direction, sizeof direction) ||
        (strcmp(direction, "read") != 0 && strcmp(direction, "write") != 0)) {
        ws_answer_text(answer, 400, "key, and dir=read or dir=write, are needed");
        return;
    }
    bool write = *direction == 'w';
    struct channel *channel = find_channel(server, request->path + strlen("/ws/channels/"), key);
    if (!channel) {
        ws_answer_text(answer, 404, "Channel not found");
        return;
    }
    struct channel_side *side = write ? &channel->writer : &channel->reader;
    answer->status = 101;
    if (side->state != END_UNUSED || (write && channel->reader.state == END_DONE)) {
        answer->events = &taken_events;
        answer->owner = conn;
        return;
    }
    side->state = END_OPEN;
    side->conn = conn;
    answer->events = write ? &writer_events : &reader_events;
    answer->owner = side;
}

/* ---- ends of this process ---- */

static void reader_pause(struct channel_reader *base)
{
    base->paused = true;
}

static void reader_resume(struct channel_reader *base)
{
    base->paused = false;
    mark_ready(((struct local_reader *)base)->channel);
}

static void reader_close(struct channel_reader *base)
{
    struct local_reader *reader = (struct local_reader *)base;
    struct channel *channel = reader->channel;
    channel->local_reader = NULL;
    channel->reader.state = END_DONE;
    buf_done(&base->text);
    free(reader);
    if (channel->local_writer) {
        mark_ready(channel);
        return;
    }
    end_writer(channel);
    free_if_done(channel);
}

static const struct channel_reader_ops reader_ops = {.pause = reader_pause, .resume = reader_resume, .close = reader_close};

static size_t writer_room(const struct channel_writer *base)
{
    const struct channel *channel = ((const struct local_writer *)base)->channel;
    size_t max = bytes_max(channel), used = channel->bytes + (channel->reader.conn ? ws_queued(channel->reader.conn) : 0);
    if (channel->reader.state == END_DONE || channel->messages >= channel->messages_max || used >= max)
        return 0;
    return max - used;
}

static int writer_send(struct channel_writer *base, enum ws_kind kind, const void *bytes, size_t len, struct err *e)
{
    (void)e;
    struct channel *channel = ((struct local_writer *)base)->channel;
    push(channel, kind, bytes, len, true, true);
    return 0;
}

static void writer_close(struct channel_writer *base, bool clean)
{
    struct local_writer *writer = (struct local_writer *)base;
    struct channel *channel = writer->channel;
    channel->local_writer = NULL;
    channel->writer.state = END_DONE;
    channel->writer_lost = !clean;
    free(writer);
    mark_ready(channel);
}

static const struct channel_writer_ops writer_ops = {.room = writer_room, .send = writer_send, .close = writer_close};

static struct channel *take_side(struct engine *engine, const struct channel_ref *ref, bool write, struct err *e)
{
    struct channel *channel = find_channel(server_of(engine), ref->channel_id, ref->access_key);
    if (!channel) {
        err_set(e, ERR_INVALID, "there is no channel '%.40s', or the key is wrong", ref->channel_id);
        return NULL;
    }
    struct channel_side *side = write ? &channel->writer : &channel->reader;
    if (side->state != END_UNUSED || (write && channel->reader.state == END_DONE)) {
        err_set(e, ERR_INVALID, "this end of channel '%.40s' is taken or gone", ref->channel_id);
        return NULL;
    }
    side->state = END_OPEN;
    return channel;
}

struct channel_reader *channels_open_reader(struct engine *engine, const struct channel_ref *ref,
                                            const struct channel_reader_events *events, void *context, bool paused, struct err *e)
{
    struct channel *channel = take_side(engine, ref, false, e);
    if (!channel)
        return NULL;
    struct local_reader *reader = xcalloc(1, sizeof *reader);
    reader->base = (struct channel_reader){.ops = &reader_ops, .events = events, .context = context, .paused = paused};
    reader->channel = channel;
    channel->local_reader = reader;
    mark_ready(channel);
    return &reader->base;
}

struct channel_writer *channels_open_writer(struct engine *engine, const struct channel_ref *ref,
                                            const struct channel_writer_events *events, void *context, struct err *e)
{
    struct channel *channel = take_side(engine, ref, true, e);
    if (!channel)
        return NULL;
    struct local_writer *writer = xcalloc(1, sizeof *writer);
    writer->base = (struct channel_writer){.ops = &writer_ops, .events = events, .context = context};
    writer->channel = channel;
    channel->local_writer = writer;
    return &writer->base;
}

/* ---- sweeping ---- */

/* Ends whatever ends there are; the channel is freed, at the latest by the next turn. */
static void end_channel(struct channel *channel)
{
    channel->busy++;
    drop_all(channel);
    channel->writer_lost = channel->reader_lost = true;
    channel->reader.state = channel->reader.state == END_UNUSED ? END_DONE : channel->reader.state;
    if (channel->reader.state == END_OPEN)
        end_reader(channel);
    end_writer(channel);
    channel->writer.state = END_DONE;
    channel->busy--;
    free_if_done(channel);
}

void channels_sweep(struct server *server)
{
    uint64_t now = clock_now_ms();
    for (struct table_entry *entry = table_next(&server->channels, NULL); entry;) {
        struct channel *channel = CONTAINER_OF(entry, struct channel, by_id);
        bool unused = channel->writer.state == END_UNUSED || channel->reader.state == END_UNUSED;
        if (unused && now - channel->created_ms >= UNUSED_MS) {
            end_channel(channel);
            entry = table_next(&server->channels, NULL); /* others may have gone with it */
        } else {
            entry = table_next(&server->channels, entry);
        }
    }
}

void channels_done(struct server *server)
{
    struct table_entry *entry;
    while ((entry = table_next(&server->channels, NULL)))
        end_channel(CONTAINER_OF(entry, struct channel, by_id));
}
