/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: Debian's packaged cloud kernel, fetched with apt-get download and unpacked without being installed. A kernel's
 * folder holds vmlinuz, modules/NAME.ko and modules/order; kernels/current names the one that machines boot. */
#include "image/store_priv.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/path.h"
#include "base/text.h"
#include "image/initramfs.h"
#include "image/modules.h"
#include "image/tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define KERNEL_FREE_MIN (512 * (uint64_t)MIB)

#if defined(__x86_64__)
#define DEBIAN_ARCH "amd64"
#elif defined(__aarch64__)
#define DEBIAN_ARCH "arm64"
#else
#error "no packaged kernel is known for this architecture"
#endif
#define KERNEL_PACKAGE "linux-image-cloud-" DEBIAN_ARCH

void kernel_done(struct kernel *kernel)
{
    free(kernel->release);
    if (kernel->kernel_fd >= 0)
        close(kernel->kernel_fd);
    if (kernel->initramfs_fd >= 0)
        close(kernel->initramfs_fd);
    *kernel = (struct kernel){.kernel_fd = -1, .initramfs_fd = -1};
}

/* The real package behind KERNEL_PACKAGE, or NULL when the package lists do not know it. */
static char *find_package(const char *folder, const struct image_progress *progress, struct err *e)
{
    auto_free char *program = path_find_in_path("apt-cache", e);
    if (!program) {
        err_wrap(e, "a kernel is fetched with Debian's tools");
        return NULL;
    }
    static const char *const argv[] = {"apt-cache", "depends", KERNEL_PACKAGE, NULL};
    auto_strv lines = {0};
    if (tool_run("apt-cache", program, argv, folder, TOOL_PACKAGES, progress, &lines, e))
        return NULL;
    for (size_t i = 0; i < lines.len; i++) {
        const char *at = strstr(lines.items[i], "Depends: linux-image-");
        if (at)
            return xstrdup(at + strlen("Depends: "));
    }
    err_set(e, ERR_ENVIRONMENT, "the package lists do not know " KERNEL_PACKAGE);
    return NULL;
}

static int try_download(const char *folder, const struct image_progress *progress, struct err *e)
{
    auto_free char *package = find_package(folder, progress, e), *program = package ? path_find_in_path("apt-get", e) : NULL;
    if (!program)
        return -1;
    const char *argv[] = {"apt-get", "-q", "download", package, NULL};
    progress_stage(progress, "downloading the kernel", 0, 0);
    return tool_run("apt-get download", program, argv, folder, TOOL_PACKAGES, progress, NULL, e);
}

/* Package lists are read anew only when the download fails without. */
static int download(const char *folder, const struct image_progress *progress, struct err *e)
{
    struct err first = ERR_INIT;
    if (try_download(folder, progress, &first) == 0)
        return 0;
    auto_free char *program = path_find_in_path("apt-get", e);
    if (!program || first.code == ERR_INTERRUPTED) {
        *e = first;
        return -1;
    }
    static const char *const argv[] = {"apt-get", "-q", "update", NULL};
    progress_stage(progress, "reading package lists", 0, 0);
    if (geteuid() != 0 || tool_run("apt-get update", program, argv, folder, TOOL_PACKAGES, progress, NULL, e)) {
        *e = first;
        return err_wrap(e, "fetch " KERNEL_PACKAGE " (its package lists may be old: apt-get update)");
    }
    return try_download(folder, progress, e);
}

/* The only entry of a folder that ends in `suffix`. */
static char *find_entry(const char *folder, const char *prefix, const char *suffix, struct err *e)
{
    auto_dir dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && text_has_prefix(entry->d_name, prefix) && text_has_suffix(entry->d_name, suffix))
            return xasprintf("%s/%s", folder, entry->d_name);
    err_set(e, ERR_IMAGE_PREPARE, "no '%s*%s' in '%s'", prefix, suffix, folder);
    return NULL;
}

