/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/probe.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "unit.h"

static char *folder;

static int make_folder(void **state)
{
    (void)state;
    folder = xstrdup("/tmp/iii-test-probe-XXXXXX");
    return mkdtemp(folder) && chmod(folder, 0755) == 0 ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    int result = dir_remove(folder, &e);
    free(folder);
    return result;
}

static char *write_file(const char *name, const char *text, mode_t mode)
{
    struct err e = ERR_INIT;
    char *path = xasprintf("%s/%s", folder, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), mode, &e), 0);
    return path;
}

static void test_probe_names_a_missing_device(void **state)
{
    (void)state;
    struct kvm_probe p;
    kvm_probe_device("/nowhere/kvm", &p);
    assert_false(p.usable);
    assert_int_equal(p.loops_per_sec, 0);
    assert_string_equal(p.reason, "open /nowhere/kvm: No such file or directory");
}

static void test_probe_names_missing_rights(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip(); /* an ordinary user may open its own files */
    auto_free char *device = write_file("closed", "", 0600);
    char text[256];
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() == 0 &&
            (syscall(SYS_setgroups, 0, NULL) || setresgid(65533, 65533, 65533) || setresuid(65533, 65533, 65533)))
            _exit(1);
        struct kvm_probe p;
        kvm_probe_device(device, &p);
        _exit(fd_write(ends[1], p.reason, sizeof p.reason) == (ssize_t)sizeof p.reason ? 0 : 1);
    }
    assert_int_equal(fd_read(ends[0], text, sizeof text), sizeof text);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(ends[0]);
    close(ends[1]);
    auto_free char *expected = xasprintf("open %s: Permission denied", device);
    assert_string_equal(text, expected);
}

static void test_probe_refuses_a_file_that_is_no_device(void **state)
{
    (void)state;
    auto_free char *device = write_file("fake", "not a device", 0666);
    struct kvm_probe p;
    kvm_probe_device(device, &p);
    assert_false(p.usable);
    assert_string_equal(p.reason, "KVM_GET_API_VERSION: Inappropriate ioctl for device");
    kvm_probe_device("/dev/null", &p);
    assert_false(p.usable);
    assert_string_equal(p.reason, "KVM_GET_API_VERSION: Inappropriate ioctl for device");
}

/* Whatever this host is, the answer comes in time and is consistent. */
static void test_probe_of_this_host_ends_in_time(void **state)
{
    (void)state;
    struct kvm_probe p;
    uint64_t start = clock_now_ms();
    kvm_probe_device("/dev/kvm", &p);
    uint64_t took = clock_now_ms() - start;
    print_message("kvm: usable %d, %llu loops/s, '%s', %llu ms\n", p.usable, (unsigned long long)p.loops_per_sec, p.reason,
                  (unsigned long long)took);
    assert_true(p.usable == (p.reason[0] == 0));
    assert_true(p.usable == (p.loops_per_sec >= 50000000));
    assert_true(took < 2500);
}

static void test_probe_result_is_kept_and_used(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *device = write_file("fake", "not a device", 0666);
    auto_free char *cache = xasprintf("%s/cache", folder);
    struct kvm_probe p;
    kvm_probe_cached(device, cache, &p);
    assert_string_equal(p.reason, "KVM_GET_API_VERSION: Inappropriate ioctl for device");
    auto_free char *kept = NULL;
    assert_int_equal(file_read(cache, 4096, &kept, NULL, &e), 0);
    /* the kept result is what the next call gives: change it to see */
    char *result = strstr(kept, " 0 0 KVM_GET");
    assert_non_null(result);
    auto_free char *changed = xasprintf("%.*s 0 123 slow\n", (int)(result - kept), kept);
    assert_int_equal(file_write_atomic(cache, changed, strlen(changed), 0644, &e), 0);
    kvm_probe_cached(device, cache, &p);
    assert_string_equal(p.reason, "slow");
    assert_int_equal(p.loops_per_sec, 123);
    /* other rights on the device: asked again */
    assert_int_equal(chmod(device, 0644), 0);
    kvm_probe_cached(device, cache, &p);
    assert_string_equal(p.reason, "KVM_GET_API_VERSION: Inappropriate ioctl for device");
}

