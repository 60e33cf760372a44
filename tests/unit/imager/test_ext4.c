/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/ext4.h"

#include "base/limits.h"

#include <sys/stat.h>

#include "image_file.h"
#include "unit.h"

static const struct ext4_attrs attrs = {.mode = 0644, .mtime = {1700000000, 0}, .atime = {1700000000, 0}};
static char text[65536];

static struct ext4 *begin(struct image_file *f)
{
    struct err e = ERR_INIT;
    *f = image_file_new();
    struct ext4 *w = ext4_new(f->fd, IMAGE_BYTES_MAX, &e);
    assert_non_null(w);
    return w;
}

static uint64_t finish(struct ext4 *w)
{
    struct err e = ERR_INIT;
    uint64_t bytes = 0;
    assert_int_equal(ext4_finish(w, &bytes, &e), 0);
    ext4_free(w);
    return bytes;
}

static struct ext4_place at(struct ext4 *w, const char *path)
{
    struct err e = ERR_INIT;
    struct ext4_place place;
    assert_int_equal(ext4_place(w, path, (struct ext4_time){0}, &place, &e), 0);
    return place;
}

static void put(struct ext4 *w, const char *path, const char *content)
{
    struct err e = ERR_INIT;
    struct ext4_place place = at(w, path);
    uint32_t inode;
    assert_int_equal(ext4_file_begin(w, &place, &attrs, strlen(content), &inode, &e), 0);
    assert_int_equal(ext4_file_write(w, content, strlen(content), 0, &e), 0);
    assert_int_equal(ext4_file_end(w, &e), 0);
}

static void test_ext4_finish_of_nothing_is_a_small_clean_image(void **state)
{
    (void)state;
    struct image_file f;
    uint64_t bytes = finish(begin(&f));
    struct stat s;
    assert_int_equal(fstat(f.fd, &s), 0);
    assert_int_equal(s.st_size, bytes);
    assert_true(bytes < 16 * MIB);
    assert_true(s.st_blocks * 512 < 256 * 1024);
    assert_int_equal(image_file_check(&f), 0);
    image_file_done(&f);
}

static void test_ext4_finish_gives_the_same_bytes_twice(void **state)
{
    (void)state;
    struct image_file f[2];
    for (int i = 0; i < 2; i++) {
        struct ext4 *w = begin(&f[i]);
        put(w, "a/b", "content");
        put(w, "c", "more");
        finish(w);
    }
    const char *argv[] = {"cmp", f[0].path, f[1].path, NULL};
    assert_int_equal(image_file_run(argv, text, sizeof text), 0);
    image_file_done(&f[0]), image_file_done(&f[1]);
}

static void test_ext4_file_with_holes_keeps_them(void **state)
{
    (void)state;
    struct image_file f;
    struct err e = ERR_INIT;
    struct ext4 *w = begin(&f);
    struct ext4_place place = at(w, "holes");
    uint32_t inode;
    assert_int_equal(ext4_file_begin(w, &place, &attrs, 5 * GIB, &inode, &e), 0);
    for (uint64_t i = 0; i < 1000; i++) /* far more extents than an inode holds */
        assert_int_equal(ext4_file_write(w, "data", 4, i * 5 * MIB + 10, &e), 0);
    assert_int_equal(ext4_file_end(w, &e), 0);
    assert_true(finish(w) < 32 * MIB);
    assert_int_equal(image_file_check(&f), 0);
    image_file_debugfs(&f, "stat /holes", text, sizeof text);
    assert_non_null(strstr(text, "Size: 5368709120"));
    assert_non_null(strstr(text, "ETB0"));
    image_file_done(&f);
}

