/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier.h"

#include "tests/support/leak_check.h"
#include "tests/unit/tiers/slot_world.h"
#include "tests/unit/tiers/ssd_world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { SLOTS = 8 };

static struct ssd_world world;

static mode_t mode_of(const char *path)
{
    struct stat stat;

    cr_assert(eq(int, lstat(path, &stat), 0), "%s", path);
    return stat.st_mode & (S_IFMT | 07777);
}

static bool is_there(const char *path)
{
    struct stat stat;

    return lstat(path, &stat) == 0;
}

/* A file of bytes that take room. */
static void put_file(const char *path, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    cr_assert(ge(int, fd, 0));
    cr_assert(eq(int, bytes > 0 ? posix_fallocate(fd, 0, (off_t)bytes) : 0, 0));
    close(fd);
}

static void must_be_refused(int status, const char *words)
{
    cr_assert(eq(int, ssd_world_open(&world), status));
    cr_assert(strstr(world.why, words) != NULL, "%s", world.why);
    cr_assert(strstr(world.why, world.dir) != NULL, "%s", world.why);
}

/* What a life of that layout leaves: a file of so many slots. */
static void leave_layout(uint64_t layout, uint32_t slots)
{
    struct tier_ssd_config config = world.config;

    world.config.layout = layout;
    world.config.file_bytes = ssd_world_bytes(slots);
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    cr_assert(eq(int, ssd_world_write(&world, 0, 0), 0));
    ssd_world_close(&world);
    world.config = config;
}

TestSuite(tier_ssd_files, .fini = leak_check);

/* ---- whose they are ---- */

Test(tier_ssd_files, directories_and_files_are_for_this_user_alone_whatever_the_umask)
{
    ssd_world_init(&world, SLOTS);
    umask(0);

    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    cr_assert(eq(int, ssd_world_write(&world, 0, 0), 0));

    cr_assert(eq(u32, mode_of(world.dir), S_IFDIR | 0700));
    cr_assert(eq(u32, mode_of(ssd_world_path(&world, "layout-0000000000000abc")), S_IFDIR | 0700));
    cr_assert(eq(u32, mode_of(ssd_world_slots(&world, 0)), S_IFREG | 0600));
    ssd_world_release(&world);
}

Test(tier_ssd_files, a_directory_that_others_can_open_is_refused)
{
    static const mode_t modes[] = {0755, 0710, 0701, 0770, 0704, 01777};
    ssd_world_init(&world, SLOTS);
    cr_assert(eq(int, mkdir(world.dir, 0700), 0));

    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        cr_assert(eq(int, chmod(world.dir, modes[i]), 0));
        must_be_refused(-EPERM, "chmod 700");
    }
    ssd_world_release(&world);
}

Test(tier_ssd_files, a_directory_of_another_user_is_refused)
{
    if (geteuid() != 0)
        cr_skip("only root can give directories away");
    ssd_world_init(&world, SLOTS);
    cr_assert(eq(int, mkdir(world.dir, 0700), 0));
    cr_assert(eq(int, chown(world.dir, 1234, 1234), 0));

    must_be_refused(-EPERM, "another user");
    ssd_world_release(&world);
}

/* Of the directory that ours is made in. */
static const char *parent(void)
{
    static char path[sizeof world.dir];

    snprintf(path, sizeof path, "%s", world.dir);
    *strrchr(path, '/') = '\0';
    return path;
}

Test(tier_ssd_files, a_directory_that_cannot_be_made_or_opened_is_said_with_what_to_do)
{
    char missing[80];
    if (geteuid() != 0)
        cr_skip("only root can be another user");
    ssd_world_init(&world, SLOTS);

    cr_assert(eq(int, seteuid(1234), 0));
    must_be_refused(-EACCES, "cannot be made: Permission denied: let the agent's user write there");
    cr_assert(eq(int, seteuid(0), 0));
    snprintf(missing, sizeof missing, "%s/a/b", world.dir);
    world.config.dir = missing;
    cr_assert(eq(int, ssd_world_open(&world), -ENOENT));
    cr_assert(strstr(world.why, "cannot be made: No such file or directory: make the directory") !=
                  NULL,
              "%s", world.why);
    world.config.dir = world.dir;
    ssd_world_release(&world);
}

