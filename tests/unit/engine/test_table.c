/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/table.h"

#include "base/alloc.h"

#include <stdio.h>
#include <stdlib.h>

#include "unit.h"

struct item {
    struct table_entry entry;
    char key[16];
};

static void test_find_after_growing_and_removing(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    struct table table;
    struct item *items = xcalloc(COUNT, sizeof *items);
    table_init(&table);
    for (int i = 0; i < COUNT; i++) {
        snprintf(items[i].key, sizeof items[i].key, "k%d", i);
        table_add(&table, &items[i].entry, items[i].key);
    }
    for (int i = 0; i < COUNT; i += 2)
        table_remove(&table, &items[i].entry);
    for (int i = 0; i < COUNT; i++) {
        struct table_entry *found = table_find(&table, items[i].key);
        assert_ptr_equal(found, i % 2 ? &items[i].entry : NULL);
    }
    size_t walked = 0;
    for (struct table_entry *entry = table_next(&table, NULL); entry; entry = table_next(&table, entry))
        walked++;
    assert_int_equal(walked, COUNT / 2);
    assert_null(table_find(&table, "other"));
    for (int i = 1; i < COUNT; i += 2)
        table_remove(&table, &items[i].entry);
    table_done(&table);
    free(items);
}

static void test_list_keeps_order_and_removes_twice(void **state)
{
    (void)state;
    struct list head, a, b, c;
    list_init(&head);
    list_add_last(&head, &a);
    list_add_last(&head, &b);
    list_add_last(&head, &c);
    list_remove(&b);
    list_remove(&b);
    assert_ptr_equal(head.next, &a);
    assert_ptr_equal(a.next, &c);
    list_remove(&a);
    list_remove(&c);
    assert_true(list_is_empty(&head));
}

UNIT_MAIN(cmocka_unit_test(test_find_after_growing_and_removing), cmocka_unit_test(test_list_keeps_order_and_removes_twice))
