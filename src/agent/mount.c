/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/mount.h"

#include "agent/device.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define MODULES_DIR "/modules"
#define HARMLESS (MS_NOSUID | MS_NODEV | MS_NOEXEC)

struct mount_row {
    const char *source, *target, *type;
    unsigned long flags;
    const char *options;
};

/* A target that is mounted already (EBUSY) is as good. */
static int mount_one(const struct mount_row *row, struct err *e)
{
    if (mkdir(row->target, 0755) && errno != EEXIST && errno != EROFS)
        return err_sys_code(e, ERR_BOOT, errno, "make '%s'", row->target);
    if (mount(row->source, row->target, row->type, row->flags, row->options) && errno != EBUSY)
        return err_sys_code(e, ERR_BOOT, errno, "mount %s at '%s'", row->source, row->target);
    return 0;
}

int mount_kernel_files(struct err *e)
{
    static const struct mount_row rows[] = {
        {"dev", "/dev", "devtmpfs", MS_NOSUID, "mode=0755"},
        {"proc", "/proc", "proc", HARMLESS, NULL},
        {"sysfs", "/sys", "sysfs", HARMLESS, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (mount_one(&rows[i], e))
            return -1;
    return 0;
}

static void load_module(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, MODULES_DIR "/%.80s.ko", name);
    auto_close fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return; /* built in, or not wanted: what is really missing shows when it is used */
    if (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST)
        log_error("module %s: %s, ignoring", name, strerror(errno));
    unlink(path); /* the initramfs is memory */
}

void mount_load_modules(void)
{
    static const char usual[] = "virtio_ring\nvirtio\nvirtio_mmio\nvirtio_blk\noverlay\nvirtio_console\n"
                                "failover\nnet_failover\nvirtio_net\n";
    struct err e = ERR_INIT;
    auto_free char *order = NULL;
    if (file_read(MODULES_DIR "/order", SMALL_FILE_MAX, &order, NULL, &e))
        order = xstrdup(usual);
    char *rest = order;
    for (char *name; (name = strsep(&rest, "\n"));)
        if (*name)
            load_module(name);
    unlink(MODULES_DIR "/order");
    rmdir(MODULES_DIR);
}

static bool exists(void *path)
{
    return access(path, F_OK) == 0;
}

static int wait_for(const struct mount_row *row, struct err *e)
{
    char path[64];
    snprintf(path, sizeof path, "%s", row->source);
    if (!device_wait(exists, path, AGENT_DEVICE_WAIT_MS)) /* drivers probe while they load: it is nearly always there */
        return err_set(e, ERR_BOOT, "no device '%s' within %d ms", path, AGENT_DEVICE_WAIT_MS);
    return 0;
}

static int make_folder(const char *path, mode_t mode, struct err *e)
{
    if (mkdir(path, mode) && errno != EEXIST)
        return err_sys_code(e, ERR_BOOT, errno, "make '%s'", path);
    return 0;
}

static int mount_overlay(struct err *e)
{
    /* redirect_dir: a program may rename folders of the image, as on any file system */
    static const char *const options[] = {"lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work,redirect_dir=on",
                                          "lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work"};
    if (make_folder("/rw/upper", 0755, e) || make_folder("/rw/work", 0755, e) || make_folder("/new", 0755, e))
        return -1;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (mount("overlay", "/new", "overlay", 0, options[i]) == 0)
            return 0;
    return err_sys_code(e, ERR_BOOT, errno, "mount the overlay of image and writable disk");
}

static int move_into(const char *path, struct err *e)
{
    char target[64];
    snprintf(target, sizeof target, "/new%s", path);
    if (make_folder(target, 0755, e))
        return -1;
    if (mount(path, target, NULL, MS_MOVE, NULL))
        return err_sys_code(e, ERR_BOOT, errno, "move '%s'", path);
    return 0;
}

int mount_root(struct root *ret_root, struct err *e)
{
    static const struct mount_row image = {"/dev/vda", "/lower", "ext4", MS_RDONLY, "noload"};
    static const struct mount_row disk = {"/dev/vdb", "/rw", "ext4", MS_NOATIME, "discard,noinit_itable"};
    if (wait_for(&image, e) || mount_one(&image, e) || wait_for(&disk, e) || mount_one(&disk, e) || mount_overlay(e))
        return -1;
    auto_close upper = open(disk.target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (upper < 0)
        return err_sys_code(e, ERR_BOOT, errno, "open '%s'", disk.target);
    if (move_into("/dev", e) || move_into("/proc", e) || move_into("/sys", e))
        return -1;
    unlink("/init"); /* we run from it, nobody needs its name */
    if (chdir("/new") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
        return err_sys_code(e, ERR_BOOT, errno, "switch to the new root");
    ret_root->upper_dirfd = STEAL_FD(upper);
    return 0;
}

int mount_program_files(struct err *e)
{
    static const struct mount_row rows[] = {
        {"cgroup2", "/sys/fs/cgroup", "cgroup2", HARMLESS, NULL},
        {"devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
        {"tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"},
        {"tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755"},
    };
    static const char *const links[][2] = {{"/proc/self/fd", "/dev/fd"},
                                           {"/proc/self/fd/0", "/dev/stdin"},
                                           {"/proc/self/fd/1", "/dev/stdout"},
                                           {"/proc/self/fd/2", "/dev/stderr"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (mount_one(&rows[i], e))
            return -1;
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlink(links[i][0], links[i][1]) && errno != EEXIST)
            return err_sys_code(e, ERR_BOOT, errno, "make '%s'", links[i][1]);
    if (mkdir("/tmp", 01777) == 0)
        chmod("/tmp", 01777); /* past the umask; an image's own /tmp keeps its mode */
    mkdir("/run/lock", 01777);
    return 0;
}
