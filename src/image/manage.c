/* SPDX-License-Identifier: Apache-2.0 */
/* The store as a whole: what is in it, is it undamaged, and what may go. A blob is removed only by who holds its lock alone
 * and has looked at the records after taking it: whoever makes or uses an image holds the lock shared until its record is
 * there, so neither a new image nor one in use is ever lost. */
#include "image/store_priv.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "image/tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#define INITRAMFS_KEPT 8 /* builds of the agent that are used side by side */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in one of the store's folders, sorted. A folder that cannot be read is empty. */
static void names_in(const struct store *store, const char *folder, struct strv *names)
{
    auto_free char *path = xasprintf("%s/%s", store->dir, folder);
    auto_dir dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            strv_add(names, entry->d_name);
    if (names->len)
        qsort(names->items, names->len, sizeof *names->items, by_text);
}

/* Does any record name this digest? A record that cannot be read counts as one that does. */
static bool is_named(struct store *store, const char *digest)
{
    auto_strv files = {0};
    names_in(store, "images", &files);
    for (size_t i = 0; i < files.len; i++) {
        struct record record;
        struct err e = ERR_INIT;
        int there = store_read_record(store, files.items[i], &record, &e);
        if (there < 0)
            return true;
        bool same = there == 1 && !strcmp(record.digest, digest);
        if (there == 1)
            record_done(&record);
        if (same)
            return true;
    }
    return false;
}

/* Removes a blob that no record names and nobody holds. *freed grows by what it took. */
static bool drop_blob(struct store *store, const char *digest, uint64_t *freed)
{
    auto_free char *path = store_path(store, "blobs/sha256", digest);
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat s;
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) || fstat(fd, &s) || is_named(store, digest))
        return false;
    if (unlink(path))
        return false;
    *freed += (uint64_t)s.st_blocks * 512;
    return true;
}

void store_drop_orphans(struct store *store, struct strv *sentences, uint64_t *freed_bytes)
{
    auto_strv blobs = {0}, files = {0}, named = {0};
    names_in(store, "blobs/sha256", &blobs);
    names_in(store, "images", &files);
    for (size_t i = 0; i < files.len; i++) {
        struct record record;
        struct err e = ERR_INIT;
        if (store_read_record(store, files.items[i], &record, &e) != 1)
            continue;
        strv_add(&named, record.digest);
        record_done(&record);
    }
    for (size_t i = 0; i < blobs.len; i++) {
        bool known = false;
        for (size_t k = 0; k < named.len && !known; k++)
            known = !strcmp(named.items[k], blobs.items[i]);
        if (!known && drop_blob(store, blobs.items[i], freed_bytes) && sentences)
            strv_addf(sentences, "removed the image file %.16s, which no image uses", blobs.items[i]);
    }
}

static void info_done(struct image_info *info)
{
    free(info->name);
    free(info->source);
    free(info->digest);
}

void image_list_done(struct image_list *list)
{
    for (size_t i = 0; i < list->len; i++)
        info_done(&list->items[i]);
    free(list->items);
    *list = (struct image_list){0};
}

/* Nobody holds it when it can be locked alone; the lock is given back at once. */
static void look_at_blob(const struct store *store, struct image_info *info)
{
    auto_free char *path = store_path(store, "blobs/sha256", info->digest);
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat s;
    if (fd < 0 || fstat(fd, &s))
        return;
    info->disk_bytes = (uint64_t)s.st_blocks * 512;
    info->used_secs = (uint64_t)s.st_atim.tv_sec;
    info->in_use = flock(fd, LOCK_EX | LOCK_NB) != 0;
}

int image_list(struct store *store, struct image_list *ret_list, struct err *e)
{
    struct image_list list = {0};
    auto_strv files = {0};
    names_in(store, "images", &files);
    list.items = xcalloc(files.len ? files.len : 1, sizeof *list.items);
    for (size_t i = 0; i < files.len; i++) {
        struct record record;
        int there = store_read_record(store, files.items[i], &record, e);
        if (there < 0) {
            image_list_done(&list);
            return -1;
        }
        if (!there)
            continue;
        struct image_info *info = &list.items[list.len++];
        *info = (struct image_info){.name = xstrdup(record.recipe.name),
                                    .source = xstrdup(record.recipe.source),
                                    .digest = xstrdup(record.digest),
                                    .bytes = record.bytes,
                                    .made_secs = record.made_secs};
        record_done(&record);
        look_at_blob(store, info);
    }
    *ret_list = list;
    return 0;
}

