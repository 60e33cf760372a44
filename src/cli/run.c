/* SPDX-License-Identifier: Apache-2.0 */
/* `iii-sandbox run`: a machine for one command, without daemon or engine.
 *
 * The way of a run: parse → image and kernel from the store (prepared when missing; blocking, signals have their default
 * effect) → machine booted on the loop → script and --file copied in → the command, its streams pumped both ways → --out copied
 * back → the machine killed → pending output written → exit with the command's status. One struct run holds it all; its
 * states are enum run_state, moved on by set_state alone. Every failure goes through fail(), every end through finish(). */
#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/run_files.h"
#include "cli/run_io.h"
#include "cli/run_options.h"
#include "cli/run_result.h"
#include "cli/store.h"
#include "cli/terminal.h"
#include "sandbox/sandbox.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sysinfo.h>

/* The guest keeps the deadline; this much later we stop believing in the guest. */
#define DEADLINE_GRACE_MS 2000u
/* How long a command may go on that nobody reads and that does not heed SIGPIPE. */
#define UNREAD_GRACE_MS 2000u

enum run_state {
    RUN_BOOTING,
    RUN_FILLING,   /* the script and --file go in: `call` or `copy` is the one under way */
    RUN_RUNNING,   /* the command: `call` */
    RUN_RETURNING, /* --out comes back: `copy`; `status` is decided */
    RUN_FLUSHING,  /* the machine is gone; pending output is written */
    RUN_STATE_COUNT
};

struct pairs {
    struct file_pair *items;
    size_t len, at; /* at: the next one to copy */
};

struct run {
    uv_loop_t loop;
    enum run_state state;
    struct run_options options;
    struct cli_words words;
    struct image image;
    struct kernel kernel;
    struct wire_request request;
    char *script; /* --lang: the script's bytes */
    size_t script_len, script_sent;
    struct sandbox *sandbox;
    uint32_t call;
    struct output_pump out, err;
    struct input_pump in;
    struct captured kept_out, kept_err; /* --json */
    struct pairs files, outs;
    struct file_copy *copy;
    struct wire_exit end;
    bool has_end;
    uv_signal_t signals[5];
    uv_timer_t deadline, unread;
    uint64_t started_ms, ready_ms;
    unsigned interrupts;
    int status;
    struct err failure; /* reported at the end */
    char accel[8], accel_note[320];
};

static void set_state(struct run *run, enum run_state next)
{
    CHECK(next > run->state && next < RUN_STATE_COUNT);
    run->state = next;
}

/* Ends the machine and, once the output is written, the loop. */
static void finish(struct run *run, int status)
{
    if (run->state >= RUN_FLUSHING)
        return;
    set_state(run, RUN_FLUSHING);
    run->status = status;
    input_pump_stop(&run->in);
    run->out.link = run->err.link = NULL;
    file_copy_stop(STEAL_PTR(run->copy));
    sandbox_free(STEAL_PTR(run->sandbox));
    uv_timer_stop(&run->deadline);
    uv_timer_stop(&run->unread);
    if (output_pump_is_idle(&run->out) && output_pump_is_idle(&run->err))
        uv_stop(&run->loop);
}

static void fail(struct run *run, const struct err *why)
{
    if (run->state >= RUN_FLUSHING)
        return;
    if (!err_is_set(&run->failure))
        run->failure = *why;
    finish(run, why->code == ERR_TIMEOUT ? CLI_TIME_LIMIT : CLI_OUR_FAILURE);
}

static void on_idle(void *context)
{
    struct run *run = context;
    if (run->state == RUN_FLUSHING && output_pump_is_idle(&run->out) && output_pump_is_idle(&run->err))
        uv_stop(&run->loop);
}

static void on_unread(uv_timer_t *timer)
{
    struct run *run = timer->data;
    if (run->state == RUN_RUNNING)
        link_call_cancel(sandbox_link(run->sandbox), run->call);
}

/* Nobody reads our output any more: the command gets the SIGPIPE it would get here, and is killed when it ignores that. A full
 * disk is a failure of ours. */
