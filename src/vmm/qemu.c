/* SPDX-License-Identifier: Apache-2.0 */
/* The QEMU backend: one jailed QEMU process per machine, watched through four descriptors.
 *
 *   pidfd    readable: the process is gone. What the others still hold is read, then on_end is called. The only way to ENDED.
 *   QMP      our end of a socketpair; answers and events (qmp.h). STARTING becomes RUNNING when the channel is ready.
 *   console  our end of a socketpair; the guest's serial line, of which the end is kept.
 *   stderr   a pipe; what QEMU says about itself, of which the end is kept for the reason.
 *
 * QEMU is trusted with nothing: a control channel that breaks its protocol, or ends while the process lives on, costs the
 * machine. All descriptors are polled and read without blocking, a bounded piece per turn of the loop, so that a machine that
 * floods its console delays the others little. A machine lives until its last handle is closed; `freed` says that its owner is
 * done with it, after which no event leaves this file. */
#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/path.h"
#include "jail/jail.h"
#include "vmm/qemu_args.h"
#include "vmm/qmp.h"
#include "vmm/vm.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#define QEMU_FDS_MAX 128            /* descriptors open in one QEMU */
#define QEMU_FILE_MARGIN (64 * MIB) /* above the disk's size; QEMU has no other file to write */
#define QEMU_GRACE_MS 2000          /* between the end of the control channel and that of the process */
#define QEMU_VERSION_MS 10000       /* for qemu --version; the first run after boot reads 50 libraries */
#define MEMORY_MB_MIN 64

#ifdef __aarch64__
#define HOST_ARCH QEMU_ARCH_AARCH64
#else
#define HOST_ARCH QEMU_ARCH_X86_64
#endif

enum source_kind { SOURCE_QMP, SOURCE_CONSOLE, SOURCE_STDERR, SOURCE_COUNT };

struct qemu_vm;

struct source {
    uv_poll_t poll;
    struct qemu_vm *vm;
    enum source_kind kind;
    int fd; /* ours; -1: never opened or closed */
    bool has_handle;
};

struct qemu_vm {
    struct vm base;
    struct source sources[SOURCE_COUNT];
    uv_poll_t end_poll;
    uv_timer_t grace;
    bool has_end_poll, has_grace;
    unsigned handles; /* not closed yet */
    bool freed, stop_requested, storage_full;
    struct jail_child child; /* pid 0 once it is reaped */
    struct qmp qmp;
    struct tail stderr_tail;
    struct err failure;          /* why we ended it ourselves */
    char shutdown[QMP_NAME_MAX]; /* QEMU's word for why the guest ended, "" while it runs */
};

static struct qemu_vm *of(struct vm *vm)
{
    CHECK(vm->backend == &vmm_qemu);
    return (struct qemu_vm *)vm;
}

static void set_state(struct qemu_vm *vm, enum vm_state state)
{
    CHECK(state > vm->base.state);
    vm->base.state = state;
}

static void kill_process(struct qemu_vm *vm)
{
    struct err e = ERR_INIT;
    if (vm->child.pid > 0 && jail_signal(&vm->child, SIGKILL, &e)) /* cannot fail on a child of ours */
        CHECK(!"the machine's process cannot be killed");
}

/* The first cause is the one that counts. */
static void fail_machine(struct qemu_vm *vm, const struct err *cause)
{
    if (!err_is_set(&vm->failure))
        vm->failure = *cause;
    kill_process(vm);
}

/* --- the end of the handles --- */

static void drop_handle(struct qemu_vm *vm)
{
    CHECK(vm->handles > 0);
    if (--vm->handles > 0)
        return;
    qmp_done(&vm->qmp);
    tail_done(&vm->stderr_tail);
    tail_done(&vm->base.console);
    free(vm);
}

static void on_handle_closed(uv_handle_t *handle)
{
    drop_handle(handle->data);
}

static void on_source_closed(uv_handle_t *handle)
{
    const struct source *s = handle->data;
    drop_handle(s->vm);
}

static void close_source(struct source *s)
{
    if (s->has_handle)
        uv_poll_stop(&s->poll);
    if (s->fd >= 0)
        close(STEAL_FD(s->fd));
}

static void qemu_free(struct vm *base)
{
    struct qemu_vm *vm = of(base);
    CHECK(!vm->freed);
    vm->freed = true;
    vm->handles++; /* the count cannot reach zero before all are on their way */
    if (vm->has_end_poll)
        uv_close((uv_handle_t *)&vm->end_poll, on_handle_closed); /* before its pidfd is closed */
    jail_kill(&vm->child);
    for (size_t i = 0; i < SOURCE_COUNT; i++) {
        close_source(&vm->sources[i]);
        if (vm->sources[i].has_handle)
            uv_close((uv_handle_t *)&vm->sources[i].poll, on_source_closed);
    }
    if (vm->has_grace)
        uv_close((uv_handle_t *)&vm->grace, on_handle_closed);
    drop_handle(vm);
}

