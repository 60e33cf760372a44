/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

uint64_t clock_now_ms(void);      /* CLOCK_MONOTONIC, milliseconds */
uint64_t clock_now_us(void);      /* CLOCK_MONOTONIC, microseconds */
uint64_t clock_realtime_ns(void); /* CLOCK_REALTIME, nanoseconds since 1970 */
