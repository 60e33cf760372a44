/* SPDX-License-Identifier: Apache-2.0 */
/* The store of bootable things and how they get into it: images, kernels, the initramfs, the empty writable disk.
 *
 * This code blocks (it runs package tools and hashes files): the command line calls it directly, the daemon in a child
 * process of its own. Everything in the store appears by rename from a temporary name, so whatever is there is whole; each
 * thing that is made is made under its own lock, so two users at once prepare once. Layout (docs/ARCHITECTURE.md):
 *   images/<name> → a small text file naming a blob and the image's settings; blobs/sha256/<digest>; kernels/<release>/;
 *   initramfs/<key>; disks/<size>; locks/; scratch/ */
#pragma once

#include "base/alloc.h"
#include "base/err.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct store; /* an opened store folder */

/* Opens (and makes) the store at path_data_dir(), or at dir when it is not NULL. */
struct store *store_open(const char *dir, struct err *e) __attribute__((nonnull(2), warn_unused_result));
void store_close(struct store *store);
/* Sentences about half-made or damaged things that were thrown away since the store was opened. Owned by the store. */
const struct strv *store_notes(const struct store *store) __attribute__((nonnull));

/* An image of the operator's own (custom_images of the configuration): a name for a source. */
struct image_custom {
    const char *name, *source; /* "debian:...", "tar:/abs/file", "dir:/abs/folder", or a preset's name */
    const char *const *env;    /* NULL-terminated "K=V", may be NULL */
};
/* What the operator configured. Texts are copied. max_bytes: image_ensure collects the least used images beyond it (0: never). */
void store_configure(struct store *store, const struct image_custom *customs, size_t customs_len, uint64_t max_bytes)
    __attribute__((nonnull(1)));

/* Progress of something slow. `stage` is a short present participle ("downloading packages"); done and total in bytes, total 0
 * when it is not known. Called at most ten times a second. NULL callback: silence. */
struct image_progress {
    void *context;
    void (*on_stage)(void *context, const char *stage, uint64_t done, uint64_t total);
    /* Set by a signal handler (installed without SA_RESTART): what is being made is given up, its children end, nothing stays
     * behind, ERR_INTERRUPTED. May be NULL. */
    const volatile sig_atomic_t *cancelled;
};

/* A prepared image, ready to be attached. Owned by the caller: image_done. */
struct image {
    char *name;      /* as asked for: "python" */
    char digest[65]; /* sha256 of the ext4 file */
    int fd;          /* read-only; keeps a lease (shared lock) on the blob while open */
    uint64_t bytes;  /* size of the file */
    struct strv env; /* "K=V" */
    char *workdir;   /* "" when the image names none */
    char *user;      /* "" for root */
    struct strv entrypoint, command;
};
void image_done(struct image *image);

/* The image by name: from the store, or prepared now (ERR_IMAGE_REFUSED: no such preset; ERR_IMAGE_PREPARE: failed, with the
 * tool's last lines). ret_prepared (may be NULL) tells whether it had to be made. */
int image_ensure(struct store *store, const char *name, const struct image_progress *progress, struct image *ret_image,
                 bool *ret_prepared, struct err *e) __attribute__((nonnull(1, 2, 4, 6), warn_unused_result));

/* As image_ensure; fresh: made anew even when it is there (running machines keep the old one). */
int image_pull(struct store *store, const char *name, bool fresh, const struct image_progress *progress, struct image *ret_image,
               bool *ret_prepared, struct err *e) __attribute__((nonnull(1, 2, 5, 7), warn_unused_result));

/* One prepared image, for people. */
struct image_info {
    char *name, *source, *digest;
    uint64_t bytes, disk_bytes; /* length of the image file; what it takes on the host */
    uint64_t made_secs, used_secs;
    bool in_use; /* a machine, or a preparation, holds a lease */
};
struct image_list {
    struct image_info *items; /* by name */
    size_t len;
};
void image_list_done(struct image_list *list);
int image_list(struct store *store, struct image_list *ret_list, struct err *e) __attribute__((nonnull, warn_unused_result));
/* ERR_IMAGE_ABSENT: not prepared here; ERR_LIMIT: in use. */
int image_remove(struct store *store, const char *name, struct err *e) __attribute__((nonnull, warn_unused_result));
/* Reads everything and drops what is damaged; a sentence for each finding (none: all is well). */
int store_verify(struct store *store, const struct image_progress *progress, struct strv *ret_findings, struct err *e)
    __attribute__((nonnull(1, 3, 4), warn_unused_result));
/* Removes what nothing names, old kernels and initramfs, and the least used images until max_bytes are kept. Nothing in use
 * goes. A sentence for each thing removed. */
int store_prune(struct store *store, uint64_t max_bytes, struct strv *ret_removed, uint64_t *ret_freed_bytes, struct err *e)
    __attribute__((nonnull, warn_unused_result));

/* A kernel with the modules that the agent needs, and the initramfs that carries the agent. */
struct kernel {
    char *release;    /* "6.1.0-..-cloud-amd64" */
    int kernel_fd;    /* read-only */
    int initramfs_fd; /* read-only */
};
void kernel_done(struct kernel *kernel);
/* The operator's own kernel instead of Debian's: a bzImage or ELF file, and lib/modules/RELEASE of the same release (NULL: all
 * that is needed is built in). NULL for both goes back. Texts are copied. */
void store_use_kernel(struct store *store, const char *path, const char *modules) __attribute__((nonnull(1)));
/* The kernel that machines would boot: the release of Debian's in the store, or the name the operator's own has there, as
 * kernel_ensure tells it (caller frees). NULL with e unset when it is not in the store yet. */
char *kernel_prepared_release(struct store *store, struct err *e) __attribute__((nonnull, warn_unused_result));
/* From the store, or fetched now. The initramfs is rebuilt when the agent program or a module changed. */
int kernel_ensure(struct store *store, const struct image_progress *progress, struct kernel *ret_kernel, bool *ret_prepared,
                  struct err *e) __attribute__((nonnull(1, 3, 5), warn_unused_result));

/* A fresh writable disk of size_mb: an unnamed file in the store's scratch folder, ext4 without journal, made by copying
 * the data segments of a template that mke2fs made once. The caller owns the read-write descriptor. */
int disk_new(struct store *store, unsigned size_mb, int *ret_fd, struct err *e) __attribute__((nonnull, warn_unused_result));
