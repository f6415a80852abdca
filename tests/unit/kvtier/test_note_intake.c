/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/note_intake.h"

#include "hashing/token_name.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdlib.h>

enum { FINGERPRINT = 0xf1, ROUTER = 0x70, ATTEMPT = 0xa, BLOCK_TOKENS = 4, BLOCK_BYTES = 16 };

static const uint8_t secret[DIGEST_SECRET_BYTES] = "a secret of the cluster";

/* An alignment whose engine holds a prompt of four token blocks, and the notes of routers to it. */
struct world {
    struct alignment alignment;
    struct note_intake intake;
    uint64_t names[4]; /* of the token blocks */
    uint64_t unknown_start;
    uint64_t wanted[8];
    size_t wanted_count;
    uint32_t within_ms;
    struct buf entry;
};

static void on_unknown_start(void *ctx, uint64_t start)
{
    struct world *world = ctx;

    world->unknown_start = start;
}

static void on_prefetch(void *ctx, const uint64_t *hashes, size_t count, uint32_t within_ms)
{
    struct world *world = ctx;

    cr_assert(le(sz, count, 8));
    memcpy(world->wanted, hashes, count * sizeof *hashes);
    world->wanted_count = count;
    world->within_ms = within_ms;
}

static void store_prompt(struct world *world)
{
    const uint32_t ids[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    const uint64_t aliases[4] = {1, 2, 3, 4};
    struct digest_128 name = token_name_root(secret, NULL, 0, NULL, 0);
    struct token_store store = {
        .root = name, .aliases = aliases, .block_count = 4, .ids = ids, .block_tokens = 4};

    cr_assert(eq(sz, token_chain_store(&world->alignment.tokens, &store), 4));
    for (size_t i = 0; i < 4; i++) {
        name = token_name_next(secret, name, ids + 4 * i, 4, 0);
        world->names[i] = name.low;
    }
}

static struct world *world_create(void)
{
    static struct world world;

    cr_assert(eq(int,
                 alignment_init(&world.alignment, (struct alignment_config){.secret = secret,
                                                                            .token_nodes_max = 64,
                                                                            .text_nodes_max = 64,
                                                                            .depth_max = 32,
                                                                            .attempts_max = 8,
                                                                            .wait_ms = 1000,
                                                                            .groups = 1}),
                 0));
    note_intake_init(&world.intake, &world.alignment, FINGERPRINT);
    world.intake.on_unknown_start = on_unknown_start;
    world.intake.ctx = &world;
    buf_init(&world.entry, 1 << 20);
    store_prompt(&world);
    cr_assert(eq(int, residency_notes_begin(&world.entry, FINGERPRINT, ROUTER), 0));
    return &world;
}

static void world_release(struct world *world)
{
    alignment_release(&world->alignment);
    buf_release(&world->entry);
}

/* Blocks of equal length named from, from + 1, ... */
static void write_note(struct world *world, struct residency_note note, uint64_t from,
                       size_t block_count)
{
    struct residency_note_block blocks[8];

    cr_assert(le(sz, block_count, 8));
    for (size_t i = 0; i < block_count; i++)
        blocks[i] = (struct residency_note_block){from + i, BLOCK_BYTES};
    cr_assert(eq(int, residency_note_write(&world->entry, &note, blocks, block_count), 0));
}

static void take(struct world *world)
{
    note_intake_take(&world->intake, buf_slice(&world->entry), 0);
    alignment_flush(&world->alignment, 0);
}

static struct residency_note anchor_of(const struct world *world)
{
    return (struct residency_note){.kind = RESIDENCY_NOTE_ANCHOR,
                                   .attempt = ATTEMPT,
                                   .has_anchor = true,
                                   .last_block = world->names[1],
                                   .token_count = 2 * BLOCK_TOKENS,
                                   .cached_tokens = UINT32_MAX};
}

/* Tiers and tokens as claimed of a text block. */
static void check_claim(const struct world *world, uint64_t hash, uint8_t tiers, uint32_t tokens)
{
    uint32_t claimed_tokens;
    uint8_t claimed = alignment_claim(&world->alignment, hash, &claimed_tokens);

    cr_assert(eq(u8, claimed, tiers), "block %d", (int)hash);
    cr_assert(eq(u32, claimed_tokens, tokens), "block %d", (int)hash);
}

TestSuite(note_intake, .fini = leak_check);

Test(note_intake, a_record_and_its_anchor_are_claimed_where_the_engine_holds_them)
{
    struct world *world = world_create();

    write_note(world, (struct residency_note){.kind = RESIDENCY_NOTE_ROUTED, .attempt = ATTEMPT},
               0x101, 2);
    write_note(world, anchor_of(world), 0, 0);
    take(world);

    check_claim(world, 0x101, 1 << TOKEN_TIER_HBM, 4);
    check_claim(world, 0x102, 1 << TOKEN_TIER_HBM, 8);
    cr_assert(eq(u64, world->intake.results[NOTE_ROUTED], 1));
    cr_assert(eq(u64, world->intake.results[NOTE_ANCHOR], 1));
    world_release(world);
}

Test(note_intake, a_long_record_comes_in_parts)
{
    struct world *world = world_create();
    struct residency_note anchor = anchor_of(world);
    anchor.last_block = world->names[3];
    anchor.token_count = 16;

    write_note(world, (struct residency_note){.kind = RESIDENCY_NOTE_TEXT}, 0x101, 3);
    write_note(
        world,
        (struct residency_note){.kind = RESIDENCY_NOTE_ROUTED, .attempt = ATTEMPT, .start = 0x103},
        0x104, 1);
    write_note(world, anchor, 0, 0);
    take(world);

    check_claim(world, 0x101, 1 << TOKEN_TIER_HBM, 4);
    check_claim(world, 0x104, 1 << TOKEN_TIER_HBM, 16);
    world_release(world);
}

Test(note_intake, an_answer_goes_on_behind_its_prompt_and_is_another_attempt)
{
    struct world *world = world_create();
    struct residency_note answer = {.kind = RESIDENCY_NOTE_ANSWERED,
                                    .attempt = ATTEMPT,
                                    .start = 0x102,
                                    .has_anchor = true,
                                    .last_block = world->names[1],
                                    .token_count = 17, /* the last one is not in the cache */
                                    .cached_tokens = UINT32_MAX};

    write_note(world, (struct residency_note){.kind = RESIDENCY_NOTE_ROUTED, .attempt = ATTEMPT},
               0x101, 2);
    write_note(world, answer, 0x103, 2);
    write_note(world, anchor_of(world), 0, 0);
    take(world);

    check_claim(world, 0x102, 1 << TOKEN_TIER_HBM, 8);
    check_claim(world, 0x104, 1 << TOKEN_TIER_HBM, 16);
    cr_assert(eq(u64, world->alignment.stats.joined, 2));
    world_release(world);
}

static uint64_t find_prompt(void *ctx, uint64_t attempt)
{
    const struct world *world = ctx;

    return attempt == ATTEMPT ? world->names[1] : 0;
}

/* A router that need not ask for anchors knows how many tokens there were, not which. */
static void take_answer_of_engine(struct world *world)
{
    const struct residency_note answer = {.kind = RESIDENCY_NOTE_ANSWERED,
                                          .attempt = ATTEMPT,
                                          .start = 0x102,
                                          .has_anchor = true,
                                          .token_count = 17,
                                          .cached_tokens = UINT32_MAX};

    write_note(world, (struct residency_note){.kind = RESIDENCY_NOTE_ROUTED, .attempt = ATTEMPT},
               0x101, 2);
    write_note(world, answer, 0x103, 2);
    write_note(world, anchor_of(world), 0, 0);
    take(world);
}

Test(note_intake, an_answer_whose_prompt_the_engine_told_is_joined_behind_it)
{
    struct world *world = world_create();

    world->intake.find_prompt = find_prompt;
    take_answer_of_engine(world);

    check_claim(world, 0x104, 1 << TOKEN_TIER_HBM, 16);
    world_release(world);
}

Test(note_intake, an_answer_whose_prompt_nobody_told_is_not_claimed)
{
    struct world *world = world_create();

    take_answer_of_engine(world);

    check_claim(world, 0x102, 1 << TOKEN_TIER_HBM, 8);
    check_claim(world, 0x104, 0, 0);
    cr_assert(eq(u64, world->alignment.stats.joined, 1));
    world_release(world);
}

Test(note_intake, a_start_that_is_not_known_is_told_and_the_rest_of_the_entry_is_taken)
{
    struct world *world = world_create();

    write_note(
        world,
        (struct residency_note){.kind = RESIDENCY_NOTE_ROUTED, .attempt = ATTEMPT, .start = 0x999},
        0x101, 2);
    write_note(world, (struct residency_note){.kind = RESIDENCY_NOTE_TEXT}, 0x201, 1);
    take(world);

    cr_assert(eq(u64, world->unknown_start, 0x999));
    cr_assert(eq(u64, world->intake.results[NOTE_UNKNOWN_START], 1));
    cr_assert(eq(u64, world->intake.results[NOTE_TEXT], 1));
    cr_assert(eq(u32, text_chain_find(&world->alignment.text, 0x101), 0));
    cr_assert(ne(u32, text_chain_find(&world->alignment.text, 0x201), 0));
    world_release(world);
}

Test(note_intake, blocks_that_are_wanted_nearer_are_passed_on)
{
    struct world *world = world_create();
    world->intake.on_prefetch = on_prefetch;

    write_note(
        world,
        (struct residency_note){.kind = RESIDENCY_NOTE_PREFETCH, .start = 0x999, .within_ms = 250},
        0x101, 2);
    take(world);

    cr_assert(eq(sz, world->wanted_count, 2));
    cr_assert(eq(u64, world->wanted[0], 0x101));
    cr_assert(eq(u64, world->wanted[1], 0x102));
    cr_assert(eq(u32, world->within_ms, 250));
    cr_assert(eq(u64, world->intake.results[NOTE_PREFETCH], 1));
    cr_assert(eq(u64, world->unknown_start, 0), "a hint needs no text before it");
    world_release(world);
}

Test(note_intake, a_hint_is_unused_where_nobody_moves_blocks)
{
    struct world *world = world_create();

    write_note(world, (struct residency_note){.kind = RESIDENCY_NOTE_PREFETCH, .within_ms = 1},
               0x101, 1);
    take(world);

    cr_assert(eq(u64, world->intake.results[NOTE_UNUSED], 1));
    world_release(world);
}

Test(note_intake, a_router_of_another_fingerprint_is_not_listened_to)
{
    struct world *world = world_create();

    buf_clear(&world->entry);
    cr_assert(eq(int, residency_notes_begin(&world->entry, FINGERPRINT + 1, ROUTER), 0));
    write_note(world, (struct residency_note){.kind = RESIDENCY_NOTE_TEXT}, 0x101, 1);
    take(world);

    cr_assert(eq(u64, world->intake.results[NOTE_FOREIGN], 1));
    cr_assert(eq(u64, world->intake.foreign_fingerprint, FINGERPRINT + 1));
    cr_assert(eq(u32, text_chain_find(&world->alignment.text, 0x101), 0));
    world_release(world);
}

Test(note_intake, records_that_cannot_be_are_counted_by_their_reason)
{
    struct world *world = world_create();

    for (uint64_t from = 0x101, start = 0; from < 0x101 + 48; start = from + 7, from += 8)
        write_note(world, (struct residency_note){.kind = RESIDENCY_NOTE_TEXT, .start = start},
                   from, 8); /* deeper than 32 from the fifth on */
    write_note(world, (struct residency_note){.kind = RESIDENCY_NOTE_TEXT}, 0, 1); /* hash 0 */
    take(world);

    cr_assert(eq(u64, world->intake.results[NOTE_TEXT], 4));
    cr_assert(eq(u64, world->intake.results[NOTE_TOO_LONG], 1));
    cr_assert(eq(u64, world->intake.results[NOTE_UNKNOWN_START], 1));
    cr_assert(eq(u64, world->intake.results[NOTE_INVALID] + world->intake.results[NOTE_BROKEN], 1));
    world_release(world);
}

/* Every cut of a good entry, and every byte of it changed: taken or counted, never worse. */
Test(note_intake, whatever_bytes_come_the_rest_goes_on)
{
    struct world *world = world_create();
    char copy[512];
    size_t len;

    write_note(world, (struct residency_note){.kind = RESIDENCY_NOTE_ROUTED, .attempt = ATTEMPT},
               0x101, 2);
    write_note(world, anchor_of(world), 0, 0);
    len = buf_len(&world->entry);
    cr_assert(lt(sz, len, sizeof copy));

    for (size_t cut = 0; cut < len; cut++)
        note_intake_take(&world->intake, slice_of(buf_slice(&world->entry).ptr, cut), 0);
    for (size_t at = 0; at < len; at++) {
        memcpy(copy, buf_slice(&world->entry).ptr, len);
        copy[at] = (char)(copy[at] ^ 0xff);
        note_intake_take(&world->intake, slice_of(copy, len), 0);
    }
    take(world);

    check_claim(world, 0x102, 1 << TOKEN_TIER_HBM, 8);
    cr_assert(gt(u64, world->intake.results[NOTE_BROKEN], 0));
    world_release(world);
}
