/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/limits.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const level_names[] = {"debug", "info", "warning", "error"};
static_assert(sizeof level_names / sizeof *level_names == LOG_LEVEL_COUNT, "one name per level");

static enum log_level least_level = LOG_WARN;

void log_set_level(enum log_level least)
{
    least_level = least;
}

void log_write(enum log_level level, const char *format, ...)
{
    if (level < least_level)
        return;
    int saved = errno;
    char line[LOG_LINE_MAX];
    int head = snprintf(line, sizeof line, "iii-sandbox: %s: ", level_names[level]);
    va_list args;
    va_start(args, format);
    if (vsnprintf(line + head, sizeof line - (size_t)head - 1, format, args) < 0)
        line[head] = 0;
    va_end(args);
    size_t len = strlen(line);
    line[len++] = '\n';
    /* One write, so that lines of several processes do not mix; nothing can be done about a failure. */
    if (write(2, line, len) < 0)
        errno = saved;
    errno = saved;
}
