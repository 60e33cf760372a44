/* SPDX-License-Identifier: Apache-2.0 */
/* The backend seam: how a virtual machine is started, watched and ended, whatever runs it.
 *
 * A backend is one const struct of functions (vmm_qemu.c). A started machine is a struct vm on a libuv loop; everything
 * reaches it by inherited descriptor, so it has no file, socket or pid file on the host. States and who moves them on:
 *   STARTING  the process runs, the control channel has not answered        → RUNNING (greeting answered) or ENDED
 *   RUNNING   the guest runs; the link is usable from STARTING on            → ENDED
 *   ENDED     the process is reaped; on_end was called once with the reason; only vm_free is allowed
 * The link descriptor is handed to the caller, who owns it. Callbacks never come from inside a call into this module. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

enum vm_accel { VM_ACCEL_KVM, VM_ACCEL_HVF, VM_ACCEL_TCG, VM_ACCEL_COUNT };
enum vm_state { VM_STATE_STARTING, VM_STATE_RUNNING, VM_STATE_ENDED, VM_STATE_COUNT };

/* What a machine is made of. Descriptors are borrowed for the call (the child gets copies). */
struct vm_spec {
    unsigned cpus;      /* >= 1 */
    unsigned memory_mb; /* >= 64 */
    enum vm_accel accel;
    int kernel_fd;             /* bzImage or ELF, read-only */
    int initramfs_fd;          /* read-only */
    int image_fd;              /* root image, read-only: /dev/vda */
    int disk_fd;               /* writable disk, read-write, sparse: /dev/vdb */
    bool guest_aslr;           /* off: norandmaps */
    unsigned tsc_khz;          /* 0: leave out tsc_early_khz */
    const char *extra_cmdline; /* NULL or more words for the kernel line */
};

struct vm;

struct vm_events {
    void *context;
    /* The process is gone (its own end, a guest reset or panic, or vm_stop). `reason` says what is known: exit status, last
     * stderr lines of the backend. Called once. */
    void (*on_end)(void *context, const struct err *reason);
    /* The host could not store what the guest wrote (disk full): the guest is paused by the backend until vm_resume. */
    void (*on_storage_full)(void *context);
};

struct vmm_backend {
    const char *name;
    bool can_save; /* templates: save and restore */
    /* Can this backend run here with this accelerator? ERR_ENVIRONMENT says why not and what to do. */
    int (*probe)(enum vm_accel accel, struct err *e);
    int (*start)(uv_loop_t *loop, const struct vm_spec *spec, const struct vm_events *events, struct vm **ret_vm,
                 int *ret_link_fd, struct err *e);
    void (*pause)(struct vm *vm);
    void (*resume)(struct vm *vm);
    void (*stop)(struct vm *vm); /* kill; on_end follows from the loop */
    void (*free)(struct vm *vm); /* see vm_free */
};

extern const struct vmm_backend vmm_qemu;

/* The state; the console's last bytes (kernel messages, cut at LOG: at most VM_CONSOLE_MAX), NUL-terminated, owned by vm. */
enum vm_state vm_state(const struct vm *vm) __attribute__((nonnull));
const char *vm_state_name(enum vm_state state);
const char *vm_console_tail(const struct vm *vm) __attribute__((nonnull));
pid_t vm_pid(const struct vm *vm) __attribute__((nonnull));
unsigned vm_jail_missing(const struct vm *vm) __attribute__((nonnull)); /* bits of enum jail_layer */
/* Frees in every state: a running machine is killed and reaped first (bounded wait), without on_end. Safe on NULL, and inside
 * on_end and on_storage_full. The memory itself goes when the loop has run the handles' close callbacks. */
void vm_free(struct vm *vm);

/* --- accelerators (probe.c) --- */
struct kvm_probe {
    bool usable;
    uint64_t loops_per_sec; /* reached by CPL0 long-mode code; 0 when it did not get that far */
    char reason[256];       /* why it is not usable, with the step and errno text; "" when usable */
};

/* Runs the probe (a forked child under a 50 ms limit, repeated once on failure) or takes its cached result for this boot
 * and kernel. Never fails: what goes wrong is the reason. */
void kvm_probe(struct kvm_probe *ret_probe) __attribute__((nonnull));
/* The machine's choice for accel auto: KVM when usable (HVF on Apple), else TCG. */
enum vm_accel vm_accel_choose(struct kvm_probe *ret_probe) __attribute__((nonnull));
const char *vm_accel_name(enum vm_accel accel); /* "kvm", "hvf", "tcg" */
/* Host TSC frequency for tsc_early_khz: rdtsc against the monotonic clock, cached per boot; 0 where there is no TSC. */
unsigned vm_tsc_khz(void);
