/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier: a place below the engines' HBM where pages lie, as a const vtable over slots of one size:
 * CPU memory, or files on an SSD. A tier knows slots and bytes, not blocks: which block is where
 * says the block_table. Its calls block; they run on a mover's threads, any number at once, for
 * different slots (or readers of one).
 *
 * A slot is a header (slot_header.h) and a payload of page_bytes. Where slots outlive the process
 * there are lists of what is in them (slot_list.h). Writing a slot: it is taken off its list,
 * header and payload are written, it is listed last; a crash at any point leaves a slot that is not
 * found, or whole. Reading one: length, identity, era and checksum must be what is expected, or it
 * is -EBADMSG: a miss, never other bytes.
 */
#ifndef KVTIER_TIERS_TIER_H
#define KVTIER_TIERS_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/tiers/block_key.h"

struct tier;

/* What a restart scan finds in a slot. */
struct tier_slot_found {
    uint32_t slot;
    struct block_key key;
    struct digest_128 parent; /* low 0: first of its chain */
    uint32_t depth;
    uint64_t sequence; /* of its writing: of two slots with one key the newer counts */
};

/* One slot's transfer; an array of them is one call, so that a tier can do them at once. */
struct tier_transfer {
    uint32_t slot;
    struct block_key key;     /* written into the header; expected there on a read */
    struct digest_128 parent; /* of a write */
    uint32_t depth;           /* of a write */
    void *payload; /* room for tier_stride_bytes(page_bytes), aligned to TIER_ALIGN_BYTES;
                    * written from, read into: what is behind page_bytes too */
    int status;    /* out: 0, -EBADMSG (not what was expected), -EIO; of a write also -ENOSPC,
                    * -EROFS, -EMFILE (no descriptor for another file) */
};

enum { TIER_ALIGN_BYTES = 4096 };

/* From one payload to the next in an arena: whole sectors, as O_DIRECT wants them. */
static inline size_t tier_stride_bytes(uint32_t page_bytes)
{
    return ((size_t)page_bytes + TIER_ALIGN_BYTES - 1) / TIER_ALIGN_BYTES * TIER_ALIGN_BYTES;
}

struct tier_ops {
    const char *name; /* "cpu", "ssd" */
    /* Both set every status and return how many are 0. */
    size_t (*write)(struct tier *tier, struct tier_transfer *transfers, size_t count);
    size_t (*read)(struct tier *tier, struct tier_transfer *transfers, size_t count);
    /* The payload of a slot in this process's memory, that a device may copy to and from without a
     * staging buffer; NULL function: there is none (SSD). Between invalidate() and seal() it may be
     * written. */
    void *(*payload)(struct tier *tier, uint32_t slot);
    /* Only with payload(): the slot is empty from now on; and: its bytes are complete, make the
     * checksum and the header; and: are header and bytes what is expected? as read(), in place. */
    void (*invalidate)(struct tier *tier, uint32_t slot);
    void (*seal)(struct tier *tier, const struct tier_transfer *transfer);
    int (*verify)(struct tier *tier, const struct tier_transfer *transfer);
    /* Empties slots, so that a restart does not find them. */
    void (*erase)(struct tier *tier, const uint32_t *slots, size_t count);
    /* Only where slots outlive the process: what is in slots [first, first + count). Reads lists
     * alone: slots are verified when they are loaded. found has room for count. Returns how many
     * were found; -EIO. NULL: nothing outlives. */
    int (*scan)(struct tier *tier, uint32_t first, uint32_t count, struct tier_slot_found *found);
    /* Only with scan(): no slot holds anything any more, nor what is being written now; a restart
     * knows that too, whatever ends this process, from when it returns 0. -EIO: a restart may not,
     * until another call returns 0 or a write succeeds. */
    int (*clear)(struct tier *tier);
    void (*destroy)(struct tier *tier);
};

/* Embedded first in each tier. */
struct tier {
    const struct tier_ops *ops;
    uint32_t page_bytes;
    uint32_t slot_count; /* that there are; an SSD's files are made as slots of them are written */
    uint64_t layout;     /* fingerprint: slots of another are no slots */
};

/*
 * CPU memory: an anonymous arena of slot_count pages, prefaulted in the background, excluded from
 * core dumps. *arena, *arena_bytes: for a device to register. has_checksum: whether verify() and
 * seal() make a checksum (a bit flip in RAM is found) or trust the memory. -ENOMEM.
 */
struct tier_cpu_config {
    uint64_t bytes;
    uint32_t page_bytes;
    uint64_t layout;
    bool has_checksum;
};
MUST_CHECK int tier_cpu_create(struct tier_cpu_config config, struct tier **tier);
void tier_cpu_arena(const struct tier *tier, void **arena, size_t *arena_bytes);

/*
 * Files of slots in a directory of its layout's own below dir: made 0700, and refused (-EPERM)
 * where it is a link, another user's, or open to others, or (-EROFS, -EACCES) cannot be written;
 * -EBUSY: another tier uses this layout's; -ENOSPC: no room for one page; -EMFILE; always with a
 * sentence in why. bytes: a hard quota over this
 * layout's files and all else that is below dir, but for layouts that other tiers use: they have a
 * quota of their own. Layouts that nobody uses keep their files until room is needed; files of
 * other names are left alone, and counted. Never takes the last reserve_bytes of the file system.
 * What a write failed for is told to the caller, who decides. O_DIRECT where the file system
 * has it, io_uring where the kernel lets us, else threads; tier_ssd_way() says which, for the log.
 */
struct block_io;

enum { TIER_WHY_BYTES = 256 };
struct tier_ssd_config {
    const char *dir; /* borrowed for the call */
    uint64_t bytes;
    uint64_t reserve_bytes;
    uint32_t page_bytes;
    uint64_t layout;
    bool may_use_uring;
    bool may_use_direct;
    uint64_t file_bytes; /* of a slot file; 0: as is good. Changed between lives: all is missed */
    struct block_io *io; /* taken over in any case; NULL: made as may_use_uring says */
};
MUST_CHECK int tier_ssd_create(struct tier_ssd_config config, struct tier **tier,
                               char why[TIER_WHY_BYTES]);
/* What to do about a failure: a sentence. */
const char *tier_ssd_advice(int status);
const char *
tier_ssd_way(const struct tier *tier); /* "io_uring O_DIRECT", "threads buffered", ... */

#endif
