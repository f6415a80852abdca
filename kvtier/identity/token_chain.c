/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/token_chain.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hashing/token_name.h"

/*
 * DESIGN
 *
 *   root(LoRA, salt) -- [ids] -- [ids] -- [ids]        nodes: child, sibling, parent links
 *                           \--- [ids]
 *   alias 7f3a.. -> node                               what the engine says it in removals
 *
 * A block that the engine dropped stays known while there is room: the engine may store its child
 * again, naming it by hash only, and text that was aligned to it needs no new anchor when it comes
 * back. What may be forgotten is held nowhere and has no children; such nodes form a list, oldest
 * first. So a parent always outlives its children, and every known node has its whole prefix.
 *
 * An engine may hold several copies of a block (per physical copy, tier and group) and tells of
 * each one's end, so references are counted. A count of copies that is too high is a phantom that
 * never ends; one too low is only a hit that was not foreseen. Where it is unclear (an alias that
 * came to mean another block, a count at its limit) the lower one is taken.
 *
 * What lies beneath the engine is not counted: the agent keeps it itself, and says of each block
 * where it is. Such blocks need no alias, and outlive the engine's process. Where the first of a
 * chain comes from beneath, nobody says what root it has; a name says that already, so it hangs on
 * a root that stands for all of these until the engine stores a sibling of it.
 *
 * The limit is for those who have it: nodes and aliases beyond node_used and alias_used were never
 * touched, so the system has given no memory for them yet. It may be raised while the chain lives,
 * because how many blocks there can be is known only when an engine has said how large its pages
 * are. Therefore the maps are bounded by what any chain may have; they grow with what is in them,
 * and it is the nodes that run out.
 *
 * A map takes at most 48 bytes an entry, as block_map fills to 3/4 and doubles, and half of that
 * once more while it grows.
 */

enum { MAP_BYTES_PER_ENTRY = 64, COPIES_MAX = UINT16_MAX };
static_assert(sizeof(struct token_node) + sizeof(struct token_alias) + 2 * MAP_BYTES_PER_ENTRY <=
                  TOKEN_NODE_BYTES,
              "as operators are told");

uint64_t token_alias_of_bytes(const uint8_t *secret, const void *bytes, size_t len)
{
    return digest_64(secret, DIGEST_TOKEN_ALIAS, bytes, len);
}

uint64_t token_alias_of_number(const uint8_t *secret, uint64_t number)
{
    struct digest digest;

    digest_begin(&digest, secret, DIGEST_TOKEN_ALIAS);
    digest_field_u64(&digest, 1, number);
    return digest_end(&digest);
}

static uint32_t index_of(const struct token_chain *chain, const struct token_node *node)
{
    return (uint32_t)(node - chain->nodes);
}

int token_chain_init(struct token_chain *chain, struct token_chain_config config)
{
    const size_t count = (size_t)config.node_count_max + 1;

    *chain = (struct token_chain){.config = config};
    if (config.node_count_max == 0 || config.node_count_max > TOKEN_NODE_COUNT_BOUND)
        return -EINVAL;
    if (config.groups == 0 || config.groups >> TOKEN_GROUP_COUNT_MAX != 0)
        return -EINVAL;
    assert(config.secret != NULL);
    chain->nodes = calloc(count, sizeof *chain->nodes);
    chain->aliases = calloc(count, sizeof *chain->aliases);
    block_map_init(&chain->by_name, (size_t)TOKEN_NODE_COUNT_BOUND * MAP_BYTES_PER_ENTRY);
    block_map_init(&chain->by_alias, (size_t)TOKEN_NODE_COUNT_BOUND * MAP_BYTES_PER_ENTRY);
    if (chain->nodes == NULL || chain->aliases == NULL) {
        token_chain_release(chain);
        return -ENOMEM;
    }
    return 0;
}

