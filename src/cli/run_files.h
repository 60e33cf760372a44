/* SPDX-License-Identifier: Apache-2.0 */
/* Files and folders into and out of a machine: `run --file LOCAL:REMOTE` and `--out REMOTE:LOCAL`.
 *
 * A copy is a tar stream between iii-sandbox-image (which reads or writes this host's files, jailed) and the guest's agent,
 * joined here: helper's pipe ↔ one call's channel, each waiting for the other. States: the helper and the call both run; the copy
 * is over when both have ended, and the first failure of either ends the other. */
#pragma once

#include "base/err.h"
#include "jail/jail.h"
#include "sandbox/link.h"

#include <stdbool.h>
#include <uv.h>

/* "LOCAL:REMOTE" or "REMOTE:LOCAL", parsed: where it is here and there. Owned strings. */
struct file_pair {
    char *local_dir, *local_name; /* the folder (exists) and the entry in it */
    char *remote;                 /* absolute */
};

/* --file: LOCAL must exist. A REMOTE that ends in '/' gets LOCAL's name below it. */
int file_pair_in(const char *text, struct file_pair *ret_pair, struct err *e) __attribute__((nonnull, warn_unused_result));
/* --out: LOCAL's folder must exist; a LOCAL that ends in '/' or is '.' gets REMOTE's name below it. */
int file_pair_out(const char *text, struct file_pair *ret_pair, struct err *e) __attribute__((nonnull, warn_unused_result));
void file_pair_done(struct file_pair *pair);

struct file_copy;

/* Starts one copy. Out of the guest at most bytes_max bytes of archive are taken. Nothing moving for 30 s ends it. on_end comes
 * once, from the loop; failure is NULL on success. The copy frees itself before. NULL on failure to start. */
struct file_copy *file_copy_start(uv_loop_t *loop, struct link *link, const struct file_pair *pair, bool into_guest,
                                  uint64_t bytes_max, void *context, void (*on_end)(void *context, const struct err *failure),
                                  struct err *e) __attribute__((nonnull(1, 2, 3, 7, 8), warn_unused_result));
/* Ends a copy without on_end: the helper is killed. Safe on NULL. */
void file_copy_stop(struct file_copy *copy);
