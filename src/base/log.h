/* SPDX-License-Identifier: Apache-2.0 */
/* One line per event on descriptor 2. Library code logs at LOG_DEBUG only; the layer that drops an error logs it once and
 * ends the line with ", ignoring" when it goes on. Quiet (LOG_WARN) until log_set_level says otherwise. */
#pragma once

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_LEVEL_COUNT };

void log_set_level(enum log_level least);
void log_write(enum log_level level, const char *format, ...) __attribute__((nonnull, format(printf, 2, 3)));

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
