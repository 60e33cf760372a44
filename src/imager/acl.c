/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/acl.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct acl_entry {
    uint16_t tag, perm;
    uint32_t id;
};

static uint16_t tag_of(int tag)
{
    switch (tag) {
    case ARCHIVE_ENTRY_ACL_USER_OBJ:
        return 0x01;
    case ARCHIVE_ENTRY_ACL_USER:
        return 0x02;
    case ARCHIVE_ENTRY_ACL_GROUP_OBJ:
        return 0x04;
    case ARCHIVE_ENTRY_ACL_GROUP:
        return 0x08;
    case ARCHIVE_ENTRY_ACL_MASK:
        return 0x10;
    case ARCHIVE_ENTRY_ACL_OTHER:
        return 0x20;
    default:
        return 0;
    }
}

/* The kernel wants them by tag, then by number. */
static int compare(const void *a, const void *b)
{
    const struct acl_entry *x = a, *y = b;
    if (x->tag != y->tag)
        return x->tag < y->tag ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

int acl_to_xattr(struct archive_entry *entry, int type, uint8_t bytes[ACL_BYTES_MAX])
{
    struct acl_entry list[ACL_ENTRIES_MAX];
    int len = 0;
    if (archive_entry_acl_reset(entry, type) <= 0)
        return 0;
    int got_type, permset, tag, id;
    const char *name;
    while (archive_entry_acl_next(entry, type, &got_type, &permset, &tag, &id, &name) == ARCHIVE_OK) {
        uint16_t kind = tag_of(tag);
        bool named = kind == 0x02 || kind == 0x08;
        if (got_type != type)
            continue;
        if (!kind || len == ACL_ENTRIES_MAX || (named && id < 0))
            return -1;
        list[len++] = (struct acl_entry){.tag = kind, .perm = (uint16_t)(permset & 7), .id = named ? (uint32_t)id : UINT32_MAX};
    }
    if (len == 0 || (type == ARCHIVE_ENTRY_ACL_TYPE_ACCESS && len <= 3))
        return 0;
    qsort(list, (size_t)len, sizeof list[0], compare);
    static const uint8_t version[4] = {2};
    memcpy(bytes, version, 4);
    for (int i = 0; i < len; i++) {
        memcpy(bytes + 4 + 8 * i, &list[i].tag, 2);
        memcpy(bytes + 6 + 8 * i, &list[i].perm, 2);
        memcpy(bytes + 8 + 8 * i, &list[i].id, 4);
    }
    return 4 + 8 * len;
}
