/* SPDX-License-Identifier: Apache-2.0 */
/* A job's life is one enum, changed by job_enter alone.
 *
 * RUNNING: the child lives; bytes flow under credit in both directions. KILLED: its control group got SIGKILL because of
 * the deadline or a CANCEL, and its end is awaited. DRAINING: the program itself has ended; each output still owes what its
 * pipe held at that moment (`owed`, from FIONREAD), no grace and no waiting for other holders of the pipe. DONE: the answer
 * is sent, and pipes that orphans still hold are handed to the link's drains.
 *
 * A program that does not read its input costs one window of memory and nothing else: the bytes wait here, credit stays
 * out. Input nobody will read (closed early, program ended) is dropped and its credit returned, so the host never hangs. */
#include "agent/job.h"

#include "agent/child.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "wire/credit.h"

#include <assert.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum job_state { JOB_RUNNING, JOB_KILLED, JOB_DRAINING, JOB_DONE };

struct output {
    struct source source;
    struct job *job;
    struct credit_sender credit;
    uint8_t channel;
    bool ended;    /* its EOF is sent */
    uint64_t owed; /* in DRAINING: bytes the pipe held when the program ended and that are still to be sent */
    uint64_t sent;
};

struct job {
    struct link *link;
    uint32_t stream;
    enum wire_operation operation;
    enum job_state state;
    pid_t pid; /* 0 once reaped */
    struct source end, deadline, input;
    struct source status; /* hangs up when the program starts, holds a record when it could not */
    struct output outputs[2];
    struct buf input_bytes;
    struct credit_receiver input_credit;
    bool input_ended; /* the host sent EOF */
    bool tty;
    uint8_t input_last; /* last byte given to the terminal */
    bool input_held;    /* a terminal not yet taken by its program: ^C would be lost */
    struct leaf leaf;
    struct wire_exit exit;
    uint64_t started_us;
};

static void kill_all(struct job *job)
{
    if (!leaf_kill(&job->leaf) && job->pid) {
        kill(-job->pid, SIGKILL);
        kill(job->pid, SIGKILL); /* it may not have its group yet */
    }
}

static void output_update(struct output *output)
{
    struct job *job = output->job;
    bool may_read = output->credit.window > 0 && !job->link->congested && !output->ended;
    if (job->state == JOB_DRAINING && !output->owed)
        may_read = false;
    loop_want(&job->link->loop, &output->source, may_read ? EPOLLIN : 0);
}

void job_refresh(struct job *job)
{
    for (size_t i = 0; i < 2; i++)
        output_update(&job->outputs[i]);
    loop_want(&job->link->loop, &job->input, job->input_bytes.len && !job->input_held ? EPOLLOUT : 0);
}

static void output_end(struct output *output)
{
    struct job *job = output->job;
    if (output->ended)
        return;
    output->ended = true;
    output->owed = 0;
    struct wire_frame frame = {.stream = job->stream, .kind = WIRE_EOF, .channel = output->channel};
    link_send(job->link, &frame);
    loop_want(&job->link->loop, &output->source, 0);
}

/* Closes the pipe, or leaves it to the link while orphans may still write into it. */
static void output_release(struct output *output)
{
    struct loop *loop = &output->job->link->loop;
    struct pollfd poller = {.fd = output->source.fd, .events = POLLIN};
    loop_want(loop, &output->source, 0);
    if (output->source.fd < 0)
        return;
    bool held = !output->job->tty && poll(&poller, 1, 0) >= 0 && !(poller.revents & (POLLHUP | POLLERR));
    if (held)
        link_drain(output->job->link, STEAL_FD(output->source.fd));
    else
        loop_close(loop, &output->source);
}

static void input_return_credit(struct job *job, uint32_t bytes)
{
    uint32_t grant = credit_receiver_taken(&job->input_credit, bytes);
    if (grant)
        link_send_u32(job->link, WIRE_CREDIT, job->stream, WIRE_CHANNEL_IN, grant);
}

static void input_close(struct job *job)
{
    uint32_t dropped = (uint32_t)job->input_bytes.len;
    loop_close(&job->link->loop, &job->input);
    buf_clear(&job->input_bytes);
    if (dropped)
        input_return_credit(job, dropped);
}

/* Input is at its end. A terminal has none: the line discipline makes one from ^D at the start of a line. */
static void input_finish(struct job *job)
{
    if (job->tty && job->input.fd >= 0)
        fd_write(job->input.fd, "\4\4", job->input_last && job->input_last != '\n' && job->input_last != '\r' ? 2 : 1);
    input_close(job);
}