/* --- the control channel --- */

static void on_source(uv_poll_t *poll, int status, int events);

/* Sends what QEMU takes now; the rest when it takes more. */
static void flush_qmp(struct qemu_vm *vm)
{
    struct source *s = &vm->sources[SOURCE_QMP];
    while (s->fd >= 0 && vm->qmp.out.len > 0) {
        ssize_t n = send(s->fd, buf_data(&vm->qmp.out), vm->qmp.out.len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break; /* full; or gone, which reading finds out */
        buf_consume(&vm->qmp.out, (size_t)n);
    }
    if (s->fd >= 0 && s->has_handle) {
        int result = uv_poll_start(&s->poll, UV_READABLE | (vm->qmp.out.len > 0 ? UV_WRITABLE : 0), on_source);
        CHECK(result == 0); /* it has been started before with this descriptor */
    }
}

static void command(struct qemu_vm *vm, const char *name)
{
    struct err e = ERR_INIT;
    if (vm->base.state == VM_STATE_ENDED || qmp_is_pending(&vm->qmp, name))
        return; /* an order that waits for its answer is not given twice */
    if (qmp_command(&vm->qmp, name, NULL, &e))
        fail_machine(vm, &e);
    else
        flush_qmp(vm);
}

static const char *text_of(const json_t *data, const char *key)
{
    const char *text = json_string_value(json_object_get(data, key));
    return text ? text : "";
}

static void on_event(struct qemu_vm *vm, const char *name, const json_t *data)
{
    if (strcmp(name, "SHUTDOWN") == 0 && !vm->shutdown[0]) {
        snprintf(vm->shutdown, sizeof vm->shutdown, "%s", text_of(data, "reason"));
    } else if (strcmp(name, "GUEST_PANICKED") == 0) {
        snprintf(vm->shutdown, sizeof vm->shutdown, "guest-panic");
    } else if (strcmp(name, "BLOCK_IO_ERROR") == 0) {
        /* QEMU has stopped the guest; the requests in flight each bring their own event */
        bool stopped = json_is_true(json_object_get(data, "nospace")) && strcmp(text_of(data, "action"), "stop") == 0;
        if (stopped && !vm->storage_full) {
            vm->storage_full = true;
            vm->base.events.on_storage_full(vm->base.events.context);
        }
    }
}

static void on_qmp_message(void *context, const struct qmp_message *message)
{
    struct qemu_vm *vm = context;
    if (vm->freed)
        return;
    if (message->kind == QMP_EVENT)
        on_event(vm, message->name, message->data);
}

static void on_qmp_bytes(struct qemu_vm *vm, const char *bytes, size_t len)
{
    struct err e = ERR_INIT;
    if (qmp_feed(&vm->qmp, bytes, len, on_qmp_message, vm, &e)) {
        close_source(&vm->sources[SOURCE_QMP]);
        fail_machine(vm, &e);
        return;
    }
    if (!vm->freed && vm->base.state == VM_STATE_STARTING && vm->qmp.state == QMP_STATE_READY)
        set_state(vm, VM_STATE_RUNNING);
}

static void on_grace_over(uv_timer_t *timer)
{
    struct qemu_vm *vm = timer->data;
    struct err e = ERR_INIT;
    err_set(&e, ERR_PROTOCOL, "qemu closed its control channel without ending");
    fail_machine(vm, &e);
}

/* --- reading --- */

/* Reads one piece. Returns 1 when there may be more, 0 when not now, and closes the source at its end. */
static int read_piece(struct source *s)
{
    char bytes[16384];
    ssize_t n = fd_read(s->fd, bytes, sizeof bytes);
    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n <= 0) {
        close_source(s);
        if (s->kind == SOURCE_QMP && s->vm->has_grace)
            uv_timer_start(&s->vm->grace, on_grace_over, QEMU_GRACE_MS, 0);
        return 0;
    }
    if (s->kind == SOURCE_QMP)
        on_qmp_bytes(s->vm, bytes, (size_t)n);
    else
        tail_append(s->kind == SOURCE_CONSOLE ? &s->vm->base.console : &s->vm->stderr_tail, bytes, (size_t)n);
    return !s->vm->freed && s->fd >= 0;
}