/* With the image's lock held. */
static int remove_locked(struct store *store, const char *name, const char *file, uint64_t *freed, struct err *e)
{
    struct record record;
    int there = store_read_record(store, file, &record, e);
    if (there <= 0)
        return there < 0 ? -1 : err_set(e, ERR_IMAGE_ABSENT, "the image '%s' is not prepared here", name);
    struct image_info info = {.digest = record.digest};
    look_at_blob(store, &info);
    auto_free char *digest = xstrdup(record.digest);
    record_done(&record);
    if (info.in_use)
        return err_set(e, ERR_LIMIT, "the image '%s' is in use", name);
    auto_free char *path = store_path(store, "images", file);
    if (unlink(path))
        return err_sys(e, errno, "remove '%s'", path);
    drop_blob(store, digest, freed);
    return 0;
}

static int remove_image(struct store *store, const char *name, uint64_t *freed, struct err *e)
{
    auto_free char *file = catalog_file_name(name);
    auto_free char *thing = xasprintf("image-%s", file);
    auto_close lock = -1;
    int taken = store_try_lock(store, thing, &lock, e); /* it may be prepared for minutes, even by who waits for us */
    if (taken <= 0)
        return taken < 0 ? -1 : err_set(e, ERR_LIMIT, "the image '%s' is in use", name);
    return remove_locked(store, name, file, freed, e);
}

int image_remove(struct store *store, const char *name, struct err *e)
{
    uint64_t freed = 0;
    return remove_image(store, name, &freed, e);
}

/* --- verify --- */

static int verify_image(struct store *store, const char *file, const struct image_progress *progress, struct strv *findings,
                        struct err *e)
{
    struct record record;
    int there = store_read_record(store, file, &record, e);
    if (there <= 0) {
        if (!there)
            strv_addf(findings, "the record '%s' was damaged: removed", file);
        return there;
    }
    auto_close fd = -1;
    auto_free char *path = store_path(store, "images", file), *name = xstrdup(record.recipe.name);
    progress_stage(progress, "checking images", 0, 0);
    there = store_open_blob(store, &record, true, &fd, e);
    record_done(&record);
    if (there)
        return there < 0 ? -1 : 0;
    if (unlink(path) && errno != ENOENT)
        return err_sys(e, errno, "remove '%s'", path);
    strv_addf(findings, "the image '%s' was damaged: removed, it is prepared again when it is next used", name);
    return 0;
}

static int verify_kernels(struct store *store, struct strv *findings, struct err *e)
{
    auto_strv releases = {0};
    names_in(store, "kernels", &releases);
    for (size_t i = 0; i < releases.len; i++) {
        const char *release = releases.items[i];
        auto_free char *path = store_path(store, "kernels", release), *order_path = xasprintf("%s/modules/order", path);
        auto_free char *order = NULL;
        struct err why = ERR_INIT;
        if (!strcmp(release, "current"))
            continue;
        if (!file_read(order_path, SMALL_FILE_MAX, &order, NULL, &why) && kernel_is_whole(store, release, order, true))
            continue;
        if (dir_remove(path, e))
            return -1;
        strv_addf(findings, "the kernel %s was damaged: removed, it is fetched again when it is next used", release);
    }
    return 0;
}

/* Cheap to make again: whatever is not as it was made goes; the rest goes silently, which verifies it best. */
static int drop_derived(struct store *store, const char *folder, const char *what, struct strv *findings, struct err *e)
{
    auto_strv names = {0};
    names_in(store, folder, &names);
    for (size_t i = 0; i < names.len; i++) {
        auto_free char *path = store_path(store, folder, names.items[i]);
        struct stat s;
        if (lstat(path, &s) == 0 && !store_is_sealed(&s))
            strv_addf(findings, "%s '%s' was changed: removed", what, names.items[i]);
        if (dir_remove(path, e))
            return -1;
    }
    return 0;
}

int store_verify(struct store *store, const struct image_progress *progress, struct strv *ret_findings, struct err *e)
{
    auto_strv files = {0};
    struct strv findings = {0};
    names_in(store, "images", &files);
    int failed = 0;
    for (size_t i = 0; !failed && i < files.len; i++) {
        failed = verify_image(store, files.items[i], progress, &findings, e);
        if (!failed && progress_cancelled(progress))
            failed = err_set(e, ERR_INTERRUPTED, "interrupted");
    }
    failed = failed || verify_kernels(store, &findings, e) || drop_derived(store, "initramfs", "the initramfs", &findings, e) ||
             drop_derived(store, "disks", "the empty disk", &findings, e);
    if (failed) {
        strv_done(&findings);
        return err_wrap(e, "verify the store");
    }
    *ret_findings = findings;
    return 0;
}

/* --- prune --- */

static uint64_t disk_bytes(const char *path)
{
    struct stat s;
    return lstat(path, &s) ? 0 : (uint64_t)s.st_blocks * 512;
}

