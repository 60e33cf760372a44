/* SPDX-License-Identifier: Apache-2.0 */
/* What all backends have in common; each puts this at the start of its own struct. */
#pragma once

#include "vmm/tail.h"
#include "vmm/vmm.h"

struct vm {
    const struct vmm_backend *backend;
    enum vm_state state;
    struct vm_events events;
    struct tail console;
    pid_t pid; /* as it was; not to be signalled once the state is ENDED */
    unsigned jail_missing;
};
