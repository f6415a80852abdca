/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/residency_guess.h"

#include "hashing/block_map.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Per worker: nodes in a recency order, and a block_map from hash to node.
 *
 *     newest <-> [first block] <-> [second] <-> ... <-> [last] <-> older prompts ... <-> oldest
 *
 * A prompt is touched from its last block to its first. So a block is always more recent than what
 * continues it, the oldest block is always a leaf, and evicting from that end takes leaves before
 * parents, as engines do, without a tree.
 *
 * Only blocks that the index took have a node: what is believed here is what a match sees, and the
 * memory for nodes is bounded by the index's own limit.
 *
 * A block that is new with a prompt keeps the number of that prompt's making. Makings are in a
 * small ring, so that settling one is a write, however long the prompt; an old one that is pushed
 * out of the ring is settled by that. A making that nobody settles ends by its time.
 */

enum {
    MAKING_COUNT = 4096,
    CAPACITY_TOKENS_DEFAULT = 131072,
    NODE_COUNT_MIN = 64,
    EVICTED_PER_REFUSAL_MAX = 16,
};

static const uint32_t NONE = UINT32_MAX;

struct guess_node {
    uint64_t hash;         /* 0: the node is free */
    uint32_t newer;        /* NONE: the newest */
    uint32_t older;        /* NONE: the oldest; in the free list: the next free one */
    uint32_t tokens_milli; /* of at most 512 bytes */
    uint32_t making;       /* that brought it */
};

struct making {
    uint32_t number; /* 0: none */
    uint64_t until_ms;
};

struct guess_worker {
    struct block_map places; /* hash -> 1 + index in nodes */
    struct guess_node *nodes;
    uint32_t node_count;
    uint32_t node_count_max;
    uint32_t free;
    uint32_t newest;
    uint32_t oldest;
    uint64_t tokens_milli;
    uint64_t capacity_milli;
};

struct residency_guess {
    struct residency_index *index;
    struct residency_guess_stats stats;
    uint32_t making; /* number of the last */
    struct making makings[MAKING_COUNT];
    struct guess_worker *workers[RESIDENCY_HOLDER_COUNT_MAX]; /* NULL: nothing learned yet */
};

static void unlink_node(struct guess_worker *of, uint32_t at)
{
    struct guess_node *node = &of->nodes[at];

    if (node->newer != NONE)
        of->nodes[node->newer].older = node->older;
    else
        of->newest = node->older;
    if (node->older != NONE)
        of->nodes[node->older].newer = node->newer;
    else
        of->oldest = node->newer;
}

/* Behind ref: less recent than it, more recent than all that were. */
static void link_older(struct guess_worker *of, uint32_t at, uint32_t ref)
{
    of->nodes[at].newer = ref;
    of->nodes[at].older = of->nodes[ref].older;
    if (of->nodes[ref].older != NONE)
        of->nodes[of->nodes[ref].older].newer = at;
    else
        of->oldest = at;
    of->nodes[ref].older = at;
}

static void link_newest(struct guess_worker *of, uint32_t at)
{
    of->nodes[at].newer = NONE;
    of->nodes[at].older = of->newest;
    if (of->newest != NONE)
        of->nodes[of->newest].newer = at;
    else
        of->oldest = at;
    of->newest = at;
}

/* A node that is in no list, or NONE without memory. */
static uint32_t take_node(struct guess_worker *of)
{
    uint32_t at = of->free;

    if (at != NONE) {
        of->free = of->nodes[at].older;
        return at;
    }
    if (of->node_count == of->node_count_max) {
        uint32_t count_max = of->node_count_max > 0 ? 2 * of->node_count_max : NODE_COUNT_MIN;
        struct guess_node *nodes = realloc(of->nodes, count_max * sizeof *nodes);

        if (nodes == NULL)
            return NONE;
        of->nodes = nodes;
        of->node_count_max = count_max;
    }
    return of->node_count++;
}

static void give_node(struct guess_worker *of, uint32_t at)
{
    of->nodes[at] = (struct guess_node){.older = of->free};
    of->free = at;
}

