/* SPDX-License-Identifier: Apache-2.0 */
/* Unpacking. Every name is opened relative to the target folder's descriptor with openat2(RESOLVE_BENEATH), so the kernel
 * refuses what would lead out of it: "..", absolute links, links that a former entry planted. The stream must end with the
 * archive's own end mark: one that just stops was cut, and is a failure. */
#include "agent/tar.h"

#include "base/cleanup.h"
#include "base/file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

struct unpacker {
    int fd, target_fd;
    struct tar_header header;
    struct tar_overrides overrides;
};

enum err_code tar_code_of_errno(int sys_errno)
{
    switch (sys_errno) {
    case ENOENT:
        return ERR_FS_NOT_FOUND;
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
        return ERR_FS_WRONG_KIND;
    case EEXIST:
        return ERR_FS_EXISTS;
    case ENOTEMPTY:
        return ERR_FS_NOT_EMPTY;
    case EACCES:
    case EPERM:
    case EROFS:
        return ERR_FS_DENIED;
    case EXDEV:
        return ERR_FS_REQUEST;
    default:
        return ERR_FS_IO;
    }
}

static int fail(struct err *e, const char *what, const char *path)
{
    int sys_errno = errno;
    if (sys_errno == EXDEV)
        return err_set(e, ERR_FS_REQUEST, "'%.500s' leads out of the target folder", path);
    return err_sys_code(e, tar_code_of_errno(sys_errno), sys_errno, "%s '%.500s'", what, path);
}

static int read_exactly(struct unpacker *u, void *bytes, size_t len, struct err *e)
{
    uint8_t *at = bytes;
    while (len) {
        ssize_t n = fd_read(u->fd, at, len);
        if (n < 0)
            return err_sys_code(e, ERR_FS_IO, errno, "read the tar");
        if (n == 0)
            return err_set(e, ERR_FS_UPLOAD, "the tar was cut off before its end");
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

static int open_beneath(int dirfd, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, dirfd, path, &how, sizeof how);
}

/* The folder that holds the entry, missing ones made, and the last part of the path. NULL name: the target itself. */
static int open_parent(struct unpacker *u, char *path, const char **ret_name, struct err *e)
{
    size_t len = strlen(path);
    while (len && path[len - 1] == '/')
        path[--len] = 0;
    auto_close dirfd = fcntl(u->target_fd, F_DUPFD_CLOEXEC, 3);
    if (dirfd < 0)
        return fail(e, "open", path);
    char *part = path + strspn(path, "/");
    for (;;) {
        char *slash = strchr(part, '/');
        if (strcmp(part, "..") == 0 || strncmp(part, "../", 3) == 0)
            return err_set(e, ERR_FS_REQUEST, "'..' in the path '%.500s' of a tar", path);
        if (!slash)
            break;
        *slash = 0;
        if (*part && strcmp(part, ".") != 0) {
            /* from the target, not from dirfd: a link inside the target may point anywhere in it */
            int next = open_beneath(u->target_fd, path + strspn(path, "/"), O_PATH | O_DIRECTORY);
            if (next < 0 && errno == ENOENT && mkdirat(dirfd, part, 0755) == 0)
                next = open_beneath(u->target_fd, path + strspn(path, "/"), O_PATH | O_DIRECTORY);
            if (next < 0)
                return fail(e, "open the folder", path);
            close(dirfd);
            dirfd = next;
        }
        *slash = '/';
        part = slash + 1 + strspn(slash + 1, "/");
    }
    *ret_name = *part && strcmp(part, ".") != 0 ? part : NULL;
    return STEAL_FD(dirfd);
}

/* Nothing is ever written through a name that is there: it is removed, unless it is a folder. */
static int make_room(int dirfd, const char *name, const char *path, struct err *e)
{
    if (unlinkat(dirfd, name, 0) && errno != ENOENT)
        return fail(e, "replace", path);
    return 0;
}

static int unpack_body(struct unpacker *u, int fd, struct err *e)
{
    static uint8_t bytes[64 * KIB];
    uint64_t left = u->header.size, padding = (TAR_BLOCK - left % TAR_BLOCK) % TAR_BLOCK;
    while (left) {
        size_t len = left < sizeof bytes ? (size_t)left : sizeof bytes;
        if (read_exactly(u, bytes, len, e))
            return -1;
        if (fd >= 0 && fd_write_all(fd, bytes, len, e)) {
            err_recode(e, tar_code_of_errno(e->sys_errno));
            return err_wrap(e, "write '%.300s'", u->header.path);
        }
        left -= len;
    }
    return read_exactly(u, bytes, (size_t)padding, e);
}

static int unpack_file(struct unpacker *u, int dirfd, const char *name, struct err *e)
{
    const char *path = u->header.path;
    if (make_room(dirfd, name, path, e))
        return -1;
    auto_close fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail(e, "create", path);
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = (time_t)u->header.mtime}};
    if (unpack_body(u, fd, e)) {
        unlinkat(dirfd, name, 0); /* half a file would look like a whole one */
        return -1;
    }
    if (fchmod(fd, u->header.mode) || futimens(fd, times))
        return fail(e, "set the mode of", path);
    return 0;
}

