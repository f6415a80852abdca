/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/cache_events.h"

#include "backends/runtime/must_check.h"
#include "hashing/token_name.h"

#include <string.h>

/*
 * DESIGN
 *
 * vLLM numbers the cache groups of a hybrid model. A prefix is found again only where every group
 * finds its part; of a sliding window that is the last blocks only, so those cannot say how long a
 * prefix is held. What counts are the groups of full attention, known by their kind, and a block is
 * held where all of these hold it. They are learned as they appear, each in a place of its own in
 * the token chain; removals name a group by its number alone.
 *
 * Beside the tokens vLLM hashes extra keys into a block: the name of the LoRA in each, images with
 * their places, and in the first block of a chain the cache salt. LoRA and salt go into the root,
 * by the same rule as in hashing/token_name.h, so that who knows both can name the blocks too. That
 * a lone string in a first block is the salt is this file's reading of it: images come as pairs.
 * Anything else is digested as it is written, and makes blocks that only this engine can name.
 */

/* A block's keys, taken apart. */
struct block_keys {
    struct slice salt; /* NULL: none */
    uint64_t extra;    /* 0: none */
};

void cache_events_init(struct cache_events *events, const uint8_t *secret,
                       struct token_chain *chain)
{
    memset(events, 0, sizeof *events);
    events->secret = secret;
    events->chain = chain;
    events->clears_all_tiers = true;
}

static bool find_tier(struct slice medium, enum token_tier *tier)
{
    static const struct {
        const char *medium;
        enum token_tier tier;
    } rows[] = {
        {"gpu", TOKEN_TIER_HBM},  {"hbm", TOKEN_TIER_HBM},         {"device", TOKEN_TIER_HBM},
        {"cpu", TOKEN_TIER_CPU},  {"cpu_pinned", TOKEN_TIER_CPU},  {"cpu_tier1", TOKEN_TIER_CPU},
        {"host", TOKEN_TIER_CPU}, {"host_pinned", TOKEN_TIER_CPU},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        if (slice_eq_nocase(medium, slice_of_string(rows[i].medium))) {
            *tier = rows[i].tier;
            return true;
        }
    }
    return false;
}

/* Older engines and SGLang say no kind: then there is one group, or it is the first that is whole.
 */
static bool is_full_attention(const struct kv_event *event)
{
    static const char *const kinds[] = {"full_attention", "mla_attention", "sink_full_attention"};

    if (event->spec_kind.len == 0)
        return event->group <= 0;
    for (size_t i = 0; i < array_count(kinds); i++)
        if (slice_eq(event->spec_kind, slice_of_string(kinds[i])))
            return true;
    return false;
}

/* The place of the event's group in the token chain. False: it does not count. */
static bool find_group(struct cache_events *events, const struct kv_event *event, uint8_t *place)
{
    for (uint32_t i = 0; i < events->group_count; i++) {
        if (events->groups[i] == event->group) {
            *place = (uint8_t)i;
            return true;
        }
    }
    if (event->type != KV_EVENT_STORED || !is_full_attention(event) ||
        events->group_count == TOKEN_GROUP_COUNT_MAX)
        return false;
    *place = (uint8_t)events->group_count;
    events->groups[events->group_count++] = event->group;
    token_chain_set_groups(events->chain, (uint8_t)((1U << events->group_count) - 1));
    return true;
}

/* Takes a block's keys apart. False: they are not as they should be. */
static bool read_keys(const struct cache_events *events, const struct kv_event *event,
                      struct slice encoded, bool is_first, struct block_keys *keys)
{
    struct msgpack_reader reader = {encoded};
    struct msgpack_value head, value = {0};
    struct digest digest;
    bool has_lora = event->lora_name.len == 0;
    uint32_t count = 0;

    *keys = (struct block_keys){0};
    if (encoded.len == 0)
        return true;
    if (msgpack_reader_next(&reader, &head) < 0 ||
        (head.type != MSGPACK_NIL && head.type != MSGPACK_ARRAY))
        return false;
    digest_begin(&digest, events->secret, DIGEST_MEDIA);
    for (uint64_t i = 0; head.type == MSGPACK_ARRAY && i < head.number; i++) {
        struct msgpack_reader at = reader;
        struct slice key = reader.rest;

        if (msgpack_reader_skip(&reader) < 0 || msgpack_reader_next(&at, &value) < 0)
            return false;
        key.len -= reader.rest.len;
        if (!has_lora && value.type == MSGPACK_STRING && slice_eq(value.bytes, event->lora_name)) {
            has_lora = true;
            continue;
        }
        digest_field(&digest, ++count, key.ptr, key.len);
    }
    if (is_first && count == 1 && value.type == MSGPACK_STRING)
        keys->salt = value.bytes;
    else if (count > 0)
        keys->extra = digest_end(&digest);
    return true;
}