static struct guess_worker *worker_of(struct residency_guess *guess, uint32_t worker)
{
    struct guess_worker *of = guess->workers[worker];

    if (of != NULL)
        return of;
    of = calloc(1, sizeof *of);
    if (of == NULL)
        abort(); /* bookkeeping: there is nothing sensible to refuse */
    block_map_init(&of->places, SIZE_MAX);
    of->free = of->newest = of->oldest = NONE;
    of->capacity_milli = CAPACITY_TOKENS_DEFAULT * 1000ull;
    guess->workers[worker] = of;
    return of;
}

static void forget_node(struct residency_guess *guess, uint32_t worker, uint32_t at)
{
    struct guess_worker *of = guess->workers[worker];
    struct guess_node *node = &of->nodes[at];

    assert(of->tokens_milli >= node->tokens_milli);
    assert(guess->stats.block_count > 0);

    residency_index_remove(guess->index, node->hash, worker);
    block_map_remove(&of->places, node->hash);
    of->tokens_milli -= node->tokens_milli;
    guess->stats.block_count--;
    unlink_node(of, at);
    give_node(of, at);
}

static void evict_oldest(struct residency_guess *guess, uint32_t worker)
{
    forget_node(guess, worker, guess->workers[worker]->oldest);
    guess->stats.evicted_total++;
}

static void evict_excess(struct residency_guess *guess, uint32_t worker)
{
    struct guess_worker *of = guess->workers[worker];

    while (of->tokens_milli > of->capacity_milli)
        evict_oldest(guess, worker);
}

/* When the index is full, the oldest blocks of this worker make room, a bounded number of them. */
static bool store(struct residency_guess *guess, uint32_t worker, uint64_t hash)
{
    for (unsigned evicted = 0; evicted <= EVICTED_PER_REFUSAL_MAX; evicted++) {
        if (residency_index_store(guess->index, hash, worker, RESIDENCY_HBM, 0) == 0)
            return true;
        if (guess->workers[worker]->oldest == NONE)
            return false;
        evict_oldest(guess, worker);
    }
    return false;
}

/* A node for the new place of hash, in no list yet and without tokens. NONE: the index refused it
 * and the place is gone. Evicting moves places, so *place is written before. */
static uint32_t add_node(struct residency_guess *guess, uint32_t worker, uint64_t hash,
                         uint64_t *place)
{
    struct guess_worker *of = guess->workers[worker];
    uint32_t at = take_node(of);

    if (at == NONE)
        abort(); /* bookkeeping, and less than the index takes for the same block */
    of->nodes[at] = (struct guess_node){.hash = hash};
    *place = (uint64_t)at + 1;
    if (!store(guess, worker, hash)) {
        block_map_remove(&of->places, hash);
        give_node(of, at);
        return NONE;
    }
    guess->stats.block_count++;
    return at;
}

/* The node of hash, old or new, taken out of the order. NONE: refused. */
static uint32_t unlinked_node(struct residency_guess *guess, uint32_t worker, uint64_t hash)
{
    struct guess_worker *of = guess->workers[worker];
    uint64_t *place = block_map_claim(&of->places, hash);

    if (place == NULL)
        abort(); /* as in add_node() */
    if (*place == 0)
        return add_node(guess, worker, hash, place);
    unlink_node(of, (uint32_t)(*place - 1));
    return (uint32_t)(*place - 1);
}

static void set_tokens(struct guess_worker *of, uint32_t at, uint32_t tokens_milli)
{
    of->tokens_milli += tokens_milli;
    of->tokens_milli -= of->nodes[at].tokens_milli;
    of->nodes[at].tokens_milli = tokens_milli;
}

/* True: hash is new, and of that making. A node without tokens is a new one. */
static bool touch(struct residency_guess *guess, uint32_t worker, uint64_t hash,
                  uint32_t tokens_milli, uint32_t making)
{
    struct guess_worker *of = guess->workers[worker];
    uint32_t at = unlinked_node(guess, worker, hash);
    bool is_new;

    if (at == NONE)
        return false;
    link_newest(of, at);
    is_new = of->nodes[at].tokens_milli == 0;
    if (is_new)
        of->nodes[at].making = making;
    set_tokens(of, at, tokens_milli);
    return is_new;
}

