/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/note_batch.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdlib.h>

enum { FINGERPRINT = 11, ROUTER = 12, BYTES_MAX = 1 << 20 };

static const struct note_receiver anna = {1, "http://anna:8000"};
static const struct note_receiver ben = {2, "http://ben:8000#1"};

/* What an agent makes of the entries of its stream: the text, and what was said of attempts. */
struct heard {
    uint64_t hashes[8192];
    uint32_t bytes[8192];
    size_t block_count;
    uint64_t tip; /* where the text goes on */
    uint32_t note_count;
    uint32_t text_count;
    enum residency_note_kind last_kind;
    uint64_t last_attempt;
    uint32_t token_count;
};

static void hear_note(struct heard *heard, const struct residency_note *note)
{
    heard->note_count++;
    heard->text_count += note->kind == RESIDENCY_NOTE_TEXT;
    heard->last_kind = note->kind;
    heard->last_attempt = note->attempt;
    if (note->kind == RESIDENCY_NOTE_ANCHOR) {
        heard->token_count = note->token_count;
        return;
    }
    cr_assert(eq(u64, note->start, heard->tip), "each part goes on from the one before");
    for (size_t i = 0; i < note->block_count; i++) {
        struct residency_note_block block = residency_note_block(note, i);

        heard->hashes[heard->block_count] = block.hash;
        heard->bytes[heard->block_count++] = block.bytes;
        heard->tip = block.hash;
    }
}

static void hear_entry(struct heard *heard, const struct note_entry *entry)
{
    struct residency_notes notes;
    struct residency_note note;
    uint32_t count = 0;

    cr_assert(le(sz, buf_len(&entry->bytes), RESIDENCY_NOTE_BYTES_MAX));
    cr_assert(eq(int, residency_notes_open(&notes, buf_slice(&entry->bytes)), 0));
    cr_assert(eq(u64, notes.fingerprint, FINGERPRINT));
    cr_assert(eq(u64, notes.router, ROUTER));
    while (residency_notes_next(&notes, &note)) {
        hear_note(heard, &note);
        count++;
    }
    cr_assert(eq(u32, count, entry->note_count));
    cr_assert(eq(u32, notes.skipped_count, 0));
}

static struct heard *hear_all(struct note_batch *batch, uint32_t *entry_count)
{
    struct heard *heard = calloc(1, sizeof *heard);
    struct note_entry *entry;

    *entry_count = 0;
    while ((entry = note_batch_take(batch)) != NULL) {
        ++*entry_count;
        hear_entry(heard, entry);
        note_entry_free(entry);
    }
    cr_assert(eq(sz, batch->bytes, 0));
    return heard;
}

static int add_text(struct note_batch *batch, struct note_receiver receiver, uint64_t attempt,
                    size_t block_count)
{
    struct residency_note_block *blocks = calloc(block_count, sizeof *blocks);
    struct residency_note note = {.kind = RESIDENCY_NOTE_ROUTED, .attempt = attempt};
    int status;

    for (size_t i = 0; i < block_count; i++)
        blocks[i] = (struct residency_note_block){1000 + i, 64 + (uint32_t)(i % 256)};
    status = note_batch_add(batch, receiver, &note, blocks, block_count);
    free(blocks);
    return status;
}

static int add_anchor(struct note_batch *batch, struct note_receiver receiver, uint64_t attempt)
{
    struct residency_note note = {
        .kind = RESIDENCY_NOTE_ANCHOR,
        .attempt = attempt,
        .last_block = 5,
        .token_count = 77,
        .cached_tokens = UINT32_MAX,
    };

    return note_batch_add(batch, receiver, &note, NULL, 0);
}

TestSuite(note_batch, .fini = leak_check);

Test(note_batch, text_and_anchor_of_an_attempt_leave_in_one_entry)
{
    struct note_batch batch;
    struct heard *heard;
    uint32_t entry_count;

    note_batch_init(&batch, FINGERPRINT, ROUTER, BYTES_MAX);
    cr_assert(eq(int, add_text(&batch, anna, 9, 20), 0));
    cr_assert(eq(int, add_anchor(&batch, anna, 9), 0));
    heard = hear_all(&batch, &entry_count);

    cr_assert(eq(u32, entry_count, 1));
    cr_assert(eq(u32, heard->note_count, 2));
    cr_assert(eq(sz, heard->block_count, 20));
    cr_assert(eq(u32, heard->token_count, 77));
    cr_assert(eq(u64, heard->last_attempt, 9));
    free(heard);
}

Test(note_batch, a_long_prompt_is_told_in_parts_that_go_on_from_each_other)
{
    struct note_batch batch;
    struct heard *heard;
    uint32_t entry_count;

    note_batch_init(&batch, FINGERPRINT, ROUTER, BYTES_MAX);
    cr_assert(eq(int, add_text(&batch, anna, 9, 8000), 0));
    heard = hear_all(&batch, &entry_count);

    cr_assert(eq(sz, heard->block_count, 8000));
    for (size_t i = 0; i < 8000; i++) {
        cr_assert(eq(u64, heard->hashes[i], 1000 + i));
        cr_assert(eq(u32, heard->bytes[i], 64 + i % 256));
    }
    cr_assert(eq(u32, heard->text_count, heard->note_count - 1));
    cr_assert(eq(int, heard->last_kind, RESIDENCY_NOTE_ROUTED));
    cr_assert(eq(u64, heard->last_attempt, 9));
    cr_assert(eq(u32, entry_count, 5));
    free(heard);
}

Test(note_batch, each_worker_has_entries_of_its_own_and_its_stream)
{
    struct note_batch batch;
    struct note_entry *first, *second;

    note_batch_init(&batch, FINGERPRINT, ROUTER, BYTES_MAX);
    cr_assert(eq(int, add_text(&batch, anna, 1, 3), 0));
    cr_assert(eq(int, add_text(&batch, ben, 2, 3), 0));
    cr_assert(eq(int, add_anchor(&batch, anna, 1), 0));
    first = note_batch_take(&batch);
    second = note_batch_take(&batch);

    cr_assert(eq(str, first->key, "smv:{http://anna:8000}:in"));
    cr_assert(eq(sz, first->key_len, strlen(first->key)));
    cr_assert(eq(str, second->key, "smv:{http://ben:8000#1}:in"));
    cr_assert(eq(u32, first->note_count, 2));
    cr_assert(eq(u32, second->note_count, 1));
    cr_assert(eq(ptr, note_batch_take(&batch), NULL));
    note_entry_free(first);
    note_entry_free(second);
}

Test(note_batch, what_is_too_much_is_refused_whole)
{
    struct note_batch batch;
    struct heard *heard;
    uint32_t entry_count;

    note_batch_init(&batch, FINGERPRINT, ROUTER, 16384);
    cr_assert(eq(int, add_text(&batch, anna, 1, 1000), 0));
    cr_assert(eq(int, add_text(&batch, anna, 2, 1000), -ENOBUFS));
    heard = hear_all(&batch, &entry_count);

    cr_assert(eq(u32, heard->note_count, 1));
    cr_assert(eq(int, add_text(&batch, anna, 2, 1000), 0));
    note_batch_release(&batch);
    note_batch_release(&batch);
    free(heard);
}
