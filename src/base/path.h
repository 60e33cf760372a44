/* SPDX-License-Identifier: Apache-2.0 */
/* Where things are on this host. All results are absolute and owned by the caller. */
#pragma once

#include "base/err.h"

/* Data that lasts (images, kernels, templates): /var/lib/iii-sandbox for root, else $XDG_DATA_HOME/iii-sandbox or
 * ~/.local/share/iii-sandbox. III_SANDBOX_DATA_DIR overrides both. ERR_ENVIRONMENT without HOME. */
char *path_data_dir(struct err *e) __attribute__((nonnull, warn_unused_result));
/* The folder for the writable disks of running machines (unnamed files, O_TMPFILE): under the data folder, so that they are
 * on a real disk and not in memory. */
char *path_scratch_dir(struct err *e) __attribute__((nonnull, warn_unused_result));
/* One of our other programs (iii-sandbox-agent, iii-sandbox-image): beside this program, else ../libexec/iii-sandbox.
 * ERR_ENVIRONMENT naming both places when it is in neither. */
char *path_program(const char *name, struct err *e) __attribute__((nonnull, warn_unused_result));
/* A program of the host by PATH; ERR_ENVIRONMENT naming it when there is none. */
char *path_find_in_path(const char *name, struct err *e) __attribute__((nonnull, warn_unused_result));
