/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte chooses the message, the rest is its body. What decodes must encode, and decode again to a body that
 * encodes to the same bytes. */
#include "base/check.h"
#include "base/limits.h"
#include "wire/message.h"

#include <stdbool.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Decodes and encodes again; false when the bytes are refused. */
static bool recode(unsigned which, const void *bytes, size_t len, struct buf *out)
{
    struct err e = ERR_INIT;
    union {
        struct wire_request request;
        struct wire_hello hello;
        struct wire_exit exit;
        struct wire_failure failure;
    } m;
    memset(&m, 0, sizeof m);
    bool ok = false;
    switch (which) {
    case 0:
        if ((ok = wire_request_decode(bytes, len, &m.request, &e) == 0))
            CHECK(wire_request_encode(out, &m.request, &e) == 0);
        wire_request_done(&m.request);
        break;
    case 1:
        if ((ok = wire_hello_decode(bytes, len, &m.hello, &e) == 0))
            CHECK(wire_hello_encode(out, &m.hello, &e) == 0);
        wire_hello_done(&m.hello);
        break;
    case 2:
        if ((ok = wire_exit_decode(bytes, len, &m.exit, &e) == 0))
            CHECK(wire_exit_encode(out, &m.exit, &e) == 0);
        break;
    default:
        if ((ok = wire_failure_decode(bytes, len, &m.failure, &e) == 0))
            CHECK(wire_failure_encode(out, &m.failure, &e) == 0);
        wire_failure_done(&m.failure);
        break;
    }
    CHECK(ok == !err_is_set(&e));
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    unsigned which = data[0] & 3;
    auto_buf once = BUF_INIT(8 * MIB), twice = BUF_INIT(8 * MIB);
    if (!recode(which, data + 1, size - 1, &once))
        return 0;
    CHECK(recode(which, buf_data(&once), once.len, &twice));
    CHECK(once.len == twice.len && memcmp(buf_data(&once), buf_data(&twice), once.len) == 0);
    return 0;
}
