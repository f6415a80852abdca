/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_guess: believes that a worker still holds what we sent it, as far back as its cache
 * reaches. Keeps per worker a least-recently-used order over blocks, bounded by that worker's own
 * cache size in tokens, and writes what it believes into a residency_index that nobody else writes,
 * with the worker's index as the holder. A prompt counts from the choice on; that it is still being
 * made shows in its worker's own load. Pure; loop thread only.
 */
#ifndef ROUTER_RESIDENCY_RESIDENCY_GUESS_H
#define ROUTER_RESIDENCY_RESIDENCY_GUESS_H

#include <stddef.h>
#include <stdint.h>

#include "hashing/block_chain.h"
#include "router/residency/residency_index.h"

struct residency_guess;

struct residency_guess_stats {
    uint64_t block_count;     /* believed, all workers */
    uint64_t evicted_total;   /* pushed out by newer ones */
    uint64_t corrected_total; /* dropped because the attempt that was to bring them failed */
};

/* Borrows index until destroy, which leaves in it what was believed. NULL: no memory. */
struct residency_guess *residency_guess_create(struct residency_index *index);
void residency_guess_destroy(struct residency_guess *guess);

/* The cache of worker holds that many tokens; 0 asks for the default (131072 tokens). Evicts at
 * once what no longer fits. */
void residency_guess_set_capacity(struct residency_guess *guess, uint32_t worker, uint64_t tokens);

/* A prompt that a worker was sent, as far as it is to be guessed. */
struct guess_prompt {
    const struct block *blocks;
    size_t block_count;
    size_t from;            /* the first of them that nobody else knows of: what is before it, the
                             * worker's agent claims */
    double tokens_per_byte; /* turns block lengths into tokens */
    uint64_t pending_until_ms; /* what is new in it is being made until then, if not settled */
};

/*
 * worker was sent a prompt: each block is now its most recent, the first more recent than the last,
 * as engines free from the tail. Returns the number of this prompt's making, for
 * residency_guess_settle(); 0: nothing in it is new.
 */
uint32_t residency_guess_learn(struct residency_guess *guess, uint32_t worker,
                               const struct guess_prompt *prompt);

/* What learn() began is made, or never will be. 0: nothing. */
void residency_guess_settle(struct residency_guess *guess, uint32_t making);

/*
 * worker has answered: blocks go on from parent, the last closed block of the prompt it was sent
 * ({0, 0}: there is none). They count as older than parent, which they cannot be used without.
 */
void residency_guess_extend(struct residency_guess *guess, uint32_t worker, struct block parent,
                            const struct block *blocks, size_t block_count, double tokens_per_byte);

/* How many of blocks from blocks[from] on are believed of worker without a gap. */
size_t residency_guess_run(const struct residency_guess *guess, uint32_t worker,
                           const struct block *blocks, size_t from, size_t block_count);

/* How many bytes of what worker holds of blocks[0..end) are still being made: the last of them, as
 * a prompt is made from its start. end: behind a run that is believed or claimed. */
uint64_t residency_guess_pending(const struct residency_guess *guess, uint32_t worker,
                                 const struct block *blocks, size_t end, uint64_t now_ms);

/* What was sent did not get there: worker holds only the first kept of blocks; forget the rest. */
void residency_guess_correct(struct residency_guess *guess, uint32_t worker,
                             const struct block *blocks, size_t block_count, size_t kept);

/* Others know by now whether worker holds hash. */
void residency_guess_forget(struct residency_guess *guess, uint32_t worker, uint64_t hash);

/* worker restarted or is gone. */
void residency_guess_forget_worker(struct residency_guess *guess, uint32_t worker);

struct residency_guess_stats residency_guess_stats(const struct residency_guess *guess);

#endif
