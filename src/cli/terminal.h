/* SPDX-License-Identifier: Apache-2.0 */
/* The user's terminal: raw mode that is undone at every way out, its size, and the one-line progress display. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Raw mode on fd until terminal_restore (also run at exit). ERR_SYSTEM when fd is no terminal. */
int terminal_raw(int fd, struct err *e) __attribute__((nonnull, warn_unused_result));
void terminal_restore(void); /* safe at any time */
/* The size of the terminal fd; 24 x 80 when it has none. */
void terminal_size(int fd, unsigned *ret_rows, unsigned *ret_columns) __attribute__((nonnull));

/* Progress on standard error, only when that is a terminal. A new stage replaces the line; terminal_progress_end clears it.
 * The signature is that of struct image_progress. */
void terminal_progress(void *context, const char *stage, uint64_t done, uint64_t total);
void terminal_progress_end(void);
