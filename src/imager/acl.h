/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <stddef.h>
#include <stdint.h>

#define ACL_ENTRIES_MAX 256
#define ACL_BYTES_MAX (4 + 8 * ACL_ENTRIES_MAX)

/* A POSIX.1e list of an archive's entry in the form of the attributes system.posix_acl_access and _default (version 2,
 * linux/posix_acl_xattr.h). type: ARCHIVE_ENTRY_ACL_TYPE_ACCESS or _DEFAULT. Returns the length; 0: the entry has none, or
 * nothing beyond its mode; -1: it cannot be kept (names without numbers, too many). */
int acl_to_xattr(struct archive_entry *entry, int type, uint8_t bytes[ACL_BYTES_MAX]) __attribute__((nonnull));
