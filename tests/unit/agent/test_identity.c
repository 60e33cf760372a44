/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/identity.h"

#include <fcntl.h>
#include <unistd.h>

#include "unit.h"

static void test_hostname_is_valid_as_in_rfc_1123(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "a-b", "A1", "x.y", "0", "sandbox-7.local"};
    static const char *const bad[] = {
        "",    "-a",   "a-",       "a..b", ".a",   "a.",
        "a b", "a\nb", "\xc3\xa4", "a_b",  "a-.b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!identity_hostname_is_valid(good[i]))
            fail_msg("'%s' was refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (identity_hostname_is_valid(bad[i]))
            fail_msg("'%s' was taken", bad[i]);
}

/* Values that are refused before anything is set. */
static void test_apply_refuses_malformed_values(void **state)
{
    (void)state;
    const struct identity none = {-1, -1, -1, -1, -1};
    uint8_t seed[32] = {0};
    const struct wire_identity good = {.hostname = (char[]){"h"},
                                       .seed = {seed, 32},
                                       .boot_id = (char[]){"01234567-89ab-cdef-0123-456789abcdef"},
                                       .machine_id = (char[]){"0123456789abcdef0123456789abcdef"}};
    struct wire_identity cases[5] = {good, good, good, good, good};
    cases[0].seed.len = 31;
    cases[1].hostname = (char[]){"a b"};
    cases[2].boot_id = (char[]){"01234567-89ab-cdef-0123-456789abcde"};
    cases[3].machine_id = (char[]){"0123456789abcdef0123456789abcdeF"};
    cases[4].machine_id = (char[]){"0123456789abcdef0123456789abcdef0"};
    for (size_t i = 0; i < 5; i++) {
        struct err e = ERR_INIT;
        assert_int_equal(identity_apply(&none, &cases[i], &e), -1);
        assert_int_equal(e.code, ERR_INVALID);
    }
}

UNIT_MAIN(cmocka_unit_test(test_hostname_is_valid_as_in_rfc_1123), cmocka_unit_test(test_apply_refuses_malformed_values))
