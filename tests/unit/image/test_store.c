/* SPDX-License-Identifier: Apache-2.0 */
#include "image/store_priv.h"

#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "unit.h"

static char folder[64];

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/store-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    return dir_remove(folder, &e);
}

static struct store *opened(void)
{
    struct err e = ERR_INIT;
    struct store *store = store_open(folder, &e);
    assert_string_equal(e.text, "");
    return store;
}

static bool exists(const char *name)
{
    auto_free char *path = xasprintf("%s/%s", folder, name);
    struct stat s;
    return lstat(path, &s) == 0;
}

static void test_store_open_removes_what_nobody_makes(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct store *store = opened();
    auto_free char *left = store_scratch_folder(store, "image-x", &e), *held = store_scratch_folder(store, "image-y", &e);
    auto_free char *deep = xasprintf("%s/a/b", left), *stray = xasprintf("%s/scratch/garbage", folder);
    assert_int_equal(dir_make(deep, 0755, &e), 0);
    assert_int_equal(file_write_atomic(stray, "x", 1, 0644, &e), 0);
    auto_close lock = -1;
    assert_int_equal(store_lock(store, "image-y", NULL, &lock, &e), 0);
    struct store *second = opened();
    assert_false(access(left, F_OK) == 0);
    assert_false(access(stray, F_OK) == 0);
    assert_true(access(held, F_OK) == 0);
    assert_int_equal(store_notes(second)->len, 2);
    assert_non_null(strstr(store_notes(second)->items[0], "removed half-made"));
    store_close(second);
    store_close(store);
}

static void test_store_open_moves_a_file_in_the_way(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *path = xasprintf("%s/images", folder);
    assert_int_equal(file_write_atomic(path, "x", 1, 0644, &e), 0);
    struct store *store = opened();
    assert_int_equal(store_notes(store)->len, 1);
    assert_true(exists("images.thrown-away"));
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_true(S_ISDIR(s.st_mode));
    store_close(store);
}

static void test_store_write_file_leaves_no_temporary(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct store *store = opened();
    assert_int_equal(store_write_file(store, "t", "initramfs", "a", "hello", 5, &e), 0);
    auto_free char *path = store_path(store, "initramfs", "a"), *text = NULL;
    assert_int_equal(file_read(path, 100, &text, NULL, &e), 0);
    assert_string_equal(text, "hello");
    store_close(store);
    store = opened();
    assert_int_equal(store_notes(store)->len, 0);
    store_close(store);
}

static void test_store_lock_waits_for_the_holders_death(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct store *store = opened();
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int lock;
        if (store_lock(store, "x", NULL, &lock, &e) || write(fds[1], "l", 1) != 1)
            _exit(1);
        pause();
    }
    char byte;
    assert_int_equal(read(fds[0], &byte, 1), 1);
    auto_free char *path = store_path(store, "locks", "x");
    auto_close probe = open(path, O_RDWR);
    assert_int_equal(flock(probe, LOCK_EX | LOCK_NB), -1);
    kill(pid, SIGKILL);
    auto_close lock = -1;
    assert_int_equal(store_lock(store, "x", NULL, &lock, &e), 0);
    waitpid(pid, NULL, 0);
    close(fds[0]), close(fds[1]);
    store_close(store);
}

static void test_store_check_free_names_folder_and_numbers(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct store *store = opened();
    assert_int_equal(store_check_free(store, 1, "a test", &e), 0);
    assert_int_equal(store_check_free(store, 1ull << 60, "a test", &e), -1);
    assert_int_equal(e.code, ERR_ENVIRONMENT);
    assert_non_null(strstr(e.text, folder));
    assert_non_null(strstr(e.text, "a test needs 1099511627776 MiB"));
    store_close(store);
}