Test(tier_ssd_files, a_directory_that_cannot_be_written_is_refused_as_it_cannot_be_cleared)
{
    if (geteuid() != 0)
        cr_skip("only root can give directories away");
    ssd_world_init(&world, SLOTS);
    cr_assert(eq(int, chmod(parent(), 0755), 0));
    cr_assert(eq(int, chown(parent(), 1234, 1234), 0));
    cr_assert(eq(int, seteuid(1234), 0));
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    ssd_world_close(&world);

    cr_assert(eq(int, chmod(ssd_world_path(&world, "layout-0000000000000abc"), 0500), 0));
    must_be_refused(-EACCES, "cannot be written: Permission denied: let the agent's user");

    cr_assert(eq(int, seteuid(0), 0));
    ssd_world_release(&world);
}

Test(tier_ssd_files, a_clear_that_is_not_taken_is_told_and_can_be_tried_again)
{
    struct tier_slot_found found[SLOTS];
    if (geteuid() != 0)
        cr_skip("only root can be another user");
    ssd_world_init(&world, SLOTS);
    cr_assert(eq(int, ssd_world_open(&world), 0));
    cr_assert(eq(int, ssd_world_write(&world, 0, 0), 0));

    cr_assert(eq(int, seteuid(1234), 0));
    cr_assert(eq(int, world.tier->ops->clear(world.tier), -EIO));
    cr_assert(eq(int, ssd_world_scan(&world, found), 0)); /* this life believes nothing */
    cr_assert(eq(int, ssd_world_write(&world, 1, 1), -EIO));
    cr_assert(eq(int, seteuid(0), 0));
    cr_assert(is_there(ssd_world_era(&world)));
    cr_assert(eq(int, world.tier->ops->clear(world.tier), 0));

    cr_assert(not(is_there(ssd_world_era(&world))));
    ssd_world_close(&world);
    cr_assert(eq(int, ssd_world_open(&world), 0));
    cr_assert(eq(int, ssd_world_scan(&world, found), 0));
    ssd_world_release(&world);
}

/* However many descriptors are left when it opens: it opens, or says so and removes nothing. */
Test(tier_ssd_files, want_of_descriptors_is_said_and_costs_no_file)
{
    struct tier_slot_found found[SLOTS];
    struct rlimit limit;
    rlim_t many;
    unsigned refused = 0;
    ssd_world_init(&world, SLOTS);
    ssd_world_split(&world, 2);
    world.config.may_use_uring = false;
    cr_assert(eq(int, ssd_world_open(&world), 0));
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        cr_assert(eq(int, ssd_world_write(&world, slot, slot), 0));
    ssd_world_close(&world);
    cr_assert(eq(int, getrlimit(RLIMIT_NOFILE, &limit), 0));
    many = limit.rlim_cur;

    for (limit.rlim_cur = 4;; limit.rlim_cur++) {
        cr_assert(eq(int, setrlimit(RLIMIT_NOFILE, &limit), 0));
        if (ssd_world_open(&world) == 0)
            break;
        refused++;
        cr_assert(strstr(world.why, "Too many open files: raise the limit") != NULL, "%s",
                  world.why);
    }
    limit.rlim_cur = many;
    cr_assert(eq(int, setrlimit(RLIMIT_NOFILE, &limit), 0));

    cr_assert(ge(u32, refused, 8));
    cr_assert(eq(int, ssd_world_scan(&world, found), SLOTS));
    ssd_world_release(&world);
}

Test(tier_ssd_files, links_are_not_followed_whatever_they_stand_for)
{
    char real[64], link[64];
    ssd_world_init(&world, SLOTS);
    snprintf(real, sizeof real, "%s-real", world.dir);
    cr_assert(eq(int, mkdir(real, 0700), 0));
    cr_assert(eq(int, symlink(real, world.dir), 0));

    must_be_refused(-EPERM, "link");
    snprintf(link, sizeof link, "%s//", world.dir);
    world.config.dir = link;
    must_be_refused(-EPERM, "link");
    world.config.dir = world.dir;

    cr_assert(eq(int, unlink(world.dir), 0));
    cr_assert(eq(int, mkdir(world.dir, 0700), 0));
    cr_assert(eq(int, symlink(real, ssd_world_path(&world, "layout-0000000000000abc")), 0));
    must_be_refused(-EPERM, "link");
    ssd_world_release(&world);
}

