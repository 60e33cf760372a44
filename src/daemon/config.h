/* SPDX-License-Identifier: Apache-2.0 */
/* The operator's configuration: one YAML file, read once, whole or not at all.
 *
 * The keys are one table (config.c): name, kind, place in the struct, limits, default. A key that is not in it, a value of the
 * wrong kind, or one out of its limits is ERR_USAGE with file, line, column, and what to write instead. */
#pragma once

#include "base/alloc.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* custom_images: a name for a source of images ("debian:...", "tar:/file", "dir:/folder"). */
struct config_image {
    char *name, *source;
};

struct config {
    char *accel;   /* "auto", "kvm", "tcg" */
    char *backend; /* "auto", "qemu" */
    uint64_t default_cpus, default_memory_mb;
    uint64_t default_disk_mb, max_disk_mb;
    uint64_t image_store_max_gb;
    char *kernel, *kernel_modules; /* NULL: Debian's; the folder lib/modules/RELEASE of the same kernel, NULL: all built in */
    struct config_image *custom_images;
    size_t custom_images_len;
    /* the embedded engine */
    char *host; /* NULL: loopback */
    uint64_t port;
    char *token; /* NULL: none */
    struct strv allowed_origins;
};

/* Fills in the defaults; config_done frees. */
void config_init(struct config *config) __attribute__((nonnull));
void config_done(struct config *config);

/* The file at `path`, or with NULL the default one: /etc/iii-sandbox/config.yaml for root, else
 * $XDG_CONFIG_HOME/iii-sandbox/config.yaml (~/.config). A named file that is missing is ERR_USAGE; none at the default place
 * leaves config as it was, and so does a failure. */
int config_load(struct config *config, const char *path, struct err *e) __attribute__((nonnull(1, 3), warn_unused_result));
/* The same from text, named `name` in messages; pure. Success replaces the whole of config. */
int config_parse(struct config *config, const char *name, const char *text, size_t len, struct err *e)
    __attribute__((nonnull, warn_unused_result));
