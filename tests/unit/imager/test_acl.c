/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/acl.h"

#include <archive.h>

#include "unit.h"

static struct archive_entry *entry_with_acl(void)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_mode(entry, 0100640);
    archive_entry_acl_add_entry(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, 6, ARCHIVE_ENTRY_ACL_USER_OBJ, -1, "");
    archive_entry_acl_add_entry(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, 4, ARCHIVE_ENTRY_ACL_USER, 1000, "x");
    archive_entry_acl_add_entry(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, 4, ARCHIVE_ENTRY_ACL_GROUP_OBJ, -1, "");
    archive_entry_acl_add_entry(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, 4, ARCHIVE_ENTRY_ACL_MASK, -1, "");
    archive_entry_acl_add_entry(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, 0, ARCHIVE_ENTRY_ACL_OTHER, -1, "");
    return entry;
}

static void test_acl_to_xattr_gives_the_kernels_form(void **state)
{
    (void)state;
    struct archive_entry *entry = entry_with_acl();
    uint8_t bytes[ACL_BYTES_MAX];
    static const uint8_t want[] = {2, 0,    0,    0,    1,    0,    6,    0, 0xff, 0xff, 0xff, 0xff, 2,    0,    4,
                                   0, 0xe8, 3,    0,    0,    4,    0,    4, 0,    0xff, 0xff, 0xff, 0xff, 0x10, 0,
                                   4, 0,    0xff, 0xff, 0xff, 0xff, 0x20, 0, 0,    0,    0xff, 0xff, 0xff, 0xff};
    assert_int_equal(acl_to_xattr(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, bytes), sizeof want);
    assert_memory_equal(bytes, want, sizeof want);
    assert_int_equal(acl_to_xattr(entry, ARCHIVE_ENTRY_ACL_TYPE_DEFAULT, bytes), 0);
    archive_entry_free(entry);
}

static void test_acl_to_xattr_cannot_keep_a_name_without_number(void **state)
{
    (void)state;
    struct archive_entry *entry = entry_with_acl();
    archive_entry_acl_add_entry(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, 4, ARCHIVE_ENTRY_ACL_GROUP, -1, "staff");
    uint8_t bytes[ACL_BYTES_MAX];
    assert_int_equal(acl_to_xattr(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, bytes), -1);
    archive_entry_free(entry);
}

static void test_acl_to_xattr_of_a_plain_mode_is_nothing(void **state)
{
    (void)state;
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_mode(entry, 0100640);
    uint8_t bytes[ACL_BYTES_MAX];
    assert_int_equal(acl_to_xattr(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, bytes), 0);
    archive_entry_free(entry);
}

UNIT_MAIN(cmocka_unit_test(test_acl_to_xattr_gives_the_kernels_form),
          cmocka_unit_test(test_acl_to_xattr_cannot_keep_a_name_without_number),
          cmocka_unit_test(test_acl_to_xattr_of_a_plain_mode_is_nothing))
