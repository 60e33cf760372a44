/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target once over each file of the folders named as arguments: the kept corpus as an ordinary test. Each input is
 * copied to the heap at its exact size, so that a sanitizer sees a read past its end. An empty corpus is a failure. */
#include "fuzz.h"

#include "base/cleanup.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int replay_file(int dirfd, const char *name)
{
    auto_close fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) {
        perror(name);
        return -1;
    }
    size_t len = (size_t)status.st_size;
    auto_free uint8_t *bytes = malloc(len > 0 ? len : 1);
    if (!bytes || read(fd, bytes, len) != status.st_size) {
        perror(name);
        return -1;
    }
    LLVMFuzzerTestOneInput(bytes, len);
    return 0;
}

static int replay_folder(const char *path)
{
    auto_dir dir = opendir(path);
    if (!dir) {
        perror(path);
        return -1;
    }
    unsigned count = 0;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (entry->d_name[0] == '.')
            continue;
        fprintf(stderr, "%s/%s\n", path, entry->d_name); /* in front: says which one it was when the process dies */
        if (replay_file(dirfd(dir), entry->d_name) != 0)
            return -1;
        count++;
    }
    if (count == 0) {
        fprintf(stderr, "%s: no corpus\n", path);
        return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int status = argc > 1 ? 0 : 2;
    for (int i = 1; i < argc; i++)
        if (replay_folder(argv[i]) != 0)
            status = 1;
    return status;
}
