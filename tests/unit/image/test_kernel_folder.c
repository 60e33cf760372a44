/* SPDX-License-Identifier: Apache-2.0 */
#include "image/kernel_folder.h"

#include "base/file.h"

#include "unit.h"

static char folder[64];
static struct store *store;

static int set_up(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    snprintf(folder, sizeof folder, "/tmp/kernel-XXXXXX");
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

static char *put(const char *name, const char *content, size_t len)
{
    struct err e = ERR_INIT;
    char *path = xasprintf("%s/%s", folder, name);
    auto_free char *parent = xstrndup(path, (size_t)(strrchr(path, '/') - path));
    assert_int_equal(dir_make(parent, 0755, &e), 0);
    assert_int_equal(file_write_atomic(path, content, len, 0644, &e), 0);
    return path;
}

static char *put_elf(void)
{
    static const char elf[] = "\177ELF....Linux version 1.2.3-test (builder) #1";
    return put("in/vmlinux", elf, sizeof elf);
}

static void test_kernel_folder_make_takes_kernel_and_modules(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *kernel = put_elf(), *module = put("lib/modules/1.2.3-test/a/ext4.ko", "\177ELF", 4);
    auto_free char *modules = xasprintf("%s/lib/modules/1.2.3-test/", folder);
    auto_free char *made = xasprintf("%s/kernels/k", folder), *order_path = xasprintf("%s/modules/order", made), *order = NULL;
    assert_int_equal(kernel_folder_make(kernel, modules, made, NULL, &e), 0);
    assert_int_equal(file_read(order_path, 100, &order, NULL, &e), 0);
    assert_string_equal(order, "ext4\n");
    assert_true(kernel_is_whole(store, "k", order, true));
    assert_int_equal(access(module, F_OK), 0); /* it was copied, not taken away */
    auto_free char *copy = xasprintf("%s/modules/ext4.ko", made);
    assert_int_equal(file_write_atomic(copy, "\177ELF?", 5, 0644, &e), 0);
    assert_false(kernel_is_whole(store, "k", order, false));
}

static void test_kernel_folder_make_refuses_modules_of_another_release(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *kernel = put_elf(), *module = put("lib/modules/1.2.3/ext4.ko", "\177ELF", 4);
    auto_free char *modules = xasprintf("%s/lib/modules/1.2.3", folder), *made = xasprintf("%s/kernels/k", folder);
    assert_int_equal(kernel_folder_make(kernel, modules, made, NULL, &e), -1);
    assert_int_equal(e.code, ERR_ENVIRONMENT);
    assert_non_null(strstr(e.text, "is 1.2.3-test, its modules are those of"));
}

static void test_kernel_folder_make_refuses_what_is_no_kernel(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *kernel = put("in/text", "hello", 5), *made = xasprintf("%s/kernels/k", folder);
    assert_int_equal(kernel_folder_make(kernel, NULL, made, NULL, &e), -1);
    assert_non_null(strstr(e.text, "is not a Linux kernel"));
}

static void test_store_use_kernel_that_is_missing(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct kernel kernel;
    store_use_kernel(store, "/nonexistent/vmlinuz", NULL);
    assert_int_equal(kernel_ensure(store, NULL, &kernel, NULL, &e), -1);
    assert_int_equal(e.code, ERR_ENVIRONMENT);
    assert_non_null(strstr(e.text, "/nonexistent/vmlinuz"));
}

/* Whole kernels of these names; the first is the current one. */
static void put_kernels(const char *const *names)
{
    struct err e = ERR_INIT;
    auto_free char *kernel = put_elf(), *line = xasprintf("%s\n", names[0]);
    free(put("kernels/current", line, strlen(line)));
    for (size_t i = 0; names[i]; i++) {
        auto_free char *made = store_path(store, "kernels", names[i]);
        assert_int_equal(kernel_folder_make(kernel, NULL, made, NULL, &e), 0);
    }
}

static bool has_kernel(const char *name)
{
    auto_free char *path = store_path(store, "kernels", name);
    return access(path, F_OK) == 0;
}

static void prune(void)
{
    struct err e = ERR_INIT;
    auto_strv removed = {0};
    uint64_t freed;
    assert_int_equal(store_prune(store, 0, &removed, &freed, &e), 0);
}

static void test_store_collect_leaves_kernels(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    put_kernels((const char *const[]){"new", "old", NULL});
    assert_int_equal(store_collect(store, 1, &e), 0);
    assert_true(has_kernel("new") && has_kernel("old"));
    prune();
    assert_true(has_kernel("new") && !has_kernel("old"));
}

static void test_store_prune_leaves_a_kernel_that_is_being_opened(void **state)
{
    (void)state;
    struct kernel_found found = KERNEL_FOUND_INIT;
    put_kernels((const char *const[]){"new", "old", NULL});
    assert_true(kernel_find(store, "old", &found));
    prune();
    assert_true(has_kernel("old"));
    kernel_found_done(&found);
    prune();
    assert_false(has_kernel("old"));
}

static void test_kernel_prepared_release_is_the_configured_one(void **state)
{
    (void)state;
    struct err e = ERR_INIT, agent_missing = ERR_INIT;
    struct kernel kernel;
    put_kernels((const char *const[]){"new", "old", NULL});
    auto_free char *path = put_elf(), *current = kernel_prepared_release(store, &e);
    assert_string_equal(current, "new");
    store_use_kernel(store, path, NULL);
    assert_null(kernel_prepared_release(store, &e));
    assert_false(err_is_set(&e));
    if (kernel_ensure(store, NULL, &kernel, NULL, &agent_missing) == 0) /* its folder is made before the initramfs is */
        kernel_done(&kernel);
    auto_free char *configured = kernel_prepared_release(store, &e);
    assert_non_null(configured);
    assert_true(has_kernel(configured));
    assert_string_not_equal(configured, "new");
    prune();
    assert_true(has_kernel("new") && has_kernel(configured) && !has_kernel("old"));
    assert_int_equal(unlink(path), 0);
    assert_null(kernel_prepared_release(store, &e));
    assert_int_equal(e.code, ERR_ENVIRONMENT);
    prune(); /* which one is configured cannot be told */
    assert_true(has_kernel(configured));
}

#define STORE_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
UNIT_MAIN(STORE_TEST(test_kernel_folder_make_takes_kernel_and_modules),
          STORE_TEST(test_kernel_folder_make_refuses_modules_of_another_release),
          STORE_TEST(test_kernel_folder_make_refuses_what_is_no_kernel), STORE_TEST(test_store_use_kernel_that_is_missing),
          STORE_TEST(test_store_collect_leaves_kernels), STORE_TEST(test_store_prune_leaves_a_kernel_that_is_being_opened),
          STORE_TEST(test_kernel_prepared_release_is_the_configured_one))