static int unpack_folder(struct unpacker *u, int dirfd, const char *name, struct err *e)
{
    char inside[AGENT_TAR_PATH_MAX];
    if (mkdirat(dirfd, name, 0700) && errno != EEXIST)
        return fail(e, "make the folder", u->header.path);
    snprintf(inside, sizeof inside, "%s", u->header.path + strspn(u->header.path, "/"));
    auto_close fd = open_beneath(u->target_fd, inside, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fail(e, "open the folder", u->header.path);
    if (fchmod(fd, u->header.mode))
        return fail(e, "set the mode of", u->header.path);
    return 0;
}

static int unpack_hard_link(struct unpacker *u, int dirfd, const char *name, struct err *e)
{
    const char *from = NULL;
    auto_close from_fd = open_parent(u, u->header.link, &from, e);
    if (from_fd < 0)
        return -1;
    struct stat a, b;
    if (from && fstatat(from_fd, from, &a, AT_SYMLINK_NOFOLLOW) == 0 && fstatat(dirfd, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
        a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        return 0; /* already the same file: making room would remove it */
    if (make_room(dirfd, name, u->header.path, e))
        return -1;
    if (linkat(from_fd, from ? from : ".", dirfd, name, 0))
        return fail(e, "link", u->header.path);
    return 0;
}

static int unpack_entry(struct unpacker *u, struct err *e)
{
    const char *name = NULL;
    auto_close dirfd = open_parent(u, u->header.path, &name, e);
    if (dirfd < 0)
        return -1;
    if (!name) /* "./": the target keeps its own mode */
        return unpack_body(u, -1, e);
    switch (u->header.type) {
    case '0':
        return unpack_file(u, dirfd, name, e);
    case '1':
        return unpack_hard_link(u, dirfd, name, e);
    case '2':
        if (make_room(dirfd, name, u->header.path, e))
            return -1;
        return symlinkat(u->header.link, dirfd, name) ? fail(e, "make the link", u->header.path) : 0;
    case '5':
        return unpack_folder(u, dirfd, name, e);
    case '6':
        if (make_room(dirfd, name, u->header.path, e))
            return -1;
        return mkfifoat(dirfd, name, u->header.mode) ? fail(e, "make the FIFO", u->header.path) : 0;
    default:
        return err_set(e, ERR_FS_REQUEST, "'%.500s' is of the kind '%c', which is not taken", u->header.path, u->header.type);
    }
}

static int take_extension(struct unpacker *u, struct err *e)
{
    if (u->header.size > AGENT_TAR_EXTENSION_MAX)
        return err_set(e, ERR_FS_REQUEST, "a tar record of %llu bytes", (unsigned long long)u->header.size);
    uint8_t padding[TAR_BLOCK];
    size_t len = (size_t)u->header.size;
    auto_free char *body = malloc(len + 1);
    if (!body)
        return err_set(e, ERR_FS_IO, "no memory for a tar record");
    if (read_exactly(u, body, len, e) || read_exactly(u, padding, (TAR_BLOCK - len % TAR_BLOCK) % TAR_BLOCK, e))
        return -1;
    return tar_extension_decode(u->header.type, body, len, &u->overrides, e);
}

static int unpack_all(struct unpacker *u, struct err *e)
{
    uint8_t block[TAR_BLOCK];
    for (;;) {
        if (read_exactly(u, block, sizeof block, e))
            return -1;
        int got = tar_header_decode(block, &u->header, e);
        if (got <= 0)
            return got;
        if (strchr("xgLK", u->header.type)) {
            if (take_extension(u, e))
                return -1;
            continue;
        }
        tar_overrides_apply(&u->overrides, &u->header);
        if (unpack_entry(u, e))
            return -1;
        u->overrides = (struct tar_overrides){0};
    }
}

static int read_to_end(struct unpacker *u, struct err *e)
{
    uint8_t rest[4 * KIB]; /* archives are padded to a record of 10 KiB */
    ssize_t n;
    while ((n = fd_read(u->fd, rest, sizeof rest)) > 0)
        continue;
    return n < 0 ? err_sys_code(e, ERR_FS_IO, errno, "read the tar") : 0;
}

int tar_unpack(int fd, const char *path, bool make_parents, struct err *e)
{
    if (make_parents && dir_make(path, 0755, e)) {
        err_recode(e, tar_code_of_errno(e->sys_errno));
        return -1;
    }
    auto_close target = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (target < 0)
        return fail(e, "open the folder", path);
    auto_free struct unpacker *u = calloc(1, sizeof *u);
    if (!u)
        return err_set(e, ERR_FS_IO, "no memory to unpack a tar");
    u->fd = fd;
    u->target_fd = target;
    if (unpack_all(u, e) || read_to_end(u, e))
        return -1;
    if (syncfs(target)) /* what is acknowledged is on the disk */
        return fail(e, "write to the disk of", path);
    return 0;
}
