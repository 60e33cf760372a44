/* SPDX-License-Identifier: Apache-2.0 */
/* The virtio-console port to the host, found by the name that the host gave it. */
#pragma once

#include "base/err.h"

#define PORT_NAME "agent"

/* Waits for the port at most wait_ms. Non-blocking, close-on-exec. A port has a single opener: EBUSY for a second. */
int port_open(unsigned wait_ms, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Last words before the machine ends: returns once the host has taken the bytes, at most AGENT_LAST_WORDS_MS later. */
void port_write_last(int fd, const void *bytes, size_t len);