static void on_source(uv_poll_t *poll, int status, int events)
{
    struct source *s = poll->data;
    struct qemu_vm *vm = s->vm;
    if (status < 0)
        events = UV_READABLE; /* the read says what it is */
    if ((events & UV_READABLE) && !read_piece(s))
        return;
    if ((events & UV_WRITABLE) && !vm->freed)
        flush_qmp(vm);
}

/* --- the end of the process --- */

/* The last lines of QEMU's stderr on one line. */
static void add_stderr(const struct qemu_vm *vm, char *text, size_t text_size)
{
    const char *said = tail_text(&vm->stderr_tail);
    size_t len = strlen(said), used = strlen(text);
    while (len > 0 && said[len - 1] == '\n')
        len--;
    if (len == 0 || used + 3 >= text_size)
        return;
    size_t room = text_size - used - 3, skip = len > room ? len - room : 0;
    snprintf(text + used, text_size - used, ": %.*s", (int)(len - skip), said + skip);
    for (char *at = text; *at; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = ' ';
    }
}

static void describe_end(const struct qemu_vm *vm, int status, struct err *reason)
{
    char text[800], panic[400];
    if (err_is_set(&vm->failure)) {
        *reason = vm->failure;
        return;
    }
    if (vm->stop_requested) {
        err_set(reason, ERR_STOPPED, "the machine was stopped");
        return;
    }
    if (tail_find_line(&vm->base.console, "Kernel panic - ", panic, sizeof panic) == 0)
        snprintf(text, sizeof text, "the guest's kernel stopped: %s", panic);
    else if (vm->shutdown[0])
        snprintf(text, sizeof text, "the guest ended its machine (%s)", vm->shutdown);
    else if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "qemu was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text, sizeof text, "qemu ended with status %d", WEXITSTATUS(status));
    add_stderr(vm, text, sizeof text);
    err_set(reason, ERR_BOOT, "%s", text);
}

static void on_process_end(uv_poll_t *poll, int poll_status, int events)
{
    struct qemu_vm *vm = poll->data;
    (void)poll_status;
    (void)events;
    for (size_t i = 0; i < SOURCE_COUNT; i++) { /* its last words */
        struct source *s = &vm->sources[i];
        for (size_t pieces = 0; s->fd >= 0 && pieces < VM_DRAIN_MAX / 16384 && read_piece(s); pieces++)
            ;
        if (vm->freed)
            return;
        close_source(s);
    }
    uv_timer_stop(&vm->grace);
    uv_poll_stop(&vm->end_poll);
    int status = 0;
    struct err reason = ERR_INIT, e = ERR_INIT;
    if (jail_wait(&vm->child, &status, &e))
        reason = e;
    else
        describe_end(vm, status, &reason);
    set_state(vm, VM_STATE_ENDED);
    vm->base.events.on_end(vm->base.events.context, &reason);
}

/* --- starting --- */

/* `ours` is non-blocking; both are close-on-exec. */
static int make_pair(int *ret_ours, int *ret_theirs, struct err *e)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return err_sys(e, errno, "make a socketpair");
    *ret_ours = ends[0];
    *ret_theirs = ends[1];
    return fd_set_nonblocking(ends[0], true, e);
}

static int make_stderr(int *ret_ours, int *ret_theirs, struct err *e)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return err_sys(e, errno, "make a pipe");
    *ret_ours = ends[0];
    *ret_theirs = ends[1];
    return fd_set_nonblocking(ends[0], true, e);
}

static int open_reader(int disk_fd, struct err *e)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", disk_fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? err_sys(e, errno, "open the writable disk for reading") : fd;
}

/* With KVM's clock and a deadline timer in the interrupt controller a guest needs none of the PC's old timers. */
static bool needs_legacy_timers(enum vm_accel accel)
{
#ifdef __x86_64__
    unsigned a, b, c, d;
    if (accel == VM_ACCEL_KVM && __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 24))
        return false;
#endif
    (void)accel;
    return true;
}

/* The group by which a nobody may open the KVM device, 0 when everyone may or no group can. */
static gid_t kvm_group(enum vm_accel accel)
{
    struct stat s;
    if (accel != VM_ACCEL_KVM || stat("/dev/kvm", &s) || (s.st_mode & 0006) == 0006 || (s.st_mode & 0060) != 0060)
        return 0;
    return s.st_gid;
}

static char *find_program(struct err *e)
{
    char *program = path_find_in_path(qemu_program_name(HOST_ARCH), e);
    if (!program)
        err_wrap(e, "QEMU is missing, install the Debian package %s", qemu_package_name(HOST_ARCH));
    return program;
}

