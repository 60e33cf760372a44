/* SPDX-License-Identifier: Apache-2.0 */
/* The store folder. Two rules make it safe against kills at any moment: what has a name is whole (it came by rename or
 * link), and what is half made is either a file without a name or lies in scratch/ as "<lock>~<random>", where everyone who
 * opens the store removes it unless its lock is held. */
#include "image/store_priv.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/path.h"
#include "image/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static const char *const folders_table[] = {"images", "blobs/sha256", "kernels", "initramfs", "disks", "locks", "scratch"};

#define PROGRESS_MS 100
#define SEAL_SECS 1000000000 /* 2001-09-09 */

char *store_path(const struct store *store, const char *folder, const char *name)
{
    return xasprintf("%s/%s/%s", store->dir, folder, name);
}

void store_note(struct store *store, const char *format, ...)
{
    va_list args;
    char text[512];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (store->notes.len < 100) /* a folder full of garbage is told by its first hundred */
        strv_add(&store->notes, text);
}

const struct strv *store_notes(const struct store *store)
{
    return &store->notes;
}

void progress_stage(const struct image_progress *progress, const char *stage, uint64_t done, uint64_t total)
{
    static char last_stage[64];
    static uint64_t last_ms;
    if (!progress || !progress->on_stage)
        return;
    uint64_t now = clock_now_ms();
    if (!strcmp(stage, last_stage) && now - last_ms < PROGRESS_MS)
        return;
    snprintf(last_stage, sizeof last_stage, "%s", stage);
    last_ms = now;
    progress->on_stage(progress->context, stage, done, total);
}

bool progress_cancelled(const struct image_progress *progress)
{
    return progress && progress->cancelled && *progress->cancelled;
}

int store_seal(int fd, struct err *e)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = SEAL_SECS}};
    return futimens(fd, times) ? err_sys(e, errno, "set the time of a finished file") : 0;
}

bool store_is_sealed(const struct stat *s)
{
    return S_ISREG(s->st_mode) && s->st_mtim.tv_sec == SEAL_SECS && s->st_mtim.tv_nsec == 0;
}

/* A store that cannot be written is the host's matter. */
static int store_failed(struct err *e, int failure, const char *what, const char *path)
{
    bool host = failure == EROFS || failure == ENOSPC || failure == EDQUOT || failure == EACCES || failure == EPERM;
    return err_sys_code(e, host ? ERR_ENVIRONMENT : ERR_SYSTEM, failure, "%s '%s'", what, path);
}

void store_configure(struct store *store, const struct image_custom *customs, size_t customs_len, uint64_t max_bytes)
{
    for (size_t i = 0; i < store->customs_len; i++)
        recipe_done(&store->customs[i]);
    free(store->customs);
    store->customs = xcalloc(customs_len ? customs_len : 1, sizeof *store->customs);
    store->customs_len = customs_len;
    store->max_bytes = max_bytes;
    for (size_t i = 0; i < customs_len; i++) {
        struct recipe *r = &store->customs[i];
        *r = (struct recipe){.name = xstrdup(customs[i].name), .source = xstrdup(customs[i].source)};
        r->workdir = xstrdup("");
        r->user = xstrdup("");
        for (size_t k = 0; customs[i].env && customs[i].env[k]; k++)
            strv_add(&r->env, customs[i].env[k]);
    }
}

void store_use_kernel(struct store *store, const char *path, const char *modules)
{
    free(store->kernel_path);
    free(store->kernel_modules);
    store->kernel_path = path ? xstrdup(path) : NULL;
    store->kernel_modules = modules ? xstrdup(modules) : NULL;
}

static int open_lock(const struct store *store, const char *thing)
{
    auto_free char *path = store_path(store, "locks", thing);
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

int store_lock(struct store *store, const char *thing, const struct image_progress *progress, int *ret_fd, struct err *e)
{
    auto_close fd = open_lock(store, thing);
    if (fd < 0)
        return store_failed(e, errno, "open the lock", thing);
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK)
            return err_sys(e, errno, "take the lock '%s'", thing);
        progress_stage(progress, "waiting for another preparation", 0, 0);
        while (flock(fd, LOCK_EX)) {
            if (errno != EINTR)
                return err_sys(e, errno, "take the lock '%s'", thing);
            if (progress_cancelled(progress))
                return err_set(e, ERR_INTERRUPTED, "interrupted while waiting for the lock '%s'", thing);
        }
    }
    *ret_fd = STEAL_FD(fd);
    return 0;
}

