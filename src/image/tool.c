/* SPDX-License-Identifier: Apache-2.0 */
#include "image/tool.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/path.h"
#include "image/store_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>

#define TOOLS_MAX 3
#define TOOL_END_MS 15000
#define LINES_MAX 4096
#define LINE_MAX_BYTES 600 /* of one line in a message */

/* What a host tool needs from our environment; anything else would make images differ from user to user. */
static const char *const kept_env[] = {"HOME",      "APT_CONFIG", "http_proxy", "https_proxy", "ftp_proxy",
                                       "all_proxy", "no_proxy",   "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"};

static void fill_env(struct strv *env, const struct tool_start *start)
{
    strv_add(env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    strv_add(env, "LC_ALL=C");
    strv_add(env, "DEBIAN_FRONTEND=noninteractive");
    strv_addf(env, "TMPDIR=%s", start->folder ? start->folder : "/tmp");
    for (size_t i = 0; i < sizeof kept_env / sizeof *kept_env; i++) {
        const char *value = getenv(kept_env[i]);
        if (value)
            strv_addf(env, "%s=%s", kept_env[i], value);
    }
}

int tool_enter_range(struct strv *argv, struct err *e)
{
    static const char *const words[] = {"--map-root-user", "--map-auto", "--mount", "--pid", "--fork", "--kill-child", "--"};
    if (geteuid() == 0)
        return 0;
    char *program = path_find_in_path("unshare", e);
    if (!program)
        return err_wrap(e, "a normal user needs util-linux and uidmap for debian: images");
    strv_take(argv, program);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        strv_add(argv, words[i]);
    return 0;
}

static int make_pipe(int *ret_read, int *ret_write, struct err *e)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return err_sys(e, errno, "make a pipe");
    *ret_read = fds[0];
    *ret_write = fds[1];
    return 0;
}

int tool_start(struct tool *tool, const struct tool_start *start, struct err *e)
{
    *tool = (struct tool){.name = start->name, .out_fd = -1, .err_fd = -1, .on_line = start->on_line, .context = start->context};
    tool->child.pidfd = -1;
    auto_close out_read = -1, out_write = -1, err_read = -1, err_write = -1;
    if (make_pipe(&err_read, &err_write, e) || (start->out_fd < 0 && make_pipe(&out_read, &out_write, e)))
        return -1;
    auto_strv env = {0};
    if (start->rights == TOOL_ISOLATED || start->rights == TOOL_PACKAGES)
        fill_env(&env, start);
    struct jail_fd fds[4] = {{err_write, 2}, {start->out_fd < 0 ? out_write : start->out_fd, 1}};
    size_t fds_len = 2;
    if (start->in_fd >= 0)
        fds[fds_len++] = (struct jail_fd){start->in_fd, 0};
    if (start->image_fd >= 0)
        fds[fds_len++] = (struct jail_fd){start->image_fd, 3};
    bool packages = start->rights == TOOL_PACKAGES, untrusted = start->rights == TOOL_UNTRUSTED;
    bool keeps = packages || start->rights == TOOL_READER; /* which drops all but its rights over files itself */
    struct jail_spec spec = {
        .name = start->name,
        .program = start->program,
        .argv = start->argv,
        .env = env.items,
        .cwd = start->folder,
        .fds = fds,
        .fds_len = fds_len,
        .namespaces = true,
        .network = packages,
        .ids = untrusted ? JAIL_IDS_NOBODY : JAIL_IDS_KEEP,
        .caps = keeps ? JAIL_CAPS_KEEP : JAIL_CAPS_DROP,
        .allow_new_privs = packages,
        .lockdown_follows = untrusted,
        .file_size_max = untrusted ? IMAGE_BYTES_MAX : 0,
        .fds_max = untrusted ? 64 : 0,
    };
    if (jail_spawn(&spec, &tool->child, e))
        return -1;
    tool->out_fd = STEAL_FD(out_read);
    tool->err_fd = STEAL_FD(err_read);
    return 0;
}

void tool_done(struct tool *tool)
{
    jail_kill(&tool->child);
    cleanup_close(&tool->out_fd);
    cleanup_close(&tool->err_fd);
    tool->out_fd = tool->err_fd = -1;
}

bool tool_failed(const struct tool *tool)
{
    return tool->ended && (!WIFEXITED(tool->status) || WEXITSTATUS(tool->status));
}

int tool_error(const struct tool *tool, enum err_code code, struct err *e)
{
    const char *words = tool->tail[0] ? tool->tail : "it said nothing";
    if (WIFSIGNALED(tool->status))
        return err_set(e, code, "%s was ended by signal %d: %s", tool->name, WTERMSIG(tool->status), words);
    return err_set(e, code, "%s failed (exit status %d): %s", tool->name, WEXITSTATUS(tool->status), words);
}

/* Keeps the newest words: whole lines go at the front. */
static void add_to_tail(struct tool *tool, const char *line)
{
    size_t len = strnlen(line, LINE_MAX_BYTES), used = strlen(tool->tail);
    while (used && used + len + 3 > sizeof tool->tail) {
        const char *next = strstr(tool->tail, "; ");
        size_t cut = next ? (size_t)(next - tool->tail) + 2 : used;
        memmove(tool->tail, tool->tail + cut, used - cut + 1);
        used -= cut;
    }
    snprintf(tool->tail + used, sizeof tool->tail - used, "%s%.*s", used ? "; " : "", (int)len, line);
}

