/* SPDX-License-Identifier: Apache-2.0 */
/* Packing and unpacking real folders. Archives are made by hand where the packer would never write such a thing. */
#include "agent/tar.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "unit.h"

static char folder[] = "/tmp/test-tar-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    return dir_remove(folder, &e);
}

static const char *at(const char *name)
{
    static char paths[4][300];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void add(struct buf *out, char type, const char *path, const char *link, const char *content)
{
    static struct tar_header header;
    static const uint8_t zeros[TAR_BLOCK];
    struct err e = ERR_INIT;
    memset(&header, 0, sizeof header);
    header.type = type;
    header.mode = type == '5' ? 0750 : 0640;
    header.mtime = 1000000000;
    header.size = strlen(content);
    snprintf(header.path, sizeof header.path, "%s", path);
    snprintf(header.link, sizeof header.link, "%s", link);
    assert_int_equal(tar_header_encode(out, &header, &e), 0);
    assert_int_equal(buf_append(out, content, header.size, &e), 0);
    assert_int_equal(buf_append(out, zeros, (TAR_BLOCK - header.size % TAR_BLOCK) % TAR_BLOCK, &e), 0);
}

static void add_end(struct buf *out)
{
    static const uint8_t zeros[2 * TAR_BLOCK];
    struct err e = ERR_INIT;
    assert_int_equal(buf_append(out, zeros, sizeof zeros, &e), 0);
}

/* Unpacks the bytes into folder/target; the code of the failure, 0 for success. */
static unsigned unpack(const struct buf *tar, const char *target, bool make_parents)
{
    struct err e = ERR_INIT;
    auto_close fd = memfd_create("tar", MFD_CLOEXEC);
    assert_int_equal(fd_write_all(fd, buf_data(tar), tar->len, &e), 0);
    lseek(fd, 0, SEEK_SET);
    return tar_unpack(fd, at(target), make_parents, &e) ? tar_failure_code(&e) : 0;
}

static void assert_content(const char *name, const char *content)
{
    struct err e = ERR_INIT;
    auto_free char *text = NULL;
    if (file_read(at(name), 10000, &text, NULL, &e))
        fail_msg("%s", e.text);
    assert_string_equal(text, content);
}

static void test_unpack_keeps_links_modes_and_times(void **state)
{
    (void)state;
    auto_buf tar = BUF_INIT(1 << 20);
    add(&tar, '5', "d/", "", "");
    add(&tar, '0', "d/file", "", "hello");
    add(&tar, '2', "d/link", "file", "");
    add(&tar, '1', "d/hard", "d/file", "");
    add(&tar, '0', "deep/er/file", "", "deep");
    add(&tar, '6', "d/fifo", "", "");
    add_end(&tar);
    assert_int_equal(unpack(&tar, "keeps/it", false), 211);
    assert_int_equal(unpack(&tar, "keeps/it", true), 0);
    struct stat a, b;
    assert_int_equal(stat(at("keeps/it/d/file"), &a), 0);
    assert_int_equal(stat(at("keeps/it/d/hard"), &b), 0);
    assert_int_equal(a.st_ino, b.st_ino);
    assert_int_equal(a.st_mode & 07777, 0640);
    assert_int_equal(a.st_mtim.tv_sec, 1000000000);
    assert_content("keeps/it/d/link", "hello");
    assert_content("keeps/it/deep/er/file", "deep");
    assert_int_equal(stat(at("keeps/it/d"), &a), 0);
    assert_int_equal(a.st_mode & 07777, 0750);
    assert_int_equal(lstat(at("keeps/it/d/fifo"), &a), 0);
    assert_true(S_ISFIFO(a.st_mode));
    assert_int_equal(unpack(&tar, "keeps/it", false), 0); /* again, over itself */
    assert_content("keeps/it/d/hard", "hello");
    assert_int_equal(unpack(&tar, "keeps/it/d/file", false), 212);
}

static void test_unpack_never_leaves_the_target(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    assert_int_equal(dir_make(at("outside"), 0755, &e), 0);
    assert_int_equal(file_write_atomic(at("outside/kept"), "kept", 4, 0600, &e), 0);
    static const char *const paths[] = {"../outside/kept", "a/../../outside/kept", "out/kept", "abs/kept", "self/../kept"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        auto_buf tar = BUF_INIT(1 << 20);
        add(&tar, '2', "out", "../outside", "");
        add(&tar, '2', "abs", at("outside"), "");
        add(&tar, '0', paths[i], "", "stolen");
        add_end(&tar);
        assert_int_equal(unpack(&tar, "leaves", true), 210);
        assert_content("outside/kept", "kept");
    }
    auto_buf hard = BUF_INIT(1 << 20); /* a hard link to a file outside would let the next entry... be refused already */
    add(&hard, '2', "out", "../outside", "");
    add(&hard, '1', "mine", "out/kept", "");
    add_end(&hard);
    assert_int_equal(unpack(&hard, "leaves", true), 210);
    auto_buf through = BUF_INIT(1 << 20); /* writing to a name that is a link replaces the link */
    add(&through, '2', "name", "../outside/kept", "");
    add(&through, '0', "name", "", "own");
    add_end(&through);
    assert_int_equal(unpack(&through, "leaves", true), 0);
    assert_content("leaves/name", "own");
    assert_content("outside/kept", "kept");
}

static void test_unpack_follows_links_inside(void **state)
{
    (void)state;
    auto_buf tar = BUF_INIT(1 << 20);
    add(&tar, '5', "usr/bin", "", "");
    add(&tar, '2', "bin", "usr/bin", "");
    add(&tar, '0', "/bin/tool", "", "tool"); /* absolute names are below the target too */
    add_end(&tar);
    assert_int_equal(unpack(&tar, "inside", true), 0);
    assert_content("inside/usr/bin/tool", "tool");
}

static void test_unpack_of_a_cut_tar_fails_and_leaves_no_half_file(void **state)
{
    (void)state;
    auto_buf tar = BUF_INIT(1 << 20);
    add(&tar, '0', "first", "", "whole");
    add(&tar, '0', "second", "", "half");
    size_t whole = tar.len;
    tar.len -= 510; /* inside the second file's bytes */
    assert_int_equal(unpack(&tar, "cut", true), 218);
    assert_content("cut/first", "whole");
    assert_int_equal(access(at("cut/second"), F_OK), -1);
    tar.len = whole; /* all entries, but no end mark */
    assert_int_equal(unpack(&tar, "cut", true), 218);
    auto_buf nonsense = BUF_INIT(1 << 20);
    struct err e = ERR_INIT;
    char bytes[TAR_BLOCK];
    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(buf_append(&nonsense, bytes, sizeof bytes, &e), 0);
    assert_int_equal(unpack(&nonsense, "cut", true), 210);
    auto_buf device = BUF_INIT(1 << 20);
    add(&device, '3', "device", "", "");
    add_end(&device);
    assert_int_equal(unpack(&device, "cut", true), 210);
}

static void test_pack_and_unpack_give_the_same_tree(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char long_name[200];
    memset(long_name, 'n', sizeof long_name);
    memcpy(long_name, "source/", 7);
    long_name[199] = 0;
    assert_int_equal(dir_make(at("source/empty"), 0700, &e), 0);
    assert_int_equal(file_write_atomic(at("source/file"), "content", 7, 0751, &e), 0);
    assert_int_equal(file_write_atomic(at(long_name), "long", 4, 0600, &e), 0);
    assert_int_equal(link(at("source/file"), at("source/hard")), 0);
    assert_int_equal(symlink("nowhere", at("source/dangling")), 0);
    auto_close fd = memfd_create("tar", MFD_CLOEXEC);
    assert_int_equal(tar_pack(fd, at("source"), "top", &e), 0);
    lseek(fd, 0, SEEK_SET);
    assert_int_equal(tar_unpack(fd, at("copy"), true, &e), 0);
    assert_content("copy/top/hard", "content");
    memcpy(long_name + 0, "source/", 7);
    char copied[300];
    snprintf(copied, sizeof copied, "copy/top/%s", long_name + 7);
    assert_content(copied, "long");
    struct stat a, b;
    assert_int_equal(stat(at("copy/top/file"), &a), 0);
    assert_int_equal(stat(at("copy/top/hard"), &b), 0);
    assert_int_equal(a.st_ino, b.st_ino);
    assert_int_equal(a.st_mode & 07777, 0751);
    char target[20] = {0};
    assert_int_equal(readlink(at("copy/top/dangling"), target, sizeof target - 1), 7);
    assert_string_equal(target, "nowhere");
    assert_int_equal(stat(at("copy/top/empty"), &a), 0);
    assert_int_equal(a.st_mode & 07777, 0700);
}

static void test_pack_of_one_file_and_of_nothing(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    assert_int_equal(file_write_atomic(at("single"), "one", 3, 0600, &e), 0);
    auto_close fd = memfd_create("tar", MFD_CLOEXEC);
    assert_int_equal(tar_pack(fd, at("single"), NULL, &e), 0);
    lseek(fd, 0, SEEK_SET);
    assert_int_equal(tar_unpack(fd, at("one"), true, &e), 0);
    assert_content("one/single", "one");
    assert_int_equal(tar_pack(fd, at("absent"), "x", &e), -1);
    assert_int_equal(tar_failure_code(&e), 211);
    err_clear(&e);
    assert_int_equal(tar_pack(fd, "/dev/null", "x", &e), -1);
    assert_int_equal(tar_failure_code(&e), 212);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_unpack_keeps_links_modes_and_times),
                                       cmocka_unit_test(test_unpack_never_leaves_the_target),
                                       cmocka_unit_test(test_unpack_follows_links_inside),
                                       cmocka_unit_test(test_unpack_of_a_cut_tar_fails_and_leaves_no_half_file),
                                       cmocka_unit_test(test_pack_and_unpack_give_the_same_tree),
                                       cmocka_unit_test(test_pack_of_one_file_and_of_nothing)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
