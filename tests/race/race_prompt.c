/* SPDX-License-Identifier: Apache-2.0 */

/*
 * race_prompt: what names prompts shares nothing between threads. Each thread has a scanner and an
 * arena of its own; all read the same bodies at once, and all must give the names that one thread
 * alone gave before. This is the ground that parsing off the loop thread stands on.
 */

#include "backends/runtime/arena.h"
#include "router/prompt/prompt_stream.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREAD_COUNT = 4, ROUND_COUNT = 200, BODY_COUNT = 4, BLOCK_COUNT_MAX = 256 };
enum { BODY_BYTES = 16384, ARENA_BYTES = 1 << 20 };

static const uint8_t secret[BLOCK_CHAIN_SECRET_BYTES] = {2, 7, 1, 8, 2, 8};

/* What all threads read and nobody writes once they run. */
struct world {
    char bodies[BODY_COUNT][BODY_BYTES + JSON_PADDING];
    struct block expected[BODY_COUNT][BLOCK_COUNT_MAX];
    size_t expected_count[BODY_COUNT];
    pthread_barrier_t start;
};

/* A chat of index + 1 messages, long enough for blocks, with an escape to be undone. */
static void write_body(char *body, int index)
{
    size_t len = (size_t)snprintf(body, BODY_BYTES, "{\"model\":\"tiny\",\"messages\":[");

    for (int message = 0; message <= index; message++) {
        len += (size_t)snprintf(body + len, BODY_BYTES - len, "%s{\"role\":\"user\",\"content\":\"",
                                message > 0 ? "," : "");
        for (int word = 0; word < 100; word++)
            len += (size_t)snprintf(body + len, BODY_BYTES - len, "word %d\\n of %d ", word, index);
        len += (size_t)snprintf(body + len, BODY_BYTES - len, "\"}");
    }
    len += (size_t)snprintf(body + len, BODY_BYTES - len, "]}");
    assert(len < BODY_BYTES);
}

/* Names the prompt of body with means of its own. Returns how many blocks. */
static size_t name_blocks(const char *body, struct json_scanner *scanner, struct block *blocks)
{
    struct api_request request;
    struct api_fault fault;
    struct prompt_blocks prompt;
    struct arena arena;
    int status =
        api_request_parse(API_CHAT, scanner, slice_of(body, strlen(body)), &request, &fault);

    assert(status == 0);
    arena_init(&arena, ARENA_BYTES);
    status = prompt_stream_write((struct prompt_stream_config){secret, 256, 64, TOOLS_FIRST},
                                 &request, &arena, BLOCK_COUNT_MAX, &prompt, &fault);
    assert(status == 0);
    size_t count = prompt.block_count;
    memcpy(blocks, prompt.blocks, count * sizeof *blocks);
    arena_release(&arena);
    return count;
}

static void expect_same(const struct world *world, int body, const struct block *blocks,
                        size_t count)
{
    assert(count == world->expected_count[body]);
    for (size_t i = 0; i < count; i++) {
        assert(blocks[i].hash == world->expected[body][i].hash);
        assert(blocks[i].end == world->expected[body][i].end);
    }
}

static void *run(void *ctx)
{
    struct world *world = ctx;
    struct json_scanner *scanner = json_scanner_create();
    struct block blocks[BLOCK_COUNT_MAX];

    pthread_barrier_wait(&world->start);
    for (int round = 0; round < ROUND_COUNT; round++) {
        int body = round % BODY_COUNT;
        size_t count = name_blocks(world->bodies[body], scanner, blocks);

        expect_same(world, body, blocks, count);
    }
    json_scanner_destroy(scanner);
    return NULL;
}

int main(void)
{
    struct world *world = calloc(1, sizeof *world);
    struct json_scanner *scanner = json_scanner_create();
    pthread_t threads[THREAD_COUNT];

    assert(world != NULL);
    for (int body = 0; body < BODY_COUNT; body++) {
        write_body(world->bodies[body], body);
        world->expected_count[body] =
            name_blocks(world->bodies[body], scanner, world->expected[body]);
        assert(world->expected_count[body] > 1);
    }
    json_scanner_destroy(scanner);
    pthread_barrier_init(&world->start, NULL, THREAD_COUNT);
    for (int i = 0; i < THREAD_COUNT; i++)
        assert(pthread_create(&threads[i], NULL, run, world) == 0);
    for (int i = 0; i < THREAD_COUNT; i++)
        assert(pthread_join(threads[i], NULL) == 0);
    pthread_barrier_destroy(&world->start);
    free(world);
    printf("%d threads, %d prompts each\n", THREAD_COUNT, ROUND_COUNT);
    return 0;
}