static void input_pump(struct job *job)
{
    if (job->input_held)
        return;
    while (job->input.fd >= 0 && job->input_bytes.len) {
        const uint8_t *bytes = buf_data(&job->input_bytes);
        ssize_t n = fd_write(job->input.fd, bytes, job->input_bytes.len);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) { /* closed early: fine, the rest is for nobody */
            input_close(job);
            break;
        }
        job->input_last = bytes[n - 1];
        buf_consume(&job->input_bytes, (size_t)n);
        input_return_credit(job, (uint32_t)n);
    }
    if (job->input_ended && job->input.fd >= 0 && !job->input_bytes.len)
        input_finish(job);
    loop_want(&job->link->loop, &job->input, job->input_bytes.len ? EPOLLOUT : 0);
}

static void job_answer(struct job *job)
{
    struct child_failure failure;
    if (fd_read(job->status.fd, &failure, sizeof failure) == (ssize_t)sizeof failure) {
        failure.text[sizeof failure.text - 1] = 0;
        link_send_failure(job->link, job->stream, failure.code, failure.sys_errno, failure.text);
        return;
    }
    auto_buf body = BUF_INIT(WIRE_REPLY_MAX);
    struct err e = ERR_INIT;
    if (job->operation == WIRE_OP_EXEC) {
        job->exit.stdout_bytes = job->outputs[0].sent;
        job->exit.stderr_bytes = job->outputs[1].sent;
        if (wire_exit_encode(&body, &job->exit, &e)) {
            link_break(job->link, &e);
            return;
        }
    } else if (job->exit.exit_code || job->exit.reason) {
        const char *why = job->exit.reason == WIRE_EXITED ? "the worker was killed" : "cancelled";
        link_send_failure(job->link, job->stream, 216, 0, why);
        return;
    }
    link_send_reply(job->link, job->stream, &body);
}

/* The only place that changes the state. In DONE the job is freed. */
static void job_enter(struct job *job, enum job_state state)
{
    static const bool allowed[][4] = {
        [JOB_RUNNING] = {[JOB_KILLED] = true, [JOB_DRAINING] = true},
        [JOB_KILLED] = {[JOB_DRAINING] = true},
        [JOB_DRAINING] = {[JOB_DONE] = true},
        [JOB_DONE] = {false},
    };
    CHECK(allowed[job->state][state]);
    job->state = state;
    switch (state) {
    case JOB_KILLED:
        loop_close(&job->link->loop, &job->deadline);
        kill_all(job);
        break;
    case JOB_DRAINING:
        loop_close(&job->link->loop, &job->deadline);
        loop_close(&job->link->loop, &job->end);
        break;
    case JOB_DONE:
        for (size_t i = 0; i < 2; i++) {
            output_end(&job->outputs[i]);
            output_release(&job->outputs[i]);
        }
        input_close(job);
        job_answer(job);
        link_stream_end(job->link, job->stream);
        break;
    case JOB_RUNNING:
        break;
    }
}

static void finish_if_drained(struct job *job)
{
    if (job->state != JOB_DRAINING)
        return;
    for (size_t i = 0; i < 2; i++)
        if (!job->outputs[i].owed)
            output_end(&job->outputs[i]);
    if (job->outputs[0].ended && job->outputs[1].ended)
        job_enter(job, JOB_DONE);
    else
        job_refresh(job);
}

static void on_output(void *owner, uint32_t events)
{
    (void)events;
    struct output *output = owner;
    struct job *job = output->job;
    static uint8_t bytes[WIRE_BODY_MAX]; /* one thread, and link_send copies */
    size_t want = sizeof bytes;
    if (want > output->credit.window)
        want = output->credit.window;
    if (job->state == JOB_DRAINING && want > output->owed)
        want = output->owed;
    ssize_t n = fd_read(output->source.fd, bytes, want);
    if (n < 0 && errno == EAGAIN) {
        if (job->state == JOB_DRAINING && !job->tty) /* another holder of the pipe read it */
            output->owed = 0;
    } else if (n <= 0) { /* a terminal says EIO when its last user is gone */
        output_end(output);
        loop_close(&job->link->loop, &output->source);
    } else {
        credit_sender_spend(&output->credit, (uint32_t)n);
        output->sent += (uint64_t)n;
        if (job->state == JOB_DRAINING)
            output->owed -= (uint64_t)n;
        struct wire_frame frame = {
            .stream = job->stream, .kind = WIRE_DATA, .channel = output->channel, .body = bytes, .body_bytes = (uint32_t)n};
        link_send(job->link, &frame);
    }
    output_update(output);
    finish_if_drained(job);
}