int store_try_lock(struct store *store, const char *thing, int *ret_fd, struct err *e)
{
    auto_close fd = open_lock(store, thing);
    if (fd < 0)
        return store_failed(e, errno, "open the lock", thing);
    if (flock(fd, LOCK_EX | LOCK_NB))
        return errno == EWOULDBLOCK ? 0 : err_sys(e, errno, "take the lock '%s'", thing);
    *ret_fd = STEAL_FD(fd);
    return 1;
}

/* A user's mmdebstrap leaves files of the user's range of ids: they go by entering it again. */
static bool discard_range(const char *path)
{
    struct err e = ERR_INIT;
    auto_strv argv = {0};
    if (geteuid() == 0 || tool_enter_range(&argv, &e))
        return false;
    static const char *const words[] = {"rm", "-rf", "--one-file-system", "--"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        strv_add(&argv, words[i]);
    strv_add(&argv, path);
    return tool_run("unshare", argv.items[0], (const char *const *)argv.items, "/", TOOL_PACKAGES, NULL, NULL, &e) == 0 &&
           access(path, F_OK) != 0;
}

bool store_discard(struct store *store, const char *path)
{
    struct err e = ERR_INIT;
    if (dir_remove(path, &e) == 0 || discard_range(path))
        return true;
    store_note(store, "half-made '%s' cannot be removed: %s", path, e.text);
    return false;
}

/* Removes one left-over of scratch/ when its lock is free. */
static void sweep_one(struct store *store, const char *name)
{
    const char *mark = strrchr(name, '~');
    auto_free char *thing = mark ? xstrndup(name, (size_t)(mark - name)) : xstrdup("scratch");
    auto_close lock = open_lock(store, thing);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB))
        return;
    auto_free char *path = store_path(store, "scratch", name);
    struct stat s;
    if (lstat(path, &s))
        return; /* another sweep was quicker */
    if (store_discard(store, path))
        store_note(store, "removed half-made '%s'", name);
}

static void sweep(struct store *store)
{
    auto_free char *path = xasprintf("%s/scratch", store->dir);
    auto_dir dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            sweep_one(store, entry->d_name);
}

/* A file where a folder belongs is moved away, once. */
static int make_folder(struct store *store, const char *folder, struct err *e)
{
    auto_free char *path = xasprintf("%s/%s", store->dir, folder);
    struct stat s;
    if (lstat(path, &s) == 0 && !S_ISDIR(s.st_mode)) {
        auto_free char *aside = xasprintf("%s.thrown-away", path);
        if (rename(path, aside) == 0)
            store_note(store, "'%s' was not a folder: it is now '%s'", path, aside);
    }
    if (stat(path, &s) == 0 && S_ISDIR(s.st_mode))
        return 0;
    return dir_make(path, 0755, e);
}

struct store *store_open(const char *dir, struct err *e)
{
    struct store *store = xcalloc(1, sizeof *store);
    store->dir = dir ? xstrdup(dir) : path_data_dir(e);
    if (!store->dir)
        goto fail;
    for (size_t i = 0; i < sizeof folders_table / sizeof *folders_table; i++)
        if (make_folder(store, folders_table[i], e))
            goto fail_wrapped;
    sweep(store);
    uint64_t freed = 0;
    store_drop_orphans(store, &store->notes, &freed);
    return store;
fail_wrapped:
    err_recode(e, ERR_ENVIRONMENT);
    err_wrap(e, "open the store '%s'", store->dir);
fail:
    store_close(store);
    return NULL;
}

void store_close(struct store *store)
{
    if (!store)
        return;
    store_configure(store, NULL, 0, 0);
    free(store->customs);
    store_use_kernel(store, NULL, NULL);
    strv_done(&store->notes);
    free(store->dir);
    free(store);
}

