/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <errno.h>

#include "unit.h"

static void test_wrap_adds_context_in_front(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    assert_int_equal(err_sys(&e, ENOSPC, "open '%s'", "blobs/x"), -1);
    assert_int_equal(err_wrap(&e, "layer %d", 3), -1);
    assert_int_equal(err_wrap(&e, "pull '%s'", "x"), -1);
    assert_string_equal(e.text, "pull 'x': layer 3: open 'blobs/x': No space left on device");
    assert_int_equal(e.code, ERR_SYSTEM);
    assert_int_equal(e.sys_errno, ENOSPC);
}

static void test_long_text_is_cut_not_overrun(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char long_text[3000];
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    err_set(&e, ERR_INVALID, "%s", long_text);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    err_wrap(&e, "%s", long_text);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
}

static void test_every_code_has_its_row(void **state)
{
    (void)state;
    for (int code = ERR_INVALID; code < ERR_CODE_COUNT; code++) {
        assert_int_equal(strlen(err_code_wire((enum err_code)code)), 4);
        assert_true(strlen(err_code_sentence((enum err_code)code)) > 5);
        assert_true(strlen(err_code_type((enum err_code)code)) > 3);
    }
    assert_int_equal(err_code_from_guest(211), ERR_FS_NOT_FOUND);
    assert_int_equal(err_code_from_guest(219), ERR_FS_AGENT_OLD);
    assert_int_equal(err_code_from_guest(42), ERR_FS_IO);
    assert_true(err_code_is_retryable(ERR_IMAGE_PREPARE));
    assert_false(err_code_is_retryable(ERR_BOOT));
}

UNIT_MAIN(cmocka_unit_test(test_wrap_adds_context_in_front), cmocka_unit_test(test_long_text_is_cut_not_overrun),
          cmocka_unit_test(test_every_code_has_its_row))
