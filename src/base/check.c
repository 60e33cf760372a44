/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

noreturn void check_failed(const char *expression, const char *file, int line)
{
    char text[512];
    int len = snprintf(text, sizeof text, "%s:%d: check failed: %s\n", file, line, expression);
    if (len > 0 && write(2, text, (size_t)len < sizeof text ? (size_t)len : sizeof text - 1) < 0)
        abort();
    abort();
}
