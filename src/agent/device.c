/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/device.h"

#include "base/cleanup.h"
#include "base/clock.h"

#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>

bool device_wait(bool (*is_there)(void *argument), void *argument, unsigned wait_ms)
{
    /* listening begins before the first look, so no announcement is missed */
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = 1};
    auto_close fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
    bool listens = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    uint64_t end_ms = clock_now_ms() + wait_ms;
    for (;;) {
        if (is_there(argument))
            return true;
        uint64_t now_ms = clock_now_ms();
        if (now_ms >= end_ms)
            return false;
        int left_ms = (int)(end_ms - now_ms);
        if (!listens && left_ms > 5) /* a kernel without announcements */
            left_ms = 5;
        struct pollfd poller = {.fd = listens ? fd : -1, .events = POLLIN};
        char event[4096];
        if (poll(&poller, 1, left_ms) > 0)
            while (recv(fd, event, sizeof event, 0) > 0)
                continue;
    }
}
