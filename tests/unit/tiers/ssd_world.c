/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/unit/tiers/ssd_world.h"

#include "tests/unit/tiers/slot_world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t used;

static int add_used(const char *path, const struct stat *stat, int kind, struct FTW *at)
{
    (void)path, (void)kind, (void)at;
    used += (uint64_t)stat->st_blocks * 512;
    return 0;
}

static int drop(const char *path, const struct stat *stat, int kind, struct FTW *at)
{
    (void)stat, (void)kind, (void)at;
    return remove(path);
}

void ssd_world_init(struct ssd_world *world, uint32_t slots)
{
    *world = (struct ssd_world){.dir = "/var/tmp/tier_ssd-XXXXXX"};
    cr_assert(mkdtemp(world->dir) != NULL);
    snprintf(world->dir + strlen(world->dir), 5, "/ssd");
    world->config = (struct tier_ssd_config){
        .dir = world->dir,
        .page_bytes = SSD_PAGE_BYTES,
        .layout = SSD_LAYOUT,
        .may_use_uring = true,
        .may_use_direct = true,
    };
    world->slots = slots;
    ssd_world_split(world, slots);
    world->config.file_bytes = 0;
    world->page = aligned_alloc(TIER_ALIGN_BYTES, tier_stride_bytes(SSD_PAGE_BYTES));
    cr_assert(world->page != NULL);
    memset(world->page, 0, tier_stride_bytes(SSD_PAGE_BYTES));
}

uint64_t ssd_world_bytes(uint32_t slots)
{
    const uint64_t lists = (slots + SSD_LIST_SLOTS - 1) / SSD_LIST_SLOTS;

    return lists * SSD_LIST_BYTES + (uint64_t)slots * SSD_SLOT_BYTES;
}

uint64_t ssd_world_at(uint32_t slot)
{
    return ssd_world_bytes(slot + 1) - SSD_SLOT_BYTES;
}

void ssd_world_split(struct ssd_world *world, uint32_t slots_per_file)
{
    const uint32_t rest = world->slots % slots_per_file;
    const uint64_t bytes =
        world->slots / slots_per_file * ssd_world_bytes(slots_per_file) + ssd_world_bytes(rest);

    world->config.file_bytes = ssd_world_bytes(slots_per_file);
    world->config.bytes = (4096 + bytes) * 1001 / 1000 + 4096; /* with the era's file */
}

void ssd_world_release(struct ssd_world *world)
{
    ssd_world_close(world);
    world->dir[strlen(world->dir) - 4] = '\0';
    cr_assert(eq(int, nftw(world->dir, drop, 16, FTW_DEPTH | FTW_PHYS), 0));
    free(world->page);
}

int ssd_world_open(struct ssd_world *world)
{
    int status = tier_ssd_create(world->config, &world->tier, world->why);

    if (status < 0)
        world->tier = NULL;
    return status;
}

void ssd_world_close(struct ssd_world *world)
{
    if (world->tier != NULL)
        world->tier->ops->destroy(world->tier);
    world->tier = NULL;
}

int ssd_world_write(struct ssd_world *world, uint32_t slot, uint64_t number)
{
    struct tier_transfer transfer = slot_transfer(slot, number, world->page);

    slot_fill(world->page, SSD_PAGE_BYTES, number);
    cr_assert(eq(sz, world->tier->ops->write(world->tier, &transfer, 1), transfer.status == 0));
    return transfer.status;
}

int ssd_world_read(struct ssd_world *world, uint32_t slot, uint64_t number)
{
    struct tier_transfer transfer = slot_transfer(slot, number, world->page);

    memset(world->page, 0, SSD_PAGE_BYTES);
    cr_assert(eq(sz, world->tier->ops->read(world->tier, &transfer, 1), transfer.status == 0));
    if (transfer.status == 0)
        cr_assert(slot_is_filled(world->page, SSD_PAGE_BYTES, number));
    return transfer.status;
}

int ssd_world_scan(struct ssd_world *world, struct tier_slot_found *found)
{
    return world->tier->ops->scan(world->tier, 0, world->tier->slot_count, found);
}

const char *ssd_world_path(const struct ssd_world *world, const char *name)
{
    static char path[256];

    snprintf(path, sizeof path, "%s/%s", world->dir, name);
    return path;
}

const char *ssd_world_slots(const struct ssd_world *world, unsigned file)
{
    char name[64];

    snprintf(name, sizeof name, "layout-%016x/slots-%05u", SSD_LAYOUT, file);
    return ssd_world_path(world, name);
}

const char *ssd_world_era(const struct ssd_world *world)
{
    char name[64];

    snprintf(name, sizeof name, "layout-%016x/era", SSD_LAYOUT);
    return ssd_world_path(world, name);
}

void ssd_world_peek(const char *path, uint64_t at, void *bytes, size_t len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    cr_assert(eq(i64, pread(fd, bytes, len, (off_t)at), (int64_t)len));
    close(fd);
}

void ssd_world_poke(const char *path, uint64_t at, const void *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    cr_assert(eq(i64, pwrite(fd, bytes, len, (off_t)at), (int64_t)len));
    close(fd);
}

void ssd_world_flip(const char *path, uint64_t at)
{
    uint8_t byte;

    ssd_world_peek(path, at, &byte, 1);
    byte ^= 0x10;
    ssd_world_poke(path, at, &byte, 1);
}

uint64_t ssd_world_used(const char *dir)
{
    used = 0;
    cr_assert(eq(int, nftw(dir, add_used, 16, FTW_PHYS), 0));
    return used;
}

unsigned ssd_world_fds(void)
{
    DIR *stream = opendir("/proc/self/fd");
    unsigned count = 0;

    cr_assert(stream != NULL);
    while (readdir(stream) != NULL)
        count++;
    closedir(stream);
    return count;
}
