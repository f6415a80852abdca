/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_ssd_lists.h"

#include "backends/runtime/system_random.h"
#include "kvtier/tiers/block_io.h"
#include "kvtier/tiers/slot_list.h"
#include "kvtier/tiers/tier_ssd_era.h"
#include "kvtier/tiers/tier_ssd_files.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/*
 * DESIGN
 *
 * Every list is kept in memory as well, 57 bytes a slot: a list that changes is written whole
 * without being read, and those of a batch that stand on one list are one write. It is read once:
 * by the restart scan, or before it changes if that comes first. Slots on it that were cut off the
 * file since are taken off it then: the quota was smaller for a while.
 *
 * differs says that the disk may hold another list than memory: it is written before a slot of it
 * is, whether this slot is on it or not. Reading a list that cannot be read gives an empty one that
 * differs: writing it is what mends a sector.
 *
 * A clear draws a new era and removes the file that names the old one: one change of a directory,
 * needing no room, after which a later life believes nothing. The file of the new era is written
 * before the first slot of it. Whoever began to write before the clear lists nothing after it.
 * Lists in memory are of the era that they say, and are empty ones when they are next looked at.
 *
 * sequence orders the writings of all lives by the clock at the start of each: where that went back
 * an older copy may count as the newer, which is harmless, as two slots of one key hold the same.
 *
 * One mutex is held while lists are read and written: there is one writer, and loads do not come
 * here.
 */

enum { TOUCHED_MAX = 128 };

struct list_state {
    uint64_t era;    /* of the bytes in memory; another than now's: the list is empty */
    int status;      /* of its last writing */
    bool is_read;    /* else the bytes are only on the disk */
    bool differs;    /* the disk may have other bytes */
    bool is_cut;     /* as there are slots on the disk's that are not in the file */
    bool is_touched; /* by the call in hand */
};

struct ssd_lists {
    struct ssd_files *files;
    struct block_io *io;
    const struct tier *tier;
    atomic_uint_fast64_t era;
    uint64_t sequence;
    bool is_named; /* the era, by its file */
    pthread_mutex_t mutex;
    uint32_t count;
    struct list_state *states;
    uint8_t (*lists)[SLOT_LIST_BYTES];
    uint32_t touched[TOUCHED_MAX];
    struct block_io_op ops[TOUCHED_MAX];
    uint32_t of_op[TOUCHED_MAX];
    size_t touched_count;
    size_t op_count;
};

uint64_t ssd_lists_era(const struct ssd_lists *lists)
{
    return atomic_load(&lists->era);
}

/* ---- the lists of the call in hand ---- */

static struct slot_list_owner owner_of(const struct ssd_lists *lists)
{
    return (struct slot_list_owner){.layout = lists->tier->layout,
                                    .era = ssd_lists_era(lists),
                                    .page_bytes = lists->tier->page_bytes};
}

static void make_empty(struct ssd_lists *lists, uint32_t list)
{
    const struct slot_list_owner owner = owner_of(lists);

    slot_list_init(lists->lists[list], &owner);
    lists->states[list].era = owner.era;
    lists->states[list].is_read = true;
}

/* The list that slot is on. */
static uint32_t touch(struct ssd_lists *lists, uint32_t slot)
{
    unsigned at;
    const uint32_t list = ssd_files_list_of(lists->files, slot, &at);
    struct list_state *state = &lists->states[list];

    if (state->era != ssd_lists_era(lists)) {
        make_empty(lists, list);
        state->differs = false; /* what the disk has is of another era */
    }
    if (!state->is_touched) {
        assert(lists->touched_count < TOUCHED_MAX);
        lists->touched[lists->touched_count++] = list;
        state->is_touched = true;
        state->status = 0;
    }
    return list;
}

static void let_go(struct ssd_lists *lists)
{
    for (size_t i = 0; i < lists->touched_count; i++)
        lists->states[lists->touched[i]].is_touched = false;
    lists->touched_count = 0;
}

/* False: its file is not there, and so neither is what it lists. */
static bool add_op(struct ssd_lists *lists, uint32_t list, bool is_write)
{
    struct ssd_place place;

    if (!ssd_files_find_list(lists->files, list, &place))
        return false;
    lists->of_op[lists->op_count] = list;
    lists->ops[lists->op_count++] = (struct block_io_op){
        .fd = place.fd,
        .direct_fd = place.direct_fd,
        .is_write = is_write,
        .offset = place.offset,
        .parts = {{.iov_base = lists->lists[list], .iov_len = SLOT_LIST_BYTES}},
        .part_count = 1};
    return true;
}

/* As read from the disk: takes slots off it that the file has lost, or never had. */
static void drop_cut(struct ssd_lists *lists, uint32_t list)
{
    for (unsigned at = 0; at < SLOT_LIST_SLOTS; at++) {
        const uint32_t slot = ssd_files_list_slot(lists->files, list, at);
        struct slot_list_entry entry;

        if ((slot != UINT32_MAX && !ssd_files_is_cut(lists->files, slot)) ||
            !slot_list_get(lists->lists[list], at, &entry))
            continue;
        slot_list_drop(lists->lists[list], at);
        lists->states[list].is_cut = lists->states[list].differs = true;
    }
}

