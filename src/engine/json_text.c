/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/json_text.h"

#include "base/limits.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The scanner: a cursor over the bytes. Every function leaves the cursor behind what it took, or returns a failure text. */
struct scan {
    const unsigned char *text;
    size_t len, at;
};

static void skip_space(struct scan *s)
{
    while (s->at < s->len) {
        unsigned char c = s->text[s->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return;
        s->at++;
    }
}

static bool is_hex(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static const char *scan_escape(struct scan *s)
{
    if (s->at + 1 >= s->len)
        return "the text ends inside a string";
    unsigned char c = s->text[s->at + 1];
    if (c == 'u') {
        if (s->len - s->at < 6)
            return "the text ends inside a string";
        for (size_t i = 2; i < 6; i++)
            if (!is_hex(s->text[s->at + i]))
                return "bad \\u escape";
        s->at += 6;
        return NULL;
    }
    if (!c || !strchr("\"\\/bfnrt", c))
        return "bad escape";
    s->at += 2;
    return NULL;
}

static const char *scan_string(struct scan *s)
{
    size_t start = ++s->at;
    bool ascii = true;
    while (s->at < s->len) {
        unsigned char c = s->text[s->at];
        if (c == '"') {
            if (!ascii && !text_is_utf8(s->text + start, s->at - start))
                return "not UTF-8";
            s->at++;
            return NULL;
        }
        if (c < 0x20)
            return "control character in a string";
        if (c == '\\') {
            const char *failure = scan_escape(s);
            if (failure)
                return failure;
            continue;
        }
        if (c >= 0x80)
            ascii = false;
        s->at++;
    }
    return "the text ends inside a string";
}

static bool scan_digits(struct scan *s)
{
    size_t start = s->at;
    while (s->at < s->len && s->text[s->at] >= '0' && s->text[s->at] <= '9')
        s->at++;
    return s->at > start;
}

static const char *scan_number(struct scan *s)
{
    if (s->text[s->at] == '-')
        s->at++;
    size_t start = s->at;
    if (!scan_digits(s) || (s->text[start] == '0' && s->at - start > 1))
        return "bad number";
    if (s->at < s->len && s->text[s->at] == '.') {
        s->at++;
        if (!scan_digits(s))
            return "bad number";
    }
    if (s->at < s->len && (s->text[s->at] == 'e' || s->text[s->at] == 'E')) {
        s->at++;
        if (s->at < s->len && (s->text[s->at] == '+' || s->text[s->at] == '-'))
            s->at++;
        if (!scan_digits(s))
            return "bad number";
    }
    return NULL;
}

static const char *scan_word(struct scan *s, const char *word)
{
    size_t len = strlen(word);
    if (s->len - s->at < len || memcmp(s->text + s->at, word, len) != 0)
        return "bad word";
    s->at += len;
    return NULL;
}

static const char *scan_scalar(struct scan *s)
{
    switch (s->text[s->at]) {
    case '"':
        return scan_string(s);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    default:
        return scan_number(s);
    }
}

/* "key" and colon, with the white space around them. */
static const char *scan_key(struct scan *s)
{
    skip_space(s);
    if (s->at >= s->len || s->text[s->at] != '"')
        return "a member has no name";
    const char *failure = scan_string(s);
    if (failure)
        return failure;
    skip_space(s);
    if (s->at >= s->len || s->text[s->at] != ':')
        return "a member has no value";
    s->at++;
    return NULL;
}

/* After a value: closes what ends here. Sets *ret_more when another value follows at this depth. */
static const char *scan_after(struct scan *s, unsigned char *stack, size_t *depth, bool *ret_more)
{
    while (*depth > 0) {
        bool object = stack[*depth / 8] & (1u << (*depth % 8));
        skip_space(s);
        if (s->at >= s->len)
            return "the text ends too early";
        unsigned char c = s->text[s->at++];
        if (c == ',') {
            *ret_more = true;
            return object ? scan_key(s) : NULL;
        }
        if (c != (object ? '}' : ']'))
            return "expected a comma or an end";
        --*depth;
    }
    *ret_more = false;
    return NULL;
}

/* One value of any kind, without recursion: one bit per level tells an object from an array. */
static const char *scan_value(struct scan *s)
{
    unsigned char stack[ENGINE_JSON_DEPTH_MAX / 8 + 1] = {0};
    size_t depth = 0;
    bool more = true;
    while (more) {
        skip_space(s);
        if (s->at >= s->len)
            return "the text ends too early";
        unsigned char c = s->text[s->at];
        const char *failure = NULL;
        if (c == '{' || c == '[') {
            if (depth >= ENGINE_JSON_DEPTH_MAX)
                return "nested too deeply";
            s->at++;
            depth++;
            unsigned char bit = (unsigned char)(1u << (depth % 8));
            stack[depth / 8] = (unsigned char)(c == '{' ? stack[depth / 8] | bit : stack[depth / 8] & ~bit);
            skip_space(s);
            if (s->at < s->len && s->text[s->at] == (c == '{' ? '}' : ']')) {
                s->at++;
                depth--;
            } else {
                failure = c == '{' ? scan_key(s) : NULL;
                if (failure)
                    return failure;
                continue;
            }
        } else {
            failure = scan_scalar(s);
        }
        if (!failure)
            failure = scan_after(s, stack, &depth, &more);
        if (failure)
            return failure;
    }
    return NULL;
}

bool json_is_valid(const void *text, size_t len)
{
    struct scan s = {.text = text, .len = len};
    if (scan_value(&s))
        return false;
    skip_space(&s);
    return s.at == s.len;
}

struct json_members json_members_of(const void *text, size_t len)
{
    return (struct json_members){.text = text, .len = len};
}

static bool members_fail(struct json_members *m, const char *failure)
{
    m->ended = m->failed = true;
    m->failure = failure;
    return false;
}

/* The separator in front of a member; false at the end of the object or on failure. */
static bool members_step(struct json_members *m, struct scan *s)
{
    skip_space(s);
    if (!m->started) {
        if (s->at >= s->len || s->text[s->at] != '{')
            return members_fail(m, "not an object");
        m->started = true;
        s->at++;
        skip_space(s);
        if (s->at >= s->len || s->text[s->at] != '}')
            return true;
    } else if (s->at < s->len && s->text[s->at] == ',') {
        s->at++;
        return true;
    }
    if (s->at >= s->len || s->text[s->at] != '}')
        return members_fail(m, "expected a comma or an end");
    s->at++;
    skip_space(s);
    m->at = s->at;
    m->ended = true;
    if (s->at != s->len)
        return members_fail(m, "bytes after the object");
    return false;
}

bool json_members_next(struct json_members *m, struct json_slice *ret_key, struct json_slice *ret_value)
{
    struct scan s = {.text = (const unsigned char *)m->text, .len = m->len, .at = m->at};
    if (m->ended || !members_step(m, &s))
        return false;
    skip_space(&s);
    size_t key_at = s.at;
    const char *failure = scan_key(&s);
    if (failure)
        return members_fail(m, failure);
    size_t key_len = s.at - key_at;
    while (m->text[key_at + key_len - 1] != '"')
        key_len--;
    skip_space(&s);
    size_t value_at = s.at;
    failure = scan_value(&s);
    if (failure)
        return members_fail(m, failure);
    *ret_key = (struct json_slice){m->text + key_at, key_len};
    *ret_value = (struct json_slice){m->text + value_at, s.at - value_at};
    m->at = s.at;
    return true;
}

enum json_kind json_slice_kind(struct json_slice slice)
{
    if (!slice.text || !slice.len)
        return JSON_KIND_ABSENT;
    switch (*slice.text) {
    case '{':
        return JSON_KIND_OBJECT;
    case '[':
        return JSON_KIND_ARRAY;
    case '"':
        return JSON_KIND_STRING;
    case 't':
    case 'f':
        return JSON_KIND_BOOL;
    case 'n':
        return JSON_KIND_NULL;
    default:
        return JSON_KIND_NUMBER;
    }
}

static unsigned hex_value(const char *text)
{
    unsigned value = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char c = (unsigned char)text[i];
        value = value * 16 + (c <= '9' ? c - (unsigned)'0' : (c | 0x20u) - 'a' + 10u);
    }
    return value;
}

static size_t put_utf8(char *out, unsigned code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* One escape at text[0] = '\\' into out; returns the bytes taken, 0 for a NUL or a lone surrogate. */
static size_t decode_escape(const char *text, size_t left, char *out, size_t *used)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (text[1] != 'u') {
        out[(*used)++] = values[strchr(names, text[1]) - names];
        return 2;
    }
    unsigned code = hex_value(text + 2);
    size_t taken = 6;
    if (code >= 0xd800 && code <= 0xdbff) {
        if (left < 12 || text[6] != '\\' || text[7] != 'u')
            return 0;
        unsigned low = hex_value(text + 8);
        if (low < 0xdc00 || low > 0xdfff)
            return 0;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        taken = 12;
    } else if (code == 0 || (code >= 0xdc00 && code <= 0xdfff)) {
        return 0;
    }
    *used += put_utf8(out + *used, code);
    return taken;
}

char *json_slice_text(struct json_slice slice, size_t len_max)
{
    if (json_slice_kind(slice) != JSON_KIND_STRING || slice.len - 2 > len_max * 6)
        return NULL;
    char *out = malloc(slice.len); /* an escape is never shorter than what it stands for */
    if (!out)
        return NULL;
    size_t used = 0, end = slice.len - 1;
    for (size_t at = 1; at < end;) {
        if (slice.text[at] != '\\') {
            out[used++] = slice.text[at++];
            continue;
        }
        size_t taken = decode_escape(slice.text + at, end - at, out, &used);
        if (!taken) {
            free(out);
            return NULL;
        }
        at += taken;
    }
    out[used] = 0;
    if (used > len_max) {
        free(out);
        return NULL;
    }
    return out;
}

bool json_slice_is(struct json_slice slice, const char *text)
{
    size_t len = strlen(text);
    if (json_slice_kind(slice) != JSON_KIND_STRING)
        return false;
    if (slice.len == len + 2 && !memchr(slice.text, '\\', slice.len))
        return memcmp(slice.text + 1, text, len) == 0;
    char *decoded = json_slice_text(slice, len);
    bool equal = decoded && strcmp(decoded, text) == 0;
    free(decoded);
    return equal;
}

int json_append_string(struct buf *out, const char *text, size_t len, struct err *e)
{
    if (buf_append_u8(out, '"', e))
        return -1;
    size_t plain = 0;
    for (size_t at = 0; at < len; at++) {
        unsigned char c = (unsigned char)text[at];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        char escape[8];
        const char *names = "\b\f\n\r\t\"\\", *letters = "bfnrt\"\\";
        const char *found = c ? strchr(names, c) : NULL;
        int escape_len = found ? snprintf(escape, sizeof escape, "\\%c", letters[found - names])
                               : snprintf(escape, sizeof escape, "\\u%04x", c);
        if (buf_append(out, text + plain, at - plain, e) || buf_append(out, escape, (size_t)escape_len, e))
            return -1;
        plain = at + 1;
    }
    if (buf_append(out, text + plain, len - plain, e))
        return -1;
    return buf_append_u8(out, '"', e);
}

struct json_writer json_writer_begin(struct buf *out, struct err *e)
{
    struct json_writer w = {.out = out, .e = e};
    w.failed = buf_append_u8(out, '{', e) != 0;
    return w;
}

static bool write_key(struct json_writer *w, const char *key)
{
    if (w->failed)
        return false;
    w->failed = (w->any && buf_append_u8(w->out, ',', w->e)) || json_append_string(w->out, key, strlen(key), w->e) ||
                buf_append_u8(w->out, ':', w->e);
    w->any = true;
    return !w->failed;
}

void json_write_text(struct json_writer *w, const char *key, const char *text)
{
    if (text && write_key(w, key))
        w->failed = json_append_string(w->out, text, strlen(text), w->e) != 0;
}

void json_write_slice(struct json_writer *w, const char *key, struct json_slice value)
{
    if (value.text && write_key(w, key))
        w->failed = buf_append(w->out, value.text, value.len, w->e) != 0;
}

void json_write_number(struct json_writer *w, const char *key, unsigned long long value)
{
    if (write_key(w, key))
        w->failed = buf_appendf(w->out, w->e, "%llu", value) != 0;
}

int json_writer_end(struct json_writer *w)
{
    if (!w->failed)
        w->failed = buf_append_u8(w->out, '}', w->e) != 0;
    return w->failed ? -1 : 0;
}
