/* SPDX-License-Identifier: Apache-2.0 */
/* Real QEMU processes, without a Linux kernel: the guests are a few bytes of 16-bit code in the form of a kernel, which
 * print on the serial line and then hang or reset. Where a peer must misbehave, a script stands in QEMU's place. */
#include "vmm/vmm.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "unit.h"

#define DEADLINE_MS 40000 /* a busy machine is slow, not wrong */

struct machine {
    struct vm *vm;
    int link_fd, kernel_fd, image_fd, disk_fd, ends;
    struct err reason;
    bool free_at_end;
};

static uv_loop_t loop;
static char *folder, *real_path;
static struct vm *live; /* freed after a test that failed half-way */

static void free_vm(struct vm *vm)
{
    live = NULL;
    vm_free(vm);
}

static int count_descriptors(void)
{
    auto_dir dir = opendir("/proc/self/fd");
    int count = 0;
    while (dir && readdir(dir))
        count++;
    return count;
}

static int before_all(void **state)
{
    (void)state;
    const char *path = getenv("PATH");
    folder = xstrdup("/tmp/iii-test-qemu-XXXXXX");
    real_path = xstrdup(path ? path : "/usr/bin:/bin");
    if (uv_loop_init(&loop) || uv_loop_close(&loop)) /* the first loop of a process opens descriptors that stay */
        return -1;
    return mkdtemp(folder) && chmod(folder, 0755) == 0 ? 0 : -1;
}

static int after_all(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    int result = dir_remove(folder, &e);
    free(folder);
    free(real_path);
    return result;
}

static int before(void **state)
{
    *state = (void *)(intptr_t)count_descriptors();
    setenv("PATH", real_path, 1);
    return uv_loop_init(&loop);
}

/* After each test: nothing is left, neither memory of handles nor descriptors nor processes. */
static int after(void **state)
{
    free_vm(live);
    uv_run(&loop, UV_RUN_DEFAULT);
    if (uv_loop_close(&loop))
        return -1;
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD)
        return -1;
    return count_descriptors() == (int)(intptr_t)*state ? 0 : -1;
}

static void on_end(void *context, const struct err *reason)
{
    struct machine *m = context;
    m->ends++;
    m->reason = *reason;
    if (m->free_at_end) {
        free_vm(m->vm);
        m->vm = NULL;
    }
}

static void on_storage_full(void *context)
{
    (void)context;
    fail();
}

static const struct vm_events no_events = {.on_end = on_end, .on_storage_full = on_storage_full};

/* An unnamed file with these bytes, which everyone may read. */
static int make_file(const void *bytes, size_t len)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, 0644), 0);
    assert_int_equal(pwrite(fd, bytes, len, 0), len);
    return fd;
}

/* A kernel whose setup code (entered at 0x200, jumping over the header) prints text, then hangs or resets the machine. */
static int make_kernel(const char *text, bool reset)
{
    uint8_t image[4096] = {0};
    static const uint8_t print[] = {0x0e, 0x1f, 0xbe, 0x90, 0x00, 0xba, 0xf8, 0x03,  /* ds = cs; si = 0x90; dx = COM1 */
                                    0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8}; /* until 0: out dx, [si++] */
    static const uint8_t hang[] = {0xfa, 0xf4, 0xeb, 0xfd}, fault[] = {0x0f, 0x01, 0x1e, 0x88, 0x00, 0xcc}; /* no IDT; int3 */
    image[0x1f1] = 1;                                                                                       /* setup sectors */
    image[0x1fe] = 0x55;
    image[0x1ff] = 0xaa;
    image[0x200] = 0xeb;
    image[0x201] = 0x5e;
    static const uint8_t magic[] = {'H', 'd', 'r', 'S'};
    memcpy(image + 0x202, magic, sizeof magic);
    image[0x206] = 0x0c;
    image[0x207] = 0x02;
    image[0x211] = 1; /* loaded high */
    memset(image + 0x22c, 0x7f, 4);
    memcpy(image + 0x260, print, sizeof print);
    memcpy(image + 0x260 + sizeof print, reset ? fault : hang, reset ? sizeof fault : sizeof hang);
    for (size_t i = 0; text[i]; i++)
        image[0x290 + i] = (uint8_t)text[i];
    return make_file(image, sizeof image);
}

