/* SPDX-License-Identifier: Apache-2.0 */
#include "base/path.h"

#include "base/alloc.h"
#include "base/cleanup.h"

#include <limits.h>
#include <string.h>

static const char *env_absolute(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] == '/' ? value : NULL;
}

char *path_data_dir(struct err *e)
{
    const char *set = getenv("III_SANDBOX_DATA_DIR");
    if (set && *set && *set != '/') {
        err_set(e, ERR_ENVIRONMENT, "III_SANDBOX_DATA_DIR='%s' is not an absolute path", set);
        return NULL;
    }
    if (set && *set)
        return xstrdup(set);
    if (geteuid() == 0)
        return xstrdup("/var/lib/iii-sandbox");
    const char *data = env_absolute("XDG_DATA_HOME");
    if (data)
        return xasprintf("%s/iii-sandbox", data);
    const char *home = env_absolute("HOME");
    if (home)
        return xasprintf("%s/.local/share/iii-sandbox", home);
    err_set(e, ERR_ENVIRONMENT, "no folder for images: set HOME, XDG_DATA_HOME or III_SANDBOX_DATA_DIR to an absolute path");
    return NULL;
}

char *path_scratch_dir(struct err *e)
{
    auto_free char *data = path_data_dir(e);
    return data ? xasprintf("%s/scratch", data) : NULL;
}

char *path_program(const char *name, struct err *e)
{
    char self[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len < 0) {
        err_sys(e, errno, "read /proc/self/exe");
        return NULL;
    }
    self[len] = 0;
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = 0;
    auto_free char *beside = xasprintf("%s/%s", self, name);
    if (access(beside, X_OK) == 0)
        return STEAL_PTR(beside);
    auto_free char *installed = xasprintf("%s/../libexec/iii-sandbox/%s", self, name);
    if (access(installed, X_OK) == 0)
        return STEAL_PTR(installed);
    err_set(e, ERR_ENVIRONMENT, "the program %s is neither %s nor %s: build or install it", name, beside, installed);
    return NULL;
}

char *path_find_in_path(const char *name, struct err *e)
{
    const char *path = getenv("PATH");
    auto_free char *list = xstrdup(path && *path ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    char *rest = list;
    for (char *dir; (dir = strsep(&rest, ":"));) {
        auto_free char *candidate = xasprintf("%s/%s", *dir ? dir : ".", name);
        if (candidate[0] == '/' && access(candidate, X_OK) == 0)
            return STEAL_PTR(candidate);
    }
    err_set(e, ERR_ENVIRONMENT, "the program %s is not in PATH", name);
    return NULL;
}
