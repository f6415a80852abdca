/* SPDX-License-Identifier: Apache-2.0 */

/*
 * world: one engine and one router. Text is words; a block of text is TEXT_WORDS of them and has
 * 256 bytes; a word becomes WORD_TOKENS tokens, so that a text block is 64 tokens: four blocks of
 * the engine. What the template writes in front of the text may vary.
 */
#ifndef TESTS_UNIT_IDENTITY_WORLD_H
#define TESTS_UNIT_IDENTITY_WORLD_H

#include "hashing/token_name.h"
#include "kvtier/identity/alignment.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

enum {
    TEXT_WORDS = 16,
    WORD_TOKENS = 4,
    BLOCK_TOKENS = 16,
    TOKENS_MAX = 4096,
    TEXT_BLOCKS_MAX = 64
};
enum { HBM = 1 << TOKEN_TIER_HBM, CPU = 1 << TOKEN_TIER_CPU, SSD = 1 << TOKEN_TIER_SSD };

struct world {
    struct alignment alignment;
    uint8_t secret[DIGEST_SECRET_BYTES];
    const char *salt;
    const char *lora;
    uint64_t image; /* of every block; 0: none */
};

/* One request: what the router and the engine make of its words. */
struct request {
    struct text_block text[TEXT_BLOCKS_MAX];
    size_t text_count;
    uint32_t ids[TOKENS_MAX];
    uint32_t id_count;
    uint64_t aliases[TOKENS_MAX / BLOCK_TOKENS];
    struct alignment_record record;
    struct alignment_anchor anchor;
    struct token_store store;
};

static inline struct alignment_config config_of(const struct world *world)
{
    return (struct alignment_config){.secret = world->secret,
                                     .token_nodes_max = 4096,
                                     .text_nodes_max = 512,
                                     .depth_max = 512,
                                     .attempts_max = 16,
                                     .wait_ms = 10000,
                                     .groups = 1};
}

static inline void make_world(struct world *world)
{
    world->salt = world->lora = "";
    world->image = 0;
    digest_secret_derive(world->secret, "alignment", 9);
    cr_assert(eq(int, alignment_init(&world->alignment, config_of(world)), 0));
}

/* Words are numbers. The template's own tokens come first. */
static inline void make_request(const struct world *world, struct request *request,
                                const uint32_t *words, size_t word_count)
{
    const uint64_t roots[] = {
        digest_64(world->secret, DIGEST_ROOT, world->salt, strlen(world->salt)),
        digest_64(world->secret, DIGEST_ROOT, world->lora, strlen(world->lora)), world->image};
    uint64_t hash = digest_64(world->secret, DIGEST_ROOT, roots, sizeof roots);

    *request = (struct request){.text_count = word_count / TEXT_WORDS};
    for (size_t i = 0; i < request->text_count; i++) {
        uint64_t named[1 + TEXT_WORDS] = {hash};

        for (size_t w = 0; w < TEXT_WORDS; w++)
            named[1 + w] = words[i * TEXT_WORDS + w];
        hash = digest_64(world->secret, DIGEST_MEDIA, named, sizeof named);
        request->text[i] = (struct text_block){hash, (i + 1) * 256};
    }
    for (size_t w = 0; w < word_count; w++)
        for (uint32_t t = 0; t < WORD_TOKENS; t++)
            request->ids[request->id_count++] = words[w] * WORD_TOKENS + t;
}

/* Says what the three parts are, after the engine's tokens were settled. */
static inline void finish_request(const struct world *world, struct request *request,
                                  uint64_t attempt)
{
    const size_t block_count = request->id_count / BLOCK_TOKENS;
    struct digest_128 root = token_name_root(world->secret, world->lora, strlen(world->lora),
                                             world->salt, strlen(world->salt));
    struct digest_128 block = root;

    for (size_t i = 0; i < block_count; i++) {
        block = token_name_next(world->secret, block, request->ids + i * BLOCK_TOKENS, BLOCK_TOKENS,
                                world->image);
        request->aliases[i] = block.high | 1;
    }
    request->store = (struct token_store){.root = root,
                                          .aliases = request->aliases,
                                          .block_count = block_count,
                                          .ids = request->ids,
                                          .block_tokens = BLOCK_TOKENS,
                                          .is_report = true};
    request->record = (struct alignment_record){
        .attempt = attempt, .blocks = request->text, .block_count = request->text_count};
    request->anchor = (struct alignment_anchor){.attempt = attempt,
                                                .last_block = block.low,
                                                .token_count = request->id_count,
                                                .cached_tokens = UINT32_MAX};
}

/* count text blocks of words that begin with first, behind shared blocks of words from 0 on. */
static inline void make_plain(const struct world *world, struct request *request,
                              size_t shared_count, uint32_t first, uint64_t attempt)
{
    uint32_t words[10 * TEXT_WORDS];

    for (uint32_t w = 0; w < 10 * TEXT_WORDS; w++)
        words[w] = w < shared_count * TEXT_WORDS ? w : first + w;
    make_request(world, request, words, 10 * TEXT_WORDS);
    finish_request(world, request, attempt);
}

enum part { RECORD, ANCHOR, EVENT };

static inline void give(struct world *world, const struct request *request, enum part part)
{
    switch (part) {
    case RECORD:
        cr_assert(eq(int, alignment_record(&world->alignment, &request->record, 0), 0));
        break;
    case ANCHOR:
        alignment_anchor(&world->alignment, &request->anchor, 0);
        break;
    case EVENT:
        token_chain_store(&world->alignment.tokens, &request->store);
        break;
    }
}

static inline void give_all(struct world *world, const struct request *request)
{
    give(world, request, RECORD);
    give(world, request, EVENT);
    give(world, request, ANCHOR);
    alignment_flush(&world->alignment, 0);
}

static inline void evict(struct world *world, const struct request *request, size_t block,
                         enum token_tier tier)
{
    cr_assert(token_chain_remove(&world->alignment.tokens, request->aliases[block], tier, 0));
    alignment_flush(&world->alignment, 0);
}

/* How many of the request's first text blocks are claimed. */
static inline size_t count_claimed(const struct world *world, const struct request *request)
{
    size_t count = 0;

    while (count < request->text_count &&
           alignment_claim(&world->alignment, request->text[count].hash, NULL) != 0)
        count++;
    return count;
}

static inline uint32_t tokens_at(const struct world *world, const struct request *request, size_t i)
{
    uint32_t tokens;

    alignment_claim(&world->alignment, request->text[i].hash, &tokens);
    return tokens;
}

#endif
