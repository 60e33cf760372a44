/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/run_files.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/path.h"
#include "base/text.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define HELPER "iii-sandbox-image"
#define FOLDER_FD 3
#define PIECE (32 * KIB)
#define STDERR_MAX (4 * KIB)
#define COPY_STALL_MS 30000u
/* The sanitizers' shadow memory is address space too. */
#if defined(__SANITIZE_ADDRESS__)
#define HELPER_MEMORY_MAX 0
#else
#define HELPER_MEMORY_MAX (1 * GIB)
#endif

/* --- the words of the flags --- */

static char *last_name(const char *path)
{
    size_t len = strlen(path);
    while (len && path[len - 1] == '/')
        len--;
    size_t from = len;
    while (from && path[from - 1] != '/')
        from--;
    return xstrndup(path + from, len - from);
}

static bool is_name(const char *name)
{
    return *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

void file_pair_done(struct file_pair *pair)
{
    free(pair->local_dir);
    free(pair->local_name);
    free(pair->remote);
    *pair = (struct file_pair){0};
}

/* LOCAL as a folder that exists and a name in it. */
static int split_local(const char *local, struct file_pair *pair, struct err *e)
{
    pair->local_name = last_name(local);
    if (!is_name(pair->local_name))
        return err_set(e, ERR_USAGE, "'%s' names no file or folder", local);
    size_t len = strlen(local);
    while (local[len - 1] == '/')
        len--;
    size_t dir_len = len - strlen(pair->local_name);
    pair->local_dir = dir_len ? xstrndup(local, dir_len) : xstrdup(".");
    struct stat s;
    if (stat(pair->local_dir, &s))
        return err_sys_code(e, ERR_USAGE, errno, "folder '%s'", pair->local_dir);
    return S_ISDIR(s.st_mode) ? 0 : err_set(e, ERR_USAGE, "'%s' is not a folder", pair->local_dir);
}

/* Hands the pair over when its remote side has a name. */
static int check_remote(struct file_pair *pair, struct file_pair *ret_pair, const char *text, struct err *e)
{
    auto_free char *name = last_name(pair->remote);
    if (is_name(name)) {
        *ret_pair = *pair;
        return 0;
    }
    file_pair_done(pair);
    return err_set(e, ERR_USAGE, "'%s': the path in the guest names no file or folder", text);
}

int file_pair_in(const char *text, struct file_pair *ret_pair, struct err *e)
{
    struct file_pair pair = {0};
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text || colon[1] != '/')
        return err_set(e, ERR_USAGE, "--file '%s' is not LOCAL:REMOTE with an absolute REMOTE", text);
    auto_free char *local = xstrndup(text, (size_t)(colon - text));
    struct stat s;
    if (lstat(local, &s))
        return err_sys_code(e, ERR_USAGE, errno, "--file '%s'", local);
    auto_free char *resolved = NULL; /* "." and ".." have no name of their own */
    auto_free char *plain = last_name(local);
    if (!is_name(plain)) {
        resolved = realpath(local, NULL);
        if (!resolved)
            return err_sys_code(e, ERR_USAGE, errno, "--file '%s'", local);
    }
    if (split_local(resolved ? resolved : local, &pair, e)) {
        file_pair_done(&pair);
        return err_wrap(e, "--file");
    }
    pair.remote = text_has_suffix(colon, "/") ? xasprintf("%s%s", colon + 1, pair.local_name) : xstrdup(colon + 1);
    return check_remote(&pair, ret_pair, text, e);
}

int file_pair_out(const char *text, struct file_pair *ret_pair, struct err *e)
{
    struct file_pair pair = {0};
    const char *colon = strchr(text, ':');
    if (!colon || text[0] != '/' || !colon[1])
        return err_set(e, ERR_USAGE, "--out '%s' is not REMOTE:LOCAL with an absolute REMOTE", text);
    pair.remote = xstrndup(text, (size_t)(colon - text));
    auto_free char *remote_name = last_name(pair.remote), *local_name = last_name(colon + 1);
    bool below = text_has_suffix(colon + 1, "/") || !is_name(local_name);
    auto_free char *local = below ? xasprintf("%s/%s", colon + 1, remote_name) : xstrdup(colon + 1);
    if (split_local(local, &pair, e)) {
        file_pair_done(&pair);
        return err_wrap(e, "--out");
    }
    return check_remote(&pair, ret_pair, text, e);
}

