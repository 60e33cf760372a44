/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share that work on the store: the operator's configuration, the opened store, and giving up on a signal
 * while something is prepared, which blocks. */
#pragma once

#include "base/err.h"
#include "daemon/config.h"
#include "image/image.h"

#include <signal.h>

/* Reads the configuration (config_path NULL: the default place) into *ret_config (config_done, also on failure) and opens the
 * store as it says. */
struct store *cli_store_open(const char *config_path, struct config *ret_config, struct err *e)
    __attribute__((nonnull(2, 3), warn_unused_result));
/* Prints what the store threw away, then closes it. Safe on NULL. */
void cli_store_close(struct store *store);

/* From watch to unwatch INT, TERM and HUP only set the flag (their number), without restarting calls; the flag is for struct
 * image_progress. unwatch restores the default effect. */
const volatile sig_atomic_t *cli_cancel_watch(void);
void cli_cancel_unwatch(void);
/* ERR_INTERRUPTED when the flag is set: after the last step, which may not have looked. */
int cli_cancel_check(struct err *e) __attribute__((nonnull, warn_unused_result));
/* 128 + the signal that set the flag when e is ERR_INTERRUPTED, else `otherwise`. */
int cli_cancel_status(const struct err *e, int otherwise) __attribute__((nonnull));
/* The name of an image as the user gave it, with a path in it made absolute. Owned by the caller. */
char *cli_image_name(const char *name) __attribute__((nonnull, warn_unused_result));
