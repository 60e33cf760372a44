/* SPDX-License-Identifier: Apache-2.0 */
/* The frequency of the host's time stamp counter. A guest that is told does not have to calibrate its own against an
 * emulated timer, which takes long and fails on a busy host. */
#include "vmm/probe.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"

#include <string.h>
#include <time.h>

#define TSC_WINDOW_MS 20
#define TSC_WINDOWS 3
#define TSC_KHZ_MIN 100000u
#define TSC_KHZ_MAX 10000000u

#ifdef __x86_64__
#include <cpuid.h>
#include <x86intrin.h>

struct reading {
    uint64_t tsc, ns, width; /* width: ticks that the reading of the clock took */
};

/* The clock between two readings of the counter; the narrowest of a few, so that no interruption lies in it. */
static struct reading read_both(void)
{
    struct reading best = {.width = UINT64_MAX};
    for (int i = 0; i < 8; i++) {
        struct timespec t;
        uint64_t before = __rdtsc();
        clock_gettime(CLOCK_MONOTONIC, &t);
        uint64_t after = __rdtsc();
        if (after - before < best.width)
            best = (struct reading){before + (after - before) / 2, (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec,
                                    after - before};
    }
    return best;
}

static bool has_tsc(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (d & 1u << 4);
}

unsigned tsc_measure_khz(void)
{
    if (!has_tsc())
        return 0;
    uint64_t best_width = UINT64_MAX, khz = 0;
    for (int i = 0; i < TSC_WINDOWS; i++) {
        struct timespec window = {.tv_nsec = TSC_WINDOW_MS * 1000000};
        struct reading start = read_both();
        clock_nanosleep(CLOCK_MONOTONIC, 0, &window, NULL); /* the measurement itself; a signal just makes it shorter */
        struct reading end = read_both();
        if (start.width + end.width >= best_width || end.ns - start.ns < 1000000 || end.tsc <= start.tsc)
            continue;
        best_width = start.width + end.width;
        khz = (uint64_t)((double)(end.tsc - start.tsc) * 1e6 / (double)(end.ns - start.ns) + 0.5);
    }
    return khz >= TSC_KHZ_MIN && khz <= TSC_KHZ_MAX ? (unsigned)khz : 0;
}
#else
unsigned tsc_measure_khz(void)
{
    return 0;
}
#endif

/* "tsc 1 BOOT KERNEL KHZ\n" */
static unsigned parse_kept(char *text, const char *key)
{
    size_t key_len = strlen(key), len = strlen(text);
    if (!text_has_prefix(text, key) || text[len - 1] != '\n')
        return 0;
    text[len - 1] = 0;
    struct err e = ERR_INIT;
    uint64_t khz;
    if (text_parse_u64(text + key_len, TSC_KHZ_MAX, &khz, &e) || khz < TSC_KHZ_MIN)
        return 0;
    return (unsigned)khz;
}

unsigned tsc_cached_khz(const char *cache)
{
    auto_free char *boot = cache ? probe_boot_key() : NULL;
    if (!boot)
        return tsc_measure_khz();
    auto_free char *key = xasprintf("tsc 1 %s ", boot);
    auto_free char *kept = NULL;
    struct err e = ERR_INIT;
    unsigned khz = file_read(cache, VM_CACHE_FILE_MAX, &kept, NULL, &e) == 0 ? parse_kept(kept, key) : 0;
    if (khz)
        return khz;
    khz = tsc_measure_khz();
    auto_free char *text = xasprintf("%s%u\n", key, khz);
    struct err unused = ERR_INIT;
    int written = khz ? file_write_atomic(cache, text, strlen(text), 0644, &unused) : 0;
    (void)written; /* the next start measures again */
    return khz;
}

unsigned vm_tsc_khz(void)
{
    static unsigned known; /* one measurement per process at most */
    if (!known) {
        auto_free char *cache = probe_cache_path("tsc-khz");
        known = tsc_cached_khz(cache);
    }
    return known;
}