static int unpack(const char *folder, const struct image_progress *progress, struct err *e)
{
    auto_free char *deb = find_entry(folder, "linux-image-", ".deb", e);
    auto_free char *program = deb ? path_find_in_path("dpkg-deb", e) : NULL;
    if (!program)
        return -1;
    const char *argv[] = {"dpkg-deb", "-x", deb, "package", NULL};
    progress_stage(progress, "unpacking the kernel", 0, 0);
    return tool_run("dpkg-deb", program, argv, folder, TOOL_ISOLATED, progress, NULL, e);
}

/* Copies a module as NAME.ko, unpacking it when the package has it compressed. */
static int take_module(const char *path, const char *modules, const struct image_progress *progress, struct err *e)
{
    auto_free char *name = module_name(path);
    auto_free char *to = xasprintf("%s/%s.ko", modules, name);
    if (text_has_suffix(path, ".ko"))
        return rename(path, to) ? err_sys(e, errno, "move '%s'", path) : 0;
    const char *tool = text_has_suffix(path, ".xz") ? "xz" : "zstd";
    auto_free char *program = path_find_in_path(tool, e);
    const char *argv[] = {tool, "-d", "-q", path, NULL};
    if (!program || tool_run(tool, program, argv, modules, TOOL_ISOLATED, progress, NULL, e))
        return -1;
    auto_free char *unpacked = xstrndup(path, (size_t)(strrchr(path, '.') - path));
    return rename(unpacked, to) ? err_sys(e, errno, "move '%s'", unpacked) : 0;
}

