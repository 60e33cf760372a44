/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include "base/check.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The functions themselves, without what err.h tells their callers. */
#undef err_set
#undef err_sys
#undef err_sys_code
#undef err_wrap
#undef err_recode

struct code_row {
    const char *name, *wire, *type;
    bool retryable;
    const char *sentence;
};

static const struct code_row code_rows[] = {
#define X(name, wire, type, retryable, sentence) {#name, wire, type, retryable, sentence},
    ERR_TABLE(X)
#undef X
};
static_assert(sizeof code_rows / sizeof *code_rows == ERR_CODE_COUNT, "one row per code");

static const struct code_row *row_of(enum err_code code)
{
    CHECK((unsigned)code < ERR_CODE_COUNT);
    return &code_rows[code];
}

static void set_text(struct err *e, enum err_code code, int sys_errno, const char *format, va_list args)
    __attribute__((format(printf, 4, 0)));
static void set_text(struct err *e, enum err_code code, int sys_errno, const char *format, va_list args)
{
    CHECK(e->code == ERR_NONE && code != ERR_NONE);
    e->code = code;
    e->sys_errno = sys_errno;
    int len = vsnprintf(e->text, sizeof e->text, format, args);
    if (len < 0)
        e->text[0] = 0;
    size_t used = strlen(e->text);
    if (sys_errno)
        snprintf(e->text + used, sizeof e->text - used, ": %s", strerror(sys_errno));
}

int err_set(struct err *e, enum err_code code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_text(e, code, 0, format, args);
    va_end(args);
    return -1;
}

int err_sys(struct err *e, int sys_errno, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_text(e, ERR_SYSTEM, sys_errno, format, args);
    va_end(args);
    return -1;
}

int err_sys_code(struct err *e, enum err_code code, int sys_errno, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_text(e, code, sys_errno, format, args);
    va_end(args);
    return -1;
}

int err_wrap(struct err *e, const char *format, ...)
{
    CHECK(e->code != ERR_NONE);
    char inner[sizeof e->text];
    memcpy(inner, e->text, sizeof inner);
    va_list args;
    va_start(args, format);
    int len = vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    if (len < 0)
        e->text[0] = 0;
    size_t used = strlen(e->text);
    snprintf(e->text + used, sizeof e->text - used, ": %.*s", (int)(sizeof e->text - used), inner);
    return -1;
}

int err_recode(struct err *e, enum err_code code)
{
    CHECK(e->code != ERR_NONE && code != ERR_NONE);
    e->code = code;
    return -1;
}

void err_clear(struct err *e)
{
    *e = ERR_INIT;
}

bool err_is_set(const struct err *e)
{
    return e->code != ERR_NONE;
}

const char *err_code_name(enum err_code code)
{
    return row_of(code)->name;
}

const char *err_code_wire(enum err_code code)
{
    return row_of(code)->wire;
}

const char *err_code_type(enum err_code code)
{
    return row_of(code)->type;
}

const char *err_code_sentence(enum err_code code)
{
    return row_of(code)->sentence;
}

bool err_code_is_retryable(enum err_code code)
{
    return row_of(code)->retryable;
}

enum err_code err_code_from_guest(unsigned wire_number)
{
    if (wire_number < 210 || wire_number > 219)
        return ERR_FS_IO;
    return (enum err_code)(ERR_FS_REQUEST + (int)(wire_number - 210));
}
