/* SPDX-License-Identifier: Apache-2.0 */
#include "image/make.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/path.h"
#include "base/text.h"
#include "image/debian.h"
#include "image/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

struct job {
    const struct image_progress *progress;
    const char *stage;
    uint64_t input, total;
};

/* {"input":BYTES} of the image program, words of the other one. */
static void on_image_line(void *context, const char *line)
{
    struct job *job = context;
    static const char key[] = "{\"input\":";
    if (!text_has_prefix(line, key))
        return;
    size_t digits = strspn(line + sizeof key - 1, "0123456789");
    auto_free char *number = xstrndup(line + sizeof key - 1, digits);
    struct err ignored = ERR_INIT;
    if (text_parse_u64(number, UINT64_MAX, &job->input, &ignored))
        return;
    progress_stage(job->progress, "writing the image", job->input, job->total);
}

static void on_source_line(void *context, const char *line)
{
    struct job *job = context;
    const char *stage = debian_stage(line);
    if (stage)
        progress_stage(job->progress, stage, 0, 0);
}

/* The image program says "ERR_NAME text". */
static int image_error(const struct tool *tool, struct err *e)
{
    const char *text = strchr(tool->tail, ' ');
    if (!text_has_prefix(tool->tail, "ERR_") || !text)
        return tool_error(tool, ERR_IMAGE_PREPARE, e);
    return err_set(e, ERR_IMAGE_PREPARE, "%s", text + 1);
}

/* The first that failed names the cause: what feeds a dead reader, or a reader of a cut stream, fails after it. */
static int chain_error(struct tool *tools, size_t len, struct err *e)
{
    for (size_t i = 0; i < len; i++) {
        if (!tool_failed(&tools[i]) || tools[i].order != 1)
            continue;
        return image_error(&tools[i], e);
    }
    return 0;
}

static int start_image_program(struct tool *tool, const char *mode, int in_fd, int image_fd, struct job *job, struct err *e)
{
    auto_free char *program = path_program("iii-sandbox-image", e);
    if (!program)
        return -1;
    const char *argv[] = {"iii-sandbox-image", mode, NULL};
    struct tool_start start = {.name = "iii-sandbox-image",
                               .program = program,
                               .argv = (char *const *)argv,
                               .rights = TOOL_UNTRUSTED,
                               .in_fd = in_fd,
                               .out_fd = -1,
                               .image_fd = image_fd,
                               .on_line = on_image_line,
                               .context = job};
    return tool_start(tool, &start, e);
}

static int make_from_tar(const char *path, int image_fd, struct job *job, struct err *e)
{
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat s;
    if (fd < 0 || fstat(fd, &s))
        return err_sys_code(e, ERR_IMAGE_PREPARE, errno, "open '%s'", path);
    job->total = S_ISREG(s.st_mode) ? (uint64_t)s.st_size : 0;
    struct tool tool = {.out_fd = -1, .err_fd = -1, .child = {.pidfd = -1}};
    int failed = start_image_program(&tool, "tar-compressed", fd, image_fd, job, e) || tools_wait(&tool, 1, job->progress, e) ||
                 chain_error(&tool, 1, e);
    tool_done(&tool);
    return failed ? -1 : 0;
}

/* feeder | image program */
static int make_from_feeder(const struct tool_start *feeder, int image_fd, struct job *job, struct err *e)
{
    struct tool tools[2] = {{.out_fd = -1, .err_fd = -1, .child = {.pidfd = -1}},
                            {.out_fd = -1, .err_fd = -1, .child = {.pidfd = -1}}};
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return err_sys(e, errno, "make a pipe");
    auto_close read_fd = fds[0];
    auto_close write_fd = fds[1];
    struct tool_start start = *feeder;
    start.out_fd = write_fd;
    int failed = start_image_program(&tools[1], "tar", read_fd, image_fd, job, e) || tool_start(&tools[0], &start, e);
    close(STEAL_FD(read_fd));
    close(STEAL_FD(write_fd));
    failed = failed || tools_wait(tools, 2, job->progress, e) || chain_error(tools, 2, e);
    tool_done(&tools[0]);
    tool_done(&tools[1]);
    return failed ? -1 : 0;
}

/* A folder of the host: packed by a helper that is locked into it, with the rights of whoever asks. */
static int make_from_folder(const char *path, int image_fd, struct job *job, struct err *e)
{
    auto_close fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_free char *program = path_program("iii-sandbox-image", e);
    if (!program)
        return -1;
    if (fd < 0)
        return err_sys_code(e, ERR_IMAGE_PREPARE, errno, "open '%s'", path);
    const char *argv[] = {"iii-sandbox-image", "pack-image", NULL};
    struct tool_start feeder = {.name = "iii-sandbox-image pack-image",
                                .program = program,
                                .argv = (char *const *)argv,
                                .rights = TOOL_READER,
                                .in_fd = -1,
                                .image_fd = fd};
    return make_from_feeder(&feeder, image_fd, job, e);
}

static int make_from_debian(struct store *store, const char *thing, const char *source, int image_fd, struct job *job,
                            struct err *e)
{
    auto_free char *work = store_scratch_folder(store, thing, e);
    if (!work)
        return -1;
    auto_strv argv = {0};
    int failed = debian_arguments(source, work, job->progress, &argv, e);
    if (!failed) {
        struct tool_start feeder = {.name = "mmdebstrap",
                                    .program = argv.items[0],
                                    .argv = argv.items,
                                    .folder = work,
                                    .rights = TOOL_PACKAGES,
                                    .in_fd = -1,
                                    .image_fd = -1,
                                    .on_line = on_source_line,
                                    .context = job};
        failed = make_from_feeder(&feeder, image_fd, job, e);
    }
    store_discard(store, work);
    return failed;
}

int make_image(struct store *store, const char *thing, const char *source, int image_fd, const struct image_progress *progress,
               struct err *e)
{
    struct job job = {.progress = progress};
    if (text_has_prefix(source, "tar:"))
        return make_from_tar(source + 4, image_fd, &job, e);
    if (text_has_prefix(source, "debian:"))
        return make_from_debian(store, thing, source + 7, image_fd, &job, e);
    if (text_has_prefix(source, "dir:"))
        return make_from_folder(source + 4, image_fd, &job, e);
    return err_set(e, ERR_IMAGE_REFUSED, "'%s' is not a source of images", source);
}