char *store_scratch_folder(struct store *store, const char *thing, struct err *e)
{
    auto_free char *path = xasprintf("%s/scratch/%s~XXXXXX", store->dir, thing);
    if (!mkdtemp(path)) {
        store_failed(e, errno, "make folder", path);
        return NULL;
    }
    return STEAL_PTR(path);
}

int new_file_make(struct store *store, const char *thing, const char *folder, bool unnamed, struct new_file *ret_file,
                  struct err *e)
{
    auto_free char *path = xasprintf("%s/%s", store->dir, folder);
    int fd = unnamed ? open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
    if (unnamed && fd < 0 && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
        return store_failed(e, errno, "create a file in", path);
    auto_free char *temporary = NULL;
    if (fd < 0) { /* a file system without O_TMPFILE: half-made by its name, which the lock's holder keeps */
        temporary = xasprintf("%s/scratch/%s~XXXXXX", store->dir, thing);
        fd = mkostemp(temporary, O_CLOEXEC);
        if (fd < 0)
            return store_failed(e, errno, "create", temporary);
    }
    *ret_file = (struct new_file){.fd = fd, .temporary = STEAL_PTR(temporary)};
    return 0;
}

static int place(const struct new_file *file, const char *path)
{
    auto_free char *self = xasprintf("/proc/self/fd/%d", file->fd);
    return file->temporary ? rename(file->temporary, path) : linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

int new_file_place(struct new_file *file, const char *path, struct err *e)
{
    /* what is there has the same name but may be damaged: the new one takes its place */
    int failed = place(file, path);
    if (failed && (errno == EEXIST || errno == EISDIR)) {
        if (dir_remove(path, e))
            return -1;
        failed = place(file, path);
    }
    if (failed)
        return err_sys(e, errno, "publish '%s'", path);
    free(STEAL_PTR(file->temporary));
    return 0;
}

void new_file_done(struct store *store, struct new_file *file)
{
    if (file->temporary)
        store_discard(store, file->temporary);
    free(file->temporary);
    if (file->fd >= 0)
        close(file->fd);
    *file = (struct new_file){.fd = -1};
}

int store_unnamed_file(struct store *store, const char *folder, struct err *e)
{
    struct new_file file;
    if (new_file_make(store, "scratch", folder, true, &file, e))
        return -1;
    int fd = STEAL_FD(file.fd);
    new_file_done(store, &file);
    return fd;
}

static int write_and_rename(const char *temporary, const char *path, const void *bytes, size_t len, struct err *e)
{
    auto_close fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_sys(e, errno, "create '%s'", temporary);
    if (fd_write_all(fd, bytes, len, e) || store_seal(fd, e))
        return -1;
    if (fsync(fd))
        return err_sys(e, errno, "sync");
    if (rename(temporary, path))
        return err_sys(e, errno, "rename");
    return 0;
}

int store_write_file(struct store *store, const char *thing, const char *folder, const char *name, const void *bytes, size_t len,
                     struct err *e)
{
    auto_free char *work = store_scratch_folder(store, thing, e);
    if (!work)
        return -1;
    auto_free char *temporary = xasprintf("%s/file", work);
    auto_free char *path = store_path(store, folder, name);
    int failed = write_and_rename(temporary, path, bytes, len, e);
    store_discard(store, work);
    return failed ? err_wrap(e, "write '%s'", path) : 0;
}

int store_check_free(struct store *store, uint64_t bytes, const char *purpose, struct err *e)
{
    struct statvfs s;
    if (statvfs(store->dir, &s))
        return err_sys(e, errno, "free space of '%s'", store->dir);
    uint64_t available = (uint64_t)s.f_bavail * s.f_frsize;
    if (available >= bytes)
        return 0;
    return err_set(e, ERR_ENVIRONMENT, "%s needs %llu MiB in '%s', which has %llu MiB free", purpose,
                   (unsigned long long)(bytes >> 20), store->dir, (unsigned long long)(available >> 20));
}
