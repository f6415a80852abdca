/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier.h"

#include "backends/runtime/fault_point.h"
#include "kvtier/tiers/block_io.h"
#include "tests/support/leak_check.h"
#include "tests/unit/tiers/slot_world.h"
#include "tests/unit/tiers/ssd_world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 8, STRIDE = 20480 };

static struct ssd_world world;

static void begin(uint32_t slots)
{
    ssd_world_init(&world, slots);
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
}

static void reopen(void)
{
    ssd_world_close(&world);
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
}

/* Blocks 0 to count - 1 in the slots of their numbers. */
static void fill(uint32_t count)
{
    for (uint32_t slot = 0; slot < count; slot++)
        cr_assert(eq(int, ssd_world_write(&world, slot, slot), 0));
}

static void check_filled(uint32_t count)
{
    for (uint32_t slot = 0; slot < count; slot++)
        cr_assert(eq(int, ssd_world_read(&world, slot, slot), 0), "slot %u", slot);
}

TestSuite(tier_ssd, .fini = leak_check);

Test(tier_ssd, what_is_written_is_read_by_every_way)
{
    ssd_world_init(&world, SLOTS);
    for (unsigned way = 0; way < 4; way++) {
        char said[64];
        world.config.may_use_uring = way & 1;
        world.config.may_use_direct = way & 2;
        cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);

        fill(SLOTS);
        check_filled(SLOTS);
        reopen();
        check_filled(SLOTS);

        snprintf(said, sizeof said, "%s", tier_ssd_way(world.tier));
        cr_log_info("%s", said);
        if (!world.config.may_use_uring)
            cr_assert(strstr(said, "threads") != NULL);
        if (!world.config.may_use_direct)
            cr_assert(strstr(said, "buffered") != NULL);
        ssd_world_close(&world);
    }
    ssd_world_release(&world);
}

Test(tier_ssd, many_at_once_are_each_judged_alone)
{
    enum { COUNT = 300 };
    struct tier_transfer transfers[COUNT];
    uint8_t *pages = aligned_alloc(4096, (size_t)COUNT * STRIDE);
    begin(COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        transfers[i] = slot_transfer(COUNT - 1 - i, i, pages + (size_t)i * STRIDE);
        slot_fill(transfers[i].payload, SSD_PAGE_BYTES, i);
    }

    cr_assert(eq(sz, world.tier->ops->write(world.tier, transfers, COUNT), COUNT));
    memset(pages, 0, (size_t)COUNT * STRIDE);
    transfers[200].key.check++;
    cr_assert(eq(sz, world.tier->ops->read(world.tier, transfers, COUNT), COUNT - 1));

    for (uint32_t i = 0; i < COUNT; i++) {
        cr_assert(eq(int, transfers[i].status, i == 200 ? -EBADMSG : 0));
        if (i != 200)
            cr_assert(slot_is_filled(transfers[i].payload, SSD_PAGE_BYTES, i));
    }
    free(pages);
    ssd_world_release(&world);
}

Test(tier_ssd, a_slot_nobody_wrote_is_a_miss_and_so_is_another_block)
{
    begin(SLOTS);
    cr_assert(eq(int, ssd_world_read(&world, 0, 0), -EBADMSG)); /* no file yet */
    fill(2);

    cr_assert(eq(int, ssd_world_read(&world, 5, 5), -EBADMSG));
    cr_assert(eq(int, ssd_world_read(&world, 1, 0), -EBADMSG));
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), 0));
    ssd_world_release(&world);
}

