/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the image writer: an image in a temporary file, looked at with e2fsck and debugfs. */
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct image_file {
    char path[64];
    int fd;
};

static inline struct image_file image_file_new(void)
{
    struct image_file f = {.path = "/tmp/imager-XXXXXX"};
    f.fd = mkstemp(f.path);
    return f;
}

static inline void image_file_done(struct image_file *f)
{
    close(f->fd);
    unlink(f->path);
}

/* Runs a program, its output into text (cut); returns its exit status, -1 when it did not exit. */
static inline int image_file_run(const char *const *argv, char *text, size_t text_bytes)
{
    int fds[2], status;
    if (pipe(fds))
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        close(fds[0]);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(fds[1]);
    size_t used = 0;
    char byte;
    while (read(fds[0], &byte, 1) == 1)
        if (used + 1 < text_bytes)
            text[used++] = byte;
    text[used] = 0;
    close(fds[0]);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* e2fsck -fn: 0 when it has nothing to say. */
static inline int image_file_check(struct image_file *f)
{
    char text[4096];
    const char *argv[] = {"/sbin/e2fsck", "-fn", f->path, NULL};
    int status = image_file_run(argv, text, sizeof text);
    if (status)
        fprintf(stderr, "%s", text);
    return status;
}

static inline void image_file_debugfs(struct image_file *f, const char *request, char *text, size_t text_bytes)
{
    const char *argv[] = {"/sbin/debugfs", "-R", request, f->path, NULL};
    image_file_run(argv, text, text_bytes);
}
