/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/cache_events.h"

#include "hashing/token_name.h"
#include "tests/support/kv_recording.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { NODE_COUNT_MAX = 1024, PAYLOAD_BYTES_MAX = 1024 };

static const uint8_t secret[DIGEST_SECRET_BYTES] = "a secret of the cluster";

/* Token blocks held in a tier now. */
struct world {
    struct token_chain chain;
    struct cache_events events;
    uint32_t held[TOKEN_TIER_COUNT];
};

static void on_changed(void *ctx, uint64_t name, uint8_t before, uint8_t after)
{
    struct world *world = ctx;

    (void)name;
    for (unsigned tier = 0; tier < TOKEN_TIER_COUNT; tier++)
        world->held[tier] += (after >> tier & 1U) - (before >> tier & 1U);
}

static struct world *world_create(void)
{
    static struct world world;

    cr_assert(eq(
        int,
        token_chain_init(&world.chain, (struct token_chain_config){.secret = secret,
                                                                   .node_count_max = NODE_COUNT_MAX,
                                                                   .groups = 1,
                                                                   .on_changed = on_changed,
                                                                   .ctx = &world}),
        0));
    cache_events_init(&world.events, secret, &world.chain);
    return &world;
}

static void apply_payload(struct world *world, struct slice payload)
{
    struct kv_event_batch batch;

    cr_assert(eq(int, kv_event_batch_open(&batch, payload), 0));
    cache_events_apply(&world->events, &batch);
}

/* Applies a recorded stream; returns how many batches it had. */
static size_t apply_recording(struct world *world, const char *name)
{
    static struct kv_recording recording;
    struct kv_event_message message;
    struct kv_frames frames;
    size_t count = 0;

    kv_recording_open(&recording, name);
    for (; kv_recording_next(&recording, &frames); count++) {
        cr_assert(eq(int, kv_event_message_read(frames.frames, frames.count, &message), 0));
        apply_payload(world, message.payload);
    }
    return count;
}

/* ---- batches as an engine would write them: MessagePack, the least of it ---- */

struct pack {
    uint8_t bytes[PAYLOAD_BYTES_MAX];
    size_t len;
};

static void put_byte(struct pack *pack, unsigned byte)
{
    cr_assert(pack->len < sizeof pack->bytes);
    pack->bytes[pack->len++] = (uint8_t)byte;
}

static void put_text(struct pack *pack, const char *text)
{
    put_byte(pack, 0xa0U | (unsigned)strlen(text));
    for (; *text != '\0'; text++)
        put_byte(pack, (uint8_t)*text);
}

/* An array of small numbers: from, from + 1, ... */
static void put_numbers(struct pack *pack, const char *key, unsigned from, unsigned count)
{
    put_text(pack, key);
    put_byte(pack, 0x90U | count);
    for (unsigned i = 0; i < count; i++)
        put_byte(pack, from + i);
}

static void put_pair(struct pack *pack, const char *key, const char *value)
{
    put_text(pack, key);
    put_text(pack, value);
}

/* A batch of one event with so many fields, which the caller writes. */
static void put_batch(struct pack *pack, const char *type, unsigned field_count)
{
    *pack = (struct pack){.len = 0};
    put_byte(pack, 0x92); /* [at, events] */
    put_byte(pack, 0x00);
    put_byte(pack, 0x91);
    put_byte(pack, 0x80U | (field_count + 1));
    put_pair(pack, "type", type);
}

static void apply(struct world *world, const struct pack *pack)
{
    apply_payload(world, slice_of((const char *)pack->bytes, pack->len));
}

struct stored {
    unsigned hash;        /* of the first block; the second is hash + 1 */
    const char *medium;   /* NULL: not said */
    const char *group;    /* a digit; NULL: not said */
    const char *kind;     /* NULL: not said */
    const char *salt;     /* NULL: none; as the first block's extra key */
    const char *lora;     /* NULL: none; also each block's extra key */
    bool has_image;       /* a pair beside the salt */
    bool is_placeholder;  /* no tokens */
    const char *own_salt; /* NULL: none; in a field of its own */
};

static void put_keys(struct pack *pack, const struct stored *stored, bool is_first)
{
    unsigned count = (stored->lora != NULL) + (is_first && stored->has_image) +
                     (is_first && stored->salt != NULL);

    put_byte(pack, count == 0 ? 0xc0 : 0x90U | count);
    if (stored->lora != NULL)
        put_text(pack, stored->lora);
    if (is_first && stored->has_image) {
        put_byte(pack, 0x92);
        put_text(pack, "image");
        put_byte(pack, 3);
    }
    if (is_first && stored->salt != NULL)
        put_text(pack, stored->salt);
}