Test(tier_ssd, any_flip_is_a_miss_wherever_it_is)
{
    /* magic, version, length, layout, name, check, parent, depth, checksum, era, the header's
     * own checksum; first, middle and last byte of the payload */
    static const unsigned places[] = {0,
                                      8,
                                      12,
                                      16,
                                      24,
                                      39,
                                      40,
                                      48,
                                      64,
                                      72,
                                      80,
                                      104,
                                      111,
                                      4096,
                                      4096 + SSD_PAGE_BYTES / 2,
                                      4096 + SSD_PAGE_BYTES - 1};
    begin(SLOTS);
    fill(3);

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        ssd_world_flip(ssd_world_slots(&world, 0), ssd_world_at(1) + places[i]);
        cr_assert(eq(int, ssd_world_read(&world, 1, 1), -EBADMSG), "byte %u", places[i]);
        cr_assert(eq(int, ssd_world_read(&world, 0, 0), 0));
        cr_assert(eq(int, ssd_world_read(&world, 2, 2), 0));
        ssd_world_flip(ssd_world_slots(&world, 0), ssd_world_at(1) + places[i]);
        cr_assert(eq(int, ssd_world_read(&world, 1, 1), 0));
    }
    ssd_world_release(&world);
}

Test(tier_ssd, a_truncated_file_loses_what_was_cut_and_nothing_else)
{
    const char *path;
    begin(3);
    path = ssd_world_slots(&world, 0);

    for (uint64_t cut = 0; cut < ssd_world_bytes(3); cut += 4096) {
        fill(3);
        cr_assert(eq(int, truncate(path, (off_t)cut), 0));
        for (int life = 0; life < 2; life++) {
            for (uint32_t slot = 0; slot < 3; slot++) {
                uint64_t end = ssd_world_at(slot) + 4096 + SSD_PAGE_BYTES;
                cr_assert(eq(int, ssd_world_read(&world, slot, slot), end <= cut ? 0 : -EBADMSG),
                          "cut at %lu, slot %u", cut, slot);
            }
            reopen();
        }
    }
    ssd_world_release(&world);
}

static void swap_slots(const char *path)
{
    static uint8_t a[SSD_SLOT_BYTES], b[SSD_SLOT_BYTES];

    ssd_world_peek(path, ssd_world_at(0), a, sizeof a);
    ssd_world_peek(path, ssd_world_at(1), b, sizeof b);
    ssd_world_poke(path, ssd_world_at(0), b, sizeof b);
    ssd_world_poke(path, ssd_world_at(1), a, sizeof a);
}

Test(tier_ssd, swapped_slots_are_misses_whatever_lists_say)
{
    struct tier_slot_found found[SLOTS];
    begin(SLOTS);
    fill(2);

    swap_slots(ssd_world_slots(&world, 0));

    cr_assert(eq(int, ssd_world_read(&world, 0, 0), -EBADMSG));
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), -EBADMSG));
    reopen();
    cr_assert(eq(int, ssd_world_scan(&world, found), 2));
    cr_assert(block_key_equal(found[0].key, slot_key(0)));
    cr_assert(eq(int, ssd_world_read(&world, 0, 0), -EBADMSG));
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), -EBADMSG));
    ssd_world_release(&world);
}

Test(tier_ssd, swapped_headers_or_payloads_alone_are_misses)
{
    uint8_t a[4096], b[4096];
    begin(SLOTS);
    fill(2);
    const char *path = ssd_world_slots(&world, 0);

    ssd_world_peek(path, ssd_world_at(0), a, sizeof a);
    ssd_world_peek(path, ssd_world_at(1), b, sizeof b);
    ssd_world_poke(path, ssd_world_at(0), b, sizeof b);
    ssd_world_poke(path, ssd_world_at(1), a, sizeof a);

    for (uint32_t slot = 0; slot < 2; slot++)
        for (uint64_t number = 0; number < 2; number++)
            cr_assert(eq(int, ssd_world_read(&world, slot, number), -EBADMSG));
    ssd_world_release(&world);
}

Test(tier_ssd, swapped_files_are_misses)
{
    char a[256], b[256], c[256];
    struct tier_slot_found found[SLOTS];
    ssd_world_init(&world, SLOTS);
    ssd_world_split(&world, 4);
    cr_assert(eq(int, ssd_world_open(&world), 0));
    fill(SLOTS);
    check_filled(SLOTS);
    ssd_world_close(&world);

    snprintf(a, sizeof a, "%s", ssd_world_slots(&world, 0));
    snprintf(b, sizeof b, "%s", ssd_world_slots(&world, 1));
    snprintf(c, sizeof c, "%s", ssd_world_path(&world, "aside"));
    cr_assert(rename(a, c) == 0 && rename(b, a) == 0 && rename(c, b) == 0);

    cr_assert(eq(int, ssd_world_open(&world), 0));
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        cr_assert(eq(int, ssd_world_read(&world, slot, slot), -EBADMSG));
    cr_assert(eq(int, ssd_world_scan(&world, found), SLOTS));
    for (uint32_t i = 0; i < SLOTS; i++)
        cr_assert(eq(int, ssd_world_read(&world, i, (i + 4) % SLOTS), 0));
    ssd_world_release(&world);
}