int token_chain_allow(struct token_chain *chain, uint32_t node_count_max)
{
    const size_t count = (size_t)node_count_max + 1;
    struct token_node *nodes;
    struct token_alias *aliases;

    assert(node_count_max >= chain->config.node_count_max);
    assert(node_count_max <= TOKEN_NODE_COUNT_BOUND);

    nodes = realloc(chain->nodes, count * sizeof *nodes);
    if (nodes == NULL)
        return -ENOMEM;
    chain->nodes = nodes;
    aliases = realloc(chain->aliases, count * sizeof *aliases);
    if (aliases == NULL)
        return -ENOMEM;
    chain->aliases = aliases;
    chain->config.node_count_max = node_count_max;
    return 0;
}

/* The next node that nobody uses; 0: there is none. */
static uint32_t spare_node(struct token_chain *chain)
{
    if (chain->node_free == 0 && chain->node_used < chain->config.node_count_max) {
        chain->node_free = ++chain->node_used;
        chain->nodes[chain->node_free] = (struct token_node){0};
    }
    return chain->node_free;
}

static uint32_t spare_alias(struct token_chain *chain)
{
    if (chain->alias_free == 0 && chain->alias_used < chain->config.node_count_max) {
        chain->alias_free = ++chain->alias_used;
        chain->aliases[chain->alias_free] = (struct token_alias){0};
    }
    return chain->alias_free;
}

/* Unlinks node from the forgettable, if it is there. */
static void keep(struct token_chain *chain, struct token_node *node)
{
    if (!node->is_forgettable)
        return;
    *(node->older != 0 ? &chain->nodes[node->older].newer : &chain->oldest) = node->newer;
    *(node->newer != 0 ? &chain->nodes[node->newer].older : &chain->newest) = node->older;
    node->older = node->newer = 0;
    node->is_forgettable = false;
}

static bool has_copies(const struct token_node *node)
{
    for (unsigned tier = 0; tier < TOKEN_TIER_COUNT; tier++)
        for (unsigned group = 0; group < TOKEN_GROUP_COUNT_MAX; group++)
            if (node->copies[tier][group] > 0)
                return true;
    return false;
}

static bool is_needed(const struct token_node *node)
{
    return node->child != 0 || node->beneath != 0 || has_copies(node);
}

/* Puts node among the forgettable, as the newest, when nothing needs it any more. */
static void offer(struct token_chain *chain, struct token_node *node)
{
    const uint32_t index = index_of(chain, node);

    keep(chain, node);
    if (is_needed(node))
        return;
    node->older = chain->newest;
    *(chain->newest != 0 ? &chain->nodes[chain->newest].newer : &chain->oldest) = index;
    chain->newest = index;
    node->is_forgettable = true;
}

/* The same, as the oldest: it was of use no later than the child that has just been forgotten. */
static void offer_first(struct token_chain *chain, struct token_node *node)
{
    const uint32_t index = index_of(chain, node);

    keep(chain, node);
    if (is_needed(node))
        return;
    node->newer = chain->oldest;
    *(chain->oldest != 0 ? &chain->nodes[chain->oldest].older : &chain->newest) = index;
    chain->oldest = index;
    node->is_forgettable = true;
}

static void drop_aliases(struct token_chain *chain, struct token_node *node)
{
    while (node->alias != 0) {
        const uint32_t index = node->alias;
        struct token_alias *alias = &chain->aliases[index];

        node->alias = alias->next;
        block_map_remove(&chain->by_alias, alias->key);
        *alias = (struct token_alias){.next = chain->alias_free};
        chain->alias_free = index;
    }
}

static void unlink_sibling(struct token_chain *chain, struct token_node *node)
{
    struct token_node *parent = &chain->nodes[node->parent];

    if (node->parent == 0)
        return;
    if (node->sibling_older != 0)
        chain->nodes[node->sibling_older].sibling_newer = node->sibling_newer;
    if (node->sibling_newer != 0)
        chain->nodes[node->sibling_newer].sibling_older = node->sibling_older;
    else
        parent->child = node->sibling_older;
    offer_first(chain, parent);
}

