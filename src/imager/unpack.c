/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/unpack.h"

#include "base/limits.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#define READ_BLOCK (128 * KIB)

/* Without owner, ACL and flags: what a guest says about those means nothing here. */
#define EXTRACT_FLAGS                                                                                                            \
    (ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_UNLINK | ARCHIVE_EXTRACT_SECURE_SYMLINKS |                    \
     ARCHIVE_EXTRACT_SECURE_NODOTDOT | ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS | ARCHIVE_EXTRACT_SPARSE)

struct unpack {
    struct archive *in, *out;
    const char *name;
    uint64_t names_bytes;
    struct unpack_summary summary;
};

void unpack_warm_up(void)
{
    struct archive *in = archive_read_new(), *out = archive_write_disk_new();
    if (in)
        archive_read_support_format_tar(in);
    archive_read_free(in);
    archive_write_free(out);
}

static int fail(struct archive *a, enum err_code code, const char *entry, struct err *e)
{
    const char *text = archive_error_string(a);
    int number = archive_errno(a);
    if (number == ENOSPC || number == EDQUOT)
        code = ERR_ENVIRONMENT;
    text = text ? text : "the archive cannot be read";
    return number > 0 ? err_sys_code(e, code, number, "%.300s: %.400s", entry, text)
                      : err_set(e, code, "%.300s: %.400s", entry, text);
}

static bool is_ours(const struct unpack *u, const char *path)
{
    size_t len = strlen(u->name);
    return strncmp(path, u->name, len) == 0 && (path[len] == 0 || path[len] == '/');
}

static int copy_content(struct unpack *u, const char *path, struct err *e)
{
    const void *block;
    size_t len;
    la_int64_t at;
    int status;
    while ((status = archive_read_data_block(u->in, &block, &len, &at)) == ARCHIVE_OK) {
        if (archive_write_data_block(u->out, block, len, at) < ARCHIVE_OK)
            return fail(u->out, ERR_SYSTEM, path, e);
        u->summary.content_bytes += len;
    }
    return status == ARCHIVE_EOF ? 0 : fail(u->in, ERR_PROTOCOL, path, e);
}

static int make_entry(struct unpack *u, struct archive_entry *entry, struct err *e)
{
    const char *path = archive_entry_pathname(entry), *target = archive_entry_hardlink(entry);
    if (!path || !is_ours(u, path) || (target && !is_ours(u, target)))
        return err_set(e, ERR_PROTOCOL, "the guest sent '%.300s', which is not part of '%.300s'", path ? path : "", u->name);
    if (++u->summary.entries > UNPACK_ENTRIES_MAX)
        return err_set(e, ERR_LIMIT, "more than %u files", UNPACK_ENTRIES_MAX);
    u->names_bytes += strlen(path) + (target ? strlen(target) : 0);
    if (u->names_bytes > UNPACK_NAMES_MAX)
        return err_set(e, ERR_LIMIT, "more than %u bytes of file names", UNPACK_NAMES_MAX);
    mode_t type = archive_entry_filetype(entry);
    if (type == AE_IFCHR || type == AE_IFBLK || type == AE_IFSOCK) {
        u->summary.left_out++;
        return 0;
    }
    archive_entry_set_perm(entry, archive_entry_perm(entry) & 01777);
    if (archive_write_header(u->out, entry) < ARCHIVE_WARN)
        return fail(u->out, ERR_SYSTEM, path, e);
    if (!target && archive_entry_size(entry) > 0 && copy_content(u, path, e))
        return -1;
    return archive_write_finish_entry(u->out) < ARCHIVE_WARN ? fail(u->out, ERR_SYSTEM, path, e) : 0;
}

static int make_entries(struct unpack *u, struct err *e)
{
    struct archive_entry *entry;
    for (;;) {
        int status = archive_read_next_header(u->in, &entry);
        if (status == ARCHIVE_EOF)
            break;
        if (status < ARCHIVE_WARN)
            return fail(u->in, ERR_PROTOCOL, "the guest's archive", e);
        if (make_entry(u, entry, e))
            return -1;
    }
    if (archive_write_close(u->out) < ARCHIVE_WARN)
        return fail(u->out, ERR_SYSTEM, u->name, e);
    return u->summary.entries ? 0 : err_set(e, ERR_FS_NOT_FOUND, "the guest sent nothing for '%.300s'", u->name);
}

int unpack_tar(int fd, const char *name, struct unpack_summary *ret_summary, struct err *e)
{
    struct unpack u = {.in = archive_read_new(), .out = archive_write_disk_new(), .name = name};
    int result = -1;
    if (!u.in || !u.out)
        err_set(e, ERR_NOMEM, "no memory for an archive");
    else if (archive_read_support_format_tar(u.in) < ARCHIVE_WARN ||
             archive_write_disk_set_options(u.out, EXTRACT_FLAGS) < ARCHIVE_WARN ||
             archive_read_open_fd(u.in, fd, READ_BLOCK) < ARCHIVE_WARN)
        fail(u.in, ERR_PROTOCOL, "the guest's archive", e);
    else
        result = make_entries(&u, e);
    archive_read_free(u.in);
    archive_write_free(u.out);
    if (!result)
        *ret_summary = u.summary;
    return result;
}
