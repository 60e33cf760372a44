/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/terminal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static int raw_fd = -1;
static struct termios before_raw;
static bool progress_shown;

int terminal_raw(int fd, struct err *e)
{
    if (tcgetattr(fd, &before_raw))
        return err_sys(e, errno, "read the terminal's settings");
    struct termios raw = before_raw;
    cfmakeraw(&raw);
    if (tcsetattr(fd, TCSADRAIN, &raw))
        return err_sys(e, errno, "set the terminal's settings");
    if (raw_fd < 0 && atexit(terminal_restore)) {
        tcsetattr(fd, TCSADRAIN, &before_raw);
        return err_set(e, ERR_NOMEM, "register the terminal's clean-up");
    }
    raw_fd = fd;
    return 0;
}

void terminal_restore(void)
{
    if (raw_fd >= 0)
        tcsetattr(raw_fd, TCSADRAIN, &before_raw);
    raw_fd = -1;
}

void terminal_size(int fd, unsigned *ret_rows, unsigned *ret_columns)
{
    struct winsize size;
    bool known = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col;
    *ret_rows = known ? size.ws_row : 24;
    *ret_columns = known ? size.ws_col : 80;
}

void terminal_progress(void *context, const char *stage, uint64_t done, uint64_t total)
{
    (void)context;
    if (!isatty(STDERR_FILENO))
        return;
    const double mib = 1024.0 * 1024.0;
    if (total)
        fprintf(stderr, "\r\033[K%s: %.1f of %.1f MiB", stage, (double)done / mib, (double)total / mib);
    else if (done)
        fprintf(stderr, "\r\033[K%s: %.1f MiB", stage, (double)done / mib);
    else
        fprintf(stderr, "\r\033[K%s", stage);
    progress_shown = true;
}

void terminal_progress_end(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}