static void on_input(void *owner, uint32_t events)
{
    (void)events;
    input_pump(owner);
}

static void on_started(void *owner, uint32_t events)
{
    (void)events;
    struct job *job = owner;
    loop_want(&job->link->loop, &job->status, 0);
    job->input_held = false;
    input_pump(job);
}

static void on_deadline(void *owner, uint32_t events)
{
    (void)events;
    struct job *job = owner;
    loop_close(&job->link->loop, &job->deadline);
    if (job->state == JOB_DRAINING) { /* of a terminal that an orphan still holds */
        job->outputs[0].owed = 0;
        finish_if_drained(job);
        return;
    }
    job->exit.reason = WIRE_TIMED_OUT;
    job_enter(job, JOB_KILLED);
}

static void note_exit(struct job *job, const siginfo_t *info)
{
    job->exit.duration_us = clock_now_us() - job->started_us;
    if (info->si_code == CLD_EXITED) {
        job->exit.exit_code = (unsigned)info->si_status & 0xff;
    } else {
        job->exit.signal = (uint64_t)info->si_status;
        job->exit.exit_code = 128 + (uint64_t)info->si_status;
    }
    job->exit.oom_killed = job->exit.signal == SIGKILL && leaf_was_oom_killed(&job->leaf);
}

static void on_end(void *owner, uint32_t events)
{
    (void)events;
    struct job *job = owner;
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)job->pid, &info, WEXITED | WNOHANG) || !info.si_pid)
        return;
    job->pid = 0;
    note_exit(job, &info);
    job_enter(job, JOB_DRAINING);
    for (size_t i = 0; i < 2; i++) {
        struct output *output = &job->outputs[i];
        int held = 0;
        if (output->ended || output->source.fd < 0)
            continue;
        if (job->tty)
            held = (int)AGENT_OUT_HIGH;
        else if (ioctl(output->source.fd, FIONREAD, &held))
            held = 0;
        output->owed = held > 0 ? (uint64_t)held : 0;
        if (job->exit.reason == WIRE_CANCELLED && output->owed > output->credit.window)
            output->owed = output->credit.window; /* who cancels may have stopped reading */
    }
    /* A terminal does not tell how much it holds: it is read to its end (EIO), or for a moment where an orphan keeps it. */
    struct err e = ERR_INIT;
    if (job->tty && loop_timer_open(&job->link->loop, &job->deadline, AGENT_TTY_GRACE_MS, &e))
        job->outputs[0].owed = 0;
    input_close(job);
    cgroups_give_back(&job->link->groups, &job->leaf);
    finish_if_drained(job);
}

static int take_data(struct job *job, const struct wire_frame *frame, struct err *e)
{
    if (frame->channel != WIRE_CHANNEL_IN || job->input_ended)
        return err_set(e, ERR_PROTOCOL, "data on channel %u, which the host may not send now", frame->channel);
    if (credit_receiver_arrived(&job->input_credit, frame->body_bytes, e))
        return -1;
    if (job->input.fd < 0) {
        input_return_credit(job, frame->body_bytes);
        return 0;
    }
    if (buf_append(&job->input_bytes, frame->body, frame->body_bytes, e))
        return -1;
    input_pump(job);
    return 0;
}

static void job_cancel(struct job *job)
{
    if (job->state == JOB_RUNNING) {
        job->exit.reason = WIRE_CANCELLED;
        job_enter(job, JOB_KILLED);
    } else if (job->state == JOB_DRAINING) { /* the host does not want the rest */
        for (size_t i = 0; i < 2; i++)
            job->outputs[i].owed = 0;
        finish_if_drained(job);
    }
}

void job_signal(struct job *job, int number)
{
    if (job->state == JOB_RUNNING && job->pid && kill(-job->pid, number))
        kill(job->pid, number); /* it has no group yet */
}

static void job_resize(struct job *job, uint32_t value)
{
    struct winsize size = {.ws_row = (unsigned short)value, .ws_col = (unsigned short)(value >> 16)};
    if (job->tty && job->outputs[0].source.fd >= 0)
        ioctl(job->outputs[0].source.fd, TIOCSWINSZ, &size); /* SIGWINCH comes from the kernel */
}

