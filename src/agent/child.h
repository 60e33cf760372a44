/* SPDX-License-Identifier: Apache-2.0 */
/* The child's side of a request: from the fork to execve, or to the end of a tar worker. Nothing here returns to the loop.
 * A failure before the program runs is one record on the status pipe, which the parent reads when the child has ended; a
 * program that cannot be executed is the program's failure: its line on standard error and 126 or 127. */
#pragma once

#include "base/limits.h"
#include "wire/message.h"

#include <stdbool.h>
#include <stdnoreturn.h>

struct child_failure {
    uint32_t code; /* as in struct wire_failure */
    int32_t sys_errno;
    char text[AGENT_FAILURE_TEXT_MAX];
};

struct child_setup {
    const struct wire_request *request;
    int stdio[3]; /* what becomes 0, 1, 2; with a terminal all are its slave */
    int status_fd;
    int leaf_dirfd; /* the control group still to be entered, -1: there already, or none */
    bool tty;
};

noreturn void child_main(struct child_setup *setup) __attribute__((nonnull));
