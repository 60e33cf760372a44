/* SPDX-License-Identifier: Apache-2.0 */
/* One running request: a child process with its pipes or terminal, its control group, its deadline and its credit. */
#pragma once

#include "agent/link.h"

struct job;

/* Starts the child for an EXEC, TAR_IN or TAR_OUT. On failure nothing was started. */
int job_start(struct link *link, uint32_t stream, const struct wire_request *request, struct job **ret_job, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* DATA, EOF, CREDIT, CANCEL, SIGNAL or RESIZE of its stream. -1: ERR_PROTOCOL. */
int job_take_frame(struct job *job, const struct wire_frame *frame, struct err *e) __attribute__((nonnull, warn_unused_result));
void job_refresh(struct job *job) __attribute__((nonnull)); /* the queue to the port filled up or drained */
void job_signal(struct job *job, int number) __attribute__((nonnull));
void job_free(struct job *job); /* kills what still runs */
