/* SPDX-License-Identifier: Apache-2.0 */
#include "image/kernel_folder.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/path.h"
#include "base/text.h"
#include "image/modules.h"
#include "image/tool.h"
#include "image/vmlinux.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Copies a module as NAME.ko, unpacking it when it is compressed. */
static int take_module(const char *path, const char *modules, const struct image_progress *progress, struct err *e)
{
    const char *ending = text_has_suffix(path, ".xz") ? ".xz" : text_has_suffix(path, ".zst") ? ".zst" : "";
    auto_free char *name = module_name(path), *bytes = NULL;
    auto_free char *copy = xasprintf("%s/%s.ko%s", modules, name, ending);
    size_t len;
    if (file_read(path, KERNEL_MODULE_BYTES_MAX, &bytes, &len, e) || file_write_atomic(copy, bytes, len, 0444, e))
        return -1;
    if (!*ending)
        return 0;
    const char *tool = strcmp(ending, ".xz") ? "zstd" : "xz";
    const char *argv[] = {tool, "-d", "-q", "-f", copy, NULL};
    auto_free char *program = path_find_in_path(tool, e);
    if (!program || tool_run(tool, program, argv, modules, TOOL_ISOLATED, progress, NULL, e))
        return -1;
    if (unlink(copy) && errno != ENOENT) /* zstd keeps what it unpacked */
        return err_sys(e, errno, "remove '%s'", copy);
    return 0;
}

/* Seals every file of the kernel's folder and writes their digests into "sums". */
static int seal_files(const char *made, const char *order, bool unpacked, struct err *e)
{
    auto_strv files = {0};
    auto_free char *sums = xstrdup(""), *copy = xstrdup(order), *sums_path = xasprintf("%s/sums", made);
    strv_add(&files, "vmlinuz");
    if (unpacked)
        strv_add(&files, "vmlinux");
    strv_add(&files, "modules/order");
    char *rest = copy;
    for (char *name; (name = strsep(&rest, "\n"));)
        if (*name)
            strv_addf(&files, "modules/%s.ko", name);
    for (size_t i = 0; i < files.len; i++) {
        auto_free char *path = xasprintf("%s/%s", made, files.items[i]);
        auto_close fd = open(path, O_RDONLY | O_CLOEXEC);
        char digest[65];
        if (fd < 0 || fchmod(fd, 0444) || fsync(fd))
            return err_sys(e, errno, "open '%s'", path);
        if (hash_fd(fd, digest, e) || store_seal(fd, e))
            return -1;
        char *longer = xasprintf("%s%s %s\n", sums, digest, files.items[i]);
        free(sums);
        sums = longer;
    }
    return file_write_atomic(sums_path, sums, strlen(sums), 0444, e);
}

static int take_kernel(const char *path, const char *made, bool *ret_unpacked, struct err *e)
{
    auto_free char *copy = xasprintf("%s/vmlinuz", made), *unpacked = xasprintf("%s/vmlinux", made), *packed = NULL;
    auto_buf elf = BUF_INIT(VMLINUX_BYTES_MAX);
    size_t len;
    bool found;
    if (file_read(path, VMLINUX_BYTES_MAX, &packed, &len, e) || file_write_atomic(copy, packed, len, 0444, e) ||
        vmlinux_unpack(packed, len, &elf, &found, e) || (found && file_write_atomic(unpacked, buf_data(&elf), elf.len, 0444, e)))
        return -1;
    *ret_unpacked = found;
    return 0;
}

/* "6.1.0-57-cloud-amd64" of a bzImage (its header points at the text) or an ELF file ("Linux version ..."); NULL: unknown. */
static char *release_of(const uint8_t *file, size_t len)
{
    static const char words[] = "Linux version ";
    const uint8_t *at = NULL;
    if (len > 0x250 && memcmp(file + 0x202, "HdrS", 4) == 0) {
        size_t offset = 0x200 + (size_t)(file[0x20e] | file[0x20f] << 8);
        at = offset < len ? file + offset : NULL;
    } else if ((at = memmem(file, len, words, sizeof words - 1))) {
        at += sizeof words - 1;
    }
    size_t end = 0;
    while (at && at + end < file + len && at[end] > ' ' && at[end] < 0x7f && end < 128)
        end++;
    return end ? xstrndup((const char *)at, end) : NULL;
}

