/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include "base/alloc.h"
#include "base/cleanup.h"

#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>

ssize_t fd_read(int fd, void *bytes, size_t len)
{
    ssize_t n;
    do
        n = read(fd, bytes, len);
    while (n < 0 && errno == EINTR);
    return n;
}

ssize_t fd_write(int fd, const void *bytes, size_t len)
{
    ssize_t n;
    do
        n = write(fd, bytes, len);
    while (n < 0 && errno == EINTR);
    return n;
}

int fd_write_all(int fd, const void *bytes, size_t len, struct err *e)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = fd_write(fd, (const char *)bytes + done, len - done);
        if (n < 0)
            return err_sys(e, errno, "write");
        done += (size_t)n;
    }
    return 0;
}

int fd_read_all(int fd, void *bytes, size_t len, struct err *e)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = fd_read(fd, (char *)bytes + done, len - done);
        if (n < 0)
            return err_sys(e, errno, "read");
        if (n == 0)
            return err_set(e, ERR_SYSTEM, "read: ended after %zu of %zu bytes", done, len);
        done += (size_t)n;
    }
    return 0;
}

static int set_flag(int fd, int get, int set, int flag, bool on, struct err *e)
{
    int flags = fcntl(fd, get);
    if (flags < 0)
        return err_sys(e, errno, "read flags of descriptor %d", fd);
    if (fcntl(fd, set, on ? flags | flag : flags & ~flag) < 0)
        return err_sys(e, errno, "set flags of descriptor %d", fd);
    return 0;
}

int fd_set_nonblocking(int fd, bool on, struct err *e)
{
    return set_flag(fd, F_GETFL, F_SETFL, O_NONBLOCK, on, e);
}

int fd_set_cloexec(int fd, bool on, struct err *e)
{
    return set_flag(fd, F_GETFD, F_SETFD, FD_CLOEXEC, on, e);
}

int fd_read_to_end(int fd, const char *name, size_t len_max, char **ret_text, size_t *ret_len, struct err *e)
{
    auto_buf content = BUF_INIT(len_max + 1);
    for (;;) {
        uint8_t *room;
        size_t want = content.len + 4096 <= len_max + 1 ? 4096 : len_max + 1 - content.len;
        if (!want)
            return err_set(e, ERR_LIMIT, "'%s' is larger than %zu bytes", name, len_max);
        if (buf_reserve(&content, want, &room, e))
            return err_wrap(e, "read '%s'", name);
        ssize_t n = fd_read(fd, room, want);
        if (n < 0)
            return err_sys(e, errno, "read '%s'", name);
        if (n == 0)
            break;
        buf_commit(&content, (size_t)n);
    }
    char *text = malloc(content.len + 1);
    if (!text)
        return err_set(e, ERR_NOMEM, "no memory for '%s'", name);
    memcpy(text, buf_data(&content), content.len);
    text[content.len] = 0;
    *ret_text = text;
    if (ret_len)
        *ret_len = content.len;
    return 0;
}

int file_read(const char *path, size_t len_max, char **ret_text, size_t *ret_len, struct err *e)
{
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, errno, "open '%s'", path);
    return fd_read_to_end(fd, path, len_max, ret_text, ret_len, e);
}

static int write_and_sync(int fd, const void *bytes, size_t len, mode_t mode, struct err *e)
{
    if (fd_write_all(fd, bytes, len, e))
        return -1;
    if (fchmod(fd, mode) || fsync(fd))
        return err_sys(e, errno, "sync");
    return 0;
}

int file_write_atomic(const char *path, const void *bytes, size_t len, mode_t mode, struct err *e)
{
    auto_free char *temporary = xasprintf("%s.XXXXXX", path);
    auto_close fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, errno, "create '%s'", temporary);
    if (write_and_sync(fd, bytes, len, mode, e)) {
        unlink(temporary);
        return err_wrap(e, "write '%s'", path);
    }
    if (rename(temporary, path)) {
        int failure = errno;
        unlink(temporary);
        return err_sys(e, failure, "rename to '%s'", path);
    }
    return 0;
}

static int copy_segment(int from_fd, int to_fd, off_t at, off_t end, struct err *e)
{
    bool kernel_copy = true;
    while (at < end) {
        off_t in = at, out = at;
        ssize_t n = -1;
        if (kernel_copy) {
            n = copy_file_range(from_fd, &in, to_fd, &out, (size_t)(end - at), 0);
            if (n <= 0)
                kernel_copy = false; /* another file system (EXDEV) or an old kernel */
        }
        if (!kernel_copy) {
            char piece[65536];
            size_t want = (size_t)(end - at) < sizeof piece ? (size_t)(end - at) : sizeof piece;
            ssize_t got = pread(from_fd, piece, want, at);
            if (got <= 0)
                return got < 0 ? err_sys(e, errno, "read") : err_set(e, ERR_SYSTEM, "read: the file shrank");
            n = pwrite(to_fd, piece, (size_t)got, at);
            if (n < 0)
                return err_sys(e, errno, "write");
        }
        at += n;
    }
    return 0;
}

int file_copy_sparse(int from_fd, int to_fd, struct err *e)
{
    struct stat s;
    if (fstat(from_fd, &s))
        return err_sys(e, errno, "stat");
    if (ftruncate(to_fd, s.st_size))
        return err_sys(e, errno, "set size to %lld bytes", (long long)s.st_size);
    for (off_t at = 0; at < s.st_size;) {
        off_t data = lseek(from_fd, at, SEEK_DATA);
        if (data < 0)
            return errno == ENXIO ? 0 : err_sys(e, errno, "find data");
        off_t hole = lseek(from_fd, data, SEEK_HOLE);
        if (hole < 0)
            return err_sys(e, errno, "find hole");
        if (copy_segment(from_fd, to_fd, data, hole, e))
            return -1;
        at = hole;
    }
    return 0;
}

int dir_make(const char *path, mode_t mode, struct err *e)
{
    auto_free char *partial = xstrdup(path);
    for (char *at = partial + 1; *partial; at++) {
        if (*at != '/' && *at)
            continue;
        char kept = *at;
        *at = 0;
        if (mkdir(partial, mode) && errno != EEXIST)
            return err_sys(e, errno, "make folder '%s'", partial);
        *at = kept;
        if (!kept)
            break;
    }
    struct stat s;
    if (stat(path, &s))
        return err_sys(e, errno, "make folder '%s'", path);
    if (!S_ISDIR(s.st_mode))
        return err_sys(e, ENOTDIR, "make folder '%s'", path);
    return 0;
}

static int remove_entry(const char *path, const struct stat *s, int type, struct FTW *place)
{
    (void)s;
    (void)type;
    (void)place;
    return remove(path);
}

int dir_remove(const char *path, struct err *e)
{
    if (nftw(path, remove_entry, 32, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        return err_sys(e, errno, "remove '%s'", path);
    return 0;
}