/* --- a copy --- */

struct file_copy {
    struct link *link;
    uint32_t call; /* 0 once it has ended */
    struct jail_child child;
    bool child_ended, into_guest, stopped, reading;
    uv_pipe_t data; /* the archive, from or to the helper */
    uv_poll_t exited;
    uv_timer_t stall;    /* runs again from every byte that moved */
    uint64_t bytes_left; /* of archive that the guest may still send */
    unsigned handles;
    int said_fd;          /* an unnamed file: the helper's standard error */
    uint8_t piece[PIECE]; /* into the guest: read and not yet taken by the call */
    size_t piece_len, piece_at;
    unsigned writes; /* out of the guest: writes to the helper on their way */
    bool guest_ended;
    struct err failure;
    void *context;
    void (*on_end)(void *context, const struct err *failure);
};

static void on_closed(uv_handle_t *handle)
{
    struct file_copy *c = handle->data;
    if (--c->handles)
        return;
    void *context = c->context;
    struct err failure = c->failure;
    void (*tell)(void *, const struct err *) = c->stopped ? NULL : c->on_end;
    close(c->said_fd);
    free(c);
    if (tell)
        tell(context, err_is_set(&failure) ? &failure : NULL);
}

static void close_handle(uv_handle_t *handle)
{
    if (!uv_is_closing(handle))
        uv_close(handle, on_closed);
}

/* Both ends are over: on_end comes from the last close callback. */
static void maybe_end(struct file_copy *c)
{
    if (c->call == 0 && c->child_ended) {
        close_handle((uv_handle_t *)&c->data);
        close_handle((uv_handle_t *)&c->exited);
        close_handle((uv_handle_t *)&c->stall);
    }
}

static void fail(struct file_copy *c, const struct err *why)
{
    if (!err_is_set(&c->failure))
        c->failure = *why;
    if (c->call)
        link_call_cancel(c->link, c->call);
    if (!c->child_ended)
        kill(c->child.pid, SIGKILL); /* not reaped yet: the number is still its own */
}

static void forget_call(struct file_copy *c)
{
    if (c->call)
        link_call_forget(c->link, c->call);
    c->call = 0;
}

static void on_stall(uv_timer_t *timer)
{
    struct file_copy *c = timer->data;
    struct err e = ERR_INIT;
    err_set(&e, ERR_FS_UPLOAD, "nothing moved for %u s", COPY_STALL_MS / 1000);
    fail(c, &e);
    forget_call(c); /* the guest may never answer */
    maybe_end(c);
}

static void moved(struct file_copy *c)
{
    if (!uv_is_closing((uv_handle_t *)&c->stall))
        uv_timer_start(&c->stall, on_stall, COPY_STALL_MS, 0);
}

/* What the helper said, "CODE text": its last words become the failure. */
static void take_last_words(struct file_copy *c, int how, struct err *e)
{
    char said[STDERR_MAX];
    ssize_t len = pread(c->said_fd, said, sizeof said - 1, 0);
    said[len > 0 ? len : 0] = 0;
    char *text = strchr(said, ' ');
    said[strcspn(said, "\n")] = 0;
    if (text && text_has_prefix(said, "ERR_"))
        err_set(e, ERR_SYSTEM, "%s", text + 1);
    else if (WIFSIGNALED(how))
        err_set(e, ERR_SYSTEM, HELPER " was ended by signal %d %s", WTERMSIG(how), said);
    else
        err_set(e, ERR_SYSTEM, HELPER " failed with status %d %s", WEXITSTATUS(how), said);
}

static void on_child_exit(uv_poll_t *handle, int status, int events)
{
    (void)status;
    (void)events;
    struct file_copy *c = handle->data;
    struct err e = ERR_INIT;
    int how = 0;
    uv_poll_stop(handle); /* before the pidfd is closed */
    int waited = jail_wait(&c->child, &how, &e);
    c->child_ended = true;
    if (!waited && !(WIFEXITED(how) && WEXITSTATUS(how) == 0))
        take_last_words(c, how, &e);
    if (err_is_set(&e))
        fail(c, &e);
    maybe_end(c);
}

