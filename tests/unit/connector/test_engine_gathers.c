/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/engine_gathers.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

#include "tests/support/leak_check.h"

TestSuite(engine_gathers, .fini = leak_check);

enum { DEADLINE_MS = 1000, CONTENT = 77 };

static struct engine_gathers gathers_of(uint32_t rank_count)
{
    struct engine_gathers gathers;

    engine_gathers_init(&gathers, rank_count);
    return gathers;
}

static enum engine_gather_verdict say(struct engine_gathers *gathers, uint32_t rank, uint64_t job)
{
    const struct engine_gather said = {
        .job = job, .kind = IPC_SAVE, .content = CONTENT, .deadline_ms = DEADLINE_MS};

    return engine_gathers_say(gathers, rank, &said);
}

/* The jobs that fail at that time, as text: "5:03 " is job 5, said by the ranks 0 and 3. */
static const char *failed_at(struct engine_gathers *gathers, uint64_t now_ms)
{
    static char text[1024];
    struct engine_gather failed;
    size_t len = 0;

    text[0] = '\0';
    while (engine_gathers_take_failed(gathers, now_ms, &failed)) {
        len += (size_t)snprintf(text + len, sizeof text - len, "%d:", (int)failed.job);
        for (uint32_t rank = 0; rank < gathers->rank_count; rank++) {
            if (engine_gather_has(&failed, rank))
                len += (size_t)snprintf(text + len, sizeof text - len, "%u", rank);
        }
        len += (size_t)snprintf(text + len, sizeof text - len, " ");
    }
    return text;
}

Test(engine_gathers, one_rank_is_all_ranks_and_may_number_as_it_likes)
{
    struct engine_gathers gathers = gathers_of(1);

    cr_assert(eq(int, say(&gathers, 0, 9), ENGINE_GATHER_WHOLE));
    cr_assert(eq(int, say(&gathers, 0, 3), ENGINE_GATHER_WHOLE));
    cr_assert(eq(u32, gathers.count, 0));
}

Test(engine_gathers, whoever_says_it_last_begins_it_in_all_orders)
{
    static const uint32_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        struct engine_gathers gathers = gathers_of(3);

        cr_assert(eq(int, say(&gathers, orders[i][0], 1), ENGINE_GATHER_WAIT));
        cr_assert(eq(int, say(&gathers, orders[i][1], 1), ENGINE_GATHER_WAIT));
        cr_assert(eq(int, say(&gathers, orders[i][2], 1), ENGINE_GATHER_WHOLE));
        cr_assert(eq(u32, gathers.count, 0));
        cr_assert(eq(str, (char *)failed_at(&gathers, UINT64_MAX), ""));
    }
}

Test(engine_gathers, ranks_may_be_several_jobs_apart)
{
    struct engine_gathers gathers = gathers_of(2);

    for (uint64_t job = 1; job <= 5; job++)
        cr_assert(eq(int, say(&gathers, 0, job), ENGINE_GATHER_WAIT));
    for (uint64_t job = 1; job <= 5; job++)
        cr_assert(eq(int, say(&gathers, 1, job), ENGINE_GATHER_WHOLE));

    cr_assert(eq(u32, gathers.count, 0));
}

Test(engine_gathers, what_a_rank_has_gone_past_fails_at_once_and_for_those_that_said_it)
{
    struct engine_gathers gathers = gathers_of(3);
    cr_assert(eq(int, say(&gathers, 0, 4), ENGINE_GATHER_WAIT));
    cr_assert(eq(int, say(&gathers, 1, 4), ENGINE_GATHER_WAIT));
    cr_assert(eq(str, (char *)failed_at(&gathers, 0), ""));

    cr_assert(eq(int, say(&gathers, 2, 5), ENGINE_GATHER_WAIT));

    cr_assert(eq(str, (char *)failed_at(&gathers, 0), "4:01 "));
    cr_assert(eq(int, say(&gathers, 0, 5), ENGINE_GATHER_WAIT));
    cr_assert(eq(int, say(&gathers, 1, 5), ENGINE_GATHER_WHOLE));
}

Test(engine_gathers, who_comes_late_to_what_was_given_up_does_not_wait_for_it_again)
{
    struct engine_gathers gathers = gathers_of(2);
    cr_assert(eq(int, say(&gathers, 0, 4), ENGINE_GATHER_WAIT));
    cr_assert(eq(str, (char *)failed_at(&gathers, DEADLINE_MS), "4:0 "));

    cr_assert(eq(int, say(&gathers, 1, 4), ENGINE_GATHER_OVER));

    cr_assert(eq(u32, gathers.count, 0));
}

Test(engine_gathers, a_deadline_is_of_the_first_that_said_it)
{
    struct engine_gathers gathers = gathers_of(2);
    cr_assert(eq(int, say(&gathers, 1, 4), ENGINE_GATHER_WAIT));

    cr_assert(eq(str, (char *)failed_at(&gathers, DEADLINE_MS - 1), ""));
    cr_assert(eq(str, (char *)failed_at(&gathers, DEADLINE_MS), "4:1 "));
}

Test(engine_gathers, what_was_said_while_nothing_could_be_done_is_waited_for_by_nobody)
{
    struct engine_gathers gathers = gathers_of(2);

    engine_gathers_pass(&gathers, 0, 7);

    cr_assert(eq(int, say(&gathers, 1, 7), ENGINE_GATHER_OVER));
    cr_assert(eq(int, say(&gathers, 1, 8), ENGINE_GATHER_WAIT));
    cr_assert(eq(int, say(&gathers, 0, 8), ENGINE_GATHER_WHOLE));
}

