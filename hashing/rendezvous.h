/* SPDX-License-Identifier: Apache-2.0 */

/*
 * rendezvous: highest random weight. Every key prefers the nodes in an order of its own; a node
 * that comes or goes moves only the keys that it wins or had. Costs one hash per node and key,
 * keeps nothing. Pure; any thread.
 */
#ifndef HASHING_RENDEZVOUS_H
#define HASHING_RENDEZVOUS_H

#include <stddef.h>
#include <stdint.h>

struct rendezvous_node {
    uint64_t id;   /* the same on every router: a hash of its name, not a place in an array */
    double weight; /* share of the keys, relative to the others; 0: none */
};

/* The id of a node by its name. */
uint64_t rendezvous_id(const void *name, size_t len);

/* How much key wants node: the highest wins. > 0, or 0 for a weight of 0. */
double rendezvous_score(uint64_t key, struct rendezvous_node node);

/* Place of the winner in nodes[0..count), count > 0; ties go to the greater id. */
size_t rendezvous_pick(uint64_t key, const struct rendezvous_node *nodes, size_t count);

#endif
