/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_wire.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

/*
 * DESIGN
 *
 * The binary half; lease and meta, which people read too, are text: residency_wire_text.c.
 *
 *   entry    version 1, sort 1, 0 2, count 4, then by sort:
 *   change   count of the whole 8, digest of the whole 8, records 12 each
 *   notes    fingerprint 8, router 8, then notes
 *   loads    router 8, then loads 20 each: worker 8, in flight 4, queued tokens 4, decoding 4
 *
 *   note     kind 1, flags 1, block count 2, length of the note 4, attempt 8, start 8,
 *            [last block 8, tokens 4, tail tokens 4, cached tokens 4: where flag 1 is set],
 *            blocks 10 each: hash 8, bytes 2
 *            A prefetch is of no attempt: it has its deadline there, 4 and 4 that are ignored.
 *
 * Every entry says what sort it is, so that one that comes to the wrong stream is refused and not
 * misread. All notes have one layout, used or not: a few bytes for one reader instead of four. A
 * note says its own length, so that kinds yet to come are passed over by those who do not know
 * them; whatever else changes raises the version, and is refused.
 *
 * A note or a change is wholly good or not used: all of it is checked before any of it is given
 * out, so what reads it later needs no errors.
 */

enum { HEAD_BYTES = 8, COUNT_AT = 4, SORT_CHANGE = 'C', SORT_NOTES = 'N', SORT_LOADS = 'L' };
enum { CHANGE_HEAD_BYTES = HEAD_BYTES + 16 };
enum { LOADS_HEAD_BYTES = HEAD_BYTES + 8, LOAD_BYTES = 20 };
enum { NOTE_HEAD_BYTES = 24, ANCHOR_BYTES = 20, FLAG_ANCHOR = 1, BLOCK_BYTES_MAX = 512 };
enum { TIERS_MASK = 7 };

static_assert(RESIDENCY_NOTES_HEAD_BYTES == HEAD_BYTES + 16, "what the header says");
static_assert(RESIDENCY_NOTE_FIXED_BYTES_MAX >= NOTE_HEAD_BYTES + ANCHOR_BYTES, "likewise");
static_assert(RESIDENCY_NOTE_BYTES_MAX / RESIDENCY_NOTE_BLOCK_BYTES <= UINT16_MAX,
              "a note's block count fits");

/* ---- numbers ---- */

static void put(uint8_t *bytes, uint64_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const char *bytes, size_t width)
{
    uint64_t value = 0;

    for (size_t i = width; i-- > 0;)
        value = value << 8 | (uint8_t)bytes[i];
    return value;
}

static uint32_t get_u32(const char *bytes)
{
    return (uint32_t)get(bytes, 4);
}

static void put_head(uint8_t *bytes, uint8_t sort, size_t count)
{
    put(bytes, RESIDENCY_WIRE_VERSION, 1);
    put(bytes + 1, sort, 1);
    put(bytes + 2, 0, 2);
    put(bytes + COUNT_AT, count, 4);
}

static bool is_entry(struct slice bytes, uint8_t sort, size_t head_bytes)
{
    return bytes.len >= head_bytes && get(bytes.ptr, 1) == RESIDENCY_WIRE_VERSION &&
           get(bytes.ptr + 1, 1) == sort;
}

/* ---- keys ---- */

static size_t check_key(int len)
{
    assert(len > 0 && len < RESIDENCY_KEY_BYTES_MAX);

    return (size_t)len;
}

size_t residency_key_workers(char key[RESIDENCY_KEY_BYTES_MAX], uint64_t fingerprint)
{
    return check_key(
        snprintf(key, RESIDENCY_KEY_BYTES_MAX, "smv:%016" PRIx64 ":workers", fingerprint));
}

size_t residency_key(char key[RESIDENCY_KEY_BYTES_MAX], const char *worker,
                     enum residency_key_kind kind)
{
    static const char *const ends[] = {
        [RESIDENCY_KEY_META] = "meta", [RESIDENCY_KEY_LEASE] = "lease", [RESIDENCY_KEY_IN] = "in"};

    assert(kind < array_count(ends));

    return check_key(snprintf(key, RESIDENCY_KEY_BYTES_MAX, "smv:{%s}:%s", worker, ends[kind]));
}

