/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/rendezvous.h"

#include "hashing/xxh3.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

/*
 * DESIGN
 *
 *   score = weight / -ln(u),   u in (0, 1) from xxh3(key . id)
 *
 * -ln(u) / weight is the waiting time of a Poisson process of that rate; the first arrival is node
 * i with probability weight[i] / sum of weights, whoever else takes part (Schindelhauer and
 * Schomaker, "Weighted distributed hash tables", 2005). Changing one weight therefore moves keys
 * only from or to that node.
 */

uint64_t rendezvous_id(const void *name, size_t len)
{
    return XXH3_64bits(name, len);
}

double rendezvous_score(uint64_t key, struct rendezvous_node node)
{
    uint8_t bytes[16];
    double u;

    assert(node.weight >= 0);

    xxh3_put_u64(bytes, key);
    xxh3_put_u64(bytes + 8, node.id);
    u = ((double)(XXH3_64bits(bytes, sizeof bytes) >> 11) + 0.5) * 0x1p-53;
    return node.weight / -log(u);
}

size_t rendezvous_pick(uint64_t key, const struct rendezvous_node *nodes, size_t count)
{
    size_t best = 0;
    double best_score = -1;

    assert(count > 0);

    for (size_t i = 0; i < count; i++) {
        double score = rendezvous_score(key, nodes[i]);
        bool is_tie = score >= best_score && score <= best_score;

        if (score > best_score || (is_tie && nodes[i].id > nodes[best].id)) {
            best = i;
            best_score = score;
        }
    }
    return best;
}
