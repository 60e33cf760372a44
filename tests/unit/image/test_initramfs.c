/* SPDX-License-Identifier: Apache-2.0 */
#include "image/initramfs.h"

#include "base/file.h"
#include "base/path.h"
#include "image/tool.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

static void build(struct buf *archive)
{
    struct err e = ERR_INIT;
    assert_int_equal(initramfs_folder(archive, "dev", 0755, &e), 0);
    assert_int_equal(initramfs_char_device(archive, "dev/console", 0600, 5, 1, &e), 0);
    assert_int_equal(initramfs_file(archive, "init", 0755, "#!/bin/sh\n", 10, &e), 0);
    assert_int_equal(initramfs_file(archive, "empty", 0644, NULL, 0, &e), 0);
    assert_int_equal(initramfs_end(archive, &e), 0);
}

static void test_initramfs_file_writes_the_newc_form(void **state)
{
    (void)state;
    auto_buf archive = BUF_INIT(4096);
    struct err e = ERR_INIT;
    assert_int_equal(initramfs_file(&archive, "a", 0644, "xyz", 3, &e), 0);
    static const char want[] = "070701"
                               "00000001"
                               "000081A4"
                               "00000000"
                               "00000000"
                               "00000001"
                               "00000000"
                               "00000003"
                               "00000000"
                               "00000000"
                               "00000000"
                               "00000000"
                               "00000002"
                               "00000000"
                               "a\0"
                               "xyz";
    assert_int_equal(archive.len, 116);
    assert_memory_equal(buf_data(&archive), want, sizeof want - 1);
    assert_int_equal(buf_data(&archive)[115], 0);
}

static void test_initramfs_end_is_read_by_cpio(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char *cpio = path_find_in_path("cpio", &e);
    if (!cpio) { /* not installed */
        skip();
        return;
    }
    auto_buf archive = BUF_INIT(4096);
    build(&archive);
    char folder[] = "/tmp/initramfs-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char *path = xasprintf("%s/archive", folder);
    assert_int_equal(file_write_atomic(path, buf_data(&archive), archive.len, 0644, &e), 0);
    const char *argv[] = {"cpio", "-i", "-v", "-d", "-F", path, NULL};
    assert_int_equal(tool_run("cpio", cpio, argv, folder, TOOL_PACKAGES, NULL, NULL, &e), 0);
    char *init = xasprintf("%s/init", folder), *text;
    assert_int_equal(file_read(init, 100, &text, NULL, &e), 0);
    assert_string_equal(text, "#!/bin/sh\n");
    struct stat s;
    assert_int_equal(stat(init, &s), 0);
    assert_int_equal(s.st_mode, S_IFREG | 0755);
    char *empty = xasprintf("%s/empty", folder), *console = xasprintf("%s/dev/console", folder);
    assert_int_equal(stat(empty, &s), 0);
    assert_int_equal(s.st_size, 0);
    if (geteuid() == 0) {
        assert_int_equal(stat(console, &s), 0);
        assert_int_equal(s.st_mode, S_IFCHR | 0600);
        assert_int_equal(s.st_rdev, 0x501);
    }
    assert_int_equal(dir_remove(folder, &e), 0);
    free(path), free(init), free(text), free(empty), free(console), free(cpio);
}

static void test_initramfs_file_refuses_more_than_the_maximum(void **state)
{
    (void)state;
    auto_buf archive = BUF_INIT(200);
    struct err e = ERR_INIT;
    char bytes[200] = {0};
    assert_int_equal(initramfs_file(&archive, "a", 0644, bytes, sizeof bytes, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
}

UNIT_MAIN(cmocka_unit_test(test_initramfs_file_writes_the_newc_form), cmocka_unit_test(test_initramfs_end_is_read_by_cpio),
          cmocka_unit_test(test_initramfs_file_refuses_more_than_the_maximum))