size_t residency_key_page(char key[RESIDENCY_KEY_BYTES_MAX], const char *worker,
                          struct residency_life life, uint32_t page)
{
    return check_key(snprintf(key, RESIDENCY_KEY_BYTES_MAX,
                              "smv:{%s}:%016" PRIx64 "-%" PRIu32 ":p:%" PRIu32, worker, life.epoch,
                              life.generation, page));
}

size_t residency_key_out(char key[RESIDENCY_KEY_BYTES_MAX], const char *worker,
                         struct residency_life life)
{
    return check_key(snprintf(key, RESIDENCY_KEY_BYTES_MAX,
                              "smv:{%s}:%016" PRIx64 "-%" PRIu32 ":out", worker, life.epoch,
                              life.generation));
}

/* ---- records ---- */

void residency_record_write(uint8_t bytes[RESIDENCY_RECORD_BYTES], struct residency_record record)
{
    assert(record.tokens <= RESIDENCY_TOKENS_MAX);

    put(bytes, record.hash, 8);
    put(bytes + 8, record.tokens, 3);
    put(bytes + 11, record.tiers & TIERS_MASK, 1);
}

struct residency_record residency_record_read(const uint8_t bytes[RESIDENCY_RECORD_BYTES])
{
    const char *text = (const char *)bytes;

    return (struct residency_record){
        .hash = get(text, 8),
        .tokens = (uint32_t)get(text + 8, 3) & RESIDENCY_TOKENS_MAX,
        .tiers = bytes[11] & TIERS_MASK,
    };
}

/* The end of splitmix64: each bit of x changes half of the result's. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Mixed twice: else records whose hashes and tokens differ by the same would cancel out. */
uint64_t residency_record_digest(struct residency_record record)
{
    if (record.tiers == 0)
        return 0;
    return mix(mix(record.hash + 0x9e3779b97f4a7c15u) ^
               ((uint64_t)record.tokens << 8 | record.tiers));
}

/* ---- changes ---- */

int residency_change_write(struct buf *out, const struct residency_change *change)
{
    const size_t record_count = change->records.len / RESIDENCY_RECORD_BYTES;
    uint8_t head[CHANGE_HEAD_BYTES];
    int status;

    assert(change->records.len % RESIDENCY_RECORD_BYTES == 0);
    assert(record_count <= RESIDENCY_CHANGE_RECORD_COUNT_MAX);

    put_head(head, SORT_CHANGE, record_count);
    put(head + HEAD_BYTES, change->count, 8);
    put(head + HEAD_BYTES + 8, change->digest, 8);
    status = buf_reserve(out, sizeof head + change->records.len);
    if (status == 0)
        status = buf_append(out, slice_of(head, sizeof head));
    return status == 0 ? buf_append(out, change->records) : status;
}

int residency_change_read(struct slice bytes, struct residency_change *change)
{
    size_t record_count;

    if (!is_entry(bytes, SORT_CHANGE, CHANGE_HEAD_BYTES))
        return -EPROTO;
    record_count = get_u32(bytes.ptr + COUNT_AT);
    if (record_count > RESIDENCY_CHANGE_RECORD_COUNT_MAX ||
        bytes.len != CHANGE_HEAD_BYTES + record_count * RESIDENCY_RECORD_BYTES)
        return -EPROTO;
    *change = (struct residency_change){
        .count = get(bytes.ptr + HEAD_BYTES, 8),
        .digest = get(bytes.ptr + HEAD_BYTES + 8, 8),
        .records = slice_skip(bytes, CHANGE_HEAD_BYTES),
    };
    return 0;
}

/* ---- notes ---- */

int residency_notes_begin(struct buf *out, uint64_t fingerprint, uint64_t router)
{
    uint8_t head[RESIDENCY_NOTES_HEAD_BYTES];

    assert(buf_len(out) == 0);

    put_head(head, SORT_NOTES, 0);
    put(head + HEAD_BYTES, fingerprint, 8);
    put(head + HEAD_BYTES + 8, router, 8);
    return buf_append(out, slice_of(head, sizeof head));
}

static bool has_anchor(const struct residency_note *note)
{
    return note->kind == RESIDENCY_NOTE_ANCHOR ||
           (note->kind == RESIDENCY_NOTE_ANSWERED && note->has_anchor);
}

static size_t note_bytes(bool is_anchored, size_t block_count)
{
    return (size_t)NOTE_HEAD_BYTES + (is_anchored ? (size_t)ANCHOR_BYTES : 0) +
           block_count * RESIDENCY_NOTE_BLOCK_BYTES;
}

