/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine_request: a request as an engine's scheduler tells of it, of which nothing is kept but the
 * keys of its prompt's full blocks: token ids become names as they arrive. And the requests that
 * one scheduler has open, by their numbers, in bounded memory.
 * Pure: no I/O, clock or globals. One thread at a time.
 */
#ifndef KVTIER_CONNECTOR_ENGINE_REQUEST_H
#define KVTIER_CONNECTOR_ENGINE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "hashing/block_map.h"
#include "hashing/digest.h"
#include "kvtier/connector/ipc_wire.h"
#include "kvtier/tiers/block_key.h"

struct engine_layout;
struct tier_hold;

struct engine_request {
    struct list_node in_open;
    uint64_t number; /* the scheduler's */
    uint32_t prompt_tokens;
    uint32_t token_count;   /* of these, that have come */
    struct block_key *keys; /* of the full blocks among them */
    uint32_t key_count;
    uint32_t key_count_max;
    struct digest_128 last; /* name of the last full block, or of the chain's root */
    char *id;               /* as the engine calls it */
    size_t id_len;
    struct tier_hold *hold;            /* of keys from hold_first on; NULL: none */
    struct engine_layout *hold_layout; /* whose tiers hold it: in use as long. Both or none */
    uint32_t hold_first;
    uint32_t local_tokens;   /* of the last LOOKUP */
    struct ipc_found found;  /* what it was answered, */
    uint64_t found_until_ms; /* and until when the same question gets the same answer; 0: never */
    uint32_t waited_ms;      /* that it was told to wait for blocks on their way up */
    uint64_t taken_us;       /* when the engine had room for what was found */
    uint64_t load_us;        /* how long that took to load; 0: it has not come, or was noted */
    uint32_t used_first;     /* keys [used_first, used_end) were used by it: of whatever it asks */
    uint32_t used_end;       /* and saves how often, one request is one use */
    bool is_saving;          /* blocks of it were computed: to ask again, it was preempted */
    bool is_turned_away;     /* blocks of it were not let in: those behind are of no use */
    uint32_t open_tokens[];  /* [block_tokens]: those behind the last full block */
};

struct engine_requests_config {
    const uint8_t *secret; /* DIGEST_SECRET_BYTES; borrowed */
    uint32_t block_tokens;
    uint32_t request_count_max;
    uint32_t key_count_max; /* of all requests together */
    uint64_t seed;          /* spreads their numbers, which engines choose */
};

struct engine_requests {
    struct engine_requests_config config;
    struct block_map by_number; /* spread number -> struct engine_request */
    struct list open;           /* all of them, oldest first */
    uint32_t key_count;         /* that have memory */
};

void engine_requests_init(struct engine_requests *requests, struct engine_requests_config config);

/*
 * Takes its first tokens. -EPROTO: the scheduler contradicts itself (a number that is open, more
 * tokens than the prompt has); -EBUSY: too many are open, it is not taken in; -ENOMEM.
 */
MUST_CHECK int engine_requests_open(struct engine_requests *requests, const struct ipc_open *open,
                                    struct engine_request **request);

/* More tokens, which must follow those before. Errors as above; -ENOENT: no such request. */
MUST_CHECK int engine_requests_append(struct engine_requests *requests,
                                      const struct ipc_tokens *tokens,
                                      struct engine_request **request);

/* NULL: there is none of that number. */
struct engine_request *engine_requests_find(const struct engine_requests *requests,
                                            uint64_t number);

/* The one that has been open for longest; NULL: none is. */
struct engine_request *engine_requests_oldest(struct engine_requests *requests);

/* Whoever has given it a hold has released that. */
void engine_requests_close(struct engine_requests *requests, struct engine_request *request);

size_t engine_requests_count(const struct engine_requests *requests);

/* None may be open. */
void engine_requests_release(struct engine_requests *requests);

static inline bool engine_request_is_whole(const struct engine_request *request)
{
    return request->token_count == request->prompt_tokens;
}

static inline bool engine_request_has_used(const struct engine_request *request, uint32_t index)
{
    return index >= request->used_first && index < request->used_end;
}

/* It used [first, end) too. What lies between that and what it used before it has computed, and so
 * used, itself. */
static inline void engine_request_note_use(struct engine_request *request, uint32_t first,
                                           uint32_t end)
{
    if (request->used_first == request->used_end)
        request->used_first = first;
    if (first < request->used_first)
        request->used_first = first;
    if (end > request->used_end)
        request->used_end = end;
}

/* Blocks that an engine may be given: never the one with the prompt's last token, which it has to
 * compute to have something to go on from. */
static inline uint32_t engine_request_usable(const struct engine_request *request,
                                             uint32_t block_tokens)
{
    const uint32_t count =
        request->prompt_tokens > 0 ? (request->prompt_tokens - 1) / block_tokens : 0;

    return count < request->key_count ? count : request->key_count;
}

#endif
