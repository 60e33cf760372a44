/* SPDX-License-Identifier: Apache-2.0 */
/* Makes an image file from a source: a chain of children whose last is the jailed image program. */
#pragma once

#include "image/store_priv.h"

/* image_fd: an empty file. `thing`: the lock that the caller holds. */
int make_image(struct store *store, const char *thing, const char *source, int image_fd, const struct image_progress *progress,
               struct err *e) __attribute__((nonnull(1, 2, 3, 6), warn_unused_result));