static void take_line(struct tool *tool, char *line, size_t *len, bool is_err)
{
    line[*len] = 0;
    *len = 0;
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < 0x20)
            *at = ' ';
    if (is_err && line[0])
        add_to_tail(tool, line);
    if (tool->on_line)
        tool->on_line(tool->context, line);
}

/* Reads once; at the end of the stream closes it. */
static void read_lines(struct tool *tool, int *fd, char line[1024], size_t *len, bool is_err)
{
    char bytes[4096];
    ssize_t n = fd_read(*fd, bytes, sizeof bytes);
    if (n <= 0) {
        if (*len)
            take_line(tool, line, len, is_err);
        close(*fd);
        *fd = -1;
        return;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] == '\n' || bytes[i] == '\r')
            take_line(tool, line, len, is_err);
        else if (*len < 1023)
            line[(*len)++] = bytes[i];
    }
}

/* Reaps one that has ended. True when it is the first of the group to fail. */
static bool note_end(struct tool *tools, size_t len, struct tool *ended)
{
    struct err lost = ERR_INIT;
    if (jail_wait(&ended->child, &ended->status, &lost))
        ended->status = 0xff00; /* someone else reaped it: count it as failed */
    ended->ended = true;
    unsigned failures = 0;
    for (size_t i = 0; i < len; i++)
        failures += tool_failed(&tools[i]);
    if (tool_failed(ended))
        ended->order = failures;
    return ended->order == 1;
}

/* The others are of no use any more: they are asked to end, and after a while made to. */
static void end_others(struct tool *tools, size_t len, int number)
{
    for (size_t i = 0; i < len; i++)
        if (!tools[i].ended)
            kill(tools[i].child.pid, number);
}

struct watched {
    struct pollfd fds[3 * TOOLS_MAX];
    struct tool *owner[3 * TOOLS_MAX];
    int kind[3 * TOOLS_MAX]; /* 0: its end, 1: stdout, 2: stderr */
    nfds_t len;
};

static void watch(struct watched *w, struct tool *tool, int fd, int kind)
{
    if (fd < 0)
        return;
    w->owner[w->len] = tool;
    w->kind[w->len] = kind;
    w->fds[w->len++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void handle(struct tool *tools, size_t len, struct tool *tool, int kind, uint64_t *failed_ms)
{
    if (kind == 0) {
        if (note_end(tools, len, tool)) {
            *failed_ms = clock_now_ms();
            end_others(tools, len, SIGTERM); /* apt and mmdebstrap clean up */
        }
    } else if (kind == 1)
        read_lines(tool, &tool->out_fd, tool->out_line, &tool->out_len, false);
    else
        read_lines(tool, &tool->err_fd, tool->err_line, &tool->err_len, true);
}

int tools_wait(struct tool *tools, size_t len, const struct image_progress *progress, struct err *e)
{
    CHECK(len <= TOOLS_MAX);
    uint64_t failed_ms = 0;
    for (;;) {
        struct watched w = {.len = 0};
        bool running = false;
        for (size_t i = 0; i < len; i++) {
            watch(&w, &tools[i], tools[i].ended ? -1 : tools[i].child.pidfd, 0);
            watch(&w, &tools[i], tools[i].out_fd, 1);
            watch(&w, &tools[i], tools[i].err_fd, 2);
            running = running || !tools[i].ended;
        }
        if (progress_cancelled(progress))
            return err_set(e, ERR_INTERRUPTED, "interrupted");
        /* once all have ended only what is in the pipes counts: a stray holder must not keep us */
        int n = poll(w.fds, w.len, running ? 1000 : 0);
        if (n < 0 && errno != EINTR)
            return err_sys(e, errno, "wait for %s", tools[0].name);
        if (n == 0 && !running)
            return 0;
        for (nfds_t i = 0; n > 0 && i < w.len; i++)
            if (w.fds[i].revents)
                handle(tools, len, w.owner[i], w.kind[i], &failed_ms);
        if (failed_ms && clock_now_ms() - failed_ms > TOOL_END_MS)
            end_others(tools, len, SIGKILL);
        if (!running && w.len == 0)
            return 0;
    }
}

static void keep_line(void *context, const char *line)
{
    struct strv *lines = context;
    if (lines->len < LINES_MAX)
        strv_add(lines, line);
}

int tool_run(const char *name, const char *program, const char *const *argv, const char *folder, enum tool_rights rights,
             const struct image_progress *progress, struct strv *ret_lines, struct err *e)
{
    struct tool tool;
    struct tool_start start = {.name = name,
                               .program = program,
                               .argv = (char *const *)argv,
                               .folder = folder,
                               .rights = rights,
                               .in_fd = -1,
                               .out_fd = -1,
                               .image_fd = -1,
                               .on_line = ret_lines ? keep_line : NULL,
                               .context = ret_lines};
    int failed = tool_start(&tool, &start, e) || tools_wait(&tool, 1, progress, e);
    if (!failed && tool_failed(&tool))
        failed = tool_error(&tool, ERR_IMAGE_PREPARE, e);
    tool_done(&tool);
    return failed ? -1 : 0;
}
