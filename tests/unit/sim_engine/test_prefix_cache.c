/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/prefix_cache.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim_engine/random.h"
#include "tests/support/leak_check.h"

enum { BLOCK_SIZE = 4, TOKEN_COUNT_MAX = 96 };

static void fill(uint32_t *tokens, size_t count, uint32_t first)
{
    for (size_t i = 0; i < count; i++)
        tokens[i] = first + (uint32_t)i;
}

/* Matches and grows a new sequence to the whole of tokens; returns the tokens that were cached. */
static size_t admit(struct prefix_cache *cache, struct cache_sequence *sequence,
                    const uint32_t *tokens, size_t count)
{
    size_t matched;

    cache_sequence_init(sequence, 0);
    matched = prefix_cache_match(cache, sequence, tokens, count);
    cr_assert(eq(int, prefix_cache_grow(cache, sequence, tokens, count, matched), 0));
    return matched;
}

static void leave(struct prefix_cache *cache, struct cache_sequence *sequence)
{
    prefix_cache_free(cache, sequence);
    cache_sequence_release(sequence);
}

TestSuite(prefix_cache, .fini = leak_check);

Test(prefix_cache, a_repeated_prompt_hits_all_full_blocks_but_never_its_last_token)
{
    static const struct {
        size_t count, hit;
    } cases[] = {{3, 0}, {4, 0}, {5, 4}, {8, 4}, {9, 8}, {12, 8}, {13, 12}};
    uint32_t tokens[16];
    fill(tokens, 16, 100);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct prefix_cache *cache = prefix_cache_create(16, BLOCK_SIZE);
        struct cache_sequence first, second;
        cr_assert(eq(sz, admit(cache, &first, tokens, cases[i].count), 0));
        leave(cache, &first);

        size_t hit = admit(cache, &second, tokens, cases[i].count);

        cr_assert(eq(sz, hit, cases[i].hit));
        leave(cache, &second);
        prefix_cache_destroy(cache);
    }
}

Test(prefix_cache, another_root_shares_nothing)
{
    struct prefix_cache *cache = prefix_cache_create(16, BLOCK_SIZE);
    struct cache_sequence first, salted;
    uint32_t tokens[12];
    fill(tokens, 12, 1);
    admit(cache, &first, tokens, 12);

    cache_sequence_init(&salted, 77);

    cr_assert(eq(sz, prefix_cache_match(cache, &salted, tokens, 12), 0));
    leave(cache, &first);
    cache_sequence_release(&salted);
    prefix_cache_destroy(cache);
}

Test(prefix_cache, the_tail_of_the_oldest_is_evicted_first)
{
    struct prefix_cache *cache = prefix_cache_create(1 + 4, BLOCK_SIZE);
    struct cache_sequence old, new, again;
    uint32_t old_tokens[12], new_tokens[8];
    fill(old_tokens, 12, 1);
    fill(new_tokens, 8, 500);
    admit(cache, &old, old_tokens, 12); /* three of four blocks */
    leave(cache, &old);

    admit(cache, &new, new_tokens, 8); /* the unused one and the old one's last */

    cr_assert(eq(u64, prefix_cache_eviction_count(cache), 1));
    cache_sequence_init(&again, 0);
    cr_assert(eq(sz, prefix_cache_match(cache, &again, old_tokens, 12), 8));
    leave(cache, &new);
    cache_sequence_release(&again);
    prefix_cache_destroy(cache);
}

Test(prefix_cache, blocks_in_use_are_never_taken_and_a_refusal_changes_nothing)
{
    struct prefix_cache *cache = prefix_cache_create(1 + 4, BLOCK_SIZE);
    struct cache_sequence holder, other;
    uint32_t tokens[12], other_tokens[12];
    fill(tokens, 12, 1);
    fill(other_tokens, 12, 500);
    admit(cache, &holder, tokens, 12);

    cache_sequence_init(&other, 0);
    int status = prefix_cache_grow(cache, &other, other_tokens, 8, 0);

    cr_assert(eq(int, status, -ENOSPC));
    cr_assert(eq(sz, prefix_cache_free_count(cache), 1));
    cr_assert(eq(sz, other.block_count, 0));
    cr_assert(eq(sz, prefix_cache_named_count(cache), 3));
    leave(cache, &holder);
    cache_sequence_release(&other);
    prefix_cache_destroy(cache);
}

/* The free blocks a hit would revive cannot also be room for the rest. */
Test(prefix_cache, shared_blocks_do_not_count_as_free)
{
    struct prefix_cache *cache = prefix_cache_create(1 + 3, BLOCK_SIZE);
    struct cache_sequence first, second;
    uint32_t tokens[16];
    fill(tokens, 16, 1);
    admit(cache, &first, tokens, 12);
    leave(cache, &first); /* three free blocks, all of them named */

    cache_sequence_init(&second, 0);
    size_t matched = prefix_cache_match(cache, &second, tokens, 16);
    int status = prefix_cache_grow(cache, &second, tokens, 16, matched);

    cr_assert(eq(sz, matched, 12));
    cr_assert(eq(int, status, -ENOSPC));
    cr_assert(eq(sz, prefix_cache_free_count(cache), 3));
    cache_sequence_release(&second);
    prefix_cache_destroy(cache);
}

