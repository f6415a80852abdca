/* SPDX-License-Identifier: Apache-2.0 */

#include "router/poison_table.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

#include "hashing/digest.h"
#include "tests/support/leak_check.h"

enum { MEMORY_MS = 1000, BODY = 77 };

static const struct poison_victim anna = {.worker = 0}, ben = {.worker = 1};

static struct poison_table table;

static void init(void)
{
    poison_table_init(&table, MEMORY_MS);
}

TestSuite(poison_table, .init = init, .fini = leak_check);

Test(poison_table, one_death_proves_nothing)
{
    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));

    cr_assert(eq(int, poison_table_ask(&table, BODY, 10), POISON_UNKNOWN));
}

Test(poison_table, a_second_victim_makes_it_poison)
{
    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));

    cr_assert(poison_table_add(&table, BODY, ben, 20));

    cr_assert(eq(int, poison_table_ask(&table, BODY, 20), POISON_REFUSED));
}

Test(poison_table, many_copies_on_one_worker_have_one_victim)
{
    for (uint64_t at_ms = 1; at_ms < 100; at_ms++)
        cr_assert(not(poison_table_add(&table, BODY, anna, at_ms)));

    cr_assert(eq(int, poison_table_ask(&table, BODY, 100), POISON_UNKNOWN));
}

Test(poison_table, a_worker_that_came_back_is_another_victim)
{
    struct poison_victim again = {.worker = anna.worker, .restart_count = 1};

    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));

    cr_assert(poison_table_add(&table, BODY, again, 20));
}

Test(poison_table, deaths_too_far_apart_are_not_joined)
{
    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));

    cr_assert(not(poison_table_add(&table, BODY, ben, 10 + MEMORY_MS)));

    cr_assert(eq(int, poison_table_ask(&table, BODY, 10 + MEMORY_MS), POISON_UNKNOWN));
    cr_assert(poison_table_add(&table, BODY, anna, 10 + 2 * MEMORY_MS - 1));
}

Test(poison_table, poison_is_forgotten_a_while_after_its_last_victim)
{
    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));
    cr_assert(poison_table_add(&table, BODY, ben, 500));

    cr_assert(eq(int, poison_table_ask(&table, BODY, 500 + MEMORY_MS - 1), POISON_REFUSED));
    cr_assert(eq(int, poison_table_ask(&table, BODY, 500 + 2 * MEMORY_MS), POISON_UNKNOWN));
}

Test(poison_table, one_at_a_time_is_put_on_trial)
{
    uint64_t at_ms = 20 + POISON_WAIT_MS;
    poison_table_init(&table, 100 * POISON_WAIT_MS);
    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));
    cr_assert(poison_table_add(&table, BODY, ben, 20));
    cr_assert(eq(u64, poison_table_wait_ms(&table, BODY, 20), POISON_WAIT_MS));
    cr_assert(eq(int, poison_table_ask(&table, BODY, at_ms - 1), POISON_REFUSED));

    cr_assert(eq(int, poison_table_ask(&table, BODY, at_ms), POISON_TRIAL));

    cr_assert(eq(int, poison_table_ask(&table, BODY, at_ms), POISON_REFUSED));
    cr_assert(eq(int, poison_table_ask(&table, BODY, at_ms + POISON_WAIT_MS), POISON_TRIAL));
}

Test(poison_table, each_trial_that_kills_makes_the_next_wait_longer_up_to_the_memory)
{
    static const uint64_t waits[] = {1, 4, 16, 20, 20};
    uint64_t now_ms = 20;
    poison_table_init(&table, 20 * POISON_WAIT_MS);
    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));

    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        cr_assert(poison_table_add(&table, BODY, ben, now_ms));
        cr_assert(eq(u64, poison_table_wait_ms(&table, BODY, now_ms), waits[i] * POISON_WAIT_MS));
        now_ms += waits[i] * POISON_WAIT_MS;
        cr_assert(eq(int, poison_table_ask(&table, BODY, now_ms), POISON_TRIAL));
    }
}

Test(poison_table, a_good_answer_acquits)
{
    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));
    cr_assert(poison_table_add(&table, BODY, ben, 20));

    poison_table_clear(&table, BODY);

    cr_assert(eq(int, poison_table_ask(&table, BODY, 30), POISON_UNKNOWN));
    cr_assert(not(poison_table_add(&table, BODY, ben, 40)));
    cr_assert(eq(u32, table.count, 1));
}

