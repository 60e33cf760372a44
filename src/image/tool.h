/* SPDX-License-Identifier: Apache-2.0 */
/* Host tools and the image program as children: started in their jail, their words read line by line, waited for together
 * while progress and cancellation go on. Blocking. */
#pragma once

#include "image/image.h"
#include "jail/jail.h"

#define TOOL_TAIL_BYTES 800

enum tool_rights {
    TOOL_ISOLATED,  /* our caller's ids, own namespaces, no network, no capability */
    TOOL_PACKAGES,  /* apt and mmdebstrap: the caller's rights and network, own namespaces */
    TOOL_READER,    /* the image program reading a folder of the host: the caller's ids, rights over files, no network */
    TOOL_UNTRUSTED, /* meets bytes from anywhere: nobody's ids, nothing else; locks itself down */
};

struct tool {
    const char *name;
    struct jail_child child;
    int out_fd, err_fd; /* our read ends; -1: none or at their end */
    void (*on_line)(void *context, const char *line);
    void *context;
    char out_line[1024], err_line[1024];
    size_t out_len, err_len;
    char tail[TOOL_TAIL_BYTES]; /* the last lines of stderr, "; " between them */
    bool ended;
    int status;
    unsigned order; /* 1: the first of the group that ended in failure */
};

/* Descriptors for the child: in_fd and out_fd may be -1 (nothing; our pipe, read line by line). image_fd: descriptor 3. */
struct tool_start {
    const char *name, *program;
    char *const *argv;
    const char *folder; /* working folder and TMPDIR */
    enum tool_rights rights;
    int in_fd, out_fd, image_fd;
    void (*on_line)(void *context, const char *line); /* each line of both outputs */
    void *context;
};

/* For a normal user: puts util-linux's unshare in front, so that what follows is root over the user's range of ids
 * (/etc/subuid) in namespaces of its own, all of which end with us. Nothing for root. */
int tool_enter_range(struct strv *argv, struct err *e) __attribute__((nonnull, warn_unused_result));
int tool_start(struct tool *tool, const struct tool_start *start, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Waits until all have ended. When one fails, the others are killed. 0 also when they failed: look at status. */
int tools_wait(struct tool *tools, size_t len, const struct image_progress *progress, struct err *e)
    __attribute__((nonnull(1, 4), warn_unused_result));
void tool_done(struct tool *tool) __attribute__((nonnull)); /* kills what still runs */
bool tool_failed(const struct tool *tool) __attribute__((nonnull));
/* Sets "NAME failed (exit status 1): last lines". */
int tool_error(const struct tool *tool, enum err_code code, struct err *e) __attribute__((nonnull));

/* One tool from start to end. ret_output (may be NULL) gets its stdout, a list of lines; without it stdout counts as words
 * for the message. ERR_IMAGE_PREPARE when it fails. */
int tool_run(const char *name, const char *program, const char *const *argv, const char *folder, enum tool_rights rights,
             const struct image_progress *progress, struct strv *ret_lines, struct err *e)
    __attribute__((nonnull(1, 2, 3, 8), warn_unused_result));