Test(prefix_cache, reset_forgets_all_but_only_when_nothing_is_in_use)
{
    struct prefix_cache *cache = prefix_cache_create(16, BLOCK_SIZE);
    struct cache_sequence first, second;
    uint32_t tokens[12];
    fill(tokens, 12, 1);
    admit(cache, &first, tokens, 12);
    cr_assert(not(prefix_cache_reset(cache)));
    leave(cache, &first);

    cr_assert(prefix_cache_reset(cache));

    cr_assert(eq(sz, admit(cache, &second, tokens, 12), 0));
    leave(cache, &second);
    prefix_cache_destroy(cache);
}

Test(prefix_cache, what_nobody_can_find_is_used_before_what_is_cached)
{
    struct prefix_cache *cache = prefix_cache_create(5, BLOCK_SIZE);
    struct cache_sequence first, half, second;
    uint32_t tokens[12];
    fill(tokens, 12, 1);
    admit(cache, &first, tokens, 12);
    leave(cache, &first);
    admit(cache, &half, tokens + 1, 3);
    leave(cache, &half);

    admit(cache, &half, tokens + 2, 3);

    cr_assert(eq(u64, prefix_cache_eviction_count(cache), 0));
    cr_assert(eq(sz, admit(cache, &second, tokens, 12), 8));
    leave(cache, &half);
    leave(cache, &second);
    prefix_cache_destroy(cache);
}

/* What an observer was told, as text. */
struct heard {
    char text[256];
};

static void hear(struct heard *heard, const char *format, size_t number)
{
    size_t len = strlen(heard->text);

    snprintf(heard->text + len, sizeof heard->text - len, format, number);
}

static void hear_stored(void *ctx, const struct cache_stored *stored)
{
    hear(ctx, "stored from %zu", stored->first);
    hear(ctx, " %zu; ", stored->count);
}

static void hear_evicted(void *ctx, uint64_t name)
{
    cr_assert(ne(u64, name, 0));
    hear(ctx, "evicted; ", 0);
}

static void hear_cleared(void *ctx)
{
    hear(ctx, "cleared; ", 0);
}

Test(prefix_cache, an_observer_hears_of_names_in_the_order_of_their_fate)
{
    static const struct prefix_cache_observer observer = {hear_stored, hear_evicted, hear_cleared};
    struct prefix_cache *cache = prefix_cache_create(4, BLOCK_SIZE);
    struct heard heard = {""};
    struct cache_sequence sequence;
    uint32_t tokens[24];
    fill(tokens, 24, 1);
    prefix_cache_observe(cache, &observer, &heard);

    admit(cache, &sequence, tokens, 6);
    cr_assert(eq(int, prefix_cache_grow(cache, &sequence, tokens, 8, 0), 0));
    leave(cache, &sequence);
    admit(cache, &sequence, tokens, 9); /* a hit, and nothing new is full */
    leave(cache, &sequence);
    admit(cache, &sequence, tokens + 12, 12);
    leave(cache, &sequence);
    cr_assert(prefix_cache_reset(cache));

    cr_assert(eq(str, heard.text,
                 "stored from 0 1; stored from 1 1; evicted; evicted; stored from 0 3; cleared; "));
    prefix_cache_destroy(cache);
}

/*
 * The reference: an array of copies {tokens of the prefix, last use}; no chains, no hashes, no
 * queue: the victim is looked for by its time. Tail first: of blocks freed together the later one
 * in its sequence has the earlier time; blocks without a name come first, the last freed before
 * all.
 */
enum { REFERENCE_BLOCKS = 24, LIVE_MAX = 4 };

struct reference_block {
    uint32_t prefix[TOKEN_COUNT_MAX];
    size_t prefix_count; /* 0: no name */
    uint32_t users;
    int64_t place;  /* the least is taken first: when it was freed; below zero without a name */
    uint64_t named; /* time of */
};

struct reference {
    struct reference_block blocks[REFERENCE_BLOCKS];
    uint64_t time;
};

struct reference_sequence {
    size_t blocks[TOKEN_COUNT_MAX / BLOCK_SIZE];
    size_t count;
};

static struct reference_block *reference_find(struct reference *reference, const uint32_t *tokens,
                                              size_t count)
{
    struct reference_block *oldest = NULL;

    for (size_t i = 0; i < REFERENCE_BLOCKS; i++) {
        struct reference_block *block = &reference->blocks[i];

        if (block->prefix_count == count &&
            memcmp(block->prefix, tokens, count * sizeof *tokens) == 0 &&
            (oldest == NULL || block->named < oldest->named))
            oldest = block;
    }
    return oldest;
}

