/* SPDX-License-Identifier: Apache-2.0 */
/* CHECK: programmer errors. A failed CHECK writes one line to descriptor 2 with write(2) alone (so that it works under a
 * seccomp filter) and aborts the process. Input from outside must never reach a CHECK; it gets a struct err. */
#pragma once

#include <stdnoreturn.h>

#define CHECK(expression) ((expression) ? (void)0 : check_failed(#expression, __FILE__, __LINE__))

noreturn void check_failed(const char *expression, const char *file, int line);
