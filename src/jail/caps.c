/* SPDX-License-Identifier: Apache-2.0 */
#include "jail/internal.h"

#include <cap-ng.h>
#include <errno.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <unistd.h>

/* libcap-ng remembers the process it was first used in; a child made by a bare clone has to say that it is another one. */
static void start_over(void)
{
    capng_setpid(getpid());
    capng_clear(CAPNG_SELECT_ALL);
}

bool jail_caps_has(unsigned capability)
{
    capng_setpid(getpid());
    return capng_get_caps_process() == 0 && capng_have_capability(CAPNG_EFFECTIVE, capability);
}

int jail_caps_bound(bool keep_sys_admin)
{
    /* Without CAP_SETPCAP neither is possible nor needed: there is no capability to be kept from. */
    if (!jail_caps_has(CAP_SETPCAP))
        return 0;
    unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED;
    if (!keep_sys_admin)
        bits |= SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
    if (prctl(PR_SET_SECUREBITS, bits, 0, 0, 0))
        return -1;
    if (keep_sys_admin &&
        capng_have_capability(CAPNG_PERMITTED,
                              CAP_SYS_ADMIN)) { /* it can enter the inheritable set only while the bounding set has it */
        if (capng_update(CAPNG_ADD, CAPNG_INHERITABLE, CAP_SYS_ADMIN) || capng_apply(CAPNG_SELECT_CAPS))
            return -1;
    }
    start_over();
    return capng_apply(CAPNG_SELECT_BOUNDS) ? -1 : 0;
}

int jail_caps_drop(bool keep_sys_admin)
{
    capng_setpid(getpid());
    bool keep = keep_sys_admin && capng_get_caps_process() == 0 && capng_have_capability(CAPNG_PERMITTED, CAP_SYS_ADMIN);
    start_over();
    int flags = CAPNG_EFFECTIVE | CAPNG_PERMITTED | CAPNG_INHERITABLE | CAPNG_AMBIENT;
    if (keep && capng_updatev(CAPNG_ADD, (capng_type_t)flags, CAP_SYS_ADMIN, -1))
        return -1;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) && errno != EINVAL)
        return -1;
    if (capng_apply(CAPNG_SELECT_CAPS))
        return -1;
    return keep ? prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0) : 0;
}

int jail_caps_keep_files(void)
{
    static const unsigned kept[] = {CAP_DAC_OVERRIDE, CAP_FOWNER};
    bool has[sizeof kept / sizeof *kept];
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        has[i] = jail_caps_has(kept[i]);
    start_over();
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (has[i] && capng_update(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED, kept[i]))
            return -1;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) && errno != EINVAL)
        return -1;
    return capng_apply(CAPNG_SELECT_CAPS) ? -1 : 0;
}