/* Frees the node that has been of no use for longest. False: every one is needed. */
static bool forget_oldest(struct token_chain *chain)
{
    const uint32_t index = chain->oldest;
    struct token_node *node = &chain->nodes[index];

    if (index == 0)
        return false;
    assert(node->child == 0);
    assert(node->tiers == 0);

    keep(chain, node);
    drop_aliases(chain, node);
    unlink_sibling(chain, node);
    block_map_remove(&chain->by_name, node->digest.low);
    *node = (struct token_node){.newer = chain->node_free};
    chain->node_free = index;
    chain->node_count--;
    chain->stats.forgotten++;
    return true;
}

static struct token_node *find_node(const struct token_chain *chain, uint64_t name)
{
    const uint64_t *index = name != 0 ? block_map_find(&chain->by_name, name) : NULL;

    return index != NULL ? &chain->nodes[*index] : NULL;
}

static struct token_node *find_by_alias(const struct token_chain *chain, uint64_t key)
{
    const uint64_t *index = key != 0 ? block_map_find(&chain->by_alias, key) : NULL;

    return index != NULL ? &chain->nodes[chain->aliases[*index].node] : NULL;
}

/* The parent is kept while room is made: it may be the oldest that nothing needs. */
static struct token_node *add_node(struct token_chain *chain, struct token_node *parent,
                                   struct digest_128 digest, uint32_t token_count)
{
    struct token_node *node = NULL;
    uint64_t *place = NULL;

    if (parent != NULL)
        keep(chain, parent);
    if (spare_node(chain) != 0 || forget_oldest(chain))
        place = block_map_claim(&chain->by_name, digest.low);
    if (place == NULL) {
        chain->stats.refused++;
        goto out;
    }
    *place = chain->node_free;
    node = &chain->nodes[chain->node_free];
    chain->node_free = node->newer;
    chain->node_count++;
    *node = (struct token_node){.digest = digest, .token_end = token_count};
    if (parent != NULL) {
        node->parent = index_of(chain, parent);
        node->depth = parent->depth + 1;
        node->token_end += parent->token_end;
        node->sibling_older = parent->child;
        if (parent->child != 0)
            chain->nodes[parent->child].sibling_newer = index_of(chain, node);
        parent->child = index_of(chain, node);
    }
out:
    if (parent != NULL)
        offer(chain, parent);
    return node;
}

/* The node of digest, made where it is missing and not yet forgettable; NULL: counted why. */
static struct token_node *claim_node(struct token_chain *chain, struct token_node *parent,
                                     struct digest_128 digest, uint32_t token_count)
{
    struct token_node *node = find_node(chain, digest.low);

    if (node == NULL)
        return add_node(chain, parent, digest, token_count);
    if (node->digest.high != digest.high) {
        chain->stats.collisions++;
        return NULL;
    }
    return node;
}

static void set_tiers(struct token_chain *chain, struct token_node *node)
{
    const uint8_t before = node->tiers;
    uint8_t after = node->beneath;

    for (unsigned tier = 0; tier < TOKEN_TIER_COUNT; tier++) {
        unsigned groups = 0;

        for (unsigned group = 0; group < TOKEN_GROUP_COUNT_MAX; group++)
            groups |= (unsigned)(node->copies[tier][group] > 0) << group;
        if (groups == chain->config.groups)
            after = (uint8_t)(after | 1U << tier);
    }
    node->tiers = after;
    offer(chain, node);
    if (before != after && chain->config.on_changed != NULL)
        chain->config.on_changed(chain->config.ctx, node->digest.low, before, after);
}

static void unlink_alias(struct token_chain *chain, uint32_t index)
{
    struct token_node *node = &chain->nodes[chain->aliases[index].node];
    uint32_t *link = &node->alias;

    while (*link != index)
        link = &chain->aliases[*link].next;
    *link = chain->aliases[index].next;
    /* No removal names these copies any more: they could never end. */
    memset(node->copies, 0, sizeof node->copies);
    set_tiers(chain, node);
}

