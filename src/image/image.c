/* SPDX-License-Identifier: Apache-2.0 */
/* An image by name: its record and blob from the store, or made now under the image's lock. */
#include "image/store_priv.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "image/catalog.h"
#include "image/make.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#define BLOB_MODE 0400       /* a machine gets the open file; nobody else has to read what the owner packed */
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

int store_find_recipe(const struct store *store, const char *name, struct recipe *ret_recipe, struct err *e)
{
    for (size_t i = 0; i < store->customs_len; i++) {
        const struct recipe *custom = &store->customs[i];
        struct recipe recipe;
        if (strcmp(custom->name, name) != 0)
            continue;
        if (catalog_find(custom->source, &recipe, e))
            return err_wrap(e, "custom image '%s'", name);
        free(recipe.name); /* a preset's own environment comes first, so that the operator's wins */
        recipe.name = xstrdup(name);
        for (size_t k = 0; k < custom->env.len; k++)
            strv_add(&recipe.env, custom->env.items[k]);
        *ret_recipe = recipe;
        return 0;
    }
    return catalog_find(name, ret_recipe, e);
}

static int parse_sealed(const char *path, struct record *ret_record, struct err *why)
{
    auto_free char *text = NULL;
    size_t len;
    struct stat s;
    if (file_read(path, SMALL_FILE_MAX, &text, &len, why))
        return -1;
    if (stat(path, &s) || !store_is_sealed(&s))
        return err_set(why, ERR_INVALID, "it was changed");
    if (strlen(text) != len)
        return err_set(why, ERR_INVALID, "it has zero bytes");
    return record_parse(text, ret_record, why);
}

int store_read_record(struct store *store, const char *file, struct record *ret_record, struct err *e)
{
    auto_free char *path = store_path(store, "images", file);
    struct err why = ERR_INIT;
    if (parse_sealed(path, ret_record, &why) == 0) {
        auto_free char *right = catalog_file_name(ret_record->recipe.name);
        if (!strcmp(right, file))
            return 1;
        record_done(ret_record);
        err_set(&why, ERR_INVALID, "it is of another image");
    }
    if (why.sys_errno == ENOENT)
        return 0;
    if (why.sys_errno && why.sys_errno != EISDIR)
        return err_sys(e, why.sys_errno, "read '%s'", path);
    if (dir_remove(path, e))
        return -1;
    store_note(store, "removed the damaged record '%s': %s", path, why.text);
    return 0;
}

/* 1: as it was made; 0: not. A new time alone (a copied store) is mended. */
static int blob_is_whole(int fd, const struct record *record, const struct stat *s, bool thorough, struct err *e)
{
    char digest[65];
    if (!S_ISREG(s->st_mode) || (uint64_t)s->st_size != record->bytes)
        return 0;
    if (store_is_sealed(s) && !thorough)
        return 1;
    if (hash_fd(fd, digest, e))
        return -1;
    if (strcmp(digest, record->digest) != 0)
        return 0;
    struct err unsealed = ERR_INIT; /* not ours to change: it is read again next time */
    if (!store_is_sealed(s) && store_seal(fd, &unsealed))
        return 1;
    return 1;
}

int store_open_blob(struct store *store, const struct record *record, bool thorough, int *ret_fd, struct err *e)
{
    auto_free char *path = store_path(store, "blobs/sha256", record->digest);
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat s;
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 && errno != ELOOP)
        return err_sys(e, errno, "open '%s'", path);
    while (fd >= 0 && flock(fd, LOCK_SH)) /* who holds it alone is removing it, or only looking whether he could: quickly done */
        if (errno != EINTR)
            return err_sys(e, errno, "lease '%s'", path);
    if (fd >= 0 && fstat(fd, &s))
        return err_sys(e, errno, "stat '%s'", path);
    if (fd >= 0 && s.st_nlink == 0)
        return 0;
    int whole = fd >= 0 ? blob_is_whole(fd, record, &s, thorough, e) : 0;
    if (whole < 0)
        return err_wrap(e, "read '%s'", path);
    if (!whole) {
        if (dir_remove(path, e))
            return -1;
        store_note(store, "removed the damaged image file '%s'", path);
        return 0;
    }
    (void)futimens(fd, (const struct timespec[2]){{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}}); /* last use, for prune */
    /* a store that was copied, or made by an older release, shows its images to all; another owner's is used as it is */
    if ((s.st_mode & 0777) != BLOB_MODE && fchmod(fd, BLOB_MODE) && errno != EPERM && errno != EROFS)
        store_note(store, "the image file '%s' may be readable by others", path);
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
    auto_free char *file = catalog_file_name(recipe->name);
    int there = store_read_record(store, file, &record, e);
    if (there <= 0)
        return there;
    int fd = -1;
    there = recipe_equals(&record.recipe, recipe) ? store_open_blob(store, &record, false, &fd, e) : 0;
    if (there == 1)
        hand_out(&record, fd, ret_image);
    else
        record_done(&record);
    return there;
}

