/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/checksum.h"
#include "kvtier/tiers/slot_header.h"
#include "kvtier/tiers/tier.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/*
 * DESIGN
 *
 *   headers  | h0 | h1 | h2 | ...      SLOT_HEADER_BYTES each, all zero: the slot is empty
 *   arena    | payload 0 | payload 1 | payload 2 | ...      whole sectors each, nothing between
 *
 * Headers lie apart, so that payloads are one run of memory that a device can register whole and
 * that O_DIRECT takes as it is. They are the same bytes as on an SSD, with their own checksum: a
 * bit that flips in one of them is a miss as well.
 *
 * The arena is never initialised: the kernel gives zeroed pages, a thread asks for them in pieces
 * before they are needed (a first touch costs a microsecond a page, on the way of a request), and a
 * kernel too old to be asked (5.14) gives them as they are touched. Huge pages are advised, and so
 * that they fit the arena begins at a multiple of them. It is kept out of core dumps: prompts can
 * be told from their keys and values.
 *
 * Nothing is locked: whoever calls sees to it that a slot has one writer or some readers, and hands
 * slots from thread to thread by something that orders memory.
 */

enum { HUGE_PAGE_BYTES = 2 << 20, PREFAULT_BYTES = 64 << 20 };

struct tier_cpu {
    struct tier tier;
    void *mapping; /* the arena, and what was skipped for its alignment */
    size_t mapping_bytes;
    uint8_t *arena;
    size_t arena_bytes;
    size_t stride;
    uint8_t (*headers)[SLOT_HEADER_BYTES];
    bool has_checksum;
    pthread_t prefaulter;
    bool is_prefaulting; /* there is such a thread */
    atomic_bool is_stopping;
};

static struct tier_cpu *of(struct tier *tier)
{
    return (struct tier_cpu *)tier; /* its first member */
}

static void *payload(struct tier *tier, uint32_t slot)
{
    struct tier_cpu *cpu = of(tier);

    assert(slot < tier->slot_count);
    return cpu->arena + slot * cpu->stride;
}

static void invalidate(struct tier *tier, uint32_t slot)
{
    assert(slot < tier->slot_count);
    memset(of(tier)->headers[slot], 0, SLOT_HEADER_BYTES);
}

static void seal(struct tier *tier, const struct tier_transfer *transfer)
{
    struct tier_cpu *cpu = of(tier);
    const void *bytes = payload(tier, transfer->slot);

    slot_header_write(
        &(struct slot_header){
            .layout = tier->layout,
            .key = transfer->key,
            .parent = transfer->parent,
            .depth = transfer->depth,
            .payload_len = tier->page_bytes,
            .payload_checksum = cpu->has_checksum ? checksum(bytes, tier->page_bytes) : 0,
        },
        cpu->headers[transfer->slot]);
}

static int verify(struct tier *tier, const struct tier_transfer *transfer)
{
    const struct slot_header expected = {
        .layout = tier->layout, .key = transfer->key, .payload_len = tier->page_bytes};
    const void *bytes = payload(tier, transfer->slot);
    struct tier_cpu *cpu = of(tier);
    struct slot_header header;
    int status = slot_header_expect(&header, cpu->headers[transfer->slot], &expected);

    if (status == 0 && cpu->has_checksum &&
        checksum(bytes, tier->page_bytes) != header.payload_checksum)
        status = -EBADMSG;
    return status;
}

static size_t write_slots(struct tier *tier, struct tier_transfer *transfers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        invalidate(tier, transfers[i].slot);
        memcpy(payload(tier, transfers[i].slot), transfers[i].payload, tier->page_bytes);
        seal(tier, &transfers[i]);
        transfers[i].status = 0;
    }
    return count;
}

/* Verified where it lies and then copied: the copy is what the checksum was made of, as nobody
 * writes a slot that is read. */
static size_t read_slots(struct tier *tier, struct tier_transfer *transfers, size_t count)
{
    size_t good = 0;

    for (size_t i = 0; i < count; i++) {
        transfers[i].status = verify(tier, &transfers[i]);
        if (transfers[i].status < 0)
            continue;
        memcpy(transfers[i].payload, payload(tier, transfers[i].slot), tier->page_bytes);
        good++;
    }
    return good;
}

