/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include "base/alloc.h"
#include "base/cleanup.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "unit.h"

static char *folder;

static int make_folder(void **state)
{
    (void)state;
    folder = xstrdup("/tmp/iii-test-file-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    int result = dir_remove(folder, &e);
    free(folder);
    return result;
}

static void test_copy_sparse_keeps_holes_and_bytes(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_close from = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    auto_close to = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_true(from >= 0 && to >= 0);
    assert_int_equal(ftruncate(from, 64 << 20), 0);
    assert_int_equal(pwrite(from, "begin", 5, 0), 5);
    assert_int_equal(pwrite(from, "middle", 6, 33 << 20), 6);
    assert_int_equal(file_copy_sparse(from, to, &e), 0);
    struct stat s;
    assert_int_equal(fstat(to, &s), 0);
    assert_int_equal(s.st_size, 64 << 20);
    assert_true(s.st_blocks * 512 < 1 << 20);
    char text[6];
    assert_int_equal(pread(to, text, 6, 33 << 20), 6);
    assert_memory_equal(text, "middle", 6);
}

static void test_read_refuses_a_larger_file(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *path = xasprintf("%s/x", folder);
    assert_int_equal(file_write_atomic(path, "0123456789", 10, 0640, &e), 0);
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 07777, 0640);
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(file_read(path, 10, &text, &len, &e), 0);
    assert_int_equal(len, 10);
    assert_string_equal(text, "0123456789");
    free(text);
    assert_int_equal(file_read(path, 9, &text, &len, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
}

static void test_make_and_remove_trees(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *deep = xasprintf("%s/a/b/c", folder);
    auto_free char *top = xasprintf("%s/a", folder);
    auto_free char *link = xasprintf("%s/a/link", folder);
    assert_int_equal(dir_make(deep, 0755, &e), 0);
    assert_int_equal(dir_make(deep, 0755, &e), 0);
    assert_int_equal(symlink("/etc", link), 0);
    assert_int_equal(dir_remove(top, &e), 0);
    assert_int_equal(access(top, F_OK), -1);
    assert_int_equal(access("/etc/passwd", F_OK), 0);
    assert_int_equal(dir_remove(top, &e), 0);
    auto_free char *under_file = xasprintf("%s/x/y", folder);
    assert_int_equal(dir_make(under_file, 0755, &e), -1);
    assert_int_equal(e.sys_errno, ENOTDIR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_copy_sparse_keeps_holes_and_bytes),
                                       cmocka_unit_test(test_read_refuses_a_larger_file),
                                       cmocka_unit_test(test_make_and_remove_trees)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
