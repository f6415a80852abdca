/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/text_chain.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   [H1] -- [H2] -- [H3] -- [H4]     child, sibling, parent links
 *              \--- [H5]
 *
 * Only leaves are forgotten, the one used longest ago first: a known block always has its whole
 * prefix, so a walk from any tip reaches the start of the stream. A parent left without children
 * joins the list as its oldest: it was last used when its last child was, so that a conversation
 * goes as a whole before a newer one loses its end.
 *
 * While a record is taken in, the node it has reached is kept out of the list, even if the room for
 * its next block was its last child's: nothing of the branch that is being built is forgotten.
 */

enum { MAP_BYTES_PER_ENTRY = 48, MAP_BYTES_MIN = 4096 };

int text_chain_init(struct text_chain *chain, struct text_chain_config config)
{
    const size_t count = (size_t)config.node_count_max + 1;

    *chain = (struct text_chain){.config = config};
    if (config.node_count_max == 0 || config.node_count_max == UINT32_MAX || config.depth_max == 0)
        return -EINVAL;
    chain->nodes = calloc(count, sizeof *chain->nodes);
    if (chain->nodes == NULL)
        return -ENOMEM;
    block_map_init(&chain->by_hash, count * MAP_BYTES_PER_ENTRY + MAP_BYTES_MIN);
    for (uint32_t i = 1; i < config.node_count_max; i++)
        chain->nodes[i].newer = i + 1;
    chain->node_free = 1;
    return 0;
}

static bool is_listed(const struct text_chain *chain, uint32_t index)
{
    const struct text_node *node = &chain->nodes[index];

    return node->older != 0 || node->newer != 0 || chain->oldest == index;
}

static void unlist(struct text_chain *chain, uint32_t index)
{
    struct text_node *node = &chain->nodes[index];

    if (index == 0 || !is_listed(chain, index))
        return;
    if (chain->walked == index)
        chain->walked = node->older;
    *(node->older != 0 ? &chain->nodes[node->older].newer : &chain->oldest) = node->newer;
    *(node->newer != 0 ? &chain->nodes[node->newer].older : &chain->newest) = node->older;
    node->older = node->newer = 0;
}

static void list_newest(struct text_chain *chain, uint32_t index)
{
    unlist(chain, index);
    if (index == 0 || chain->nodes[index].child != 0)
        return;
    chain->nodes[index].older = chain->newest;
    *(chain->newest != 0 ? &chain->nodes[chain->newest].newer : &chain->oldest) = index;
    chain->newest = index;
}

static void list_oldest(struct text_chain *chain, uint32_t index)
{
    if (index == 0 || chain->nodes[index].child != 0)
        return;
    assert(!is_listed(chain, index));
    chain->nodes[index].newer = chain->oldest;
    *(chain->oldest != 0 ? &chain->nodes[chain->oldest].older : &chain->newest) = index;
    chain->oldest = index;
}

/* Takes a leaf that is in no list out of the tree. */
static void free_node(struct text_chain *chain, uint32_t index)
{
    struct text_node *node = &chain->nodes[index];

    assert(node->child == 0);

    if (node->sibling_older != 0)
        chain->nodes[node->sibling_older].sibling_newer = node->sibling_newer;
    if (node->sibling_newer != 0)
        chain->nodes[node->sibling_newer].sibling_older = node->sibling_older;
    else if (node->parent != 0)
        chain->nodes[node->parent].child = node->sibling_older;
    block_map_remove(&chain->by_hash, node->hash);
    *node = (struct text_node){.newer = chain->node_free};
    chain->node_free = index;
    chain->node_count--;
}

static bool forget_oldest(struct text_chain *chain)
{
    const uint32_t index = chain->oldest;
    const uint64_t hash = chain->nodes[index].hash;
    const uint32_t parent = chain->nodes[index].parent;

    if (index == 0)
        return false;

    unlist(chain, index);
    free_node(chain, index);
    list_oldest(chain, parent);
    chain->stats.forgotten++;
    if (chain->config.on_forgotten != NULL)
        chain->config.on_forgotten(chain->config.ctx, index, hash, parent);
    return true;
}

uint32_t text_chain_find(const struct text_chain *chain, uint64_t hash)
{
    const uint64_t *index = hash != 0 ? block_map_find(&chain->by_hash, hash) : NULL;

    return index != NULL ? (uint32_t)*index : 0;
}

