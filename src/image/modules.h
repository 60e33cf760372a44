/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel modules the guest's agent needs, in the order in which they load. A package's modules carry the names of
 * what they depend on in their .modinfo section ("depends=a,b"); a wanted module that is not there is taken to be built into
 * the kernel, unless that is known not to be so. */
#pragma once

#include "base/alloc.h"
#include "base/err.h"

#include <stddef.h>

/* `root`: lib/modules/<release> of an unpacked package. ret_paths: absolute paths of .ko files (perhaps .ko.xz, .ko.zst), each
 * after what it depends on. */
int modules_choose(const char *root, struct strv *ret_paths, struct err *e) __attribute__((nonnull, warn_unused_result));
/* The module's name as the kernel knows it: "crc32c_intel" for ".../crc32c-intel.ko.xz". Owned by the caller. */
char *module_name(const char *path) __attribute__((nonnull));
/* What a module depends on, from its bytes: names separated by commas, or "". Owned by the caller. */
char *module_depends(const void *bytes, size_t len) __attribute__((nonnull));
