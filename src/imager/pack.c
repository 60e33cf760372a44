/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/pack.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define COPY_BLOCK (128 * KIB)

struct pack {
    struct archive *out;
    struct archive_entry_linkresolver *links;
    const struct pack_options *options;
    struct pack_summary summary;
    uint8_t block[COPY_BLOCK];
};

static int archive_failed(struct pack *p, const char *path, struct err *e)
{
    const char *text = archive_error_string(p->out);
    return err_set(e, ERR_SYSTEM, "%.500s: %.400s", path, text ? text : "cannot be packed");
}

/* Where the data at or after `at` begins; `at` itself when the file system cannot tell. */
static uint64_t next_data(int fd, uint64_t at, uint64_t size)
{
    off_t data = lseek(fd, (off_t)at, SEEK_DATA);
    if (data < 0)
        return errno == ENXIO ? size : at;
    return (uint64_t)data < size ? (uint64_t)data : size;
}

static int copy_content(struct pack *p, int fd, uint64_t size, const char *path, struct err *e)
{
    static const uint8_t zeros[COPY_BLOCK];
    uint64_t data = next_data(fd, 0, size);
    for (uint64_t done = 0; done < size;) {
        bool hole = done < data; /* its zeros are written, not read */
        uint64_t left = (hole ? data : size) - done;
        size_t want = left < sizeof p->block ? (size_t)left : sizeof p->block;
        ssize_t n = hole ? (ssize_t)want : pread(fd, p->block, want, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, errno, "read '%.500s'", path);
        if (n == 0)
            return err_set(e, ERR_SYSTEM, "'%.500s' became shorter while it was read", path);
        if (archive_write_data(p->out, hole ? zeros : p->block, (size_t)n) != n)
            return archive_failed(p, path, e);
        done += (uint64_t)n;
        if (!hole)
            data = next_data(fd, done, size);
    }
    p->summary.content_bytes += size;
    return 0;
}

static int add_xattrs(struct archive_entry *entry, int fd, const char *path, struct err *e)
{
    char names[XATTR_LIST_MAX];
    ssize_t len = flistxattr(fd, names, sizeof names);
    if (len < 0)
        return errno == ENOTSUP ? 0 : err_sys(e, errno, "list the attributes of '%.500s'", path);
    for (char *name = names; name < names + len; name += strlen(name) + 1) {
        char value[XATTR_LIST_MAX];
        ssize_t value_len = fgetxattr(fd, name, value, sizeof value);
        if (value_len < 0)
            return err_sys(e, errno, "read attribute %.100s of '%.500s'", name, path);
        archive_entry_xattr_add_entry(entry, name, value, (size_t)value_len);
    }
    return 0;
}

/* The data segments of a file with holes. */
static void add_segments(struct archive_entry *entry, int fd, off_t size)
{
    off_t at = lseek(fd, 0, SEEK_DATA), hole = lseek(fd, 0, SEEK_HOLE);
    if (hole < 0 || hole >= size || (at < 0 && errno != ENXIO)) {
        lseek(fd, 0, SEEK_SET); /* no hole, or a file system that cannot tell */
        return;
    }
    while (at >= 0 && at < size) {
        off_t end = lseek(fd, at, SEEK_HOLE);
        if (end < 0 || end > size)
            end = size;
        archive_entry_sparse_add_entry(entry, at, end - at);
        at = lseek(fd, end, SEEK_DATA);
    }
    archive_entry_sparse_add_entry(entry, size, 0);
    lseek(fd, 0, SEEK_SET);
}

static void make_exact(struct archive_entry *entry, int fd, const struct stat *s)
{
    archive_entry_unset_atime(entry);
    archive_entry_unset_ctime(entry);
    archive_entry_unset_birthtime(entry);
    if (S_ISREG(s->st_mode) && fd >= 0 && s->st_size > 0)
        add_segments(entry, fd, s->st_size);
}

/* Fills what the archive says of one file. fd: the open file or folder, -1 for anything else. */
static int describe(struct pack *p, struct archive_entry *entry, int dir_fd, const char *name, int fd, const struct stat *s,
                    const char *path, struct err *e)
{
    archive_entry_copy_stat(entry, s);
    archive_entry_set_pathname(entry, path);
    if (p->options->exact)
        make_exact(entry, fd, s);
    if (!p->options->keep_owners) {
        archive_entry_set_uid(entry, 0);
        archive_entry_set_gid(entry, 0);
    }
    if (S_ISLNK(s->st_mode)) {
        char target[PATH_MAX];
        ssize_t len = readlinkat(dir_fd, name, target, sizeof target - 1);
        if (len < 0)
            return err_sys(e, errno, "read the link '%.500s'", path);
        target[len] = 0;
        archive_entry_set_symlink(entry, target);
    }
    return p->options->keep_xattrs && fd >= 0 ? add_xattrs(entry, fd, path, e) : 0;
}