static void on_output_failed(void *context)
{
    struct run *run = context;
    struct output_pump *pump = run->out.failed && run->out.failure.sys_errno != EPIPE ? &run->out : &run->err;
    if (pump->failed && pump->failure.sys_errno != EPIPE)
        fail(run, &pump->failure);
    else if (run->state == RUN_RUNNING) {
        link_call_signal(sandbox_link(run->sandbox), run->call, SIGPIPE);
        uv_timer_start(&run->unread, on_unread, UNREAD_GRACE_MS, 0);
    }
}

/* --- what comes back: --out, one after the other --- */

static void return_next(struct run *run);

static void on_returned(void *context, const struct err *failure)
{
    struct run *run = context;
    run->copy = NULL;
    if (failure && !err_is_set(&run->failure)) {
        run->failure = *failure;
        err_wrap(&run->failure, "--out %s", run->options.outs.items[run->outs.at - 1]);
        if (run->status == 0)
            run->status = CLI_OUR_FAILURE;
    }
    return_next(run);
}

/* An honest guest cannot have more than its image and disk hold. */
static uint64_t out_bytes_max(const struct run *run)
{
    return run->image.bytes + run->options.disk_mb * MIB + RUN_OUT_MARGIN;
}

static void return_next(struct run *run)
{
    struct err e = ERR_INIT;
    if (run->outs.at == run->outs.len) {
        finish(run, run->status);
        return;
    }
    run->copy = file_copy_start(&run->loop, sandbox_link(run->sandbox), &run->outs.items[run->outs.at++], false,
                                out_bytes_max(run), run, on_returned, &e);
    if (!run->copy)
        fail(run, &e);
}

/* The command is over: its status is decided. */
static void return_files(struct run *run, int status)
{
    set_state(run, RUN_RETURNING);
    run->status = status;
    uv_timer_stop(&run->deadline);
    uv_timer_stop(&run->unread);
    return_next(run);
}

/* --- the command --- */

static void on_data(void *context, enum wire_channel channel, const uint8_t *bytes, size_t len)
{
    struct run *run = context;
    bool is_err = channel == WIRE_CHANNEL_ERR;
    if (!run->options.json) {
        output_pump_add(is_err ? &run->err : &run->out, bytes, len);
        return;
    }
    captured_add(is_err ? &run->kept_err : &run->kept_out, bytes, len);
    link_call_taken(sandbox_link(run->sandbox), run->call, channel, len);
}

static void on_writable(void *context)
{
    struct run *run = context;
    input_pump_continue(&run->in);
}

static void on_exec_end(void *context, const uint8_t *reply, size_t len, const struct err *failure)
{
    struct run *run = context;
    struct err e = ERR_INIT;
    run->out.link = run->err.link = NULL;
    input_pump_stop(&run->in);
    if (failure) {
        if (failure->code != ERR_BOOT && failure->code != ERR_STOPPED)
            fail(run, failure); /* a lost machine is told by on_sandbox_end, which knows more */
        return;
    }
    if (wire_exit_decode(reply, len, &run->end, &e)) {
        fail(run, &e);
        return;
    }
    run->has_end = true;
    if (run->end.reason == WIRE_TIMED_OUT) {
        err_set(&run->failure, ERR_TIMEOUT, "the command was ended at its time limit of %llu ms",
                (unsigned long long)run->options.timeout_ms);
        return_files(run, CLI_TIME_LIMIT);
        return;
    }
    if (run->end.oom_killed && !run->options.json)
        fprintf(stderr, "iii-sandbox: the command ran out of memory (--memory %llu)\n",
                (unsigned long long)run->options.memory_mb);
    bool unread = run->end.reason == WIRE_CANCELLED && (run->out.failed || run->err.failed);
    return_files(run, unread ? 128 + SIGPIPE : (int)(run->end.exit_code & 255));
}

static void on_deadline(uv_timer_t *timer)
{
    struct run *run = timer->data;
    struct err e = ERR_INIT;
    if (!output_pump_is_idle(&run->out) || !output_pump_is_idle(&run->err)) {
        uv_timer_start(timer, on_deadline, DEADLINE_GRACE_MS, 0); /* our own reader is slow, not the guest */
        return;
    }
    err_set(&e, ERR_TIMEOUT, "the machine did not answer at the time limit of %llu ms",
            (unsigned long long)run->options.timeout_ms);
    fail(run, &e);
}

