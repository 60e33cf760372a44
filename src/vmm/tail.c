/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/tail.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for len more bytes. A quarter more than needed goes, so that this is rare. */
static void make_room(struct tail *t, size_t len)
{
    if (t->len + len <= t->len_max)
        return;
    size_t cut = t->len + len - t->len_max + t->len_max / 4;
    if (cut > t->len)
        cut = t->len;
    const char *end = memchr(t->text + cut, '\n', t->len - cut);
    if (end)
        cut = (size_t)(end + 1 - t->text);
    memmove(t->text, t->text + cut, t->len - cut);
    t->len -= cut;
}

void tail_append(struct tail *t, const char *bytes, size_t len)
{
    if (len == 0)
        return;
    if (!t->text)
        t->text = xmalloc(t->len_max + 1);
    if (len > t->len_max) {
        bytes += len - t->len_max;
        len = t->len_max;
    }
    make_room(t, len);
    for (size_t i = 0; i < len; i++)
        t->text[t->len++] = (char)(bytes[i] ? bytes[i] : '?');
    t->text[t->len] = 0;
}

const char *tail_text(const struct tail *t)
{
    return t->text ? t->text : "";
}

int tail_find_line(const struct tail *t, const char *part, char *line, size_t line_size)
{
    const char *found = NULL;
    for (const char *at = tail_text(t); (at = strstr(at, part)); at += strlen(part))
        found = at;
    if (!found)
        return -1;
    snprintf(line, line_size, "%.*s", (int)strcspn(found, "\r\n"), found);
    return 0;
}

void tail_done(struct tail *t)
{
    if (!t)
        return;
    free(t->text);
    *t = TAIL_INIT(t->len_max);
}
