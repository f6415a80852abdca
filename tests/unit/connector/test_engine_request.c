/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/engine_request.h"

#include "hashing/token_name.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

enum { BLOCK_TOKENS = 4, TOKEN_COUNT = 11, REQUEST_COUNT_MAX = 8, KEY_COUNT_MAX = 1024 };

static const uint8_t secret[DIGEST_SECRET_BYTES] = {1, 2, 3};
static const uint32_t ids[TOKEN_COUNT] = {10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 0xffffffff};

static void init(struct engine_requests *requests, uint32_t request_count_max,
                 uint32_t key_count_max)
{
    engine_requests_init(requests, (struct engine_requests_config){
                                       .secret = secret,
                                       .block_tokens = BLOCK_TOKENS,
                                       .request_count_max = request_count_max,
                                       .key_count_max = key_count_max,
                                       .seed = 7,
                                   });
}

static struct ipc_open open_with(uint64_t number, uint32_t token_count)
{
    return (struct ipc_open){.request = number,
                             .prompt_tokens = TOKEN_COUNT,
                             .id = SLICE("chatcmpl-1"),
                             .lora = SLICE("lora"),
                             .salt = SLICE("salt"),
                             .tokens = slice_of(ids, token_count * sizeof ids[0]),
                             .token_count = token_count};
}

static struct ipc_tokens tokens_of(uint64_t number, uint32_t first, uint32_t token_count)
{
    return (struct ipc_tokens){.request = number,
                               .first = first,
                               .tokens = slice_of(ids + first, token_count * sizeof ids[0]),
                               .token_count = token_count};
}

static void release(struct engine_requests *requests)
{
    struct engine_request *request;

    while ((request = engine_requests_oldest(requests)) != NULL)
        engine_requests_close(requests, request);
    engine_requests_release(requests);
}

TestSuite(engine_request, .fini = leak_check);

Test(engine_request, keys_are_the_names_and_checks_of_its_full_blocks)
{
    struct engine_requests requests;
    struct ipc_open open = open_with(1, TOKEN_COUNT);
    struct engine_request *request;
    struct digest_128 name = token_name_root(secret, "lora", 4, "salt", 4);
    init(&requests, REQUEST_COUNT_MAX, KEY_COUNT_MAX);

    cr_assert(zero(int, engine_requests_open(&requests, &open, &request)));

    cr_assert(eq(u32, request->key_count, 2));
    for (size_t i = 0; i < 2; i++) {
        name = token_name_next(secret, name, ids + i * BLOCK_TOKENS, BLOCK_TOKENS, 0);
        cr_expect(eq(u64, request->keys[i].name.low, name.low));
        cr_expect(eq(u64, request->keys[i].name.high, name.high));
        cr_expect(eq(u64, request->keys[i].check,
                     digest_64(secret, DIGEST_TOKEN_CHECK, ids + i * BLOCK_TOKENS,
                               BLOCK_TOKENS * sizeof ids[0])));
    }
    cr_expect(engine_request_is_whole(request));
    release(&requests);
}

Test(engine_request, how_tokens_are_cut_into_messages_never_matters)
{
    struct engine_requests requests;
    struct ipc_open whole = open_with(1, TOKEN_COUNT);
    struct engine_request *expected;

    init(&requests, REQUEST_COUNT_MAX, KEY_COUNT_MAX);
    cr_assert(zero(int, engine_requests_open(&requests, &whole, &expected)));

    for (uint32_t cut = 0; cut <= TOKEN_COUNT; cut++) {
        struct ipc_open open = open_with(2, cut);
        struct ipc_tokens rest = tokens_of(2, cut, TOKEN_COUNT - cut);
        struct engine_request *request;

        cr_assert(zero(int, engine_requests_open(&requests, &open, &request)));
        cr_assert(zero(int, engine_requests_append(&requests, &rest, &request)));

        cr_assert(eq(u32, request->key_count, expected->key_count));
        for (size_t i = 0; i < expected->key_count; i++)
            cr_expect(block_key_equal(request->keys[i], expected->keys[i]));
        engine_requests_close(&requests, request);
    }
    release(&requests);
}

