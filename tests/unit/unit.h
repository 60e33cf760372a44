/* SPDX-License-Identifier: Apache-2.0 */
/* What every unit test includes: cmocka with the headers it needs in front. A test program's main is
 * UNIT_MAIN(cmocka_unit_test(test_x_situation), ...). */
#pragma once

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
/* clang-format on */

#define UNIT_MAIN(...)                                                                                                           \
    int main(void)                                                                                                               \
    {                                                                                                                            \
        const struct CMUnitTest tests[] = {__VA_ARGS__};                                                                         \
        return cmocka_run_group_tests(tests, NULL, NULL);                                                                        \
    }
