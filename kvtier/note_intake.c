/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/note_intake.h"

#include "backends/runtime/must_check.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 * An attempt has two records: its prompt, and its answer behind it. The alignment keeps both under
 * keys of their own. The answer's is the prompt's multiplied by an odd number: a bijection that
 * maps only 0 to 0, so that neither of two keys that are digests meets the other by more than
 * chance.
 */

static const uint64_t ANSWER_FACTOR = 0x9e3779b97f4a7c15;

#define NOTE_RESULT_NAME(constant, name) [constant] = name,
static const char *const result_names[] = {NOTE_RESULT_ROWS(NOTE_RESULT_NAME)};

void note_intake_init(struct note_intake *intake, struct alignment *alignment, uint64_t fingerprint)
{
    memset(intake, 0, sizeof *intake);
    intake->alignment = alignment;
    intake->fingerprint = fingerprint;
}

/* The note's blocks with their ends, from the stream's start. -ENOENT: what they follow is not
 * known. */
static int read_blocks(struct note_intake *intake, const struct residency_note *note)
{
    const struct text_chain *text = &intake->alignment->text;
    const uint32_t start = note->start != 0 ? text_chain_find(text, note->start) : 0;
    uint64_t end = start != 0 ? text_chain_at(text, start)->end : 0;

    if (note->start != 0 && start == 0)
        return -ENOENT;
    if (note->block_count > NOTE_INTAKE_BLOCK_COUNT_MAX)
        return -EINVAL;
    for (size_t i = 0; i < note->block_count; i++) {
        struct residency_note_block block = residency_note_block(note, i);

        end += block.bytes;
        intake->blocks[i] = (struct text_block){block.hash, end};
    }
    return 0;
}

static int take_text(struct note_intake *intake, const struct residency_note *note,
                     uint64_t attempt, uint64_t now_ms)
{
    struct alignment *alignment = intake->alignment;
    uint32_t tip;
    int status = read_blocks(intake, note);

    if (status < 0)
        return status;
    if (attempt == 0)
        return text_chain_extend(&alignment->text, note->start, intake->blocks, note->block_count,
                                 &tip);
    return alignment_record(alignment,
                            &(struct alignment_record){.attempt = attempt,
                                                       .start = note->start,
                                                       .blocks = intake->blocks,
                                                       .block_count = note->block_count},
                            now_ms);
}

static void take_anchor(struct note_intake *intake, const struct residency_note *note,
                        uint64_t attempt, uint64_t now_ms)
{
    alignment_anchor(intake->alignment,
                     &(struct alignment_anchor){.attempt = attempt,
                                                .last_block = note->last_block,
                                                .is_answer = note->kind == RESIDENCY_NOTE_ANSWERED,
                                                .token_count = note->token_count,
                                                .tail_tokens = note->tail_tokens,
                                                .cached_tokens = note->cached_tokens},
                     now_ms);
}

static enum note_result result_of(int status, enum note_result taken)
{
    if (status == 0)
        return taken;
    if (status == -ENOENT)
        return NOTE_UNKNOWN_START;
    return status == -ENOSPC ? NOTE_TOO_LONG : NOTE_INVALID;
}

static enum note_result take_answer(struct note_intake *intake, const struct residency_note *note,
                                    uint64_t now_ms)
{
    const uint64_t attempt = note->attempt * ANSWER_FACTOR;
    struct residency_note answer = *note;
    int status = take_text(intake, note, attempt, now_ms);

    if (answer.has_anchor && answer.last_block == 0 && intake->find_prompt != NULL)
        answer.last_block = intake->find_prompt(intake->ctx, note->attempt);
    if (status == 0 && answer.has_anchor && answer.last_block != 0)
        take_anchor(intake, &answer, attempt, now_ms);
    return result_of(status, NOTE_ANSWERED);
}

/* start says where in the prompt they are, which whoever moves them need not know. */
static enum note_result take_prefetch(struct note_intake *intake, const struct residency_note *note)
{
    if (intake->on_prefetch == NULL)
        return NOTE_UNUSED;
    if (note->block_count > NOTE_INTAKE_BLOCK_COUNT_MAX)
        return NOTE_INVALID;
    for (size_t i = 0; i < note->block_count; i++)
        intake->hashes[i] = residency_note_block(note, i).hash;
    intake->on_prefetch(intake->ctx, intake->hashes, note->block_count, note->within_ms);
    return NOTE_PREFETCH;
}

static enum note_result take(struct note_intake *intake, const struct residency_note *note,
                             uint64_t now_ms)
{
    const bool is_of_attempt = note->kind == RESIDENCY_NOTE_ROUTED ||
                               note->kind == RESIDENCY_NOTE_ANSWERED ||
                               note->kind == RESIDENCY_NOTE_ANCHOR;

    if (is_of_attempt && note->attempt == 0)
        return NOTE_INVALID;
    switch (note->kind) {
    case RESIDENCY_NOTE_TEXT:
        return result_of(take_text(intake, note, 0, now_ms), NOTE_TEXT);
    case RESIDENCY_NOTE_ROUTED:
        return result_of(take_text(intake, note, note->attempt, now_ms), NOTE_ROUTED);
    case RESIDENCY_NOTE_ANSWERED:
        return take_answer(intake, note, now_ms);
    case RESIDENCY_NOTE_ANCHOR:
        take_anchor(intake, note, note->attempt, now_ms);
        return NOTE_ANCHOR;
    case RESIDENCY_NOTE_PREFETCH:
        return take_prefetch(intake, note);
    case RESIDENCY_NOTE_DRAIN:
        break;
    }
    return NOTE_UNUSED;
}

void note_intake_take(struct note_intake *intake, struct slice entry, uint64_t now_ms)
{
    struct residency_notes notes;
    struct residency_note note;

    if (residency_notes_open(&notes, entry) < 0) {
        intake->results[NOTE_BROKEN]++;
        return;
    }
    if (notes.fingerprint != intake->fingerprint) {
        intake->results[NOTE_FOREIGN]++;
        intake->foreign_fingerprint = notes.fingerprint;
        return;
    }
    while (residency_notes_next(&notes, &note)) {
        enum note_result result = take(intake, &note, now_ms);

        intake->results[result]++;
        if (result == NOTE_UNKNOWN_START && intake->on_unknown_start != NULL)
            intake->on_unknown_start(intake->ctx, note.start);
    }
    intake->results[NOTE_BROKEN] += notes.skipped_count;
}

const char *note_result_name(enum note_result result)
{
    assert((size_t)result < NOTE_RESULT_COUNT);

    return result_names[result];
}