/* Two blocks of four tokens, the first of their chain. */
static void store(struct world *world, struct stored stored)
{
    const bool has_keys = stored.salt != NULL || stored.lora != NULL || stored.has_image;
    struct pack pack;

    put_batch(&pack, "BlockStored",
              4 + (stored.medium != NULL) + (stored.group != NULL) + (stored.kind != NULL) +
                  has_keys + (stored.lora != NULL) + (stored.own_salt != NULL));
    put_numbers(&pack, "block_hashes", stored.hash != 0 ? stored.hash : 1, 2);
    put_text(&pack, "parent_block_hash");
    put_byte(&pack, 0xc0);
    put_numbers(&pack, "token_ids", 1, stored.is_placeholder ? 0 : 8);
    put_text(&pack, "block_size");
    put_byte(&pack, stored.is_placeholder ? 0 : 4);
    if (stored.medium != NULL)
        put_pair(&pack, "medium", stored.medium);
    if (stored.group != NULL) {
        put_text(&pack, "group_idx");
        put_byte(&pack, (unsigned)(stored.group[0] - '0'));
    }
    if (stored.kind != NULL)
        put_pair(&pack, "kv_cache_spec_kind", stored.kind);
    if (stored.lora != NULL)
        put_pair(&pack, "lora_name", stored.lora);
    if (stored.own_salt != NULL)
        put_pair(&pack, "cache_salt", stored.own_salt);
    if (has_keys) {
        put_text(&pack, "extra_keys");
        put_byte(&pack, 0x92);
        put_keys(&pack, &stored, true);
        put_keys(&pack, &stored, false);
    }
    apply(world, &pack);
}

static void remove_two(struct world *world, unsigned hash, const char *medium, int group)
{
    struct pack pack;

    put_batch(&pack, "BlockRemoved", 2 + (group >= 0));
    put_numbers(&pack, "block_hashes", hash, 2);
    put_pair(&pack, "medium", medium);
    if (group >= 0) {
        put_text(&pack, "group_idx");
        put_byte(&pack, (unsigned)group);
    }
    apply(world, &pack);
}

/* Whether the two blocks are held under the names that who knows LoRA and salt gives them. */
static bool is_held_as(const struct world *world, const char *lora, const char *salt)
{
    const uint32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct digest_128 name = token_name_root(secret, lora, lora != NULL ? strlen(lora) : 0, salt,
                                             salt != NULL ? strlen(salt) : 0);

    for (size_t i = 0; i < 2; i++) {
        const struct token_node *node;

        name = token_name_next(secret, name, ids + 4 * i, 4, 0);
        node = token_chain_find(&world->chain, name.low);
        if (node == NULL || node->tiers == 0)
            return false;
    }
    return true;
}

static void world_release(struct world *world)
{
    token_chain_release(&world->chain);
}

#define STORED(...) ((struct stored){__VA_ARGS__})

TestSuite(cache_events, .fini = leak_check);

Test(cache_events, a_recorded_stream_leaves_what_the_engine_holds)
{
    struct world *world = world_create();

    apply_recording(world, "01-first-request.frames");
    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 7));
    apply_recording(world, "03-second-turn.frames");
    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 13));
    apply_recording(world, "04-eviction.frames");
    apply_recording(world, "05-after-eviction.frames");

    cr_assert(le(u32, world->held[TOKEN_TIER_HBM], 63), "the engine has 63 blocks");
    cr_assert(gt(u32, world->held[TOKEN_TIER_HBM], 50));
    cr_assert(eq(u32, world->events.block_tokens, 32));
    cr_assert(eq(u64, world->events.stats.malformed, 0));
    cr_assert(eq(u64, world->chain.stats.orphans, 0));
    cr_assert(eq(u64, world->chain.stats.unknown_drops, 0));
    world_release(world);
}

Test(cache_events, recorded_salts_make_other_blocks_of_equal_tokens)
{
    struct world *world = world_create();

    apply_recording(world, "07-cache-salt.frames"); /* emptied, then 7 blocks with a salt */
    cr_assert(eq(u64, world->events.stats.cleared, 1));
    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 7));
    apply_recording(world, "08-salt-again-other-none.frames"); /* another salt, and none */

    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 21));
    world_release(world);
}

Test(cache_events, equal_tokens_are_one_block_whatever_the_engine_calls_them)
{
    static const char *const names[] = {"01-first-request.frames", "14-pythonhashseed-7.frames",
                                        "15-sha256-bytes-hashes.frames",
                                        "16-sha256-cbor-int.frames"};
    struct world *world = world_create();

    for (size_t i = 0; i < array_count(names); i++) {
        cr_assert(gt(sz, apply_recording(world, names[i]), 0));
        cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 7), "%s", names[i]);
    }

    world_release(world);
}

Test(cache_events, who_knows_lora_and_salt_can_name_the_blocks)
{
    static const struct {
        const char *lora, *salt;
    } cases[] = {{NULL, NULL}, {NULL, "tenant-a"}, {"adapter", NULL}, {"adapter", "tenant-a"}};
    struct world *world = world_create();

    for (size_t i = 0; i < array_count(cases); i++) {
        store(world,
              STORED(.hash = 1 + 2 * (unsigned)i, .lora = cases[i].lora, .salt = cases[i].salt));

        cr_assert(is_held_as(world, cases[i].lora, cases[i].salt), "%zu", i);
        cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 2 * ((uint32_t)i + 1)), "%zu", i);
    }

    world_release(world);
}

