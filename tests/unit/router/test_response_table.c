/* SPDX-License-Identifier: Apache-2.0 */

#include "router/response_table.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

#include "backends/runtime/must_check.h"
#include "hashing/digest.h"
#include "tests/support/leak_check.h"

enum { NOBODY = -1 };

static uint8_t secret[DIGEST_SECRET_BYTES];

static struct response_table *table_of(size_t count_max)
{
    digest_secret_derive(secret, "test", 4);
    return response_table_create(secret, count_max);
}

static void learn(struct response_table *table, const char *id, uint32_t worker)
{
    response_table_learn(table, slice_of_string(id), worker);
}

static int who(struct response_table *table, const char *id)
{
    uint32_t worker;

    return response_table_find(table, slice_of_string(id), &worker) ? (int)worker : NOBODY;
}

static void learn_numbered(struct response_table *table, unsigned number, uint32_t worker)
{
    char id[32];

    snprintf(id, sizeof id, "resp_%u", number);
    learn(table, id, worker);
}

static int who_numbered(struct response_table *table, unsigned number)
{
    char id[32];

    snprintf(id, sizeof id, "resp_%u", number);
    return who(table, id);
}

TestSuite(response_table, .fini = leak_check);

Test(response_table, a_response_is_where_it_was_learned)
{
    struct response_table *table = table_of(8);

    learn(table, "resp_a", 0);
    learn(table, "resp_b", 1);

    cr_assert(eq(int, who(table, "resp_a"), 0));
    cr_assert(eq(int, who(table, "resp_b"), 1));
    cr_assert(eq(int, who(table, "resp_c"), NOBODY));
    cr_assert(eq(int, who(table, "resp_"), NOBODY));
    cr_assert(eq(int, who(table, ""), NOBODY));
    response_table_destroy(table);
}

Test(response_table, of_two_engines_with_one_id_the_newest_wins)
{
    struct response_table *table = table_of(8);

    learn(table, "resp_a", 0);
    learn(table, "resp_a", 1);

    cr_assert(eq(int, who(table, "resp_a"), 1));
    cr_assert(eq(sz, response_table_stats(table).count, 1));
    response_table_destroy(table);
}

Test(response_table, a_full_table_forgets_what_was_used_longest_ago_and_counts_it)
{
    struct response_table *table = table_of(3);
    learn(table, "a", 0);
    learn(table, "b", 1);
    learn(table, "c", 2);

    cr_assert(eq(int, who(table, "a"), 0)); /* now the newest use */
    learn(table, "b", 1);                   /* and this */
    learn(table, "d", 3);

    cr_assert(eq(int, who(table, "c"), NOBODY));
    cr_assert(eq(int, who(table, "a"), 0));
    cr_assert(eq(int, who(table, "b"), 1));
    cr_assert(eq(int, who(table, "d"), 3));
    cr_assert(eq(u64, response_table_stats(table).evicted_total, 1));
    response_table_destroy(table);
}

Test(response_table, what_was_forgotten_makes_room_and_is_no_eviction)
{
    struct response_table *table = table_of(2);
    learn(table, "a", 0);
    learn(table, "b", 0);

    response_table_forget(table, SLICE("a"));
    response_table_forget(table, SLICE("never there"));
    learn(table, "c", 0);

    cr_assert(eq(int, who(table, "a"), NOBODY));
    cr_assert(eq(int, who(table, "b"), 0));
    cr_assert(eq(int, who(table, "c"), 0));
    cr_assert(eq(u64, response_table_stats(table).evicted_total, 0));
    response_table_destroy(table);
}

Test(response_table, a_worker_that_restarted_takes_its_responses_along_and_no_others)
{
    struct response_table *table = table_of(100);
    for (unsigned i = 0; i < 100; i++)
        learn_numbered(table, i, i % 3);

    response_table_forget_worker(table, 1);

    for (unsigned i = 0; i < 100; i++)
        cr_assert(eq(int, who_numbered(table, i), i % 3 == 1 ? NOBODY : (int)(i % 3)), "%u", i);
    cr_assert(eq(sz, response_table_stats(table).count, 67));
    response_table_forget_worker(table, 7);
    cr_assert(eq(sz, response_table_stats(table).count, 67));
    response_table_destroy(table);
}

Test(response_table, under_churn_it_holds_exactly_the_newest)
{
    enum { COUNT_MAX = 1000, LEARNED = 50000 };
    struct response_table *table = table_of(COUNT_MAX);

    for (unsigned i = 0; i < LEARNED; i++)
        learn_numbered(table, i, i % 7);

    cr_assert(eq(sz, response_table_stats(table).count, COUNT_MAX));
    cr_assert(eq(u64, response_table_stats(table).evicted_total, LEARNED - COUNT_MAX));
    for (unsigned i = 0; i < LEARNED; i++)
        cr_assert(eq(int, who_numbered(table, i), i < LEARNED - COUNT_MAX ? NOBODY : (int)(i % 7)),
                  "%u", i);
    response_table_destroy(table);
}

Test(response_table, the_smallest_one_remembers_the_last_response)
{
    struct response_table *table = table_of(1);

    for (unsigned i = 0; i < 10; i++)
        learn_numbered(table, i, i);

    cr_assert(eq(int, who_numbered(table, 9), 9));
    cr_assert(eq(int, who_numbered(table, 8), NOBODY));
    response_table_destroy(table);
}

Test(response_table, any_bytes_are_an_id)
{
    struct response_table *table = table_of(8);
    char id[4096];
    uint32_t worker;

    for (unsigned byte = 0; byte < 256; byte += 51) {
        memset(id, (int)byte, sizeof id);
        response_table_learn(table, slice_of(id, sizeof id), byte);
        cr_assert(response_table_find(table, slice_of(id, sizeof id), &worker));
        cr_assert(eq(u32, worker, byte));
        cr_assert(not(response_table_find(table, slice_of(id, sizeof id - 1), &worker)));
    }
    response_table_destroy(table);
}

Test(response_table, destroying_nothing_is_fine)
{
    response_table_destroy(NULL);
}
