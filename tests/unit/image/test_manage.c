/* SPDX-License-Identifier: Apache-2.0 */
#include "image/store_priv.h"

#include "base/file.h"
#include "base/limits.h"

#include <fcntl.h>
#include <sys/file.h>

#include "unit.h"

static char folder[64];
static struct store *store;

static int set_up(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    snprintf(folder, sizeof folder, "/tmp/store-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    store = store_open(folder, &e);
    return store ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    store_close(store);
    return dir_remove(folder, &e);
}

/* A finished image of 1 MiB of one byte, last used at used_secs. Returns its file's path. */
static char *put_image(const char *name, char byte, int64_t used_secs)
{
    struct err e = ERR_INIT;
    struct record record = {.bytes = MIB};
    auto_free char *bytes = xmalloc(MIB);
    memset(bytes, byte, MIB);
    hash_bytes(bytes, MIB, record.digest);
    assert_int_equal(store_write_file(store, "x", "blobs/sha256", record.digest, bytes, MIB, &e), 0);
    char *path = store_path(store, "blobs/sha256", record.digest);
    const struct timespec times[2] = {{.tv_sec = used_secs}, {.tv_nsec = UTIME_OMIT}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(catalog_find(name, &record.recipe, &e), 0);
    auto_free char *text = record_format(&record), *file = catalog_file_name(name);
    assert_int_equal(store_write_file(store, "x", "images", file, text, strlen(text), &e), 0);
    record_done(&record);
    return path;
}

static void test_store_prune_removes_the_least_used(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *middle = put_image("tar:/b", 'b', 200), *oldest = put_image("tar:/a", 'a', 100);
    auto_free char *newest = put_image("tar:/c", 'c', 300);
    auto_strv removed = {0};
    uint64_t freed;
    assert_int_equal(store_prune(store, 2 * MIB + 64 * KIB, &removed, &freed, &e), 0);
    assert_int_equal(removed.len, 1);
    assert_non_null(strstr(removed.items[0], "tar:/a"));
    assert_true(freed >= MIB);
    assert_int_not_equal(access(oldest, F_OK), 0);
    assert_int_equal(access(middle, F_OK) | access(newest, F_OK), 0);
}

static void test_store_prune_keeps_what_is_leased(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *oldest = put_image("tar:/a", 'a', 100), *newest = put_image("tar:/b", 'b', 200);
    auto_close lease = open(oldest, O_RDONLY);
    assert_int_equal(flock(lease, LOCK_SH), 0);
    auto_strv removed = {0};
    uint64_t freed;
    assert_int_equal(store_prune(store, 0, &removed, &freed, &e), 0);
    assert_int_equal(removed.len, 1);
    assert_int_equal(access(oldest, F_OK), 0);
    assert_int_not_equal(access(newest, F_OK), 0);
}

static void test_store_prune_passes_an_image_that_is_being_prepared(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *path = put_image("tar:/a", 'a', 100), *file = catalog_file_name("tar:/a");
    auto_free char *thing = xasprintf("image-%s", file);
    auto_close lock = -1;
    assert_int_equal(store_lock(store, thing, NULL, &lock, &e), 0);
    auto_strv removed = {0}, again = {0};
    uint64_t freed;
    alarm(10); /* nobody gives the lock back */
    assert_int_equal(store_prune(store, 0, &removed, &freed, &e), 0);
    assert_int_equal(removed.len, 0);
    assert_int_equal(image_remove(store, "tar:/a", &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    alarm(0);
    assert_int_equal(access(path, F_OK), 0);
    close(STEAL_FD(lock));
    assert_int_equal(store_prune(store, 0, &again, &freed, &ERR_INIT), 0);
    assert_int_equal(again.len, 1);
}

static void test_image_remove_keeps_content_that_another_image_has(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *one = put_image("tar:/a", 'a', 100), *same = put_image("tar:/b", 'a', 100);
    assert_string_equal(one, same);
    assert_int_equal(image_remove(store, "tar:/a", &e), 0);
    assert_int_equal(access(one, F_OK), 0);
    struct image_list list;
    assert_int_equal(image_list(store, &list, &e), 0);
    assert_int_equal(list.len, 1);
    assert_string_equal(list.items[0].name, "tar:/b");
    assert_int_equal(list.items[0].bytes, MIB);
    assert_false(list.items[0].in_use);
    image_list_done(&list);
    assert_int_equal(image_remove(store, "tar:/b", &e), 0);
    assert_int_not_equal(access(one, F_OK), 0);
    assert_int_equal(image_remove(store, "tar:/b", &e), -1);
    assert_int_equal(e.code, ERR_IMAGE_ABSENT);
}

static void test_image_ensure_of_a_copied_store_reads_it_once(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *path = put_image("tar:/a", 'a', 100);
    assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0); /* as `cp` leaves it */
    struct image image;
    bool prepared = true;
    assert_int_equal(image_ensure(store, "tar:/a", NULL, &image, &prepared, &e), 0);
    assert_false(prepared);
    assert_int_equal(image.bytes, MIB);
    assert_int_equal(flock(image.fd, LOCK_SH | LOCK_NB), 0);
    struct stat s;
    assert_int_equal(fstat(image.fd, &s), 0);
    assert_true(store_is_sealed(&s));
    assert_int_equal(s.st_mode & 0777, 0400);
    image_done(&image);
}

static void test_store_verify_drops_a_changed_image(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *bad = put_image("tar:/a", 'a', 100), *good = put_image("tar:/b", 'b', 100);
    auto_close fd = open(bad, O_RDWR);
    assert_int_equal(pwrite(fd, "?", 1, 1000), 1);
    assert_int_equal(store_seal(fd, &e), 0);
    auto_strv findings = {0}, again = {0};
    assert_int_equal(store_verify(store, NULL, &findings, &e), 0);
    assert_int_equal(findings.len, 1);
    assert_non_null(strstr(findings.items[0], "tar:/a"));
    assert_int_not_equal(access(bad, F_OK), 0);
    assert_int_equal(access(good, F_OK), 0);
    assert_int_equal(store_verify(store, NULL, &again, &e), 0);
    assert_int_equal(again.len, 0);
}

static void test_store_configure_adds_names(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    static const char *const env[] = {"A=1", NULL};
    const struct image_custom customs[] = {{"mine", "python", env}, {"other", "tar:/x", NULL}};
    store_configure(store, customs, 2, 0);
    struct recipe r;
    assert_int_equal(store_find_recipe(store, "mine", &r, &e), 0);
    assert_string_equal(r.name, "mine");
    assert_non_null(strstr(r.source, "debian:bookworm+python3"));
    assert_string_equal(r.env.items[r.env.len - 1], "A=1");
    assert_int_equal(r.env.len, 4);
    recipe_done(&r);
    assert_int_equal(store_find_recipe(store, "third", &r, &e), -1);
    assert_int_equal(e.code, ERR_IMAGE_REFUSED);
}

#define STORE_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
UNIT_MAIN(STORE_TEST(test_store_prune_removes_the_least_used), STORE_TEST(test_store_prune_keeps_what_is_leased),
          STORE_TEST(test_store_prune_passes_an_image_that_is_being_prepared),
          STORE_TEST(test_image_remove_keeps_content_that_another_image_has),
          STORE_TEST(test_image_ensure_of_a_copied_store_reads_it_once), STORE_TEST(test_store_verify_drops_a_changed_image),
          STORE_TEST(test_store_configure_adds_names))