static uint32_t tokens_milli_of(uint64_t bytes, double tokens_per_byte)
{
    double milli = (double)bytes * tokens_per_byte * 1000.0 + 0.5;

    return milli < 1 ? 1 : milli < UINT32_MAX ? (uint32_t)milli : UINT32_MAX;
}

static uint32_t block_tokens_milli(const struct block *blocks, size_t i, double tokens_per_byte)
{
    return tokens_milli_of(blocks[i].end - (i > 0 ? blocks[i - 1].end : 0), tokens_per_byte);
}

/* How many of the prompt's blocks, from its first one to be guessed, fit into an otherwise empty
 * cache. */
static size_t fitting(const struct guess_worker *of, const struct guess_prompt *prompt)
{
    uint64_t tokens_milli = 0;
    size_t at = prompt->from;

    for (; at < prompt->block_count; at++) {
        tokens_milli += block_tokens_milli(prompt->blocks, at, prompt->tokens_per_byte);
        if (tokens_milli > of->capacity_milli)
            break;
    }
    return at;
}

static uint32_t next_making(const struct residency_guess *guess)
{
    return guess->making + (guess->making == UINT32_MAX ? 2 : 1); /* never 0 */
}

static void begin_making(struct residency_guess *guess, uint32_t making, uint64_t until_ms)
{
    guess->making = making;
    guess->makings[making % MAKING_COUNT] = (struct making){making, until_ms};
}

static bool is_being_made(const struct residency_guess *guess, uint32_t making, uint64_t now_ms)
{
    const struct making *found = &guess->makings[making % MAKING_COUNT];

    return making != 0 && found->number == making && now_ms < found->until_ms;
}

struct residency_guess *residency_guess_create(struct residency_index *index)
{
    struct residency_guess *guess = calloc(1, sizeof *guess);

    if (guess != NULL)
        guess->index = index;
    return guess;
}

void residency_guess_destroy(struct residency_guess *guess)
{
    if (guess == NULL)
        return;
    for (size_t worker = 0; worker < RESIDENCY_HOLDER_COUNT_MAX; worker++) {
        struct guess_worker *of = guess->workers[worker];

        if (of == NULL)
            continue;
        block_map_release(&of->places);
        free(of->nodes);
        free(of);
    }
    free(guess);
}

void residency_guess_set_capacity(struct residency_guess *guess, uint32_t worker, uint64_t tokens)
{
    struct guess_worker *of;

    assert(worker < RESIDENCY_HOLDER_COUNT_MAX);

    of = worker_of(guess, worker);
    if (tokens == 0)
        tokens = CAPACITY_TOKENS_DEFAULT;
    of->capacity_milli = tokens < UINT64_MAX / 1000 ? tokens * 1000 : UINT64_MAX;
    evict_excess(guess, worker);
}

uint32_t residency_guess_learn(struct residency_guess *guess, uint32_t worker,
                               const struct guess_prompt *prompt)
{
    const uint32_t making = next_making(guess);
    bool has_new = false;

    assert(worker < RESIDENCY_HOLDER_COUNT_MAX);
    assert(prompt->tokens_per_byte > 0);

    for (size_t i = fitting(worker_of(guess, worker), prompt); i-- > prompt->from;) {
        has_new |= touch(guess, worker, prompt->blocks[i].hash,
                         block_tokens_milli(prompt->blocks, i, prompt->tokens_per_byte), making);
        evict_excess(guess, worker);
    }
    if (!has_new)
        return 0;
    begin_making(guess, making, prompt->pending_until_ms);
    return making;
}

void residency_guess_settle(struct residency_guess *guess, uint32_t making)
{
    struct making *found = &guess->makings[making % MAKING_COUNT];

    if (making != 0 && found->number == making)
        *found = (struct making){0, 0};
}

