/* SPDX-License-Identifier: Apache-2.0 */

/* The first byte names an API, the rest is an answer: any bytes, as a stream of events and as one
 * body, never break what is given out. */
#include "backends/http/sse.h"
#include "router/prompt/answer_stream.h"
#include "tests/fuzz/fuzz_api.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>

struct exchange {
    struct answer_stream answer;
    struct json_scanner *scanner;
};

static void on_event(void *ctx, const struct sse_event *event)
{
    struct exchange *exchange = ctx;

    answer_stream_event(&exchange->answer, exchange->scanner, event->data);
}

static void check_finish(struct answer_stream *answer)
{
    uint64_t end = 0;
    size_t count;
    const struct block *blocks = answer_stream_finish(answer, &count);

    assert((blocks == NULL) == (count == 0));
    assert(count <= ANSWER_BLOCK_COUNT_MAX);
    assert(strlen(answer->response_id) <= ANSWER_RESPONSE_ID_BYTES_MAX);
    assert(!answer->has_error || count == 0);
    for (size_t i = 0; i < count; i++) {
        assert(blocks[i].end > end);
        end = blocks[i].end;
    }
    answer_stream_release(answer);
}

static void run(struct exchange *exchange, enum api api, struct slice bytes)
{
    static const uint8_t secret[BLOCK_CHAIN_SECRET_BYTES] = {1, 2, 3};
    struct api_request request = {.api = api, .is_answer_learnable = true};
    struct block_chain_config config = {secret, 256, 64};
    struct block_chain chain;
    struct sse_reader reader;

    block_chain_init(&chain, config, 7, NULL, 0);
    answer_stream_init(&exchange->answer, &request, &chain);
    sse_reader_init(&reader);
    sse_reader_feed(&reader, bytes, on_event, exchange);
    sse_reader_release(&reader);
    check_finish(&exchange->answer);

    answer_stream_init(&exchange->answer, &request, &chain);
    (void)answer_stream_body(&exchange->answer, exchange->scanner, bytes);
    check_finish(&exchange->answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct exchange exchange = {.scanner = json_scanner_create()};
    char *copy;

    if (size > 0) {
        copy = fuzz_padded(data + 1, size - 1, JSON_PADDING);
        run(&exchange, fuzz_api(data[0]), slice_of(copy, size - 1));
        free(copy);
    }
    json_scanner_destroy(exchange.scanner);
    return 0;
}
