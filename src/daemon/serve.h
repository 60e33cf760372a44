/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon with an embedded engine. */
#pragma once

#include "base/err.h"
#include "daemon/config.h"

#include <stdint.h>

/* Serves until it is told to stop (stop.h). on_ready is called once, with the address that clients use. */
int serve_run(const struct config *config, void (*on_ready)(const char *host, uint16_t port), struct err *e)
    __attribute__((nonnull, warn_unused_result));
