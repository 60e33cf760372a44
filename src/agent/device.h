/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for devices at boot by the kernel's own announcements. */
#pragma once

#include "base/err.h"

#include <stdbool.h>

/* Waits until `is_there` says yes, asked again after every announcement, at most wait_ms; false when the time has passed. */
bool device_wait(bool (*is_there)(void *argument), void *argument, unsigned wait_ms) __attribute__((nonnull(1)));