static void test_probe_ignores_a_damaged_cache(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *device = write_file("fake", "not a device", 0666);
    auto_free char *cache = xasprintf("%s/damaged", folder);
    struct kvm_probe p;
    kvm_probe_cached(device, cache, &p);
    auto_free char *kept = NULL;
    size_t len = 0;
    assert_int_equal(file_read(cache, 4096, &kept, &len, &e), 0);
    for (size_t cut = 0; cut < len; cut += 9) { /* cut anywhere */
        assert_int_equal(file_write_atomic(cache, kept, cut, 0644, &e), 0);
        kvm_probe_cached(device, cache, &p);
        assert_string_equal(p.reason, "KVM_GET_API_VERSION: Inappropriate ioctl for device");
    }
    char *result = strstr(kept, " 0 0 KVM_GET");
    assert_non_null(result);
    const char *const lies[] = {"1 0 bad\n", "1 99999999999999999999999 \n", "2 0 x\n", "0 0 \n", "0 -1 x\n", "0 1 a\nb\n"};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        auto_free char *text = xasprintf("%.*s%s", (int)(result + 1 - kept), kept, lies[i]);
        assert_int_equal(file_write_atomic(cache, text, strlen(text), 0644, &e), 0);
        kvm_probe_cached(device, cache, &p);
        assert_string_equal(p.reason, "KVM_GET_API_VERSION: Inappropriate ioctl for device");
    }
    kvm_probe_cached(device, "/nowhere/cache", &p); /* not kept, but answered */
    assert_string_equal(p.reason, "KVM_GET_API_VERSION: Inappropriate ioctl for device");
}

static void test_choose_follows_the_probe(void **state)
{
    (void)state;
    struct kvm_probe p;
    enum vm_accel accel = vm_accel_choose(&p);
    assert_int_equal(accel, p.usable ? VM_ACCEL_KVM : VM_ACCEL_TCG);
    assert_string_equal(vm_accel_name(accel), p.usable ? "kvm" : "tcg");
}

static void test_tsc_is_plausible_and_steady(void **state)
{
    (void)state;
#ifdef __x86_64__
    unsigned first = tsc_measure_khz(), second = tsc_measure_khz();
    assert_true(first >= 100000 && first <= 10000000);
    unsigned difference = first > second ? first - second : second - first;
    assert_true(difference < first / 1000);
    assert_true(vm_tsc_khz() > 0);
#else
    assert_int_equal(vm_tsc_khz(), 0);
#endif
}

static void test_tsc_is_kept_and_damage_ignored(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *cache = xasprintf("%s/tsc", folder);
    unsigned measured = tsc_cached_khz(cache);
    if (!measured)
        skip();
    auto_free char *boot = probe_boot_key();
    auto_free char *kept = NULL;
    assert_int_equal(file_read(cache, 4096, &kept, NULL, &e), 0);
    auto_free char *expected = xasprintf("tsc 1 %s %u\n", boot, measured);
    assert_string_equal(kept, expected);
    auto_free char *other = xasprintf("tsc 1 %s 1234567\n", boot);
    assert_int_equal(file_write_atomic(cache, other, strlen(other), 0644, &e), 0);
    assert_int_equal(tsc_cached_khz(cache), 1234567);
    auto_free char *senseless = xasprintf("tsc 1 %s 12\n", boot);
    assert_int_equal(file_write_atomic(cache, senseless, strlen(senseless), 0644, &e), 0);
    assert_int_not_equal(tsc_cached_khz(cache), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_names_a_missing_device),
        cmocka_unit_test(test_probe_names_missing_rights),
        cmocka_unit_test(test_probe_refuses_a_file_that_is_no_device),
        cmocka_unit_test(test_probe_of_this_host_ends_in_time),
        cmocka_unit_test(test_probe_result_is_kept_and_used),
        cmocka_unit_test(test_probe_ignores_a_damaged_cache),
        cmocka_unit_test(test_choose_follows_the_probe),
        cmocka_unit_test(test_tsc_is_plausible_and_steady),
        cmocka_unit_test(test_tsc_is_kept_and_damage_ignored),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
