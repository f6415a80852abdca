/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes, read as everything that comes through Redis in binary: what is given out lies in them,
 * a whole without its last byte is none, and what was read is written back as the same bytes.
 */
#include "backends/redis/residency_wire.h"

#include "tests/fuzz/fuzz_input.h"

#include <assert.h>

enum { BLOCK_COUNT_MAX = RESIDENCY_NOTE_BYTES_MAX / RESIDENCY_NOTE_BLOCK_BYTES };

static struct slice without_last(struct slice bytes)
{
    return slice_of(bytes.ptr, bytes.len - 1);
}

static void check_inside(struct slice bytes, struct slice part)
{
    assert(part.len == 0 ||
           (part.ptr >= bytes.ptr && part.ptr + part.len <= bytes.ptr + bytes.len));
}

static void check_change(struct slice bytes)
{
    struct residency_change change, cut;

    if (residency_change_read(bytes, &change) < 0)
        return;
    check_inside(bytes, change.records);
    assert(change.records.len % RESIDENCY_RECORD_BYTES == 0);
    assert(residency_change_read(without_last(bytes), &cut) < 0);
    for (size_t at = 0; at < change.records.len; at += RESIDENCY_RECORD_BYTES) {
        const uint8_t *wire = (const uint8_t *)change.records.ptr + at;
        const struct residency_record record = residency_record_read(wire);
        uint8_t again[RESIDENCY_RECORD_BYTES];

        assert(record.tokens <= RESIDENCY_TOKENS_MAX && record.tiers < 8);
        residency_record_write(again, record);
        assert(residency_record_digest(residency_record_read(again)) ==
               residency_record_digest(record));
    }
}

/* The note, written again, is read as the same. */
static void check_note(const struct residency_note *note)
{
    static struct residency_note_block blocks[BLOCK_COUNT_MAX];
    struct residency_notes notes;
    struct residency_note again;
    struct buf out;

    for (size_t i = 0; i < note->block_count; i++) {
        blocks[i] = residency_note_block(note, i);
        assert(blocks[i].hash != 0 && blocks[i].bytes >= 1 && blocks[i].bytes <= 512);
    }
    buf_init(&out, RESIDENCY_NOTE_BYTES_MAX);
    assert(residency_notes_begin(&out, 1, 2) == 0);
    assert(residency_note_write(&out, note, blocks, note->block_count) == 0);
    assert(residency_notes_open(&notes, buf_slice(&out)) == 0);
    assert(residency_notes_next(&notes, &again));
    assert(again.kind == note->kind && again.attempt == note->attempt &&
           again.start == note->start && again.within_ms == note->within_ms &&
           again.has_anchor == note->has_anchor && again.last_block == note->last_block &&
           again.token_count == note->token_count && again.tail_tokens == note->tail_tokens &&
           again.cached_tokens == note->cached_tokens);
    assert(slice_eq(again.blocks, note->blocks));
    assert(!residency_notes_next(&notes, &again) && notes.skipped_count == 0);
    buf_release(&out);
}

static void check_notes(struct slice bytes)
{
    struct residency_notes notes;
    struct residency_note note;

    if (residency_notes_open(&notes, bytes) < 0)
        return;
    while (residency_notes_next(&notes, &note)) {
        check_inside(bytes, note.blocks);
        assert(note.token_count <= RESIDENCY_TOKENS_MAX);
        check_note(&note);
    }
    assert(notes.rest.len == 0);
}

static void check_loads(struct slice bytes)
{
    uint64_t router;
    size_t count;

    if (residency_loads_read(bytes, &router, &count) < 0)
        return;
    assert(count <= RESIDENCY_LOAD_COUNT_MAX);
    for (size_t i = 0; i < count; i++)
        (void)residency_loads_at(bytes, i);
    assert(residency_loads_read(without_last(bytes), &router, &count) < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct slice bytes = slice_of(data, size);

    check_change(bytes);
    check_notes(bytes);
    check_loads(bytes);
    return 0;
}