static void erase(struct tier *tier, const uint32_t *slots, size_t count)
{
    for (size_t i = 0; i < count; i++)
        invalidate(tier, slots[i]);
}

static void *prefault(void *ctx)
{
    struct tier_cpu *cpu = ctx;

    for (size_t at = 0; at < cpu->arena_bytes && !atomic_load(&cpu->is_stopping);) {
        size_t left = cpu->arena_bytes - at;
        size_t bytes = left < PREFAULT_BYTES ? left : PREFAULT_BYTES;

        if (madvise(cpu->arena + at, bytes, MADV_POPULATE_WRITE) < 0 && errno != EINTR &&
            errno != EAGAIN)
            break; /* not known to this kernel, or no memory: then as it is touched */
        at += bytes;
    }
    return NULL;
}

static void destroy(struct tier *tier)
{
    struct tier_cpu *cpu = of(tier);

    atomic_store(&cpu->is_stopping, true);
    if (cpu->is_prefaulting)
        (void)pthread_join(cpu->prefaulter, NULL);
    if (cpu->mapping != NULL)
        (void)munmap(cpu->mapping, cpu->mapping_bytes);
    free(cpu->headers);
    free(cpu);
}

static const struct tier_ops tier_cpu_ops = {
    .name = "cpu",
    .write = write_slots,
    .read = read_slots,
    .payload = payload,
    .invalidate = invalidate,
    .seal = seal,
    .verify = verify,
    .erase = erase,
    .destroy = destroy,
};

static int map_arena(struct tier_cpu *cpu)
{
    uintptr_t start;

    cpu->mapping_bytes = cpu->arena_bytes + HUGE_PAGE_BYTES;
    cpu->mapping = mmap(NULL, cpu->mapping_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cpu->mapping == MAP_FAILED) {
        cpu->mapping = NULL;
        return -ENOMEM;
    }
    start = ((uintptr_t)cpu->mapping + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);
    cpu->arena = (uint8_t *)start;
    (void)madvise(cpu->arena, cpu->arena_bytes, MADV_HUGEPAGE);     /* faster, not needed */
    (void)madvise(cpu->mapping, cpu->mapping_bytes, MADV_DONTFORK); /* a child execs */
    if (madvise(cpu->mapping, cpu->mapping_bytes, MADV_DONTDUMP) < 0)
        return -ENOMEM;
    return 0;
}

int tier_cpu_create(struct tier_cpu_config config, struct tier **tier)
{
    size_t stride = tier_stride_bytes(config.page_bytes);
    uint64_t slot_count = stride > 0 ? config.bytes / stride : 0;
    struct tier_cpu *cpu;

    assert(config.page_bytes > 0);

    if (slot_count == 0 || slot_count >= UINT32_MAX || slot_count > SIZE_MAX / stride / 2)
        return -ENOMEM;
    cpu = calloc(1, sizeof *cpu);
    if (cpu == NULL)
        return -ENOMEM;
    cpu->tier = (struct tier){
        .ops = &tier_cpu_ops,
        .page_bytes = config.page_bytes,
        .slot_count = (uint32_t)slot_count,
        .layout = config.layout,
    };
    cpu->stride = stride;
    cpu->arena_bytes = (size_t)slot_count * stride;
    cpu->has_checksum = config.has_checksum;
    cpu->headers = calloc((size_t)slot_count, sizeof *cpu->headers);
    if (cpu->headers == NULL || map_arena(cpu) < 0) {
        destroy(&cpu->tier);
        return -ENOMEM;
    }
    cpu->is_prefaulting = pthread_create(&cpu->prefaulter, NULL, prefault, cpu) == 0;
    *tier = &cpu->tier;
    return 0;
}

void tier_cpu_arena(const struct tier *tier, void **arena, size_t *arena_bytes)
{
    const struct tier_cpu *cpu = (const struct tier_cpu *)tier;

    *arena = cpu->arena;
    *arena_bytes = cpu->arena_bytes;
}
