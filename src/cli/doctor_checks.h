/* SPDX-License-Identifier: Apache-2.0 */
/* The needs that `doctor` looks at. */
#pragma once

#include "base/err.h"

enum doctor_verdict { DOCTOR_OK, DOCTOR_DEGRADED, DOCTOR_MISSING, DOCTOR_VERDICT_COUNT };

struct doctor_finding {
    enum doctor_verdict verdict;
    char detail[512]; /* what was found; for a verdict other than ok also why */
    char remedy[512]; /* the command that mends it, or what to do; "" when nothing can be done */
};

struct doctor_check {
    const char *name; /* NULL ends the table */
    void (*look)(struct doctor_finding *ret_finding);
    int (*mend)(struct err *e); /* NULL: not without asking. Must not install or lose anything */
};

extern const struct doctor_check doctor_checks[];