static int start(struct machine *m, struct err *e)
{
    uint8_t block[4096] = {0};
    auto_close image_fd = make_file(block, sizeof block);
    auto_free char *image = xasprintf("/proc/self/fd/%d", image_fd);
    m->image_fd = open(image, O_RDONLY | O_CLOEXEC);
    assert_true(m->image_fd >= 0);
    m->disk_fd = make_file(block, sizeof block);
    m->link_fd = -1;
    struct vm_spec spec = {.cpus = 1,
                           .memory_mb = 64,
                           .accel = VM_ACCEL_TCG,
                           .kernel_fd = m->kernel_fd,
                           .initramfs_fd = m->image_fd,
                           .image_fd = m->image_fd,
                           .disk_fd = m->disk_fd};
    struct vm_events events = no_events;
    events.context = m;
    int result = vmm_qemu.start(&loop, &spec, &events, &m->vm, &m->link_fd, e);
    live = m->vm;
    close(m->kernel_fd);
    close(m->image_fd);
    close(m->disk_fd);
    return result;
}

static void start_ok(struct machine *m)
{
    struct err e = ERR_INIT;
    if (start(m, &e))
        fail_msg("%s", e.text);
    assert_int_equal(vm_state(m->vm), VM_STATE_STARTING);
    assert_int_equal(m->ends, 0);
}

static void on_deadline(uv_timer_t *timer)
{
    *(bool *)timer->data = true;
}

static bool has_ended(const struct machine *m)
{
    return m->ends > 0;
}

static bool is_running_and_has_spoken(const struct machine *m)
{
    return vm_state(m->vm) == VM_STATE_RUNNING && strstr(vm_console_tail(m->vm), "hello\n");
}

static void run_until(struct machine *m, bool (*done)(const struct machine *))
{
    bool late = false;
    uv_timer_t timer;
    uv_timer_init(&loop, &timer);
    timer.data = &late;
    uv_timer_start(&timer, on_deadline, DEADLINE_MS, 0);
    while (!done(m) && !late)
        uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
    if (late)
        fail_msg("not within %d s: state %s, console '%s', reason '%s'", DEADLINE_MS / 1000,
                 m->vm ? vm_state_name(vm_state(m->vm)) : "freed", m->vm ? vm_console_tail(m->vm) : "", m->reason.text);
}

/* The other end of the link is gone with the machine. */
static void assert_link_ended(struct machine *m)
{
    char byte;
    assert_int_equal(fd_read(m->link_fd, &byte, 1), 0);
    close(m->link_fd);
}

static void test_start_with_a_kernel_that_is_none(void **state)
{
    (void)state;
    struct machine m = {.kernel_fd = make_file("this is no kernel at all", 24)};
    start_ok(&m);
    run_until(&m, has_ended);
    assert_int_equal(m.ends, 1);
    assert_int_equal(vm_state(m.vm), VM_STATE_ENDED);
    assert_int_equal(m.reason.code, ERR_BOOT);
    assert_int_equal(strncmp(m.reason.text, "qemu ended with status 1: ", 26), 0);
    assert_non_null(strstr(m.reason.text, "kernel")); /* what QEMU says about it */
    assert_string_equal(vm_console_tail(m.vm), "");
    assert_link_ended(&m);
    free_vm(m.vm);
}

static void test_kill_from_outside_is_seen(void **state)
{
    (void)state;
    struct machine m = {.kernel_fd = make_kernel("hello\n", false)};
    start_ok(&m);
    run_until(&m, is_running_and_has_spoken);
    assert_string_equal(vm_console_tail(m.vm), "hello\n");
    vmm_qemu.pause(m.vm);
    vmm_qemu.resume(m.vm);
    vmm_qemu.resume(m.vm);
    assert_int_equal(kill(vm_pid(m.vm), SIGKILL), 0);
    uint64_t before_ms = clock_now_ms();
    run_until(&m, has_ended);
    assert_true(clock_now_ms() - before_ms < 1000);
    assert_int_equal(m.ends, 1);
    assert_string_equal(m.reason.text, "qemu was killed by signal 9 (Killed)");
    assert_link_ended(&m);
    free_vm(m.vm);
}

