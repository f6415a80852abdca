/* SPDX-License-Identifier: Apache-2.0 */

/*
 * prompt: what reading costs: a chat body parsed and named, an event of a stream found, parsed and
 * hashed on. Each figure is the best of several rounds, as others use the machine too. The last
 * line is the verdict; --quick for fewer rounds.
 */
#include "backends/http/sse.h"
#include "router/prompt/answer_stream.h"
#include "router/prompt/prompt_stream.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double SMALL_NS_GOAL = 3000;
static const double LARGE_NS_GOAL = 150000;
static const double EVENT_NS_GOAL = 600;

enum { BLOCK_COUNT_MAX = 65536, EVENT_COUNT = 512 };

static const uint8_t secret[BLOCK_CHAIN_SECRET_BYTES] = {3, 1, 4, 1, 5};

static double now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* A chat of messages of about 1 KiB of prose each; escapes here and there, as clients send. */
static void build_body(struct buf *body, size_t len)
{
    static const char prose[] = "The samovar keeps the water hot, so that the tea is ready when "
                                "the guests are.\\nIt costs little to keep it so: \\\"cold\\\" is ";
    int status = buf_printf(body, "{\"model\":\"tiny\",\"stream\":true,\"temperature\":0.7,"
                                  "\"max_tokens\":256,\"messages\":[");

    for (size_t message = 0; buf_len(body) < len && status == 0; message++) {
        size_t end = buf_len(body) + 1000 < len ? buf_len(body) + 1000 : len;

        status = buf_printf(body, "%s{\"role\":\"%s\",\"content\":\"", message > 0 ? "," : "",
                            message % 2 == 0 ? "user" : "assistant");
        while (status == 0 && buf_len(body) < end)
            status = buf_append(body, slice_of_string(prose));
        if (status == 0)
            status = buf_printf(body, "\"}");
    }
    if (status == 0)
        status = buf_printf(body, "]}");
    assert(status == 0);
}

static void read_request(struct json_scanner *scanner, struct slice body)
{
    struct prompt_blocks prompt;
    struct api_request request;
    struct api_fault fault;
    struct arena arena;
    int status = api_request_parse(API_CHAT, scanner, body, &request, &fault);

    assert(status == 0);
    arena_init(&arena, 4 << 20);
    status = prompt_stream_write((struct prompt_stream_config){secret, 256, 64, TOOLS_FIRST},
                                 &request, &arena, BLOCK_COUNT_MAX, &prompt, &fault);
    assert(status == 0);
    arena_release(&arena);
}

/* The best round's nanoseconds a request. */
static double measure_request(size_t len, size_t round_count)
{
    struct json_scanner *scanner = json_scanner_create();
    size_t repeat_count = 1 + (1 << 20) / len;
    double best = 1e18;
    struct buf body;

    buf_init(&body, 1 << 20);
    build_body(&body, len);
    for (size_t round = 0; round < round_count; round++) {
        double start = now_ns(), cost;

        for (size_t i = 0; i < repeat_count; i++)
            read_request(scanner, buf_slice(&body));
        cost = (now_ns() - start) / (double)repeat_count;
        best = cost < best ? cost : best;
    }
    buf_release(&body);
    json_scanner_destroy(scanner);
    return best;
}

struct stream {
    struct answer_stream answer;
    struct json_scanner *scanner; /* NULL: events are only found */
};

static void on_event(void *ctx, const struct sse_event *event)
{
    struct stream *stream = ctx;

    if (stream->scanner != NULL)
        (void)answer_stream_event(&stream->answer, stream->scanner, event->data);
}

static void feed_stream(struct stream *stream, struct slice bytes)
{
    struct api_request request = {.api = API_CHAT, .is_answer_learnable = true};
    struct block_chain_config config = {secret, 256, 64};
    struct block_chain chain;
    struct sse_reader reader;

    block_chain_init(&chain, config, 7, NULL, 0);
    answer_stream_init(&stream->answer, &request, &chain);
    sse_reader_init(&reader);
    sse_reader_feed(&reader, bytes, on_event, stream);
    sse_reader_release(&reader);
    answer_stream_release(&stream->answer);
}

static double measure_events(struct json_scanner *scanner, size_t round_count)
{
    struct stream stream = {.scanner = scanner};
    double best = 1e18;
    struct buf bytes;

    buf_init(&bytes, 1 << 20);
    for (size_t i = 0; i < EVENT_COUNT; i++) {
        int status = buf_printf(
            &bytes,
            "data: {\"id\":\"chatcmpl-a1eb0a379255055d\",\"object\":\"chat.completion.chunk\","
            "\"created\":1795965896,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{"
            "\"content\":\" tea%zu\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}"
            "]}\n\n",
            i);
        assert(status == 0);
    }
    for (size_t round = 0; round < 10 * round_count; round++) {
        double start = now_ns(), cost;

        feed_stream(&stream, buf_slice(&bytes));
        cost = (now_ns() - start) / EVENT_COUNT;
        best = cost < best ? cost : best;
    }
    buf_release(&bytes);
    return best;
}

int main(int argc, char **argv)
{
    size_t round_count = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 10 : 100;
    struct json_scanner *scanner = json_scanner_create();
    double small = measure_request(1 << 10, round_count);
    double large = measure_request(220 << 10, round_count);
    double found = measure_events(NULL, round_count);
    double learned = measure_events(scanner, round_count);
    bool is_reached = small <= SMALL_NS_GOAL && large <= LARGE_NS_GOAL && learned <= EVENT_NS_GOAL;

    printf("chat body of   1 KiB, parsed and named: %8.2f us (goal: <= %.0f)\n", small / 1e3,
           SMALL_NS_GOAL / 1e3);
    printf("chat body of 220 KiB, parsed and named: %8.2f us (goal: <= %.0f)\n", large / 1e3,
           LARGE_NS_GOAL / 1e3);
    printf("event found:                            %8.0f ns\n", found);
    printf("event found, parsed and hashed on:      %8.0f ns (goal: <= %.0f)\n", learned,
           EVENT_NS_GOAL);
    printf("%s\n", is_reached ? "verdict: REACHED" : "verdict: SHORT of the goal");
    json_scanner_destroy(scanner);
    return is_reached ? 0 : 1;
}