Test(tier_ssd_files, what_stands_where_a_slot_file_should_is_removed_and_not_touched)
{
    char victim[64], other[256], byte = 0;
    ssd_world_init(&world, SLOTS);
    snprintf(victim, sizeof victim, "%s-victim", world.dir);
    ssd_world_split(&world, 1);
    cr_assert(eq(int, ssd_world_open(&world), 0));
    ssd_world_close(&world);
    put_file(victim, 65536);
    cr_assert(eq(int, chmod(victim, 0600), 0));
    cr_assert(eq(int, symlink(victim, ssd_world_slots(&world, 0)), 0));
    cr_assert(eq(int, link(victim, ssd_world_slots(&world, 1)), 0));
    put_file(ssd_world_slots(&world, 2), SSD_SLOT_BYTES);
    cr_assert(eq(int, chmod(ssd_world_slots(&world, 2), 0640), 0));
    cr_assert(eq(int, mkfifo(ssd_world_slots(&world, 3), 0600), 0));

    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    for (unsigned file = 0; file < 4; file++)
        cr_assert(not(is_there(ssd_world_slots(&world, file))));
    cr_assert(eq(int, symlink(victim, ssd_world_slots(&world, 0)), 0)); /* in the midst */
    for (uint32_t slot = 0; slot < 4; slot++)
        cr_assert(eq(int, ssd_world_write(&world, slot, slot), 0));

    for (unsigned file = 0; file < 4; file++)
        cr_assert(eq(u32, mode_of(ssd_world_slots(&world, file)), S_IFREG | 0600));
    snprintf(other, sizeof other, "%s", victim);
    ssd_world_peek(other, 0, &byte, 1);
    cr_assert(eq(int, byte, 0));
    ssd_world_release(&world);
}

Test(tier_ssd_files, two_do_not_share_a_layout_and_the_second_may_come_when_the_first_has_gone)
{
    struct ssd_world second;
    ssd_world_init(&world, SLOTS);
    cr_assert(eq(int, ssd_world_open(&world), 0));
    second = world;

    cr_assert(eq(int, ssd_world_open(&second), -EBUSY));
    cr_assert(strstr(second.why, "another agent") != NULL, "%s", second.why);
    second.config.layout = 0xdef;
    cr_assert(eq(int, ssd_world_open(&second), 0), "%s", second.why);
    ssd_world_close(&world);
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);

    ssd_world_close(&second);
    ssd_world_release(&world);
}

Test(tier_ssd_files, nothing_stays_open)
{
    unsigned before;
    ssd_world_init(&world, SLOTS);
    ssd_world_split(&world, 2);
    before = ssd_world_fds();

    for (int life = 0; life < 3; life++) {
        cr_assert(eq(int, ssd_world_open(&world), 0));
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            cr_assert(eq(int, ssd_world_write(&world, slot, slot), 0));
        ssd_world_close(&world);
        cr_assert(eq(u32, ssd_world_fds(), before));
    }
    cr_assert(eq(int, chmod(world.dir, 0755), 0));
    must_be_refused(-EPERM, "chmod");
    cr_assert(eq(int, chmod(world.dir, 0700), 0));
    world.config.bytes = 100;
    must_be_refused(-ENOSPC, "no room");
    cr_assert(eq(u32, ssd_world_fds(), before));
    ssd_world_release(&world);
}

/* ---- how much ---- */

Test(tier_ssd_files, the_quota_counts_all_that_is_there_and_holds)
{
    ssd_world_init(&world, SLOTS);
    cr_assert(eq(int, mkdir(world.dir, 0700), 0));
    cr_assert(eq(int, mkdir(ssd_world_path(&world, "notes"), 0700), 0));
    put_file(ssd_world_path(&world, "notes/mine"), 3 * SSD_SLOT_BYTES);
    put_file(ssd_world_path(&world, "layout-but-not-ours"), SSD_SLOT_BYTES);

    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    cr_assert(ge(u32, world.tier->slot_count, SLOTS - 5));
    cr_assert(le(u32, world.tier->slot_count, SLOTS - 4));
    for (uint32_t slot = 0; slot < world.tier->slot_count; slot++)
        cr_assert(eq(int, ssd_world_write(&world, slot, slot), 0));

    cr_assert(le(u64, ssd_world_used(world.dir), world.config.bytes + 8192)); /* directories */
    cr_assert(is_there(ssd_world_path(&world, "notes/mine")));
    ssd_world_release(&world);
}