static struct digest_128 root_of(const struct cache_events *events, const struct kv_event *event,
                                 struct slice salt)
{
    if (salt.ptr == NULL)
        salt = event->cache_salt;
    return token_name_root(events->secret, event->lora_name.ptr, event->lora_name.len, salt.ptr,
                           salt.len);
}

/* Of an event whose tokens are all there. */
static void store_blocks(struct cache_events *events, struct kv_event *event,
                         struct token_store store)
{
    uint64_t alias, hash;
    struct slice encoded;
    struct block_keys keys;

    while (kv_event_next_hash(&event->hashes, &hash)) {
        if (!kv_event_next_extra_keys(&event->extra_keys, &encoded))
            encoded = slice_of(NULL, 0);
        if (kv_event_take_tokens(&event->token_ids, events->ids, event->block_size) !=
                event->block_size ||
            !read_keys(events, event, encoded, !store.has_parent, &keys)) {
            events->stats.malformed++;
            return;
        }
        alias = token_alias_of_number(events->secret, hash);
        store.aliases = &alias;
        store.extras = &keys.extra;
        if (!store.has_parent)
            store.root = root_of(events, event, keys.salt);
        events->stats.stored += token_chain_store(events->chain, &store);
        store.has_parent = true;
        store.parent = alias;
    }
}

/* Blocks that a lower tier announces by their hashes alone. */
static void store_known(struct cache_events *events, struct kv_event *event,
                        struct token_store store)
{
    uint64_t alias, hash;

    store.ids = NULL;
    store.extras = NULL;
    store.aliases = &alias;
    while (kv_event_next_hash(&event->hashes, &hash)) {
        alias = token_alias_of_number(events->secret, hash);
        events->stats.stored += token_chain_store(events->chain, &store);
    }
}

static void apply_stored(struct cache_events *events, struct kv_event *event, enum token_tier tier,
                         uint8_t group)
{
    struct token_store store = {
        .tier = tier,
        .group = group,
        .block_count = 1,
        .ids = events->ids,
        .block_tokens = event->block_size,
        .has_parent = event->has_parent,
        .parent = token_alias_of_number(events->secret, event->parent),
    };

    if (event->token_ids.count == 0) {
        store_known(events, event, store);
    } else if (event->block_size == 0 || event->block_size > CACHE_EVENTS_BLOCK_TOKENS_MAX ||
               event->token_ids.count / event->block_size != event->hashes.count ||
               event->token_ids.count % event->block_size != 0) {
        events->stats.malformed++;
    } else {
        events->block_tokens = event->block_size;
        store_blocks(events, event, store);
    }
}

static void apply_removed(struct cache_events *events, struct kv_event *event, enum token_tier tier,
                          uint8_t group)
{
    uint64_t hash;

    while (kv_event_next_hash(&event->hashes, &hash)) {
        uint64_t alias = token_alias_of_number(events->secret, hash);

        events->stats.removed += token_chain_remove(events->chain, alias, tier, group);
    }
}

static void apply_cleared(struct cache_events *events)
{
    events->stats.cleared++;
    token_chain_clear_tier(events->chain, TOKEN_TIER_HBM);
    for (int tier = TOKEN_TIER_HBM + 1; events->clears_all_tiers && tier < TOKEN_TIER_COUNT; tier++)
        token_chain_clear_tier(events->chain, (enum token_tier)tier);
}

static void apply(struct cache_events *events, struct kv_event *event)
{
    enum token_tier tier;
    uint8_t group;

    if (event->type == KV_EVENT_CLEARED)
        apply_cleared(events);
    else if (!find_tier(event->medium, &tier))
        events->stats.ignored_media++;
    else if (!find_group(events, event, &group))
        events->stats.ignored_groups++;
    else if (event->type == KV_EVENT_STORED)
        apply_stored(events, event, tier, group);
    else
        apply_removed(events, event, tier, group);
}

void cache_events_apply(struct cache_events *events, struct kv_event_batch *batch)
{
    struct kv_event event;

    while (kv_event_next(batch, &event))
        apply(events, &event);
    events->stats.malformed += batch->skipped.malformed_event_count;
    events->stats.unknown +=
        batch->skipped.unknown_event_count + batch->skipped.unknown_field_count;
}

void cache_events_begin_epoch(struct cache_events *events)
{
    token_chain_begin_epoch(events->chain);
    events->group_count = 0;
    token_chain_set_groups(events->chain, 1);
}
