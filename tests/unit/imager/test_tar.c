/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/tar.h"

#include "base/limits.h"

#include <archive.h>
#include <archive_entry.h>

#include "image_file.h"
#include "unit.h"

static char text[65536];
static char tar_bytes[256 * 1024];
static size_t tar_len;

struct item {
    const char *path, *content, *link;
    int kind; /* AE_IFREG, 0 with link: a hard link */
};

/* A pax archive into tar_bytes. */
static void build(const struct item *items, size_t len)
{
    struct archive *a = archive_write_new();
    archive_write_set_format_pax(a);
    archive_write_set_options(a, "hdrcharset=BINARY");
    assert_int_equal(archive_write_open_memory(a, tar_bytes, sizeof tar_bytes, &tar_len), ARCHIVE_OK);
    for (size_t i = 0; i < len; i++) {
        struct archive_entry *entry = archive_entry_new();
        archive_entry_set_pathname(entry, items[i].path);
        archive_entry_set_filetype(entry, items[i].kind ? (unsigned)items[i].kind : AE_IFREG);
        archive_entry_set_perm(entry, 0644);
        if (items[i].link && items[i].kind)
            archive_entry_set_symlink(entry, items[i].link);
        else if (items[i].link)
            archive_entry_set_hardlink(entry, items[i].link);
        size_t size = items[i].content ? strlen(items[i].content) : 0;
        archive_entry_set_size(entry, (la_int64_t)size);
        assert_true(archive_write_header(a, entry) >= ARCHIVE_WARN);
        if (size)
            assert_int_equal(archive_write_data(a, items[i].content, size), size);
        archive_entry_free(entry);
    }
    archive_write_free(a);
}

static int read_tar(struct image_file *f, size_t len, bool compressed, struct tar_summary *sum, struct err *e)
{
    char path[] = "/tmp/imager-tar-XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    assert_int_equal(write(fd, tar_bytes, len), len);
    lseek(fd, 0, SEEK_SET);
    *f = image_file_new();
    struct ext4 *w = ext4_new(f->fd, IMAGE_BYTES_MAX, e);
    assert_non_null(w);
    uint64_t bytes;
    int failed = tar_to_image(fd, compressed, w, NULL, sum, e) || ext4_finish(w, &bytes, e);
    ext4_free(w);
    close(fd);
    return failed;
}

static void test_tar_to_image_keeps_names_as_bytes(void **state)
{
    (void)state;
    struct image_file f;
    struct err e = ERR_INIT;
    struct tar_summary sum;
    const struct item items[] = {{"bad\xff\xfe", "1", NULL, AE_IFREG}, {"\xc3\xa4", "2", NULL, AE_IFREG}};
    build(items, 2);
    assert_int_equal(read_tar(&f, tar_len, false, &sum, &e), 0);
    assert_int_equal(sum.entries, 2);
    assert_int_equal(sum.content_bytes, 2);
    assert_int_equal(image_file_check(&f), 0);
    image_file_debugfs(&f, "cat /bad\xff\xfe", text, sizeof text);
    assert_non_null(strstr(text, "1"));
    image_file_debugfs(&f, "cat /\xc3\xa4", text, sizeof text);
    assert_non_null(strstr(text, "2"));
    image_file_done(&f);
}

static void test_tar_to_image_refuses_by_name(void **state)
{
    (void)state;
    static const struct {
        struct item items[2];
        const char *words;
    } cases[] = {
        {{{"a", "x", NULL, AE_IFREG}, {"up/../../etc", "x", NULL, AE_IFREG}}, "entry 'up/../../etc': '..' in a path"},
        {{{"a", "x", NULL, AE_IFREG}, {"h", NULL, "../x", 0}}, "entry 'h': link to '../x': '..' in a path"},
        {{{"a", "x", NULL, AE_IFREG}, {"h", NULL, "none", 0}}, "a hard link to a name that is not there"},
        {{{"a", "x", NULL, AE_IFREG}, {"a/b", "x", NULL, AE_IFREG}}, "'a' on the way is not a folder"},
        {{{"d", NULL, NULL, AE_IFDIR}, {"h", NULL, "d", 0}}, "a hard link to a folder"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct image_file f;
        struct err e = ERR_INIT;
        struct tar_summary sum;
        build(cases[i].items, 2);
        assert_int_not_equal(read_tar(&f, tar_len, false, &sum, &e), 0);
        assert_int_equal(e.code, ERR_INVALID);
        if (!strstr(e.text, cases[i].words))
            fail_msg("'%s' lacks '%s'", e.text, cases[i].words);
        image_file_done(&f);
    }
}

static void test_tar_to_image_refuses_a_cut_archive(void **state)
{
    (void)state;
    const struct item items[] = {{"a", "some content", NULL, AE_IFREG}, {"b", "x", NULL, AE_IFREG}};
    build(items, 2);
    for (size_t len = 0; len < 2048; len += 256) { /* two entries of two blocks each */
        struct image_file f;
        struct err e = ERR_INIT;
        struct tar_summary sum;
        assert_int_not_equal(read_tar(&f, len, false, &sum, &e), 0);
        assert_int_equal(e.code, ERR_INVALID);
        image_file_done(&f);
    }
}

static void test_tar_to_image_takes_a_filter_only_when_told(void **state)
{
    (void)state;
    static const uint8_t gzip[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3};
    memcpy(tar_bytes, gzip, sizeof gzip);
    memset(tar_bytes + sizeof gzip, 0, 2000);
    struct image_file f;
    struct err e = ERR_INIT;
    struct tar_summary sum;
    assert_int_not_equal(read_tar(&f, 2000, false, &sum, &e), 0);
    assert_non_null(strstr(e.text, "Unrecognized archive format"));
    image_file_done(&f);
}

UNIT_MAIN(cmocka_unit_test(test_tar_to_image_keeps_names_as_bytes), cmocka_unit_test(test_tar_to_image_refuses_by_name),
          cmocka_unit_test(test_tar_to_image_refuses_a_cut_archive),
          cmocka_unit_test(test_tar_to_image_takes_a_filter_only_when_told))