Test(engine_request, the_last_token_is_never_in_a_block_to_load)
{
    struct engine_request request = {.key_count = 3};

    request.prompt_tokens = 3 * BLOCK_TOKENS;
    cr_expect(eq(u32, engine_request_usable(&request, BLOCK_TOKENS), 2));
    request.prompt_tokens = 3 * BLOCK_TOKENS + 1;
    cr_expect(eq(u32, engine_request_usable(&request, BLOCK_TOKENS), 3));
    request.key_count = 1;
    cr_expect(eq(u32, engine_request_usable(&request, BLOCK_TOKENS), 1));
    request.prompt_tokens = 0;
    cr_expect(eq(u32, engine_request_usable(&request, BLOCK_TOKENS), 0));
}

Test(engine_request, a_scheduler_that_contradicts_itself_is_told_so)
{
    struct engine_requests requests;
    struct ipc_open open = open_with(1, 5), longer = open_with(2, TOKEN_COUNT);
    struct ipc_tokens gap = tokens_of(1, 6, 1), again = tokens_of(1, 4, 1);
    struct ipc_tokens beyond = tokens_of(1, 5, TOKEN_COUNT - 5), unknown = tokens_of(9, 0, 1);
    struct engine_request *request;

    init(&requests, REQUEST_COUNT_MAX, KEY_COUNT_MAX);
    cr_assert(zero(int, engine_requests_open(&requests, &open, &request)));

    cr_expect(eq(int, engine_requests_open(&requests, &open, &request), -EPROTO));
    longer.prompt_tokens = TOKEN_COUNT - 1;
    cr_expect(eq(int, engine_requests_open(&requests, &longer, &request), -EPROTO));
    cr_expect(eq(int, engine_requests_append(&requests, &gap, &request), -EPROTO));
    cr_expect(eq(int, engine_requests_append(&requests, &again, &request), -EPROTO));
    cr_expect(eq(int, engine_requests_append(&requests, &unknown, &request), -ENOENT));
    cr_assert(zero(int, engine_requests_append(&requests, &beyond, &request)));
    beyond.first = TOKEN_COUNT;
    beyond.token_count = 1;
    cr_expect(eq(int, engine_requests_append(&requests, &beyond, &request), -EPROTO));

    cr_expect(eq(sz, engine_requests_count(&requests), 1));
    release(&requests);
}

Test(engine_request, one_too_many_is_not_taken_in_and_a_closed_one_makes_room)
{
    struct engine_requests requests;
    struct engine_request *first, *request;
    struct ipc_open open = open_with(0, 1);

    init(&requests, 2, KEY_COUNT_MAX);
    cr_assert(zero(int, engine_requests_open(&requests, &open, &first)));
    open.request = UINT64_MAX;
    cr_assert(zero(int, engine_requests_open(&requests, &open, &request)));
    open.request = 3;

    cr_expect(eq(int, engine_requests_open(&requests, &open, &request), -EBUSY));
    cr_expect(eq(ptr, request, NULL));
    engine_requests_close(&requests, first);

    cr_expect(zero(int, engine_requests_open(&requests, &open, &request)));
    cr_expect(eq(ptr, engine_requests_find(&requests, 3), request));
    cr_expect(eq(ptr, engine_requests_find(&requests, 0), NULL));
    release(&requests);
}

Test(engine_request, keys_of_all_requests_together_are_bounded)
{
    struct engine_requests requests;
    struct ipc_open first = open_with(1, TOKEN_COUNT), second = open_with(2, TOKEN_COUNT);
    struct engine_request *request, *none;

    init(&requests, REQUEST_COUNT_MAX, 3);
    cr_assert(zero(int, engine_requests_open(&requests, &first, &request)));

    cr_expect(eq(int, engine_requests_open(&requests, &second, &none), -EBUSY));
    engine_requests_close(&requests, request);

    cr_expect(zero(int, engine_requests_open(&requests, &second, &request)));
    cr_expect(eq(u32, requests.key_count, 2));
    release(&requests);
    cr_expect(eq(u32, requests.key_count, 0));
}

/* What was loaded from the middle on, then computed from there, then asked for from further up. */
Test(engine_request, one_run_of_its_blocks_is_known_as_used)
{
    struct engine_request request = {0};
    cr_assert(not(engine_request_has_used(&request, 0)));

    engine_request_note_use(&request, 4, 6);
    cr_assert(not(engine_request_has_used(&request, 3)));
    cr_assert(engine_request_has_used(&request, 4));
    cr_assert(not(engine_request_has_used(&request, 6)));

    engine_request_note_use(&request, 0, 8);
    engine_request_note_use(&request, 2, 5);
    cr_assert(engine_request_has_used(&request, 0));
    cr_assert(engine_request_has_used(&request, 7));
    cr_assert(not(engine_request_has_used(&request, 8)));
}