static int check_spec(const struct vm_spec *spec, struct err *e)
{
    if (spec->cpus < 1 || spec->cpus > VM_CPUS_MAX)
        return err_set(e, ERR_INVALID, "%u CPUs: a machine has 1 to %d", spec->cpus, VM_CPUS_MAX);
    if (spec->memory_mb < MEMORY_MB_MIN || spec->memory_mb > VM_MEMORY_MB_MAX)
        return err_set(e, ERR_INVALID, "%u MB: a machine has %d to %u MB of memory", spec->memory_mb, MEMORY_MB_MIN,
                       VM_MEMORY_MB_MAX);
    return 0;
}

/* The ends of the channels that QEMU gets, and those that the caller gets. */
struct channels {
    int link, link_theirs, qmp_theirs, console_theirs, stderr_theirs, disk_reader;
};

static void channels_done(struct channels *c)
{
    int *const all[] = {&c->link, &c->link_theirs, &c->qmp_theirs, &c->console_theirs, &c->stderr_theirs, &c->disk_reader};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cleanup_close(all[i]);
}

static int make_channels(struct qemu_vm *vm, const struct vm_spec *spec, struct channels *c, struct err *e)
{
    if (make_pair(&c->link, &c->link_theirs, e) || make_pair(&vm->sources[SOURCE_QMP].fd, &c->qmp_theirs, e) ||
        make_pair(&vm->sources[SOURCE_CONSOLE].fd, &c->console_theirs, e) ||
        make_stderr(&vm->sources[SOURCE_STDERR].fd, &c->stderr_theirs, e))
        return -1;
    c->disk_reader = open_reader(spec->disk_fd, e);
    return c->disk_reader < 0 ? -1 : 0;
}

static int spawn(struct qemu_vm *vm, const struct vm_spec *spec, const struct channels *c, struct err *e)
{
    auto_free char *program = find_program(e);
    struct stat disk;
    if (!program)
        return -1;
    if (fstat(spec->disk_fd, &disk))
        return err_sys(e, errno, "look at the writable disk");
    struct qemu_args args = {.arch = HOST_ARCH,
                             .accel = spec->accel,
                             .cpus = spec->cpus,
                             .memory_mb = spec->memory_mb,
                             .legacy_timers = needs_legacy_timers(spec->accel),
                             .guest_aslr = spec->guest_aslr,
                             .tsc_khz = spec->tsc_khz,
                             .extra_cmdline = spec->extra_cmdline};
    auto_strv argv = {0};
    qemu_args_build(&args, &argv);
    const struct jail_fd fds[] = {{c->stderr_theirs, 2},
                                  {c->link_theirs, QEMU_FD_LINK},
                                  {c->qmp_theirs, QEMU_FD_QMP},
                                  {c->console_theirs, QEMU_FD_CONSOLE},
                                  {spec->kernel_fd, QEMU_FD_KERNEL},
                                  {spec->initramfs_fd, QEMU_FD_INITRAMFS},
                                  {spec->image_fd, QEMU_FD_IMAGE},
                                  {spec->disk_fd, QEMU_FD_DISK},
                                  {c->disk_reader, QEMU_FD_DISK_READER}};
    struct jail_spec jail = {.name = "qemu",
                             .program = program,
                             .argv = argv.items,
                             .fds = fds,
                             .fds_len = sizeof fds / sizeof *fds,
                             .namespaces = true,
                             .ids = JAIL_IDS_NOBODY,
                             .extra_group = kvm_group(spec->accel),
                             .caps = JAIL_CAPS_DROP,
                             .file_size_max = (uint64_t)disk.st_size + QEMU_FILE_MARGIN,
                             .fds_max = QEMU_FDS_MAX};
    if (jail_spawn(&jail, &vm->child, e))
        return -1;
    vm->base.pid = vm->child.pid;
    vm->base.jail_missing = vm->child.missing;
    return 0;
}

static int uv_failed(int result, struct err *e)
{
    return result < 0 ? err_sys(e, -result, "watch the machine") : 0;
}

/* Timers cannot fail; a poll can (the kernel's limit of watches). */
static int watch(struct qemu_vm *vm, uv_loop_t *loop, struct err *e)
{
    if (uv_failed(uv_timer_init(loop, &vm->grace), e))
        return -1;
    vm->grace.data = vm;
    vm->has_grace = true;
    vm->handles++;
    if (uv_failed(uv_poll_init(loop, &vm->end_poll, vm->child.pidfd), e))
        return -1;
    vm->end_poll.data = vm;
    vm->has_end_poll = true;
    vm->handles++;
    if (uv_failed(uv_poll_start(&vm->end_poll, UV_READABLE, on_process_end), e))
        return -1;
    for (size_t i = 0; i < SOURCE_COUNT; i++) {
        struct source *s = &vm->sources[i];
        if (uv_failed(uv_poll_init(loop, &s->poll, s->fd), e))
            return -1;
        s->poll.data = s;
        s->has_handle = true;
        vm->handles++;
        if (uv_failed(uv_poll_start(&s->poll, UV_READABLE, on_source), e))
            return -1;
    }
    return 0;
}