static void test_ext4_file_write_refuses_to_go_back(void **state)
{
    (void)state;
    struct image_file f;
    struct err e = ERR_INIT;
    struct ext4 *w = begin(&f);
    struct ext4_place place = at(w, "x");
    uint32_t inode;
    assert_int_equal(ext4_file_begin(w, &place, &attrs, 100, &inode, &e), 0);
    assert_int_equal(ext4_file_write(w, "data", 4, 50, &e), 0);
    assert_int_equal(ext4_file_write(w, "data", 4, 52, &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    err_clear(&e);
    assert_int_equal(ext4_file_write(w, "data", 4, 97, &e), 0);
    assert_int_equal(ext4_file_end(w, &e), -1); /* 101 bytes for a size of 100 */
    ext4_free(w);
    image_file_done(&f);
}

static void test_ext4_place_stays_inside_the_image(void **state)
{
    (void)state;
    static const char *const refused[] = {"../x", "a/../../x", "a/..", "..", "file/x", "loop/x"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct image_file f;
        struct err e = ERR_INIT;
        struct ext4 *w = begin(&f);
        struct ext4_place place = at(w, "loop");
        uint32_t inode;
        put(w, "file", "x");
        assert_int_equal(ext4_symlink(w, &place, &attrs, "loop", &inode, &e), 0);
        assert_int_equal(ext4_place(w, refused[i], (struct ext4_time){0}, &place, &e), -1);
        assert_int_equal(e.code, ERR_INVALID);
        ext4_free(w);
        image_file_done(&f);
    }
}

static void test_ext4_place_follows_links_to_folders_at_the_root(void **state)
{
    (void)state;
    struct image_file f;
    struct err e = ERR_INIT;
    struct ext4 *w = begin(&f);
    uint32_t inode;
    struct ext4_place place = at(w, "up");
    assert_int_equal(ext4_symlink(w, &place, &attrs, "../../../usr/lib", &inode, &e), 0);
    put(w, "up/made", "x");
    put(w, "/abs//./path/", "y");
    finish(w);
    assert_int_equal(image_file_check(&f), 0);
    image_file_debugfs(&f, "cat /usr/lib/made", text, sizeof text);
    assert_non_null(strstr(text, "x"));
    image_file_debugfs(&f, "stat /abs/path", text, sizeof text);
    assert_non_null(strstr(text, "Type: regular"));
    image_file_done(&f);
}

static void test_ext4_entries_replace_each_other(void **state)
{
    (void)state;
    struct image_file f;
    struct err e = ERR_INIT;
    struct ext4 *w = begin(&f);
    uint32_t inode;
    put(w, "d/deep/er", "gone");
    put(w, "keep", "kept");
    struct ext4_place d = at(w, "d"), keep = at(w, "keep"), inside = at(w, "d/link");
    assert_int_equal(ext4_hard_link(w, &inside, &keep, &e), 0);
    put(w, "d", "a file now");
    put(w, "keep", "other");
    struct ext4_place twice = at(w, "d");
    assert_int_equal(ext4_folder(w, &twice, &attrs, &inode, &e), 0);
    assert_int_equal(ext4_folder(w, &d, &attrs, &inode, &e), 0);
    finish(w);
    assert_int_equal(image_file_check(&f), 0);
    image_file_debugfs(&f, "stat /d", text, sizeof text);
    assert_non_null(strstr(text, "Type: directory"));
    image_file_debugfs(&f, "cat /keep", text, sizeof text);
    assert_non_null(strstr(text, "other"));
    image_file_done(&f);
}

static void test_ext4_hard_link_counts_and_limits(void **state)
{
    (void)state;
    struct image_file f;
    struct err e = ERR_INIT;
    struct ext4 *w = begin(&f);
    char name[32];
    put(w, "one", "x");
    struct ext4_place one = at(w, "one");
    for (int i = 1; i < IMAGE_FILE_LINKS_MAX; i++) {
        snprintf(name, sizeof name, "l%d", i);
        struct ext4_place place = at(w, name);
        assert_int_equal(ext4_hard_link(w, &place, &one, &e), 0);
    }
    struct ext4_place more = at(w, "more");
    assert_int_equal(ext4_hard_link(w, &one, &one, &e), 0);
    assert_int_equal(ext4_hard_link(w, &more, &one, &e), -1);
    assert_non_null(strstr(e.text, "IMAGE_FILE_LINKS_MAX"));
    finish(w);
    assert_int_equal(image_file_check(&f), 0);
    image_file_debugfs(&f, "stat /l777", text, sizeof text);
    assert_non_null(strstr(text, "Links: 65000"));
    image_file_done(&f);
}

static void test_ext4_folder_with_more_folders_than_links(void **state)
{
    (void)state;
    struct image_file f;
    struct err e = ERR_INIT;
    struct ext4 *w = begin(&f);
    char name[300];
    uint32_t inode;
    for (int i = 0; i < 65010; i++) {
        snprintf(name, sizeof name, "many/d%05d", i);
        struct ext4_place place = at(w, name);
        assert_int_equal(ext4_folder(w, &place, &attrs, &inode, &e), 0);
    }
    for (int i = 0; i < 20000; i++) { /* more leaves than one index block names */
        snprintf(name, sizeof name, "long/%0250d", i);
        put(w, name, "");
    }
    finish(w);
    assert_int_equal(image_file_check(&f), 0);
    image_file_debugfs(&f, "stat /many", text, sizeof text);
    assert_non_null(strstr(text, "Links: 1 "));
    image_file_debugfs(&f, "htree_dump /long", text, sizeof text);
    assert_non_null(strstr(text, "Indirect levels: 1"));
    image_file_done(&f);
}

static void test_ext4_xattr_too_large_names_itself(void **state)
{
    (void)state;
    struct image_file f;
    struct err e = ERR_INIT;
    struct ext4 *w = begin(&f);
    struct ext4_place place = at(w, "d");
    static char value[5000];
    uint32_t inode;
    assert_int_equal(ext4_folder(w, &place, &attrs, &inode, &e), 0);
    assert_int_equal(ext4_xattr(w, inode, "user.small", "v", 1, &e), 0);
    assert_int_equal(ext4_xattr(w, inode, "user.large", value, sizeof value, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_non_null(strstr(e.text, "user.large"));
    ext4_free(w);
    image_file_done(&f);
}

static void test_ext4_new_image_has_its_limit(void **state)
{
    (void)state;
    struct image_file f = image_file_new();
    struct err e = ERR_INIT;
    struct ext4 *w = ext4_new(f.fd, 128 * MIB, &e);
    assert_non_null(w);
    struct ext4_place place = at(w, "big");
    static char piece[MIB];
    uint32_t inode;
    int failed = 0;
    assert_int_equal(ext4_file_begin(w, &place, &attrs, GIB, &inode, &e), 0);
    for (uint64_t i = 0; !failed && i < 1024; i++)
        failed = ext4_file_write(w, piece, sizeof piece, i * MIB, &e);
    assert_int_equal(e.code, ERR_LIMIT);
    ext4_free(w);
    image_file_done(&f);
}

UNIT_MAIN(cmocka_unit_test(test_ext4_finish_of_nothing_is_a_small_clean_image),
          cmocka_unit_test(test_ext4_finish_gives_the_same_bytes_twice), cmocka_unit_test(test_ext4_file_with_holes_keeps_them),
          cmocka_unit_test(test_ext4_file_write_refuses_to_go_back), cmocka_unit_test(test_ext4_place_stays_inside_the_image),
          cmocka_unit_test(test_ext4_place_follows_links_to_folders_at_the_root),
          cmocka_unit_test(test_ext4_entries_replace_each_other), cmocka_unit_test(test_ext4_hard_link_counts_and_limits),
          cmocka_unit_test(test_ext4_folder_with_more_folders_than_links),
          cmocka_unit_test(test_ext4_xattr_too_large_names_itself), cmocka_unit_test(test_ext4_new_image_has_its_limit))
