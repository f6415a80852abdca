/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/fault_point.h"
#include "backends/runtime/system_random.h"
#include "hashing/checksum.h"
#include "kvtier/tiers/block_io.h"
#include "kvtier/tiers/slot_header.h"
#include "kvtier/tiers/tier.h"
#include "kvtier/tiers/tier_ssd_files.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/*
 * DESIGN
 *
 *   slot   | header, a sector of its own | payload, whole sectors |
 *
 * Writing is three rounds over a batch: headers that may be there are zeroed; payloads; headers. A
 * round begins when the one before has ended, so that at any moment a header is on its way only
 * behind its payload. That holds for whatever ends this process. Nothing is synced: an fsync() a
 * slot costs milliseconds and worn cells, and what a power cut may leave, a header without all of
 * its payload, is what the checksum is there for: a miss.
 *
 * A header stands in a sector of its own, so that writing it never reads or rewrites a neighbour's
 * bytes. Reading is one transfer of header and payload together; the header is judged first.
 *
 * may_hold remembers which slots may have a header on the disk: of those nobody has written since
 * their file was made, or that were erased, nothing need be zeroed.
 *
 * sequence orders the writings of all lives by the clock at the start of each: where that went back
 * an older copy may count as the newer, which is harmless, as two slots of one key hold the same.
 */

enum { BATCH = 128 };

/* What a batch needs beside its pages; kept from call to call. */
struct scratch {
    uint8_t headers[BATCH][TIER_ALIGN_BYTES]; /* first: aligned as the whole is */
    struct block_io_op ops[BATCH];
    uint32_t of_op[BATCH]; /* which of the batch an op is for */
    struct load {
        const struct tier_ssd *ssd;
        struct tier_transfer *transfer;
        const uint8_t *header;
    } loads[BATCH];
    size_t op_count;
    struct scratch *next;
};

struct tier_ssd {
    struct tier tier;
    struct ssd_files *files;
    struct block_io *io;
    char way[32];
    uint64_t epoch;
    atomic_uint_fast64_t sequence;
    atomic_uchar *may_hold; /* [slot_count]; atomic, as a scan looks at slots being written */
    pthread_mutex_t mutex;
    struct scratch *scratch; /* not in use */
};

static struct tier_ssd *of(struct tier *tier)
{
    return (struct tier_ssd *)tier; /* its first member */
}

/* ---- scratch ---- */

static struct scratch *acquire(struct tier_ssd *ssd)
{
    struct scratch *scratch;

    (void)pthread_mutex_lock(&ssd->mutex);
    scratch = ssd->scratch;
    if (scratch != NULL)
        ssd->scratch = scratch->next;
    (void)pthread_mutex_unlock(&ssd->mutex);
    if (scratch == NULL) {
        size_t bytes = (sizeof *scratch + TIER_ALIGN_BYTES - 1) & ~(size_t)(TIER_ALIGN_BYTES - 1);

        scratch = aligned_alloc(TIER_ALIGN_BYTES, bytes); /* the first time so many call at once */
    }
    return scratch;
}

static void give_back(struct tier_ssd *ssd, struct scratch *scratch)
{
    (void)pthread_mutex_lock(&ssd->mutex);
    scratch->next = ssd->scratch;
    ssd->scratch = scratch;
    (void)pthread_mutex_unlock(&ssd->mutex);
}

/* ---- rounds ---- */

static struct block_io_op *add_op(struct scratch *scratch, const struct ssd_place *place,
                                  uint32_t of_op, bool is_write)
{
    struct block_io_op *op = &scratch->ops[scratch->op_count];

    scratch->of_op[scratch->op_count++] = of_op;
    *op = (struct block_io_op){.fd = place->fd,
                               .direct_fd = place->direct_fd,
                               .is_write = is_write,
                               .offset = place->offset};
    return op;
}

static void add_part(struct block_io_op *op, void *bytes, size_t len)
{
    op->parts[op->part_count++] = (struct iovec){.iov_base = bytes, .iov_len = len};
}

static int write_status(int status)
{
    bool is_no_room = status == -ENOSPC || status == -EDQUOT || status == -EFBIG;

    return status == 0 ? 0 : is_no_room ? -ENOSPC : -EIO;
}

