/* SPDX-License-Identifier: Apache-2.0 */
/* A file or folder of this host becomes a tar stream (pax): what goes into a guest by `run --file`, and the source `dir:` of an
 * image. Links, modes, times and hard links are kept; sockets are left out. The walk never follows a symbolic link, and
 * what changes while it is read is an error that names it. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct pack_options {
    bool keep_owners; /* else everything is root's */
    bool keep_xattrs;
    bool exact; /* times to the nanosecond, holes as holes, no time of access: the same tree gives the same bytes */
};

struct pack_summary {
    uint64_t entries, content_bytes, left_out;
};

/* Packs the entry `name` of the folder dir_fd ("." for the folder itself) under the name `as` ("" with ".": the folder's content
 * at the top). Writes to out_fd until done. */
int pack_tree(int dir_fd, const char *name, const char *as, int out_fd, const struct pack_options *options,
              struct pack_summary *ret_summary, struct err *e) __attribute__((nonnull, warn_unused_result));