/* The terminal's size for the guest, and raw mode when our input is one. */
static int take_terminal(struct run *run, struct err *e)
{
    unsigned rows, columns;
    terminal_size(STDIN_FILENO, &rows, &columns);
    run->request.exec.tty_rows = rows;
    run->request.exec.tty_cols = columns;
    return isatty(STDIN_FILENO) ? terminal_raw(STDIN_FILENO, e) : 0;
}

static void start_command(struct run *run)
{
    struct wire_exec *exec = &run->request.exec;
    struct link *link = sandbox_link(run->sandbox);
    struct link_call_events events = {.context = run, .on_data = on_data, .on_writable = on_writable, .on_end = on_exec_end};
    struct err e = ERR_INIT;
    exec->realtime_ns = clock_realtime_ns();
    exec->has_stdin = !run->script || strcmp(run->words.words[1], "-") != 0;
    if ((run->options.tty && take_terminal(run, &e)) || link_call(link, &run->request, &events, &run->call, &e)) {
        fail(run, &e);
        return;
    }
    set_state(run, RUN_RUNNING);
    run->out.link = run->err.link = link;
    run->out.call = run->err.call = run->call;
    if (exec->has_stdin)
        input_pump_start(&run->in, link, run->call);
    if (run->options.timeout_ms)
        uv_timer_start(&run->deadline, on_deadline, run->options.timeout_ms + DEADLINE_GRACE_MS, 0);
}

/* --- what goes in first: --file, then the script of --lang --- */

static void send_script(void *context)
{
    struct run *run = context;
    struct link *link = sandbox_link(run->sandbox);
    run->script_sent += link_call_write(link, run->call, run->script + run->script_sent, run->script_len - run->script_sent);
    if (run->script_sent == run->script_len)
        link_call_end_input(link, run->call);
}

static void on_script_end(void *context, const uint8_t *reply, size_t len, const struct err *failure)
{
    struct run *run = context;
    (void)reply;
    (void)len;
    if (!failure)
        start_command(run);
    else if (failure->code != ERR_BOOT && failure->code != ERR_STOPPED)
        fail(run, failure);
}

static void start_script(struct run *run)
{
    struct err e = ERR_INIT;
    const struct run_language *language = run_language_find(run->options.lang);
    struct wire_request request = {.operation = WIRE_OP_WRITE,
                                   .write = {.path = (char *)(uintptr_t)language->path, .mode = 0644, .make_parents = 1}};
    struct link_call_events events = {.context = run, .on_writable = send_script, .on_end = on_script_end};
    if (link_call(sandbox_link(run->sandbox), &request, &events, &run->call, &e)) {
        fail(run, &e);
        return;
    }
    send_script(run);
}

static void fill_next(struct run *run);

static void on_filled(void *context, const struct err *failure)
{
    struct run *run = context;
    struct err e = ERR_INIT;
    run->copy = NULL;
    if (!failure) {
        fill_next(run);
    } else if (failure->code != ERR_BOOT && failure->code != ERR_STOPPED) {
        e = *failure;
        err_wrap(&e, "--file %s", run->options.files.items[run->files.at - 1]);
        fail(run, &e);
    }
}

static void fill_next(struct run *run)
{
    struct err e = ERR_INIT;
    if (run->files.at < run->files.len) {
        run->copy = file_copy_start(&run->loop, sandbox_link(run->sandbox), &run->files.items[run->files.at++], true, 0, run,
                                    on_filled, &e);
        if (!run->copy)
            fail(run, &e);
    } else if (run->script) {
        start_script(run);
    } else {
        start_command(run);
    }
}

/* --- the machine --- */