/* --- into the guest: helper → call --- */

static void pump_in(struct file_copy *c);

static void on_piece_room(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_room)
{
    struct file_copy *c = handle->data;
    (void)suggested;
    *ret_room = uv_buf_init((char *)c->piece, sizeof c->piece);
}

static void on_piece(uv_stream_t *stream, ssize_t len, const uv_buf_t *room)
{
    struct file_copy *c = stream->data;
    (void)room;
    if (len == 0)
        return;
    uv_read_stop(stream);
    c->reading = false;
    if (len < 0) { /* the end; whether it was a good one is told by the helper's status */
        if (c->call && !err_is_set(&c->failure))
            link_call_end_input(c->link, c->call);
        return;
    }
    moved(c);
    c->piece_len = (size_t)len;
    c->piece_at = 0;
    pump_in(c);
}

static void pump_in(struct file_copy *c)
{
    if (!c->call || c->reading)
        return;
    c->piece_at += link_call_write(c->link, c->call, c->piece + c->piece_at, c->piece_len - c->piece_at);
    if (c->piece_at == c->piece_len) {
        c->reading = true;
        uv_read_start((uv_stream_t *)&c->data, on_piece_room, on_piece);
    }
}

static void on_writable(void *context)
{
    pump_in(context);
}

/* --- out of the guest: call → helper --- */

struct out_write {
    uv_write_t request;
    struct file_copy *copy;
    size_t len;
    uint8_t bytes[];
};

static void maybe_end_helper_input(struct file_copy *c)
{
    if (c->guest_ended && !c->writes)
        close_handle((uv_handle_t *)&c->data);
}

static void on_written(uv_write_t *request, int status)
{
    struct out_write *write = request->data;
    struct file_copy *c = write->copy;
    c->writes--;
    moved(c);
    if (c->call) /* a helper that is gone is told by its status; what still comes is dropped */
        link_call_taken(c->link, c->call, WIRE_CHANNEL_OUT, write->len);
    (void)status;
    free(write);
    maybe_end_helper_input(c);
}

static void on_data(void *context, enum wire_channel channel, const uint8_t *bytes, size_t len)
{
    struct file_copy *c = context;
    struct err e = ERR_INIT;
    moved(c);
    if (len > c->bytes_left) {
        err_set(&e, ERR_LIMIT, "the guest sends more than its disk and image hold");
        fail(c, &e);
    }
    c->bytes_left -= len < c->bytes_left ? len : c->bytes_left;
    struct out_write *write = channel == WIRE_CHANNEL_OUT && !err_is_set(&c->failure) ? malloc(sizeof *write + len) : NULL;
    if (!write) {
        link_call_taken(c->link, c->call, channel, len);
        return;
    }
    *write = (struct out_write){.copy = c, .len = len};
    write->request.data = write;
    memcpy(write->bytes, bytes, len);
    uv_buf_t piece = uv_buf_init((char *)write->bytes, (unsigned)len);
    c->writes++;
    if (uv_is_closing((uv_handle_t *)&c->data) || uv_write(&write->request, (uv_stream_t *)&c->data, &piece, 1, on_written) < 0) {
        c->writes--;
        free(write);
        link_call_taken(c->link, c->call, channel, len);
    }
}

static void on_call_end(void *context, const uint8_t *reply, size_t len, const struct err *failure)
{
    struct file_copy *c = context;
    (void)reply;
    (void)len;
    c->call = 0;
    if (failure)
        fail(c, failure);
    if (!c->into_guest) {
        c->guest_ended = true;
        maybe_end_helper_input(c);
    }
    maybe_end(c);
}

/* --- start and stop --- */

