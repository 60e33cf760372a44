/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/tree.h"

#include "base/limits.h"

#include <stdio.h>

#include "unit.h"

static uint32_t add(struct tree *t, uint32_t folder, const char *name, uint32_t inode)
{
    struct err e = ERR_INIT;
    uint32_t node = TREE_NONE;
    assert_int_equal(tree_add(t, folder, name, strlen(name), inode, 1, &node, &e), 0);
    return node;
}

static uint32_t find(const struct tree *t, uint32_t folder, const char *name)
{
    return tree_find(t, folder, name, strlen(name));
}

static void test_tree_find_tells_folders_apart(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct tree t;
    assert_int_equal(tree_init(&t, 2, 2, &e), 0);
    uint32_t a = add(&t, TREE_ROOT, "a", 11), inner = add(&t, a, "a", 12);
    assert_int_equal(find(&t, TREE_ROOT, "a"), a);
    assert_int_equal(find(&t, a, "a"), inner);
    assert_int_equal(find(&t, inner, "a"), TREE_NONE);
    assert_int_equal(find(&t, TREE_ROOT, "ab"), TREE_NONE);
    tree_done(&t);
}

static void test_tree_find_in_a_large_folder(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct tree t;
    char name[32];
    assert_int_equal(tree_init(&t, 2, 2, &e), 0);
    for (uint32_t i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "file-%u", i);
        add(&t, TREE_ROOT, name, 100 + i);
    }
    for (uint32_t i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "file-%u", i);
        uint32_t node = find(&t, TREE_ROOT, name);
        assert_int_equal(t.nodes[node].inode, 100 + i);
    }
    tree_done(&t);
}

static void test_tree_remove_hides_and_add_revives(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct tree t;
    assert_int_equal(tree_init(&t, 2, 2, &e), 0);
    uint32_t a = add(&t, TREE_ROOT, "a", 11);
    add(&t, TREE_ROOT, "b", 12);
    tree_remove(&t, a);
    assert_int_equal(find(&t, TREE_ROOT, "a"), TREE_NONE);
    uint32_t first = tree_first_child(&t, TREE_ROOT);
    assert_int_equal(t.nodes[first].inode, 12);
    assert_int_equal(tree_next_sibling(&t, first), TREE_NONE);
    assert_int_equal(add(&t, TREE_ROOT, "a", 13), a);
    assert_int_equal(t.nodes[find(&t, TREE_ROOT, "a")].inode, 13);
    tree_done(&t);
}

static void test_tree_add_refuses_too_many_bytes_of_names(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct tree t;
    char name[IMAGE_NAME_MAX];
    memset(name, 'x', sizeof name);
    assert_int_equal(tree_init(&t, 2, 2, &e), 0);
    uint32_t node, i = 0;
    int failed = 0;
    for (; !failed && i < IMAGE_ENTRIES_MAX; i++) {
        memcpy(name, &i, sizeof i);
        failed = tree_add(&t, TREE_ROOT, name, sizeof name, 11 + i, 1, &node, &e);
    }
    assert_int_equal(e.code, ERR_LIMIT);
    assert_non_null(strstr(e.text, "IMAGE_NAMES_BYTES_MAX"));
    assert_in_range(i, IMAGE_NAMES_BYTES_MAX / 257, IMAGE_NAMES_BYTES_MAX / 257 + 2);
    tree_done(&t);
}

UNIT_MAIN(cmocka_unit_test(test_tree_find_tells_folders_apart), cmocka_unit_test(test_tree_find_in_a_large_folder),
          cmocka_unit_test(test_tree_remove_hides_and_add_revives),
          cmocka_unit_test(test_tree_add_refuses_too_many_bytes_of_names))
