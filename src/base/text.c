/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include "base/alloc.h"

#include <string.h>

#define DURATION_MS_MAX (10ull * 366 * 24 * 3600 * 1000)
#define DISTANCE_LEN_MAX 64

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads the digits at *at and moves it on; false without a digit or past max. */
static bool take_number(const char **at, uint64_t max, uint64_t *ret_value)
{
    uint64_t value = 0;
    if (!is_digit(**at))
        return false;
    for (; is_digit(**at); (*at)++) {
        uint64_t digit = (uint64_t)(**at - '0');
        if (digit > max || value > (max - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *ret_value = value;
    return true;
}

int text_parse_u64(const char *text, uint64_t max, uint64_t *ret_value, struct err *e)
{
    const char *at = text;
    uint64_t value;
    if (!take_number(&at, max, &value) || *at)
        return err_set(e, ERR_INVALID, "'%s' is not a number from 0 to %llu", text, (unsigned long long)max);
    *ret_value = value;
    return 0;
}

int text_parse_duration_ms(const char *text, uint64_t *ret_ms, struct err *e)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
    const char *at = text;
    uint64_t total = 0;
    do {
        uint64_t value;
        if (!take_number(&at, DURATION_MS_MAX, &value))
            goto bad;
        const char *unit = at;
        while (*at >= 'a' && *at <= 'z')
            at++;
        size_t unit_len = (size_t)(at - unit), i = 0;
        while (i < sizeof units / sizeof *units &&
               (strlen(units[i].name) != unit_len || strncmp(unit, units[i].name, unit_len) != 0))
            i++;
        if (i == sizeof units / sizeof *units || value > (DURATION_MS_MAX - total) / units[i].ms)
            goto bad;
        total += value * units[i].ms;
        while (*at == ' ')
            at++;
    } while (*at);
    *ret_ms = total;
    return 0;
bad:
    return err_set(e, ERR_INVALID, "'%s' is not a duration such as 500ms, 30s, 5m or '1h 30m'", text);
}

/* The length of the UTF-8 sequence at p of at most left bytes, 0 when it is invalid. */
static size_t utf8_sequence_len(const uint8_t *p, size_t left)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = p[0] < 0x80                   ? 1
                 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
                 : (p[0] & 0xf0) == 0xe0       ? 3
                 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                               : 0;
    if (len < 2 || len > left)
        return len == 1 ? 1 : 0;
    uint32_t point = p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (p[i] & 0x3fu);
    }
    if (point < smallest[len] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff))
        return 0;
    return len;
}

bool text_is_utf8(const void *bytes, size_t len)
{
    const uint8_t *p = bytes;
    for (size_t at = 0; at < len;) {
        size_t step = utf8_sequence_len(p + at, len - at);
        if (!step)
            return false;
        at += step;
    }
    return true;
}

bool text_has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool text_has_suffix(const char *text, const char *suffix)
{
    size_t text_len = strlen(text), suffix_len = strlen(suffix);
    return text_len >= suffix_len && strcmp(text + text_len - suffix_len, suffix) == 0;
}

bool text_is_one_of(const char *text, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(text, *list) == 0)
            return true;
    return false;
}

bool text_is_env_name(const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = name[i];
        bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
        if (!letter && (i == 0 || !is_digit(c)))
            return false;
    }
    return len > 0;
}

void text_hex(const void *bytes, size_t len, char *text)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = bytes;
    for (size_t i = 0; i < len; i++) {
        text[2 * i] = digits[p[i] >> 4];
        text[2 * i + 1] = digits[p[i] & 15];
    }
    text[2 * len] = 0;
}

char *text_base64(const void *bytes, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = bytes;
    char *text = xmalloc((len + 2) / 3 * 4 + 1), *to = text;
    for (size_t at = 0; at < len; at += 3) {
        size_t have = len - at < 3 ? len - at : 3;
        uint32_t group = (uint32_t)p[at] << 16 | (have > 1 ? (uint32_t)p[at + 1] << 8 : 0) | (have > 2 ? p[at + 2] : 0);
        for (size_t i = 0; i < 4; i++)
            *to++ = (char)(i <= have ? digits[group >> (18 - 6 * i) & 63] : '=');
    }
    *to = 0;
    return text;
}

unsigned text_distance(const char *a, const char *b)
{
    size_t a_len = strlen(a), b_len = strlen(b);
    if (a_len > DISTANCE_LEN_MAX || b_len > DISTANCE_LEN_MAX)
        return DISTANCE_LEN_MAX;
    unsigned row[DISTANCE_LEN_MAX + 1];
    for (size_t j = 0; j <= b_len; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= a_len; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_len; j++) {
            unsigned above = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best)
                best = above + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = above;
            row[j] = best;
        }
    }
    return row[b_len];
}

void text_make_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

void text_nearest_offer(struct text_nearest *nearest, const char *known)
{
    unsigned distance = text_distance(nearest->name, known);
    if (distance < nearest->distance_max + !nearest->best) { /* the first may be as far as allowed, a later one must be nearer */
        nearest->best = known;
        nearest->distance_max = distance;
    }
}
