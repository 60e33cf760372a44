/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/tar.h"

#include "base/check.h"
#include "base/file.h"
#include "base/limits.h"
#include "imager/acl.h"

#include <archive.h>
#include <errno.h>
#include <iconv.h>
#include <string.h>
#include <sys/stat.h>

#define READ_BYTES 65536
#define REPORT_BYTES MIB

struct input {
    int fd, read_errno;
    void (*on_input)(uint64_t bytes);
    uint64_t bytes, reported;
    uint8_t buffer[READ_BYTES];
    uint8_t tail[512]; /* the last bytes read: an uncompressed archive ends in zeros, a cut one rarely does */
};

struct job {
    struct archive *archive;
    struct ext4 *image;
    struct input input;
    struct tar_summary summary;
};

/* libarchive converts pax names through iconv; the converter's tables are read from disk once. */
void tar_warm_up(void)
{
    iconv_t converter = iconv_open("ANSI_X3.4-1968", "UTF-8");
    if (converter != (iconv_t)-1)
        iconv_close(converter);
}

static void keep_tail(struct input *in, const uint8_t *bytes, size_t len)
{
    size_t keep = len < sizeof in->tail ? len : sizeof in->tail;
    memmove(in->tail, in->tail + keep, sizeof in->tail - keep);
    memcpy(in->tail + sizeof in->tail - keep, bytes + len - keep, keep);
}

static la_ssize_t read_input(struct archive *archive, void *context, const void **ret_bytes)
{
    struct input *in = context;
    ssize_t n = fd_read(in->fd, in->buffer, sizeof in->buffer);
    if (n < 0) {
        in->read_errno = errno;
        archive_set_error(archive, errno, "read the archive");
        return -1;
    }
    in->bytes += (uint64_t)n;
    if (n)
        keep_tail(in, in->buffer, (size_t)n);
    if (in->on_input && (in->bytes - in->reported >= REPORT_BYTES || n == 0)) {
        in->reported = in->bytes;
        in->on_input(in->bytes);
    }
    *ret_bytes = in->buffer;
    return n;
}

static int archive_failed(struct job *job, struct err *e)
{
    const char *text = archive_error_string(job->archive);
    if (job->input.read_errno)
        return err_sys(e, job->input.read_errno, "read the archive");
    return err_set(e, ERR_INVALID, "the archive is damaged: %s", text ? text : "no reason given");
}

/* An entry's name for messages: control and non-ASCII bytes as \xNN. */
static const char *printable(const char *name)
{
    static char text[200];
    size_t used = 0;
    const uint8_t *at = (const uint8_t *)(name ? name : "(no name)");
    for (; *at && used + 8 < sizeof text; at++)
        used += (size_t)snprintf(text + used, sizeof text - used, *at < 0x20 || *at >= 0x7f ? "\\x%02x" : "%c", *at);
    snprintf(text + used, sizeof text - used, "%s", *at ? "..." : "");
    return text;
}

static int owner_of(int64_t id, const char *what, uint32_t *ret_id, struct err *e)
{
    if (id < 0 || id > UINT32_MAX - 1)
        return err_set(e, ERR_LIMIT, "%s %lld does not fit into 32 bits", what, (long long)id);
    *ret_id = (uint32_t)id;
    return 0;
}

static int attrs_of(struct archive_entry *entry, struct ext4_attrs *ret_attrs, struct err *e)
{
    struct ext4_attrs attrs = {.mode = archive_entry_perm(entry) & 07777};
    if (owner_of(archive_entry_uid(entry), "user", &attrs.uid, e) || owner_of(archive_entry_gid(entry), "group", &attrs.gid, e))
        return -1;
    attrs.mtime = (struct ext4_time){archive_entry_mtime(entry), (uint32_t)archive_entry_mtime_nsec(entry) % 1000000000u};
    attrs.atime = attrs.mtime;
    if (archive_entry_atime_is_set(entry))
        attrs.atime = (struct ext4_time){archive_entry_atime(entry), (uint32_t)archive_entry_atime_nsec(entry) % 1000000000u};
    *ret_attrs = attrs;
    return 0;
}

static int write_content(struct job *job, struct archive_entry *entry, const struct ext4_place *place,
                         const struct ext4_attrs *attrs, uint32_t *ret_inode, struct err *e)
{
    if (archive_entry_size(entry) < 0)
        return err_set(e, ERR_INVALID, "a size below zero");
    if (ext4_file_begin(job->image, place, attrs, (uint64_t)archive_entry_size(entry), ret_inode, e))
        return -1;
    for (;;) {
        const void *bytes;
        size_t len;
        la_int64_t offset;
        int r = archive_read_data_block(job->archive, &bytes, &len, &offset);
        if (r == ARCHIVE_EOF)
            break;
        if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
            return archive_failed(job, e);
        if (len && (offset < 0 || ext4_file_write(job->image, bytes, len, (uint64_t)offset, e)))
            return offset < 0 ? err_set(e, ERR_INVALID, "content before its start") : -1;
        job->summary.content_bytes += len;
    }
    return ext4_file_end(job->image, e);
}

static int write_acl(struct job *job, struct archive_entry *entry, int type, const char *name, uint32_t inode, struct err *e)
{
    uint8_t bytes[ACL_BYTES_MAX];
    int len = acl_to_xattr(entry, type, bytes);
    if (len < 0)
        job->summary.acls_skipped++;
    return len > 0 ? ext4_xattr(job->image, inode, name, bytes, (size_t)len, e) : 0;
}

