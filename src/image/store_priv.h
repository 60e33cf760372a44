/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the store: folders, locks, temporary things. Nothing outside src/image includes this. */
#pragma once

#include "image/image.h"

#include "base/cleanup.h"

#include <signal.h>

#include "image/catalog.h"

#include <sys/stat.h>

struct store {
    char *dir;
    struct strv notes;      /* what was thrown away, for the user */
    struct recipe *customs; /* of the configuration */
    size_t customs_len;
    uint64_t max_bytes;                 /* 0: no collection */
    char *kernel_path, *kernel_modules; /* the operator's own; NULL: the packaged one */
};

/* "<dir>/<folder>/<name>", owned by the caller. */
char *store_path(const struct store *store, const char *folder, const char *name) __attribute__((nonnull));
/* Remembers a sentence for store_notes. */
void store_note(struct store *store, const char *format, ...) __attribute__((nonnull, format(printf, 2, 3)));

/* The exclusive lock of one thing ("image-python", "kernel"), waiting for another holder (progress says so). Closing the
 * descriptor gives it back; so does death. */
int store_lock(struct store *store, const char *thing, const struct image_progress *progress, int *ret_fd, struct err *e)
    __attribute__((nonnull(1, 2, 4, 5), warn_unused_result));

/* The same without waiting. 1: taken; 0: someone else holds it. */
int store_try_lock(struct store *store, const char *thing, int *ret_fd, struct err *e)
    __attribute__((nonnull, warn_unused_result));

/* A new folder in scratch/ whose name holds the lock's: whoever opens the store and can take that lock removes it. */
char *store_scratch_folder(struct store *store, const char *thing, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Removes such a folder, or anything in scratch/; what cannot be removed becomes a note, and false. */
bool store_discard(struct store *store, const char *path) __attribute__((nonnull));
/* A file that is being made: without a name, or, where the file system has no O_TMPFILE, in scratch/ under its lock's name. */
struct new_file {
    int fd;          /* read-write, mode 0600 */
    char *temporary; /* NULL: without a name */
};
/* With the lock of `thing` held. unnamed: false makes the named kind, whatever the file system can. */
int new_file_make(struct store *store, const char *thing, const char *folder, bool unnamed, struct new_file *ret_file,
                  struct err *e) __attribute__((nonnull, warn_unused_result));
/* Gives it its name, in place of what has that name. */
int new_file_place(struct new_file *file, const char *path, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Closes it; what has no place yet goes. */
void new_file_done(struct store *store, struct new_file *file) __attribute__((nonnull));

/* A file without a name in `folder` (O_TMPFILE, or a name that is gone at once). */
int store_unnamed_file(struct store *store, const char *folder, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Writes folder/name as a whole or not at all; the temporary lies in scratch/ under the lock's name. */
int store_write_file(struct store *store, const char *thing, const char *folder, const char *name, const void *bytes, size_t len,
                     struct err *e) __attribute__((nonnull, warn_unused_result));
/* ERR_ENVIRONMENT with folder and numbers when less than bytes are free. `purpose`: "preparing an image". */
int store_check_free(struct store *store, uint64_t bytes, const char *purpose, struct err *e)
    __attribute__((nonnull, warn_unused_result));

/* Finished files carry one fixed modification time, so a later write of anyone's is seen at once, without reading them. */
int store_seal(int fd, struct err *e) __attribute__((nonnull, warn_unused_result));
bool store_is_sealed(const struct stat *s) __attribute__((nonnull));

/* A custom image, a preset or a source, by name. */
int store_find_recipe(const struct store *store, const char *name, struct recipe *ret_recipe, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* Reads one record by the name of its file. 1: there; 0: not there, or damaged and thrown away; -1: error. */
int store_read_record(struct store *store, const char *file, struct record *ret_record, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* The blob with a lease (shared lock). 1: there; 0: not there, or damaged and thrown away. thorough: read whatever it seems. */
int store_open_blob(struct store *store, const struct record *record, bool thorough, int *ret_fd, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* A finished file takes its place among the blobs, leased by its descriptor and for its owner's eyes only. */
int store_publish_blob(struct store *store, struct new_file *file, const char *digest, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* Removes blobs that no record names and nobody holds. Sentences may be NULL. */
void store_drop_orphans(struct store *store, struct strv *sentences, uint64_t *freed_bytes) __attribute__((nonnull(1, 3)));
/* As store_prune, of images and old initramfs only: what the store does by itself. Kernels go when the operator says so. */
int store_collect(struct store *store, uint64_t max_bytes, struct err *e) __attribute__((nonnull, warn_unused_result));

/* A whole kernel's folder: while the lease is held, prune leaves it. */
struct kernel_found {
    char *name, *order; /* of the folder; its modules */
    int lease_fd;
};
#define KERNEL_FOUND_INIT ((struct kernel_found){.lease_fd = -1})
bool kernel_find(struct store *store, const char *name, struct kernel_found *ret_found)
    __attribute__((nonnull, warn_unused_result));
void kernel_found_done(struct kernel_found *found) __attribute__((nonnull));
/* What kernels/current says. 1: a name; 0: none. */
int kernel_current_name(struct store *store, char **ret_name, struct err *e) __attribute__((nonnull, warn_unused_result));
/* The folder's name of the operator's own kernel (store->kernel_path is set). */
int kernel_custom_name(const struct store *store, char **ret_name, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Are all files of a kernel's folder as they were put there? thorough: by content. */
bool kernel_is_whole(struct store *store, const char *release, const char *order, bool thorough) __attribute__((nonnull));

/* sha256 of a descriptor's content from its start; holes are not read but count as zeros. */
int hash_fd(int fd, char ret_hex[65], struct err *e) __attribute__((nonnull, warn_unused_result));
void hash_bytes(const void *bytes, size_t len, char ret_hex[65]) __attribute__((nonnull(3)));

/* Progress: at most ten calls a second besides changes of stage. Safe on NULL. */
void progress_stage(const struct image_progress *progress, const char *stage, uint64_t done, uint64_t total);
bool progress_cancelled(const struct image_progress *progress);