/* Those touched that only the disk has. Sets how many were tried; returns how many failed. */
static size_t read_touched(struct ssd_lists *lists, size_t *tried)
{
    const struct slot_list_owner owner = owner_of(lists);
    size_t failed;

    lists->op_count = 0;
    for (size_t i = 0; i < lists->touched_count; i++) {
        const uint32_t list = lists->touched[i];

        if (!lists->states[list].is_read && !add_op(lists, list, false))
            make_empty(lists, list);
    }
    failed = lists->op_count - block_io_run(lists->io, lists->ops, lists->op_count);
    for (size_t i = 0; i < lists->op_count; i++) {
        const uint32_t list = lists->of_op[i];
        const int status = lists->ops[i].status;

        lists->states[list].differs = status < 0;
        if (status < 0 || slot_list_check(lists->lists[list], &owner) < 0)
            make_empty(lists, list);
        else
            drop_cut(lists, list);
        lists->states[list].is_read = true;
    }
    *tried += lists->op_count;
    return failed;
}

/* Those touched that the disk has not, or only those that were cut. */
static void write_touched(struct ssd_lists *lists, bool is_cut)
{
    lists->op_count = 0;
    for (size_t i = 0; i < lists->touched_count; i++) {
        const uint32_t list = lists->touched[i];

        if (!lists->states[list].differs || (is_cut && !lists->states[list].is_cut))
            continue;
        slot_list_seal(lists->lists[list]);
        if (!add_op(lists, list, true))
            lists->states[list].differs = false;
    }
    (void)block_io_run(lists->io, lists->ops, lists->op_count);
    for (size_t i = 0; i < lists->op_count; i++) {
        struct list_state *state = &lists->states[lists->of_op[i]];

        state->status = ssd_write_status(lists->ops[i].status);
        state->differs = state->status < 0;
        state->is_cut &= state->differs;
    }
}

/* ---- changes ---- */

static void drop(struct ssd_lists *lists, uint32_t slot)
{
    struct slot_list_entry entry;
    unsigned at;
    const uint32_t list = ssd_files_list_of(lists->files, slot, &at);

    if (!slot_list_get(lists->lists[list], at, &entry))
        return;
    slot_list_drop(lists->lists[list], at);
    lists->states[list].differs = true;
}

static void put(struct ssd_lists *lists, const struct tier_transfer *transfer)
{
    unsigned at;
    const uint32_t list = ssd_files_list_of(lists->files, transfer->slot, &at);

    slot_list_put(lists->lists[list], at,
                  &(struct slot_list_entry){.key = transfer->key,
                                            .parent = transfer->parent,
                                            .depth = transfer->depth,
                                            .sequence = lists->sequence++});
    lists->states[list].differs = true;
}

/* Touches the lists of those that are good so far, and has them in memory. */
static void begin_changes(struct ssd_lists *lists, const struct tier_transfer *transfers,
                          size_t count)
{
    size_t tried = 0;

    assert(count <= TOUCHED_MAX);

    for (size_t i = 0; i < count; i++)
        if (transfers[i].status == 0)
            (void)touch(lists, transfers[i].slot);
    (void)read_touched(lists, &tried);
}

/* Those whose list cannot be written fail. */
static void end_changes(struct ssd_lists *lists, struct tier_transfer *transfers, size_t count)
{
    write_touched(lists, false);
    for (size_t i = 0; i < count; i++) {
        unsigned at;

        if (transfers[i].status == 0)
            transfers[i].status =
                lists->states[ssd_files_list_of(lists->files, transfers[i].slot, &at)].status;
    }
    let_go(lists);
}

void ssd_lists_drop(struct ssd_lists *lists, struct tier_transfer *transfers, size_t count)
{
    (void)pthread_mutex_lock(&lists->mutex);
    begin_changes(lists, transfers, count);
    for (size_t i = 0; i < count; i++)
        if (transfers[i].status == 0)
            drop(lists, transfers[i].slot);
    end_changes(lists, transfers, count);
    (void)pthread_mutex_unlock(&lists->mutex);
}

/* One that cannot be written may be on the disk all the same: then a later life finds what is
 * right. This one does not count on it. */
void ssd_lists_put(struct ssd_lists *lists, struct tier_transfer *transfers, size_t count,
                   uint64_t era)
{
    (void)pthread_mutex_lock(&lists->mutex);
    if (era == ssd_lists_era(lists)) {
        begin_changes(lists, transfers, count);
        for (size_t i = 0; i < count; i++)
            if (transfers[i].status == 0)
                put(lists, &transfers[i]);
        end_changes(lists, transfers, count);
        for (size_t i = 0; i < count; i++)
            if (transfers[i].status < 0)
                drop(lists, transfers[i].slot); /* which keeps it differing */
    }
    (void)pthread_mutex_unlock(&lists->mutex);
}

