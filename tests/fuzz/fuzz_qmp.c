/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte seeds how the rest is cut; a second machine gets the same bytes in one piece. Both must see the same messages
 * and end in the same state, and a channel that failed must stay so. */
#include "fuzz.h"

#include "base/check.h"
#include "vmm/qmp.h"

#include <string.h>

struct tally {
    size_t messages;
    uint64_t sum;
};

static void count(void *context, const struct qmp_message *message)
{
    struct tally *t = context;
    t->messages++;
    for (const char *at = message->name; *at; at++)
        t->sum = t->sum * 31 + (unsigned char)*at;
    for (const char *at = message->description; *at; at++)
        t->sum = t->sum * 31 + (unsigned char)*at;
    CHECK(message->kind != QMP_GREETING || !message->data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    unsigned seed = data[0];
    data++;
    size--;
    struct qmp cut, whole;
    struct tally cut_tally = {0}, whole_tally = {0};
    struct err cut_error = ERR_INIT, whole_error = ERR_INIT;
    qmp_init(&cut);
    qmp_init(&whole);
    for (int i = 0; i < 3; i++) { /* something to be answered */
        struct err e = ERR_INIT;
        CHECK(qmp_command(&cut, "stop", NULL, &e) == 0 && qmp_command(&whole, "stop", NULL, &e) == 0);
    }
    int whole_result = qmp_feed(&whole, data, size, count, &whole_tally, &whole_error), cut_result = 0;
    for (size_t at = 0; at < size && cut_result == 0;) {
        size_t piece = 1 + (seed = seed * 1103515245 + 12345) / 65536 % 40;
        piece = piece < size - at ? piece : size - at;
        cut_result = qmp_feed(&cut, data + at, piece, count, &cut_tally, &cut_error);
        at += piece;
    }
    CHECK(cut_result == whole_result && cut.state == whole.state && cut.pending_len == whole.pending_len);
    CHECK(cut_tally.messages == whole_tally.messages && cut_tally.sum == whole_tally.sum);
    CHECK((whole_result != 0) == (whole.state == QMP_STATE_FAILED));
    if (whole_result) {
        struct err e = ERR_INIT;
        CHECK(qmp_feed(&whole, "{}\n", 3, count, &whole_tally, &e) == -1);
        err_clear(&e);
        CHECK(qmp_command(&whole, "stop", NULL, &e) == -1);
    }
    qmp_done(&cut);
    qmp_done(&whole);
    return 0;
}