/* False: there is no room for another alias. */
static bool bind_alias(struct token_chain *chain, uint64_t key, struct token_node *node)
{
    uint64_t *place = block_map_find(&chain->by_alias, key);
    uint32_t index = place != NULL ? (uint32_t)*place : 0;

    if (index != 0 && chain->aliases[index].node == index_of(chain, node))
        return true;
    if (index != 0) {
        chain->stats.rebound++;
        unlink_alias(chain, index);
    } else {
        keep(chain, node);
        if (spare_alias(chain) == 0)
            forget_oldest(chain);
        index = chain->alias_free;
        place = index != 0 ? block_map_claim(&chain->by_alias, key) : NULL;
        if (place == NULL)
            return false;
        *place = index;
        chain->alias_free = chain->aliases[index].next;
    }
    chain->aliases[index] = (struct token_alias){key, index_of(chain, node), node->alias};
    node->alias = index;
    return true;
}

static void add_copy(struct token_chain *chain, struct token_node *node,
                     const struct token_store *store)
{
    uint16_t *copies = &node->copies[store->tier][store->group];

    if (*copies == 0 || (!store->is_report && *copies < COPIES_MAX))
        ++*copies;
    set_tiers(chain, node);
}

static bool counts(struct token_chain *chain, uint8_t group)
{
    if (group < TOKEN_GROUP_COUNT_MAX && (chain->config.groups >> group & 1) != 0)
        return true;
    chain->stats.ignored_groups++;
    return false;
}

static size_t store_known(struct token_chain *chain, const struct token_store *store)
{
    size_t stored = 0;

    for (size_t i = 0; i < store->block_count; i++) {
        struct token_node *node = find_by_alias(chain, store->aliases[i]);

        if (node == NULL) {
            chain->stats.orphans++;
            continue;
        }
        add_copy(chain, node, store);
        stored++;
    }
    return stored;
}

static struct token_node *store_block(struct token_chain *chain, struct token_node *parent,
                                      const struct token_store *store, size_t i)
{
    const uint32_t *ids = store->ids + i * store->block_tokens;
    const uint64_t extra = store->extras != NULL ? store->extras[i] : 0;
    struct digest_128 digest =
        token_name_next(chain->config.secret, parent->digest, ids, store->block_tokens, extra);
    struct token_node *node = claim_node(chain, parent, digest, store->block_tokens);

    if (node == NULL)
        return NULL;
    if (!bind_alias(chain, store->aliases[i], node)) {
        chain->stats.refused++;
        offer(chain, node);
        return NULL;
    }
    add_copy(chain, node, store);
    return node;
}

size_t token_chain_store(struct token_chain *chain, const struct token_store *store)
{
    struct token_node *parent;
    size_t stored = 0;

    assert(store->tier < TOKEN_TIER_COUNT);
    assert(store->ids == NULL || store->block_tokens > 0);

    if (!counts(chain, store->group) || store->block_count == 0)
        return 0;
    if (store->ids == NULL)
        return store_known(chain, store);
    parent = store->has_parent ? find_by_alias(chain, store->parent)
                               : claim_node(chain, NULL, store->root, 0);
    if (parent == NULL) {
        chain->stats.orphans += store->block_count;
        return 0;
    }
    for (; stored < store->block_count; stored++) {
        struct token_node *node = store_block(chain, parent, store, stored);

        if (node == NULL)
            break;
        parent = node;
    }
    if (stored < store->block_count) {
        chain->stats.orphans += store->block_count - stored - 1;
        offer(chain, parent);
    }
    return stored;
}

bool token_chain_remove(struct token_chain *chain, uint64_t alias, enum token_tier tier,
                        uint8_t group)
{
    struct token_node *node;

    assert(tier < TOKEN_TIER_COUNT);

    if (!counts(chain, group))
        return false;
    node = find_by_alias(chain, alias);
    if (node == NULL || node->copies[tier][group] == 0) {
        chain->stats.unknown_drops++;
        return false;
    }
    node->copies[tier][group]--;
    set_tiers(chain, node);
    return true;
}

