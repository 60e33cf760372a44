/* SPDX-License-Identifier: Apache-2.0 */
/* Is KVM of use here? An openable /dev/kvm proves nothing: some nested hosts complete every set-up step and then run a guest's
 * kernel code a thousand times slower than emulation would, while its user code is fast. So the probe runs a counting loop as
 * 64-bit kernel code (CPL 0, paging on) for at most 50 ms and looks at its rate.
 *
 * One 2 MiB slot at guest address 0 holds the page tables (PML4 → PDPT → PD with one 2 MiB page) and the loop:
 *     mov ecx, 1000000;  1: dec ecx;  jnz 1b;  hlt
 * There is no interrupt controller in the machine, so that hlt comes back to us at once. A timer signal ends a slow run; its
 * handler also sets immediate_exit, in case it fires between two steps. What ecx says then gives the rate. All this happens in
 * a forked child, which is killed should a step block. The result is kept for this boot, kernel and rights on the device. */
#include "vmm/probe.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#define PROBE_CHILD_MS 1000 /* a probe that is not done by then hangs in a system call */
#define PROBE_LOOPS_PER_SEC_MIN 50000000ull

#if defined(__x86_64__) && defined(__linux__)
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>

#define PROBE_RUN_MS 50
#define PROBE_LOOPS 1000000u
#define SLOT_SIZE (2 * MIB)
#define CODE_AT 0x8000u
#define CPUID_ENTRIES 256 /* more than KVM has (KVM_MAX_CPUID_ENTRIES) */

static struct kvm_run *current_run;

static void on_timer(int number)
{
    (void)number;
    if (current_run)
        current_run->immediate_exit = 1;
}

static void say(struct kvm_probe *p, const char *step, int error)
{
    snprintf(p->reason, sizeof p->reason, "%s: %s", step, strerror(error));
}

/* 0, or -1 with the reason. */
static int set_up_memory(int vm_fd, struct kvm_probe *p)
{
    static const uint8_t code[] = {0xb9, 0x40, 0x42, 0x0f, 0x00, 0xff, 0xc9, 0x75, 0xfc, 0xf4};
    uint8_t *memory = mmap(NULL, SLOT_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        say(p, "mmap", errno);
        return -1;
    }
    uint64_t *table = (uint64_t *)(void *)memory;
    table[0x1000 / 8] = 0x2000 | 3;
    table[0x2000 / 8] = 0x3000 | 3;
    table[0x3000 / 8] = 0x83; /* present, writable, 2 MiB */
    memcpy(memory + CODE_AT, code, sizeof code);
    struct kvm_userspace_memory_region slot = {.memory_size = SLOT_SIZE, .userspace_addr = (uint64_t)(uintptr_t)memory};
    if (ioctl(vm_fd, KVM_SET_TSS_ADDR, 0xfffbd000ul) < 0) {
        say(p, "KVM_SET_TSS_ADDR", errno);
        return -1;
    }
    if (ioctl(vm_fd, KVM_SET_USER_MEMORY_REGION, &slot) < 0) {
        say(p, "KVM_SET_USER_MEMORY_REGION", errno);
        return -1;
    }
    return 0;
}

static int set_up_cpu(int kvm_fd, int cpu_fd, struct kvm_probe *p)
{
    struct kvm_sregs sregs;
    _Alignas(8) uint8_t room[sizeof(struct kvm_cpuid2) + CPUID_ENTRIES * sizeof(struct kvm_cpuid_entry2)] = {0};
    struct kvm_cpuid2 *cpuid = (struct kvm_cpuid2 *)(void *)room;
    cpuid->nent = CPUID_ENTRIES;
    if (ioctl(kvm_fd, KVM_GET_SUPPORTED_CPUID, cpuid) < 0 || ioctl(cpu_fd, KVM_SET_CPUID2, cpuid) < 0) {
        say(p, "KVM_SET_CPUID2", errno);
        return -1;
    }
    if (ioctl(cpu_fd, KVM_GET_SREGS, &sregs) < 0) {
        say(p, "KVM_GET_SREGS", errno);
        return -1;
    }
    struct kvm_segment data = {.limit = ~0u, .selector = 16, .type = 3, .present = 1, .db = 1, .s = 1, .g = 1};
    sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = data;
    sregs.cs = (struct kvm_segment){.limit = ~0u, .selector = 8, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1};
    sregs.cr3 = 0x1000;
    sregs.cr4 = 0x20;       /* PAE */
    sregs.cr0 = 0x80000031; /* PG, NE, ET, PE */
    sregs.efer = 0x500;     /* LMA, LME */
    if (ioctl(cpu_fd, KVM_SET_SREGS, &sregs) < 0) {
        say(p, "KVM_SET_SREGS", errno);
        return -1;
    }
    struct kvm_regs regs = {.rip = CODE_AT, .rflags = 2, .rsp = CODE_AT};
    if (ioctl(cpu_fd, KVM_SET_REGS, &regs) < 0) {
        say(p, "KVM_SET_REGS", errno);
        return -1;
    }
    return 0;
}

