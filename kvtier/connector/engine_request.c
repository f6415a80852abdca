/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/engine_request.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/runtime/random.h"
#include "hashing/token_name.h"

/*
 * DESIGN
 *
 * Names are those that the events of the engine's cache get (identity/token_chain), so that what
 * lies beneath an engine and what lies in it meet in one map.
 *
 * Engines choose the numbers of requests. Mixed with a seed that they do not know they are spread
 * in the map whatever they are; the mixing is a bijection, so no two numbers meet. One number in
 * 2^64 becomes 0, which the map has no place for: it is refused like one too many.
 */

enum { KEYS_AT_FIRST = 64, MAP_BYTES_OF_REQUEST = 4 * sizeof(struct block_map_slot) };

void engine_requests_init(struct engine_requests *requests, struct engine_requests_config config)
{
    assert(config.block_tokens > 0);

    *requests = (struct engine_requests){.config = config};
    list_init(&requests->open);
    block_map_init(&requests->by_number,
                   ((size_t)config.request_count_max + 16) * MAP_BYTES_OF_REQUEST);
}

static uint64_t spread(const struct engine_requests *requests, uint64_t number)
{
    return random_mix(number ^ requests->config.seed);
}

/* ---- tokens ---- */

static int reserve_keys(struct engine_requests *requests, struct engine_request *request)
{
    const uint32_t whole = request->prompt_tokens / requests->config.block_tokens;
    uint32_t count = request->key_count_max * 2;
    struct block_key *keys;

    if (request->key_count < request->key_count_max)
        return 0;
    if (count < KEYS_AT_FIRST)
        count = KEYS_AT_FIRST;
    if (count > whole)
        count = whole;
    if (count - request->key_count_max > requests->config.key_count_max - requests->key_count)
        return -EBUSY;
    keys = realloc(request->keys, count * sizeof *keys);
    if (keys == NULL)
        return -ENOMEM;
    requests->key_count += count - request->key_count_max;
    request->keys = keys;
    request->key_count_max = count;
    return 0;
}

static int close_block(struct engine_requests *requests, struct engine_request *request)
{
    const uint8_t *secret = requests->config.secret;
    const size_t count = requests->config.block_tokens;
    int status = reserve_keys(requests, request);

    if (status < 0)
        return status;
    request->last = token_name_next(secret, request->last, request->open_tokens, count, 0);
    request->keys[request->key_count++] =
        (struct block_key){.name = request->last,
                           .check = digest_64(secret, DIGEST_TOKEN_CHECK, request->open_tokens,
                                              count * sizeof request->open_tokens[0])};
    return 0;
}

static int append(struct engine_requests *requests, struct engine_request *request,
                  struct slice tokens, uint32_t count)
{
    const uint32_t block_tokens = requests->config.block_tokens;

    if (count > request->prompt_tokens - request->token_count)
        return -EPROTO;
    for (uint32_t i = 0; i < count; i++) {
        request->open_tokens[request->token_count % block_tokens] = ipc_u32_at(tokens, i);
        request->token_count++;
        if (request->token_count % block_tokens == 0) {
            int status = close_block(requests, request);

            if (status < 0)
                return status;
        }
    }
    return 0;
}

/* ---- requests ---- */

static void free_request(struct engine_requests *requests, struct engine_request *request)
{
    assert(request->hold == NULL);

    requests->key_count -= request->key_count_max;
    free(request->keys);
    free(request->id);
    free(request);
}

static struct engine_request *create_request(const struct engine_requests *requests,
                                             const struct ipc_open *open)
{
    struct engine_request *request =
        calloc(1, sizeof *request + requests->config.block_tokens * sizeof request->open_tokens[0]);

    if (request == NULL)
        return NULL;
    list_node_init(&request->in_open);
    request->number = open->request;
    request->prompt_tokens = open->prompt_tokens;
    request->last = token_name_root(requests->config.secret, open->lora.ptr, open->lora.len,
                                    open->salt.ptr, open->salt.len);
    request->id_len = open->id.len;
    if (open->id.len > 0) {
        request->id = malloc(open->id.len);
        if (request->id == NULL) {
            free(request);
            return NULL;
        }
        memcpy(request->id, open->id.ptr, open->id.len);
    }
    return request;
}

int engine_requests_open(struct engine_requests *requests, const struct ipc_open *open,
                         struct engine_request **opened)
{
    const uint64_t place = spread(requests, open->request);
    struct engine_request *request;
    uint64_t *value;
    int status;

    *opened = NULL;
    if (engine_requests_find(requests, open->request) != NULL)
        return -EPROTO;
    if (place == 0 || engine_requests_count(requests) >= requests->config.request_count_max)
        return -EBUSY;
    request = create_request(requests, open);
    if (request == NULL)
        return -ENOMEM;
    status = append(requests, request, open->tokens, open->token_count);
    value = status == 0 ? block_map_claim(&requests->by_number, place) : NULL;
    if (status == 0 && value == NULL)
        status = -ENOMEM;
    if (status < 0) {
        free_request(requests, request);
        return status;
    }
    *value = (uint64_t)(uintptr_t)request;
    list_append(&requests->open, &request->in_open);
    *opened = request;
    return 0;
}

int engine_requests_append(struct engine_requests *requests, const struct ipc_tokens *tokens,
                           struct engine_request **request)
{
    *request = engine_requests_find(requests, tokens->request);
    if (*request == NULL)
        return -ENOENT;
    if (tokens->first != (*request)->token_count)
        return -EPROTO;
    return append(requests, *request, tokens->tokens, tokens->token_count);
}

static struct engine_request *request_of(uint64_t value)
{
    return (struct engine_request *)(uintptr_t)value;
}

struct engine_request *engine_requests_find(const struct engine_requests *requests, uint64_t number)
{
    const uint64_t place = spread(requests, number);
    const uint64_t *value = place != 0 ? block_map_find(&requests->by_number, place) : NULL;

    return value != NULL ? request_of(*value) : NULL;
}

struct engine_request *engine_requests_oldest(struct engine_requests *requests)
{
    return requests->open.count > 0
               ? container_of(requests->open.head.next, struct engine_request, in_open)
               : NULL;
}

void engine_requests_close(struct engine_requests *requests, struct engine_request *request)
{
    bool was_there = block_map_remove(&requests->by_number, spread(requests, request->number));

    assert(was_there);
    list_remove(&requests->open, &request->in_open);
    free_request(requests, request);
}

size_t engine_requests_count(const struct engine_requests *requests)
{
    return block_map_count(&requests->by_number);
}

void engine_requests_release(struct engine_requests *requests)
{
    assert(engine_requests_count(requests) == 0);

    block_map_release(&requests->by_number);
}
