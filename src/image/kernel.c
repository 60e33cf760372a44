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
#include <sys/file.h>
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

void kernel_found_done(struct kernel_found *found)
{
    free(found->name);
    free(found->order);
    if (found->lease_fd >= 0)
        close(found->lease_fd);
    *found = KERNEL_FOUND_INIT;
}

/* A shared lock on the folder: prune removes none that it cannot lock alone. -1: there is none, or it just went. */
static int lease_folder(const struct store *store, const char *name)
{
    auto_free char *path = store_path(store, "kernels", name);
    auto_close fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat held, there;
    while (fd >= 0 && flock(fd, LOCK_SH) && errno == EINTR) /* who holds it alone is quick; no locks here: no protection */
        ;
    if (fd < 0 || fstat(fd, &held) || stat(path, &there) || held.st_ino != there.st_ino || held.st_dev != there.st_dev)
        return -1;
    return STEAL_FD(fd);
}

bool kernel_find(struct store *store, const char *name, struct kernel_found *ret_found)
{
    auto_close lease_fd = lease_folder(store, name);
    auto_free char *path = xasprintf("%s/kernels/%s/modules/order", store->dir, name), *order = NULL;
    struct err why = ERR_INIT;
    bool whole = file_read(path, SMALL_FILE_MAX, &order, NULL, &why) == 0 && kernel_is_whole(store, name, order, false);
    if (!whole && why.sys_errno != ENOENT)
        store_note(store, "the kernel %s is not whole: it is made again", name);
    if (!whole || lease_fd < 0)
        return false;
    *ret_found = (struct kernel_found){.name = xstrdup(name), .order = STEAL_PTR(order), .lease_fd = STEAL_FD(lease_fd)};
    return true;
}

int kernel_current_name(struct store *store, char **ret_name, struct err *e)
{
    auto_free char *path = store_path(store, "kernels", "current"), *name = NULL;
    struct err why = ERR_INIT;
    if (file_read(path, 256, &name, NULL, &why))
        return why.sys_errno == ENOENT || !why.sys_errno ? 0 : err_sys(e, why.sys_errno, "read '%s'", path);
    name[strcspn(name, "\n")] = 0;
    if (!name[0] || name[0] == '.' || strchr(name, '/'))
        return 0;
    *ret_name = STEAL_PTR(name);
    return 1;
}

/* The kernel that kernels/current names. 1: there; 0: none, or its folder is damaged. */
static int find_current(struct store *store, struct kernel_found *ret_found, struct err *e)
{
    auto_free char *name = NULL;
    int named = kernel_current_name(store, &name, e);
    return named <= 0 ? named : kernel_find(store, name, ret_found);
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
static int open_initramfs(struct store *store, const char *release, const char *order, const struct image_progress *progress,
                          int *ret_fd, struct err *e)
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
        if (store_lock(store, "kernel", progress, &lock, e) || make_initramfs(store, release, order, agent, key, e))
            return -1;
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return err_sys(e, errno, "open '%s'", path);
    }
    *ret_fd = STEAL_FD(fd);
    return 0;
}

/* The name of its folder says which file it was made of. */
int kernel_custom_name(const struct store *store, char **ret_name, struct err *e)
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

static int find_custom(struct store *store, const struct image_progress *progress, struct kernel_found *ret_found, bool *ret_made,
                       struct err *e)
{
    auto_free char *name = NULL;
    if (kernel_custom_name(store, &name, e))
        return -1;
    if (kernel_find(store, name, ret_found))
        return 0;
    auto_close lock = -1;
    if (store_lock(store, "kernel", progress, &lock, e))
        return -1;
    if (kernel_find(store, name, ret_found)) /* the lock's holder before us may have taken it */
        return 0;
    *ret_made = true;
    if (take_custom(store, name, progress, e))
        return -1;
    return kernel_find(store, name, ret_found) ? 0
                                               : err_set(e, ERR_IMAGE_PREPARE, "the kernel went away as soon as it was taken");
}

static int find_or_fetch(struct store *store, const struct image_progress *progress, struct kernel_found *ret_found,
                         bool *ret_fetched, struct err *e)
{
    if (store->kernel_path)
        return find_custom(store, progress, ret_found, ret_fetched, e);
    int there = find_current(store, ret_found, e);
    if (there)
        return there < 0 ? -1 : 0;
    auto_close lock = -1;
    if (store_lock(store, "kernel", progress, &lock, e))
        return -1;
    there = find_current(store, ret_found, e);
    if (there)
        return there < 0 ? -1 : 0;
    *ret_fetched = true;
    if (fetch(store, progress, e))
        return -1;
    there = find_current(store, ret_found, e);
    return there == 1 ? 0 : there < 0 ? -1 : err_set(e, ERR_IMAGE_PREPARE, "the kernel went away as soon as it was fetched");
}

char *kernel_prepared_release(struct store *store, struct err *e)
{
    auto_free char *name = NULL;
    struct kernel_found found = KERNEL_FOUND_INIT;
    int named = !store->kernel_path ? kernel_current_name(store, &name, e) : kernel_custom_name(store, &name, e) ? -1 : 1;
    if (named <= 0 || !kernel_find(store, name, &found))
        return NULL;
    kernel_found_done(&found);
    return STEAL_PTR(name);
}

/* The files of a kernel that is leased, so that none goes between two opens. */
static int open_files(struct store *store, const struct kernel_found *found, const struct image_progress *progress,
                      struct kernel *ret_kernel, struct err *e)
{
    auto_free char *path = xasprintf("%s/kernels/%s/vmlinuz", store->dir, found->name);
    auto_free char *unpacked = xasprintf("%s/kernels/%s/vmlinux", store->dir, found->name);
    auto_close kernel_fd = open(unpacked, O_RDONLY | O_CLOEXEC), initramfs_fd = -1;
    if (kernel_fd < 0)
        kernel_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (kernel_fd < 0)
        return err_sys(e, errno, "open '%s'", path);
    if (open_initramfs(store, found->name, found->order, progress, &initramfs_fd, e))
        return -1;
    *ret_kernel = (struct kernel){
        .release = xstrdup(found->name), .kernel_fd = STEAL_FD(kernel_fd), .initramfs_fd = STEAL_FD(initramfs_fd)};
    return 0;
}

int kernel_ensure(struct store *store, const struct image_progress *progress, struct kernel *ret_kernel, bool *ret_prepared,
                  struct err *e)
{
    struct kernel_found found = KERNEL_FOUND_INIT;
    bool fetched = false;
    int failed = find_or_fetch(store, progress, &found, &fetched, e) || open_files(store, &found, progress, ret_kernel, e);
    kernel_found_done(&found);
    if (failed)
        return err_wrap(e, "prepare the kernel");
    if (ret_prepared)
        *ret_prepared = fetched;
    return 0;
}
