/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/tar.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* Offsets of the ustar header (POSIX.1-2017, pax, "ustar Interchange Format"). */
enum {
    AT_NAME = 0,
    AT_MODE = 100,
    AT_UID = 108,
    AT_GID = 116,
    AT_SIZE = 124,
    AT_MTIME = 136,
    AT_CHECKSUM = 148,
    AT_TYPE = 156,
    AT_LINK = 157,
    AT_MAGIC = 257,
    AT_PREFIX = 345
};
#define NAME_LEN 100
#define PREFIX_LEN 155

static uint32_t checksum(const uint8_t *block)
{
    uint32_t sum = 8 * ' ';
    for (size_t i = 0; i < TAR_BLOCK; i++)
        if (i < AT_CHECKSUM || i >= AT_CHECKSUM + 8)
            sum += block[i];
    return sum;
}

/* Octal digits with blanks or NULs around, or GNU's big-endian binary with the top bit set. */
static bool parse_number(const uint8_t *field, size_t len, uint64_t *ret_value)
{
    uint64_t value = 0;
    size_t at = 0;
    if (field[0] & 0x80) {
        for (value = field[0] & 0x7f, at = 1; at < len; at++) {
            if (value >> 55) /* and so is every negative number */
                return false;
            value = value << 8 | field[at];
        }
        *ret_value = value;
        return true;
    }
    while (at < len && field[at] == ' ')
        at++;
    for (; at < len && field[at] >= '0' && field[at] <= '7'; at++)
        value = value << 3 | (uint64_t)(field[at] - '0');
    for (; at < len; at++)
        if (field[at] != ' ' && field[at] != 0)
            return false;
    *ret_value = value;
    return true;
}

static bool is_zero(const uint8_t *block)
{
    for (size_t i = 0; i < TAR_BLOCK; i++)
        if (block[i])
            return false;
    return true;
}

int tar_header_decode(const uint8_t block[TAR_BLOCK], struct tar_header *ret_header, struct err *e)
{
    uint64_t sum, mode, size, mtime, uid, gid;
    if (is_zero(block))
        return 0;
    if (!parse_number(block + AT_CHECKSUM, 8, &sum) || sum != checksum(block))
        return err_set(e, ERR_FS_REQUEST, "not a tar header: its checksum is wrong");
    if (!parse_number(block + AT_MODE, 8, &mode) || !parse_number(block + AT_SIZE, 12, &size))
        return err_set(e, ERR_FS_REQUEST, "a tar header with a malformed mode or size");
    if (size > (uint64_t)INT64_MAX - TAR_BLOCK)
        return err_set(e, ERR_FS_REQUEST, "a tar entry of %llu bytes", (unsigned long long)size);
    if (!parse_number(block + AT_MTIME, 12, &mtime))
        mtime = 0; /* a time before 1970, or nonsense: not worth refusing the file */
    if (!parse_number(block + AT_UID, 8, &uid) || !parse_number(block + AT_GID, 8, &gid))
        uid = gid = 0;
    struct tar_header *h = ret_header;
    h->type = (char)block[AT_TYPE];
    if (!h->type)
        h->type = '0';
    h->mode = (uint32_t)(mode & 07777);
    h->size = size;
    h->mtime = mtime <= INT64_MAX ? (int64_t)mtime : 0;
    h->uid = uid;
    h->gid = gid;
    bool ustar = !memcmp(block + AT_MAGIC, "ustar\0", 6); /* GNU's "ustar  " has other things in the prefix */
    if (ustar && block[AT_PREFIX])
        snprintf(h->path, sizeof h->path, "%.*s/%.*s", PREFIX_LEN, (const char *)block + AT_PREFIX, NAME_LEN,
                 (const char *)block + AT_NAME);
    else
        snprintf(h->path, sizeof h->path, "%.*s", NAME_LEN, (const char *)block + AT_NAME);
    snprintf(h->link, sizeof h->link, "%.*s", NAME_LEN, (const char *)block + AT_LINK);
    if (h->type == '0' && h->path[0] && h->path[strlen(h->path) - 1] == '/') /* older than type '5' */
        h->type = '5';
    if (h->type == '7')
        h->type = '0';
    if (h->type >= '1' && h->type <= '6')
        h->size = 0; /* some writers put the linked file's size there, no bytes follow */
    return 1;
}

static int set_text(char *target, const char *text, size_t len, struct err *e)
{
    while (len && !text[len - 1]) /* GNU's long names count their NUL */
        len--;
    if (len >= AGENT_TAR_PATH_MAX || memchr(text, 0, len))
        return err_set(e, ERR_FS_REQUEST, "a path of %zu bytes in a tar", len);
    memcpy(target, text, len);
    target[len] = 0;
    return 0;
}

static int set_number(const char *text, size_t len, uint64_t *ret_value, struct err *e)
{
    char digits[24];
    if (len >= sizeof digits)
        return err_set(e, ERR_FS_REQUEST, "a malformed number in a tar record");
    memcpy(digits, text, len);
    digits[len] = 0;
    if (text_parse_u64(digits, (uint64_t)INT64_MAX - TAR_BLOCK, ret_value, e))
        return err_recode(e, ERR_FS_REQUEST);
    return 0;
}

static bool key_is(const char *key, size_t len, const char *name)
{
    return strlen(name) == len && !memcmp(key, name, len);
}