static void run_loop(int cpu_fd, struct kvm_run *run, struct kvm_probe *p)
{
    struct sigaction timer = {.sa_handler = on_timer};
    struct itimerval limit = {.it_value.tv_usec = PROBE_RUN_MS * 1000, .it_interval.tv_usec = 5000};
    current_run = run;
    sigaction(SIGALRM, &timer, NULL);
    setitimer(ITIMER_REAL, &limit, NULL);
    uint64_t start = clock_now_us();
    int result = ioctl(cpu_fd, KVM_RUN, 0), error = errno;
    uint64_t took = clock_now_us() - start;
    if (result < 0 && error != EINTR) {
        say(p, "KVM_RUN", error);
        return;
    }
    struct kvm_regs regs;
    if (ioctl(cpu_fd, KVM_GET_REGS, &regs) < 0) {
        say(p, "KVM_GET_REGS", errno);
        return;
    }
    bool finished = result == 0 && run->exit_reason == KVM_EXIT_HLT;
    if (result == 0 && !finished) {
        snprintf(p->reason, sizeof p->reason, "KVM_RUN: unexpected exit %u", run->exit_reason);
        return;
    }
    /* before its first instruction the register is still zero */
    uint64_t left = regs.rip <= CODE_AT ? PROBE_LOOPS : (regs.rcx & 0xffffffff);
    uint64_t done = finished ? PROBE_LOOPS : left <= PROBE_LOOPS ? PROBE_LOOPS - left : 0;
    p->loops_per_sec = done * 1000000 / (took ? took : 1);
    p->usable = p->loops_per_sec >= PROBE_LOOPS_PER_SEC_MIN;
    if (!p->usable)
        snprintf(p->reason, sizeof p->reason, "it runs kernel code at %.1f million loops/s (at least %llu are needed)",
                 (double)p->loops_per_sec / 1e6, PROBE_LOOPS_PER_SEC_MIN / 1000000);
}

static void probe_here(int kvm_fd, struct kvm_probe *p)
{
    int version = ioctl(kvm_fd, KVM_GET_API_VERSION, 0);
    if (version != KVM_API_VERSION) {
        if (version < 0)
            say(p, "KVM_GET_API_VERSION", errno);
        else
            snprintf(p->reason, sizeof p->reason, "KVM_GET_API_VERSION: %d is unknown", version);
        return;
    }
    int vm_fd = ioctl(kvm_fd, KVM_CREATE_VM, 0);
    if (vm_fd < 0) {
        say(p, "KVM_CREATE_VM", errno);
        return;
    }
    if (set_up_memory(vm_fd, p))
        return;
    int cpu_fd = ioctl(vm_fd, KVM_CREATE_VCPU, 0);
    if (cpu_fd < 0) {
        say(p, "KVM_CREATE_VCPU", errno);
        return;
    }
    int size = ioctl(kvm_fd, KVM_GET_VCPU_MMAP_SIZE, 0);
    struct kvm_run *run = size < 0 ? MAP_FAILED : mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, cpu_fd, 0);
    if (run == MAP_FAILED) {
        say(p, "map the virtual CPU", errno);
        return;
    }
    if (set_up_cpu(kvm_fd, cpu_fd, p) == 0)
        run_loop(cpu_fd, run, p);
}

/* The child leaves its maps and descriptors to its end. */
static _Noreturn void probe_child(int kvm_fd, int result_fd, pid_t parent)
{
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGALRM);
    sigprocmask(SIG_SETMASK, &all, NULL); /* handlers of the parent do not run in here */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    /* Our own code, but it meets a kernel that may never give it back: it holds nothing but what it needs. */
    if (dup2(kvm_fd, 0) != 0 || dup2(result_fd, 1) != 1 || close_range(3, ~0u, 0))
        _exit(1);
    struct kvm_probe p = {0};
    probe_here(0, &p);
    _exit(fd_write(1, &p, sizeof p) == (ssize_t)sizeof p ? 0 : 1);
}

static void probe_once(int kvm_fd, struct kvm_probe *p)
{
    *p = (struct kvm_probe){0};
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) {
        say(p, "pipe", errno);
        return;
    }
    auto_close read_fd = ends[0];
    auto_close write_fd = ends[1];
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        say(p, "fork", errno);
        return;
    }
    if (pid == 0)
        probe_child(kvm_fd, write_fd, parent);
    close(STEAL_FD(write_fd));
    uint64_t deadline = clock_now_ms() + PROBE_CHILD_MS;
    struct pollfd result = {.fd = read_fd, .events = POLLIN};
    int n;
    do {
        uint64_t now = clock_now_ms();
        n = poll(&result, 1, now < deadline ? (int)(deadline - now) : 0);
    } while (n < 0 && errno == EINTR);
    ssize_t got = n > 0 ? fd_read(read_fd, p, sizeof *p) : -1;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    if (got != (ssize_t)sizeof *p) {
        *p = (struct kvm_probe){0};
        snprintf(p->reason, sizeof p->reason, n == 0 ? "the probe hangs" : "the probe died");
    }
    p->reason[sizeof p->reason - 1] = 0;
}

