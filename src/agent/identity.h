/* SPDX-License-Identifier: Apache-2.0 */
/* What makes a machine its own. Everything is prepared at boot (files made, descriptors open, the boot id's bind mount
 * done), so that applying it in a restored clone is a handful of writes: 5 ms cold under emulation against 30. */
#pragma once

#include "wire/message.h"

#include <stdbool.h>

struct identity {
    int random_fd, boot_id_fd, hostname_fd, hosts_fd, machine_id_fd; /* -1: could not be prepared, skipped */
};

/* In the new root: makes /etc/hostname, hosts and machine-id (never following a link the image ships), and binds a file of
 * /run over /proc/sys/kernel/random/boot_id. */
void identity_prepare(struct identity *identity) __attribute__((nonnull));
/* ERR_INVALID for values that cannot be an identity, ERR_SYSTEM when one could not be set. */
int identity_apply(const struct identity *identity, const struct wire_identity *values, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* Steps the clock when it is more than 100 ms off; 0 leaves it. */
void identity_set_clock(uint64_t realtime_ns);
void identity_release_files(struct identity *identity) __attribute__((nonnull)); /* for the read-only remount at the end */

bool identity_hostname_is_valid(const char *hostname) __attribute__((nonnull)); /* RFC 1123 labels, at most 64 bytes */
