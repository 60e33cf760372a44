/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share: the child's side of jail_spawn and the dropping of capabilities. */
#pragma once

#include "jail/jail.h"

#include <stdbool.h>
#include <stdint.h>

/* The steps of the child, in their order. Their names are in jail.c. */
enum jail_stage {
    JAIL_STAGE_NONE, /* a report without failure: only `missing` counts */
    JAIL_STAGE_SIGNALS,
    JAIL_STAGE_USER_NAMESPACE,
    JAIL_STAGE_MOUNTS,
    JAIL_STAGE_DESCRIPTORS,
    JAIL_STAGE_LIMITS,
    JAIL_STAGE_BOUNDS,
    JAIL_STAGE_IDS,
    JAIL_STAGE_CAPABILITIES,
    JAIL_STAGE_NO_NEW_PRIVS,
    JAIL_STAGE_PARENT,
    JAIL_STAGE_SESSION,
    JAIL_STAGE_FOLDER,
    JAIL_STAGE_EXEC,
    JAIL_STAGE_COUNT
};

/* What the child writes into the pipe: at most one with missing layers and one with a failure; a good exec just closes it. */
struct jail_report {
    uint32_t stage, missing;
    int32_t error;
};

/* Everything the child needs, made before the clone: the child allocates nothing. */
struct jail_plan {
    const struct jail_spec *spec;
    uint64_t namespaces; /* CLONE_NEW* that this child was made with */
    unsigned missing;
    uid_t uid; /* of the caller, before the clone */
    gid_t gid;
    int report_fd, report_read_fd;
    int program_fd; /* O_PATH */
};

_Noreturn void jail_child_run(struct jail_plan *plan);

/* Empties the bounding set and locks the rule that makes uid 0 powerful, where this process may. keep_sys_admin: see below. */
int jail_caps_bound(bool keep_sys_admin);
/* Empties all the other sets; with keep_sys_admin CAP_SYS_ADMIN stays in them, so that it survives the exec. 0 or -1, errno. */
int jail_caps_drop(bool keep_sys_admin);
/* Leaves CAP_DAC_OVERRIDE and CAP_FOWNER where they are held, and nothing else. 0 or -1, errno. */
int jail_caps_keep_files(void);
bool jail_caps_has(unsigned capability);
/* Maps one id of this new user namespace to the caller's id outside. 0, or -1 with errno. */
int jail_write_maps(uid_t inside_uid, uid_t uid, gid_t inside_gid, gid_t gid);
