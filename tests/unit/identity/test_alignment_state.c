/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/alignment_state.h"

#include "tests/support/leak_check.h"
#include "tests/unit/identity/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdlib.h>

enum { IDENTITY = 77, STATE_BYTES_MAX = 1 << 20 };

static struct buf save(struct world *world)
{
    struct buf state;

    buf_init(&state, STATE_BYTES_MAX);
    cr_assert(eq(int, alignment_save(&world->alignment, IDENTITY, &state), 0));
    return state;
}

/* The agent starts again, beside the same engine. */
static void restart(struct world *world, uint32_t text_nodes_max, const struct buf *state)
{
    struct alignment_config config = config_of(world);

    alignment_release(&world->alignment);
    config.text_nodes_max = text_nodes_max;
    cr_assert(eq(int, alignment_init(&world->alignment, config), 0));
    cr_assert(eq(int, alignment_load(&world->alignment, IDENTITY, buf_slice(state)), 0));
    alignment_flush(&world->alignment, 0);
}

/* The engine has no block of it any more. */
static void evict_all(struct world *world, const struct request *request)
{
    for (size_t i = 0; i < request->store.block_count; i++)
        (void)token_chain_remove(&world->alignment.tokens, request->aliases[i], TOKEN_TIER_HBM, 0);
}

TestSuite(alignment_state, .fini = leak_check);

Test(alignment_state, what_was_learned_is_claimed_again_as_soon_as_its_tokens_show_up)
{
    struct world world;
    struct request first, second;
    make_world(&world);
    make_plain(&world, &first, 4, 1000, 1);
    make_plain(&world, &second, 4, 2000, 2);
    give_all(&world, &first);
    give_all(&world, &second);
    struct buf state = save(&world);

    restart(&world, 512, &state);
    size_t at_first = count_claimed(&world, &first);
    first.store.block_count = 8; /* two text blocks */
    give(&world, &first, EVENT);
    alignment_flush(&world.alignment, 0);
    size_t after_part = count_claimed(&world, &first);
    give(&world, &second, EVENT);
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(sz, at_first, 0));
    cr_assert(eq(sz, after_part, 2));
    cr_assert(eq(sz, count_claimed(&world, &second), 10));
    cr_assert(eq(sz, count_claimed(&world, &first), 4)); /* what both begin with */
    for (size_t i = 0; i < 10; i++)
        cr_assert(eq(u32, tokens_at(&world, &second, i), (uint32_t)(i + 1) * 64));
    buf_release(&state);
    alignment_release(&world.alignment);
}

Test(alignment_state, a_block_takes_24_bytes_and_saving_again_gives_the_same)
{
    struct world world;
    struct request requests[8];
    make_world(&world);
    for (uint32_t i = 0; i < 8; i++) {
        make_plain(&world, &requests[i], i, 1000 * (i + 1), i + 1);
        give_all(&world, &requests[i]);
    }
    uint32_t block_count = world.alignment.text.node_count;
    struct buf state = save(&world);

    restart(&world, 512, &state);
    struct buf again = save(&world);

    cr_assert(eq(u32, world.alignment.text.node_count, block_count));
    cr_assert(eq(sz, buf_len(&state), 24 + block_count * 24 + 8 * 16));
    cr_assert(slice_eq(buf_slice(&state), buf_slice(&again)));
    buf_release(&state);
    buf_release(&again);
    alignment_release(&world.alignment);
}

Test(alignment_state, with_less_room_what_was_used_last_is_kept)
{
    struct world world;
    struct request first, second;
    make_world(&world);
    make_plain(&world, &first, 2, 1000, 1);
    make_plain(&world, &second, 2, 2000, 2);
    give_all(&world, &first);
    give_all(&world, &second);
    struct buf state = save(&world);

    restart(&world, 12, &state);
    give(&world, &first, EVENT);
    give(&world, &second, EVENT);
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(u32, world.alignment.text.node_count, 12));
    cr_assert(eq(sz, count_claimed(&world, &second), 10));
    cr_assert(eq(sz, count_claimed(&world, &first), 4)); /* the oldest leaves went */
    buf_release(&state);
    alignment_release(&world.alignment);
}

Test(alignment_state, a_later_anchor_is_not_undone_by_an_old_state)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    for (size_t i = 8 * BLOCK_TOKENS; i < request.id_count; i++)
        request.ids[i] += 70000; /* what became of the same text then */
    finish_request(&world, &request, 1);
    give_all(&world, &request);
    struct buf state = save(&world);
    evict_all(&world, &request);
    make_plain(&world, &request, 0, 1000, 2);
    give_all(&world, &request);

    cr_assert(eq(int, alignment_load(&world.alignment, IDENTITY, buf_slice(&state)), 0));
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(sz, count_claimed(&world, &request), 10));
    buf_release(&state);
    alignment_release(&world.alignment);
}

Test(alignment_state, a_text_block_that_was_never_joined_is_not_saved)
{
    struct world world;
    struct request joined, recorded;
    make_world(&world);
    make_plain(&world, &joined, 0, 1000, 1);
    make_plain(&world, &recorded, 3, 2000, 2);
    give_all(&world, &joined);
    give(&world, &recorded, RECORD);
    alignment_flush(&world.alignment, 0);
    uint32_t before = world.alignment.text.node_count;
    struct buf state = save(&world);

    restart(&world, 512, &state);

    cr_assert(gt(u32, before, 10));
    cr_assert(eq(u32, world.alignment.text.node_count, 10));
    buf_release(&state);
    alignment_release(&world.alignment);
}

