/* SPDX-License-Identifier: Apache-2.0 */
#include "imager/io.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cached {
    uint64_t block;
    bool valid, dirty;
};

struct io {
    int fd;
    int first_errno;
    int block_size;
    struct cached slots[IMAGE_CACHE_BLOCKS];
    uint8_t *blocks; /* IMAGE_CACHE_BLOCKS of block_size */
};

static struct io *io_of(io_channel channel)
{
    return channel->private_data;
}

int io_first_errno(io_channel channel)
{
    return io_of(channel)->first_errno;
}

static errcode_t failed(struct io *io, int failure)
{
    if (!io->first_errno)
        io->first_errno = failure;
    return failure;
}

static errcode_t write_out(struct io *io, uint64_t at, const uint8_t *bytes, size_t len)
{
    while (len) {
        ssize_t n = pwrite(io->fd, bytes, len, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed(io, errno);
        at += (uint64_t)n;
        bytes += n;
        len -= (size_t)n;
    }
    return 0;
}

/* Past the end of the file is a hole that was not written yet: zeros. */
static errcode_t read_in(struct io *io, uint64_t at, uint8_t *bytes, size_t len)
{
    while (len) {
        ssize_t n = pread(io->fd, bytes, len, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed(io, errno);
        if (n == 0) {
            memset(bytes, 0, len);
            return 0;
        }
        at += (uint64_t)n;
        bytes += n;
        len -= (size_t)n;
    }
    return 0;
}

static uint8_t *slot_bytes(struct io *io, size_t slot)
{
    return io->blocks + slot * (size_t)io->block_size;
}

static errcode_t write_slot(struct io *io, size_t slot)
{
    struct cached *c = &io->slots[slot];
    if (!c->valid || !c->dirty)
        return 0;
    errcode_t r = write_out(io, c->block * (uint64_t)io->block_size, slot_bytes(io, slot), (size_t)io->block_size);
    if (!r)
        c->dirty = false;
    return r;
}

static errcode_t flush_all(struct io *io)
{
    for (size_t slot = 0; slot < IMAGE_CACHE_BLOCKS; slot++) {
        errcode_t r = write_slot(io, slot);
        if (r)
            return r;
    }
    return 0;
}

/* The slot of one block, holding its content (when `load`) or about to be overwritten. */
static errcode_t take_slot(struct io *io, uint64_t block, bool load, size_t *ret_slot)
{
    size_t slot = block % IMAGE_CACHE_BLOCKS;
    struct cached *c = &io->slots[slot];
    if (!c->valid || c->block != block) {
        errcode_t r = write_slot(io, slot);
        if (r)
            return r;
        c->valid = false;
        if (load && (r = read_in(io, block * (uint64_t)io->block_size, slot_bytes(io, slot), (size_t)io->block_size)))
            return r;
        *c = (struct cached){.block = block, .valid = true};
    }
    *ret_slot = slot;
    return 0;
}

/* A count below zero means bytes, above it blocks (the convention of libext2fs). */
static errcode_t io_read_blk64(io_channel channel, unsigned long long block, int count, void *data)
{
    struct io *io = io_of(channel);
    if (count < 0) {
        errcode_t r = flush_all(io);
        return r ? r : read_in(io, block * (uint64_t)io->block_size, data, (size_t)-count);
    }
    for (int i = 0; i < count; i++) {
        size_t slot;
        errcode_t r = take_slot(io, block + (unsigned)i, true, &slot);
        if (r)
            return r;
        memcpy((uint8_t *)data + (size_t)i * (size_t)io->block_size, slot_bytes(io, slot), (size_t)io->block_size);
    }
    return 0;
}

static errcode_t forget_all(struct io *io)
{
    errcode_t r = flush_all(io);
    for (size_t slot = 0; slot < IMAGE_CACHE_BLOCKS; slot++)
        io->slots[slot].valid = false;
    return r;
}

static errcode_t io_write_blk64(io_channel channel, unsigned long long block, int count, const void *data)
{
    struct io *io = io_of(channel);
    if (count < 0) {
        errcode_t r = forget_all(io);
        return r ? r : write_out(io, block * (uint64_t)io->block_size, data, (size_t)-count);
    }
    for (int i = 0; i < count; i++) {
        size_t slot;
        errcode_t r = take_slot(io, block + (unsigned)i, false, &slot);
        if (r)
            return r;
        memcpy(slot_bytes(io, slot), (const uint8_t *)data + (size_t)i * (size_t)io->block_size, (size_t)io->block_size);
        io->slots[slot].dirty = true;
    }
    return 0;
}

static errcode_t io_read_blk(io_channel channel, unsigned long block, int count, void *data)
{
    return io_read_blk64(channel, block, count, data);
}

static errcode_t io_write_blk(io_channel channel, unsigned long block, int count, const void *data)
{
    return io_write_blk64(channel, block, count, data);
}

static errcode_t io_write_byte(io_channel channel, unsigned long offset, int count, const void *data)
{
    errcode_t r = forget_all(io_of(channel));
    return r ? r : write_out(io_of(channel), offset, data, (size_t)count);
}

static errcode_t io_set_blksize(io_channel channel, int block_size)
{
    struct io *io = io_of(channel);
    if (block_size == io->block_size)
        return 0;
    errcode_t r = forget_all(io);
    if (r)
        return r;
    uint8_t *blocks = calloc(IMAGE_CACHE_BLOCKS, (size_t)block_size);
    if (!blocks)
        return EXT2_ET_NO_MEMORY;
    free(io->blocks);
    io->blocks = blocks;
    io->block_size = channel->block_size = block_size;
    return 0;
}

static errcode_t io_flush(io_channel channel)
{
    return flush_all(io_of(channel));
}

static errcode_t io_close(io_channel channel)
{
    if (--channel->refcount > 0)
        return 0;
    struct io *io = io_of(channel);
    errcode_t r = flush_all(io);
    free(io->blocks);
    free(io);
    free(channel->name);
    free(channel);
    return r;
}

static errcode_t io_open(const char *name, int flags, io_channel *ret_channel)
{
    (void)flags;
    struct err e = ERR_INIT;
    uint64_t fd;
    if (text_parse_u64(name, INT32_MAX, &fd, &e))
        return EXT2_ET_BAD_DEVICE_NAME;
    struct io *io = xcalloc(1, sizeof *io);
    io->fd = (int)fd;
    io->block_size = 1024;
    io->blocks = calloc(IMAGE_CACHE_BLOCKS, 1024);
    CHECK(io->blocks);
    io_channel channel = xcalloc(1, sizeof *channel);
    *channel = (struct struct_io_channel){.magic = EXT2_ET_MAGIC_IO_CHANNEL,
                                          .manager = &io_on_descriptor,
                                          .name = xstrdup(name),
                                          .block_size = 1024,
                                          .refcount = 1,
                                          .private_data = io};
    *ret_channel = channel;
    return 0;
}

struct struct_io_manager io_on_descriptor = {
    .magic = EXT2_ET_MAGIC_IO_MANAGER,
    .name = "descriptor",
    .open = io_open,
    .close = io_close,
    .set_blksize = io_set_blksize,
    .read_blk = io_read_blk,
    .write_blk = io_write_blk,
    .flush = io_flush,
    .write_byte = io_write_byte,
    .read_blk64 = io_read_blk64,
    .write_blk64 = io_write_blk64,
};