static int take_record(const char *key, size_t key_len, const char *value, size_t len, struct tar_overrides *o, struct err *e)
{
    if (key_is(key, key_len, "path")) {
        o->has_path = true;
        return set_text(o->path, value, len, e);
    }
    if (key_is(key, key_len, "linkpath")) {
        o->has_link = true;
        return set_text(o->link, value, len, e);
    }
    if (key_is(key, key_len, "size")) {
        o->has_size = true;
        return set_number(value, len, &o->size, e);
    }
    if (key_is(key, key_len, "mtime")) {
        struct err ignored = ERR_INIT;
        const char *dot = memchr(value, '.', len);
        uint64_t seconds;
        o->has_mtime = set_number(value, dot ? (size_t)(dot - value) : len, &seconds, &ignored) == 0;
        o->mtime = o->has_mtime ? (int64_t)seconds : 0;
    }
    return 0;
}

/* Records "LENGTH KEY=VALUE\n", LENGTH counting all of itself. */
static int decode_pax(const char *body, size_t len, struct tar_overrides *o, struct err *e)
{
    for (size_t at = 0; at < len;) {
        size_t record = 0, digits = 0;
        while (at + digits < len && digits < 8 && body[at + digits] >= '0' && body[at + digits] <= '9')
            record = record * 10 + (size_t)(body[at + digits++] - '0');
        if (!digits || record <= digits + 2 || record > len - at || body[at + digits] != ' ' || body[at + record - 1] != '\n')
            return err_set(e, ERR_FS_REQUEST, "a malformed pax record in a tar");
        const char *key = body + at + digits + 1, *end = body + at + record - 1;
        const char *equals = memchr(key, '=', (size_t)(end - key));
        if (!equals)
            return err_set(e, ERR_FS_REQUEST, "a pax record without '=' in a tar");
        if (take_record(key, (size_t)(equals - key), equals + 1, (size_t)(end - equals - 1), o, e))
            return -1;
        at += record;
    }
    return 0;
}

int tar_extension_decode(char type, const char *body, size_t len, struct tar_overrides *overrides, struct err *e)
{
    switch (type) {
    case 'x':
        return decode_pax(body, len, overrides, e);
    case 'L':
        overrides->has_path = true;
        return set_text(overrides->path, body, len, e);
    case 'K':
        overrides->has_link = true;
        return set_text(overrides->link, body, len, e);
    default: /* 'g': comments and defaults nobody relies on */
        return 0;
    }
}

void tar_overrides_apply(const struct tar_overrides *o, struct tar_header *header)
{
    if (o->has_path)
        memcpy(header->path, o->path, sizeof header->path);
    if (o->has_link)
        memcpy(header->link, o->link, sizeof header->link);
    if (o->has_size && header->type == '0')
        header->size = o->size;
    if (o->has_mtime)
        header->mtime = o->mtime;
}

static void put_octal(uint8_t *field, size_t len, uint64_t value)
{
    uint64_t most = (1ull << (3 * (len - 1))) - 1;
    snprintf((char *)field, len, "%0*llo", (int)len - 1, (unsigned long long)(value > most ? 0 : value));
}

static int append_block(struct buf *out, const struct tar_header *h, struct err *e)
{
    static const char magic[8] = {'u', 's', 't', 'a', 'r', 0, '0', '0'};
    uint8_t block[TAR_BLOCK] = {0};
    memcpy(block + AT_NAME, h->path, strnlen(h->path, NAME_LEN));
    put_octal(block + AT_MODE, 8, h->mode);
    put_octal(block + AT_UID, 8, h->uid);
    put_octal(block + AT_GID, 8, h->gid);
    put_octal(block + AT_SIZE, 12, h->size);
    put_octal(block + AT_MTIME, 12, h->mtime > 0 ? (uint64_t)h->mtime : 0);
    block[AT_TYPE] = (uint8_t)h->type;
    memcpy(block + AT_LINK, h->link, strnlen(h->link, NAME_LEN));
    memcpy(block + AT_MAGIC, magic, sizeof magic);
    put_octal(block + AT_CHECKSUM, 7, checksum(block));
    block[AT_CHECKSUM + 7] = ' ';
    return buf_append(out, block, sizeof block, e);
}

static int append_record(struct buf *out, const char *key, const char *value, struct err *e)
{
    size_t rest = strlen(key) + strlen(value) + 3, len = rest + 1; /* blank, '=' and newline, and one digit */
    for (size_t before = 0; before != len;) {                      /* the length counts its own digits */
        before = len;
        char digits[24];
        len = rest + (size_t)snprintf(digits, sizeof digits, "%zu", before);
    }
    return buf_appendf(out, e, "%zu %s=%s\n", len, key, value);
}

int tar_header_encode(struct buf *out, const struct tar_header *header, struct err *e)
{
    static const uint8_t zeros[TAR_BLOCK];
    auto_buf records = BUF_INIT(4 * AGENT_TAR_PATH_MAX);
    char size[24];
    snprintf(size, sizeof size, "%llu", (unsigned long long)header->size);
    if (strlen(header->path) > NAME_LEN && append_record(&records, "path", header->path, e))
        return -1;
    if (strlen(header->link) > NAME_LEN && append_record(&records, "linkpath", header->link, e))
        return -1;
    if (header->size >> 33 && append_record(&records, "size", size, e))
        return -1;
    if (records.len) {
        struct tar_header extension = {.type = 'x', .mode = 0644, .size = records.len, .path = "PaxHeader"};
        size_t padding = (TAR_BLOCK - records.len % TAR_BLOCK) % TAR_BLOCK;
        if (append_block(out, &extension, e) || buf_append(out, buf_data(&records), records.len, e) ||
            buf_append(out, zeros, padding, e))
            return -1;
    }
    return append_block(out, header, e);
}

unsigned tar_failure_code(const struct err *e)
{
    return e->code >= ERR_FS_REQUEST && e->code <= ERR_FS_AGENT_OLD ? 210 + (unsigned)(e->code - ERR_FS_REQUEST) : 216;
}
