/* SPDX-License-Identifier: Apache-2.0 */
/* libext2fs on a descriptor that is open already: no path is ever opened. Metadata blocks go through a small write-back
 * cache; the first failing system call is kept, because libext2fs reduces errors to codes. */
#pragma once

#include <ext2fs/ext2fs.h>

/* The name given to ext2fs_initialize is the descriptor in decimal. */
extern struct struct_io_manager io_on_descriptor;

/* errno of the first read, write or flush that failed on this channel; 0 when none did. */
int io_first_errno(io_channel channel);
