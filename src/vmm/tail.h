/* SPDX-License-Identifier: Apache-2.0 */
/* The last bytes of a stream that may never end, as text. */
#pragma once

#include <stddef.h>

struct tail {
    char *text; /* NULL until something came */
    size_t len, len_max;
};

#define TAIL_INIT(max) ((struct tail){.len_max = (max)})

/* Keeps at most len_max bytes, of which the oldest go first, at a line's start where there is one. NUL bytes become '?', so
 * that they cannot hide what follows. */
void tail_append(struct tail *t, const char *bytes, size_t len) __attribute__((nonnull));
const char *tail_text(const struct tail *t) __attribute__((nonnull)); /* terminated; "" when nothing came */
/* The last place where part occurs, up to its line's end, into line. Returns 0, or -1 when there is none. part: not empty. */
int tail_find_line(const struct tail *t, const char *part, char *line, size_t line_size) __attribute__((nonnull));
void tail_done(struct tail *t);
