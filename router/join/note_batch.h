/* SPDX-License-Identifier: Apache-2.0 */

/*
 * note_batch: notes to agents, gathered into entries of their workers' streams until they are sent.
 * A prompt too long for one entry is told in parts. Bounded in bytes. Pure.
 */
#ifndef ROUTER_JOIN_NOTE_BATCH_H
#define ROUTER_JOIN_NOTE_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "backends/redis/residency_wire.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"

/* What becomes one XADD. */
struct note_entry {
    struct list_node in_batch;
    uint64_t worker; /* its id */
    uint32_t note_count;
    char key[RESIDENCY_KEY_BYTES_MAX];
    size_t key_len;
    struct buf bytes;
};

struct note_batch {
    struct list entries; /* oldest first */
    uint64_t fingerprint;
    uint64_t router;
    size_t bytes; /* of all entries */
    size_t bytes_max;
};

/* To whom. */
struct note_receiver {
    uint64_t id;
    const char *name;
};

/* Empty; takes no memory yet. */
void note_batch_init(struct note_batch *batch, uint64_t fingerprint, uint64_t router,
                     size_t bytes_max);

/*
 * Adds note with its blocks (none: an anchor): all of it or nothing. Where they do not fit into one
 * entry, the first ones go ahead as TEXT. -ENOBUFS: bytes_max; -ENOMEM.
 */
MUST_CHECK int note_batch_add(struct note_batch *batch, struct note_receiver receiver,
                              const struct residency_note *note,
                              const struct residency_note_block *blocks, size_t block_count);

/* Takes the oldest entry out, which the caller frees; NULL: none is left. */
struct note_entry *note_batch_take(struct note_batch *batch);
void note_entry_free(struct note_entry *entry);

/* Frees everything; may be called twice. */
void note_batch_release(struct note_batch *batch);

#endif
