/* SPDX-License-Identifier: Apache-2.0 */

/*
 * token_chain: the token blocks (T) that one source, an engine's rank, has told of: what they are,
 * which follows which, and in which tiers the engine holds them. Blocks have names of our own, made
 * of their token ids; the engine's hashes are only aliases, so neither its algorithm nor its seed
 * matters. It keeps no token ids and knows nothing of text.
 * Pure: no I/O, clock or globals; init takes the memory, or bounds it (maps grow up
 * to a limit). One thread at a time.
 */
#ifndef KVTIER_IDENTITY_TOKEN_CHAIN_H
#define KVTIER_IDENTITY_TOKEN_CHAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "hashing/block_map.h"
#include "hashing/digest.h"

enum token_tier { TOKEN_TIER_HBM, TOKEN_TIER_CPU, TOKEN_TIER_SSD, TOKEN_TIER_COUNT };

enum {
    TOKEN_NODE_COUNT_BOUND = 1 << 26, /* no chain may have more nodes */
    TOKEN_NODE_BYTES = 250, /* of each that was ever in use, with its alias and its places in maps;
                               some more while a map grows */
    TOKEN_GROUP_COUNT_MAX = 4,
    TOKEN_TIERS_ALL = (1 << TOKEN_TIER_COUNT) - 1,
};

/* The tiers of a node changed from before to after (bit 1 << tier each). Must not change chain. */
typedef void token_changed_fn(void *ctx, uint64_t name, uint8_t before, uint8_t after);

struct token_chain_config {
    const uint8_t *secret;   /* DIGEST_SECRET_BYTES; borrowed */
    uint32_t node_count_max; /* nodes and, apart, aliases: see TOKEN_NODE_BYTES */
    uint8_t groups;          /* bit 1 << group: a block is in a tier when all of these hold it */
    token_changed_fn *on_changed; /* NULL: nobody wants to know */
    void *ctx;
};

/* A block, or the root of a chain (depth 0, never held). Links are indices of nodes; 0: none. */
struct token_node {
    struct digest_128 digest; /* digest.low is the name: never 0 */
    uint32_t parent;          /* 0 in a root */
    uint32_t child;           /* the newest; the others by its sibling_older */
    uint32_t sibling_older;
    uint32_t sibling_newer;
    uint32_t alias;     /* the first of the aliases that stand for it */
    uint32_t older;     /* in the list of forgettable nodes: held nowhere, no children */
    uint32_t newer;     /* also links free nodes */
    uint32_t depth;     /* blocks from the root to here, this one included */
    uint32_t token_end; /* tokens from the root to here */
    uint8_t tiers;      /* bit 1 << tier: held there by all groups that count, or beneath */
    uint8_t beneath; /* bit 1 << tier: held there beneath the engine, as token_chain_place() said */
    bool is_forgettable;
    uint16_t copies[TOKEN_TIER_COUNT][TOKEN_GROUP_COUNT_MAX]; /* references */
};

struct token_alias {
    uint64_t key;
    uint32_t node; /* 0: free */
    uint32_t next; /* of the same node, or the next free one */
};

struct token_chain_stats {
    uint64_t forgotten;      /* nodes given up for newer ones; they were held nowhere */
    uint64_t refused;        /* blocks not taken in: every node is needed or held */
    uint64_t orphans;        /* blocks behind a parent, or placeholders, that nobody knows */
    uint64_t rebound;        /* aliases that came to mean another block */
    uint64_t unknown_drops;  /* removals of what is not known or not held */
    uint64_t ignored_groups; /* stores and removals of groups that do not count */
    uint64_t collisions;     /* blocks refused because another has their name */
};

struct token_chain {
    struct token_chain_config config;
    struct token_node *nodes;    /* [node_count_max + 1]; [0] is nobody */
    struct token_alias *aliases; /* likewise */
    struct block_map by_name;    /* name -> node */
    struct block_map by_alias;   /* key -> alias */
    uint32_t node_used;          /* nodes beyond were never in use, and cost no memory yet */
    uint32_t alias_used;
    uint32_t node_free; /* of those that were */
    uint32_t alias_free;
    uint32_t oldest; /* of the forgettable */
    uint32_t newest;
    uint32_t node_count;
    struct token_chain_stats stats;
};