/* The transfers whose op failed fail. */
static void run_writes(struct tier_ssd *ssd, struct scratch *scratch,
                       struct tier_transfer *transfers)
{
    block_io_run(ssd->io, scratch->ops, scratch->op_count);
    for (size_t i = 0; i < scratch->op_count; i++)
        if (scratch->ops[i].status < 0)
            transfers[scratch->of_op[i]].status = write_status(scratch->ops[i].status);
    scratch->op_count = 0;
}

static struct ssd_place place_of(const struct tier_ssd *ssd, uint32_t slot)
{
    struct ssd_place place;
    bool is_there = ssd_files_find(ssd->files, slot, &place);

    assert(is_there); /* made, or found, by whoever began the batch */
    return place;
}

static void add_header_write(struct tier_ssd *ssd, struct scratch *scratch, uint32_t slot,
                             uint32_t of_op)
{
    struct ssd_place place = place_of(ssd, slot);

    add_part(add_op(scratch, &place, of_op, true), scratch->headers[of_op], TIER_ALIGN_BYTES);
}

/* ---- writing ---- */

static void zero_headers(struct tier_ssd *ssd, struct scratch *scratch,
                         struct tier_transfer *transfers, size_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct ssd_place place;

        memset(scratch->headers[i], 0, TIER_ALIGN_BYTES);
        transfers[i].status = ssd_files_make(ssd->files, transfers[i].slot, &place);
        if (transfers[i].status == 0 && ssd->may_hold[transfers[i].slot])
            add_header_write(ssd, scratch, transfers[i].slot, i);
    }
    run_writes(ssd, scratch, transfers);
}

static void write_payloads(struct tier_ssd *ssd, struct scratch *scratch,
                           struct tier_transfer *transfers, size_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct ssd_place place;

        if (transfers[i].status < 0)
            continue;
        place = place_of(ssd, transfers[i].slot);
        place.offset += TIER_ALIGN_BYTES;
        add_part(add_op(scratch, &place, i, true), transfers[i].payload,
                 tier_stride_bytes(ssd->tier.page_bytes));
    }
    run_writes(ssd, scratch, transfers);
}

static void write_headers(struct tier_ssd *ssd, struct scratch *scratch,
                          struct tier_transfer *transfers, size_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct tier_transfer *transfer = &transfers[i];

        if (transfer->status < 0)
            continue;
        slot_header_write(
            &(struct slot_header){
                .layout = ssd->tier.layout,
                .key = transfer->key,
                .parent = transfer->parent,
                .depth = transfer->depth,
                .payload_len = ssd->tier.page_bytes,
                .payload_checksum = checksum(transfer->payload, ssd->tier.page_bytes),
                .sequence = atomic_fetch_add(&ssd->sequence, 1),
                .epoch = ssd->epoch,
            },
            scratch->headers[i]);
        ssd->may_hold[transfer->slot] = 1; /* whatever becomes of it from here on */
        add_header_write(ssd, scratch, transfer->slot, i);
    }
    run_writes(ssd, scratch, transfers);
}

static size_t write_batch(struct tier_ssd *ssd, struct scratch *scratch,
                          struct tier_transfer *transfers, size_t count)
{
    size_t good = 0;

    scratch->op_count = 0;
    zero_headers(ssd, scratch, transfers, count);
    write_payloads(ssd, scratch, transfers, count);
    fault_point_pass(FAULT_DEMOTE_PAYLOAD);
    write_headers(ssd, scratch, transfers, count);
    fault_point_pass(FAULT_DEMOTE_HEADER);
    for (size_t i = 0; i < count; i++)
        good += transfers[i].status == 0;
    return good;
}

/* ---- reading ---- */

static int judge(const struct load *load)
{
    uint32_t page_bytes = load->ssd->tier.page_bytes;
    const struct slot_header expected = {
        .layout = load->ssd->tier.layout, .key = load->transfer->key, .payload_len = page_bytes};
    struct slot_header header;
    int status = slot_header_expect(&header, load->header, &expected);

    if (status == 0 && checksum(load->transfer->payload, page_bytes) != header.payload_checksum)
        status = -EBADMSG;
    return status;
}

