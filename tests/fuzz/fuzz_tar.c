/* SPDX-License-Identifier: Apache-2.0 */
/* agent/tar.h: the bytes are read as a tar, header by header, bodies skipped. What decodes must encode, and decode again to
 * the same entry. */
#include "fuzz.h"

#include "agent/tar.h"
#include "base/buf.h"
#include "base/check.h"

#include <string.h>

static struct tar_header header, again;
static struct tar_overrides overrides, written;

static void check_round_trip(void)
{
    auto_buf out = BUF_INIT(1 << 16);
    struct err e = ERR_INIT;
    CHECK(tar_header_encode(&out, &header, &e) == 0 && out.len % TAR_BLOCK == 0);
    const uint8_t *at = buf_data(&out);
    memset(&written, 0, sizeof written);
    CHECK(tar_header_decode(at, &again, &e) == 1);
    if (again.type == 'x' && out.len > TAR_BLOCK) {
        CHECK(tar_extension_decode('x', (const char *)at + TAR_BLOCK, (size_t)again.size, &written, &e) == 0);
        CHECK(tar_header_decode(at + out.len - TAR_BLOCK, &again, &e) == 1);
    }
    tar_overrides_apply(&written, &again);
    CHECK(again.type == header.type && strcmp(again.path, header.path) == 0 && strcmp(again.link, header.link) == 0);
    CHECK(again.mode == header.mode && (header.type != '0' || again.size == header.size));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    memset(&overrides, 0, sizeof overrides);
    for (size_t at = 0; len - at >= TAR_BLOCK;) {
        struct err e = ERR_INIT;
        int got = tar_header_decode(bytes + at, &header, &e);
        CHECK((got < 0) == err_is_set(&e));
        if (got <= 0)
            break;
        at += TAR_BLOCK;
        size_t body = header.size < len - at ? (size_t)header.size : len - at;
        if (strchr("xgLK", header.type)) {
            if (tar_extension_decode(header.type, (const char *)bytes + at, body, &overrides, &e))
                break;
        } else {
            tar_overrides_apply(&overrides, &header);
            memset(&overrides, 0, sizeof overrides);
            if (header.path[0])
                check_round_trip();
        }
        size_t padded = body + (TAR_BLOCK - body % TAR_BLOCK) % TAR_BLOCK;
        at += padded < len - at ? padded : len - at;
    }
    return 0;
}