const struct text_node *text_chain_at(const struct text_chain *chain, uint32_t index)
{
    assert(index > 0 && index <= chain->config.node_count_max);

    return &chain->nodes[index];
}

void text_chain_walk_begin(struct text_chain *chain)
{
    chain->walked = 0;
}

uint32_t text_chain_walk_next(struct text_chain *chain)
{
    const uint32_t leaf = chain->walked != 0 ? chain->nodes[chain->walked].newer : chain->oldest;

    if (leaf != 0)
        chain->walked = leaf;
    return leaf;
}

/* How many of blocks are known behind start, in their places; negative: they contradict. */
static int64_t count_known(const struct text_chain *chain, uint32_t start,
                           const struct text_block *blocks, size_t count)
{
    uint64_t end = start != 0 ? chain->nodes[start].end : 0;
    uint32_t parent = start;
    size_t known = 0;

    for (size_t i = 0; i < count; i++) {
        const uint32_t index = text_chain_find(chain, blocks[i].hash);

        if (blocks[i].hash == 0 || blocks[i].end <= end)
            return -EINVAL;
        end = blocks[i].end;
        if (index == 0)
            continue;
        /* A known block has a known parent: one behind an unknown block is in the wrong place. */
        if (known < i || chain->nodes[index].parent != parent || chain->nodes[index].end != end)
            return -EINVAL;
        parent = index;
        known++;
    }
    return (int64_t)known;
}

/* The new node is out of the list of leaves. 0: no room. */
static uint32_t add(struct text_chain *chain, uint32_t parent, struct text_block block)
{
    uint64_t *place = NULL;
    uint32_t index;

    if (chain->node_free != 0 || forget_oldest(chain))
        place = block_map_claim(&chain->by_hash, block.hash);
    if (place == NULL)
        return 0;
    unlist(chain, parent);
    index = chain->node_free;
    *place = index;
    chain->node_free = chain->nodes[index].newer;
    chain->node_count++;
    chain->nodes[index] = (struct text_node){
        .hash = block.hash,
        .end = block.end,
        .parent = parent,
        .depth = parent != 0 ? chain->nodes[parent].depth + 1 : 1,
    };
    if (parent == 0)
        return index;
    chain->nodes[index].sibling_older = chain->nodes[parent].child;
    if (chain->nodes[parent].child != 0)
        chain->nodes[chain->nodes[parent].child].sibling_newer = index;
    chain->nodes[parent].child = index;
    return index;
}

/* Takes back the new nodes from tip up to, not including, base. */
static void take_back(struct text_chain *chain, uint32_t tip, uint32_t base)
{
    while (tip != base) {
        const uint32_t parent = chain->nodes[tip].parent;

        free_node(chain, tip);
        tip = parent;
    }
    list_newest(chain, base);
}

int text_chain_extend(struct text_chain *chain, uint64_t start, const struct text_block *blocks,
                      size_t count, uint32_t *tip)
{
    uint32_t base = text_chain_find(chain, start);
    uint32_t at;
    int64_t known;

    if (start != 0 && base == 0) {
        chain->stats.unknown_starts++;
        return -ENOENT;
    }
    known = count_known(chain, base, blocks, count);
    if (known < 0 || (base == 0 && count == 0)) {
        chain->stats.invalid++;
        return -EINVAL;
    }
    if (count > chain->config.depth_max - (base != 0 ? chain->nodes[base].depth : 0)) {
        chain->stats.refused++;
        return -ENOSPC;
    }
    if (known > 0)
        base = text_chain_find(chain, blocks[known - 1].hash);
    unlist(chain, base);
    at = base;
    for (size_t i = (size_t)known; i < count; i++) {
        /* One of our own here: the record names a block twice. */
        const bool is_twice = text_chain_find(chain, blocks[i].hash) != 0;
        const uint32_t index = is_twice ? 0 : add(chain, at, blocks[i]);

        if (index == 0) {
            take_back(chain, at, base);
            ++*(is_twice ? &chain->stats.invalid : &chain->stats.refused);
            return is_twice ? -EINVAL : -ENOSPC;
        }
        at = index;
    }
    list_newest(chain, at);
    *tip = at;
    return 0;
}

void text_chain_release(struct text_chain *chain)
{
    free(chain->nodes);
    chain->nodes = NULL;
    block_map_release(&chain->by_hash);
}