Test(poison_table, what_is_not_there_can_be_cleared)
{
    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));

    poison_table_clear(&table, BODY + 1);
    poison_table_clear(&table, BODY + POISON_SET_COUNT);

    cr_assert(eq(u32, table.count, 1));
}

Test(poison_table, others_are_not_mistaken_for_it)
{
    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));
    cr_assert(poison_table_add(&table, BODY, ben, 20));

    cr_assert(eq(int, poison_table_ask(&table, BODY + 1, 20), POISON_UNKNOWN));
    cr_assert(eq(int, poison_table_ask(&table, BODY + POISON_SET_COUNT, 20), POISON_UNKNOWN));
}

Test(poison_table, where_nothing_is_remembered_nothing_is_poison)
{
    poison_table_init(&table, 0);

    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));
    cr_assert(not(poison_table_add(&table, BODY, ben, 10)));

    cr_assert(eq(int, poison_table_ask(&table, BODY, 10), POISON_UNKNOWN));
    cr_assert(eq(u32, table.count, 0));
}

Test(poison_table, a_request_without_a_body_is_not_remembered)
{
    cr_assert(not(poison_table_add(&table, 0, anna, 10)));
    cr_assert(not(poison_table_add(&table, 0, ben, 10)));
    cr_assert(not(poison_table_add(&table, BODY, anna, 10)));
    poison_table_clear(&table, 0);

    cr_assert(eq(int, poison_table_ask(&table, 0, 10), POISON_UNKNOWN));
    cr_assert(eq(u32, table.count, 1));
}

Test(poison_table, the_oldest_suspect_makes_room)
{
    /* all of one set; body 1 is renewed, so that body 1 + SET_COUNT is the oldest */
    for (uint64_t way = 0; way < POISON_WAY_COUNT; way++)
        cr_assert(not(poison_table_add(&table, 1 + way * POISON_SET_COUNT, anna, 10 + way)));
    cr_assert(poison_table_add(&table, 1, ben, 100));

    cr_assert(not(poison_table_add(&table, 1 + POISON_WAY_COUNT * POISON_SET_COUNT, anna, 101)));

    cr_assert(eq(int, poison_table_ask(&table, 1, 101), POISON_REFUSED));
    cr_assert(not(poison_table_add(&table, 1 + POISON_SET_COUNT, ben, 102)), "was forgotten");
    cr_assert(eq(u32, table.count, POISON_WAY_COUNT));
}

Test(poison_table, bodies_beyond_its_size_leave_it_at_its_size)
{
    for (uint64_t body = 1; body < 10 * POISON_SET_COUNT * POISON_WAY_COUNT; body++)
        cr_assert(not(poison_table_add(&table, body, anna, body)));

    cr_assert(eq(u32, table.count, POISON_SET_COUNT * POISON_WAY_COUNT));
}

Test(poison_table, a_body_is_named_by_its_prompt_its_length_and_its_ends)
{
    static char body[5000];
    uint8_t secret[DIGEST_SECRET_BYTES];
    uint64_t name;
    digest_secret_derive(secret, "x", 1);
    memset(body, 'a', sizeof body);
    name = poison_body_name(secret, 1, body, sizeof body);

    cr_assert(eq(u64, poison_body_name(secret, 1, body, sizeof body), name));
    cr_assert(ne(u64, poison_body_name(secret, 2, body, sizeof body), name));
    cr_assert(ne(u64, poison_body_name(secret, 1, body, sizeof body - 1), name));
    body[0] = 'b';
    cr_assert(ne(u64, poison_body_name(secret, 1, body, sizeof body), name));
    body[0] = 'a';
    body[sizeof body - 1] = 'b';
    cr_assert(ne(u64, poison_body_name(secret, 1, body, sizeof body), name));
}

Test(poison_table, short_bodies_have_names_too)
{
    uint8_t secret[DIGEST_SECRET_BYTES];
    digest_secret_derive(secret, "x", 1);

    cr_assert(ne(u64, poison_body_name(secret, 0, "{}", 2), 0));
    cr_assert(ne(u64, poison_body_name(secret, 0, "{}", 2), poison_body_name(secret, 0, "{ ", 2)));
}
