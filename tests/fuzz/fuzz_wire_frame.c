/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte seeds the cuts in which the rest reaches the decoder. Frames that come out must encode to the very bytes
 * that went in, however those were cut; pieces go through the assembler as both ends do it. */
#include "base/check.h"
#include "wire/frame.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take_frames(struct wire_decoder *d, struct wire_assembly *assembly, const uint8_t *source, size_t fed, size_t *at)
{
    for (;;) {
        struct err e = ERR_INIT;
        struct wire_frame frame;
        int got = wire_decoder_next(d, &frame, &e);
        CHECK((got < 0) == err_is_set(&e));
        if (got <= 0)
            return;
        auto_buf again = BUF_INIT(WIRE_FRAME_MAX);
        CHECK(wire_frame_append(&again, &frame, &e) == 0);
        CHECK(again.len <= fed - *at && memcmp(buf_data(&again), source + *at, again.len) == 0);
        *at += again.len;
        if (frame.kind == WIRE_REQUEST && wire_assembly_add(assembly, &frame, &e))
            wire_assembly_done(assembly);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    uint32_t random = data[0] * 2654435761u + 1;
    const uint8_t *source = data + 1;
    size_t fed = 0, at = 0;
    struct wire_decoder d;
    struct wire_assembly assembly = {0};
    wire_decoder_init(&d);
    for (size_t left = size - 1; left;) {
        struct err e = ERR_INIT;
        uint8_t *room;
        size_t len;
        CHECK(wire_decoder_room(&d, &room, &len, &e) == 0);
        random = random * 1103515245u + 12345u;
        size_t cut = 1 + (random >> 16) % (data[0] & 1 ? 7 : WIRE_FRAME_MAX);
        if (cut > left)
            cut = left;
        if (cut > len)
            cut = len;
        memcpy(room, source + fed, cut);
        wire_decoder_fed(&d, cut);
        fed += cut;
        left -= cut;
        take_frames(&d, &assembly, source, fed, &at);
        if (d.broken)
            break;
    }
    wire_assembly_done(&assembly);
    wire_decoder_done(&d);
    return 0;
}