Test(tier_ssd_files, what_others_put_there_later_is_counted_before_a_file_is_made)
{
    ssd_world_init(&world, SLOTS);
    ssd_world_split(&world, 1);
    cr_assert(eq(int, ssd_world_open(&world), 0));
    cr_assert(eq(int, ssd_world_write(&world, 0, 0), 0));
    put_file(ssd_world_path(&world, "layout-0000000000000abc/strange"), 7 * SSD_SLOT_BYTES);

    cr_assert(eq(int, ssd_world_write(&world, 1, 1), 0));
    cr_assert(eq(int, ssd_world_write(&world, 2, 2), -ENOSPC));
    cr_assert(eq(int, ssd_world_write(&world, 0, 9), 0)); /* its file is there */
    cr_assert(eq(int, ssd_world_read(&world, 1, 1), 0));
    ssd_world_release(&world);
}

Test(tier_ssd_files, the_last_bytes_of_the_file_system_stay)
{
    ssd_world_init(&world, SLOTS);
    world.config.reserve_bytes = UINT64_MAX / 2;

    must_be_refused(-ENOSPC, "reserve");
    ssd_world_release(&world);
}

/* A file system of 2 MiB, seen by this process alone. */
static void mount_small(const char *options)
{
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        cr_skip("may not mount here");
    ssd_world_init(&world, 1000);
    cr_assert(eq(int, mount("small", parent(), "tmpfs", 0, options), 0));
}

static void unmount_small(void)
{
    ssd_world_close(&world);
    cr_assert(eq(int, umount(parent()), 0));
    ssd_world_release(&world);
}

Test(tier_ssd_files, no_room_for_its_directory_is_said_with_what_to_do)
{
    mount_small("size=2m,mode=700,nr_inodes=2"); /* with the file system's own directory */

    must_be_refused(-ENOSPC, "cannot be made: No space left on device: make room");
    unmount_small();
}

Test(tier_ssd_files, a_file_system_that_is_read_only_is_refused_whatever_lies_there)
{
    mount_small("size=2m,mode=700");
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    cr_assert(eq(int, ssd_world_write(&world, 0, 0), 0));
    ssd_world_close(&world);

    cr_assert(eq(int, mount(NULL, parent(), NULL, MS_REMOUNT | MS_RDONLY, NULL), 0));
    must_be_refused(-EROFS, "cannot be written: Read-only file system: mount the file system for");
    world.config.dir = ssd_world_path(&world, "other");
    cr_assert(eq(int, ssd_world_open(&world), -EROFS));
    cr_assert(strstr(world.why, "cannot be made: Read-only file system") != NULL, "%s", world.why);
    unmount_small();
}

static uint64_t free_bytes(void)
{
    struct statvfs stat;

    cr_assert(eq(int, statvfs(world.dir, &stat), 0));
    return (uint64_t)stat.f_bavail * stat.f_frsize;
}

/* A clear needs no room, and the first write after it is what says that there is none. */
Test(tier_ssd_files, a_full_file_system_can_be_cleared)
{
    struct tier_slot_found found[1000];
    mount_small("size=2m,mode=700,nr_inodes=6");
    world.config.file_bytes = ssd_world_bytes(4);
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    cr_assert(eq(int, ssd_world_write(&world, 0, 0), 0));
    put_file(ssd_world_path(&world, "../others"), free_bytes());

    cr_assert(eq(int, world.tier->ops->clear(world.tier), 0));

    put_file(ssd_world_path(&world, "../one"), 0); /* takes the inode that the era's file had */
    cr_assert(eq(int, ssd_world_write(&world, 0, 0), -ENOSPC));
    ssd_world_close(&world);
    cr_assert(eq(int, unlink(ssd_world_path(&world, "../others")), 0));
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    cr_assert(eq(int, ssd_world_scan(&world, found), 0));
    cr_assert(eq(int, ssd_world_write(&world, 0, 0), 0));
    unmount_small();
}