Test(alignment_state, an_answer_that_is_withheld_is_not_saved)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    give_all(&world, &request);
    uint32_t last = text_chain_find(&world.alignment.text, request.text[9].hash);
    world.alignment.aligned[last].is_answer = world.alignment.aligned[last].is_withheld = true;
    struct buf state = save(&world);

    restart(&world, 512, &state);
    give(&world, &request, EVENT);
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(sz, count_claimed(&world, &request), 9));
    buf_release(&state);
    alignment_release(&world.alignment);
}

/* All but the first slice, which is begun already. */
static void save_rest(struct world *world, uint32_t count, struct buf *state)
{
    int status;

    while ((status = alignment_save_step(&world->alignment, count)) == 1)
        ;
    cr_assert(eq(int, status, 0));
    cr_assert(eq(int, alignment_save_seal(world->secret, state, 0), 0));
}

Test(alignment_state, saved_in_slices_it_is_what_it_is_at_once)
{
    struct world world;
    struct request requests[8];
    make_world(&world);
    for (uint32_t i = 0; i < 8; i++) {
        make_plain(&world, &requests[i], i, 1000 * (i + 1), i + 1);
        give_all(&world, &requests[i]);
    }
    struct buf whole = save(&world), sliced;
    buf_init(&sliced, STATE_BYTES_MAX);

    cr_assert(eq(int, alignment_save_begin(&world.alignment, IDENTITY, &sliced), 0));
    cr_assert(eq(int, alignment_save_step(&world.alignment, 1), 1));
    save_rest(&world, 1, &sliced);

    cr_assert(slice_eq(buf_slice(&sliced), buf_slice(&whole)));
    buf_release(&whole);
    buf_release(&sliced);
    alignment_release(&world.alignment);
}

Test(alignment_state,
     what_comes_or_is_mapped_otherwise_between_two_slices_is_saved_as_it_came_to_be)
{
    struct world world;
    struct request first, other, late;
    struct buf state;
    make_world(&world);
    make_plain(&world, &first, 0, 1000, 1);
    for (size_t i = 8 * BLOCK_TOKENS; i < first.id_count; i++)
        first.ids[i] += 70000;
    finish_request(&world, &first, 1);
    give_all(&world, &first);
    make_plain(&world, &other, 2, 2000, 2);
    give_all(&world, &other);
    buf_init(&state, STATE_BYTES_MAX);
    cr_assert(eq(int, alignment_save_begin(&world.alignment, IDENTITY, &state), 0));
    cr_assert(eq(int, alignment_save_step(&world.alignment, 1), 1)); /* the first run is written */

    evict_all(&world, &first);
    make_plain(&world, &first, 0, 1000, 3); /* its text is other tokens now */
    give_all(&world, &first);
    make_plain(&world, &late, 1, 3000, 4);
    give_all(&world, &late);
    save_rest(&world, 1, &state);
    restart(&world, 512, &state);
    give(&world, &first, EVENT);
    give(&world, &late, EVENT);
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(sz, count_claimed(&world, &first), 10));
    cr_assert(eq(sz, count_claimed(&world, &late), 10));
    buf_release(&state);
    alignment_release(&world.alignment);
}

Test(alignment_state, a_save_that_is_given_up_leaves_nothing)
{
    struct world world;
    struct request request;
    struct buf out;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    give_all(&world, &request);
    buf_init(&out, STATE_BYTES_MAX);
    cr_assert(eq(int, buf_append(&out, SLICE("x")), 0));

    cr_assert(eq(int, alignment_save_begin(&world.alignment, IDENTITY, &out), 0));
    cr_assert(eq(int, alignment_save_step(&world.alignment, 1), 1));
    alignment_save_abandon(&world.alignment);
    alignment_save_abandon(&world.alignment);

    cr_assert(eq(sz, buf_len(&out), 1));
    cr_assert(eq(int, alignment_save(&world.alignment, IDENTITY, &out), 0));
    buf_release(&out);
    alignment_release(&world.alignment);
}

Test(alignment_state, nothing_is_taken_of_a_state_that_is_damaged_cut_or_anothers)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    give_all(&world, &request);
    struct buf state = save(&world);
    struct alignment_config config = config_of(&world);
    uint8_t other_secret[DIGEST_SECRET_BYTES];
    alignment_release(&world.alignment);
    digest_secret_derive(other_secret, "other", 5);
    cr_assert(eq(int, alignment_init(&world.alignment, config), 0));

    for (size_t i = 0; i < buf_len(&state); i++) {
        state.bytes[state.start + i] ^= 0x10;
        cr_assert(eq(int, alignment_load(&world.alignment, IDENTITY, buf_slice(&state)), -EPROTO));
        state.bytes[state.start + i] ^= 0x10;
        cr_assert(
            eq(int,
               alignment_load(&world.alignment, IDENTITY, (struct slice){buf_slice(&state).ptr, i}),
               -EPROTO));
    }
    cr_assert(eq(int, alignment_load(&world.alignment, IDENTITY + 1, buf_slice(&state)), -EPROTO));
    world.alignment.config.secret = other_secret;
    cr_assert(eq(int, alignment_load(&world.alignment, IDENTITY, buf_slice(&state)), -EPROTO));

    cr_assert(eq(u32, world.alignment.text.node_count, 0));
    buf_release(&state);
    alignment_release(&world.alignment);
}

Test(alignment_state, without_room_for_it_nothing_is_appended)
{
    struct world world;
    struct request request;
    struct buf out;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    give_all(&world, &request);

    for (size_t bytes_max = 1; bytes_max < 10 * 24 + 16 + 24; bytes_max++) {
        buf_init(&out, bytes_max);
        cr_assert(eq(int, buf_append(&out, SLICE("x")), 0));
        cr_assert(eq(int, alignment_save(&world.alignment, IDENTITY, &out), -ENOBUFS));
        cr_assert(eq(sz, buf_len(&out), 1));
        buf_release(&out);
    }
    alignment_release(&world.alignment);
}