/* What cannot be erased may be found again: loading it will fail again. */
void ssd_lists_erase(struct ssd_lists *lists, const uint32_t *slots, size_t count)
{
    size_t tried = 0;

    (void)pthread_mutex_lock(&lists->mutex);
    for (size_t from = 0; from < count; from += TOUCHED_MAX) {
        const size_t end = count - from < TOUCHED_MAX ? count : from + TOUCHED_MAX;

        for (size_t i = from; i < end; i++)
            (void)touch(lists, slots[i]);
        (void)read_touched(lists, &tried);
        for (size_t i = from; i < end; i++)
            drop(lists, slots[i]);
        write_touched(lists, false);
        let_go(lists);
    }
    (void)pthread_mutex_unlock(&lists->mutex);
}

/* ---- looking ---- */

static bool find(const struct ssd_lists *lists, uint32_t slot, struct tier_slot_found *found)
{
    struct slot_list_entry entry;
    unsigned at;
    const uint32_t list = ssd_files_list_of(lists->files, slot, &at);

    if (!slot_list_get(lists->lists[list], at, &entry))
        return false;
    *found = (struct tier_slot_found){.slot = slot,
                                      .key = entry.key,
                                      .parent = entry.parent,
                                      .depth = entry.depth,
                                      .sequence = entry.sequence};
    return true;
}

/* Slots from first on, whose lists may be touched at once; returns the first that may not, or end.
 */
static uint32_t touch_some(struct ssd_lists *lists, uint32_t first, uint32_t end)
{
    uint32_t slot = first;

    while (slot < end && lists->touched_count < TOUCHED_MAX)
        (void)touch(lists, slot++);
    return slot;
}

int ssd_lists_scan(struct ssd_lists *lists, uint32_t first, uint32_t count,
                   struct tier_slot_found *found)
{
    const uint32_t end = first + count;
    size_t tried = 0, failed = 0;
    int found_count = 0;

    (void)pthread_mutex_lock(&lists->mutex);
    for (uint32_t slot = first; slot < end;) {
        const uint32_t next = touch_some(lists, slot, end);

        failed += read_touched(lists, &tried);
        write_touched(lists, true); /* or the next life would find them */
        for (; slot < next; slot++)
            found_count += find(lists, slot, &found[found_count]);
        let_go(lists);
    }
    (void)pthread_mutex_unlock(&lists->mutex);
    return tried > 0 && failed == tried ? -EIO : found_count;
}

/* ---- eras ---- */

int ssd_lists_begin(struct ssd_lists *lists, uint64_t *era)
{
    int status = 0;

    (void)pthread_mutex_lock(&lists->mutex);
    *era = ssd_lists_era(lists);
    if (!lists->is_named)
        status = ssd_era_write(ssd_files_dir_fd(lists->files), lists->tier->layout, *era);
    lists->is_named = status == 0;
    (void)pthread_mutex_unlock(&lists->mutex);
    return ssd_write_status(status);
}

int ssd_lists_clear(struct ssd_lists *lists)
{
    int status;

    (void)pthread_mutex_lock(&lists->mutex);
    atomic_store(&lists->era, system_random_id());
    lists->is_named = false;
    status = ssd_era_remove(ssd_files_dir_fd(lists->files));
    (void)pthread_mutex_unlock(&lists->mutex);
    return status < 0 ? -EIO : 0;
}

/* ---- life ---- */

static uint64_t first_sequence(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Lists that the era's file speaks for are on the disk; others are empty when they are touched. */
static int find_era(struct ssd_lists *lists)
{
    uint64_t era;
    const int status = ssd_era_read(ssd_files_dir_fd(lists->files), lists->tier->layout, &era);

    lists->is_named = status == 0;
    atomic_init(&lists->era, status == 0 ? era : system_random_id());
    for (uint32_t list = 0; status == 0 && list < lists->count; list++) {
        struct ssd_place place;

        if (ssd_files_find_list(lists->files, list, &place))
            lists->states[list].era = era;
    }
    return status;
}

int ssd_lists_create(struct ssd_files *files, struct block_io *io, const struct tier *tier,
                     struct ssd_lists **created, int *found)
{
    struct ssd_lists *lists = calloc(1, sizeof *lists);
    void *memory = MAP_FAILED;

    *created = NULL;
    if (lists == NULL)
        return -ENOMEM;
    lists->count = ssd_files_list_count(files);
    lists->states = calloc(lists->count, sizeof *lists->states);
    if (lists->states != NULL) /* takes memory as lists are touched */
        memory = mmap(NULL, (size_t)lists->count * SLOT_LIST_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        free(lists->states);
        free(lists);
        return -ENOMEM;
    }
    lists->files = files;
    lists->io = io;
    lists->tier = tier;
    lists->lists = memory;
    lists->sequence = first_sequence();
    (void)pthread_mutex_init(&lists->mutex, NULL);
    *found = find_era(lists);
    *created = lists;
    return 0;
}

void ssd_lists_destroy(struct ssd_lists **destroyed)
{
    struct ssd_lists *lists = *destroyed;

    *destroyed = NULL;
    if (lists == NULL)
        return;
    (void)munmap(lists->lists, (size_t)lists->count * SLOT_LIST_BYTES);
    (void)pthread_mutex_destroy(&lists->mutex);
    free(lists->states);
    free(lists);
}
