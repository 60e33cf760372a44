/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include "base/check.h"

#include <time.h>

static struct timespec now(clockid_t clock)
{
    struct timespec t;
    CHECK(clock_gettime(clock, &t) == 0);
    return t;
}

uint64_t clock_now_ms(void)
{
    return clock_now_us() / 1000;
}

uint64_t clock_now_us(void)
{
    struct timespec t = now(CLOCK_MONOTONIC);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

uint64_t clock_realtime_ns(void)
{
    struct timespec t = now(CLOCK_REALTIME);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
