/* SPDX-License-Identifier: Apache-2.0 */

/*
 * life_record: the lives in which an agent has spoken for a worker, as it leaves them behind in its
 * state directory, and what of them is proof that they are over: only then may their lease be
 * taken. Pure; any thread.
 */
#ifndef KVTIER_LIFE_RECORD_H
#define KVTIER_LIFE_RECORD_H

#include <stddef.h>
#include <stdint.h>

enum {
    /* Each start adds one. In the time of a lease nobody starts so often. */
    LIFE_EPOCH_COUNT_MAX = 8,
    LIFE_BOOT_BYTES = 40, /* a boot id of the kernel's, 36 bytes and a newline, and zeros */
};

/* Which file, of which machine since when it was started: no two files that are open at one time
 * have one place, wherever they are. */
struct life_place {
    char boot[LIFE_BOOT_BYTES];
    uint64_t device;
    uint64_t inode;
};

/* As it lies in the file. It is of no use to another machine, so its numbers are this one's. */
struct life_record {
    char magic[8];
    struct life_place place;               /* where it was written */
    uint64_t epochs[LIFE_EPOCH_COUNT_MAX]; /* newest first; 0: no more */
};

/* What is known of the lives before. row(constant, why): why their lease, should it be there, is
 * not taken. */
/* clang-format off */
#define LIFE_PROOF_ROWS(row)                                                                       \
    row(LIFE_OVER, "it is none of the lives that this state-dir knows of")                         \
    row(LIFE_NOT_KEPT, "without state-dir an agent does not know its own life of before")          \
    row(LIFE_FIRST, "this state-dir knows of no life of before")                                   \
    row(LIFE_LIVING, "another agent, which lives, holds this state-dir")                           \
    row(LIFE_OTHER_BOOT, "the state-dir is of another machine, or of this one before it booted")   \
    row(LIFE_COPIED, "the state-dir is a copy: whose it was may live")                             \
    row(LIFE_UNREADABLE, "the record of lives cannot be read")                                     \
    row(LIFE_UNWRITABLE, "the record of lives cannot be opened or written")
/* clang-format on */

enum life_proof {
#define LIFE_PROOF_CONSTANT(constant, why) constant,
    LIFE_PROOF_ROWS(LIFE_PROOF_CONSTANT)
#undef LIFE_PROOF_CONSTANT
        LIFE_PROOF_COUNT
};

const char *life_proof_why(enum life_proof proof);

/* What len bytes of a file at place prove, for whoever holds it locked as those held it who wrote
 * it. LIFE_OVER: all of record's lives are. record is read where len is its size. */
enum life_proof life_record_prove(const struct life_record *record, size_t len,
                                  const struct life_place *place);

/* The record of a life that begins at place, with those before it; NULL: none of which is known
 * that it is over. */
struct life_record life_record_begin(const struct life_record *before,
                                     const struct life_place *place, uint64_t epoch);

#endif
