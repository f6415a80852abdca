/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/note_batch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Each entry stands alone (its head names fingerprint and router), so that a stream may be cut
 * anywhere. Within a worker's stream notes keep their order: what does not fit behind the newest
 * entry of its worker begins another one, and nothing is put into an older one.
 */
enum {
    PART_BLOCK_COUNT_MAX =
        (RESIDENCY_NOTE_BYTES_MAX - RESIDENCY_NOTES_HEAD_BYTES - RESIDENCY_NOTE_FIXED_BYTES_MAX) /
        RESIDENCY_NOTE_BLOCK_BYTES,
};

void note_batch_init(struct note_batch *batch, uint64_t fingerprint, uint64_t router,
                     size_t bytes_max)
{
    *batch = (struct note_batch){
        .fingerprint = fingerprint,
        .router = router,
        .bytes_max = bytes_max,
    };
    list_init(&batch->entries);
}

/* The newest entry of worker, if there is one. */
static struct note_entry *find_entry(const struct note_batch *batch, uint64_t worker)
{
    const struct list_node *head = &batch->entries.head;

    for (struct list_node *node = head->prev; node != head; node = node->prev) {
        struct note_entry *entry = container_of(node, struct note_entry, in_batch);

        if (entry->worker == worker)
            return entry;
    }
    return NULL;
}

static struct note_entry *begin_entry(struct note_batch *batch, struct note_receiver receiver)
{
    struct note_entry *entry = calloc(1, sizeof *entry);

    if (entry == NULL)
        return NULL;
    list_node_init(&entry->in_batch);
    entry->worker = receiver.id;
    entry->key_len = residency_key(entry->key, receiver.name, RESIDENCY_KEY_IN);
    buf_init(&entry->bytes, RESIDENCY_NOTE_BYTES_MAX);
    if (residency_notes_begin(&entry->bytes, batch->fingerprint, batch->router) < 0) {
        note_entry_free(entry);
        return NULL;
    }
    batch->bytes += buf_len(&entry->bytes);
    list_append(&batch->entries, &entry->in_batch);
    return entry;
}

static int write_into(struct note_batch *batch, struct note_entry *entry,
                      const struct residency_note *note, const struct residency_note_block *blocks,
                      size_t block_count)
{
    size_t before = buf_len(&entry->bytes);
    int status = residency_note_write(&entry->bytes, note, blocks, block_count);

    if (status < 0)
        return status;
    batch->bytes += buf_len(&entry->bytes) - before;
    entry->note_count++;
    return 0;
}

/* A note that fits into an entry of its own, at least. */
static int add_part(struct note_batch *batch, struct note_receiver receiver,
                    const struct residency_note *note, const struct residency_note_block *blocks,
                    size_t block_count)
{
    struct note_entry *entry = find_entry(batch, receiver.id);
    int status = -EMSGSIZE;

    if (entry != NULL)
        status = write_into(batch, entry, note, blocks, block_count);
    if (status != -EMSGSIZE)
        return status;
    entry = begin_entry(batch, receiver);
    if (entry == NULL)
        return -ENOMEM;
    status = write_into(batch, entry, note, blocks, block_count);
    assert(status != -EMSGSIZE);
    return status;
}

/* At most: as if each part had an entry of its own. */
static size_t bytes_needed(size_t block_count)
{
    size_t part_count = block_count / PART_BLOCK_COUNT_MAX + 1;

    return block_count * RESIDENCY_NOTE_BLOCK_BYTES +
           part_count * (RESIDENCY_NOTES_HEAD_BYTES + RESIDENCY_NOTE_FIXED_BYTES_MAX);
}

int note_batch_add(struct note_batch *batch, struct note_receiver receiver,
                   const struct residency_note *note, const struct residency_note_block *blocks,
                   size_t block_count)
{
    struct residency_note part = {.kind = RESIDENCY_NOTE_TEXT, .start = note->start};
    struct residency_note last = *note;
    int status = 0;

    if (batch->bytes + bytes_needed(block_count) > batch->bytes_max)
        return -ENOBUFS;
    while (status == 0 && block_count > PART_BLOCK_COUNT_MAX) {
        status = add_part(batch, receiver, &part, blocks, PART_BLOCK_COUNT_MAX);
        part.start = blocks[PART_BLOCK_COUNT_MAX - 1].hash;
        blocks += PART_BLOCK_COUNT_MAX;
        block_count -= PART_BLOCK_COUNT_MAX;
    }
    last.start = part.start;
    /* Parts without their end harm nobody: text that an agent knows and no attempt ends in. */
    return status == 0 ? add_part(batch, receiver, &last, blocks, block_count) : status;
}

struct note_entry *note_batch_take(struct note_batch *batch)
{
    struct note_entry *entry;

    if (batch->entries.count == 0)
        return NULL;
    entry = container_of(batch->entries.head.next, struct note_entry, in_batch);
    list_remove(&batch->entries, &entry->in_batch);
    batch->bytes -= buf_len(&entry->bytes);
    return entry;
}

void note_entry_free(struct note_entry *entry)
{
    buf_release(&entry->bytes);
    free(entry);
}

void note_batch_release(struct note_batch *batch)
{
    struct note_entry *entry;

    while ((entry = note_batch_take(batch)) != NULL)
        note_entry_free(entry);
}
