/* SPDX-License-Identifier: Apache-2.0 */
#include "image/store_priv.h"

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <openssl/evp.h>
#include <sys/stat.h>

#define PIECE_BYTES (256 * 1024)

static void free_context(EVP_MD_CTX **context)
{
    EVP_MD_CTX_free(*context);
}

static EVP_MD_CTX *start(void)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    CHECK(context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1);
    return context;
}

static void finish(EVP_MD_CTX *context, char ret_hex[65])
{
    uint8_t digest[32];
    CHECK(EVP_DigestFinal_ex(context, digest, NULL) == 1);
    text_hex(digest, sizeof digest, ret_hex);
}

void hash_bytes(const void *bytes, size_t len, char ret_hex[65])
{
    __attribute__((cleanup(free_context))) EVP_MD_CTX *context = start();
    CHECK(EVP_DigestUpdate(context, bytes, len) == 1);
    finish(context, ret_hex);
}

static void add_zeros(EVP_MD_CTX *context, uint64_t len)
{
    static const uint8_t zeros[65536];
    while (len) {
        size_t n = len < sizeof zeros ? (size_t)len : sizeof zeros;
        CHECK(EVP_DigestUpdate(context, zeros, n) == 1);
        len -= n;
    }
}

static int add_data(EVP_MD_CTX *context, int fd, off_t at, off_t end, uint8_t *piece, struct err *e)
{
    while (at < end) {
        size_t want = end - at < PIECE_BYTES ? (size_t)(end - at) : PIECE_BYTES;
        ssize_t n = pread(fd, piece, want, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? err_sys(e, errno, "read") : err_set(e, ERR_SYSTEM, "read: the file shrank");
        CHECK(EVP_DigestUpdate(context, piece, (size_t)n) == 1);
        at += n;
    }
    return 0;
}

int hash_fd(int fd, char ret_hex[65], struct err *e)
{
    struct stat s;
    if (fstat(fd, &s))
        return err_sys(e, errno, "stat");
    __attribute__((cleanup(free_context))) EVP_MD_CTX *context = start();
    auto_free uint8_t *piece = xmalloc(PIECE_BYTES);
    for (off_t at = 0; at < s.st_size;) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if (data < 0 && errno != ENXIO)
            return err_sys(e, errno, "find data");
        if (data < 0 || data > s.st_size)
            data = s.st_size;
        add_zeros(context, (uint64_t)(data - at));
        at = data;
        if (at == s.st_size)
            break;
        off_t hole = lseek(fd, at, SEEK_HOLE);
        if (hole < 0)
            return err_sys(e, errno, "find hole");
        if (hole > s.st_size)
            hole = s.st_size;
        if (add_data(context, fd, at, hole, piece, e))
            return -1;
        at = hole;
    }
    finish(context, ret_hex);
    return 0;
}
