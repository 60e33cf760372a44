/* SPDX-License-Identifier: Apache-2.0 */
#include "image/modules.h"

#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"

#include <fts.h>
#include <string.h>

static const char *const WANTED[] = {"virtio_ring", "virtio",  "virtio_mmio", "virtio_blk",   "virtio_console", "crc32c_generic",
                                     "ext4",        "overlay", "failover",    "net_failover", "virtio_net"};
#define WANTED_LEN (sizeof WANTED / sizeof *WANTED)

struct found {
    struct strv names, paths;
};

char *module_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *start = slash ? slash + 1 : path, *end = strstr(start, ".ko");
    char *name = end ? xstrndup(start, (size_t)(end - start)) : xstrdup(start);
    for (char *at = name; *at; at++)
        if (*at == '-')
            *at = '_';
    return name;
}

char *module_depends(const void *bytes, size_t len)
{
    static const char key[] = "\0depends=";
    const char *at = memmem(bytes, len, key, sizeof key - 1);
    if (!at)
        return xstrdup("");
    at += sizeof key - 1;
    return xstrndup(at, (size_t)((const char *)bytes + len - at));
}

static bool is_module(const char *name)
{
    return text_has_suffix(name, ".ko") || text_has_suffix(name, ".ko.xz") || text_has_suffix(name, ".ko.zst");
}

static int find_all(const char *root, struct found *found, struct err *e)
{
    char *paths[] = {(char *)root, NULL};
    FTS *walk = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!walk)
        return err_sys(e, errno, "read '%s'", root);
    for (FTSENT *entry; (entry = fts_read(walk));) {
        if (entry->fts_info != FTS_F || !is_module(entry->fts_name))
            continue;
        strv_take(&found->names, module_name(entry->fts_path));
        strv_add(&found->paths, entry->fts_path);
    }
    fts_close(walk);
    return found->paths.len ? 0 : err_set(e, ERR_ENVIRONMENT, "no kernel modules in '%s'", root);
}

static size_t find(const struct strv *list, const char *text)
{
    for (size_t i = 0; i < list->len; i++)
        if (!strcmp(list->items[i], text))
            return i;
    return SIZE_MAX;
}

static int add(const struct found *found, const char *name, unsigned depth, struct strv *paths, struct err *e)
{
    size_t at = find(&found->names, name);
    if (at == SIZE_MAX || find(paths, found->paths.items[at]) != SIZE_MAX)
        return 0;
    if (depth > 16)
        return err_set(e, ERR_ENVIRONMENT, "the modules depend on each other in a circle at '%s'", name);
    auto_free char *bytes = NULL;
    size_t len;
    if (file_read(found->paths.items[at], KERNEL_MODULE_BYTES_MAX, &bytes, &len, e))
        return -1;
    /* a compressed module is looked into after it was unpacked; the list above is in a working order already */
    auto_free char *depends = module_depends(bytes, len);
    char *rest = depends;
    for (char *needed; (needed = strsep(&rest, ","));)
        if (*needed && add(found, needed, depth + 1, paths, e))
            return -1;
    strv_add(paths, found->paths.items[at]);
    return 0;
}

int modules_choose(const char *root, struct strv *ret_paths, struct err *e)
{
    struct found found = {0};
    auto_strv paths = {0};
    int failed = find_all(root, &found, e);
    for (size_t i = 0; !failed && i < WANTED_LEN; i++)
        failed = add(&found, WANTED[i], 0, &paths, e);
    strv_done(&found.names);
    strv_done(&found.paths);
    if (failed)
        return -1;
    *ret_paths = paths;
    paths = (struct strv){0};
    return 0;
}