Test(engine_gathers, a_rank_that_comes_anew_counts_for_itself)
{
    struct engine_gathers gathers = gathers_of(2);
    engine_gathers_pass(&gathers, 0, 700);
    engine_gathers_pass(&gathers, 1, 900);

    engine_gathers_forget(&gathers, 1);

    cr_assert(eq(int, say(&gathers, 1, 701), ENGINE_GATHER_WAIT));
    cr_assert(eq(int, say(&gathers, 0, 701), ENGINE_GATHER_WHOLE));
}

Test(engine_gathers, ranks_that_contradict_each_other_or_themselves_are_found_out)
{
    struct engine_gathers gathers = gathers_of(2);
    const struct engine_gather load = {.job = 4, .kind = IPC_LOAD, .content = CONTENT};
    const struct engine_gather other = {.job = 4, .kind = IPC_SAVE, .content = CONTENT + 1};

    cr_assert(eq(int, say(&gathers, 0, 4), ENGINE_GATHER_WAIT));
    cr_assert(eq(int, say(&gathers, 0, 4), ENGINE_GATHER_BROKEN));
    cr_assert(eq(int, say(&gathers, 0, 3), ENGINE_GATHER_BROKEN));
    cr_assert(eq(int, engine_gathers_say(&gathers, 1, &load), ENGINE_GATHER_BROKEN));
    gathers = gathers_of(2);
    cr_assert(eq(int, say(&gathers, 0, 4), ENGINE_GATHER_WAIT));
    cr_assert(eq(int, engine_gathers_say(&gathers, 1, &other), ENGINE_GATHER_BROKEN));
    gathers = gathers_of(2);
    cr_assert(eq(int, say(&gathers, 0, 0), ENGINE_GATHER_BROKEN)); /* numbers begin with 1 */
}

Test(engine_gathers, too_many_are_not_waited_for)
{
    struct engine_gathers gathers = gathers_of(2);
    uint64_t job;

    for (job = 1; job <= ENGINE_GATHER_COUNT_MAX; job++)
        cr_assert(eq(int, say(&gathers, 0, job), ENGINE_GATHER_WAIT));
    cr_assert(eq(int, say(&gathers, 0, job), ENGINE_GATHER_CROWDED));

    cr_assert(eq(int, say(&gathers, 1, 1), ENGINE_GATHER_WHOLE));
    cr_assert(eq(int, say(&gathers, 1, job), ENGINE_GATHER_OVER));
}

Test(engine_gathers, as_many_ranks_as_there_may_be)
{
    struct engine_gathers gathers = gathers_of(RANK_COUNT_MAX);

    for (uint32_t rank = 0; rank < RANK_COUNT_MAX - 1; rank++)
        cr_assert(eq(int, say(&gathers, rank, 1), ENGINE_GATHER_WAIT));
    cr_assert(eq(int, say(&gathers, RANK_COUNT_MAX - 1, 1), ENGINE_GATHER_WHOLE));
}

/* What each rank hears of each job, over many random lives: each that was said is answered once,
 * and either all ranks begin it or none does. */
Test(engine_gathers, every_job_is_begun_for_all_or_for_none_and_answered_once)
{
    enum { RANKS = 3, JOBS = 400, NONE = 0, WAITING, BEGUN, UNDONE };
    static int heard[RANKS][JOBS + 1];
    uint32_t state = 1;

    for (int life = 0; life < 50; life++) {
        struct engine_gathers gathers = gathers_of(RANKS);
        uint64_t at[RANKS] = {0};
        struct engine_gather failed;

        memset(heard, 0, sizeof heard);
        for (int step = 0; step < 3 * JOBS; step++) {
            uint32_t rank;
            enum engine_gather_verdict verdict;

            state = state * 1664525 + 1013904223;
            rank = (state >> 16) % RANKS;
            at[rank] += (state >> 24) % 10 == 0 ? 2 : 1; /* now and then it leaves one out */
            if (at[rank] > JOBS)
                continue;
            verdict = say(&gathers, rank, at[rank]);
            heard[rank][at[rank]] = verdict == ENGINE_GATHER_WAIT ? WAITING : UNDONE;
            for (uint32_t i = 0; verdict == ENGINE_GATHER_WHOLE && i < RANKS; i++) {
                cr_assert(i == rank || heard[i][at[rank]] == WAITING);
                heard[i][at[rank]] = BEGUN;
            }
            while (engine_gathers_take_failed(&gathers, (state & 0xf0) == 0 ? DEADLINE_MS : 0,
                                              &failed)) {
                for (uint32_t i = 0; i < RANKS; i++) {
                    if (!engine_gather_has(&failed, i))
                        continue;
                    cr_assert(eq(int, heard[i][failed.job], WAITING));
                    heard[i][failed.job] = UNDONE;
                }
            }
        }
        while (engine_gathers_take_failed(&gathers, UINT64_MAX, &failed))
            for (uint32_t i = 0; i < RANKS; i++)
                if (engine_gather_has(&failed, i))
                    heard[i][failed.job] = UNDONE;
        for (uint64_t job = 1; job <= JOBS; job++)
            for (uint32_t i = 0; i < RANKS; i++) {
                cr_assert(heard[i][job] != WAITING);
                cr_assert(eq(int, heard[i][job] == BEGUN, heard[0][job] == BEGUN));
            }
    }
}
