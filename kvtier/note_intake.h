/* SPDX-License-Identifier: Apache-2.0 */

/*
 * note_intake: what routers tell the agent of one worker, taken from the entries of its "in" stream
 * into its alignment: which text was sent and answered, and how many tokens it became. Entries are
 * untrusted; what is not used is counted with its reason.
 * Pure: the caller tells the time. One thread at a time.
 */
#ifndef KVTIER_NOTE_INTAKE_H
#define KVTIER_NOTE_INTAKE_H

#include <stddef.h>
#include <stdint.h>

#include "backends/redis/residency_wire.h"
#include "backends/runtime/slice.h"
#include "kvtier/identity/alignment.h"

enum { NOTE_INTAKE_BLOCK_COUNT_MAX = RESIDENCY_NOTE_BYTES_MAX / RESIDENCY_NOTE_BLOCK_BYTES };

/* row(constant, name): what was done with a note, or why not. */
#define NOTE_RESULT_ROWS(row)                                                                      \
    row(NOTE_TEXT, "text")                       /* a part of a record */                          \
        row(NOTE_ROUTED, "routed")               /* a prompt's record */                           \
        row(NOTE_ANSWERED, "answered")           /* an answer's record */                          \
        row(NOTE_ANCHOR, "anchor")               /* how many tokens a prompt became */             \
        row(NOTE_PREFETCH, "prefetch")           /* blocks that are wanted nearer */               \
        row(NOTE_UNUSED, "unused")               /* nobody here does anything about it */          \
        row(NOTE_UNKNOWN_START, "unknown_start") /* goes on from what we do not know */            \
        row(NOTE_TOO_LONG, "too_long") /* deeper, or more of it, than there is room for */         \
        row(NOTE_INVALID, "invalid")   /* contradicts itself, or what is known */                  \
        row(NOTE_FOREIGN, "foreign")   /* an entry of routers with another fingerprint */          \
        row(NOTE_BROKEN, "broken")     /* not as it should be on the wire */

#define NOTE_RESULT_CONSTANT(constant, name) constant,
enum note_result { NOTE_RESULT_ROWS(NOTE_RESULT_CONSTANT) NOTE_RESULT_COUNT };
#undef NOTE_RESULT_CONSTANT

/* start is not known here: whoever publishes what is held should say so. */
typedef void note_unknown_start_fn(void *ctx, uint64_t start);

/* The name of the last full block of attempt's prompt, where the engine's connector told it; 0. */
typedef uint64_t note_find_prompt_fn(void *ctx, uint64_t attempt);

/* A router expects a request that wants these text blocks, in order, within so many ms. Borrowed
 * for the call. Nothing is promised: neither that the request comes, nor that they are held here.
 */
typedef void note_prefetch_fn(void *ctx, const uint64_t *hashes, size_t count, uint32_t within_ms);

struct note_intake {
    struct alignment *alignment; /* borrowed */
    uint64_t fingerprint;
    note_unknown_start_fn *on_unknown_start; /* may be NULL, as the next two */
    note_find_prompt_fn *find_prompt;        /* for answers whose router does not know its tokens */
    note_prefetch_fn *on_prefetch;           /* NULL: hints are not used */
    void *ctx;
    uint64_t results[NOTE_RESULT_COUNT];
    uint64_t foreign_fingerprint; /* of the last foreign entry; 0: there was none */
    struct text_block blocks[NOTE_INTAKE_BLOCK_COUNT_MAX]; /* of the note in hand */
    uint64_t hashes[NOTE_INTAKE_BLOCK_COUNT_MAX];          /* likewise */
};

/* Borrows alignment. */
void note_intake_init(struct note_intake *intake, struct alignment *alignment,
                      uint64_t fingerprint);

/* Takes the field "b" of an entry. now_ms never goes back. */
void note_intake_take(struct note_intake *intake, struct slice entry, uint64_t now_ms);

const char *note_result_name(enum note_result result);

#endif
