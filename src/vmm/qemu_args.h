/* SPDX-License-Identifier: Apache-2.0 */
/* A machine as QEMU's arguments. Pure: the same description gives the same list, for every architecture and accelerator,
 * whatever this program runs on. Everything of the machine reaches QEMU under a fixed descriptor number, so that the list
 * holds no path of the host and nothing that differs from one start to the next (a template's key contains it). */
#pragma once

#include "base/alloc.h"
#include "vmm/vmm.h"

#include <stdbool.h>

enum qemu_arch { QEMU_ARCH_X86_64, QEMU_ARCH_AARCH64, QEMU_ARCH_COUNT };

/* The descriptors inside the QEMU process. */
enum qemu_fd {
    QEMU_FD_LINK = 3,
    QEMU_FD_QMP,
    QEMU_FD_CONSOLE,
    QEMU_FD_KERNEL,
    QEMU_FD_INITRAMFS,
    QEMU_FD_IMAGE,
    QEMU_FD_DISK,        /* a writable drive needs both in its set: an incoming machine opens it read-only first */
    QEMU_FD_DISK_READER, /* the same file, O_RDONLY */
    QEMU_FD_RAM,
    QEMU_FD_END
};

/* Where the guest's memory is. */
enum qemu_ram {
    QEMU_RAM_ANONYMOUS,
    QEMU_RAM_SHARED,  /* QEMU_FD_RAM, written through: a template in the making */
    QEMU_RAM_PRIVATE, /* QEMU_FD_RAM, copied on write: a clone */
};

struct qemu_args {
    enum qemu_arch arch;
    enum vm_accel accel;
    unsigned cpus, memory_mb;
    enum qemu_ram ram;
    bool incoming;             /* wait for a saved state instead of booting: no kernel, no initramfs */
    bool legacy_timers;        /* x86: PIT, PIC and RTC; a guest without KVM's clock or a TSC deadline timer needs them */
    bool guest_aslr;           /* off: the kernel puts every program at the same addresses */
    unsigned tsc_khz;          /* 0: unknown */
    const char *extra_cmdline; /* NULL or more words for the kernel line */
};

/* Appends the whole argument list, the program's name first. */
void qemu_args_build(const struct qemu_args *args, struct strv *argv) __attribute__((nonnull));
const char *qemu_program_name(enum qemu_arch arch); /* "qemu-system-x86_64" */
const char *qemu_package_name(enum qemu_arch arch); /* "qemu-system-x86": of Debian */