Test(tier_ssd, pages_of_another_layout_are_none)
{
    struct tier_slot_found found[SLOTS];
    char old[256];
    begin(SLOTS);
    fill(SLOTS);
    ssd_world_close(&world);

    snprintf(old, sizeof old, "%s", ssd_world_path(&world, "layout-0000000000000abc"));
    cr_assert(eq(int, rename(old, ssd_world_path(&world, "layout-0000000000000abd")), 0));
    world.config.layout = 0xabd;
    cr_assert(eq(int, ssd_world_open(&world), 0));

    cr_assert(eq(int, ssd_world_scan(&world, found), 0));
    cr_assert(eq(int, ssd_world_read(&world, 0, 0), -EBADMSG));
    ssd_world_release(&world);
}

/* ---- lives ---- */

Test(tier_ssd, a_scan_finds_what_an_earlier_life_wrote_and_did_not_erase)
{
    static const uint32_t erased[] = {1, 6};
    struct tier_slot_found found[SLOTS];
    uint64_t newest = 0;
    begin(SLOTS);
    fill(SLOTS - 1);
    world.tier->ops->erase(world.tier, erased, 2);
    reopen();

    cr_assert(eq(int, ssd_world_scan(&world, found), SLOTS - 3));

    for (int i = 0; i < SLOTS - 3; i++) {
        uint32_t slot = found[i].slot;
        struct tier_transfer written = slot_transfer(slot, slot, NULL);
        cr_assert(ne(u32, slot, 1));
        cr_assert(block_key_equal(found[i].key, written.key));
        cr_assert(eq(u64, found[i].parent.low, written.parent.low));
        cr_assert(eq(u64, found[i].parent.high, written.parent.high));
        cr_assert(eq(u32, found[i].depth, written.depth));
        if (found[i].sequence > newest)
            newest = found[i].sequence;
    }
    cr_assert(eq(int, ssd_world_write(&world, 1, 0), 0));
    cr_assert(eq(int, world.tier->ops->scan(world.tier, 1, 1, found), 1));
    cr_assert(gt(u64, found[0].sequence, newest));
    ssd_world_release(&world);
}

Test(tier_ssd, a_smaller_quota_keeps_the_first_slots_and_a_larger_one_all)
{
    struct tier_slot_found found[4 * SLOTS];
    ssd_world_init(&world, SLOTS);
    ssd_world_split(&world, 3);
    cr_assert(eq(int, ssd_world_open(&world), 0));
    fill(SLOTS);
    ssd_world_close(&world);

    world.slots = 5;
    ssd_world_split(&world, 3);
    cr_assert(eq(int, ssd_world_open(&world), 0));
    cr_assert(eq(u32, world.tier->slot_count, 5));
    cr_assert(eq(int, ssd_world_scan(&world, found), 5));
    cr_assert(le(u64, ssd_world_used(world.dir), world.config.bytes + 16384)); /* directories */
    ssd_world_close(&world);

    world.slots = 2 * SLOTS;
    ssd_world_split(&world, 3);
    cr_assert(eq(int, ssd_world_open(&world), 0));
    cr_assert(ge(u32, world.tier->slot_count, 2 * SLOTS - 1));
    cr_assert(eq(int, ssd_world_scan(&world, found), 5));
    check_filled(5);
    ssd_world_release(&world);
}