int store_publish_blob(struct store *store, struct new_file *file, const char *digest, struct err *e)
{
    auto_free char *path = store_path(store, "blobs/sha256", digest);
    if (store_seal(file->fd, e))
        return -1;
    /* the lease is held until the record is written, so that nobody takes the new blob for one without a name */
    if (flock(file->fd, LOCK_SH) || fchmod(file->fd, BLOB_MODE) || fsync(file->fd))
        return err_sys(e, errno, "write '%s'", path);
    return new_file_place(file, path, e);
}

/* A debian: image is unpacked and packed again; anything else grows as large as it is, which is known for a plain archive. */
static uint64_t needed_bytes(const char *source)
{
    struct stat s;
    if (text_has_prefix(source, "debian:"))
        return PREPARE_FREE_MIN;
    if (text_has_prefix(source, "tar:") && stat(source + 4, &s) == 0 && S_ISREG(s.st_mode))
        return (uint64_t)s.st_size;
    return MIB;
}

/* The finished image gets its place, then its record. */
static int record_blob(struct store *store, const char *thing, struct recipe *recipe, struct new_file *blob,
                       const struct image_progress *progress, struct err *e)
{
    struct record record = {.made_secs = clock_realtime_ns() / 1000000000u};
    struct stat s;
    progress_stage(progress, "checking the image", 0, 0);
    if (hash_fd(blob->fd, record.digest, e) || store_publish_blob(store, blob, record.digest, e))
        return -1;
    if (fstat(blob->fd, &s))
        return err_sys(e, errno, "stat the image");
    record.bytes = (uint64_t)s.st_size;
    record.recipe = *recipe;
    auto_free char *text = record_format(&record);
    auto_free char *file = catalog_file_name(recipe->name);
    return store_write_file(store, thing, "images", file, text, strlen(text), e);
}

static int make_record(struct store *store, const char *thing, struct recipe *recipe, const struct image_progress *progress,
                       struct err *e)
{
    if (store_check_free(store, needed_bytes(recipe->source), "preparing an image", e))
        return -1;
    struct new_file file;
    if (new_file_make(store, thing, "blobs/sha256", true, &file, e))
        return -1;
    int failed =
        make_image(store, thing, recipe->source, file.fd, progress, e) || record_blob(store, thing, recipe, &file, progress, e);
    new_file_done(store, &file);
    return failed ? -1 : 0;
}

/* What is beyond the operator's limit goes; what was just made is in use and stays. */
static void collect(struct store *store)
{
    struct err e = ERR_INIT;
    if (store->max_bytes && store_collect(store, store->max_bytes, &e))
        store_note(store, "the store cannot be tidied: %s", e.text);
}

static int ensure(struct store *store, struct recipe *recipe, bool fresh, const struct image_progress *progress,
                  struct image *ret_image, bool *ret_made, struct err *e)
{
    int there = fresh ? 0 : find_made(store, recipe, ret_image, e);
    if (there)
        return there < 0 ? -1 : 0;
    auto_free char *file = catalog_file_name(recipe->name);
    auto_free char *thing = xasprintf("image-%s", file);
    auto_close lock = -1;
    if (store_lock(store, thing, progress, &lock, e))
        return -1;
    there = fresh ? 0 : find_made(store, recipe, ret_image, e); /* the lock's holder before us may have made it */
    if (there)
        return there < 0 ? -1 : 0;
    *ret_made = true;
    if (make_record(store, thing, recipe, progress, e))
        return -1;
    there = find_made(store, recipe, ret_image, e);
    if (there == 1)
        collect(store);
    return there == 1 ? 0 : there < 0 ? -1 : err_set(e, ERR_IMAGE_PREPARE, "it went away as soon as it was made");
}

int image_pull(struct store *store, const char *name, bool fresh, const struct image_progress *progress, struct image *ret_image,
               bool *ret_prepared, struct err *e)
{
    struct recipe recipe;
    bool made = false;
    if (store_find_recipe(store, name, &recipe, e))
        return -1;
    int failed = ensure(store, &recipe, fresh, progress, ret_image, &made, e);
    recipe_done(&recipe);
    if (failed)
        return err_wrap(e, "prepare the image '%s'", name);
    if (ret_prepared)
        *ret_prepared = made;
    return 0;
}

int image_ensure(struct store *store, const char *name, const struct image_progress *progress, struct image *ret_image,
                 bool *ret_prepared, struct err *e)
{
    return image_pull(store, name, false, progress, ret_image, ret_prepared, e);
}
