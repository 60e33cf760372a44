/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel inside a bzImage (Linux Documentation/arch/x86/boot.rst, fields payload_offset and payload_length): an ELF file
 * that boots about 0.2 s sooner under TCG, because nothing has to be unpacked in the machine. Pure. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

/* Unpacks an LZ4 payload (Debian's) into `elf`, an empty buffer whose maximum is VMLINUX_BYTES_MAX. *ret_found is false, and
 * nothing is an error, when the file is no bzImage or its payload is packed in another way: then it boots as it is. */
int vmlinux_unpack(const void *bzimage, size_t len, struct buf *elf, bool *ret_found, struct err *e)
    __attribute__((nonnull, warn_unused_result));
