/* SPDX-License-Identifier: Apache-2.0 */
/* iii-sandbox-image: makes one image and ends. It meets bytes from anywhere, so it has nothing but its descriptors:
 *   0  the archive     1  a line of JSON now and then: {"input":BYTES} as progress, {"done":{..}} at the end
 *   2  on failure one line: the wire code, a blank, the reason     3  the image: an empty regular file, read-write
 * and locks itself down before the first byte is read. Usage: iii-sandbox-image tar|tar-compressed */
#include "base/err.h"
#include "base/file.h"
#include "base/limits.h"
#include "imager/ext4.h"
#include "imager/tar.h"
#include "jail/jail.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IMAGE_FD 3

static const char *const SYSCALLS[] = {
    "read",           "write",        "pread64",      "pwrite64",      "lseek",     "fallocate", "ftruncate",
    "fstat",          "newfstatat",   "mmap",         "munmap",        "mremap",    "brk",       "madvise",
    "mprotect",       "exit",         "exit_group",   "futex",         "getpid",    "gettid",    "tgkill",
    "rt_sigprocmask", "rt_sigaction", "rt_sigreturn", "clock_gettime", "getrandom", "close",     NULL,
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

static int run(int argc, char **argv, struct err *e)
{
    if (argc != 2 || (strcmp(argv[1], "tar") && strcmp(argv[1], "tar-compressed")))
        return err_set(e, ERR_USAGE, "usage: iii-sandbox-image tar|tar-compressed");
    unsigned missing;
    tar_warm_up();
    if (jail_lockdown(SYSCALLS, &missing, e))
        return -1;
    return make_image(!strcmp(argv[1], "tar-compressed"), e);
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
