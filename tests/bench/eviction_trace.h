/* SPDX-License-Identifier: Apache-2.0 */

/*
 * eviction_trace: requests as chains of blocks, read from the public traces that have prefixes, or
 * generated. Blocks are numbered; a number stands for a block and all before it.
 */
#ifndef TESTS_BENCH_EVICTION_TRACE_H
#define TESTS_BENCH_EVICTION_TRACE_H

#include <stddef.h>
#include <stdint.h>

struct eviction_trace {
    uint32_t *refs; /* [ref_count] blocks, request after request */
    size_t *begin;  /* [request_count + 1] where each request's chain begins in refs */
    uint32_t *next; /* [ref_count] the next request that has the block; UINT32_MAX: none */
    size_t ref_count;
    size_t request_count;
    uint32_t block_count; /* numbers are 1..block_count */
};

/* One request a line, in the order of time: {"hash_ids": [..]}. -errno; -EBADMSG: not of that form,
 * or gzip is not installed. */
int eviction_trace_read_requests(const char *path, struct eviction_trace *trace);

/* One session a line, its requests with run-length coded ids; the first session_count_max, all
 * beginning at once. */
int eviction_trace_read_sessions(const char *path, size_t session_count_max,
                                 struct eviction_trace *trace);

/* Chats over a few system prompts, agents with long growing prompts, and prompts that come once.
 * The same seed gives the same trace. */
void eviction_trace_generate(size_t request_count, uint64_t seed, struct eviction_trace *trace);

void eviction_trace_release(struct eviction_trace *trace);

#endif
