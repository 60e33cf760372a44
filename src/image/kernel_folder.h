/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel's folder in the store: vmlinuz, vmlinux when it can be unpacked, modules/NAME.ko, modules/order, and sums with the
 * digest of each. kernel_is_whole (store_priv.h) checks it. */
#pragma once

#include "image/store_priv.h"

/* Copies a kernel and what the agent needs of its modules (lib/modules/RELEASE, NULL: all is built in) into `made`, a folder
 * that is made. ERR_ENVIRONMENT when the file is no kernel or the modules are another release's. */
int kernel_folder_make(const char *kernel, const char *modules, const char *made, const struct image_progress *progress,
                       struct err *e) __attribute__((nonnull(1, 3, 5), warn_unused_result));