static void on_ready(void *context)
{
    struct run *run = context;
    terminal_progress_end();
    run->ready_ms = clock_now_ms() - run->started_ms;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "ready in %.2f s%s%s\n", (double)run->ready_ms / 1000.0, run->accel_note,
                vm_jail_missing(sandbox_vm(run->sandbox)) ? " (this host lacks a part of the jail: iii-sandbox doctor)" : "");
    set_state(run, RUN_FILLING);
    fill_next(run);
}

static void on_sandbox_end(void *context, const struct err *why)
{
    fail(context, why);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct run *run = handle->data;
    if (number == SIGWINCH) {
        unsigned rows, columns;
        terminal_size(STDIN_FILENO, &rows, &columns);
        if (run->state == RUN_RUNNING && run->options.tty)
            link_call_resize(sandbox_link(run->sandbox), run->call, rows, columns);
        return;
    }
    bool forwarded = (number == SIGINT || number == SIGQUIT) && run->state == RUN_RUNNING && run->interrupts++ == 0;
    if (forwarded) {
        link_call_signal(sandbox_link(run->sandbox), run->call, number);
        return;
    }
    run->out.failed = run->err.failed = true; /* leaving now matters more than the rest of the output */
    if (run->state == RUN_FLUSHING)
        run->status = 128 + number;
    finish(run, 128 + number);
    uv_stop(&run->loop);
}

static void watch_signals(struct run *run)
{
    static const int numbers[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGWINCH};
    static_assert(sizeof numbers / sizeof *numbers == sizeof run->signals / sizeof *run->signals, "one handle per signal");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        CHECK(uv_signal_init(&run->loop, &run->signals[i]) == 0);
        run->signals[i].data = run;
        uv_signal_start(&run->signals[i], on_signal, numbers[i]);
        uv_unref((uv_handle_t *)&run->signals[i]);
    }
}

/* --- preparation: blocking, before the loop runs --- */

static int read_script(struct run *run, struct err *e)
{
    const char *path = run->words.words[1];
    int failed = strcmp(path, "-") == 0
                     ? fd_read_to_end(STDIN_FILENO, "standard input", RUN_SCRIPT_MAX, &run->script, &run->script_len, e)
                     : file_read(path, RUN_SCRIPT_MAX, &run->script, &run->script_len, e);
    return failed ? err_recode(e, ERR_USAGE) : 0;
}

static int parse_pairs(const struct strv *texts, int (*parse)(const char *, struct file_pair *, struct err *),
                       struct pairs *pairs, struct err *e)
{
    pairs->items = xcalloc(texts->len, sizeof *pairs->items);
    for (; pairs->len < texts->len; pairs->len++)
        if (parse(texts->items[pairs->len], &pairs->items[pairs->len], e))
            return -1;
    return 0;
}

static void pairs_done(struct pairs *pairs)
{
    for (size_t i = 0; i < pairs->len; i++)
        file_pair_done(&pairs->items[i]);
    free(pairs->items);
}

static int check_memory(uint64_t memory_mb, struct err *e)
{
    struct sysinfo info;
    if (sysinfo(&info))
        return err_sys(e, errno, "read this host's memory size");
    uint64_t host_mb = (uint64_t)info.totalram * info.mem_unit / MIB;
    if (memory_mb > host_mb)
        return err_set(e, ERR_LIMIT, "--memory %llu is more than this host's %llu MiB", (unsigned long long)memory_mb,
                       (unsigned long long)host_mb);
    return 0;
}

static int choose_accel(struct run *run, enum vm_accel *ret_accel, struct err *e)
{
    struct kvm_probe probe;
    enum vm_accel best = vm_accel_choose(&probe);
    if (strcmp(run->accel, "tcg") == 0)
        best = VM_ACCEL_TCG;
    else if (strcmp(run->accel, "kvm") == 0 && best != VM_ACCEL_KVM)
        return err_set(e, ERR_BOOT, "KVM is not usable here: %s", probe.reason);
    else if (best == VM_ACCEL_TCG)
        snprintf(run->accel_note, sizeof run->accel_note, " (emulated: %s)", probe.reason);
    *ret_accel = best;
    return vmm_qemu.probe(best, e);
}

