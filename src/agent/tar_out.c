/* SPDX-License-Identifier: Apache-2.0 */
/* Packing: a walk by descriptors that follows no link below the top. Sockets and devices are left out. A file that shrinks
 * while it is read is filled up with zeros, one that grows is cut, as tar does. */
#include "agent/tar.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"

#include <fcntl.h>
#include <search.h>
#include <string.h>
#include <sys/stat.h>

struct known_file {
    dev_t dev;
    ino_t ino;
    char *path; /* of its first entry */
};

struct packer {
    int fd;
    void *known; /* tree of files with several names */
    size_t known_count;
    struct tar_header header;
};

static int compare_known(const void *a, const void *b)
{
    const struct known_file *x = a, *y = b;
    if (x->dev != y->dev)
        return x->dev < y->dev ? -1 : 1;
    return x->ino < y->ino ? -1 : x->ino > y->ino;
}

static void free_known(void *node)
{
    struct known_file *file = node;
    free(file->path);
    free(file);
}

static int fail(struct err *e, const char *what, const char *path)
{
    int sys_errno = errno;
    enum err_code code = sys_errno == ENOENT                         ? ERR_FS_NOT_FOUND
                         : sys_errno == ENOTDIR                      ? ERR_FS_WRONG_KIND
                         : sys_errno == EACCES || sys_errno == EPERM ? ERR_FS_DENIED
                                                                     : ERR_FS_IO;
    return err_sys_code(e, code, sys_errno, "%s '%.500s'", what, path);
}

static int send_bytes(struct packer *p, const void *bytes, size_t len, struct err *e)
{
    if (fd_write_all(p->fd, bytes, len, e)) {
        err_recode(e, ERR_FS_IO);
        return err_wrap(e, "send the tar");
    }
    return 0;
}

static int send_header(struct packer *p, struct err *e)
{
    auto_buf out = BUF_INIT(8 * AGENT_TAR_PATH_MAX);
    return tar_header_encode(&out, &p->header, e) || send_bytes(p, buf_data(&out), out.len, e) ? -1 : 0;
}

/* True with header.link set when the file was packed under another name. */
static bool is_known(struct packer *p, const struct stat *status)
{
    struct known_file key = {.dev = status->st_dev, .ino = status->st_ino};
    if (status->st_nlink < 2)
        return false;
    struct known_file **found = tfind(&key, &p->known, compare_known);
    if (found) {
        snprintf(p->header.link, sizeof p->header.link, "%s", (*found)->path);
        return true;
    }
    struct known_file *file = p->known_count < AGENT_TAR_LINKS_MAX ? malloc(sizeof *file) : NULL;
    if (!file) /* too many: each name becomes a file of its own */
        return false;
    *file = key;
    file->path = strdup(p->header.path);
    if (!file->path || !tsearch(file, &p->known, compare_known))
        free_known(file);
    else
        p->known_count++;
    return false;
}

static int pack_bytes(struct packer *p, int fd, struct err *e)
{
    static uint8_t bytes[64 * KIB];
    uint64_t left = p->header.size + (TAR_BLOCK - p->header.size % TAR_BLOCK) % TAR_BLOCK, data = p->header.size;
    while (left) {
        size_t want = left < sizeof bytes ? (size_t)left : sizeof bytes;
        ssize_t n = 0;
        if (data) {
            n = fd_read(fd, bytes, data < want ? (size_t)data : want);
            if (n < 0)
                return fail(e, "read", p->header.path);
            data -= (uint64_t)n;
        }
        if (n == 0) {
            memset(bytes, 0, want);
            n = (ssize_t)want;
            data = data > want ? data - want : 0;
        }
        if (send_bytes(p, bytes, (size_t)n, e))
            return -1;
        left -= (uint64_t)n;
    }
    return 0;
}

