/* SPDX-License-Identifier: Apache-2.0 */
/* The URLs of engines and collectors: scheme://host[:port][/path]. No user part, no query. Pure. */
#pragma once

#include "base/err.h"

#include <stdint.h>

struct url {
    char scheme[8]; /* lower case: ws, wss, http, https */
    char host[256]; /* IPv6 without its brackets */
    uint16_t port;  /* the scheme's own when the text has none */
    char path[256]; /* "/" when the text has none; no slash at its end otherwise */
};

int url_parse(const char *text, struct url *ret_url, struct err *e) __attribute__((nonnull, warn_unused_result));
