/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: Debian's packaged cloud kernel, fetched with apt-get download and unpacked without being installed. A kernel's
 * folder holds vmlinuz, modules/NAME.ko and modules/order; kernels/current names the one that machines boot. */
#include "image/store_priv.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/path.h"
#include "base/text.h"
#include "image/initramfs.h"
#include "image/kernel_folder.h"
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
        err_wrap(
            e, "a kernel is fetched with Debian's tools; elsewhere give one: a bzImage or ELF file with virtio_mmio, virtio_blk, "
               "virtio_console, ext4 and overlay, and its lib/modules/RELEASE unless these are built in");
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

/* From an unpacked package to the kernel's folder "made" beside it. *ret_release: owned by the caller. */
static int assemble(const char *folder, const struct image_progress *progress, char **ret_release, struct err *e)
{
    auto_free char *boot = xasprintf("%s/package/boot", folder), *made = xasprintf("%s/made", folder);
    auto_free char *vmlinuz = find_entry(boot, "vmlinuz-", "", e);
    if (!vmlinuz)
        return -1;
    const char *release = vmlinuz + strlen(boot) + strlen("/vmlinuz-");
    auto_free char *modules = xasprintf("%s/package/lib/modules/%s", folder, release);
    if (kernel_folder_make(vmlinuz, modules, made, progress, e))
        return -1;
    *ret_release = xstrdup(release);
    return 0;
}

static int publish(struct store *store, const char *folder, const char *release, bool current, struct err *e)
{
    auto_free char *made = xasprintf("%s/made", folder), *place = store_path(store, "kernels", release);
    auto_free char *line = xasprintf("%s\n", release);
    if (dir_remove(place, e))
        return -1;
    if (rename(made, place))
        return err_sys(e, errno, "publish '%s'", place);
    return !current ? 0 : store_write_file(store, "kernel", "kernels", "current", line, strlen(line), e);
}

static int fetch(struct store *store, const struct image_progress *progress, struct err *e)
{
    if (store_check_free(store, KERNEL_FREE_MIN, "fetching a kernel", e))
        return -1;
    auto_free char *work = store_scratch_folder(store, "kernel", e), *release = NULL;
    if (!work)
        return -1;
    int failed = download(work, progress, e) || unpack(work, progress, e) || assemble(work, progress, &release, e) ||
                 publish(store, work, release, true, e);
    store_discard(store, work);
    return failed ? -1 : 0;
}

/* A kernel's folder with its order of modules. 1: there; 0: not there, or damaged. */
static int find_folder(struct store *store, const char *name, char **ret_order)
{
    auto_free char *path = xasprintf("%s/kernels/%s/modules/order", store->dir, name), *order = NULL;
    struct err why = ERR_INIT;
    bool whole = file_read(path, SMALL_FILE_MAX, &order, NULL, &why) == 0 && kernel_is_whole(store, name, order, false);
    if (!whole && why.sys_errno != ENOENT)
        store_note(store, "the kernel %s is not whole: it is made again", name);
    if (whole)
        *ret_order = STEAL_PTR(order);
    return whole;
}

/* The kernel that kernels/current names. 1: there; 0: none, or its folder is damaged. */
static int find_current(struct store *store, char **ret_release, char **ret_order, struct err *e)
{
    auto_free char *path = store_path(store, "kernels", "current"), *release = NULL;
    struct err why = ERR_INIT;
    if (file_read(path, 256, &release, NULL, &why))
        return why.sys_errno == ENOENT || !why.sys_errno ? 0 : err_sys(e, why.sys_errno, "read '%s'", path);
    release[strcspn(release, "\n")] = 0;
    if (!release[0] || release[0] == '.' || strchr(release, '/'))
        return 0;
    int there = find_folder(store, release, ret_order);
    if (there)
        *ret_release = STEAL_PTR(release);
    return there;
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

/* The operator's own kernel: the name of its folder says which file it was made of. */
static int custom_name(const struct store *store, char **ret_name, struct err *e)
{
    struct stat s;
    char key[65];
    if (stat(store->kernel_path, &s))
        return err_sys_code(e, ERR_ENVIRONMENT, errno, "open the kernel '%s'", store->kernel_path);
    auto_free char *all =
        xasprintf("%s\n%s\n%lld %lld.%09ld %llu", store->kernel_path, store->kernel_modules ? store->kernel_modules : "",
                  (long long)s.st_size, (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec, (unsigned long long)s.st_ino);
    hash_bytes(all, strlen(all), key);
    *ret_name = xasprintf("custom-%.16s", key);
    return 0;
}

static int take_custom(struct store *store, const char *name, const struct image_progress *progress, struct err *e)
{
    auto_free char *work = store_scratch_folder(store, "kernel", e);
    if (!work)
        return -1;
    auto_free char *made = xasprintf("%s/made", work);
    int failed =
        kernel_folder_make(store->kernel_path, store->kernel_modules, made, progress, e) || publish(store, work, name, false, e);
    store_discard(store, work);
    return failed ? -1 : 0;
}

static int find_custom(struct store *store, const struct image_progress *progress, char **ret_name, char **ret_order,
                       bool *ret_made, struct err *e)
{
    auto_free char *name = NULL;
    if (custom_name(store, &name, e))
        return -1;
    if (!find_folder(store, name, ret_order)) {
        auto_close lock = -1;
        if (store_lock(store, "kernel", progress, &lock, e))
            return -1;
        *ret_made = true;
        if (take_custom(store, name, progress, e))
            return -1;
        if (!find_folder(store, name, ret_order))
            return err_set(e, ERR_IMAGE_PREPARE, "the kernel went away as soon as it was taken");
    }
    *ret_name = STEAL_PTR(name);
    return 0;
}

static int find_or_fetch(struct store *store, const struct image_progress *progress, char **ret_release, char **ret_order,
                         bool *ret_fetched, struct err *e)
{
    if (store->kernel_path)
        return find_custom(store, progress, ret_release, ret_order, ret_fetched, e);
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

char *kernel_prepared_release(struct store *store, struct err *e)
{
    char *release = NULL, *order = NULL;
    int there = find_current(store, &release, &order, e);
    free(order);
    if (there > 0)
        return release;
    free(release);
    return NULL;
}

int kernel_ensure(struct store *store, const struct image_progress *progress, struct kernel *ret_kernel, bool *ret_prepared,
                  struct err *e)
{
    auto_free char *release = NULL, *order = NULL;
    bool fetched = false;
    if (find_or_fetch(store, progress, &release, &order, &fetched, e))
        return err_wrap(e, "prepare the kernel");
    auto_free char *path = xasprintf("%s/kernels/%s/vmlinuz", store->dir, release);
    auto_free char *unpacked = xasprintf("%s/kernels/%s/vmlinux", store->dir, release);
    auto_close kernel_fd = open(unpacked, O_RDONLY | O_CLOEXEC), initramfs_fd = -1;
    if (kernel_fd < 0)
        kernel_fd = open(path, O_RDONLY | O_CLOEXEC);
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