/* A child that writes slots 0 and 1 anew, and dies at the point. */
static void die_at(const char *point)
{
    int status;
    pid_t pid;

    ssd_world_close(&world);
    pid = fork();
    cr_assert(ge(int, pid, 0));
    if (pid == 0) {
        setenv("SAMOVAR_FAULT_POINT", point, 1);
        if (fault_point_init() == 0 && ssd_world_open(&world) == 0) {
            (void)ssd_world_write(&world, 0, 100);
            (void)ssd_world_write(&world, 1, 101);
        }
        _exit(1);
    }
    cr_assert(eq(int, waitpid(pid, &status, 0), pid));
    cr_assert(eq(int, WTERMSIG(status), SIGKILL)); /* 0: it ended by itself */
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
}

Test(tier_ssd, killed_before_it_is_listed_leaves_an_empty_slot)
{
    struct tier_slot_found found[SLOTS];
    begin(SLOTS);
    fill(3);

    die_at("demote-written:2");

    cr_assert(eq(int, ssd_world_scan(&world, found), 2));
    cr_assert(eq(u32, found[0].slot, 0));
    cr_assert(eq(u32, found[1].slot, 2));
    cr_assert(eq(int, ssd_world_read(&world, 0, 100), 0));
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), -EBADMSG));
    cr_assert(eq(int, ssd_world_read(&world, 2, 2), 0));
    ssd_world_release(&world);
}

Test(tier_ssd, killed_when_it_is_listed_leaves_the_block)
{
    struct tier_slot_found found[SLOTS];
    begin(SLOTS);
    fill(3);

    die_at("demote-listed:2");

    cr_assert(eq(int, ssd_world_scan(&world, found), 3));
    cr_assert(eq(int, ssd_world_read(&world, 1, 101), 0));
    ssd_world_release(&world);
}

/* ---- a disk that fails ---- */

/* Every op whose turn is in the mask comes to no more than status: -errno, or so many bytes of its
 * first part; the others are done. At clear_at all is cleared before the op is done. */
struct failing {
    struct block_io io;
    struct block_io *real;
    uint32_t mask; /* bit i: the i-th op since it was set */
    int status;
    unsigned turn;
    unsigned clear_at; /* 0: never */
};

static ssize_t fail_one(const struct block_io_op *op, int status)
{
    return status <= 0 ? status
                       : pread(op->fd, op->parts[0].iov_base, (size_t)status, (off_t)op->offset);
}

static void try_failing(struct block_io *io, struct block_io_op *ops, size_t count)
{
    struct failing *failing = (struct failing *)io;

    for (size_t i = 0; i < count; i++) {
        const unsigned turn = failing->turn;

        if (ops[i].is_done)
            continue;
        failing->turn++;
        if (failing->clear_at == turn + 1)
            cr_assert(eq(int, world.tier->ops->clear(world.tier), 0));
        if (turn >= 32 || (failing->mask >> turn & 1) == 0)
            failing->real->ops->try_all(failing->real, &ops[i], 1);
        else
            block_io_settle(&ops[i], fail_one(&ops[i], failing->status));
    }
}

static void destroy_failing(struct block_io *io)
{
    struct failing *failing = (struct failing *)io;

    block_io_destroy(&failing->real);
}

static const struct block_io_ops failing_ops = {
    .name = "failing", .try_all = try_failing, .destroy = destroy_failing};

static void fail(struct failing *failing, uint32_t mask, int status)
{
    failing->mask = mask;
    failing->status = status;
    failing->turn = 0;
}

/* Another life of the same directory. */
static void reopen_failing(struct failing *failing)
{
    ssd_world_close(&world);
    *failing = (struct failing){.io = {&failing_ops}};
    cr_assert(eq(int, block_io_create(true, &failing->real), 0));
    world.config.io = &failing->io;
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
}

static void begin_failing(struct failing *failing)
{
    ssd_world_init(&world, SLOTS);
    reopen_failing(failing);
}

/* By a life whose disk is good. */
static int found_by_the_next(struct tier_slot_found *found)
{
    ssd_world_close(&world);
    world.config.io = NULL;
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    return ssd_world_scan(&world, found);
}

