/* SPDX-License-Identifier: Apache-2.0 */
/* What a program finds when it starts: the variables it lacks, and the place of its file. */
#pragma once

#include "agent/users.h"
#include "base/alloc.h"

#include <stdbool.h>

#define ENVIRONMENT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const char *environment_get(const struct strv *env, const char *name) __attribute__((nonnull));
/* Adds PATH, HOME, USER, LOGNAME, SHELL and, with a terminal, TERM where they are absent. */
void environment_complete(struct strv *env, const struct user *user, bool tty) __attribute__((nonnull));
/* Runs argv[0] by the PATH in env as execvpe would, and returns only on failure: the errno that says why (ENOENT: not found;
 * EACCES only when nothing else was found). */
int environment_exec(char *const argv[], const struct strv *env) __attribute__((nonnull));
/* The exit code of a shell for such an errno (127, 126) and the line for standard error. Caller frees *ret_text. */
int environment_exec_failure(int exec_errno, char *const argv[], const struct strv *env, char **ret_text)
    __attribute__((nonnull, warn_unused_result));