/* Returns how many bytes that were. */
static size_t put_note(uint8_t bytes[NOTE_HEAD_BYTES + ANCHOR_BYTES],
                       const struct residency_note *note, size_t block_count)
{
    const bool is_anchored = has_anchor(note);

    put(bytes, note->kind, 1);
    put(bytes + 1, is_anchored ? FLAG_ANCHOR : 0, 1);
    put(bytes + 2, block_count, 2);
    put(bytes + 4, note_bytes(is_anchored, block_count), 4);
    put(bytes + 8, note->kind == RESIDENCY_NOTE_PREFETCH ? note->within_ms : note->attempt, 8);
    put(bytes + 16, note->start, 8);
    if (!is_anchored)
        return NOTE_HEAD_BYTES;
    put(bytes + 24, note->last_block, 8);
    put(bytes + 32, note->token_count, 4);
    put(bytes + 36, note->tail_tokens, 4);
    put(bytes + 40, note->cached_tokens, 4);
    return NOTE_HEAD_BYTES + ANCHOR_BYTES;
}

int residency_note_write(struct buf *out, const struct residency_note *note,
                         const struct residency_note_block *blocks, size_t block_count)
{
    uint8_t fixed[NOTE_HEAD_BYTES + ANCHOR_BYTES], block[RESIDENCY_NOTE_BLOCK_BYTES];
    size_t fixed_len;
    int status;

    if (block_count > RESIDENCY_NOTE_BYTES_MAX / RESIDENCY_NOTE_BLOCK_BYTES ||
        buf_len(out) + note_bytes(has_anchor(note), block_count) > RESIDENCY_NOTE_BYTES_MAX)
        return -EMSGSIZE;
    status = buf_reserve(out, note_bytes(has_anchor(note), block_count));
    if (status < 0)
        return status;
    fixed_len = put_note(fixed, note, block_count);
    status = buf_append(out, slice_of(fixed, fixed_len));
    for (size_t i = 0; i < block_count && status == 0; i++) {
        assert(blocks[i].bytes >= 1 && blocks[i].bytes <= BLOCK_BYTES_MAX);
        put(block, blocks[i].hash, 8);
        put(block + 8, blocks[i].bytes, 2);
        status = buf_append(out, slice_of(block, sizeof block));
    }
    assert(status == 0); /* room was made */
    return 0;
}

int residency_notes_open(struct residency_notes *notes, struct slice bytes)
{
    if (!is_entry(bytes, SORT_NOTES, RESIDENCY_NOTES_HEAD_BYTES) ||
        bytes.len > RESIDENCY_NOTE_BYTES_MAX)
        return -EPROTO;
    *notes = (struct residency_notes){
        .fingerprint = get(bytes.ptr + HEAD_BYTES, 8),
        .router = get(bytes.ptr + HEAD_BYTES + 8, 8),
        .rest = slice_skip(bytes, RESIDENCY_NOTES_HEAD_BYTES),
    };
    return 0;
}

static bool blocks_make_sense(const struct residency_note *note)
{
    for (size_t i = 0; i < note->block_count; i++) {
        const struct residency_note_block block = residency_note_block(note, i);

        if (block.hash == 0 || block.bytes < 1 || block.bytes > BLOCK_BYTES_MAX)
            return false;
    }
    return true;
}

static bool note_makes_sense(const struct residency_note *note)
{
    if (note->has_anchor &&
        (note->token_count > RESIDENCY_TOKENS_MAX || note->tail_tokens > note->token_count))
        return false;
    switch (note->kind) {
    case RESIDENCY_NOTE_TEXT:
    case RESIDENCY_NOTE_PREFETCH:
        return !note->has_anchor && note->block_count > 0 && blocks_make_sense(note);
    case RESIDENCY_NOTE_ROUTED:
        return note->attempt != 0 && !note->has_anchor && blocks_make_sense(note);
    case RESIDENCY_NOTE_ANSWERED:
        return note->attempt != 0 && blocks_make_sense(note);
    case RESIDENCY_NOTE_ANCHOR:
        return note->attempt != 0 && note->has_anchor && note->block_count == 0;
    default:
        return false;
    }
}