static int pack_file(struct packer *p, int dirfd, const char *name, int flags, struct stat *status, struct err *e)
{
    if (is_known(p, status)) {
        p->header.type = '1';
        return send_header(p, e);
    }
    auto_close fd = openat(dirfd, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags);
    if (fd < 0 || fstat(fd, status))
        return fail(e, "open", p->header.path);
    if (!S_ISREG(status->st_mode))
        return err_set(e, ERR_FS_WRONG_KIND, "'%.500s' changed its kind while it was packed", p->header.path);
    p->header.type = '0';
    p->header.size = (uint64_t)status->st_size;
    return send_header(p, e) || pack_bytes(p, fd, e) ? -1 : 0;
}

/* The two recurse as deep as the folders are, at most AGENT_TAR_DEPTH_MAX. NOLINTBEGIN(misc-no-recursion) */
static int pack_entry(struct packer *p, int dirfd, const char *name, int flags, unsigned depth, struct err *e);

static int pack_folder(struct packer *p, int dirfd, const char *name, int flags, unsigned depth, struct err *e)
{
    size_t len = strlen(p->header.path);
    p->header.type = '5';
    if (depth >= AGENT_TAR_DEPTH_MAX)
        return err_set(e, ERR_FS_IO, "'%.500s' is more than %d folders deep", p->header.path, AGENT_TAR_DEPTH_MAX);
    int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    auto_dir dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return fail(e, "open the folder", p->header.path);
    if (send_header(p, e))
        return -1;
    struct dirent *entry;
    while ((errno = 0, entry = readdir(dir))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (len + 1 + strlen(entry->d_name) >= sizeof p->header.path)
            return err_set(e, ERR_FS_IO, "a path below '%.500s' is too long", p->header.path);
        snprintf(p->header.path + len, sizeof p->header.path - len, "/%s", entry->d_name);
        if (pack_entry(p, fd, entry->d_name, O_NOFOLLOW, depth + 1, e))
            return -1;
        p->header.path[len] = 0;
    }
    return errno ? fail(e, "read the folder", p->header.path) : 0;
}

static int pack_entry(struct packer *p, int dirfd, const char *name, int flags, unsigned depth, struct err *e)
{
    struct stat status;
    struct tar_header *h = &p->header;
    if (fstatat(dirfd, name, &status, flags ? AT_SYMLINK_NOFOLLOW : 0))
        return depth && errno == ENOENT ? 0 : fail(e, "look up", depth ? h->path : name); /* removed under us */
    h->link[0] = 0;
    h->size = 0;
    h->mode = status.st_mode & 07777;
    h->uid = status.st_uid;
    h->gid = status.st_gid;
    h->mtime = status.st_mtim.tv_sec;
    if (S_ISDIR(status.st_mode))
        return pack_folder(p, dirfd, name, flags, depth, e);
    if (S_ISREG(status.st_mode))
        return pack_file(p, dirfd, name, flags, &status, e);
    if (S_ISLNK(status.st_mode)) {
        ssize_t len = readlinkat(dirfd, name, h->link, sizeof h->link - 1);
        if (len < 0)
            return fail(e, "read the link", h->path);
        h->link[len] = 0;
        h->type = '2';
        return send_header(p, e);
    }
    if (S_ISFIFO(status.st_mode)) {
        h->type = '6';
        return send_header(p, e);
    }
    return depth ? 0 : err_set(e, ERR_FS_WRONG_KIND, "'%.500s' is neither a file nor a folder", name);
}

/* NOLINTEND(misc-no-recursion) */

int tar_pack(int fd, const char *path, const char *name, struct err *e)
{
    static const uint8_t end[2 * TAR_BLOCK];
    auto_free struct packer *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_FS_IO, "no memory to pack a tar");
    p->fd = fd;
    const char *slash = strrchr(path, '/');
    const char *top = name && *name ? name : slash && slash[1] ? slash + 1 : ".";
    if (strlen(top) >= sizeof p->header.path)
        return err_set(e, ERR_FS_REQUEST, "the name for the tar's top entry is too long");
    snprintf(p->header.path, sizeof p->header.path, "%s", top);
    int result = pack_entry(p, AT_FDCWD, path, 0, 0, e);
    if (!result)
        result = send_bytes(p, end, sizeof end, e);
    tdestroy(p->known, free_known);
    return result;
}