/* Seals every file of the kernel's folder and writes their digests into "sums". */
static int seal_files(const char *made, const char *order, struct err *e)
{
    auto_strv files = {0};
    auto_free char *sums = xstrdup(""), *copy = xstrdup(order), *sums_path = xasprintf("%s/sums", made);
    strv_add(&files, "vmlinuz");
    strv_add(&files, "modules/order");
    char *rest = copy;
    for (char *name; (name = strsep(&rest, "\n"));)
        if (*name)
            strv_addf(&files, "modules/%s.ko", name);
    for (size_t i = 0; i < files.len; i++) {
        auto_free char *path = xasprintf("%s/%s", made, files.items[i]);
        auto_close fd = open(path, O_RDWR | O_CLOEXEC);
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
    return lines == wanted;
}

/* From an unpacked package to the kernel's folder "made" beside it. *ret_release: owned by the caller. */
static int assemble(const char *folder, const struct image_progress *progress, char **ret_release, struct err *e)
{
    auto_free char *boot = xasprintf("%s/package/boot", folder), *made = xasprintf("%s/made", folder);
    auto_free char *modules = xasprintf("%s/modules", made), *vmlinuz = find_entry(boot, "vmlinuz-", "", e);
    if (!vmlinuz)
        return -1;
    const char *release = vmlinuz + strlen(boot) + strlen("/vmlinuz-");
    auto_free char *root = xasprintf("%s/package/lib/modules/%s", folder, release), *kernel = xasprintf("%s/vmlinuz", made);
    auto_free char *order_path = xasprintf("%s/order", modules), *order = xstrdup("");
    auto_strv paths = {0};
    if (dir_make(modules, 0755, e) || modules_choose(root, &paths, e))
        return -1;
    for (size_t i = 0; i < paths.len; i++) {
        auto_free char *name = module_name(paths.items[i]);
        char *longer = xasprintf("%s%s\n", order, name);
        free(order);
        order = longer;
        if (take_module(paths.items[i], modules, progress, e))
            return -1;
    }
    if (rename(vmlinuz, kernel))
        return err_sys(e, errno, "move '%s'", vmlinuz);
    if (file_write_atomic(order_path, order, strlen(order), 0644, e) || seal_files(made, order, e))
        return -1;
    *ret_release = xstrdup(release);
    return 0;
}

static int publish(struct store *store, const char *folder, const char *release, struct err *e)
{
    auto_free char *made = xasprintf("%s/made", folder), *place = store_path(store, "kernels", release);
    auto_free char *line = xasprintf("%s\n", release);
    if (dir_remove(place, e))
        return -1;
    if (rename(made, place))
        return err_sys(e, errno, "publish '%s'", place);
    return store_write_file(store, "kernel", "kernels", "current", line, strlen(line), e);
}

static int fetch(struct store *store, const struct image_progress *progress, struct err *e)
{
    if (store_check_free(store, KERNEL_FREE_MIN, "fetching a kernel", e))
        return -1;
    auto_free char *work = store_scratch_folder(store, "kernel", e), *release = NULL;
    if (!work)
        return -1;
    int failed = download(work, progress, e) || unpack(work, progress, e) || assemble(work, progress, &release, e) ||
                 publish(store, work, release, e);
    struct err removal = ERR_INIT;
    if (dir_remove(work, &removal))
        store_note(store, "half-made '%s' cannot be removed: %s", work, removal.text);
    return failed ? -1 : 0;
}

/* The kernel that kernels/current names. 1: there; 0: none, or its folder is damaged. */
static int find_current(struct store *store, char **ret_release, char **ret_order, struct err *e)
{
    auto_free char *path = store_path(store, "kernels", "current"), *release = NULL, *order = NULL;
    struct err why = ERR_INIT;
    if (file_read(path, 256, &release, NULL, &why))
        return why.sys_errno == ENOENT || !why.sys_errno ? 0 : err_sys(e, why.sys_errno, "read '%s'", path);
    release[strcspn(release, "\n")] = 0;
    if (!release[0] || release[0] == '.' || strchr(release, '/'))
        return 0;
    auto_free char *order_path = xasprintf("%s/kernels/%s/modules/order", store->dir, release);
    if (file_read(order_path, SMALL_FILE_MAX, &order, NULL, &why) || !kernel_is_whole(store, release, order, false)) {
        store_note(store, "the kernel %s is not whole: it is fetched again", release);
        return 0;
    }
    *ret_release = STEAL_PTR(release);
    *ret_order = STEAL_PTR(order);
    return 1;
}

static int add_file(struct buf *archive, const char *path, const char *name, unsigned mode, struct err *e)
{
    auto_free char *bytes = NULL;
    size_t len;
    if (file_read(path, KERNEL_MODULE_BYTES_MAX, &bytes, &len, e))
        return -1;
    return initramfs_file(archive, name, mode, bytes, len, e);
}

static int add_modules(struct store *store, const char *release, const char *order, struct buf *archive, struct err *e)
{
    if (initramfs_file(archive, "modules/order", 0644, order, strlen(order), e))
        return -1;
    auto_free char *copy = xstrdup(order);
    char *rest = copy;
    for (char *name; (name = strsep(&rest, "\n"));) {
        auto_free char *path = xasprintf("%s/kernels/%s/modules/%s.ko", store->dir, release, name);
        auto_free char *inside = xasprintf("modules/%s.ko", name);
        if (*name && add_file(archive, path, inside, 0644, e))
            return -1;
    }
    return 0;
}

static int build_initramfs(struct store *store, const char *release, const char *order, const char *agent, struct buf *archive,
                           struct err *e)
{
    static const char *const folders[] = {"dev", "proc", "sys", "run", "modules", "image", "disk", "root", "tmp"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (initramfs_folder(archive, folders[i], 0755, e))
            return -1;
    if (initramfs_char_device(archive, "dev/console", 0600, 5, 1, e) ||
        initramfs_char_device(archive, "dev/null", 0666, 1, 3, e) || add_file(archive, agent, "init", 0755, e) ||
        add_modules(store, release, order, archive, e))
        return -1;
    return initramfs_end(archive, e);
}

/* What the archive is made of, cheaply: the agent's bytes, and the kernel's folder, which never changes once it is there. */
static int initramfs_key(struct store *store, const char *release, const char *order, const char *agent, char key[65],
                         struct err *e)
{
    auto_close fd = open(agent, O_RDONLY | O_CLOEXEC);
    char digest[65];
    struct stat s;
    auto_free char *folder = store_path(store, "kernels", release);
    if (fd < 0)
        return err_sys(e, errno, "open '%s'", agent);
    if (stat(folder, &s))
        return err_sys(e, errno, "stat '%s'", folder);
    if (hash_fd(fd, digest, e))
        return err_wrap(e, "read '%s'", agent);
    auto_free char *all = xasprintf("2\n%s\n%s\n%lld.%09ld %llu\n%s", digest, release, (long long)s.st_mtim.tv_sec,
                                    s.st_mtim.tv_nsec, (unsigned long long)s.st_ino, order);
    hash_bytes(all, strlen(all), key);
    return 0;
}

static int make_initramfs(struct store *store, const char *release, const char *order, const char *agent, const char *key,
                          struct err *e)
{
    auto_buf archive = BUF_INIT(INITRAMFS_BYTES_MAX);
    if (build_initramfs(store, release, order, agent, &archive, e))
        return err_wrap(e, "build the initramfs");
    return store_write_file(store, "kernel", "initramfs", key, buf_data(&archive), archive.len, e);
}

/* Opens the initramfs of this agent and kernel, made when it is not there or cut. */
static int open_initramfs(struct store *store, const char *release, const char *order, int *ret_fd, struct err *e)
{
    auto_free char *agent = path_program("iii-sandbox-agent", e);
    char key[65];
    if (!agent || initramfs_key(store, release, order, agent, key, e))
        return -1;
    auto_free char *path = store_path(store, "initramfs", key);
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat s;
    if (fd < 0 || fstat(fd, &s) || !store_is_sealed(&s)) {
        auto_close lock = -1;
        if (fd >= 0)
            store_note(store, "the initramfs '%s' was changed: made again", path);
        cleanup_close(&fd);
        if (store_lock(store, "kernel", NULL, &lock, e) || make_initramfs(store, release, order, agent, key, e))
            return -1;
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return err_sys(e, errno, "open '%s'", path);
    }
    *ret_fd = STEAL_FD(fd);
    return 0;
}

static int find_or_fetch(struct store *store, const struct image_progress *progress, char **ret_release, char **ret_order,
                         bool *ret_fetched, struct err *e)
{
    int there = find_current(store, ret_release, ret_order, e);
    if (there)
        return there < 0 ? -1 : 0;
    auto_close lock = -1;
    if (store_lock(store, "kernel", progress, &lock, e))
        return -1;
    there = find_current(store, ret_release, ret_order, e);
    if (there)
        return there < 0 ? -1 : 0;
    *ret_fetched = true;
    if (fetch(store, progress, e))
        return -1;
    there = find_current(store, ret_release, ret_order, e);
    return there == 1 ? 0 : there < 0 ? -1 : err_set(e, ERR_IMAGE_PREPARE, "the kernel went away as soon as it was fetched");
}

int kernel_ensure(struct store *store, const struct image_progress *progress, struct kernel *ret_kernel, bool *ret_prepared,
                  struct err *e)
{
    auto_free char *release = NULL, *order = NULL;
    bool fetched = false;
    if (find_or_fetch(store, progress, &release, &order, &fetched, e))
        return err_wrap(e, "prepare the kernel");
    auto_free char *path = xasprintf("%s/kernels/%s/vmlinuz", store->dir, release);
    auto_close kernel_fd = open(path, O_RDONLY | O_CLOEXEC), initramfs_fd = -1;
    if (kernel_fd < 0) {
        err_sys(e, errno, "open '%s'", path);
        return err_wrap(e, "prepare the kernel");
    }
    if (open_initramfs(store, release, order, &initramfs_fd, e))
        return err_wrap(e, "prepare the kernel");
    *ret_kernel =
        (struct kernel){.release = STEAL_PTR(release), .kernel_fd = STEAL_FD(kernel_fd), .initramfs_fd = STEAL_FD(initramfs_fd)};
    if (ret_prepared)
        *ret_prepared = fetched;
    return 0;
}
