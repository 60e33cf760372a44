/* SPDX-License-Identifier: Apache-2.0 */
/* Textual UUIDs: made from the kernel's random numbers (version 4), checked by shape. */
#pragma once

#include <stdbool.h>

struct uuid {
    char text[37];
};

struct uuid uuid_make(void);
bool uuid_is_valid(const char *text) __attribute__((nonnull));                         /* 8-4-4-4-12 hex digits, any version */
bool text_equals_constant_time(const char *a, const char *b) __attribute__((nonnull)); /* for secrets; lengths may leak */