static void expect_told(int status, int told)
{
    struct tier_slot_found found[SLOTS];

    for (unsigned op = 0; op < 2; op++) { /* page, list */
        struct failing failing;

        begin_failing(&failing);
        fail(&failing, 1u << op, status);
        cr_assert(eq(int, ssd_world_write(&world, 3, 3), told));
        fail(&failing, 0, 0);
        cr_assert(eq(int, ssd_world_scan(&world, found), 0));
        cr_assert(eq(int, ssd_world_write(&world, 4, 4), 0)); /* of the same list */
        cr_assert(eq(int, found_by_the_next(found), 1));
        cr_assert(eq(int, ssd_world_write(&world, 3, 3), 0));
        cr_assert(eq(int, ssd_world_read(&world, 3, 3), 0));
        ssd_world_release(&world);
    }
}

Test(tier_ssd, a_full_or_broken_disk_is_told_and_leaves_no_block)
{
    static const int said[][2] = {{-ENOSPC, -ENOSPC}, {-EDQUOT, -ENOSPC}, {-EFBIG, -ENOSPC},
                                  {-EIO, -EIO},       {-EREMOTEIO, -EIO}, {-EROFS, -EROFS},
                                  {-ENFILE, -EMFILE}};

    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        expect_told(said[i][0], said[i][1]);
}

Test(tier_ssd, a_slot_that_cannot_be_taken_off_its_list_is_not_written)
{
    struct failing failing;
    struct tier_slot_found found[SLOTS];
    begin_failing(&failing);
    fill(2);

    fail(&failing, 1, -EIO);
    cr_assert(eq(int, ssd_world_write(&world, 1, 50), -EIO));
    cr_assert(eq(u32, failing.turn, 1));

    fail(&failing, 0, 0);
    cr_assert(eq(int, ssd_world_read(&world, 1, 50), -EBADMSG));
    cr_assert(eq(int, found_by_the_next(found), 2)); /* as the disk has it: and it is right */
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), 0));
    ssd_world_release(&world);
}

Test(tier_ssd, what_could_not_be_taken_off_its_list_is_before_it_is_written_next)
{
    struct failing failing;
    struct tier_slot_found found[SLOTS];
    begin_failing(&failing);
    fill(2);
    fail(&failing, 1, -EIO);
    cr_assert(eq(int, ssd_world_write(&world, 1, 50), -EIO));

    fail(&failing, 2, -EIO); /* the list, then the page, which fails */
    cr_assert(eq(int, ssd_world_write(&world, 1, 50), -EIO));

    cr_assert(eq(u32, failing.turn, 2));
    cr_assert(eq(int, found_by_the_next(found), 1));
    cr_assert(eq(u32, found[0].slot, 0));
    ssd_world_release(&world);
}

Test(tier_ssd, a_read_that_fails_is_told_and_one_that_comes_short_goes_on)
{
    struct failing failing;
    begin_failing(&failing);
    fill(2);

    fail(&failing, 1, -EIO);
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), -EIO));
    fail(&failing, 3, -EINTR);
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), 0));
    fail(&failing, 1, 1000);
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), 0));
    fail(&failing, 1, 0);
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), -EBADMSG));
    ssd_world_release(&world);
}

Test(tier_ssd, slots_whose_list_cannot_be_read_are_empty_until_they_are_written)
{
    enum { MANY = SSD_LIST_SLOTS + 8 };
    struct tier_slot_found found[MANY];
    struct failing failing;
    ssd_world_init(&world, MANY);
    reopen_failing(&failing);
    fill(MANY);

    reopen_failing(&failing);
    fail(&failing, ~0u, -EIO);
    cr_assert(eq(int, ssd_world_scan(&world, found), -EIO));
    reopen_failing(&failing);
    fail(&failing, 2, -EIO);
    cr_assert(eq(int, ssd_world_scan(&world, found), SSD_LIST_SLOTS));
    cr_assert(eq(int, ssd_world_write(&world, SSD_LIST_SLOTS, 500), 0));

    cr_assert(eq(int, found_by_the_next(found), SSD_LIST_SLOTS + 1));
    cr_assert(eq(int, ssd_world_read(&world, SSD_LIST_SLOTS, 500), 0));
    ssd_world_release(&world);
}

/* ---- lists ---- */

