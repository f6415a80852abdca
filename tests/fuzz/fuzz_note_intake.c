/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any entry, beside an engine that holds one prompt: what is claimed of a block of text is never
 * more than the engine holds, and is taken back with it.
 */
#include "kvtier/note_intake.h"

#include "hashing/token_name.h"

#include <assert.h>

enum { FINGERPRINT = 0xf1, BLOCK_COUNT = 4, BLOCK_TOKENS = 4, WAIT_MS = 1000 };

static const uint8_t secret[DIGEST_SECRET_BYTES] = "a secret of the cluster";

struct world {
    struct alignment alignment;
    struct note_intake intake;
};

static void on_claimed(void *ctx, uint64_t hash, uint8_t tiers, uint32_t tokens)
{
    (void)ctx;
    assert(hash != 0);
    assert(tiers == 0 || tiers == 1 << TOKEN_TIER_HBM);
    assert(tokens <= BLOCK_COUNT * BLOCK_TOKENS && (tiers != 0 || tokens == 0));
}

static void on_prefetch(void *ctx, const uint64_t *hashes, size_t count, uint32_t within_ms)
{
    (void)ctx, (void)within_ms;
    assert(count > 0 && count <= NOTE_INTAKE_BLOCK_COUNT_MAX);
    for (size_t i = 0; i < count; i++)
        assert(hashes[i] != 0);
}

static void store_prompt(struct world *world)
{
    const uint32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    const uint64_t aliases[BLOCK_COUNT] = {1, 2, 3, 4};
    struct token_store store = {.root = token_name_root(secret, NULL, 0, NULL, 0),
                                .aliases = aliases,
                                .block_count = BLOCK_COUNT,
                                .ids = ids,
                                .block_tokens = BLOCK_TOKENS};

    (void)token_chain_store(&world->alignment.tokens, &store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world world;
    int status =
        alignment_init(&world.alignment, (struct alignment_config){.secret = secret,
                                                                   .token_nodes_max = 16,
                                                                   .text_nodes_max = 16,
                                                                   .depth_max = 8,
                                                                   .attempts_max = 4,
                                                                   .wait_ms = WAIT_MS,
                                                                   .groups = 1,
                                                                   .on_claimed = on_claimed});

    assert(status == 0);
    note_intake_init(&world.intake, &world.alignment, FINGERPRINT);
    world.intake.on_prefetch = on_prefetch;
    store_prompt(&world);
    for (uint64_t now_ms = 0; now_ms < 2; now_ms++) {
        note_intake_take(&world.intake, slice_of((const char *)data, size), now_ms);
        alignment_flush(&world.alignment, now_ms);
    }
    token_chain_begin_epoch(&world.alignment.tokens);
    alignment_flush(&world.alignment, WAIT_MS * 2);
    for (uint32_t i = 1; i <= 16; i++)
        assert(world.alignment.aligned[i].claimed == 0 ||
               world.alignment.aligned[i].claimed_tokens == 0);
    alignment_release(&world.alignment);
    return 0;
}