/* While others of the batch are still on their way. */
static void on_read(struct block_io_op *op)
{
    const struct load *load = op->ctx;

    if (op->status == 0)
        load->transfer->status = judge(load);
    else if (op->status != -ENODATA) /* which is a file that somebody cut: a miss */
        load->transfer->status = -EIO;
}

static size_t read_batch(struct tier_ssd *ssd, struct scratch *scratch,
                         struct tier_transfer *transfers, size_t count)
{
    size_t good = 0;

    scratch->op_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct block_io_op *op;
        struct ssd_place place;

        transfers[i].status = -EBADMSG;
        if (!ssd_files_find(ssd->files, transfers[i].slot, &place))
            continue;
        op = add_op(scratch, &place, i, false);
        add_part(op, scratch->headers[i], TIER_ALIGN_BYTES);
        add_part(op, transfers[i].payload, tier_stride_bytes(ssd->tier.page_bytes));
        scratch->loads[i] = (struct load){ssd, &transfers[i], scratch->headers[i]};
        op->on_done = on_read;
        op->ctx = &scratch->loads[i];
    }
    block_io_run(ssd->io, scratch->ops, scratch->op_count);
    for (size_t i = 0; i < count; i++)
        good += transfers[i].status == 0;
    return good;
}

/* ---- the tier ---- */

typedef size_t batch_fn(struct tier_ssd *ssd, struct scratch *scratch,
                        struct tier_transfer *transfers, size_t count);

static size_t in_batches(struct tier *tier, struct tier_transfer *transfers, size_t count,
                         batch_fn *batch)
{
    struct tier_ssd *ssd = of(tier);
    struct scratch *scratch = acquire(ssd);
    size_t good = 0;

    for (size_t at = 0; at < count; at += BATCH) {
        size_t left = count - at;

        if (scratch != NULL)
            good += batch(ssd, scratch, transfers + at, left < BATCH ? left : BATCH);
        for (size_t i = at; scratch == NULL && i < count; i++)
            transfers[i].status = -EIO; /* no memory */
    }
    if (scratch != NULL)
        give_back(ssd, scratch);
    return good;
}

static size_t write_slots(struct tier *tier, struct tier_transfer *transfers, size_t count)
{
    return in_batches(tier, transfers, count, write_batch);
}

static size_t read_slots(struct tier *tier, struct tier_transfer *transfers, size_t count)
{
    return in_batches(tier, transfers, count, read_batch);
}

/* What cannot be erased may be found again: it is still what its header says. */
static void erase(struct tier *tier, const uint32_t *slots, size_t count)
{
    struct tier_ssd *ssd = of(tier);
    struct scratch *scratch = acquire(ssd);

    if (scratch == NULL)
        return;
    memset(scratch->headers[0], 0, TIER_ALIGN_BYTES);
    for (size_t at = 0; at < count; at += BATCH) {
        scratch->op_count = 0;
        for (size_t i = at; i < count && i < at + BATCH; i++) {
            struct ssd_place place;

            if (!ssd->may_hold[slots[i]] || !ssd_files_find(ssd->files, slots[i], &place))
                continue;
            add_part(add_op(scratch, &place, (uint32_t)(i - at), true), scratch->headers[0],
                     TIER_ALIGN_BYTES);
        }
        block_io_run(ssd->io, scratch->ops, scratch->op_count);
        for (size_t i = 0; i < scratch->op_count; i++)
            if (scratch->ops[i].status == 0)
                ssd->may_hold[slots[at + scratch->of_op[i]]] = 0;
    }
    give_back(ssd, scratch);
}

static bool find(const struct tier_ssd *ssd, const uint8_t *header_bytes, uint32_t slot,
                 struct tier_slot_found *found)
{
    struct slot_header header;

    if (slot_header_read(&header, header_bytes) < 0 || header.layout != ssd->tier.layout ||
        header.payload_len != ssd->tier.page_bytes)
        return false;
    *found = (struct tier_slot_found){.slot = slot,
                                      .key = header.key,
                                      .parent = header.parent,
                                      .depth = header.depth,
                                      .sequence = header.sequence};
    return true;
}

/* Of slots [first, first + count), at most BATCH: reads the headers that there may be. Returns how
 * many could not be read. */
