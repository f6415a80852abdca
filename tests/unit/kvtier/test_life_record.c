/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/life_record.h"

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

static const struct life_place here = {
    .boot = "0123abcd-0000-4000-8000-0123456789ab", .device = 2049, .inode = 77};

TestSuite(life_record, .fini = leak_check);

Test(life_record, only_this_file_of_this_boot_proves_that_its_lives_are_over)
{
    static const struct {
        const char *boot;
        uint64_t device, inode;
        enum life_proof proof;
    } rows[] = {
        {"0123abcd-0000-4000-8000-0123456789ab", 2049, 77, LIFE_OVER},
        {"0123abcd-0000-4000-8000-0123456789ac", 2049, 77, LIFE_OTHER_BOOT},
        {"", 2049, 77, LIFE_OTHER_BOOT},
        {"0123abcd-0000-4000-8000-0123456789ab", 2050, 77, LIFE_COPIED},
        {"0123abcd-0000-4000-8000-0123456789ab", 2049, 78, LIFE_COPIED},
        {"another", 2050, 78, LIFE_OTHER_BOOT},
    };
    const struct life_record written = life_record_begin(NULL, &here, 1);

    for (size_t i = 0; i < array_count(rows); i++) {
        struct life_place place = {.device = rows[i].device, .inode = rows[i].inode};

        snprintf(place.boot, sizeof place.boot, "%s", rows[i].boot);
        cr_assert(
            eq(int, (int)life_record_prove(&written, sizeof written, &place), (int)rows[i].proof),
            "row %zu", i);
    }
}

Test(life_record, nothing_and_what_is_none_prove_nothing)
{
    struct life_record record = life_record_begin(NULL, &here, 1);

    cr_assert(eq(int, (int)life_record_prove(&record, 0, &here), LIFE_FIRST));
    for (size_t len = 1; len < sizeof record; len++)
        cr_assert(eq(int, (int)life_record_prove(&record, len, &here), LIFE_UNREADABLE));
    for (size_t i = 0; i < sizeof record.magic; i++) {
        record.magic[i] ^= 1;
        cr_assert(eq(int, (int)life_record_prove(&record, sizeof record, &here), LIFE_UNREADABLE));
        record.magic[i] ^= 1;
    }
}

Test(life_record, lives_that_ended_before_their_first_word_hide_none_before_them)
{
    struct life_record record = life_record_begin(NULL, &here, 1);

    for (uint64_t epoch = 2; epoch <= LIFE_EPOCH_COUNT_MAX + 3; epoch++)
        record = life_record_begin(&record, &here, epoch);

    for (uint64_t i = 0; i < LIFE_EPOCH_COUNT_MAX; i++)
        cr_assert(eq(u64, record.epochs[i], LIFE_EPOCH_COUNT_MAX + 3 - i), "the newest stay");
    record = life_record_begin(NULL, &here, 100);
    cr_assert(eq(u64, record.epochs[0], 100));
    cr_assert(eq(u64, record.epochs[1], 0), "what is not proven is not handed on");
}

Test(life_record, each_proof_has_its_sentence)
{
    for (int proof = 0; proof < LIFE_PROOF_COUNT; proof++)
        cr_assert(gt(sz, strlen(life_proof_why((enum life_proof)proof)), 10));
}