static int qemu_start(uv_loop_t *loop, const struct vm_spec *spec, const struct vm_events *events, struct vm **ret_vm,
                      int *ret_link_fd, struct err *e)
{
    if (check_spec(spec, e))
        return -1;
    struct qemu_vm *vm = xcalloc(1, sizeof *vm);
    vm->base = (struct vm){.backend = &vmm_qemu, .events = *events, .console = TAIL_INIT(VM_CONSOLE_MAX)};
    vm->stderr_tail = TAIL_INIT(VM_STDERR_MAX);
    vm->child.pidfd = -1;
    for (size_t i = 0; i < SOURCE_COUNT; i++) {
        struct source *s = &vm->sources[i];
        s->vm = vm;
        s->kind = (enum source_kind)i;
        s->fd = -1;
    }
    qmp_init(&vm->qmp);
    __attribute__((cleanup(channels_done))) struct channels c = {-1, -1, -1, -1, -1, -1};
    if (make_channels(vm, spec, &c, e) || spawn(vm, spec, &c, e) || watch(vm, loop, e)) {
        qemu_free(&vm->base);
        return err_wrap(e, "start a machine");
    }
    flush_qmp(vm);
    *ret_vm = &vm->base;
    *ret_link_fd = STEAL_FD(c.link);
    return 0;
}

static void qemu_pause(struct vm *base)
{
    command(of(base), "stop");
}

static void qemu_resume(struct vm *base)
{
    of(base)->storage_full = false;
    command(of(base), "cont");
}

static void qemu_stop(struct vm *base)
{
    struct qemu_vm *vm = of(base);
    vm->stop_requested = true;
    kill_process(vm);
}

/* --- the probe --- */

static int wait_for_version(struct jail_child *child, int output_fd, struct err *e)
{
    struct pollfd end = {.fd = child->pidfd, .events = POLLIN};
    int n, status = 0;
    do
        n = poll(&end, 1, QEMU_VERSION_MS);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        jail_kill(child);
        return err_set(e, ERR_ENVIRONMENT, "qemu --version does not end");
    }
    if (jail_wait(child, &status, e))
        return -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    char said[512];
    ssize_t len = fd_read(output_fd, said, sizeof said - 1);
    said[len > 0 ? len : 0] = 0;
    said[strcspn(said, "\n")] = 0;
    return err_set(e, ERR_ENVIRONMENT, "qemu does not run (status %d): %s", WEXITSTATUS(status), said);
}

static int run_version(const char *program, struct err *e)
{
    int ours = -1, theirs = -1;
    int result = make_stderr(&ours, &theirs, e);
    auto_close output_fd = ours;
    auto_close input_fd = theirs;
    if (result)
        return -1;
    char name[] = "qemu", option[] = "--version", *argv[] = {name, option, NULL};
    const struct jail_fd fds[] = {{input_fd, 1}, {input_fd, 2}};
    struct jail_spec jail = {
        .name = "qemu", .program = program, .argv = argv, .fds = fds, .fds_len = 2, .namespaces = true, .ids = JAIL_IDS_NOBODY};
    struct jail_child child;
    return jail_spawn(&jail, &child, e) ? -1 : wait_for_version(&child, output_fd, e);
}

static int qemu_probe(enum vm_accel accel, struct err *e)
{
    auto_free char *program = find_program(e);
    if (!program || run_version(program, e))
        return -1;
    if (accel == VM_ACCEL_KVM) {
        struct kvm_probe probe;
        kvm_probe(&probe);
        if (!probe.usable)
            return err_set(e, ERR_ENVIRONMENT, "KVM is not usable: %s", probe.reason);
    }
#ifndef __APPLE__
    if (accel == VM_ACCEL_HVF)
        return err_set(e, ERR_ENVIRONMENT, "HVF exists on Apple machines only");
#endif
    return 0;
}

const struct vmm_backend vmm_qemu = {
    .name = "qemu",
    .can_save = false,
    .probe = qemu_probe,
    .start = qemu_start,
    .pause = qemu_pause,
    .resume = qemu_resume,
    .stop = qemu_stop,
    .free = qemu_free,
};