static void test_the_process_has_no_rights(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct machine m = {.kernel_fd = make_kernel("hello\n", false)};
    start_ok(&m);
    run_until(&m, is_running_and_has_spoken);
    auto_free char *path = xasprintf("/proc/%d/status", (int)vm_pid(m.vm));
    auto_free char *status = NULL;
    assert_int_equal(file_read(path, 16384, &status, NULL, &e), 0);
    assert_non_null(strstr(status, "CapPrm:\t0000000000000000"));
    assert_non_null(strstr(status, "NoNewPrivs:\t1"));
    assert_non_null(strstr(status, "Seccomp:\t2"));
    if (geteuid() == 0)
        assert_non_null(strstr(status, "Uid:\t65000\t65000\t65000\t65000"));
    free_vm(m.vm); /* while it runs */
    assert_int_equal(m.ends, 0);
    assert_link_ended(&m);
}

static void test_guest_panic_is_the_reason(void **state)
{
    (void)state;
    struct machine m = {.kernel_fd = make_kernel("hello\n[    0.1] Kernel panic - not syncing: no root\r\nmore\n", true)};
    start_ok(&m);
    run_until(&m, has_ended);
    assert_int_equal(m.reason.code, ERR_BOOT);
    assert_string_equal(m.reason.text, "the guest's kernel stopped: Kernel panic - not syncing: no root");
    assert_non_null(strstr(vm_console_tail(m.vm), "hello\n"));
    assert_link_ended(&m);
    free_vm(m.vm);
}

static void test_guest_reset_is_the_reason(void **state)
{
    (void)state;
    struct machine m = {.kernel_fd = make_kernel("hello\n", true), .free_at_end = true};
    start_ok(&m);
    run_until(&m, has_ended);
    assert_string_equal(m.reason.text, "the guest ended its machine (guest-reset)");
    assert_null(m.vm);
    assert_link_ended(&m);
}

static void test_stop_ends_the_machine(void **state)
{
    (void)state;
    struct machine m = {.kernel_fd = make_kernel("hello\n", false)};
    start_ok(&m);
    vmm_qemu.stop(m.vm);
    assert_int_equal(m.ends, 0); /* never from inside the call */
    vmm_qemu.stop(m.vm);
    run_until(&m, has_ended);
    assert_int_equal(m.ends, 1);
    assert_int_equal(m.reason.code, ERR_STOPPED);
    vmm_qemu.stop(m.vm); /* of no effect */
    vmm_qemu.resume(m.vm);
    assert_link_ended(&m);
    free_vm(m.vm);
}

static void test_free_while_starting(void **state)
{
    (void)state;
    struct machine m = {.kernel_fd = make_kernel("hello\n", false)};
    start_ok(&m);
    pid_t pid = vm_pid(m.vm);
    free_vm(m.vm);
    assert_int_equal(kill(pid, 0), -1);
    assert_int_equal(errno, ESRCH);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(m.ends, 0);
    assert_link_ended(&m);
    vm_free(NULL);
}

static void test_start_without_qemu(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct machine m = {.kernel_fd = make_kernel("", false)};
    assert_int_equal(setenv("PATH", "/nowhere", 1), 0);
    assert_int_equal(start(&m, &e), -1);
    assert_int_equal(e.code, ERR_ENVIRONMENT);
    assert_non_null(strstr(e.text, "QEMU is missing, install the Debian package qemu-system-"));
    err_clear(&e);
    assert_int_equal(vmm_qemu.probe(VM_ACCEL_TCG, &e), -1);
    assert_int_equal(e.code, ERR_ENVIRONMENT);
    assert_non_null(strstr(e.text, "install the Debian package qemu-system-"));
}

