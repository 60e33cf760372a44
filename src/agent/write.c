/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/write.h"

#include "agent/tar.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static int copy_to_end(int from_fd, int to_fd, struct err *e)
{
    static char piece[64 * KIB];
    for (;;) {
        ssize_t n = fd_read(from_fd, piece, sizeof piece);
        if (n < 0)
            return err_sys_code(e, ERR_FS_IO, errno, "read the content");
        if (n == 0)
            return 0;
        for (ssize_t done = 0; done < n;) {
            ssize_t wrote = fd_write(to_fd, piece + done, (size_t)(n - done));
            if (wrote < 0)
                return err_sys_code(e, ERR_FS_IO, errno, "write");
            done += wrote;
        }
    }
}

static int fill(int from_fd, int to_fd, mode_t mode, struct err *e)
{
    if (copy_to_end(from_fd, to_fd, e))
        return -1;
    if (fchmod(to_fd, mode) || fsync(to_fd))
        return err_sys_code(e, ERR_FS_IO, errno, "sync");
    return 0;
}

static int open_folder(const char *path, bool make_parents, int *ret_fd, struct err *e)
{
    struct err inner = ERR_INIT;
    if (make_parents && dir_make(path, 0755, &inner))
        return err_sys_code(e, tar_code_of_errno(inner.sys_errno), inner.sys_errno, "make folder '%.500s'", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys_code(e, tar_code_of_errno(errno), errno, "parent not found: folder '%.500s'", path);
    *ret_fd = fd;
    return 0;
}

/* An unnamed file where the file system has them: then a worker that is killed while bytes come leaves nothing. */
static int open_temporary(int folder_fd, const char *temporary, bool *ret_named)
{
    int fd = openat(folder_fd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd;
    *ret_named = true;
    return openat(folder_fd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

static int give_name(int fd, int folder_fd, const char *temporary)
{
    char source[32];
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, source, folder_fd, temporary, AT_SYMLINK_FOLLOW);
}

int file_replace(int fd, const char *path, mode_t mode, bool make_parents, struct err *e)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    auto_free char *folder = slash == path || !slash ? xstrdup("/") : xstrndup(path, (size_t)(slash - path));
    auto_close folder_fd = -1;
    struct stat s;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return err_set(e, ERR_FS_REQUEST, "'%.500s' names no file", path);
    if (open_folder(folder, make_parents, &folder_fd, e))
        return -1;
    if (fstatat(folder_fd, name, &s, 0) == 0 && !S_ISREG(s.st_mode))
        return err_set(e, ERR_FS_WRONG_KIND, "'%.500s' is not a regular file", path);
    auto_free char *temporary = xasprintf(".%.200s.%d.part", name, (int)getpid());
    bool named = false;
    auto_close to = open_temporary(folder_fd, temporary, &named);
    if (to < 0)
        return err_sys_code(e, tar_code_of_errno(errno), errno, "create a file in '%.500s'", folder);
    if (fill(fd, to, mode, e) == 0 && (named || give_name(to, folder_fd, temporary) == 0) &&
        renameat(folder_fd, temporary, folder_fd, name) == 0)
        return 0;
    int failure = errno;
    unlinkat(folder_fd, temporary, 0);
    return err_is_set(e) ? err_wrap(e, "'%.500s'", path) : err_sys_code(e, tar_code_of_errno(failure), failure, "'%.500s'", path);
}