static int start_machine(struct run *run, struct store *store, struct err *e)
{
    enum vm_accel accel;
    auto_close disk_fd = -1;
    char hostname[32], unique[9];
    uint8_t random[4];
    CHECK(getrandom(random, sizeof random, 0) == (ssize_t)sizeof random);
    text_hex(random, sizeof random, unique);
    snprintf(hostname, sizeof hostname, "sandbox-%s", unique);
    if (choose_accel(run, &accel, e) || disk_new(store, (unsigned)run->options.disk_mb, &disk_fd, e))
        return -1;
    struct sandbox_spec spec = {
        .vm = {.cpus = (unsigned)run->options.cpus,
               .memory_mb = (unsigned)run->options.memory_mb,
               .accel = accel,
               .kernel_fd = run->kernel.kernel_fd,
               .initramfs_fd = run->kernel.initramfs_fd,
               .image_fd = run->image.fd,
               .disk_fd = disk_fd,
               .guest_aslr = accel != VM_ACCEL_TCG,
               .tsc_khz = accel == VM_ACCEL_TCG ? vm_tsc_khz() : 0},
        .backend = &vmm_qemu,
        .hostname = hostname,
    };
    struct sandbox_events events = {.context = run, .on_ready = on_ready, .on_end = on_sandbox_end};
    terminal_progress(NULL, "starting the machine", 0, 0);
    run->sandbox = sandbox_start(&run->loop, &spec, &events, e);
    return run->sandbox ? 0 : -1;
}

/* What the flags leave open comes from the configuration. */
static int apply_config(struct run *run, const struct config *config, struct err *e)
{
    struct run_options *o = &run->options;
    o->memory_mb = o->memory_mb ? o->memory_mb : config->default_memory_mb;
    o->cpus = o->cpus ? o->cpus : config->default_cpus;
    o->disk_mb = o->disk_mb ? o->disk_mb : config->default_disk_mb;
    snprintf(run->accel, sizeof run->accel, "%s", o->accel ? o->accel : config->accel);
    if (o->disk_mb > config->max_disk_mb)
        return err_set(e, ERR_LIMIT, "--disk %llu is above max_disk_mb %llu", (unsigned long long)o->disk_mb,
                       (unsigned long long)config->max_disk_mb);
    return check_memory(o->memory_mb, e);
}

/* Image and kernel; while they are prepared the loop does not run, and a signal asks to give up. */
static int prepare_store(struct run *run, struct store *store, struct err *e)
{
    struct image_progress progress = {.on_stage = terminal_progress, .cancelled = cli_cancel_watch()};
    auto_free char *name = cli_image_name(run->words.words[0]);
    int failed =
        image_ensure(store, name, &progress, &run->image, NULL, e) || kernel_ensure(store, &progress, &run->kernel, NULL, e);
    cli_cancel_unwatch();
    return failed ? -1 : run_request_make(&run->options, &run->words, &run->image, &run->request, e);
}

/* Everything up to a machine that boots. */
static int prepare(struct run *run, struct err *e)
{
    struct config config;
    if (parse_pairs(&run->options.files, file_pair_in, &run->files, e) ||
        parse_pairs(&run->options.outs, file_pair_out, &run->outs, e))
        return -1;
    if (run->options.lang && read_script(run, e))
        return -1;
    struct store *store = cli_store_open(run->options.config, &config, e);
    int failed = !store || apply_config(run, &config, e) || prepare_store(run, store, e);
    if (!failed) {
        watch_signals(run);
        failed = start_machine(run, store, e);
    }
    cli_store_close(store);
    config_done(&config);
    return failed ? -1 : 0;
}

static void close_loop(struct run *run)
{
    uv_close((uv_handle_t *)&run->deadline, NULL);
    uv_close((uv_handle_t *)&run->unread, NULL);
    for (size_t i = 0; i < sizeof run->signals / sizeof *run->signals; i++)
        if (run->signals[i].data)
            uv_close((uv_handle_t *)&run->signals[i], NULL);
    output_pump_close(&run->out);
    output_pump_close(&run->err);
    input_pump_close(&run->in);
    uv_run(&run->loop, UV_RUN_DEFAULT); /* the close callbacks */
    CHECK(uv_loop_close(&run->loop) == 0);
}

