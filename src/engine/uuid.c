/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/uuid.h"

#include "base/check.h"
#include "base/text.h"

#include <string.h>
#include <sys/random.h>

struct uuid uuid_make(void)
{
    /* Calls need one each: the pool is filled for 16 at a time. */
    static unsigned char pool[256];
    static size_t left;
    if (left < 16) {
        ssize_t got = getrandom(pool, 256, 0);
        CHECK(got == 256); /* up to 256 bytes are never interrupted nor short (getrandom(2)) */
        left = 256;
    }
    left -= 16;
    unsigned char *bytes = pool + left;
    bytes[6] = (unsigned char)((bytes[6] & 0x0f) | 0x40);
    bytes[8] = (unsigned char)((bytes[8] & 0x3f) | 0x80);
    char hex[33];
    text_hex(bytes, 16, hex);
    memset(bytes, 0, 16);
    struct uuid id;
    static const unsigned char lengths[] = {8, 4, 4, 4, 12};
    char *out = id.text;
    const char *in = hex;
    for (size_t i = 0; i < sizeof lengths; i++) {
        if (i)
            *out++ = '-';
        memcpy(out, in, lengths[i]);
        out += lengths[i];
        in += lengths[i];
    }
    *out = 0;
    return id;
}

bool uuid_is_valid(const char *text)
{
    if (strlen(text) != 36)
        return false;
    for (size_t i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? text[i] != '-' : !strchr("0123456789abcdefABCDEF", text[i]))
            return false;
    }
    return true;
}

bool text_equals_constant_time(const char *a, const char *b)
{
    size_t len = strlen(a);
    if (len != strlen(b))
        return false;
    unsigned char difference = 0;
    for (size_t i = 0; i < len; i++)
        difference |= (unsigned char)(a[i] ^ b[i]);
    return difference == 0;
}