void residency_guess_extend(struct residency_guess *guess, uint32_t worker, struct block parent,
                            const struct block *blocks, size_t block_count, double tokens_per_byte)
{
    struct guess_worker *of;
    const uint64_t *place;
    uint32_t newer;

    assert(worker < RESIDENCY_HOLDER_COUNT_MAX);
    assert(tokens_per_byte > 0);

    of = worker_of(guess, worker);
    place = parent.hash != 0 ? block_map_find(&of->places, parent.hash) : NULL;
    newer = place != NULL ? (uint32_t)(*place - 1) : NONE;
    for (size_t i = 0; i < block_count; i++) {
        uint64_t bytes = blocks[i].end - (i > 0 ? blocks[i - 1].end : parent.end);
        uint32_t at = unlinked_node(guess, worker, blocks[i].hash);

        if (at == NONE)
            break; /* nothing behind it would ever be matched */
        if (newer != NONE && of->nodes[newer].hash == 0) {
            link_newest(of, at); /* its parent made room for it: it is of no use either */
            forget_node(guess, worker, at);
            break;
        }
        if (newer != NONE)
            link_older(of, at, newer);
        else
            link_newest(of, at);
        set_tokens(of, at, tokens_milli_of(bytes, tokens_per_byte));
        newer = at;
    }
    evict_excess(guess, worker);
}

size_t residency_guess_run(const struct residency_guess *guess, uint32_t worker,
                           const struct block *blocks, size_t from, size_t block_count)
{
    const struct guess_worker *of;
    size_t at = from;

    assert(worker < RESIDENCY_HOLDER_COUNT_MAX);

    of = guess->workers[worker];
    if (of == NULL)
        return 0;
    while (at < block_count && block_map_find(&of->places, blocks[at].hash) != NULL)
        at++;
    return at - from;
}

uint64_t residency_guess_pending(const struct residency_guess *guess, uint32_t worker,
                                 const struct block *blocks, size_t end, uint64_t now_ms)
{
    const struct guess_worker *of = guess->workers[worker];
    size_t at = end;

    while (of != NULL && at > 0) {
        const uint64_t *place = block_map_find(&of->places, blocks[at - 1].hash);

        if (place == NULL || !is_being_made(guess, of->nodes[*place - 1].making, now_ms))
            break;
        at--;
    }
    return at == end ? 0 : blocks[end - 1].end - (at > 0 ? blocks[at - 1].end : 0);
}

void residency_guess_forget(struct residency_guess *guess, uint32_t worker, uint64_t hash)
{
    const uint64_t *place;

    assert(worker < RESIDENCY_HOLDER_COUNT_MAX);

    place = guess->workers[worker] != NULL ? block_map_find(&guess->workers[worker]->places, hash)
                                           : NULL;
    if (place != NULL)
        forget_node(guess, worker, (uint32_t)(*place - 1));
}

void residency_guess_correct(struct residency_guess *guess, uint32_t worker,
                             const struct block *blocks, size_t block_count, size_t kept)
{
    struct guess_worker *of;

    assert(worker < RESIDENCY_HOLDER_COUNT_MAX);

    of = guess->workers[worker];
    if (of == NULL)
        return;
    for (size_t i = kept; i < block_count; i++) {
        const uint64_t *place = block_map_find(&of->places, blocks[i].hash);

        if (place == NULL)
            continue;
        forget_node(guess, worker, (uint32_t)(*place - 1));
        guess->stats.corrected_total++;
    }
}

void residency_guess_forget_worker(struct residency_guess *guess, uint32_t worker)
{
    struct guess_worker *of;

    assert(worker < RESIDENCY_HOLDER_COUNT_MAX);

    of = guess->workers[worker];
    if (of == NULL)
        return;
    while (of->oldest != NONE)
        forget_node(guess, worker, of->oldest);
    assert(of->tokens_milli == 0);
}

struct residency_guess_stats residency_guess_stats(const struct residency_guess *guess)
{
    return guess->stats;
}