void token_chain_clear_tier(struct token_chain *chain, enum token_tier tier)
{
    assert(tier < TOKEN_TIER_COUNT);

    for (uint32_t i = 1; i <= chain->node_used; i++) {
        static const uint16_t none[TOKEN_GROUP_COUNT_MAX];
        struct token_node *node = &chain->nodes[i];

        if (memcmp(node->copies[tier], none, sizeof none) == 0)
            continue;
        memset(node->copies[tier], 0, sizeof node->copies[tier]);
        set_tiers(chain, node);
    }
}

static const struct digest_128 unsaid_root = {UINT64_MAX, 0};

bool token_chain_place(struct token_chain *chain, const struct token_place *place)
{
    struct token_node *node = find_node(chain, place->name.low), *parent;

    assert(place->tiers >> TOKEN_TIER_COUNT == 0);

    if (node == NULL) {
        if (place->tiers == 0)
            return true;
        parent = place->parent.low != 0 ? find_node(chain, place->parent.low)
                                        : claim_node(chain, NULL, unsaid_root, 0);
        if (parent == NULL) {
            chain->stats.orphans++;
            return false;
        }
        node = add_node(chain, parent, place->name, place->token_count);
        if (node == NULL)
            return false;
    } else if (node->digest.high != place->name.high) {
        chain->stats.collisions++;
        return false;
    }
    node->beneath = place->tiers;
    set_tiers(chain, node);
    return true;
}

void token_chain_displace_all(struct token_chain *chain)
{
    for (uint32_t i = 1; i <= chain->node_used; i++) {
        if (chain->nodes[i].beneath == 0)
            continue;
        chain->nodes[i].beneath = 0;
        set_tiers(chain, &chain->nodes[i]);
    }
}

void token_chain_set_groups(struct token_chain *chain, uint8_t groups)
{
    assert(groups != 0 && groups >> TOKEN_GROUP_COUNT_MAX == 0);

    chain->config.groups = groups;
    for (uint32_t i = 1; i <= chain->node_used; i++)
        if (has_copies(&chain->nodes[i]))
            set_tiers(chain, &chain->nodes[i]);
}

void token_chain_begin_epoch(struct token_chain *chain)
{
    const uint64_t forgotten = chain->stats.forgotten;

    for (unsigned tier = 0; tier < TOKEN_TIER_COUNT; tier++)
        token_chain_clear_tier(chain, (enum token_tier)tier);
    for (uint32_t i = 1; i <= chain->node_used; i++)
        drop_aliases(chain, &chain->nodes[i]);
    while (forget_oldest(chain))
        ;
    chain->stats.forgotten = forgotten; /* they made room for nobody */
}

const struct token_node *token_chain_find(const struct token_chain *chain, uint64_t name)
{
    return find_node(chain, name);
}

const struct token_node *token_chain_at(const struct token_chain *chain, uint32_t index)
{
    assert(index <= chain->node_used);

    return index != 0 ? &chain->nodes[index] : NULL;
}

const struct token_node *token_chain_next_below(const struct token_chain *chain,
                                                const struct token_node *top,
                                                const struct token_node *node, uint32_t depth_max)
{
    if (node->child != 0 && node->depth < depth_max)
        return token_chain_at(chain, node->child);
    while (node != top && node->sibling_older == 0)
        node = token_chain_at(chain, node->parent);
    return node != top ? token_chain_at(chain, node->sibling_older) : NULL;
}

void token_chain_release(struct token_chain *chain)
{
    free(chain->nodes);
    free(chain->aliases);
    chain->nodes = NULL;
    chain->aliases = NULL;
    block_map_release(&chain->by_name);
    block_map_release(&chain->by_alias);
}