Test(tier_ssd, neighbours_written_together_are_listed_in_one_write)
{
    struct tier_transfer transfers[SLOTS];
    uint8_t *pages = aligned_alloc(4096, (size_t)SLOTS * STRIDE);
    struct failing failing;
    begin_failing(&failing);
    memset(pages, 0, (size_t)SLOTS * STRIDE);
    for (uint32_t i = 0; i < SLOTS; i++)
        transfers[i] = slot_transfer(i, i, pages + (size_t)i * STRIDE);

    fail(&failing, 0, 0);
    cr_assert(eq(sz, world.tier->ops->write(world.tier, transfers, SLOTS), SLOTS));
    cr_assert(eq(u32, failing.turn, SLOTS + 1));
    fail(&failing, 0, 0);
    cr_assert(eq(sz, world.tier->ops->write(world.tier, transfers, SLOTS), SLOTS));
    cr_assert(eq(u32, failing.turn, SLOTS + 2)); /* off the list, pages, listed */

    free(pages);
    ssd_world_release(&world);
}

Test(tier_ssd, a_slot_is_listed_with_its_neighbours_of_an_earlier_life_before_any_scan)
{
    struct tier_slot_found found[SLOTS];
    begin(SLOTS);
    fill(3);
    reopen();

    cr_assert(eq(int, ssd_world_write(&world, 5, 5), 0));
    reopen();

    cr_assert(eq(int, ssd_world_scan(&world, found), 4));
    ssd_world_release(&world);
}

Test(tier_ssd, a_list_that_is_not_whole_is_of_empty_slots)
{
    static const unsigned places[] = {0, 8, 12, 16, 24, 32, 40, 100, 4064, 4088, 4095};
    struct tier_slot_found found[SLOTS];
    begin(SLOTS);

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        fill(3);
        ssd_world_flip(ssd_world_slots(&world, 0), places[i]);
        reopen();
        cr_assert(eq(int, ssd_world_scan(&world, found), 0), "byte %u", places[i]);
    }
    ssd_world_release(&world);
}

/* ---- cleared ---- */

static int clear(void)
{
    return world.tier->ops->clear(world.tier);
}

Test(tier_ssd, what_was_cleared_is_found_and_read_by_no_life)
{
    struct tier_slot_found found[SLOTS];
    begin(SLOTS);
    fill(SLOTS);

    cr_assert(eq(int, clear(), 0));

    cr_assert(eq(int, ssd_world_scan(&world, found), 0));
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), -EBADMSG));
    for (int life = 0; life < 2; life++) {
        reopen();
        cr_assert(eq(int, ssd_world_scan(&world, found), 0));
        cr_assert(eq(int, ssd_world_read(&world, 1, 1), -EBADMSG));
    }
    ssd_world_release(&world);
}

Test(tier_ssd, what_was_written_since_the_clear_is_found_alone)
{
    struct tier_slot_found found[SLOTS];
    begin(SLOTS);
    fill(SLOTS);

    cr_assert(eq(int, clear(), 0));
    cr_assert(eq(int, ssd_world_write(&world, 2, 102), 0));
    reopen();

    cr_assert(eq(int, ssd_world_scan(&world, found), 1));
    cr_assert(eq(u32, found[0].slot, 2));
    cr_assert(eq(int, ssd_world_read(&world, 2, 102), 0));
    cr_assert(eq(int, ssd_world_read(&world, 3, 3), -EBADMSG));
    ssd_world_release(&world);
}

/* Turn 1: the page, 2: the list, of a slot that nobody had written. */
Test(tier_ssd, what_is_being_written_when_all_is_cleared_is_found_by_no_life)
{
    struct tier_slot_found found[SLOTS];
    struct failing failing;
    begin_failing(&failing);
    fill(2);

    fail(&failing, 0, 0);
    failing.clear_at = 1;
    (void)ssd_world_write(&world, 3, 3);

    cr_assert(eq(int, ssd_world_scan(&world, found), 0));
    cr_assert(eq(int, ssd_world_read(&world, 3, 3), -EBADMSG));
    cr_assert(eq(int, ssd_world_write(&world, 4, 4), 0)); /* writes the list that 3 is on */
    cr_assert(eq(int, found_by_the_next(found), 1));
    cr_assert(eq(u32, found[0].slot, 4));
    ssd_world_release(&world);
}

