/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the probes that tests reach with other paths. */
#pragma once

#include "vmm/vmm.h"

#include <stddef.h>

/* Runs the probe on this device, without any kept result. */
void kvm_probe_device(const char *device, struct kvm_probe *ret_probe) __attribute__((nonnull));
/* Takes the result from the file, or runs the probe and keeps it there. cache NULL: no file. */
void kvm_probe_cached(const char *device, const char *cache, struct kvm_probe *ret_probe) __attribute__((nonnull(1, 3)));

/* What a kept result is valid for: this boot and this kernel. Without a boot id: NULL, and nothing is kept. Caller frees. */
char *probe_boot_key(void);
/* The file for a kept result in the run folder (made when missing); NULL when there is no such place. Caller frees. */
char *probe_cache_path(const char *name) __attribute__((nonnull));

unsigned tsc_measure_khz(void); /* about 60 ms; 0 where there is no steady TSC */
unsigned tsc_cached_khz(const char *cache);
