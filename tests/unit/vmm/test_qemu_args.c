/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/qemu_args.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"

#include "unit.h"

/* All items, one a line. */
static char *build(const struct qemu_args *args)
{
    struct err e = ERR_INIT;
    auto_strv argv = {0};
    qemu_args_build(args, &argv);
    auto_buf text = BUF_INIT(1 << 20);
    for (size_t i = 0; i < argv.len; i++)
        assert_int_equal(buf_appendf(&text, &e, "%s\n", argv.items[i]), 0);
    return xstrndup((const char *)buf_data(&text), text.len);
}

#define HEAD "-nodefaults\n-no-user-config\n-display\nnone\n-no-reboot\n"
#define DEVICES                                                                                                                  \
    "-add-fd\nfd=8,set=1\n"                                                                                                      \
    "-drive\nid=image,file=/dev/fdset/1,format=raw,if=none,readonly=on,file.locking=off\n"                                       \
    "-device\nvirtio-blk-device,drive=image\n"                                                                                   \
    "-add-fd\nfd=9,set=2\n-add-fd\nfd=10,set=2\n"                                                                                \
    "-drive\nid=disk,file=/dev/fdset/2,format=raw,if=none,discard=unmap,detect-zeroes=unmap,cache=unsafe,file.locking=off\n"     \
    "-device\nvirtio-blk-device,drive=disk\n"                                                                                    \
    "-chardev\nsocket,id=console,fd=5\n-serial\nchardev:console\n"                                                               \
    "-device\nvirtio-serial-device\n-chardev\nsocket,id=link,fd=3\n-device\nvirtserialport,chardev=link,name=agent\n"            \
    "-chardev\nsocket,id=qmp,fd=4\n-mon\nchardev=qmp,mode=control\n"                                                             \
    "-sandbox\non,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny\n"
#define BOOT "-kernel\n/proc/self/fd/6\n-initrd\n/proc/self/fd/7\n-append\n"

static void assert_args(const struct qemu_args *args, const char *expected)
{
    auto_free char *text = build(args);
    assert_string_equal(text, expected);
}

static void test_build_for_x86_64_tcg(void **state)
{
    (void)state;
    struct qemu_args args = {.accel = VM_ACCEL_TCG, .cpus = 1, .memory_mb = 512, .legacy_timers = true, .tsc_khz = 2600000};
    assert_args(&args, "qemu-system-x86_64\n" HEAD "-M\nmicrovm,x-option-roms=off,pit=on,pic=on,rtc=on,isa-serial=on\n"
                       "-accel\ntcg,tb-size=64\n-cpu\nmax\n-m\n512M\n-smp\n1\n" DEVICES BOOT
                       "console=ttyS0 quiet loglevel=3 tsc_early_khz=2600000 tsc=reliable no_timer_check panic=-1 reboot=t "
                       "norandmaps\n");
}

static void test_build_for_x86_64_kvm(void **state)
{
    (void)state;
    struct qemu_args args = {
        .accel = VM_ACCEL_KVM, .cpus = 2, .memory_mb = 1024, .guest_aslr = true, .extra_cmdline = "iii.a=1 iii.b=2"};
    assert_args(&args, "qemu-system-x86_64\n" HEAD "-M\nmicrovm,x-option-roms=off,pit=off,pic=off,rtc=off,isa-serial=on\n"
                       "-accel\nkvm\n-cpu\nhost\n-m\n1024M\n-smp\n2\n" DEVICES BOOT
                       "console=ttyS0 quiet loglevel=3 tsc=reliable no_timer_check panic=-1 reboot=t iii.a=1 iii.b=2\n");
}

static void test_build_for_x86_64_hvf(void **state)
{
    (void)state;
    struct qemu_args args = {.accel = VM_ACCEL_HVF, .cpus = 1, .memory_mb = 256, .legacy_timers = true, .guest_aslr = true};
    assert_args(&args, "qemu-system-x86_64\n" HEAD "-M\nmicrovm,x-option-roms=off,pit=on,pic=on,rtc=on,isa-serial=on\n"
                       "-accel\nhvf\n-cpu\nhost\n-m\n256M\n-smp\n1\n" DEVICES BOOT
                       "console=ttyS0 quiet loglevel=3 tsc=reliable no_timer_check panic=-1 reboot=t\n");
}

static void test_build_for_aarch64(void **state)
{
    (void)state;
    struct qemu_args args = {
        .arch = QEMU_ARCH_AARCH64, .accel = VM_ACCEL_TCG, .cpus = 2, .memory_mb = 512, .legacy_timers = true, .tsc_khz = 5};
    assert_args(&args,
                "qemu-system-aarch64\n" HEAD "-M\nvirt\n-accel\ntcg,tb-size=64\n-cpu\nmax\n-m\n512M\n-smp\n2\n" DEVICES BOOT
                "console=ttyAMA0 quiet loglevel=3 panic=-1 norandmaps\n");
    args.accel = VM_ACCEL_KVM;
    args.guest_aslr = true;
    assert_args(&args, "qemu-system-aarch64\n" HEAD
                       "-M\nvirt,gic-version=host\n-accel\nkvm\n-cpu\nhost\n-m\n512M\n-smp\n2\n" DEVICES BOOT
                       "console=ttyAMA0 quiet loglevel=3 panic=-1\n");
    args.accel = VM_ACCEL_HVF;
    assert_args(&args, "qemu-system-aarch64\n" HEAD "-M\nvirt\n-accel\nhvf\n-cpu\nhost\n-m\n512M\n-smp\n2\n" DEVICES BOOT
                       "console=ttyAMA0 quiet loglevel=3 panic=-1\n");
}

/* A template is booted on shared memory and restored on private memory, with nothing else different but the boot. */
static void test_build_for_templates(void **state)
{
    (void)state;
    struct qemu_args args = {
        .accel = VM_ACCEL_TCG, .cpus = 1, .memory_mb = 256, .ram = QEMU_RAM_SHARED, .legacy_timers = true, .guest_aslr = true};
    assert_args(&args, "qemu-system-x86_64\n" HEAD
                       "-M\nmicrovm,x-option-roms=off,pit=on,pic=on,rtc=on,isa-serial=on,memory-backend=ram\n"
                       "-accel\ntcg,tb-size=64\n-cpu\nmax\n-m\n256M\n-smp\n1\n"
                       "-object\nmemory-backend-file,id=ram,size=256M,mem-path=/proc/self/fd/11,share=on\n" DEVICES BOOT
                       "console=ttyS0 quiet loglevel=3 tsc=reliable no_timer_check panic=-1 reboot=t\n");
    args.ram = QEMU_RAM_PRIVATE;
    args.incoming = true;
    assert_args(&args, "qemu-system-x86_64\n" HEAD
                       "-M\nmicrovm,x-option-roms=off,pit=on,pic=on,rtc=on,isa-serial=on,memory-backend=ram\n"
                       "-accel\ntcg,tb-size=64\n-cpu\nmax\n-m\n256M\n-smp\n1\n"
                       "-object\nmemory-backend-file,id=ram,size=256M,mem-path=/proc/self/fd/11,share=off\n" DEVICES
                       "-incoming\ndefer\n");
}

UNIT_MAIN(cmocka_unit_test(test_build_for_x86_64_tcg), cmocka_unit_test(test_build_for_x86_64_kvm),
          cmocka_unit_test(test_build_for_x86_64_hvf), cmocka_unit_test(test_build_for_aarch64),
          cmocka_unit_test(test_build_for_templates))
