/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/environment.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STRING_BYTES_MAX (32 * 4096) /* MAX_ARG_STRLEN of the kernel, with the NUL */

const char *environment_get(const struct strv *env, const char *name)
{
    size_t len = strlen(name);
    for (char *const *item = env->items; item && *item; item++)
        if (strncmp(*item, name, len) == 0 && (*item)[len] == '=')
            return *item + len + 1;
    return NULL;
}

static void add_absent(struct strv *env, const char *name, const char *value)
{
    if (!environment_get(env, name))
        strv_addf(env, "%s=%s", name, value);
}

void environment_complete(struct strv *env, const struct user *user, bool tty)
{
    add_absent(env, "PATH", ENVIRONMENT_PATH);
    add_absent(env, "HOME", user->home);
    add_absent(env, "USER", user->name);
    add_absent(env, "LOGNAME", user->name);
    add_absent(env, "SHELL", user->shell);
    if (tty)
        add_absent(env, "TERM", "xterm");
}

int environment_exec(char *const argv[], const struct strv *env)
{
    static char *no_env[] = {NULL};
    char *const *envp = env->items ? env->items : no_env;
    if (!*argv[0])
        return ENOENT;
    if (strchr(argv[0], '/')) {
        execve(argv[0], argv, envp);
        return errno;
    }
    const char *path = environment_get(env, "PATH");
    int result = ENOENT;
    for (const char *at = path ? path : ENVIRONMENT_PATH;; at++) {
        size_t len = strcspn(at, ":");
        char file[PATH_MAX];
        int printed =
            len ? snprintf(file, sizeof file, "%.*s/%s", (int)len, at, argv[0]) : snprintf(file, sizeof file, "./%s", argv[0]);
        if (len < sizeof file && printed > 0 && (size_t)printed < sizeof file) {
            execve(file, argv, envp);
            if (errno == EACCES)
                result = EACCES;
            else if (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG && errno != ELOOP)
                return errno;
            else if (errno == ENOENT && access(file, F_OK) == 0) /* the file is there: its interpreter is not */
                return ENOEXEC;
        }
        at += len;
        if (!*at)
            return result;
    }
}

static bool has_long_string(char *const *list)
{
    for (; list && *list; list++)
        if (strlen(*list) >= STRING_BYTES_MAX)
            return true;
    return false;
}

int environment_exec_failure(int exec_errno, char *const argv[], const struct strv *env, char **ret_text)
{
    const char *name = argv[0];
    switch (exec_errno) {
    case ENOENT:
        if (strchr(name, '/') && access(name, F_OK) == 0) {
            *ret_text = xasprintf("exec: %s: its interpreter was not found\n", name);
            return 127;
        }
        __attribute__((fallthrough));
    case ENOTDIR:
    case ENAMETOOLONG:
        *ret_text = xasprintf("exec: %s: not found\n", name);
        return 127;
    case EACCES:
        *ret_text = xasprintf("exec: %s: permission denied\n", name);
        return 126;
    case ENOEXEC:
        *ret_text = xasprintf("exec: %s: not a program (no interpreter line, or one that is not there)\n", name);
        return 126;
    case E2BIG:
        *ret_text = has_long_string(argv) || has_long_string(env->items)
                        ? xasprintf("exec: %s: one argument or variable is over 128 KiB, more than Linux passes\n", name)
                        : xasprintf("exec: %s: arguments and environment together are too long\n", name);
        return 126;
    default:
        *ret_text = xasprintf("exec: %s: %s\n", name, strerror(exec_errno));
        return 126;
    }
}
