/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/vmm.h"

#include "base/check.h"
#include "vmm/vm.h"

#include <assert.h>
#include <string.h>

static const char *const state_names[] = {"starting", "running", "ended"};
static_assert(sizeof state_names / sizeof *state_names == VM_STATE_COUNT, "one name per state");

static const char *const accel_names[] = {"kvm", "hvf", "tcg"};
static_assert(sizeof accel_names / sizeof *accel_names == VM_ACCEL_COUNT, "one name per accelerator");

const char *vm_state_name(enum vm_state state)
{
    CHECK((unsigned)state < VM_STATE_COUNT);
    return state_names[state];
}

const char *vm_accel_name(enum vm_accel accel)
{
    CHECK((unsigned)accel < VM_ACCEL_COUNT);
    return accel_names[accel];
}

enum vm_accel vm_accel_choose(struct kvm_probe *ret_probe)
{
    kvm_probe(ret_probe);
    if (ret_probe->usable)
        return VM_ACCEL_KVM;
#ifdef __APPLE__
    return VM_ACCEL_HVF;
#else
    return VM_ACCEL_TCG;
#endif
}

enum vm_state vm_state(const struct vm *vm)
{
    return vm->state;
}

const char *vm_console_tail(const struct vm *vm)
{
    return tail_text(&vm->console);
}

pid_t vm_pid(const struct vm *vm)
{
    return vm->pid;
}

unsigned vm_jail_missing(const struct vm *vm)
{
    return vm->jail_missing;
}

void vm_free(struct vm *vm)
{
    if (vm)
        vm->backend->free(vm);
}
