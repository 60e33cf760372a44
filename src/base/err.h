/* SPDX-License-Identifier: Apache-2.0 */
/* The one error value of the tree. The caller owns it on its stack, nothing is allocated, a truncated text is harmless.
 *
 * A function that can fail takes `struct err *e` last (never NULL), returns 0 / -1 or pointer / NULL, and writes its ret_
 * parameters only on success. Failing is one statement: `return err_set(e, ERR_LIMIT, "...")`. A caller on the way up adds
 * what only it knows with err_wrap. The layer that drops an error logs it once.
 *
 * The table below is the only list of codes. Columns: name, wire code, type on the wire, retryable, fixed sentence. The
 * wire codes are those of the sandbox functions (docs/ERRORS.md); codes without a wire form of their own use the nearest. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define ERR_TABLE(X)                                                                                                             \
    X(ERR_NONE, "", "", false, "no error")                                                                                       \
    X(ERR_INVALID, "S001", "validation", false, "the request is malformed")                                                      \
    X(ERR_USAGE, "S001", "validation", false, "the command line is malformed")                                                   \
    X(ERR_UNKNOWN_SANDBOX, "S002", "validation", false, "there is no such sandbox")                                              \
    X(ERR_EXEC_CAP, "S003", "validation", false, "too many commands run in this sandbox")                                        \
    X(ERR_STOPPED, "S004", "validation", false, "the sandbox is stopped")                                                        \
    X(ERR_IMAGE_REFUSED, "S100", "config", false, "the image is unknown or not allowed")                                         \
    X(ERR_IMAGE_ABSENT, "S101", "internal", false, "the image is not prepared on this host")                                     \
    X(ERR_IMAGE_PREPARE, "S102", "transient", true, "preparing the image failed")                                                \
    X(ERR_TIMEOUT, "S200", "execution", false, "the time limit passed")                                                          \
    X(ERR_FS_REQUEST, "S210", "filesystem", false, "the file request is invalid")                                                \
    X(ERR_FS_NOT_FOUND, "S211", "filesystem", false, "the path does not exist")                                                  \
    X(ERR_FS_WRONG_KIND, "S212", "filesystem", false, "the path is the wrong kind of file")                                      \
    X(ERR_FS_EXISTS, "S213", "filesystem", false, "the path exists already")                                                     \
    X(ERR_FS_NOT_EMPTY, "S214", "filesystem", false, "the directory is not empty")                                               \
    X(ERR_FS_DENIED, "S215", "filesystem", false, "permission denied")                                                           \
    X(ERR_FS_IO, "S216", "filesystem", false, "input or output failed in the guest")                                             \
    X(ERR_FS_PATTERN, "S217", "filesystem", false, "the pattern does not compile")                                               \
    X(ERR_FS_UPLOAD, "S218", "transient", true, "the upload stalled or was cut")                                                 \
    X(ERR_FS_AGENT_OLD, "S219", "filesystem", false, "the guest agent is too old for this")                                      \
    X(ERR_BOOT, "S300", "platform", false, "the machine did not boot or was lost")                                               \
    X(ERR_SYSTEM, "S300", "platform", false, "a system call failed on the host")                                                 \
    X(ERR_NOMEM, "S300", "platform", false, "the host is out of memory")                                                         \
    X(ERR_PROTOCOL, "S300", "platform", false, "a peer broke the protocol")                                                      \
    X(ERR_INTERRUPTED, "S300", "platform", false, "interrupted")                                                                 \
    X(ERR_LIMIT, "S400", "config", false, "a limit is reached")                                                                  \
    X(ERR_ENVIRONMENT, "S400", "config", false, "the host lacks something that is needed")

enum err_code {
#define X(name, wire, type, retryable, sentence) name,
    ERR_TABLE(X)
#undef X
        ERR_CODE_COUNT
};

struct err {
    enum err_code code;
    int sys_errno;   /* errno of the failed system call, 0 when there was none */
    char text[1024]; /* prose with its context in front, UTF-8 where the parts were, always terminated */
};

#define ERR_INIT ((struct err){0})

/* Both return -1, so that failing is one statement. They CHECK that no error is set yet. */
int err_set(struct err *e, enum err_code code, const char *format, ...)
    __attribute__((nonnull(1, 3), format(printf, 3, 4), cold));
int err_sys(struct err *e, int sys_errno, const char *format, ...) __attribute__((nonnull(1, 3), format(printf, 3, 4), cold));
/* As err_sys, with a code other than ERR_SYSTEM. */
int err_sys_code(struct err *e, enum err_code code, int sys_errno, const char *format, ...)
    __attribute__((nonnull(1, 4), format(printf, 4, 5), cold));
/* Puts "context: " in front of the text; the code stays. Returns -1. */
int err_wrap(struct err *e, const char *format, ...) __attribute__((nonnull(1, 2), format(printf, 2, 3), cold));
/* Changes the code of a set error (a layer knows better what the failure means to its caller). Returns -1. */
int err_recode(struct err *e, enum err_code code) __attribute__((nonnull, cold));
/* Compilers and analyzers look at one file at a time: this tells them that failing returns -1 always, so that they do not
 * follow a failed function's caller into its success. */
static inline int err_minus_one(int minus_one)
{
    (void)minus_one;
    return -1;
}
#define err_set(...) err_minus_one(err_set(__VA_ARGS__))
#define err_sys(...) err_minus_one(err_sys(__VA_ARGS__))
#define err_sys_code(...) err_minus_one(err_sys_code(__VA_ARGS__))
#define err_wrap(...) err_minus_one(err_wrap(__VA_ARGS__))
#define err_recode(...) err_minus_one(err_recode(__VA_ARGS__))

void err_clear(struct err *e) __attribute__((nonnull));
bool err_is_set(const struct err *e) __attribute__((nonnull));

const char *err_code_name(enum err_code code);     /* "ERR_LIMIT" */
const char *err_code_wire(enum err_code code);     /* "S400" */
const char *err_code_type(enum err_code code);     /* "config" */
const char *err_code_sentence(enum err_code code); /* "a limit is reached" */
bool err_code_is_retryable(enum err_code code);
/* The code for a wire code such as 211, for errors that a guest reports; ERR_FS_IO for one that is not in S210..S219. */
enum err_code err_code_from_guest(unsigned wire_number);