static void test_hash_fd_counts_holes_as_zeros(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char sparse[65], full[65];
    auto_free char *path = xasprintf("%s/f", folder), *zeros = xcalloc(1, 1 << 20);
    auto_close fd = open(path, O_RDWR | O_CREAT, 0600);
    memcpy(zeros + 700000, "data", 4);
    assert_int_equal(pwrite(fd, "data", 4, 700000), 4);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    assert_int_equal(hash_fd(fd, sparse, &e), 0);
    hash_bytes(zeros, 1 << 20, full);
    assert_string_equal(sparse, full);
    hash_bytes("abc", 3, full);
    assert_string_equal(full, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void test_disk_new_gives_an_empty_ext4(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct store *store = opened();
    for (int i = 0; i < 2; i++) {
        auto_close fd = -1;
        assert_int_equal(disk_new(store, 64, &fd, &e), 0);
        struct stat s;
        uint8_t magic[2];
        assert_int_equal(fstat(fd, &s), 0);
        assert_int_equal(s.st_size, 64 << 20);
        assert_int_equal(s.st_nlink, 0);
        assert_true(s.st_blocks < 1024);
        assert_int_equal(pread(fd, magic, 2, 1024 + 0x38), 2);
        assert_int_equal(magic[0] | magic[1] << 8, 0xef53);
    }
    assert_true(exists("disks/64.ext4"));
    store_close(store);
}

static void test_image_ensure_throws_damaged_records_away(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct store *store = opened();
    auto_free char *path = store_path(store, "images", "tar%3A%2Fnonexistent");
    assert_int_equal(file_write_atomic(path, "garbage", 7, 0644, &e), 0);
    struct image image;
    assert_int_equal(image_ensure(store, "tar:/nonexistent", NULL, &image, NULL, &e), -1);
    assert_int_equal(e.code, ERR_IMAGE_PREPARE);
    assert_non_null(strstr(e.text, "/nonexistent"));
    assert_false(exists("images/tar%3A%2Fnonexistent"));
    assert_int_equal(store_notes(store)->len, 1);
    assert_non_null(strstr(store_notes(store)->items[0], "damaged record"));
    store_close(store);
}

static void test_store_publish_blob_without_unnamed_files(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct store *store = opened();
    for (int i = 0; i < 4; i++) { /* in a free place, of a file, of a folder, and as O_TMPFILE does it */
        auto_free char *path = store_path(store, "blobs/sha256", "digest"), *text = NULL;
        struct new_file file;
        struct stat s;
        assert_int_equal(new_file_make(store, "image-x", "blobs/sha256", i == 3, &file, &e), 0);
        assert_int_equal(write(file.fd, "hello", 5), 5);
        if (i == 2)
            assert_int_equal(unlink(path) | mkdir(path, 0755), 0);
        assert_int_equal(store_publish_blob(store, &file, "digest", &e), 0);
        new_file_done(store, &file);
        assert_int_equal(file_read(path, 100, &text, NULL, &e), 0);
        assert_string_equal(text, "hello");
        assert_int_equal(stat(path, &s), 0);
        assert_int_equal(s.st_mode & 0777, 0400);
    }
    store_close(store);
    store = opened();
    assert_int_equal(store_notes(store)->len, 1); /* nothing half-made, only the blob that no image uses */
    assert_non_null(strstr(store_notes(store)->items[0], "which no image uses"));
    store_close(store);
}

static void test_new_file_with_a_name_goes_with_its_maker(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct store *store = opened();
    struct new_file file;
    auto_close lock = -1;
    assert_int_equal(store_lock(store, "image-x", NULL, &lock, &e), 0);
    assert_int_equal(new_file_make(store, "image-x", "blobs/sha256", false, &file, &e), 0);
    store_close(opened());
    assert_int_equal(access(file.temporary, F_OK), 0);
    close(STEAL_FD(lock));
    store_close(opened());
    assert_int_not_equal(access(file.temporary, F_OK), 0);
    new_file_done(store, &file);
    store_close(store);
}

#define STORE_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
UNIT_MAIN(STORE_TEST(test_store_open_removes_what_nobody_makes), STORE_TEST(test_store_open_moves_a_file_in_the_way),
          STORE_TEST(test_store_write_file_leaves_no_temporary), STORE_TEST(test_store_lock_waits_for_the_holders_death),
          STORE_TEST(test_store_check_free_names_folder_and_numbers), STORE_TEST(test_hash_fd_counts_holes_as_zeros),
          STORE_TEST(test_disk_new_gives_an_empty_ext4), STORE_TEST(test_image_ensure_throws_damaged_records_away),
          STORE_TEST(test_store_publish_blob_without_unnamed_files), STORE_TEST(test_new_file_with_a_name_goes_with_its_maker))
