/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/credit.h"

#include "base/check.h"
#include "base/limits.h"

void credit_sender_init(struct credit_sender *s)
{
    s->window = WIRE_WINDOW;
}

void credit_sender_spend(struct credit_sender *s, uint32_t bytes)
{
    CHECK(bytes <= s->window);
    s->window -= bytes;
}

int credit_sender_grant(struct credit_sender *s, uint32_t bytes, struct err *e)
{
    if (bytes > WIRE_WINDOW - s->window)
        return err_set(e, ERR_PROTOCOL, "credit of %u bytes on a window of %u", bytes, s->window);
    s->window += bytes;
    return 0;
}

void credit_receiver_init(struct credit_receiver *r)
{
    *r = (struct credit_receiver){.in_flight = WIRE_WINDOW};
}

int credit_receiver_arrived(struct credit_receiver *r, uint32_t bytes, struct err *e)
{
    if (bytes > r->in_flight)
        return err_set(e, ERR_PROTOCOL, "%u bytes came where credit for %u was left", bytes, r->in_flight);
    r->in_flight -= bytes;
    return 0;
}

uint32_t credit_receiver_taken(struct credit_receiver *r, uint32_t bytes)
{
    CHECK(bytes <= WIRE_WINDOW - r->in_flight - r->owed); /* nobody takes what has not arrived */
    r->owed += bytes;
    if (r->owed < WIRE_WINDOW / 4)
        return 0;
    uint32_t grant = r->owed;
    r->owed = 0;
    r->in_flight += grant;
    return grant;
}
