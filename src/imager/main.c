/* SPDX-License-Identifier: Apache-2.0 */
/* iii-sandbox-image: makes one image and ends. It meets bytes from anywhere, so it has nothing but its descriptors:
 *   0  the archive     1  a line of JSON now and then: {"input":BYTES} as progress, {"done":{..}} at the end
 *   2  on failure one line: the wire code, a blank, the reason     3  the image: an empty regular file, read-write
 * and locks itself down before the first byte is read. Two more ways move a user's files in and out of a guest, locked into
 * the folder on descriptor 3: pack writes one entry of it as a tar to 1 (pack-image: all of it, exactly, for an image), unpack
 * makes one entry of it from the tar on 0. Usage: iii-sandbox-image tar|tar-compressed | pack NAME AS | pack-image | unpack NAME
 */
#include "base/err.h"
#include "base/file.h"
#include "base/limits.h"
#include "imager/ext4.h"
#include "imager/pack.h"
#include "imager/tar.h"
#include "imager/unpack.h"
#include "jail/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IMAGE_FD 3

static const char *const syscalls_allowed[] = {
    "read",           "write",        "pread64",      "pwrite64",      "lseek",   "fallocate", "ftruncate",
    "fstat",          "newfstatat",   "mmap",         "munmap",        "mremap",  "brk",       "madvise",
    "mprotect",       "exit",         "exit_group",   "futex",         "getpid",  "gettid",    "tgkill",
    "rt_sigprocmask", "rt_sigaction", "rt_sigreturn", "clock_gettime", "sysinfo", /* of qsort */
    "getrandom",      "close",        NULL,
};

static const char *const file_syscalls_allowed[] = {
    "read",         "write",         "pread64",   "lseek",     "ftruncate",  "fstat",      "newfstatat",     "stat",
    "lstat",        "statx",         "open",      "openat",    "close",      "mkdir",      "mkdirat",        "rmdir",
    "unlink",       "unlinkat",      "symlink",   "symlinkat", "link",       "linkat",     "mknod",          "mknodat",
    "chmod",        "fchmod",        "fchmodat",  "utimensat", "umask",      "getdents64", "readlink",       "readlinkat",
    "fchdir",       "chdir",         "fcntl",     "dup",       "flistxattr", "fgetxattr",  "getuid",         "geteuid",
    "getgid",       "getegid",       "mmap",      "munmap",    "mremap",     "brk",        "madvise",        "mprotect",
    "exit",         "exit_group",    "futex",     "getpid",    "gettid",     "tgkill",     "rt_sigprocmask", "rt_sigaction",
    "rt_sigreturn", "clock_gettime", "getrandom", "sysinfo",   "fstatfs",    "statfs",     "prlimit64",      NULL,
};

/* A reader that went away does not matter here: the one that started us holds the image. */
static void report(const char *line)
{
    struct err e = ERR_INIT;
    if (fd_write_all(STDOUT_FILENO, line, strlen(line), &e))
        return;
}

static void report_input(uint64_t bytes)
{
    char line[64];
    snprintf(line, sizeof line, "{\"input\":%llu}\n", (unsigned long long)bytes);
    report(line);
}

static int make_image(bool compressed, struct err *e)
{
    struct stat s;
    if (fstat(IMAGE_FD, &s))
        return err_sys(e, errno, "the image on descriptor %d", IMAGE_FD);
    if (!S_ISREG(s.st_mode) || s.st_size)
        return err_set(e, ERR_USAGE, "descriptor %d is not an empty file", IMAGE_FD);
    struct ext4 *image = ext4_new(IMAGE_FD, IMAGE_BYTES_MAX, e);
    if (!image)
        return -1;
    struct tar_summary sum;
    uint64_t bytes;
    int failed = tar_to_image(STDIN_FILENO, compressed, image, report_input, &sum, e) || ext4_finish(image, &bytes, e);
    ext4_free(image);
    if (failed)
        return -1;
    char line[512];
    snprintf(line, sizeof line,
             "{\"done\":{\"entries\":%llu,\"content_bytes\":%llu,\"input_bytes\":%llu,\"image_bytes\":%llu,"
             "\"sockets_skipped\":%llu,\"acls_skipped\":%llu}}\n",
             (unsigned long long)sum.entries, (unsigned long long)sum.content_bytes, (unsigned long long)sum.input_bytes,
             (unsigned long long)bytes, (unsigned long long)sum.sockets_skipped, (unsigned long long)sum.acls_skipped);
    report(line);
    return 0;
}

static int lock_into_folder(struct err *e)
{
    unsigned missing;
    unpack_warm_up();
    return jail_lockdown_into(IMAGE_FD, file_syscalls_allowed, &missing, e);
}

static int pack(const char *name, const char *as, const struct pack_options *options, struct err *e)
{
    struct pack_summary summary;
    if (lock_into_folder(e))
        return -1;
    int folder = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return err_sys(e, errno, "open the folder");
    return pack_tree(folder, name, as, STDOUT_FILENO, options, &summary, e);
}

static int unpack(const char *name, struct err *e)
{
    struct unpack_summary summary;
    if (lock_into_folder(e))
        return -1;
    return unpack_tar(STDIN_FILENO, name, &summary, e);
}

static int image(bool compressed, struct err *e)
{
    unsigned missing;
    tar_warm_up();
    if (jail_lockdown(syscalls_allowed, &missing, e))
        return -1;
    return make_image(compressed, e);
}

static int run(int argc, char **argv, struct err *e)
{
    if (argc == 2 && strcmp(argv[1], "tar") == 0)
        return image(false, e);
    if (argc == 2 && strcmp(argv[1], "tar-compressed") == 0)
        return image(true, e);
    if (argc == 4 && strcmp(argv[1], "pack") == 0)
        return pack(argv[2], argv[3], &(struct pack_options){.keep_owners = false}, e);
    if (argc == 2 && strcmp(argv[1], "pack-image") == 0)
        return pack(".", ".", &(struct pack_options){.keep_owners = true, .keep_xattrs = true, .exact = true}, e);
    if (argc == 3 && strcmp(argv[1], "unpack") == 0)
        return unpack(argv[2], e);
    return err_set(e, ERR_USAGE, "usage: iii-sandbox-image tar|tar-compressed | pack NAME AS | pack-image | unpack NAME");
}

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;
    if (run(argc, argv, &e) == 0)
        return 0;
    char line[sizeof e.text + 64];
    snprintf(line, sizeof line, "%s %s\n", err_code_name(e.code), e.text);
    return fd_write(STDERR_FILENO, line, strlen(line)) < 0 ? 2 : 1;
}