static size_t read_headers(struct tier_ssd *ssd, struct scratch *scratch, uint32_t first,
                           uint32_t count)
{
    scratch->op_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct ssd_place place;

        if (ssd->may_hold[first + i] && ssd_files_find(ssd->files, first + i, &place))
            add_part(add_op(scratch, &place, i, false), scratch->headers[i], TIER_ALIGN_BYTES);
    }
    return scratch->op_count - block_io_run(ssd->io, scratch->ops, scratch->op_count);
}

static int scan(struct tier *tier, uint32_t first, uint32_t count, struct tier_slot_found *found)
{
    struct tier_ssd *ssd = of(tier);
    struct scratch *scratch = acquire(ssd);
    size_t tried = 0, failed = 0;
    int found_count = 0;

    assert(first <= tier->slot_count && count <= tier->slot_count - first && count <= INT32_MAX);
    if (scratch == NULL)
        return -EIO;
    for (uint32_t at = 0; at < count; at += BATCH) {
        failed += read_headers(ssd, scratch, first + at, count - at < BATCH ? count - at : BATCH);
        tried += scratch->op_count;
        for (size_t i = 0; i < scratch->op_count; i++) {
            uint32_t slot = first + at + scratch->of_op[i];

            if (scratch->ops[i].status == 0 &&
                find(ssd, scratch->headers[scratch->of_op[i]], slot, &found[found_count]))
                found_count++;
        }
    }
    give_back(ssd, scratch);
    return tried > 0 && failed == tried ? -EIO : found_count;
}

static void destroy(struct tier *tier)
{
    struct tier_ssd *ssd = of(tier);

    while (ssd->scratch != NULL) {
        struct scratch *next = ssd->scratch->next;

        free(ssd->scratch);
        ssd->scratch = next;
    }
    block_io_destroy(&ssd->io);
    ssd_files_close(&ssd->files);
    (void)pthread_mutex_destroy(&ssd->mutex);
    free(ssd->may_hold);
    free(ssd);
}

static const struct tier_ops tier_ssd_ops = {
    .name = "ssd",
    .write = write_slots,
    .read = read_slots,
    .erase = erase,
    .scan = scan,
    .destroy = destroy,
};

static int set_up(struct tier_ssd *ssd, const struct tier_ssd_config *config,
                  char why[TIER_WHY_BYTES])
{
    int status = ssd_files_open(config, &ssd->files, why);

    if (status == 0 && ssd->io == NULL)
        status = block_io_create(config->may_use_uring, &ssd->io);
    if (status < 0)
        return status;
    ssd->tier.slot_count = ssd_files_slot_count(ssd->files);
    ssd->may_hold = calloc(ssd->tier.slot_count, sizeof *ssd->may_hold);
    if (ssd->may_hold == NULL)
        return -ENOMEM;
    for (uint32_t slot = 0; slot < ssd->tier.slot_count; slot++) {
        struct ssd_place place;

        ssd->may_hold[slot] = ssd_files_find(ssd->files, slot, &place);
    }
    snprintf(ssd->way, sizeof ssd->way, "%s %s", ssd->io->ops->name,
             ssd_files_are_direct(ssd->files) ? "O_DIRECT" : "buffered");
    return 0;
}

static uint64_t first_sequence(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int tier_ssd_create(struct tier_ssd_config config, struct tier **tier, char why[TIER_WHY_BYTES])
{
    struct tier_ssd *ssd = calloc(1, sizeof *ssd);
    int status = -ENOMEM;

    snprintf(why, TIER_WHY_BYTES, "no memory");
    if (ssd == NULL) {
        block_io_destroy(&config.io);
        return status;
    }
    ssd->tier = (struct tier){
        .ops = &tier_ssd_ops, .page_bytes = config.page_bytes, .layout = config.layout};
    ssd->io = config.io;
    (void)pthread_mutex_init(&ssd->mutex, NULL);
    ssd->epoch = system_random_id();
    atomic_init(&ssd->sequence, first_sequence());
    status = set_up(ssd, &config, why);
    if (status < 0)
        destroy(&ssd->tier);
    else
        *tier = &ssd->tier;
    return status;
}

const char *tier_ssd_way(const struct tier *tier)
{
    return ((const struct tier_ssd *)tier)->way;
}