int job_take_frame(struct job *job, const struct wire_frame *frame, struct err *e)
{
    switch ((enum wire_kind)frame->kind) {
    case WIRE_DATA:
        return take_data(job, frame, e);
    case WIRE_EOF:
        if (frame->channel != WIRE_CHANNEL_IN)
            return err_set(e, ERR_PROTOCOL, "end of channel %u from the host", frame->channel);
        job->input_ended = true;
        input_pump(job);
        return 0;
    case WIRE_CREDIT:
        if (frame->channel == WIRE_CHANNEL_IN)
            return err_set(e, ERR_PROTOCOL, "credit for the host's own channel");
        if (credit_sender_grant(&job->outputs[frame->channel - 1].credit, wire_frame_u32(frame), e))
            return -1;
        job_refresh(job);
        return 0;
    case WIRE_CANCEL:
        job_cancel(job);
        return 0;
    case WIRE_SIGNAL: {
        uint32_t number = wire_frame_u32(frame);
        if (number > 0 && number < NSIG)
            job_signal(job, (int)number);
        return 0;
    }
    case WIRE_RESIZE:
        job_resize(job, wire_frame_u32(frame));
        return 0;
    case WIRE_HELLO:
    case WIRE_REQUEST:
    case WIRE_REPLY:
    case WIRE_ERROR:
    case WIRE_PING:
    case WIRE_PONG:
    case WIRE_PANIC:
    case WIRE_KIND_END:
        break;
    }
    return err_set(e, ERR_PROTOCOL, "%s frame inside a request", wire_kind_name((enum wire_kind)frame->kind));
}

void job_free(struct job *job)
{
    if (!job)
        return;
    if (job->pid) {
        kill_all(job);
        waitid(P_PID, (id_t)job->pid, &(siginfo_t){0}, WEXITED);
    }
    struct loop *loop = &job->link->loop;
    loop_close(loop, &job->end);
    loop_close(loop, &job->deadline);
    loop_close(loop, &job->input);
    loop_close(loop, &job->outputs[0].source);
    loop_close(loop, &job->outputs[1].source);
    loop_close(loop, &job->status);
    cgroups_give_back(&job->link->groups, &job->leaf);
    buf_done(&job->input_bytes);
    free(job);
}

/* The child's ends, closed by the parent after the fork. */
struct ends {
    int stdio[3], status;
};

static void ends_close(struct ends *ends)
{
    for (size_t i = 0; i < 3; i++)
        if (ends->stdio[i] >= 0 && (i == 0 || ends->stdio[i] != ends->stdio[0]))
            close(ends->stdio[i]);
    if (ends->status >= 0)
        close(ends->status);
}

static int open_pipe(int *ret_read, int *ret_write, struct err *e)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return err_sys(e, errno, "pipe");
    *ret_read = fds[0];
    *ret_write = fds[1];
    return 0;
}

static int open_terminal(struct job *job, struct ends *ends, const struct wire_exec *exec, struct err *e)
{
    struct winsize size = {.ws_row = (unsigned short)exec->tty_rows, .ws_col = (unsigned short)exec->tty_cols};
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), unlock = 0;
    if (master < 0)
        return err_sys(e, errno, "open a terminal");
    job->outputs[0].source.fd = master;
    if (ioctl(master, TIOCSPTLCK, &unlock))
        return err_sys(e, errno, "unlock the terminal");
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0)
        return err_sys(e, errno, "open the terminal's other end");
    for (size_t i = 0; i < 3; i++)
        ends->stdio[i] = slave;
    ioctl(master, TIOCSWINSZ, &size);
    job->input.fd = fcntl(master, F_DUPFD_CLOEXEC, 3); /* input and output wait apart */
    if (job->input.fd < 0)
        return err_sys(e, errno, "duplicate the terminal");
    return 0;
}

