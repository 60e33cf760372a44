/* SPDX-License-Identifier: Apache-2.0 */
/* Scope guards. Initialise the variable where it is declared; hand ownership over with STEAL_FD or STEAL_PTR.
 * `unused` keeps clang quiet about a guard that is only destroyed. */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free(void *pointer)
{
    free(*(void **)pointer);
}

static inline void cleanup_close(const int *fd)
{
    int saved = errno;
    if (*fd >= 0)
        close(*fd);
    errno = saved;
}

static inline void cleanup_file(FILE **file)
{
    if (*file)
        fclose(*file);
}

static inline void cleanup_dir(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

static inline int steal_fd(int *fd)
{
    int value = *fd;
    *fd = -1;
    return value;
}

#define auto_free __attribute__((cleanup(cleanup_free), unused))
#define auto_close __attribute__((cleanup(cleanup_close), unused)) int
#define auto_file __attribute__((cleanup(cleanup_file), unused)) FILE *
#define auto_dir __attribute__((cleanup(cleanup_dir), unused)) DIR *

#define STEAL_FD(fd) steal_fd(&(fd))
#define STEAL_PTR(pointer)                                                                                                       \
    ({                                                                                                                           \
        __typeof__(pointer) stolen_ = (pointer);                                                                                 \
        (pointer) = NULL;                                                                                                        \
        stolen_;                                                                                                                 \
    })
