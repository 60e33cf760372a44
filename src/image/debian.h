/* SPDX-License-Identifier: Apache-2.0 */
/* debian:SUITE+PKG,... : what mmdebstrap is called with. Sources, keyrings, proxy and authentication are the host's own apt
 * configuration; none of it stays in the image, whose sources.list names Debian's public mirror. */
#pragma once

#include "image/store_priv.h"

/* Fills argv for mmdebstrap, which writes a tar of the system to its stdout. `source` is what follows "debian:". Files it
 * needs are put into `folder`. */
int debian_arguments(const char *source, const char *folder, const struct image_progress *progress, struct strv *ret_argv,
                     struct err *e) __attribute__((nonnull(1, 2, 4, 5), warn_unused_result));
/* The stage that a line of mmdebstrap's belongs to ("downloading packages"), or NULL. */
const char *debian_stage(const char *line) __attribute__((nonnull));
