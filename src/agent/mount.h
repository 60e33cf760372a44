/* SPDX-License-Identifier: Apache-2.0 */
/* From the kernel's initramfs to the root a program sees. Runs once, in PID 1. */
#pragma once

#include "base/err.h"

struct root {
    int upper_dirfd; /* the writable disk's own root, which has no path afterwards */
};

int mount_kernel_files(struct err *e) __attribute__((nonnull, warn_unused_result)); /* /dev, /proc, /sys of the initramfs */
/* /modules/NAME.ko in the order of the lines of /modules/order, or in the usual one without that file; absent modules are
 * skipped. The folder is removed. */
void mount_load_modules(void);
/* /dev/vda (ext4, read-only) below /dev/vdb (ext4) as overlay; becomes "/" with /dev, /proc and /sys moved along. */
int mount_root(struct root *ret_root, struct err *e) __attribute__((nonnull, warn_unused_result));
int mount_program_files(struct err *e) __attribute__((nonnull, warn_unused_result)); /* cgroup2, pts, shm, run, links, /tmp */
