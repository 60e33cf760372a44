/* SPDX-License-Identifier: Apache-2.0 */
#include "image/initramfs.h"

#include <string.h>
#include <sys/stat.h>

struct entry {
    const char *name;
    unsigned mode, major, minor, inode;
    const void *bytes;
    size_t len;
};

static int pad(struct buf *archive, struct err *e)
{
    static const char zeros[4];
    return buf_append(archive, zeros, (4 - archive->len % 4) % 4, e);
}

static int put(struct buf *archive, const struct entry *entry, struct err *e)
{
    size_t name_len = strlen(entry->name) + 1;
    /* magic, inode, mode, uid, gid, links, mtime, size, device 2x, rdevice 2x, name length, checksum */
    if (buf_appendf(archive, e, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", entry->inode, entry->mode, 0u, 0u,
                    S_ISDIR(entry->mode) ? 2u : 1u, 0u, (unsigned)entry->len, 0u, 0u, entry->major, entry->minor,
                    (unsigned)name_len, 0u))
        return -1;
    if (buf_append(archive, entry->name, name_len, e) || pad(archive, e))
        return -1;
    return entry->len && (buf_append(archive, entry->bytes, entry->len, e) || pad(archive, e)) ? -1 : 0;
}

/* Distinct numbers keep readers from taking entries for links of one file; the offset is one. */
static unsigned inode_at(const struct buf *archive)
{
    return (unsigned)archive->len / 4 + 1;
}

int initramfs_folder(struct buf *archive, const char *name, unsigned mode, struct err *e)
{
    return put(archive, &(struct entry){.name = name, .mode = S_IFDIR | mode, .inode = inode_at(archive)}, e);
}

int initramfs_file(struct buf *archive, const char *name, unsigned mode, const void *bytes, size_t len, struct err *e)
{
    if (len > UINT32_MAX)
        return err_set(e, ERR_LIMIT, "'%s' is too large for an initramfs", name);
    return put(archive,
               &(struct entry){.name = name, .mode = S_IFREG | mode, .inode = inode_at(archive), .bytes = bytes, .len = len}, e);
}

int initramfs_char_device(struct buf *archive, const char *name, unsigned mode, unsigned major, unsigned minor, struct err *e)
{
    return put(archive,
               &(struct entry){.name = name, .mode = S_IFCHR | mode, .major = major, .minor = minor, .inode = inode_at(archive)},
               e);
}

int initramfs_end(struct buf *archive, struct err *e)
{
    return put(archive, &(struct entry){.name = "TRAILER!!!"}, e);
}
