/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/qemu_args.h"

#include "base/check.h"

#include <assert.h>
#include <stdio.h>

/* MiB of translated code under TCG. Smaller than a program's code it thrashes (python needs 32, node 67); the memory is only
 * taken when used. */
#define QEMU_TB_MB 64

struct arch_row {
    const char *program, *package, *console;
};

static const struct arch_row arch_rows[] = {
    [QEMU_ARCH_X86_64] = {"qemu-system-x86_64", "qemu-system-x86", "ttyS0"},
    [QEMU_ARCH_AARCH64] = {"qemu-system-aarch64", "qemu-system-arm", "ttyAMA0"},
};
static_assert(sizeof arch_rows / sizeof *arch_rows == QEMU_ARCH_COUNT, "one row per architecture");

const char *qemu_program_name(enum qemu_arch arch)
{
    CHECK((unsigned)arch < QEMU_ARCH_COUNT);
    return arch_rows[arch].program;
}

const char *qemu_package_name(enum qemu_arch arch)
{
    CHECK((unsigned)arch < QEMU_ARCH_COUNT);
    return arch_rows[arch].package;
}

static void add_pair(struct strv *argv, const char *option, const char *value)
{
    strv_add(argv, option);
    strv_add(argv, value);
}

static void add_machine(const struct qemu_args *a, struct strv *argv)
{
    const char *backend = a->ram == QEMU_RAM_ANONYMOUS ? "" : ",memory-backend=ram";
    strv_add(argv, "-M");
    if (a->arch == QEMU_ARCH_X86_64) {
        const char *timers = a->legacy_timers ? "on" : "off";
        strv_addf(argv, "microvm,x-option-roms=off,pit=%s,pic=%s,rtc=%s,isa-serial=on%s", timers, timers, timers, backend);
    } else {
        /* under KVM the interrupt controller is the host's; anything else would be refused there */
        strv_addf(argv, "virt%s%s", a->accel == VM_ACCEL_KVM ? ",gic-version=host" : "", backend);
    }
    strv_add(argv, "-accel");
    if (a->accel == VM_ACCEL_TCG)
        strv_addf(argv, "tcg,tb-size=%d", QEMU_TB_MB);
    else
        strv_add(argv, vm_accel_name(a->accel));
    add_pair(argv, "-cpu", a->accel == VM_ACCEL_TCG ? "max" : "host");
    strv_add(argv, "-m");
    strv_addf(argv, "%uM", a->memory_mb);
    strv_add(argv, "-smp");
    strv_addf(argv, "%u", a->cpus);
    if (a->ram != QEMU_RAM_ANONYMOUS) {
        strv_add(argv, "-object");
        strv_addf(argv, "memory-backend-file,id=ram,size=%uM,mem-path=/proc/self/fd/%d,share=%s", a->memory_mb, QEMU_FD_RAM,
                  a->ram == QEMU_RAM_SHARED ? "on" : "off");
    }
}

/* Files come through descriptor sets. The locks that QEMU would take protect nothing here: nobody else has these files. */
static void add_drives(struct strv *argv)
{
    strv_add(argv, "-add-fd");
    strv_addf(argv, "fd=%d,set=1", QEMU_FD_IMAGE);
    add_pair(argv, "-drive", "id=image,file=/dev/fdset/1,format=raw,if=none,readonly=on,file.locking=off");
    add_pair(argv, "-device", "virtio-blk-device,drive=image");
    strv_add(argv, "-add-fd");
    strv_addf(argv, "fd=%d,set=2", QEMU_FD_DISK);
    strv_add(argv, "-add-fd");
    strv_addf(argv, "fd=%d,set=2", QEMU_FD_DISK_READER);
    /* The default for failed writes is kept: a full host disk pauses the guest instead of losing what it wrote. */
    add_pair(argv, "-drive",
             "id=disk,file=/dev/fdset/2,format=raw,if=none,discard=unmap,detect-zeroes=unmap,cache=unsafe,file.locking=off");
    add_pair(argv, "-device", "virtio-blk-device,drive=disk");
}

/* Ends of socketpairs: connected from the start. */
static void add_channels(struct strv *argv)
{
    strv_add(argv, "-chardev");
    strv_addf(argv, "socket,id=console,fd=%d", QEMU_FD_CONSOLE);
    add_pair(argv, "-serial", "chardev:console");
    add_pair(argv, "-device", "virtio-serial-device");
    strv_add(argv, "-chardev");
    strv_addf(argv, "socket,id=link,fd=%d", QEMU_FD_LINK);
    add_pair(argv, "-device", "virtserialport,chardev=link,name=agent");
    strv_add(argv, "-chardev");
    strv_addf(argv, "socket,id=qmp,fd=%d", QEMU_FD_QMP);
    add_pair(argv, "-mon", "chardev=qmp,mode=control");
}

static void add_boot(const struct qemu_args *a, struct strv *argv)
{
    strv_add(argv, "-kernel");
    strv_addf(argv, "/proc/self/fd/%d", QEMU_FD_KERNEL);
    strv_add(argv, "-initrd");
    strv_addf(argv, "/proc/self/fd/%d", QEMU_FD_INITRAMFS);
    char tsc[64] = "";
    if (a->arch == QEMU_ARCH_X86_64 && a->tsc_khz)
        snprintf(tsc, sizeof tsc, " tsc_early_khz=%u", a->tsc_khz);
    strv_add(argv, "-append");
    bool x86 = a->arch == QEMU_ARCH_X86_64;
    strv_addf(argv, "console=%s quiet loglevel=3%s%s panic=-1%s%s%s%s", arch_rows[a->arch].console, tsc,
              x86 ? " tsc=reliable no_timer_check" : "", x86 ? " reboot=t" : "", a->guest_aslr ? "" : " norandmaps",
              a->extra_cmdline ? " " : "", a->extra_cmdline ? a->extra_cmdline : "");
}

void qemu_args_build(const struct qemu_args *args, struct strv *argv)
{
    CHECK((unsigned)args->arch < QEMU_ARCH_COUNT && args->cpus > 0 && args->memory_mb > 0);
    strv_add(argv, qemu_program_name(args->arch));
    strv_add(argv, "-nodefaults");
    strv_add(argv, "-no-user-config");
    add_pair(argv, "-display", "none");
    strv_add(argv, "-no-reboot"); /* a guest reset or panic ends the process */
    add_machine(args, argv);
    add_drives(argv);
    add_channels(argv);
    add_pair(argv, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    if (args->incoming)
        add_pair(argv, "-incoming", "defer");
    else
        add_boot(args, argv);
}
