/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/port.h"

#include "agent/device.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#define PORTS_DIR "/sys/class/virtio-ports"

static bool port_is_named(const char *entry, const char *name)
{
    char path[300], text[64];
    snprintf(path, sizeof path, PORTS_DIR "/%s/name", entry);
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : fd_read(fd, text, sizeof text - 1);
    if (len < 0)
        return false;
    text[len] = 0;
    text[strcspn(text, "\n")] = 0;
    return !strcmp(text, name);
}

struct port_path {
    char text[300];
};

static bool port_find(void *argument)
{
    struct port_path *path = argument;
    auto_dir dir = opendir(PORTS_DIR);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.' && port_is_named(entry->d_name, PORT_NAME)) {
            snprintf(path->text, sizeof path->text, "/dev/%.200s", entry->d_name);
            return access(path->text, F_OK) == 0;
        }
    return false;
}

int port_open(unsigned wait_ms, struct err *e)
{
    struct port_path path;
    if (!device_wait(port_find, &path, wait_ms))
        return err_set(e, ERR_BOOT, "no virtio port named '" PORT_NAME "' within %u ms", wait_ms);
    int fd = open(path.text, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, errno, "open '%s'", path.text);
    return fd;
}

static void on_alarm(int number)
{
    (void)number;
}

void port_write_last(int fd, const void *bytes, size_t len)
{
    /* A blocking write returns when the host has taken the bytes; the alarm ends it where nobody reads. */
    struct err e = ERR_INIT;
    struct sigaction action = {.sa_handler = on_alarm};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigaction(SIGALRM, &action, NULL);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    timer_t timer;
    struct itimerspec when = {.it_value = {.tv_sec = AGENT_LAST_WORDS_MS / 1000}, .it_interval = {.tv_sec = 1}};
    if (timer_create(CLOCK_MONOTONIC, NULL, &timer) || timer_settime(timer, 0, &when, NULL) || fd_set_nonblocking(fd, false, &e))
        return;
    const uint8_t *at = bytes;
    while (len) {
        ssize_t n = write(fd, at, len); /* EINTR ends it on purpose */
        if (n <= 0)
            break;
        at += n;
        len -= (size_t)n;
    }
    timer_delete(timer);
}