static void run_init(struct run *run)
{
    run->started_ms = clock_now_ms();
    run->image.fd = run->kernel.kernel_fd = run->kernel.initramfs_fd = -1;
    CHECK(uv_loop_init(&run->loop) == 0);
    CHECK(uv_timer_init(&run->loop, &run->deadline) == 0 && uv_timer_init(&run->loop, &run->unread) == 0);
    run->deadline.data = run->unread.data = run;
    output_pump_init(&run->out, &run->loop, STDOUT_FILENO, WIRE_CHANNEL_OUT);
    output_pump_init(&run->err, &run->loop, STDERR_FILENO, WIRE_CHANNEL_ERR);
    input_pump_init(&run->in, &run->loop, STDIN_FILENO);
    run->out.context = run->err.context = run;
    run->out.on_idle = run->err.on_idle = on_idle;
    run->out.on_failed = run->err.on_failed = on_output_failed;
}

static void print_result(struct run *run)
{
    struct err e = ERR_INIT;
    struct run_result result = {.end = run->has_end ? &run->end : NULL,
                                .failure = err_is_set(&run->failure) ? &run->failure : NULL,
                                .out = &run->kept_out,
                                .err = &run->kept_err,
                                .ready_ms = run->ready_ms};
    if (run_result_print(&result, &e)) {
        fprintf(stderr, "error: %s\n", e.text);
        run->status = CLI_OUR_FAILURE;
    }
}

static void run_done(struct run *run)
{
    wire_request_done(&run->request);
    image_done(&run->image);
    kernel_done(&run->kernel);
    pairs_done(&run->files);
    pairs_done(&run->outs);
    run_options_done(&run->options);
    buf_done(&run->kept_out.kept);
    buf_done(&run->kept_err.kept);
    free(run->script);
}

static int run_command(const struct cli_command *command, int argc, char **argv)
{
    struct run run = {0};
    struct err e = ERR_INIT;
    run_init(&run);
    if (cli_parse(command, argc, argv, &run.options, &run.words, &e) || run_options_check(&run.options, &run.words, &e) ||
        prepare(&run, &e)) {
        run.failure = e;
        run.status = cli_cancel_status(&e, CLI_OUR_FAILURE);
    } else {
        uv_run(&run.loop, UV_RUN_DEFAULT);
    }
    file_copy_stop(run.copy);
    sandbox_free(run.sandbox);
    close_loop(&run);
    terminal_restore();
    terminal_progress_end();
    if (run.options.json && run.failure.code != ERR_USAGE)
        print_result(&run);
    else if (err_is_set(&run.failure)) {
        int status = cli_fail(command, &run.failure, run.status);
        run.status = run.has_end ? run.status : status;
    }
    run_done(&run);
    return run.status;
}

const struct cli_command cli_run = {
    .name = "run",
    .summary = "run a command in a fresh machine and return its output and exit status",
    .synopsis =
        "run [FLAGS] IMAGE [-- COMMAND [ARG...]]\n       iii-sandbox run --lang LANGUAGE [FLAGS] IMAGE SCRIPT [-- ARG...]",
    .description =
        "Nothing the command wrote is left afterwards. Standard input is forwarded to its end; Ctrl-C interrupts the\n"
        "command, a second one ends the machine. The exit status is the command's own; 124 at the time limit, 125 when the\n"
        "sandbox failed, 126 when the command cannot be started, 127 when it is not there.\n\n"
        "examples:\n"
        "  iii-sandbox run python -- python3 -c 'print(2+2)'\n"
        "  iii-sandbox run -e TOKEN=x --memory 1024 --timeout 30s python -- python3 -c 'import os; print(os.environ)'\n"
        "  echo 'print(\"hello\")' | iii-sandbox run --lang python python -\n"
        "  iii-sandbox run --file src:/tmp/src --out /tmp/report.txt:. --workdir /tmp python -- sh -c 'wc -l src/* > "
        "report.txt'\n"
        "  iii-sandbox run -t python -- bash",
    .options = run_option_table,
    .run = run_command,
};