static int open_pipes(struct job *job, struct ends *ends, bool has_input, struct err *e)
{
    if (has_input) {
        if (open_pipe(&ends->stdio[0], &job->input.fd, e))
            return -1;
    } else if ((ends->stdio[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0) {
        return err_sys(e, errno, "open '/dev/null'");
    }
    for (size_t i = 0; i < 2; i++)
        if (open_pipe(&job->outputs[i].source.fd, &ends->stdio[i + 1], e))
            return -1;
    return 0;
}

static int open_ends(struct job *job, struct ends *ends, const struct wire_request *request, struct err *e)
{
    if (open_pipe(&job->status.fd, &ends->status, e) || fd_set_nonblocking(job->status.fd, true, e))
        return -1;
    bool has_input = request->operation == WIRE_OP_TAR_IN || request->operation == WIRE_OP_WRITE ||
                     (job->operation == WIRE_OP_EXEC && request->exec.has_stdin);
    if (job->tty ? open_terminal(job, ends, &request->exec, e) : open_pipes(job, ends, has_input, e))
        return -1;
    struct source *ours[] = {&job->input, &job->outputs[0].source, &job->outputs[1].source};
    for (size_t i = 0; i < 3; i++)
        if (ours[i]->fd >= 0 && fd_set_nonblocking(ours[i]->fd, true, e))
            return -1;
    return 0;
}

/* fork with a pidfd, straight into the control group; the child enters it itself where the kernel will not do that. */
static int spawn(struct job *job, struct child_setup *setup, struct err *e)
{
    int pidfd = -1;
    struct clone_args args = {.flags = CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    if (job->leaf.dirfd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)job->leaf.dirfd;
    }
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0 && errno != EAGAIN && errno != ENOMEM && job->leaf.dirfd >= 0) {
        args.flags = CLONE_PIDFD;
        args.cgroup = 0;
        setup->leaf_dirfd = job->leaf.dirfd;
        pid = syscall(SYS_clone3, &args, sizeof args);
    }
    if (pid < 0)
        return err_sys(e, errno, errno == EAGAIN ? "start a process (too many run in this machine)" : "start a process");
    if (pid == 0)
        child_main(setup);
    job->pid = (pid_t)pid;
    job->end.fd = pidfd;
    return 0;
}

static struct job *job_new(struct link *link, uint32_t stream, enum wire_operation operation)
{
    struct job *job = xcalloc(1, sizeof *job);
    job->link = link;
    job->stream = stream;
    job->operation = operation;
    job->leaf.dirfd = -1;
    job->input_bytes = BUF_INIT(WIRE_WINDOW);
    credit_receiver_init(&job->input_credit);
    job->input = (struct source){.fd = -1, .on_ready = on_input, .owner = job};
    job->status = (struct source){.fd = -1, .on_ready = on_started, .owner = job};
    job->end = (struct source){.fd = -1, .on_ready = on_end, .owner = job};
    job->deadline = (struct source){.fd = -1, .on_ready = on_deadline, .owner = job};
    for (size_t i = 0; i < 2; i++) {
        struct output *output = &job->outputs[i];
        *output = (struct output){.job = job, .channel = (uint8_t)(WIRE_CHANNEL_OUT + i)};
        output->source = (struct source){.fd = -1, .on_ready = on_output, .owner = output};
        credit_sender_init(&output->credit);
    }
    job->started_us = clock_now_us();
    return job;
}

int job_start(struct link *link, uint32_t stream, const struct wire_request *request, struct job **ret_job, struct err *e)
{
    struct job *job = job_new(link, stream, request->operation);
    struct ends ends = {{-1, -1, -1}, -1};
    job->tty = request->operation == WIRE_OP_EXEC && request->exec.tty_rows && request->exec.tty_cols;
    uint64_t timeout_ms = request->operation == WIRE_OP_EXEC ? request->exec.timeout_ms : 0;
    int result = open_ends(job, &ends, request, e);
    if (!result)
        result = cgroups_take(&link->groups, &job->leaf, e);
    if (!result)
        result = loop_timer_open(&link->loop, &job->deadline, timeout_ms, e);
    struct child_setup setup = {.request = request,
                                .stdio = {ends.stdio[0], ends.stdio[1], ends.stdio[2]},
                                .status_fd = ends.status,
                                .leaf_dirfd = -1,
                                .tty = job->tty};
    if (!result)
        result = spawn(job, &setup, e);
    ends_close(&ends);
    if (result) {
        job_free(job);
        return -1;
    }
    if (job->outputs[1].source.fd < 0) /* a terminal has one stream */
        output_end(&job->outputs[1]);
    loop_want(&link->loop, &job->end, EPOLLIN);
    job->input_held = job->tty;
    loop_want(&link->loop, &job->status, job->tty ? EPOLLIN : 0);
    job_refresh(job);
    *ret_job = job;
    return 0;
}
