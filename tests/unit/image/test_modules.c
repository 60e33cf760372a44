/* SPDX-License-Identifier: Apache-2.0 */
#include "image/modules.h"

#include "base/cleanup.h"
#include "base/file.h"

#include "unit.h"

static void put_module(const char *folder, const char *name, const char *depends)
{
    struct err e = ERR_INIT;
    char bytes[200];
    auto_free char *path = xasprintf("%s/%s", folder, name);
    int len = snprintf(bytes, sizeof bytes, "\177ELF..license=GPL%cdepends=%s%cname=x", 0, depends, 0);
    assert_int_equal(file_write_atomic(path, bytes, (size_t)len, 0644, &e), 0);
}

static void test_modules_choose_puts_needed_ones_first(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char root[] = "/tmp/modules-XXXXXX";
    assert_non_null(mkdtemp(root));
    auto_free char *deep = xasprintf("%s/kernel/drivers", root);
    assert_int_equal(dir_make(deep, 0755, &e), 0);
    put_module(root, "virtio_blk.ko", "virtio,virtio-x");
    put_module(deep, "virtio.ko", "");
    put_module(deep, "virtio_ring.ko", "virtio");
    put_module(deep, "net_failover.ko", "failover");
    put_module(deep, "failover.ko", "");
    put_module(deep, "unwanted.ko", "");
    auto_strv paths = {0};
    assert_int_equal(modules_choose(root, &paths, &e), 0);
    static const char *const want[] = {"virtio", "virtio_ring", "virtio_blk", "failover", "net_failover"};
    assert_int_equal(paths.len, 5);
    for (size_t i = 0; i < 5; i++) {
        auto_free char *name = module_name(paths.items[i]);
        assert_string_equal(name, want[i]);
    }
    assert_int_equal(dir_remove(root, &e), 0);
}

static void test_modules_choose_refuses_an_empty_folder(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char root[] = "/tmp/modules-XXXXXX";
    assert_non_null(mkdtemp(root));
    struct strv paths;
    assert_int_equal(modules_choose(root, &paths, &e), -1);
    assert_int_equal(e.code, ERR_ENVIRONMENT);
    err_clear(&e);
    assert_int_equal(dir_remove(root, &e), 0);
}

static void test_module_name_is_the_kernels(void **state)
{
    (void)state;
    auto_free char *name = module_name("/lib/modules/1/kernel/crc32c-intel.ko.xz");
    assert_string_equal(name, "crc32c_intel");
}

static void test_module_depends_at_the_very_end(void **state)
{
    (void)state;
    auto_free char *unended = module_depends("x\0depends=ab", 12), *none = module_depends("depends=x", 9);
    assert_string_equal(unended, "ab");
    assert_string_equal(none, "");
}

UNIT_MAIN(cmocka_unit_test(test_modules_choose_puts_needed_ones_first),
          cmocka_unit_test(test_modules_choose_refuses_an_empty_folder), cmocka_unit_test(test_module_name_is_the_kernels),
          cmocka_unit_test(test_module_depends_at_the_very_end))
