/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/response_store.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/support/leak_check.h"

TestSuite(response_store, .fini = leak_check);

Test(response_store, the_oldest_makes_room)
{
    struct response_store *store = response_store_create(2);

    response_store_put(store, SLICE("a"), SLICE("A"), SLICE("1"));
    response_store_put(store, SLICE("b"), SLICE("B"), SLICE("2"));
    response_store_put(store, SLICE("c"), SLICE("C"), SLICE("3"));

    cr_assert(zero(ptr, (void *)response_store_find(store, SLICE("a"))));
    cr_assert(slice_eq(buf_slice(&response_store_find(store, SLICE("b"))->body), SLICE("B")));
    cr_assert(slice_eq(buf_slice(&response_store_find(store, SLICE("c"))->messages), SLICE("3")));
    response_store_destroy(store);
}

Test(response_store, an_id_is_kept_once)
{
    struct response_store *store = response_store_create(2);

    response_store_put(store, SLICE("a"), SLICE("A"), SLICE(""));
    response_store_put(store, SLICE("b"), SLICE("B"), SLICE(""));
    response_store_put(store, SLICE("a"), SLICE("A2"), SLICE(""));

    cr_assert(slice_eq(buf_slice(&response_store_find(store, SLICE("a"))->body), SLICE("A2")));
    cr_assert(not(zero(ptr, (void *)response_store_find(store, SLICE("b")))));
    response_store_destroy(store);
}

Test(response_store, one_without_room_keeps_nothing)
{
    struct response_store *store = response_store_create(0);

    response_store_put(store, SLICE("a"), SLICE("A"), SLICE(""));

    cr_assert(zero(ptr, (void *)response_store_find(store, SLICE("a"))));
    response_store_destroy(store);
}