Test(tier_ssd_files, a_full_file_system_is_told_its_reserve_stays_and_room_is_used_again)
{
    enum { RESERVE = 256 << 10 };
    uint32_t slot = 0;
    mount_small("size=2m,mode=700");
    ssd_world_split(&world, 4);
    world.config.reserve_bytes = RESERVE;
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    cr_assert(le(u32, world.tier->slot_count, ((2 << 20) - RESERVE) / SSD_SLOT_BYTES));
    put_file(ssd_world_path(&world, "../others"), 1 << 20); /* after we had looked */

    while (slot < world.tier->slot_count && ssd_world_write(&world, slot, slot) == 0)
        slot++;

    cr_assert(eq(u32, slot % 4, 0));
    cr_assert(gt(u32, slot, 16));
    cr_assert(lt(u32, slot, world.tier->slot_count));
    cr_assert(eq(int, ssd_world_write(&world, slot, slot), -ENOSPC));
    cr_assert(ge(u64, free_bytes(), RESERVE));
    cr_assert(eq(int, unlink(ssd_world_path(&world, "../others")), 0));
    cr_assert(eq(int, ssd_world_write(&world, slot, slot), 0));
    for (uint32_t i = 0; i <= slot; i++)
        cr_assert(eq(int, ssd_world_read(&world, i, i), 0));
    unmount_small();
}

Test(tier_ssd_files, layouts_that_nobody_uses_go_when_room_is_needed_the_oldest_first)
{
    char older[256], newer[256];
    ssd_world_init(&world, 11);
    snprintf(older, sizeof older, "%s", ssd_world_path(&world, "layout-0000000000000002"));
    snprintf(newer, sizeof newer, "%s", ssd_world_path(&world, "layout-0000000000000001"));
    leave_layout(0x2, 3);
    leave_layout(0x1, 3);
    ssd_world_split(&world, 4);
    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    cr_assert(eq(u32, world.tier->slot_count, 11));

    cr_assert(eq(int, ssd_world_write(&world, 0, 0), 0)); /* 3 + 3 + 4 */
    cr_assert(is_there(older) && is_there(newer));
    cr_assert(eq(int, ssd_world_write(&world, 4, 4), 0)); /* 3 + 4 + 4 */
    cr_assert(not(is_there(older)));
    cr_assert(is_there(newer));
    cr_assert(eq(int, ssd_world_write(&world, 8, 8), 0)); /* 4 + 4 + 3 */
    cr_assert(not(is_there(newer)));
    cr_assert(le(u64, ssd_world_used(world.dir), world.config.bytes + 16384));
    ssd_world_release(&world);
}

Test(tier_ssd_files, a_layout_that_another_uses_stays_and_has_a_quota_of_its_own)
{
    struct ssd_world other;
    ssd_world_init(&world, SLOTS);
    other = world;
    other.config.layout = 0x3;
    cr_assert(eq(int, ssd_world_open(&other), 0));
    cr_assert(eq(int, ssd_world_write(&other, 0, 0), 0));

    cr_assert(eq(int, ssd_world_open(&world), 0), "%s", world.why);
    cr_assert(eq(u32, world.tier->slot_count, SLOTS));
    cr_assert(eq(int, ssd_world_write(&world, 0, 7), 0));

    cr_assert(eq(int, ssd_world_read(&other, 0, 0), 0));
    ssd_world_close(&other);
    ssd_world_release(&world);
}

Test(tier_ssd_files, each_error_of_the_system_has_its_advice)
{
    static const struct {
        int status;
        const char *advice;
    } rows[] = {
        {-EACCES, "let the agent's user write there"},
        {-EPERM, "let the agent's user write there"},
        {-ENOENT, "make the directory"},
        {-ENOTDIR, "make the directory"},
        {-EROFS, "mount the file system for writing"},
        {-ENOSPC, "lower --ssd-bytes"},
        {-EDQUOT, "lower --ssd-bytes"},
        {-EFBIG, "lower --ssd-bytes"},
        {-EMFILE, "ulimit -n"},
        {-ENFILE, "ulimit -n"},
        {-EIO, "the disk may be failing"},
        {-ENODEV, "--ssd-dir"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_assert(strstr(tier_ssd_advice(rows[i].status), rows[i].advice) != NULL, "%d: %s",
                  rows[i].status, tier_ssd_advice(rows[i].status));
}
