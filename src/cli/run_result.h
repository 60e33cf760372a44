/* SPDX-License-Identifier: Apache-2.0 */
/* What `run --json` prints: the command's end and output as one JSON object on one line.
 *
 * {"exit_code":0,"signal":0,"timed_out":false,"oom_killed":false,"duration_ms":12,"ready_ms":1900,
 *  "stdout":"..","stderr":"..","stdout_bytes":2,"stderr_bytes":0,"stdout_truncated":false,"stderr_truncated":false}
 * Output that is not UTF-8 comes as "stdout_b64" or "stderr_b64" with an empty "stdout" or "stderr". A run that failed has
 * "error":
 * {"code":"S300","type":"platform","message":"..","retryable":false} and an exit_code of null. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "wire/message.h"

#include <stdbool.h>
#include <stdint.h>

/* The kept beginning of one stream, at most RESULT_OUTPUT_MAX bytes, and how much there was. */
struct captured {
    struct buf kept;
    uint64_t bytes;
};

void captured_add(struct captured *stream, const uint8_t *bytes, size_t len) __attribute__((nonnull(1)));

struct run_result {
    const struct wire_exit *end; /* NULL when the command did not come to an end */
    const struct err *failure;   /* NULL when nothing failed */
    const struct captured *out, *err;
    uint64_t ready_ms;
};

/* Prints to standard output; ERR_SYSTEM when that fails. */
int run_result_print(const struct run_result *result, struct err *e) __attribute__((nonnull, warn_unused_result));
