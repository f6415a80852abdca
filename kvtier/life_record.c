/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/life_record.h"

#include "backends/runtime/must_check.h"

#include <assert.h>
#include <string.h>

/*
 * DESIGN
 *
 * An agent that crashed leaves a lease that lives for some seconds more. Who takes it must know
 * that its holder is dead; that its name is known is not enough: a disk is cloned, a directory
 * copied, and the one whose it was goes on. The proof has three parts:
 *
 *   the lock   whoever speaks for a worker holds its record locked, by a flock() that ends with the
 *              process and not before; so once it is ours, who wrote this file has ended;
 *   the inode  and this file, not one of the same content: while a process has it open, no other
 *              file of this machine has its device and inode;
 *   the boot   and of this machine, and since it booted: what was locked on another one, by way of
 *              a disk that was cloned or is shared, says nothing here.
 *
 * Whatever is missing of it costs waiting until the lease has run out, as for anybody else's.
 *
 * A life is written down before it says its first word, and may end before it: then the lease is of
 * one before it still. Therefore some are kept, not the last alone. While another process has the
 * record a life is not written down, and who comes after it waits; so it is made up for as soon as
 * that process has ended.
 *
 * An epoch is drawn at random, not counted up: two agents out of one state, cloned, would count to
 * the same one, and neither would see the other.
 */

static const char magic[8] = "smvlife1";

static_assert(sizeof(struct life_record) == 8 + LIFE_BOOT_BYTES + 16 + 8 * LIFE_EPOCH_COUNT_MAX,
              "no bytes between its fields");

const char *life_proof_why(enum life_proof proof)
{
#define LIFE_PROOF_WHY(constant, why) [constant] = why,
    static const char *const whys[] = {LIFE_PROOF_ROWS(LIFE_PROOF_WHY)};
#undef LIFE_PROOF_WHY

    static_assert(array_count(whys) == LIFE_PROOF_COUNT, "each has its sentence");
    assert((size_t)proof < LIFE_PROOF_COUNT);
    return whys[proof];
}

enum life_proof life_record_prove(const struct life_record *record, size_t len,
                                  const struct life_place *place)
{
    if (len == 0)
        return LIFE_FIRST;
    if (len != sizeof *record || memcmp(record->magic, magic, sizeof magic) != 0)
        return LIFE_UNREADABLE;
    if (memcmp(record->place.boot, place->boot, sizeof place->boot) != 0)
        return LIFE_OTHER_BOOT;
    if (record->place.device != place->device || record->place.inode != place->inode)
        return LIFE_COPIED;
    return LIFE_OVER;
}

struct life_record life_record_begin(const struct life_record *before,
                                     const struct life_place *place, uint64_t epoch)
{
    struct life_record record = {.place = *place, .epochs = {epoch}};

    assert(epoch != 0);

    memcpy(record.magic, magic, sizeof magic);
    if (before != NULL)
        memcpy(record.epochs + 1, before->epochs, sizeof before->epochs - sizeof before->epochs[0]);
    return record;
}
