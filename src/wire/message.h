/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of requests and replies: a small typed binary encoding, pure, the same code on both ends.
 *
 * A body is a sequence of fields {u8 tag, u8 type, value}: type WIRE_U64 is 8 bytes little-endian, WIRE_BYTES is u32 length
 * and that many bytes. A repeated tag makes a list. Unknown tags of a known type are skipped, so that fields can be added.
 * Each message is a table of fields (message.c); encode and decode walk the table, so a message is described once. Strings
 * must not contain NUL. Decoded messages own their memory: wire_message_done. A decoded list is NULL-terminated. */
#pragma once

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct wire_bytes {
    uint8_t *data;
    size_t len;
};

/* What a request asks for: the first field of every request body. */
enum wire_operation {
    WIRE_OP_IDENTITY = 1, /* struct wire_identity → empty reply. The first request after HELLO, and again after a restore */
    WIRE_OP_EXEC,         /* struct wire_exec → struct wire_exit; channels IN, OUT, ERR */
    WIRE_OP_SHUTDOWN,     /* no body: TERM to all, 200 ms, kill, file systems synced and read-only; empty reply, then off */
    WIRE_OP_TAR_IN,       /* struct wire_tar → empty reply; channel IN carries a tar that is unpacked below `path` */
    WIRE_OP_TAR_OUT,      /* struct wire_tar → empty reply; channel OUT carries a tar of `path` */
    WIRE_OP_WRITE, /* struct wire_write → empty reply; channel IN carries the content, which appears whole or not at all */
    WIRE_OP_END
};

struct wire_hello {
    uint64_t version;     /* WIRE_PROTOCOL_VERSION */
    char *kernel_release; /* uname -r of the guest */
    uint64_t boot_us;     /* CLOCK_BOOTTIME at HELLO, microseconds */
};

/* Makes the machine its own: everything random or unique comes from the host. */
struct wire_identity {
    char *hostname;
    struct wire_bytes seed; /* 32 bytes of randomness for the kernel's generator */
    char *boot_id;          /* UUID text */
    char *machine_id;       /* 32 hex digits */
    uint64_t realtime_ns;   /* host's CLOCK_REALTIME; the guest's is stepped when 100 ms off */
};

struct wire_exec {
    struct strv argv;
    struct strv env;      /* "K=V", the whole environment; the agent adds PATH, HOME, USER, LOGNAME, SHELL, TERM where absent */
    char *cwd;            /* NULL or "": the user's choice is "/" */
    char *user;           /* NULL or "": root. name, uid, name:group, uid:gid; looked up in the guest's passwd and group */
    uint64_t timeout_ms;  /* 0: none */
    uint64_t realtime_ns; /* as in wire_identity; 0: leave the clock */
    uint64_t has_stdin;   /* 0: standard input is empty (at its end at once) */
    uint64_t tty_rows, tty_cols; /* both above 0: a terminal; channel OUT carries all output, ERR ends at once */
    uint64_t no_aslr;            /* personality(ADDR_NO_RANDOMIZE) */
};

enum wire_exit_reason { WIRE_EXITED = 0, WIRE_TIMED_OUT, WIRE_CANCELLED };

struct wire_exit {
    uint64_t exit_code;  /* 0..255; 128 + signal for a death by signal; 126/127 when it could not start */
    uint64_t signal;     /* 0 or the signal that ended it */
    uint64_t reason;     /* enum wire_exit_reason */
    uint64_t oom_killed; /* 1 when the memory limit killed in its control group */
    uint64_t duration_us;
    uint64_t stdout_bytes, stderr_bytes; /* sent on the channels in all */
};

struct wire_tar {
    char *path;
    char *name; /* TAR_OUT: the name of the top entry in the tar; TAR_IN: empty */
    uint64_t make_parents;
};

struct wire_write {
    char *path;
    uint64_t mode; /* permission bits */
    uint64_t make_parents;
};

/* S-code of the failure (210..219, 200, 1, 300), errno in the guest or 0, prose. */
struct wire_failure {
    uint64_t code;
    uint64_t sys_errno;
    char *message;
};

struct wire_request {
    enum wire_operation operation;
    union {
        struct wire_identity identity;
        struct wire_exec exec;
        struct wire_tar tar;
        struct wire_write write;
    };
};

int wire_request_encode(struct buf *out, const struct wire_request *request, struct err *e)
    __attribute__((nonnull, warn_unused_result));
/* ERR_PROTOCOL for anything malformed: unknown operation, wrong type, NUL in a string, truncated, too many items. */
int wire_request_decode(const void *bytes, size_t len, struct wire_request *ret_request, struct err *e)
    __attribute__((nonnull(3, 4), warn_unused_result));
void wire_request_done(struct wire_request *request);

int wire_hello_encode(struct buf *out, const struct wire_hello *hello, struct err *e)
    __attribute__((nonnull, warn_unused_result));
int wire_hello_decode(const void *bytes, size_t len, struct wire_hello *ret_hello, struct err *e)
    __attribute__((nonnull(3, 4), warn_unused_result));
void wire_hello_done(struct wire_hello *hello);
int wire_exit_encode(struct buf *out, const struct wire_exit *exit, struct err *e) __attribute__((nonnull, warn_unused_result));
int wire_exit_decode(const void *bytes, size_t len, struct wire_exit *ret_exit, struct err *e)
    __attribute__((nonnull(3, 4), warn_unused_result));
int wire_failure_encode(struct buf *out, const struct wire_failure *failure, struct err *e)
    __attribute__((nonnull, warn_unused_result));
int wire_failure_decode(const void *bytes, size_t len, struct wire_failure *ret_failure, struct err *e)
    __attribute__((nonnull(3, 4), warn_unused_result));
void wire_failure_done(struct wire_failure *failure);