/* The folder goes when nobody is opening its files. */
static int drop_kernel(struct store *store, const char *name, struct strv *removed, uint64_t *freed, struct err *e)
{
    auto_free char *path = store_path(store, "kernels", name), *image = xasprintf("%s/vmlinuz", path);
    auto_close fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 ? errno != ENOTDIR && errno != ENOENT : flock(fd, LOCK_EX | LOCK_NB) != 0)
        return 0;
    uint64_t bytes = disk_bytes(image);
    if (dir_remove(path, e))
        return -1;
    *freed += bytes;
    strv_addf(removed, "removed the kernel %s, which is neither the current nor the configured one", name);
    return 0;
}

/* Kernels that are neither the current one nor the operator's; under the kernel's lock. */
static int prune_kernels(struct store *store, struct strv *removed, uint64_t *freed, struct err *e)
{
    auto_strv names = {0};
    auto_free char *current = NULL, *configured = NULL;
    struct err why = ERR_INIT;
    if (store->kernel_path && kernel_custom_name(store, &configured, &why))
        return 0; /* which of them is the operator's cannot be told now */
    if (kernel_current_name(store, &current, e) < 0)
        return -1;
    if (!current && !configured)
        return 0;
    names_in(store, "kernels", &names);
    for (size_t i = 0; i < names.len; i++) {
        const char *name = names.items[i];
        bool kept = !strcmp(name, "current") || (current && !strcmp(name, current)) || (configured && !strcmp(name, configured));
        if (!kept && drop_kernel(store, name, removed, freed, e))
            return -1;
    }
    return 0;
}

struct aged {
    char *path;
    int64_t used_secs;
};

static int newest_first(const void *a, const void *b)
{
    const struct aged *x = a, *y = b;
    return x->used_secs > y->used_secs ? -1 : x->used_secs < y->used_secs;
}

static void prune_initramfs(struct store *store, struct strv *removed, uint64_t *freed)
{
    auto_strv names = {0};
    names_in(store, "initramfs", &names);
    struct aged *files = xcalloc(names.len ? names.len : 1, sizeof *files);
    for (size_t i = 0; i < names.len; i++) {
        struct stat s;
        files[i].path = store_path(store, "initramfs", names.items[i]);
        files[i].used_secs = stat(files[i].path, &s) ? 0 : s.st_ctim.tv_sec;
    }
    qsort(files, names.len, sizeof *files, newest_first);
    for (size_t i = 0; i < names.len; i++) {
        uint64_t bytes = disk_bytes(files[i].path);
        if (i >= INITRAMFS_KEPT && unlink(files[i].path) == 0) {
            *freed += bytes;
            strv_addf(removed, "removed an old initramfs");
        }
        free(files[i].path);
    }
    free(files);
}

static int least_used_first(const void *a, const void *b)
{
    const struct image_info *x = a, *y = b;
    return x->used_secs < y->used_secs ? -1 : x->used_secs > y->used_secs;
}

static int prune_images(struct store *store, uint64_t max_bytes, struct strv *removed, uint64_t *freed, struct err *e)
{
    struct image_list list;
    if (image_list(store, &list, e))
        return -1;
    uint64_t kept = 0;
    for (size_t i = 0; i < list.len; i++)
        kept += list.items[i].disk_bytes;
    qsort(list.items, list.len, sizeof *list.items, least_used_first);
    for (size_t i = 0; i < list.len && kept > max_bytes; i++) {
        struct err why = ERR_INIT;
        if (list.items[i].in_use || remove_image(store, list.items[i].name, freed, &why))
            continue; /* in use, or someone was quicker */
        kept -= list.items[i].disk_bytes;
        strv_addf(removed, "removed the image '%s', the least used", list.items[i].name);
    }
    image_list_done(&list);
    return 0;
}

static int tidy(struct store *store, uint64_t max_bytes, bool kernels, struct strv *removed, uint64_t *freed, struct err *e)
{
    auto_close lock = -1;
    store_drop_orphans(store, removed, freed);
    if (prune_images(store, max_bytes, removed, freed, e))
        return -1;
    int taken = store_try_lock(store, "kernel", &lock, e); /* a kernel or an initramfs is being made: another time */
    if (taken <= 0)
        return taken;
    if (kernels && prune_kernels(store, removed, freed, e))
        return -1;
    prune_initramfs(store, removed, freed);
    return 0;
}

int store_collect(struct store *store, uint64_t max_bytes, struct err *e)
{
    auto_strv removed = {0};
    uint64_t freed = 0;
    return tidy(store, max_bytes, false, &removed, &freed, e);
}

int store_prune(struct store *store, uint64_t max_bytes, struct strv *ret_removed, uint64_t *ret_freed_bytes, struct err *e)
{
    struct strv removed = {0};
    uint64_t freed = 0;
    if (tidy(store, max_bytes, true, &removed, &freed, e)) {
        strv_done(&removed);
        return err_wrap(e, "tidy the store");
    }
    *ret_removed = removed;
    *ret_freed_bytes = freed;
    return 0;
}
