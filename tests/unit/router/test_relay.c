/* SPDX-License-Identifier: Apache-2.0 */

#include "router/relay.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdlib.h>

#include "tests/support/loop_fixture.h"
#include "tests/support/worker_by_url.h"

static void never(struct deadline *deadline)
{
    (void)deadline;
}

static io_expired_fn *const on_expired[RELAY_WAIT_COUNT] = {
    never, never, never, never, never, never, never, never, never, never,
};

static struct relay *relay_create(uint64_t seed)
{
    struct relay_config config = {0};
    struct relay *relay = malloc(sizeof *relay); /* too large for a stack */

    for (uint64_t wait = 0; wait < RELAY_WAIT_COUNT; wait++)
        config.wait_ms[wait] = (wait + 1) * 1000;
    relay_init(relay, loop_fixture_io(), config, on_expired);
    relay->id_state = seed;
    return relay;
}

TestSuite(relay, .init = loop_fixture_init, .fini = loop_fixture_fini);

Test(relay, ids_are_letters_and_digits_that_do_not_repeat)
{
    enum { ID_COUNT = 1000 };
    static char ids[ID_COUNT][RELAY_ID_BYTES + 1];
    struct relay *relay = relay_create(7);

    for (size_t i = 0; i < ID_COUNT; i++) {
        relay_random_id(relay, ids[i], RELAY_ID_BYTES);
        cr_assert(eq(sz, strspn(ids[i], "abcdefghijklmnopqrstuvwxyz234567"), RELAY_ID_BYTES));
        for (size_t j = 0; j < i; j++)
            cr_assert(ne(str, ids[i], ids[j]));
    }
    free(relay);
}

Test(relay, all_of_an_id_is_random_and_nothing_beyond_it_is_written)
{
    struct relay *relay = relay_create(7);
    char first[RELAY_ID_BYTES], id[RELAY_ID_BYTES + 1];
    bool differs[RELAY_ID_BYTES] = {false};
    relay_random_id(relay, first, RELAY_ID_BYTES);
    id[RELAY_ID_BYTES] = '!';

    for (int round = 0; round < 100; round++) {
        relay_random_id(relay, id, RELAY_ID_BYTES);
        for (size_t i = 0; i < RELAY_ID_BYTES; i++)
            differs[i] |= id[i] != first[i];
    }

    for (size_t i = 0; i < RELAY_ID_BYTES; i++)
        cr_assert(differs[i], "%zu", i);
    cr_assert(eq(chr, id[RELAY_ID_BYTES], '!'));
    free(relay);
}

Test(relay, another_seed_gives_other_ids)
{
    struct relay *one = relay_create(1);
    char ids[2][RELAY_ID_BYTES + 1] = {{0}};
    relay_random_id(one, ids[0], RELAY_ID_BYTES);
    free(one);

    struct relay *two = relay_create(2);
    relay_random_id(two, ids[1], RELAY_ID_BYTES);

    cr_assert(ne(str, ids[0], ids[1]));
    free(two);
}

Test(relay, a_wait_is_as_long_as_its_option)
{
    struct relay *relay = relay_create(7);
    uint64_t now_ms = io_loop_now_ms(loop_fixture_io());

    for (int wait = 0; wait < RELAY_WAIT_COUNT; wait++) {
        struct deadline deadline;
        deadline_init(&deadline);

        relay_wait(relay, (enum relay_wait)wait, &deadline);

        cr_assert(eq(u64, deadline.expires_ms, now_ms + ((uint64_t)wait + 1) * 1000));
        cr_assert(gt(sz, strlen(relay_wait_name((enum relay_wait)wait)), 0));
        deadline_disarm(&deadline);
    }
    free(relay);
}

Test(relay, it_is_ready_while_a_worker_is_up_and_no_drain_has_begun)
{
    struct relay *relay = relay_create(7);
    struct worker *worker;
    relay->workers = worker_set_create();
    cr_assert(not(relay_is_ready(relay)));
    cr_assert(eq(int, add_worker_by_url(relay->workers, "http://127.0.0.1:8001", 0, &worker), 0));
    cr_assert(not(relay_is_ready(relay)));

    cr_assert(worker_handle(worker, WORKER_EVENT_ALIVE, WORKER_REASON_PROBE, 1));
    cr_assert(relay_is_ready(relay));

    relay->is_draining = true;
    cr_assert(not(relay_is_ready(relay)));
    worker_set_destroy(relay->workers);
    free(relay);
}
