/* SPDX-License-Identifier: Apache-2.0 */
/* The bounded reader: every parser of untrusted bytes takes its bytes through this and nothing else. It never reads past
 * the end; a short read sets `failed`, returns zeros from then on, and the parser checks once at the end (or earlier).
 * Integers are little-endian. It does not own the bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reader {
    const uint8_t *bytes;
    size_t len, at;
    bool failed;
};

struct reader reader_of(const void *bytes, size_t len);
size_t reader_left(const struct reader *r) __attribute__((nonnull));
uint8_t reader_u8(struct reader *r) __attribute__((nonnull));
uint16_t reader_u16(struct reader *r) __attribute__((nonnull));
uint32_t reader_u32(struct reader *r) __attribute__((nonnull));
uint64_t reader_u64(struct reader *r) __attribute__((nonnull));
/* len bytes inside the source, valid as long as it; NULL (and failed) when fewer are left. */
const uint8_t *reader_bytes(struct reader *r, size_t len) __attribute__((nonnull));
