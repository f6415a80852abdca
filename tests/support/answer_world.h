/* SPDX-License-Identifier: Apache-2.0 */

/*
 * answer_world: a prompt that was sent and its answer as it passes, for tests of answer_stream.
 */
#ifndef TESTS_SUPPORT_ANSWER_WORLD_H
#define TESTS_SUPPORT_ANSWER_WORLD_H

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/http/sse.h"
#include "router/prompt/answer_stream.h"
#include "tests/support/prompt_world.h"
#include "tests/support/recording.h"

enum { ANSWER_KIND_COUNT = ANSWER_EVENT_OTHER + 1 };

static const char answer_recordings[] = TESTS_DIR "/fixtures/vllm-0.32.0/http";

/* A prompt that was sent, and its answer as it passes. */
struct answer_world {
    struct prompt_world prompt;
    struct json_scanner *scanner; /* the exchange's scanner is in other use by now */
    struct answer_stream answer;
    size_t kinds[ANSWER_KIND_COUNT];
    enum answer_event_kind last_kind;
};

static inline void answer_world_init(struct answer_world *world, enum api api, struct slice body)
{
    int status;

    memset(world, 0, sizeof *world);
    status = prompt_world_try(&world->prompt, api, body);
    cr_assert(status == 0, "%s", world->prompt.fault.message);
    world->scanner = json_scanner_create();
    answer_stream_init(&world->answer, &world->prompt.request, &world->prompt.prompt.chain);
}

static inline void answer_world_release(struct answer_world *world)
{
    answer_stream_release(&world->answer);
    json_scanner_destroy(world->scanner);
    prompt_world_release(&world->prompt);
}

static inline void answer_world_feed_event(struct answer_world *world, struct slice data)
{
    world->last_kind = answer_stream_event(&world->answer, world->scanner, data);
    world->kinds[world->last_kind]++;
}

/* For a short data text of the test's own. */
static inline void answer_world_feed_text(struct answer_world *world, const char *text)
{
    char data[2048 + JSON_PADDING] = {0};

    cr_assert(lt(sz, strlen(text), 2048));
    memcpy(data, text, strlen(text));
    answer_world_feed_event(world, slice_of(data, strlen(text)));
}

static inline void answer_world_on_event(void *ctx, const struct sse_event *event)
{
    answer_world_feed_event(ctx, event->data);
}

static inline void answer_world_feed_recording(struct answer_world *world, const char *name)
{
    struct sse_reader reader;
    struct buf body;

    recording_read(&body, answer_recordings, name);
    sse_reader_init(&reader);
    sse_reader_feed(&reader, buf_slice(&body), answer_world_on_event, world);
    sse_reader_release(&reader);
    buf_release(&body);
}

static inline void answer_world_init_from_recording(struct answer_world *world, enum api api,
                                                    const char *name)
{
    struct buf body;

    recording_read(&body, answer_recordings, name);
    answer_world_init(world, api, buf_slice(&body));
    buf_release(&body);
}

static inline bool answer_world_feed_body(struct answer_world *world, struct slice body)
{
    char *copy = calloc(1, body.len + JSON_PADDING);
    bool is_understood;

    memcpy(copy, body.ptr, body.len);
    is_understood = answer_stream_body(&world->answer, world->scanner, slice_of(copy, body.len));
    free(copy);
    return is_understood;
}

/* The prompt's closed blocks and the answer's are the first blocks of the next turn's prompt, and
 * they reach to its last message. */
static inline void answer_world_check_continues(struct answer_world *world,
                                                const struct prompt_blocks *next)
{
    const struct prompt_blocks *prompt = &world->prompt.prompt;
    size_t count, closed = prompt->closed_count;
    const struct block *blocks = answer_stream_finish(&world->answer, &count);

    cr_assert(gt(sz, count, 0));
    cr_assert(ge(sz, next->block_count, closed + count));
    for (size_t i = 0; i < closed; i++)
        cr_assert(eq(u64, prompt->blocks[i].hash, next->blocks[i].hash));
    for (size_t i = 0; i < count; i++) {
        cr_assert(eq(u64, blocks[i].hash, next->blocks[closed + i].hash), "block %zu", i);
        cr_assert(eq(u64, blocks[i].end, next->blocks[closed + i].end));
    }
}

static inline void answer_world_check_next(struct answer_world *world, enum api api,
                                           const char *body)
{
    struct prompt_world next;

    prompt_world_init(&next, api, body);
    answer_world_check_continues(world, &next.prompt);
    prompt_world_release(&next);
}

#endif
