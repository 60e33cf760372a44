/* SPDX-License-Identifier: Apache-2.0 */
/* agent/users.h: three texts, each up to a NUL byte: the user that is asked for, passwd, group. */
#include "fuzz.h"

#include "agent/users.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char *text = calloc(1, len + 3); /* three texts are always there */
    CHECK(text);
    memcpy(text, bytes, len);
    const char *passwd = text + strlen(text) + 1;
    const char *group = passwd + strlen(passwd) + 1;
    struct user user;
    struct err e = ERR_INIT;
    if (users_resolve(text, passwd, group, &user, &e) == 0) {
        CHECK(user.name && user.home && user.shell && user.group_count <= AGENT_GROUPS_MAX);
        CHECK(user.uid != (uid_t)-1 && user.gid != (gid_t)-1);
        user_done(&user);
    } else {
        CHECK(e.code == ERR_INVALID);
    }
    free(text);
    return 0;
}
