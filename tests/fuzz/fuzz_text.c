/* SPDX-License-Identifier: Apache-2.0 */
/* base/text.h: what is accepted comes back the same when written out again, and never exceeds its limit. */
#include "fuzz.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"

#include <string.h>

static void try_number(const char *text)
{
    struct err e = ERR_INIT;
    uint64_t value;
    if (text_parse_u64(text, UINT32_MAX, &value, &e) != 0)
        return;
    CHECK(value <= UINT32_MAX);
    auto_free char *written = xasprintf("%llu", (unsigned long long)value);
    const char *digits = text;
    while (*digits == '0' && digits[1])
        digits++;
    CHECK(strcmp(written, digits) == 0);
}

static void try_duration(const char *text)
{
    struct err e = ERR_INIT;
    uint64_t ms, again;
    if (text_parse_duration_ms(text, &ms, &e) != 0)
        return;
    auto_free char *written = xasprintf("%llums", (unsigned long long)ms);
    CHECK(text_parse_duration_ms(written, &again, &e) == 0 && again == ms);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    auto_free char *text = xmalloc(len + 1);
    memcpy(text, bytes, len);
    text[len] = '\0';
    try_number(text);
    try_duration(text);
    /* Valid UTF-8 stays valid in two halves where a character begins, and only there. */
    if (len > 1 && text_is_utf8(bytes, len)) {
        size_t middle = len / 2;
        bool is_start = (bytes[middle] & 0xc0) != 0x80;
        CHECK(text_is_utf8(bytes, middle) == is_start);
        CHECK(text_is_utf8(bytes + middle, len - middle) == is_start);
    }
    return 0;
}