/* ---- the era's file ---- */

static void put_era(const uint8_t *bytes, size_t len)
{
    int fd = open(ssd_world_era(&world), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    cr_assert(ge(int, fd, 0));
    cr_assert(eq(i64, write(fd, bytes, len), (int64_t)len));
    close(fd);
}

/* Nothing is believed, and what is written from then on is. */
static void expect_nothing_believed(const char *what)
{
    struct tier_slot_found found[SLOTS];

    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    cr_assert(eq(int, ssd_world_scan(&world, found), 0), "%s", what);
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), -EBADMSG), "%s", what);
    fill(2);
    reopen();
    cr_assert(eq(int, ssd_world_scan(&world, found), 2), "%s", what);
    check_filled(2);
    ssd_world_close(&world);
}

Test(tier_ssd, an_era_that_cannot_be_read_makes_all_slots_empty)
{
    enum { LEN = 40 };
    uint8_t bytes[LEN + 1] = {0};
    char aside[256];
    begin(SLOTS);
    fill(SLOTS);
    ssd_world_close(&world);

    cr_assert(eq(int, unlink(ssd_world_era(&world)), 0));
    expect_nothing_believed("none");
    for (size_t len = 0; len < LEN + 2; len++) {
        if (len == LEN)
            continue;
        ssd_world_peek(ssd_world_era(&world), 0, bytes, LEN);
        put_era(bytes, len);
        expect_nothing_believed("shorter or longer");
    }
    for (unsigned at = 0; at < LEN; at++) {
        ssd_world_flip(ssd_world_era(&world), at);
        expect_nothing_believed("a flip");
    }
    cr_assert(eq(int, chmod(ssd_world_era(&world), 0640), 0));
    expect_nothing_believed("open to others");
    snprintf(aside, sizeof aside, "%s", ssd_world_path(&world, "aside"));
    cr_assert(eq(int, rename(ssd_world_era(&world), aside), 0));
    cr_assert(eq(int, symlink("../aside", ssd_world_era(&world)), 0));
    expect_nothing_believed("a link");
    ssd_world_release(&world);
}

Test(tier_ssd, an_era_in_the_writing_when_a_life_ended_changes_nothing)
{
    struct tier_slot_found found[SLOTS];
    char left[256];
    int fd;
    begin(SLOTS);
    fill(3);
    ssd_world_close(&world);
    snprintf(left, sizeof left, "%s.new", ssd_world_era(&world));
    fd = open(left, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(ge(int, fd, 0));
    close(fd);

    cr_assert(eq(int, ssd_world_open(&world), 0));
    cr_assert(eq(int, ssd_world_scan(&world, found), 3));
    cr_assert(eq(int, clear(), 0));
    cr_assert(eq(int, ssd_world_write(&world, 0, 9), 0));

    reopen();
    cr_assert(eq(int, ssd_world_scan(&world, found), 1));
    cr_assert(ne(int, access(left, F_OK), 0));
    ssd_world_release(&world);
}

/* ---- limits ---- */

Test(tier_ssd, a_file_that_may_not_grow_is_no_space)
{
    struct rlimit limit = {.rlim_cur = 3 * SSD_SLOT_BYTES, .rlim_max = RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    ssd_world_init(&world, SLOTS);
    cr_assert(eq(int, ssd_world_open(&world), 0));
    cr_assert(eq(int, getrlimit(RLIMIT_FSIZE, &limit), 0));
    limit.rlim_cur = 3 * SSD_SLOT_BYTES;
    cr_assert(eq(int, setrlimit(RLIMIT_FSIZE, &limit), 0));

    cr_assert(eq(int, ssd_world_write(&world, 0, 0), -ENOSPC));
    cr_assert(ne(int, access(ssd_world_slots(&world, 0), F_OK), 0));

    limit.rlim_cur = limit.rlim_max;
    cr_assert(eq(int, setrlimit(RLIMIT_FSIZE, &limit), 0));
    cr_assert(eq(int, ssd_world_write(&world, 0, 0), 0));
    ssd_world_release(&world);
}