void kvm_probe_device(const char *device, struct kvm_probe *ret_probe)
{
    *ret_probe = (struct kvm_probe){0};
    auto_close kvm_fd = open(device, O_RDWR | O_CLOEXEC);
    if (kvm_fd < 0) {
        snprintf(ret_probe->reason, sizeof ret_probe->reason, "open %s: %s", device, strerror(errno));
        return;
    }
    probe_once(kvm_fd, ret_probe);
    if (!ret_probe->usable) /* a busy host can fail a good device once */
        probe_once(kvm_fd, ret_probe);
}
#else
void kvm_probe_device(const char *device, struct kvm_probe *ret_probe)
{
    *ret_probe = (struct kvm_probe){0};
    (void)device;
    snprintf(ret_probe->reason, sizeof ret_probe->reason, "there is no probe for this architecture");
}
#endif

char *probe_boot_key(void)
{
    struct err e = ERR_INIT;
    struct utsname host;
    auto_free char *boot_id = NULL;
    if (uname(&host) || file_read("/proc/sys/kernel/random/boot_id", 128, &boot_id, NULL, &e))
        return NULL;
    boot_id[strcspn(boot_id, "\n")] = 0;
    return xasprintf("%s %s", boot_id, host.release);
}

char *probe_cache_path(const char *name)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    auto_free char *folder = NULL;
    if (geteuid() == 0)
        folder = xstrdup("/run/iii-sandbox");
    else if (run && run[0] == '/')
        folder = xasprintf("%s/iii-sandbox", run);
    struct err e = ERR_INIT;
    if (!folder || dir_make(folder, 0755, &e))
        return NULL;
    struct stat s;
    if (lstat(folder, &s) || !S_ISDIR(s.st_mode) || s.st_uid != geteuid())
        return NULL; /* someone else's word counts nothing */
    return xasprintf("%s/%s", folder, name);
}

/* The whole kept text must begin with this: another boot, kernel, device or right makes another key. */
static char *cache_key(const char *device)
{
    auto_free char *boot = probe_boot_key();
    if (!boot)
        return NULL;
    struct stat s = {0};
    bool present = stat(device, &s) == 0;
    return xasprintf("kvm-probe 1 %s %s %d %o %u:%u %u:%u %d ", boot, device, present, (unsigned)s.st_mode, (unsigned)s.st_uid,
                     (unsigned)s.st_gid, major(s.st_rdev), minor(s.st_rdev), access(device, R_OK | W_OK) == 0);
}

/* "KEY<usable> <loops> <reason>\n"; anything else is not used. */
static int parse_kept(const char *text, const char *key, struct kvm_probe *ret_probe)
{
    if (!text_has_prefix(text, key))
        return -1;
    const char *at = text + strlen(key);
    if ((at[0] != '0' && at[0] != '1') || at[1] != ' ')
        return -1;
    struct kvm_probe p = {.usable = at[0] == '1'};
    at += 2;
    size_t digits = strcspn(at, " "), len = strlen(at);
    char number[32];
    if (digits >= sizeof number || at[digits] != ' ' || at[len - 1] != '\n' || len - digits - 2 >= sizeof p.reason)
        return -1;
    memcpy(number, at, digits);
    number[digits] = 0;
    struct err e = ERR_INIT;
    if (text_parse_u64(number, UINT64_MAX, &p.loops_per_sec, &e))
        return -1;
    memcpy(p.reason, at + digits + 1, len - digits - 2);
    if (p.usable != (p.reason[0] == 0) || strchr(p.reason, '\n'))
        return -1;
    *ret_probe = p;
    return 0;
}

void kvm_probe_cached(const char *device, const char *cache, struct kvm_probe *ret_probe)
{
    auto_free char *key = cache ? cache_key(device) : NULL;
    auto_free char *kept = NULL;
    struct err e = ERR_INIT;
    if (key && file_read(cache, VM_CACHE_FILE_MAX, &kept, NULL, &e) == 0 && parse_kept(kept, key, ret_probe) == 0)
        return;
    kvm_probe_device(device, ret_probe);
    if (!key)
        return;
    auto_free char *text =
        xasprintf("%s%d %llu %s\n", key, ret_probe->usable, (unsigned long long)ret_probe->loops_per_sec, ret_probe->reason);
    struct err unused = ERR_INIT;
    int written = file_write_atomic(cache, text, strlen(text), 0644, &unused);
    (void)written; /* a full or read-only run folder costs the next start 60 ms */
}

void kvm_probe(struct kvm_probe *ret_probe)
{
    auto_free char *cache = probe_cache_path("kvm-probe");
    kvm_probe_cached("/dev/kvm", cache, ret_probe);
}