static int spawn_helper(struct file_copy *c, const struct file_pair *pair, int pipe_fd, int folder_fd, struct err *e)
{
    auto_free char *program = path_program(HELPER, e), *remote_name = last_name(pair->remote);
    if (!program)
        return -1;
    char *argv[] = {(char[]){HELPER}, c->into_guest ? (char[]){"pack"} : (char[]){"unpack"}, pair->local_name,
                    c->into_guest ? remote_name : NULL, NULL};
    struct jail_fd fds[] = {
        {pipe_fd, c->into_guest ? STDOUT_FILENO : STDIN_FILENO}, {c->said_fd, STDERR_FILENO}, {folder_fd, FOLDER_FD}};
    struct jail_spec spec = {
        .name = HELPER,
        .program = program,
        .argv = argv,
        .fds = fds,
        .fds_len = sizeof fds / sizeof *fds,
        .namespaces = true,
        .ids = JAIL_IDS_KEEP,
        .memory_max = HELPER_MEMORY_MAX,
        .fds_max = 2 * PACK_DEPTH_MAX,
        .caps = JAIL_CAPS_KEEP, /* root may read and write its users' files; unpack drops the rest itself */
    };
    return jail_spawn(&spec, &c->child, e);
}

static int start_call(struct file_copy *c, const struct file_pair *pair, struct err *e)
{
    auto_free char *parent = NULL;
    struct wire_request request = {.operation = c->into_guest ? WIRE_OP_TAR_IN : WIRE_OP_TAR_OUT};
    if (c->into_guest) {
        const char *slash = strrchr(pair->remote, '/');
        parent = slash == pair->remote ? xstrdup("/") : xstrndup(pair->remote, (size_t)(slash - pair->remote));
        request.tar = (struct wire_tar){.path = parent, .make_parents = 1};
    } else {
        request.tar = (struct wire_tar){.path = pair->remote, .name = pair->local_name};
    }
    struct link_call_events events = {.context = c, .on_data = on_data, .on_writable = on_writable, .on_end = on_call_end};
    return link_call(c->link, &request, &events, &c->call, e);
}

static int open_ends(struct file_copy *c, uv_loop_t *loop, const struct file_pair *pair, struct err *e)
{
    int ends[2];
    auto_close folder = open(pair->local_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return err_sys(e, errno, "open '%s'", pair->local_dir);
    if (pipe2(ends, O_CLOEXEC))
        return err_sys(e, errno, "make a pipe");
    auto_close ours = ends[c->into_guest ? 0 : 1], theirs = ends[c->into_guest ? 1 : 0];
    if (spawn_helper(c, pair, theirs, folder, e))
        return -1;
    CHECK(uv_pipe_init(loop, &c->data, 0) == 0 && uv_timer_init(loop, &c->stall) == 0);
    CHECK(uv_poll_init(loop, &c->exited, c->child.pidfd) == 0);
    c->handles = 3;
    c->data.data = c->exited.data = c->stall.data = c;
    moved(c);
    CHECK(uv_pipe_open(&c->data, STEAL_FD(ours)) == 0);
    uv_poll_start(&c->exited, UV_READABLE, on_child_exit);
    return 0;
}

struct file_copy *file_copy_start(uv_loop_t *loop, struct link *link, const struct file_pair *pair, bool into_guest,
                                  uint64_t bytes_max, void *context, void (*on_end)(void *context, const struct err *failure),
                                  struct err *e)
{
    struct file_copy *c = xcalloc(1, sizeof *c);
    *c =
        (struct file_copy){.link = link, .into_guest = into_guest, .bytes_left = bytes_max, .context = context, .on_end = on_end};
    c->said_fd = memfd_create("said", MFD_CLOEXEC);
    if (c->said_fd < 0)
        err_sys(e, errno, "make an unnamed file");
    if (c->said_fd < 0 || open_ends(c, loop, pair, e)) {
        if (c->said_fd >= 0)
            close(c->said_fd);
        free(c);
        return NULL;
    }
    if (start_call(c, pair, e)) {
        file_copy_stop(c);
        return NULL;
    }
    if (into_guest)
        pump_in(c);
    return c;
}

void file_copy_stop(struct file_copy *c)
{
    if (!c || c->stopped)
        return;
    c->stopped = true;
    forget_call(c);
    if (!uv_is_closing((uv_handle_t *)&c->exited))
        uv_poll_stop(&c->exited);
    if (!c->child_ended)
        jail_kill(&c->child);
    c->child_ended = true;
    close_handle((uv_handle_t *)&c->data);
    close_handle((uv_handle_t *)&c->exited);
    close_handle((uv_handle_t *)&c->stall);
}
