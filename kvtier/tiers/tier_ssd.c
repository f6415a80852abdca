/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/fault_point.h"
#include "backends/runtime/log.h"
#include "hashing/checksum.h"
#include "kvtier/tiers/block_io.h"
#include "kvtier/tiers/slot_header.h"
#include "kvtier/tiers/tier.h"
#include "kvtier/tiers/tier_ssd_dir.h"
#include "kvtier/tiers/tier_ssd_files.h"
#include "kvtier/tiers/tier_ssd_lists.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 *   slot   | header, a sector of its own | payload, whole sectors |
 *
 * Writing is three rounds over a batch: the slots are taken off their lists (slot_list.h); headers
 * and payloads; the slots are listed. A round begins when the one before has ended, so that at any
 * moment what is listed is whole. That holds for whatever ends this process. Nothing is synced: an
 * fsync() a slot costs milliseconds and worn cells, and what a power cut may leave, a slot that is
 * listed without all of its bytes, is what header and checksum are there for: a miss.
 *
 * The header stands in a sector of its own before the payload, so that both are written and read in
 * one transfer; the header is judged first. It says again what the list says: a list tells a
 * restart where to look, and is believed by no load.
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
    struct ssd_lists *lists;
    char way[32];
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

/* ---- writing ---- */

/* It is there already, or is made now. */
static void make_files(struct tier_ssd *ssd, struct tier_transfer *transfers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct ssd_place place;

        transfers[i].status = ssd_files_make(ssd->files, transfers[i].slot, &place);
    }
}

static void make_header(const struct tier_ssd *ssd, const struct tier_transfer *transfer,
                        uint64_t era, uint8_t header[TIER_ALIGN_BYTES])
{
    memset(header, 0, TIER_ALIGN_BYTES);
    slot_header_write(
        &(struct slot_header){
            .layout = ssd->tier.layout,
            .key = transfer->key,
            .parent = transfer->parent,
            .depth = transfer->depth,
            .payload_len = ssd->tier.page_bytes,
            .payload_checksum = checksum(transfer->payload, ssd->tier.page_bytes),
            .era = era,
        },
        header);
}

static void write_pages(struct tier_ssd *ssd, struct scratch *scratch,
                        struct tier_transfer *transfers, size_t count, uint64_t era)
{
    scratch->op_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct ssd_place place;
        struct block_io_op *op;

        if (transfers[i].status < 0 || !ssd_files_find(ssd->files, transfers[i].slot, &place))
            continue;
        make_header(ssd, &transfers[i], era, scratch->headers[i]);
        op = add_op(scratch, &place, i, true);
        add_part(op, scratch->headers[i], TIER_ALIGN_BYTES);
        add_part(op, transfers[i].payload, tier_stride_bytes(ssd->tier.page_bytes));
    }
    (void)block_io_run(ssd->io, scratch->ops, scratch->op_count);
    for (size_t i = 0; i < scratch->op_count; i++)
        transfers[scratch->of_op[i]].status = ssd_write_status(scratch->ops[i].status);
}

static size_t write_batch(struct tier_ssd *ssd, struct scratch *scratch,
                          struct tier_transfer *transfers, size_t count)
{
    size_t good = 0;
    uint64_t era;
    int status = ssd_lists_begin(ssd->lists, &era);

    for (size_t i = 0; status < 0 && i < count; i++)
        transfers[i].status = status;
    if (status < 0)
        return 0;
    make_files(ssd, transfers, count);
    ssd_lists_drop(ssd->lists, transfers, count);
    write_pages(ssd, scratch, transfers, count, era);
    fault_point_pass(FAULT_DEMOTE_WRITTEN);
    ssd_lists_put(ssd->lists, transfers, count, era);
    fault_point_pass(FAULT_DEMOTE_LISTED);
    for (size_t i = 0; i < count; i++)
        good += transfers[i].status == 0;
    return good;
}

/* ---- reading ---- */

static int judge(const struct load *load)
{
    uint32_t page_bytes = load->ssd->tier.page_bytes;
    const struct slot_header expected = {.layout = load->ssd->tier.layout,
                                         .era = ssd_lists_era(load->ssd->lists),
                                         .key = load->transfer->key,
                                         .payload_len = page_bytes};
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

static void erase(struct tier *tier, const uint32_t *slots, size_t count)
{
    ssd_lists_erase(of(tier)->lists, slots, count);
}

static int scan(struct tier *tier, uint32_t first, uint32_t count, struct tier_slot_found *found)
{
    assert(first <= tier->slot_count && count <= tier->slot_count - first && count <= INT32_MAX);
    return ssd_lists_scan(of(tier)->lists, first, count, found);
}

static int clear(struct tier *tier)
{
    return ssd_lists_clear(of(tier)->lists);
}

static void destroy(struct tier *tier)
{
    struct tier_ssd *ssd = of(tier);

    while (ssd->scratch != NULL) {
        struct scratch *next = ssd->scratch->next;

        free(ssd->scratch);
        ssd->scratch = next;
    }
    ssd_lists_destroy(&ssd->lists);
    block_io_destroy(&ssd->io);
    ssd_files_close(&ssd->files);
    (void)pthread_mutex_destroy(&ssd->mutex);
    free(ssd);
}

static const struct tier_ops tier_ssd_ops = {
    .name = "ssd",
    .write = write_slots,
    .read = read_slots,
    .erase = erase,
    .scan = scan,
    .clear = clear,
    .destroy = destroy,
};

/* Loop thread, as all who make tiers. */
static void log_era(const struct tier_ssd_config *config, int found)
{
    if (found == 0 || found == -ENOENT)
        return; /* no file: the first life here, or cleared */
    LOG(LOG_WARN, "ssd_era_unreadable", log_text("dir", config->dir),
        log_text("reason", found == -EBADMSG ? "not a file of this version and layout, or not whole"
                                             : strerror(-found)),
        log_text("effect", "nothing that an earlier life left there is believed"));
}

static int set_up(struct tier_ssd *ssd, const struct tier_ssd_config *config,
                  char why[TIER_WHY_BYTES])
{
    int status = ssd_files_open(config, &ssd->files, why), found;

    if (status == 0 && ssd->io == NULL)
        status = block_io_create(config->may_use_uring, &ssd->io);
    if (status < 0)
        return status;
    ssd->tier.slot_count = ssd_files_slot_count(ssd->files);
    status = ssd_lists_create(ssd->files, ssd->io, &ssd->tier, &ssd->lists, &found);
    if (status < 0)
        return status;
    if (ssd_is_want_of_descriptors(-found)) /* which says nothing of the file */
        return ssd_refuse_errno(config->dir, "its era cannot be read", found, why);
    log_era(config, found);
    snprintf(ssd->way, sizeof ssd->way, "%s %s", ssd->io->ops->name,
             ssd_files_are_direct(ssd->files) ? "O_DIRECT" : "buffered");
    return 0;
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
