/* SPDX-License-Identifier: Apache-2.0 */
/* The entry point of every fuzz target. It takes any bytes, returns 0, and ends the process where the parser is wrong. */
#pragma once

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);
