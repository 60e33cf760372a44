/* SPDX-License-Identifier: Apache-2.0 */
/* Users by the guest's own passwd and group files (passwd(5), group(5)); the C library's look-up cannot be used in a static
 * program. Pure: the texts of the files come in, malformed lines are skipped. */
#pragma once

#include "base/err.h"
#include "base/limits.h"

#include <stddef.h>
#include <sys/types.h>

struct user {
    uid_t uid;
    gid_t gid;
    gid_t groups[AGENT_GROUPS_MAX];
    size_t group_count;
    char *name, *home, *shell; /* name: the number as text without an entry; home: "/" and shell: "/bin/sh" then */
};

/* spec: NULL or "" is root; else name, uid, name:group, uid:gid. passwd and group may be NULL (no such file). A group given
 * by name means no supplementary groups. ERR_INVALID naming the user or group that is not there. */
int users_resolve(const char *spec, const char *passwd, const char *group, struct user *ret_user, struct err *e)
    __attribute__((nonnull(4, 5), warn_unused_result));
void user_done(struct user *user);
