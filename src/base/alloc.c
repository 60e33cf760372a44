/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *xmalloc(size_t size)
{
    void *memory = malloc(size ? size : 1);
    CHECK(memory);
    return memory;
}

void *xcalloc(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size ? size : 1);
    CHECK(memory);
    return memory;
}

void *xrealloc(void *old, size_t size)
{
    void *memory = realloc(old, size ? size : 1);
    CHECK(memory);
    return memory;
}

char *xstrdup(const char *text)
{
    char *copy = strdup(text);
    CHECK(copy);
    return copy;
}

char *xstrndup(const char *text, size_t len_max)
{
    char *copy = strndup(text, len_max);
    CHECK(copy);
    return copy;
}

static char *xvasprintf(const char *format, va_list args) __attribute__((format(printf, 1, 0)));
static char *xvasprintf(const char *format, va_list args)
{
    char *text = NULL;
    CHECK(vasprintf(&text, format, args) >= 0);
    return text;
}

char *xasprintf(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = xvasprintf(format, args);
    va_end(args);
    return text;
}

void strv_take(struct strv *list, char *text)
{
    list->items = xrealloc(list->items, (list->len + 2) * sizeof *list->items);
    list->items[list->len++] = text;
    list->items[list->len] = NULL;
}

void strv_add(struct strv *list, const char *text)
{
    strv_take(list, xstrdup(text));
}

void strv_addf(struct strv *list, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    strv_take(list, xvasprintf(format, args));
    va_end(args);
}

void strv_done(struct strv *list)
{
    if (!list)
        return;
    for (size_t i = 0; i < list->len; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct strv){0};
}
