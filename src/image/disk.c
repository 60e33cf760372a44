/* SPDX-License-Identifier: Apache-2.0 */
/* The empty writable disk. mke2fs makes one per size, without journal and resize inode, tables lazily: about 150 KB of data
 * in a sparse file, whose data segments are copied for each machine in about a millisecond. */
#include "image/store_priv.h"

#include "base/file.h"
#include "base/path.h"
#include "image/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define DISK_FREE_MIN_MB 64 /* what a machine may need at least; its disk grows only as the guest writes */

static int make_template(struct store *store, unsigned size_mb, const char *thing, const char *name, struct err *e)
{
    auto_free char *program = path_find_in_path("mke2fs", e);
    if (!program)
        return err_wrap(e, "install the package e2fsprogs");
    auto_free char *work = store_scratch_folder(store, thing, e);
    if (!work)
        return -1;
    auto_free char *file = xasprintf("%s/disk", work);
    auto_close fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int failed = 0;
    if (fd < 0 || ftruncate(fd, (off_t)size_mb << 20)) {
        failed = err_sys(e, errno, "create '%s'", file);
    } else {
        const char *argv[] = {"mke2fs",
                              "-q",
                              "-F",
                              "-t",
                              "ext4",
                              "-b",
                              "4096",
                              "-O",
                              "^has_journal,^resize_inode",
                              "-m",
                              "0",
                              "-E",
                              "lazy_itable_init=1,nodiscard,root_owner=0:0",
                              file,
                              NULL};
        failed = tool_run("mke2fs", program, argv, work, TOOL_ISOLATED, NULL, NULL, e);
        auto_free char *path = store_path(store, "disks", name);
        failed = failed || store_seal(fd, e);
        if (!failed && (fsync(fd) || rename(file, path)))
            failed = err_sys(e, errno, "publish '%s'", path);
    }
    store_discard(store, work);
    return failed;
}

static int open_template(struct store *store, unsigned size_mb, int *ret_fd, struct err *e)
{
    auto_free char *name = xasprintf("%u.ext4", size_mb);
    auto_free char *thing = xasprintf("disk-%u", size_mb);
    auto_free char *path = store_path(store, "disks", name);
    struct stat s;
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &s) || s.st_size != (off_t)size_mb << 20 || !store_is_sealed(&s)) {
        auto_close lock = -1;
        if (store_lock(store, thing, NULL, &lock, e))
            return -1;
        if (fd >= 0)
            store_note(store, "the disk template '%s' was changed: made again", path);
        if (make_template(store, size_mb, thing, name, e))
            return err_wrap(e, "make an empty disk of %u MiB", size_mb);
        cleanup_close(&fd);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return err_sys(e, errno, "open '%s'", path);
    }
    *ret_fd = STEAL_FD(fd);
    return 0;
}

int disk_new(struct store *store, unsigned size_mb, int *ret_fd, struct err *e)
{
    auto_close template_fd = -1;
    if (store_check_free(store, (uint64_t)DISK_FREE_MIN_MB << 20, "a writable disk", e) ||
        open_template(store, size_mb, &template_fd, e))
        return -1;
    auto_close fd = store_unnamed_file(store, "scratch", e);
    if (fd < 0)
        return -1;
    if (file_copy_sparse(template_fd, fd, e))
        return err_wrap(e, "copy the empty disk");
    *ret_fd = STEAL_FD(fd);
    return 0;
}
