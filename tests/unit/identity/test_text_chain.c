/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/text_chain.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

enum { FORGOTTEN_MAX = 64 };

/* Whatever the chain said it forgot, in order. */
struct forgotten {
    uint64_t hashes[FORGOTTEN_MAX];
    size_t count;
};

static void note_forgotten(void *ctx, uint32_t index, uint64_t hash, uint32_t parent)
{
    struct forgotten *forgotten = ctx;

    cr_assert(ne(u32, index, parent));
    cr_assert(lt(sz, forgotten->count, FORGOTTEN_MAX));
    forgotten->hashes[forgotten->count++] = hash;
}

static struct text_chain make_chain(uint32_t node_count_max, struct forgotten *forgotten)
{
    struct text_chain chain;
    struct text_chain_config config = {.node_count_max = node_count_max,
                                       .depth_max = 1000,
                                       .on_forgotten = forgotten != NULL ? note_forgotten : NULL,
                                       .ctx = forgotten};

    cr_assert(eq(int, text_chain_init(&chain, config), 0));
    return chain;
}

/* Extends by count blocks of 256 bytes, named first, first + 1, ... */
static int extend(struct text_chain *chain, uint64_t start, uint64_t first, size_t count)
{
    struct text_block blocks[100];
    uint32_t base = text_chain_find(chain, start), tip;
    uint64_t end = base != 0 ? text_chain_at(chain, base)->end : 0;

    for (size_t i = 0; i < count; i++)
        blocks[i] = (struct text_block){first + i, end += 256};
    return text_chain_extend(chain, start, blocks, count, &tip);
}

TestSuite(text_chain, .fini = leak_check);

Test(text_chain, a_record_goes_on_where_another_ended)
{
    struct text_chain chain = make_chain(16, NULL);
    const struct text_block first[] = {{11, 256}, {12, 512}};
    const struct text_block second[] = {{13, 700}};
    uint32_t tip = 0;

    int status_first = text_chain_extend(&chain, 0, first, 2, &tip);
    int status_second = text_chain_extend(&chain, 12, second, 1, &tip);

    const struct text_node *node = text_chain_at(&chain, tip);
    cr_assert(eq(int, status_first, 0));
    cr_assert(eq(int, status_second, 0));
    cr_assert(eq(u64, node->hash, 13));
    cr_assert(eq(u64, node->end, 700));
    cr_assert(eq(u32, node->depth, 3));
    cr_assert(eq(u32, node->parent, text_chain_find(&chain, 12)));
    text_chain_release(&chain);
}

Test(text_chain, a_record_that_is_known_changes_nothing)
{
    struct text_chain chain = make_chain(16, NULL);
    cr_assert(eq(int, extend(&chain, 0, 11, 5), 0));

    int status = extend(&chain, 0, 11, 5);

    cr_assert(eq(int, status, 0));
    cr_assert(eq(u32, chain.node_count, 5));
    text_chain_release(&chain);
}

Test(text_chain, a_record_of_its_start_alone_ends_there)
{
    struct text_chain chain = make_chain(16, NULL);
    uint32_t tip = 0;
    cr_assert(eq(int, extend(&chain, 0, 11, 5), 0));

    int status = text_chain_extend(&chain, 15, NULL, 0, &tip);

    cr_assert(eq(int, status, 0));
    cr_assert(eq(u32, tip, text_chain_find(&chain, 15)));
    text_chain_release(&chain);
}

Test(text_chain, an_unknown_start_is_refused_and_counted)
{
    struct text_chain chain = make_chain(16, NULL);

    int status = extend(&chain, 99, 11, 2);

    cr_assert(eq(int, status, -ENOENT));
    cr_assert(eq(u64, chain.stats.unknown_starts, 1));
    cr_assert(eq(u32, chain.node_count, 0));
    text_chain_release(&chain);
}

Test(text_chain, records_that_contradict_themselves_or_what_is_known_change_nothing)
{
    static const struct text_block bad[][2] = {
        {{0, 256}, {31, 512}},   /* no name */
        {{31, 256}, {32, 256}},  /* an empty block */
        {{31, 256}, {31, 512}},  /* twice, and so its own parent */
        {{31, 256}, {12, 512}},  /* known behind another */
        {{11, 256}, {12, 500}},  /* known to end elsewhere */
        {{12, 512}, {31, 1000}}, /* known deeper down */
    };
    struct text_chain chain = make_chain(16, NULL);
    cr_assert(eq(int, extend(&chain, 0, 11, 2), 0));

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint32_t tip;

        cr_assert(eq(int, text_chain_extend(&chain, 0, bad[i], 2, &tip), -EINVAL), "row %zu", i);
    }

    cr_assert(eq(u32, chain.node_count, 2));
    text_chain_release(&chain);
}

Test(text_chain, the_branch_used_longest_ago_goes_first_and_as_a_whole)
{
    struct forgotten forgotten = {.count = 0};
    struct text_chain chain = make_chain(12, &forgotten);
    cr_assert(eq(int, extend(&chain, 0, 1, 2), 0));   /* what all share */
    cr_assert(eq(int, extend(&chain, 2, 100, 4), 0)); /* the oldest */
    cr_assert(eq(int, extend(&chain, 2, 200, 4), 0));
    cr_assert(eq(int, extend(&chain, 2, 100, 4), 0)); /* now the newest */

    int status = extend(&chain, 2, 300, 6);

    static const uint64_t expected[] = {203, 202, 201, 200};
    cr_assert(eq(int, status, 0));
    cr_assert(eq(sz, forgotten.count, 4));
    for (size_t i = 0; i < 4; i++)
        cr_assert(eq(u64, forgotten.hashes[i], expected[i]));
    cr_assert(ne(u32, text_chain_find(&chain, 103), 0));
    cr_assert(eq(u32, text_chain_find(&chain, 200), 0));
    text_chain_release(&chain);
}