/* Modules of another release do not load: better said here than by a machine that does not find its disk. */
static int check_release(const char *kernel, const char *modules, struct err *e)
{
    auto_free char *file = NULL;
    size_t len;
    if (file_read(kernel, VMLINUX_BYTES_MAX, &file, &len, e))
        return err_recode(e, ERR_ENVIRONMENT);
    auto_free char *release = release_of((const uint8_t *)file, len);
    if (!release)
        return err_set(e, ERR_ENVIRONMENT, "'%s' is not a Linux kernel (bzImage or ELF)", kernel);
    if (!modules)
        return 0;
    size_t modules_len = strlen(modules);
    while (modules_len && modules[modules_len - 1] == '/')
        modules_len--;
    size_t release_len = strlen(release);
    if (modules_len > release_len && !memcmp(modules + modules_len - release_len, release, release_len) &&
        modules[modules_len - release_len - 1] == '/')
        return 0;
    return err_set(e, ERR_ENVIRONMENT, "the kernel '%s' is %s, its modules are those of '%s'", kernel, release, modules);
}

static int take_modules(const char *root, const char *modules, char **ret_order, const struct image_progress *progress,
                        struct err *e)
{
    auto_free char *order = xstrdup("");
    auto_strv paths = {0};
    if (root && modules_choose(root, &paths, e))
        return -1;
    for (size_t i = 0; i < paths.len; i++) {
        auto_free char *name = module_name(paths.items[i]);
        char *longer = xasprintf("%s%s\n", order, name);
        free(order);
        order = longer;
        if (take_module(paths.items[i], modules, progress, e))
            return -1;
    }
    *ret_order = STEAL_PTR(order);
    return 0;
}

int kernel_folder_make(const char *kernel, const char *modules, const char *made, const struct image_progress *progress,
                       struct err *e)
{
    auto_free char *folder = xasprintf("%s/modules", made), *order_path = xasprintf("%s/order", folder), *order = NULL;
    bool unpacked;
    if (check_release(kernel, modules, e) || dir_make(folder, 0755, e) || take_modules(modules, folder, &order, progress, e) ||
        take_kernel(kernel, made, &unpacked, e) || file_write_atomic(order_path, order, strlen(order), 0444, e))
        return -1;
    return seal_files(made, order, unpacked, e);
}

/* One line of "sums". */
static bool file_is_whole(const struct store *store, const char *release, const char *line, bool thorough)
{
    char digest[65];
    struct stat s;
    struct err e = ERR_INIT;
    if (strlen(line) < 66 || line[64] != ' ')
        return false;
    auto_free char *path = xasprintf("%s/kernels/%s/%s", store->dir, release, line + 65);
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &s) || !S_ISREG(s.st_mode))
        return false;
    if (store_is_sealed(&s) && !thorough)
        return true;
    return hash_fd(fd, digest, &e) == 0 && strncmp(digest, line, 64) == 0;
}

bool kernel_is_whole(struct store *store, const char *release, const char *order, bool thorough)
{
    auto_free char *path = xasprintf("%s/kernels/%s/sums", store->dir, release), *sums = NULL;
    struct err e = ERR_INIT;
    size_t lines = 0, wanted = 2;
    if (file_read(path, SMALL_FILE_MAX, &sums, NULL, &e))
        return false;
    char *rest = sums;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (*line && !file_is_whole(store, release, line, thorough))
            return false;
        lines += *line != 0;
    }
    for (const char *at = order; *at; at++)
        wanted += *at == '\n';
    return lines == wanted || lines == wanted + 1; /* with or without vmlinux */
}