Test(cache_events, a_salt_in_a_field_of_its_own_is_a_salt)
{
    struct world *world = world_create();

    store(world, STORED(.own_salt = "tenant-a"));

    cr_assert(is_held_as(world, NULL, "tenant-a"));
    cr_assert(not(is_held_as(world, NULL, NULL)));
    world_release(world);
}

Test(cache_events, an_image_makes_another_block_that_nobody_else_can_name)
{
    struct world *world = world_create();

    store(world, STORED(.has_image = true));
    store(world, STORED(.hash = 5, .has_image = true, .salt = "tenant-a"));

    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 4));
    cr_assert(not(is_held_as(world, NULL, NULL)));
    cr_assert(not(is_held_as(world, NULL, "tenant-a")));
    world_release(world);
}

Test(cache_events, media_are_tiers_by_their_names_and_others_are_ignored)
{
    struct world *world = world_create();

    store(world, STORED(.medium = "GPU"));
    store(world, STORED(.medium = "CPU_PINNED"));
    store(world, STORED(.medium = "OBJ"));

    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 2));
    cr_assert(eq(u32, world->held[TOKEN_TIER_CPU], 2));
    cr_assert(eq(u32, world->held[TOKEN_TIER_SSD], 0));
    cr_assert(eq(u64, world->events.stats.ignored_media, 1));
    world_release(world);
}

Test(cache_events, a_placeholder_of_a_lower_tier_is_known_by_its_hash)
{
    struct world *world = world_create();

    store(world, STORED(.medium = "GPU"));
    store(world, STORED(.medium = "CPU", .is_placeholder = true));
    remove_two(world, 1, "GPU", -1);

    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 0));
    cr_assert(eq(u32, world->held[TOKEN_TIER_CPU], 2));
    world_release(world);
}

Test(cache_events, of_a_hybrid_model_full_attention_alone_counts_and_all_of_it)
{
    struct world *world = world_create();

    store(world, STORED(.group = "1", .kind = "sliding_window"));
    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 0));
    store(world, STORED(.group = "0", .kind = "full_attention"));
    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 2));
    store(world, STORED(.hash = 5, .group = "2", .kind = "full_attention"));
    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 2), "the second group has them too now");
    remove_two(world, 1, "GPU", 1);
    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 2), "the window's removal is nothing to us");
    remove_two(world, 5, "GPU", 2);

    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 0), "one of the groups lacks them");
    cr_assert(eq(u64, world->events.stats.ignored_groups, 2));
    world_release(world);
}

Test(cache_events, a_group_that_appears_later_takes_back_what_it_does_not_hold)
{
    struct world *world = world_create();

    store(world, STORED(.group = "0", .kind = "full_attention"));
    store(world, STORED(.hash = 5, .group = "1", .kind = "full_attention", .salt = "other"));

    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 0));
    world_release(world);
}

Test(cache_events, emptying_is_about_the_tiers_that_the_engine_empties)
{
    for (int clears_all = 0; clears_all <= 1; clears_all++) {
        struct world *world = world_create();
        struct pack pack;
        memset(world->held, 0, sizeof world->held);
        store(world, STORED(.medium = "GPU"));
        store(world, STORED(.medium = "CPU"));

        world->events.clears_all_tiers = clears_all;
        put_batch(&pack, "AllBlocksCleared", 0);
        apply(world, &pack);

        cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 0));
        cr_assert(eq(u32, world->held[TOKEN_TIER_CPU], clears_all ? 0 : 2));
        world_release(world);
    }
}

Test(cache_events, blocks_that_are_not_as_long_as_they_say_are_left_out)
{
    struct world *world = world_create();
    struct pack pack;

    put_batch(&pack, "BlockStored", 4);
    put_numbers(&pack, "block_hashes", 1, 2);
    put_text(&pack, "parent_block_hash");
    put_byte(&pack, 0xc0);
    put_numbers(&pack, "token_ids", 1, 7);
    put_text(&pack, "block_size");
    put_byte(&pack, 4);
    apply(world, &pack);

    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 0));
    cr_assert(eq(u64, world->events.stats.malformed, 1));
    world_release(world);
}

Test(cache_events, another_epoch_knows_nothing_and_learns_its_groups_anew)
{
    struct world *world = world_create();
    store(world, STORED(.group = "3", .kind = "full_attention"));

    cache_events_begin_epoch(&world->events);
    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 0));
    store(world, STORED(.group = "0", .kind = "mla_attention"));

    cr_assert(eq(u32, world->held[TOKEN_TIER_HBM], 2));
    world_release(world);
}
