/* SPDX-License-Identifier: Apache-2.0 */
/* An image by name: its record and blob from the store, or made now under the image's lock. */
#include "image/store_priv.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/limits.h"
#include "image/catalog.h"
#include "image/make.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#define PREPARE_FREE_MIN GIB /* a debian: image of the presets' size, unpacked and as an image */

void image_done(struct image *image)
{
    free(image->name);
    free(image->workdir);
    free(image->user);
    strv_done(&image->env);
    strv_done(&image->entrypoint);
    strv_done(&image->command);
    if (image->fd >= 0)
        close(image->fd);
    *image = (struct image){.fd = -1};
}

/* 1: there; 0: not there (or thrown away as damaged); -1: error. */
static int read_record(struct store *store, const char *name, struct record *ret_record, struct err *e)
{
    auto_free char *file = catalog_file_name(name);
    auto_free char *path = store_path(store, "images", file);
    auto_free char *text = NULL;
    struct err why = ERR_INIT;
    size_t len;
    if (file_read(path, SMALL_FILE_MAX, &text, &len, &why)) {
        if (why.sys_errno == ENOENT)
            return 0;
        if (why.sys_errno && why.sys_errno != EISDIR)
            return err_sys(e, why.sys_errno, "read '%s'", path);
    } else if (strlen(text) != len) {
        err_set(&why, ERR_INVALID, "the file has zero bytes");
    } else if (record_parse(text, ret_record, &why) == 0) {
        if (!strcmp(ret_record->recipe.name, name))
            return 1;
        record_done(ret_record);
        err_set(&why, ERR_INVALID, "it is of another image");
    }
    if (dir_remove(path, e))
        return -1;
    store_note(store, "removed the damaged record '%s': %s", path, why.text);
    return 0;
}

/* The blob with a lease. 1: there; 0: not there or of the wrong size (then removed). */
static int open_blob(struct store *store, const struct record *record, int *ret_fd, struct err *e)
{
    auto_free char *path = store_path(store, "blobs/sha256", record->digest);
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat s;
    if (fd < 0)
        return errno == ENOENT || errno == ELOOP ? 0 : err_sys(e, errno, "open '%s'", path);
    if (flock(fd, LOCK_SH | LOCK_NB)) {
        if (errno != EWOULDBLOCK)
            return err_sys(e, errno, "lease '%s'", path);
        return 0; /* it is being removed */
    }
    if (fstat(fd, &s))
        return err_sys(e, errno, "stat '%s'", path);
    if (s.st_nlink == 0)
        return 0; /* removed between the open and the lease */
    if (!S_ISREG(s.st_mode) || (uint64_t)s.st_size != record->bytes) {
        if (dir_remove(path, e))
            return -1;
        store_note(store, "removed the damaged image file '%s': its size is wrong", path);
        return 0;
    }
    (void)futimens(fd, (const struct timespec[2]){{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}}); /* last use, for prune */
    *ret_fd = STEAL_FD(fd);
    return 1;
}

static void hand_out(struct record *record, int fd, struct image *ret_image)
{
    struct recipe *r = &record->recipe;
    *ret_image = (struct image){.name = STEAL_PTR(r->name),
                                .fd = fd,
                                .bytes = record->bytes,
                                .env = r->env,
                                .workdir = STEAL_PTR(r->workdir),
                                .user = STEAL_PTR(r->user),
                                .entrypoint = r->entrypoint,
                                .command = r->command};
    memcpy(ret_image->digest, record->digest, sizeof record->digest);
    r->env = r->entrypoint = r->command = (struct strv){0};
    record_done(record);
}

/* 1: handed out; 0: has to be made. */
static int find_made(struct store *store, const struct recipe *recipe, struct image *ret_image, struct err *e)
{
    struct record record;
    int there = read_record(store, recipe->name, &record, e);
    if (there <= 0)
        return there;
    int fd = -1;
    there = recipe_equals(&record.recipe, recipe) ? open_blob(store, &record, &fd, e) : 0;
    if (there == 1)
        hand_out(&record, fd, ret_image);
    else
        record_done(&record);
    return there;
}

/* Gives a finished file without a name its place among the blobs; the same content may be there already. */
static int publish_blob(struct store *store, int fd, const char *digest, struct err *e)
{
    auto_free char *path = store_path(store, "blobs/sha256", digest);
    auto_free char *self = xasprintf("/proc/self/fd/%d", fd);
    if (fchmod(fd, 0444) || fsync(fd))
        return err_sys(e, errno, "write '%s'", path);
    if (linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    if (errno != EEXIST)
        return err_sys(e, errno, "publish '%s'", path);
    /* what is there has the same name but may be damaged: the new one takes its place */
    if (dir_remove(path, e))
        return -1;
    if (linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW))
        return err_sys(e, errno, "publish '%s'", path);
    return 0;
}

static int make_record(struct store *store, const char *thing, struct recipe *recipe, const struct image_progress *progress,
                       struct err *e)
{
    if (store_check_free(store, PREPARE_FREE_MIN, "preparing an image", e))
        return -1;
    auto_close fd = store_unnamed_file(store, "blobs/sha256", e);
    if (fd < 0 || make_image(store, thing, recipe->source, fd, progress, e))
        return -1;
    struct record record = {.made_secs = clock_realtime_ns() / 1000000000u};
    struct stat s;
    progress_stage(progress, "checking the image", 0, 0);
    if (hash_fd(fd, record.digest, e) || publish_blob(store, fd, record.digest, e))
        return -1;
    if (fstat(fd, &s))
        return err_sys(e, errno, "stat the image");
    record.bytes = (uint64_t)s.st_size;
    record.recipe = *recipe;
    auto_free char *text = record_format(&record);
    auto_free char *file = catalog_file_name(recipe->name);
    return store_write_file(store, thing, "images", file, text, strlen(text), e);
}

static int ensure(struct store *store, struct recipe *recipe, const struct image_progress *progress, struct image *ret_image,
                  bool *ret_made, struct err *e)
{
    int there = find_made(store, recipe, ret_image, e);
    if (there)
        return there < 0 ? -1 : 0;
    auto_free char *file = catalog_file_name(recipe->name);
    auto_free char *thing = xasprintf("image-%s", file);
    auto_close lock = -1;
    if (store_lock(store, thing, progress, &lock, e))
        return -1;
    there = find_made(store, recipe, ret_image, e); /* the lock's holder before us may have made it */
    if (there)
        return there < 0 ? -1 : 0;
    *ret_made = true;
    if (make_record(store, thing, recipe, progress, e))
        return -1;
    there = find_made(store, recipe, ret_image, e);
    return there == 1 ? 0 : there < 0 ? -1 : err_set(e, ERR_IMAGE_PREPARE, "it went away as soon as it was made");
}

int image_ensure(struct store *store, const char *name, const struct image_progress *progress, struct image *ret_image,
                 bool *ret_prepared, struct err *e)
{
    struct recipe recipe;
    bool made = false;
    if (catalog_find(name, &recipe, e))
        return -1;
    int failed = ensure(store, &recipe, progress, ret_image, &made, e);
    recipe_done(&recipe);
    if (failed)
        return err_wrap(e, "prepare the image '%s'", name);
    if (ret_prepared)
        *ret_prepared = made;
    return 0;
}
