/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/users.h"

#include "unit.h"

static const char passwd[] = "# a comment\n"
                             "root:x:0:0:root:/root:/bin/bash\n"
                             "\n"
                             "broken\n"
                             "bad:x:notanumber:1:::\n"
                             "www:x:33:33:web:/var/www:/usr/sbin/nologin\n"
                             "1000:x:77:78::/people/digits:\n"
                             "ann:x:1000:1000:Ann,,,:/people/ann:/bin/sh"; /* no newline at the end */
static const char group[] = "root:x:0:\n"
                            "www:x:33:\n"
                            "disk:x:6:ann,www\n"
                            "annex:x:7:anna\n"
                            "own:x:1000:ann\n"
                            "broken:x\n"
                            "audio:x:29:bob,ann\n";

static void check(const char *spec, uid_t uid, gid_t gid, const char *name, const char *home, const char *shell)
{
    struct user user;
    struct err e = ERR_INIT;
    if (users_resolve(spec, passwd, group, &user, &e))
        fail_msg("'%s': %s", spec ? spec : "NULL", e.text);
    assert_int_equal(user.uid, uid);
    assert_int_equal(user.gid, gid);
    assert_string_equal(user.name, name);
    assert_string_equal(user.home, home);
    assert_string_equal(user.shell, shell);
    user_done(&user);
}

static void test_resolve_by_name_and_number(void **state)
{
    (void)state;
    check(NULL, 0, 0, "root", "/root", "/bin/bash");
    check("", 0, 0, "root", "/root", "/bin/bash");
    check("www", 33, 33, "www", "/var/www", "/usr/sbin/nologin");
    check("33", 33, 33, "www", "/var/www", "/usr/sbin/nologin");
    check("ann", 1000, 1000, "ann", "/people/ann", "/bin/sh");
    check("ann:disk", 1000, 6, "ann", "/people/ann", "/bin/sh");
    check("ann:12345", 1000, 12345, "ann", "/people/ann", "/bin/sh");
    check("4000", 4000, 0, "4000", "/", "/bin/sh");
    check("4000:audio", 4000, 29, "4000", "/", "/bin/sh");
}

static void test_resolve_prefers_a_name_of_digits(void **state)
{
    (void)state;
    check("1000", 77, 78, "1000", "/people/digits", "/bin/sh");
}

static void test_resolve_finds_supplementary_groups(void **state)
{
    (void)state;
    struct user user;
    struct err e = ERR_INIT;
    assert_int_equal(users_resolve("ann", passwd, group, &user, &e), 0);
    assert_int_equal(user.group_count, 2); /* not annex (anna), not her own */
    assert_int_equal(user.groups[0], 6);
    assert_int_equal(user.groups[1], 29);
    user_done(&user);
    assert_int_equal(users_resolve("ann:disk", passwd, group, &user, &e), 0);
    assert_int_equal(user.group_count, 0);
    user_done(&user);
}

static void test_resolve_refuses_what_is_not_there(void **state)
{
    (void)state;
    static const char *const specs[] = {"nobody", "ann:nogroup", ":", "ann:", ":6", "bad", "4294967295", "-1", "broken", "an"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct user user;
        struct err e = ERR_INIT;
        if (users_resolve(specs[i], passwd, group, &user, &e) != -1 || e.code != ERR_INVALID)
            fail_msg("'%s' was taken", specs[i]);
    }
}

static void test_resolve_root_without_files(void **state)
{
    (void)state;
    struct user user;
    struct err e = ERR_INIT;
    assert_int_equal(users_resolve(NULL, NULL, NULL, &user, &e), 0);
    assert_int_equal(user.uid, 0);
    assert_string_equal(user.home, "/root");
    user_done(&user);
    assert_int_equal(users_resolve("ann", NULL, NULL, &user, &e), -1);
}

UNIT_MAIN(cmocka_unit_test(test_resolve_by_name_and_number), cmocka_unit_test(test_resolve_prefers_a_name_of_digits),
          cmocka_unit_test(test_resolve_finds_supplementary_groups), cmocka_unit_test(test_resolve_refuses_what_is_not_there),
          cmocka_unit_test(test_resolve_root_without_files))