static int write_xattrs(struct job *job, struct archive_entry *entry, uint32_t inode, struct err *e)
{
    const char *name;
    const void *value;
    size_t len, all = 0;
    archive_entry_xattr_reset(entry);
    while (archive_entry_xattr_next(entry, &name, &value, &len) == ARCHIVE_OK) {
        all += strlen(name) + len;
        if (all > IMAGE_XATTRS_BYTES_MAX)
            return err_set(e, ERR_LIMIT, "attributes of more than %u bytes (IMAGE_XATTRS_BYTES_MAX)",
                           (unsigned)IMAGE_XATTRS_BYTES_MAX);
        if (ext4_xattr(job->image, inode, name, value, len, e))
            return -1;
    }
    if (write_acl(job, entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, "system.posix_acl_access", inode, e))
        return -1;
    return write_acl(job, entry, ARCHIVE_ENTRY_ACL_TYPE_DEFAULT, "system.posix_acl_default", inode, e);
}

static int write_by_kind(struct job *job, struct archive_entry *entry, const struct ext4_place *place, struct err *e)
{
    struct ext4_attrs attrs;
    uint32_t inode;
    int failed;
    if (attrs_of(entry, &attrs, e))
        return -1;
    switch (archive_entry_filetype(entry)) {
    case AE_IFREG:
        failed = write_content(job, entry, place, &attrs, &inode, e);
        break;
    case AE_IFDIR:
        failed = ext4_folder(job->image, place, &attrs, &inode, e);
        break;
    case AE_IFLNK: {
        const char *target = archive_entry_symlink(entry);
        failed = ext4_symlink(job->image, place, &attrs, target ? target : "", &inode, e);
        break;
    }
    case AE_IFCHR:
    case AE_IFBLK:
    case AE_IFIFO:
        failed = ext4_special(job->image, place, &attrs, archive_entry_filetype(entry), (uint32_t)archive_entry_rdevmajor(entry),
                              (uint32_t)archive_entry_rdevminor(entry), &inode, e);
        break;
    case AE_IFSOCK:
        job->summary.sockets_skipped++;
        return 0;
    default:
        return err_set(e, ERR_INVALID, "an unknown kind of entry");
    }
    return failed ? -1 : write_xattrs(job, entry, inode, e);
}

static int write_entry(struct job *job, struct archive_entry *entry, struct err *e)
{
    const char *path = archive_entry_pathname(entry), *target = archive_entry_hardlink(entry);
    struct ext4_time when = {archive_entry_mtime(entry), 0};
    struct ext4_place place, of;
    if (!path || !*path)
        return err_set(e, ERR_INVALID, "an entry without a name");
    if (ext4_place(job->image, path, when, &place, e))
        return -1;
    if (!target)
        return write_by_kind(job, entry, &place, e);
    if (ext4_place(job->image, target, when, &of, e) || ext4_hard_link(job->image, &place, &of, e))
        return err_wrap(e, "link to '%s'", printable(target));
    return 0;
}

/* A writer must not get EPIPE for its padding; an archive cut at an entry's border must not pass as whole. */
static int read_to_end(struct job *job, bool compressed, struct err *e)
{
    struct input *in = &job->input;
    uint64_t end = in->bytes + IMAGE_TRAILER_BYTES_MAX;
    const void *bytes;
    la_ssize_t n;
    while ((n = read_input(job->archive, in, &bytes)) > 0)
        if (in->bytes > end)
            return err_set(e, ERR_LIMIT, "more than %u bytes after the archive's end (IMAGE_TRAILER_BYTES_MAX)",
                           (unsigned)IMAGE_TRAILER_BYTES_MAX);
    if (n < 0)
        return archive_failed(job, e);
    static const uint8_t zeros[sizeof in->tail];
    if (!compressed && memcmp(in->tail, zeros, sizeof zeros) != 0)
        return err_set(e, ERR_INVALID, "the archive is cut: it has no end mark");
    job->summary.input_bytes = in->bytes;
    return 0;
}

static int read_entries(struct job *job, struct err *e)
{
    for (;;) {
        struct archive_entry *entry;
        int r = archive_read_next_header(job->archive, &entry);
        if (r == ARCHIVE_EOF)
            return 0;
        /* a warning is about names that are not UTF-8 (taken as bytes) or fields we do not use */
        if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
            return archive_failed(job, e);
        if (++job->summary.entries > IMAGE_ENTRIES_MAX)
            return err_set(e, ERR_LIMIT, "more than %u entries (IMAGE_ENTRIES_MAX)", (unsigned)IMAGE_ENTRIES_MAX);
        if (write_entry(job, entry, e))
            return err_wrap(e, "entry '%s'", printable(archive_entry_pathname(entry)));
    }
}

int tar_to_image(int fd, bool compressed, struct ext4 *image, void (*on_input)(uint64_t bytes), struct tar_summary *ret_summary,
                 struct err *e)
{
    static struct job job; /* one per process; the buffers are too large for the stack */
    job = (struct job){.image = image, .input = {.fd = fd, .on_input = on_input}};
    memset(job.input.tail, 0xff, sizeof job.input.tail);
    job.archive = archive_read_new();
    CHECK(job.archive);
    archive_read_support_format_tar(job.archive);
    if (compressed) {
        archive_read_support_filter_gzip(job.archive);
        archive_read_support_filter_xz(job.archive);
        archive_read_support_filter_zstd(job.archive);
    }
    int failed = archive_read_open(job.archive, &job.input, NULL, read_input, NULL) != ARCHIVE_OK
                     ? archive_failed(&job, e)
                     : read_entries(&job, e) || read_to_end(&job, compressed, e);
    archive_read_free(job.archive);
    if (failed)
        return -1;
    *ret_summary = job.summary;
    return 0;
}
