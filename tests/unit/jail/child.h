/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the probe program in a jail and returns what it said. */
#pragma once

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "jail/jail.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "unit.h"

static char *folder, *probe_path;

/* A copy where every user may run it, wherever the build is. */
__attribute__((unused)) static int copy_probe(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    folder = xstrdup("/tmp/iii-test-jail-XXXXXX");
    if (!mkdtemp(folder) || chmod(folder, 0755))
        return -1;
    probe_path = xasprintf("%s/probe", folder);
    auto_close from = open(JAIL_PROBE, O_RDONLY | O_CLOEXEC);
    auto_close to = open(probe_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    if (from < 0 || to < 0 || file_copy_sparse(from, to, &e) || fchmod(to, 0755))
        return -1;
    return 0;
}

__attribute__((unused)) static int remove_probe(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    int result = dir_remove(folder, &e);
    free(folder);
    free(probe_path);
    return result;
}

/* Sets spec's program and descriptor 1, runs it to its end; returns the wait status and its output. */
__attribute__((unused)) static int run_probe(struct jail_spec spec, const char *const *args, char *output, size_t output_size,
                                             unsigned *ret_missing)
{
    struct err e = ERR_INIT;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    struct jail_fd fds[16];
    assert_true(spec.fds_len < 15);
    for (size_t i = 0; i < spec.fds_len; i++)
        fds[i] = spec.fds[i];
    fds[spec.fds_len++] = (struct jail_fd){.fd = ends[1], .as = 1};
    fds[spec.fds_len++] = (struct jail_fd){.fd = 2, .as = 2};
    auto_strv argv = {0};
    strv_add(&argv, "probe");
    for (size_t i = 0; args[i]; i++)
        strv_add(&argv, args[i]);
    spec.name = "probe";
    spec.program = probe_path;
    spec.argv = argv.items;
    spec.fds = fds;
    struct jail_child child;
    int result = jail_spawn(&spec, &child, &e);
    close(ends[1]);
    if (result)
        fail_msg("%s", e.text);
    size_t len = 0;
    ssize_t n;
    while (len < output_size - 1 && (n = fd_read(ends[0], output + len, output_size - 1 - len)) > 0)
        len += (size_t)n;
    output[len] = 0;
    close(ends[0]);
    if (ret_missing)
        *ret_missing = child.missing;
    int status = 0;
    assert_int_equal(jail_wait(&child, &status, &e), 0);
    assert_int_equal(child.pidfd, -1);
    return status;
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