static size_t reference_match(struct reference *reference, const uint32_t *tokens, size_t count)
{
    size_t hit = 0;

    while (hit + BLOCK_SIZE < count && reference_find(reference, tokens, hit + BLOCK_SIZE) != NULL)
        hit += BLOCK_SIZE;
    return hit;
}

static struct reference_block *reference_victim(struct reference *reference)
{
    struct reference_block *victim = NULL;

    for (size_t i = 0; i < REFERENCE_BLOCKS; i++) {
        struct reference_block *block = &reference->blocks[i];

        if (block->users == 0 && (victim == NULL || block->place < victim->place))
            victim = block;
    }
    return victim;
}

static void reference_admit(struct reference *reference, struct reference_sequence *sequence,
                            const uint32_t *tokens, size_t count)
{
    size_t matched = reference_match(reference, tokens, count);

    sequence->count = 0;
    for (size_t end = BLOCK_SIZE; end <= matched; end += BLOCK_SIZE) {
        struct reference_block *block = reference_find(reference, tokens, end);

        block->users++;
        sequence->blocks[sequence->count++] = (size_t)(block - reference->blocks);
    }
    for (size_t end = matched; end < count; end += BLOCK_SIZE) {
        struct reference_block *block = reference_victim(reference);

        cr_assert(block != NULL);
        block->users = 1;
        block->prefix_count = 0;
        sequence->blocks[sequence->count++] = (size_t)(block - reference->blocks);
    }
    for (size_t i = matched / BLOCK_SIZE; i < count / BLOCK_SIZE; i++) {
        struct reference_block *block = &reference->blocks[sequence->blocks[i]];

        block->prefix_count = (i + 1) * BLOCK_SIZE;
        block->named = ++reference->time;
        memcpy(block->prefix, tokens, block->prefix_count * sizeof *tokens);
    }
}

static void reference_free(struct reference *reference, struct reference_sequence *sequence)
{
    while (sequence->count > 0) {
        struct reference_block *block = &reference->blocks[sequence->blocks[--sequence->count]];

        if (--block->users > 0)
            continue;
        reference->time++;
        block->place =
            block->prefix_count > 0 ? (int64_t)reference->time : -(int64_t)reference->time;
    }
}

struct live {
    bool is_used;
    uint32_t tokens[TOKEN_COUNT_MAX];
    struct cache_sequence sequence;
    struct reference_sequence reference;
};

/* Few distinct beginnings and lengths, so that prefixes meet often. */
static size_t random_prompt(uint32_t *tokens, uint64_t *random)
{
    size_t count = 1 + random_below(random, 24);
    uint32_t family = (uint32_t)random_below(random, 5);
    size_t fork = random_below(random, 24);

    for (size_t i = 0; i < count; i++)
        tokens[i] = i < fork ? family * 1000 + (uint32_t)i
                             : (uint32_t)random_below(random, 3) * 7919 + (uint32_t)i;
    return count;
}

Test(prefix_cache, it_agrees_with_a_naive_model_over_random_operations)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct prefix_cache *cache = prefix_cache_create(REFERENCE_BLOCKS + 1, BLOCK_SIZE);
        struct reference reference = {.time = REFERENCE_BLOCKS};
        struct live live[LIVE_MAX] = {0};
        uint64_t random = seed;
        size_t hit_count = 0;
        for (size_t i = 0; i < REFERENCE_BLOCKS; i++)
            reference.blocks[i].place = (int64_t)i; /* the first order of the queue */

        for (size_t step = 0; step < 2000; step++) {
            struct live *one = &live[random_below(&random, LIVE_MAX)];

            if (one->is_used) {
                leave(cache, &one->sequence);
                reference_free(&reference, &one->reference);
                one->is_used = false;
                continue;
            }
            size_t count = random_prompt(one->tokens, &random);
            size_t expected = reference_match(&reference, one->tokens, count);
            cache_sequence_init(&one->sequence, 0);
            size_t matched = prefix_cache_match(cache, &one->sequence, one->tokens, count);

            cr_assert(eq(sz, matched, expected), "seed %lu step %zu", (unsigned long)seed, step);
            if (prefix_cache_grow(cache, &one->sequence, one->tokens, count, matched) < 0) {
                cache_sequence_release(&one->sequence);
                continue;
            }
            reference_admit(&reference, &one->reference, one->tokens, count);
            one->is_used = true;
            hit_count += matched > 0;
        }
        cr_assert(gt(sz, hit_count, 50)); /* the run met what it is about */
        cr_assert(gt(u64, prefix_cache_eviction_count(cache), 100));
        for (size_t i = 0; i < LIVE_MAX; i++) {
            if (live[i].is_used)
                leave(cache, &live[i].sequence);
        }
        cr_assert(eq(sz, prefix_cache_free_count(cache), prefix_cache_usable_count(cache)));
        prefix_cache_destroy(cache);
    }
}