static void test_start_refuses_senseless_sizes(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct machine m = {0};
    struct vm_spec spec = {.cpus = 0, .memory_mb = 256, .accel = VM_ACCEL_TCG};
    assert_int_equal(vmm_qemu.start(&loop, &spec, &no_events, &m.vm, &m.link_fd, &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    err_clear(&e);
    spec = (struct vm_spec){.cpus = 1, .memory_mb = 1, .accel = VM_ACCEL_TCG};
    assert_int_equal(vmm_qemu.start(&loop, &spec, &no_events, &m.vm, &m.link_fd, &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
}

static void test_probe_of_the_backend(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    if (vmm_qemu.probe(VM_ACCEL_TCG, &e))
        fail_msg("%s", e.text);
    assert_int_equal(vmm_qemu.probe(VM_ACCEL_HVF, &e), -1);
    assert_int_equal(e.code, ERR_ENVIRONMENT);
}

/* A script in QEMU's place. */
static void install_script(const char *body)
{
    struct err e = ERR_INIT;
    auto_free char *text = xasprintf("#!/bin/sh\n%s\n", body);
    static const char *const names[] = {"qemu-system-x86_64", "qemu-system-aarch64"};
    for (size_t i = 0; i < 2; i++) {
        auto_free char *path = xasprintf("%s/%s", folder, names[i]);
        assert_int_equal(file_write_atomic(path, text, strlen(text), 0755, &e), 0);
    }
    auto_free char *search = xasprintf("%s:%s", folder, real_path);
    assert_int_equal(setenv("PATH", search, 1), 0);
}

static void ends_with(const char *script, enum err_code code, const char *text)
{
    install_script(script);
    struct machine m = {.kernel_fd = make_kernel("", false)};
    start_ok(&m);
    run_until(&m, has_ended);
    assert_int_equal(m.ends, 1);
    assert_int_equal(m.reason.code, code);
    if (!strstr(m.reason.text, text))
        fail_msg("'%s' does not say '%s'", m.reason.text, text);
    close(m.link_fd);
    free_vm(m.vm);
}

static void test_a_peer_that_breaks_the_protocol_is_ended(void **state)
{
    (void)state;
    ends_with("echo garbage >&4; exec sleep 1000", ERR_PROTOCOL, "control channel: not a JSON object");
    ends_with("echo '{\"QMP\": {}}' >&4; echo '{\"return\": {}, \"id\": 7}' >&4; exec sleep 1000", ERR_PROTOCOL,
              "an answer to no command");
    ends_with("exec 4>&-; exec sleep 1000", ERR_PROTOCOL, "closed its control channel without ending");
}

static void test_last_words_are_in_the_reason(void **state)
{
    (void)state;
    ends_with("echo first >&2; echo the second >&2; exit 3", ERR_BOOT, "qemu ended with status 3: first the second");
}

/* Megabytes on the console and on stderr: the ends are kept, the machine goes on. */
static void test_a_flood_is_cut(void **state)
{
    (void)state;
    install_script(
        "head -c 3000000 /dev/zero | tr '\\0' x >&5; head -c 3000000 /dev/zero | tr '\\0' y >&2; echo end >&2; exit 0");
    struct machine m = {.kernel_fd = make_kernel("", false)};
    start_ok(&m);
    run_until(&m, has_ended);
    size_t len = strlen(vm_console_tail(m.vm));
    assert_true(len > 40000 && len <= 65536);
    assert_int_equal(strspn(vm_console_tail(m.vm), "x"), len);
    assert_non_null(strstr(m.reason.text, "yyyend"));
    close(m.link_fd);
    free_vm(m.vm);
}

#define REAL(test) cmocka_unit_test_setup_teardown(test, before, after)

int main(void)
{
    const struct CMUnitTest tests[] = {
        REAL(test_start_without_qemu),
        REAL(test_start_refuses_senseless_sizes),
        REAL(test_probe_of_the_backend),
        REAL(test_start_with_a_kernel_that_is_none),
        REAL(test_kill_from_outside_is_seen),
        REAL(test_the_process_has_no_rights),
        REAL(test_guest_panic_is_the_reason),
        REAL(test_guest_reset_is_the_reason),
        REAL(test_stop_ends_the_machine),
        REAL(test_free_while_starting),
        REAL(test_a_peer_that_breaks_the_protocol_is_ended),
        REAL(test_last_words_are_in_the_reason),
        REAL(test_a_flood_is_cut),
    };
    return cmocka_run_group_tests(tests, before_all, after_all);
}