Test(text_chain, a_record_too_long_for_the_room_is_taken_back_whole)
{
    struct forgotten forgotten = {.count = 0};
    struct text_chain chain = make_chain(8, &forgotten);
    cr_assert(eq(int, extend(&chain, 0, 1, 2), 0));

    int status = extend(&chain, 2, 100, 7);

    cr_assert(eq(int, status, -ENOSPC));
    cr_assert(eq(u32, chain.node_count, 2));
    cr_assert(eq(u32, text_chain_find(&chain, 100), 0));
    cr_assert(eq(sz, forgotten.count, 0));
    cr_assert(eq(int, extend(&chain, 2, 100, 6), 0));
    text_chain_release(&chain);
}

/* The hash of the leaf that a walk comes to next; 0: that was all. */
static uint64_t walk(struct text_chain *chain)
{
    const uint32_t leaf = text_chain_walk_next(chain);

    return leaf != 0 ? text_chain_at(chain, leaf)->hash : 0;
}

Test(text_chain, a_walk_meets_each_leaf_though_one_is_used_or_forgotten_on_the_way)
{
    struct text_chain chain = make_chain(6, NULL);
    for (uint64_t first = 10; first <= 60; first += 10)
        cr_assert(eq(int, extend(&chain, 0, first, 1), 0));
    text_chain_walk_begin(&chain);

    cr_assert(eq(u64, walk(&chain), 10));
    cr_assert(eq(int, extend(&chain, 0, 20, 1), 0)); /* the next one is the newest now */
    cr_assert(eq(u64, walk(&chain), 30));
    cr_assert(eq(int, extend(&chain, 0, 70, 3), 0)); /* 10, 30 and the next one are forgotten */

    const uint64_t rest[] = {50, 60, 20, 72, 0, 0};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++)
        cr_assert(eq(u64, walk(&chain), rest[i]));
    text_chain_release(&chain);
}

Test(text_chain, a_walk_that_has_not_come_to_a_leaf_meets_its_parent_when_that_is_one)
{
    struct text_chain chain = make_chain(4, NULL);
    cr_assert(eq(int, extend(&chain, 0, 10, 2), 0));
    cr_assert(eq(int, extend(&chain, 0, 20, 2), 0));
    text_chain_walk_begin(&chain);

    cr_assert(eq(int, extend(&chain, 21, 22, 1), 0)); /* in the place of 11 */

    cr_assert(eq(u64, walk(&chain), 10));
    cr_assert(eq(u64, walk(&chain), 22));
    cr_assert(zero(u64, walk(&chain)));
    text_chain_release(&chain);
}

Test(text_chain, chains_deeper_than_allowed_are_refused)
{
    struct text_chain chain;
    struct text_chain_config config = {.node_count_max = 100, .depth_max = 10};
    cr_assert(eq(int, text_chain_init(&chain, config), 0));
    cr_assert(eq(int, extend(&chain, 0, 1, 8), 0));

    int status_deeper = extend(&chain, 8, 100, 3);
    int status_deepest = extend(&chain, 8, 100, 2);

    cr_assert(eq(int, status_deeper, -ENOSPC));
    cr_assert(eq(int, status_deepest, 0));
    cr_assert(eq(u64, chain.stats.refused, 1));
    text_chain_release(&chain);
}

/* Every node is in the map, every leaf in the list, and every parent knows its children. */
static void check_whole(const struct text_chain *chain)
{
    uint32_t children[65] = {0};
    size_t leaves = 0, listed = 0, nodes = 0;

    for (uint32_t i = 1; i <= 64; i++) {
        const struct text_node *node = text_chain_at(chain, i);

        if (node->hash == 0)
            continue;
        nodes++;
        leaves += node->child == 0;
        children[node->parent]++;
        cr_assert(eq(u32, text_chain_find(chain, node->hash), i));
    }
    for (uint32_t i = 1; i <= 64; i++)
        for (uint32_t c = text_chain_at(chain, i)->child; c != 0;
             c = text_chain_at(chain, c)->sibling_older) {
            cr_assert(eq(u32, text_chain_at(chain, c)->parent, i));
            children[i]--;
        }
    for (uint32_t i = 1; i <= 64; i++)
        cr_assert(eq(u32, children[i], 0));
    for (uint32_t i = chain->oldest; i != 0; i = text_chain_at(chain, i)->newer)
        listed++;
    cr_assert(eq(sz, listed, leaves));
    cr_assert(eq(u32, chain->node_count, (uint32_t)nodes));
    cr_assert(eq(sz, block_map_count(&chain->by_hash), nodes));
}

Test(text_chain, it_stays_whole_under_random_records)
{
    struct text_chain chain = make_chain(64, NULL);
    uint32_t seed = 7;

    for (unsigned round = 0; round < 5000; round++) {
        struct text_block blocks[90];
        uint64_t path = 1;
        size_t count;
        uint32_t tip;

        seed = seed * 1664525 + 1013904223;
        count = 1 + (seed >> 8) % (round % 50 == 0 ? 90 : 12);
        for (size_t i = 0; i < count; i++) {
            seed = seed * 1664525 + 1013904223;
            path = path * 1000003 + (seed >> 16) % 3;
            blocks[i] = (struct text_block){path, (i + 1) * 100};
        }
        int status = text_chain_extend(&chain, 0, blocks, count, &tip);
        cr_assert(eq(int, status, count <= 64 ? 0 : -ENOSPC));
        check_whole(&chain);
    }

    cr_assert(gt(u64, chain.stats.forgotten, 1000));
    text_chain_release(&chain);
}