/* Consecutive blocks that the engine stored in one tier. Pointers are borrowed for the call. */
struct token_store {
    enum token_tier tier;
    uint8_t group;
    bool is_report;          /* said again because we asked: sets a count of 0 to 1, adds nothing */
    bool has_parent;         /* the first block follows parent; else it begins a chain */
    uint64_t parent;         /* an alias */
    struct digest_128 root;  /* without parent: of token_name_root() */
    const uint64_t *aliases; /* [block_count] */
    size_t block_count;
    const uint32_t *ids;    /* [block_count * block_tokens]; NULL: known blocks, by alias only */
    uint32_t block_tokens;  /* of each block; at least 1 where there are ids */
    const uint64_t *extras; /* [block_count] digests of multimodal keys, 0: none; may be NULL */
};

/* The engine's name of a block as a key, whether it says it as bytes or as a number. Never 0. */
uint64_t token_alias_of_bytes(const uint8_t *secret, const void *bytes, size_t len);
uint64_t token_alias_of_number(const uint8_t *secret, uint64_t number);

/* An empty chain. -ENOMEM; -EINVAL: no or too many nodes, or no or unknown groups. */
MUST_CHECK int token_chain_init(struct token_chain *chain, struct token_chain_config config);

/* It may have so many nodes from now on, no fewer than before. -ENOMEM: as many as before. Nodes
 * that were found before are no longer good. */
MUST_CHECK int token_chain_allow(struct token_chain *chain, uint32_t node_count_max);

/*
 * Adds one reference to each block and makes those known that were not. Returns how many were taken
 * in: fewer than block_count means that the rest has no known parent or no place, and is counted.
 */
size_t token_chain_store(struct token_chain *chain, const struct token_store *store);

/* Drops one reference. False: there was none, or the group does not count. */
bool token_chain_remove(struct token_chain *chain, uint64_t alias, enum token_tier tier,
                        uint8_t group);

/* Drops every reference in one tier: the engine emptied it. Nodes and aliases stay known. */
void token_chain_clear_tier(struct token_chain *chain, enum token_tier tier);

/* A block in the tiers beneath the engine, which this agent keeps itself and knows by name. */
struct token_place {
    struct digest_128 name;
    struct digest_128 parent; /* .low 0: the first of its chain, whose root nobody said */
    uint32_t token_count;     /* of the block */
    uint8_t tiers;            /* bit 1 << tier, absolute; 0: in none of them any more */
};

/*
 * What lies beneath is so from now on, beside what the engine holds. A block that was not known is
 * made known behind its parent. False: the parent is not known, or there is no place for it
 * (counted): it is not claimed then.
 */
bool token_chain_place(struct token_chain *chain, const struct token_place *place);

/* Nothing lies beneath any more: the engine cannot reach it. */
void token_chain_displace_all(struct token_chain *chain);

/* Other groups count from now on, as token_chain_config's: what all of them hold is held. */
void token_chain_set_groups(struct token_chain *chain, uint8_t groups);

/* Another life of the engine: nothing of the last one is held or known, aliases included. What lies
 * beneath outlives it. */
void token_chain_begin_epoch(struct token_chain *chain);

/* The node of that name; NULL: not known. Good until the next call that changes chain. */
const struct token_node *token_chain_find(const struct token_chain *chain, uint64_t name);

/* A node by the index found in another; NULL for 0. */
const struct token_node *token_chain_at(const struct token_chain *chain, uint32_t index);

/* The node after node in the tree below top, no deeper than depth_max; NULL: that was all. */
const struct token_node *token_chain_next_below(const struct token_chain *chain,
                                                const struct token_node *top,
                                                const struct token_node *node, uint32_t depth_max);

/* Frees everything; may be called twice, and after a failed init. Reports nothing. */
void token_chain_release(struct token_chain *chain);

#endif