static int write_entry(struct pack *p, struct archive_entry *entry, int fd, const char *path, struct err *e)
{
    struct archive_entry *spare = NULL;
    archive_entry_linkify(p->links, &entry, &spare); /* a second name of a file becomes a link without content */
    if (archive_write_header(p->out, entry) < ARCHIVE_WARN)
        return archive_failed(p, path, e);
    if (S_ISREG(archive_entry_mode(entry)) && archive_entry_size(entry) > 0 && fd >= 0 &&
        copy_content(p, fd, (uint64_t)archive_entry_size(entry), path, e))
        return -1;
    if (archive_write_finish_entry(p->out) < ARCHIVE_WARN)
        return archive_failed(p, path, e);
    p->summary.entries++;
    return 0;
}

static int pack_one(struct pack *p, int dir_fd, const char *name, const char *path, unsigned depth, struct err *e);

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a folder, sorted: the same tree gives the same archive. */
static int list_folder(int fd, const char *path, struct strv *names, struct err *e)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    auto_dir folder = copy < 0 ? NULL : fdopendir(copy);
    if (!folder) {
        if (copy >= 0)
            close(copy);
        return err_sys(e, errno, "open folder '%.500s'", path);
    }
    errno = 0;
    for (struct dirent *item; (item = readdir(folder)); errno = 0)
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            strv_add(names, item->d_name);
    if (errno)
        return err_sys(e, errno, "read folder '%.500s'", path);
    if (names->len)
        qsort(names->items, names->len, sizeof *names->items, by_bytes);
    return 0;
}

static int pack_folder(struct pack *p, int fd, const char *path, unsigned depth, struct err *e)
{
    auto_strv names = {0};
    if (depth > PACK_DEPTH_MAX)
        return err_set(e, ERR_LIMIT, "'%.500s' is deeper than %u folders", path, PACK_DEPTH_MAX);
    if (list_folder(fd, path, &names, e))
        return -1;
    for (size_t i = 0; i < names.len; i++) {
        auto_free char *below = xasprintf("%s%s%s", path, *path ? "/" : "", names.items[i]);
        if (pack_one(p, fd, names.items[i], below, depth + 1, e))
            return -1;
    }
    return 0;
}

static int pack_one(struct pack *p, int dir_fd, const char *name, const char *path, unsigned depth, struct err *e)
{
    struct stat s;
    auto_close fd = -1;
    if (fstatat(dir_fd, name, &s, AT_SYMLINK_NOFOLLOW))
        return err_sys(e, errno, "look at '%.500s'", path);
    if (S_ISSOCK(s.st_mode)) {
        p->summary.left_out++;
        return 0;
    }
    if (S_ISREG(s.st_mode) || S_ISDIR(s.st_mode)) {
        fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (S_ISDIR(s.st_mode) ? O_DIRECTORY : 0));
        if (fd < 0 || fstat(fd, &s))
            return err_sys(e, errno, "open '%.500s'", path);
    }
    if (*path) {
        struct archive_entry *entry = archive_entry_new();
        if (!entry)
            return err_set(e, ERR_NOMEM, "no memory for '%.500s'", path);
        int result = describe(p, entry, dir_fd, name, fd, &s, path, e);
        if (!result)
            result = write_entry(p, entry, fd, path, e);
        archive_entry_free(entry);
        if (result)
            return -1;
    }
    return S_ISDIR(s.st_mode) ? pack_folder(p, fd, path, depth, e) : 0;
}

int pack_tree(int dir_fd, const char *name, const char *as, int out_fd, const struct pack_options *options,
              struct pack_summary *ret_summary, struct err *e)
{
    auto_free struct pack *p = xcalloc(1, sizeof *p);
    p->options = options;
    p->out = archive_write_new();
    p->links = archive_entry_linkresolver_new();
    int result = -1;
    if (!p->out || !p->links) {
        err_set(e, ERR_NOMEM, "no memory for an archive");
    } else if ((options->exact ? archive_write_set_format_pax(p->out) : archive_write_set_format_pax_restricted(p->out)) <
                   ARCHIVE_WARN ||
               archive_write_set_options(p->out, "hdrcharset=BINARY") < ARCHIVE_WARN ||
               archive_write_open_fd(p->out, out_fd) < ARCHIVE_WARN) {
        archive_failed(p, as, e);
    } else {
        archive_entry_linkresolver_set_strategy(p->links, ARCHIVE_FORMAT_TAR);
        result = pack_one(p, dir_fd, name, as, 0, e);
        if (!result && archive_write_close(p->out) < ARCHIVE_WARN)
            result = archive_failed(p, as, e);
    }
    archive_entry_linkresolver_free(p->links);
    archive_write_free(p->out);
    if (!result)
        *ret_summary = p->summary;
    return result;
}
