/* SPDX-License-Identifier: Apache-2.0 */
/* Small, fixed-size allocations: they abort the process when memory is gone. Anything whose size a peer chooses is checked
 * against limits.h first and uses malloc with an error, never these. The caller owns what is returned and calls free. */
#pragma once

#include <stdarg.h>
#include <stddef.h>

void *xmalloc(size_t size) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *xcalloc(size_t count, size_t size) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *xrealloc(void *old, size_t size) __attribute__((returns_nonnull, warn_unused_result));
char *xstrdup(const char *text) __attribute__((malloc, returns_nonnull, nonnull, warn_unused_result));
char *xstrndup(const char *text, size_t len_max) __attribute__((malloc, returns_nonnull, nonnull, warn_unused_result));
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2), malloc, returns_nonnull, warn_unused_result));

/* A NULL-terminated list of strings that owns its items (argv, env). Zero-initialise; `items` is always usable by exec
 * once something was added. */
struct strv {
    char **items;
    size_t len;
};

void strv_add(struct strv *list, const char *text) __attribute__((nonnull));
void strv_addf(struct strv *list, const char *format, ...) __attribute__((format(printf, 2, 3)));
void strv_take(struct strv *list, char *text) __attribute__((nonnull)); /* takes ownership of text */
void strv_done(struct strv *list);

#define auto_strv __attribute__((cleanup(strv_done), unused)) struct strv
