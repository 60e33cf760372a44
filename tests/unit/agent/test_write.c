/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/write.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "unit.h"

static char *folder;

static int make_folder(void **state)
{
    (void)state;
    folder = xstrdup("/tmp/iii-test-write-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    int result = dir_remove(folder, &e);
    free(folder);
    return result;
}

/* A descriptor that gives the text and then ends. */
static int source_of(const char *text)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(write(ends[1], text, strlen(text)), (ssize_t)strlen(text));
    close(ends[1]);
    return ends[0];
}

static unsigned files_in(const char *path)
{
    unsigned count = 0;
    auto_dir dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *item; (item = readdir(dir));)
        count += item->d_name[0] != '.' || strlen(item->d_name) > 2;
    return count;
}

static void test_replace_sets_content_and_exact_mode(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *path = xasprintf("%s/a/b/file", folder);
    auto_close one = source_of("first"), two = source_of("second, longer");
    assert_int_equal(file_replace(one, path, 0644, false, &e), -1);
    assert_int_equal(e.code, ERR_FS_NOT_FOUND);
    assert_non_null(strstr(e.text, "parent not found"));
    err_clear(&e);
    assert_int_equal(file_replace(one, path, 0666, true, &e), 0);
    assert_int_equal(file_replace(two, path, 04750, true, &e), 0);
    auto_free char *text = NULL;
    assert_int_equal(file_read(path, 100, &text, NULL, &e), 0);
    assert_string_equal(text, "second, longer");
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 07777, 04750);
    auto_free char *parent = xasprintf("%s/a/b", folder);
    assert_int_equal(files_in(parent), 1);
}

static void test_replace_refuses_what_is_no_file(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *fifo = xasprintf("%s/fifo", folder), *below = xasprintf("%s/plain/x", folder),
                   *plain = xasprintf("%s/plain", folder);
    auto_close source = source_of("x");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(file_replace(source, fifo, 0644, false, &e), -1);
    assert_int_equal(e.code, ERR_FS_WRONG_KIND);
    err_clear(&e);
    assert_int_equal(file_replace(source, folder, 0644, false, &e), -1);
    assert_int_equal(e.code, ERR_FS_WRONG_KIND);
    err_clear(&e);
    assert_int_equal(file_replace(source, plain, 0644, false, &e), 0);
    assert_int_equal(file_replace(source, below, 0644, true, &e), -1);
    assert_int_equal(e.code, ERR_FS_WRONG_KIND);
    err_clear(&e);
    assert_int_equal(file_replace(source, "/", 0644, false, &e), -1);
    assert_int_equal(e.code, ERR_FS_REQUEST);
}

static void test_replace_killed_in_the_middle_leaves_the_old_file_alone(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    auto_free char *parent = xasprintf("%s/killed", folder), *path = xasprintf("%s/killed/file", folder);
    auto_close old = source_of("old");
    assert_int_equal(file_replace(old, path, 0644, true, &e), 0);
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        _exit(file_replace(ends[0], path, 0644, false, &e) ? 1 : 0);
    close(ends[0]);
    char block[1000] = {0};
    for (int i = 0; i < 200; i++) /* more than the pipe holds: the child has begun to write */
        assert_int_equal(write(ends[1], block, sizeof block), (ssize_t)sizeof block);
    kill(child, SIGKILL);
    close(ends[1]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    auto_free char *text = NULL;
    assert_int_equal(file_read(path, 100, &text, NULL, &e), 0);
    assert_string_equal(text, "old");
    assert_int_equal(files_in(parent), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_replace_sets_content_and_exact_mode),
                                       cmocka_unit_test(test_replace_refuses_what_is_no_file),
                                       cmocka_unit_test(test_replace_killed_in_the_middle_leaves_the_old_file_alone)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