/* bytes: the note's own, all of them. */
static bool read_note(struct slice bytes, struct residency_note *note)
{
    const bool is_anchored = bytes.len >= 2 && (get(bytes.ptr + 1, 1) & FLAG_ANCHOR) != 0;

    if (bytes.len < note_bytes(is_anchored, 0))
        return false;
    *note = (struct residency_note){
        .kind = (enum residency_note_kind)get(bytes.ptr, 1),
        .block_count = (size_t)get(bytes.ptr + 2, 2),
        .attempt = get(bytes.ptr + 8, 8),
        .start = get(bytes.ptr + 16, 8),
        .blocks = slice_skip(bytes, note_bytes(is_anchored, 0)),
        .has_anchor = is_anchored,
        .cached_tokens = UINT32_MAX,
    };
    if (note->kind == RESIDENCY_NOTE_PREFETCH) {
        note->attempt = 0;
        note->within_ms = get_u32(bytes.ptr + 8);
    }
    if (is_anchored) {
        note->last_block = get(bytes.ptr + 24, 8);
        note->token_count = get_u32(bytes.ptr + 32);
        note->tail_tokens = get_u32(bytes.ptr + 36);
        note->cached_tokens = get_u32(bytes.ptr + 40);
    }
    return bytes.len == note_bytes(is_anchored, note->block_count) && note_makes_sense(note);
}

bool residency_notes_next(struct residency_notes *notes, struct residency_note *note)
{
    while (notes->rest.len > 0) {
        const size_t len = notes->rest.len >= HEAD_BYTES ? get_u32(notes->rest.ptr + 4) : 0;
        struct slice bytes;

        if (len < HEAD_BYTES || len > notes->rest.len) {
            notes->skipped_count++;
            notes->rest = slice_of(NULL, 0);
            return false;
        }
        bytes = slice_of(notes->rest.ptr, len);
        notes->rest = slice_skip(notes->rest, len);
        if (read_note(bytes, note))
            return true;
        notes->skipped_count++;
    }
    return false;
}

struct residency_note_block residency_note_block(const struct residency_note *note, size_t index)
{
    const char *bytes = note->blocks.ptr + index * RESIDENCY_NOTE_BLOCK_BYTES;

    assert(index < note->block_count);
    assert((index + 1) * RESIDENCY_NOTE_BLOCK_BYTES <= note->blocks.len);

    return (struct residency_note_block){get(bytes, 8), (uint32_t)get(bytes + 8, 2)};
}

/* ---- loads ---- */

int residency_loads_write(struct buf *out, uint64_t router, const struct residency_load *loads,
                          size_t count)
{
    uint8_t head[LOADS_HEAD_BYTES], load[LOAD_BYTES];
    int status;

    assert(count <= RESIDENCY_LOAD_COUNT_MAX);

    put_head(head, SORT_LOADS, count);
    put(head + HEAD_BYTES, router, 8);
    status = buf_reserve(out, sizeof head + count * sizeof load);
    if (status == 0)
        status = buf_append(out, slice_of(head, sizeof head));
    for (size_t i = 0; i < count && status == 0; i++) {
        put(load, loads[i].worker, 8);
        put(load + 8, loads[i].in_flight, 4);
        put(load + 12, loads[i].queued_tokens, 4);
        put(load + 16, loads[i].decoding, 4);
        status = buf_append(out, slice_of(load, sizeof load));
    }
    return status;
}

int residency_loads_read(struct slice bytes, uint64_t *router, size_t *count)
{
    if (!is_entry(bytes, SORT_LOADS, LOADS_HEAD_BYTES))
        return -EPROTO;
    *count = get_u32(bytes.ptr + COUNT_AT);
    if (*count > RESIDENCY_LOAD_COUNT_MAX || bytes.len != LOADS_HEAD_BYTES + *count * LOAD_BYTES)
        return -EPROTO;
    *router = get(bytes.ptr + HEAD_BYTES, 8);
    return 0;
}

struct residency_load residency_loads_at(struct slice bytes, size_t index)
{
    const char *load = bytes.ptr + LOADS_HEAD_BYTES + index * LOAD_BYTES;

    assert(LOADS_HEAD_BYTES + (index + 1) * LOAD_BYTES <= bytes.len);

    return (struct residency_load){
        .worker = get(load, 8),
        .in_flight = get_u32(load + 8),
        .queued_tokens = get_u32(load + 12),
        .decoding = get_u32(load + 16),
    };
}
