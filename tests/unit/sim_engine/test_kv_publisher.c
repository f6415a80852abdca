/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/kv_publisher.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "tests/support/kv_recording.h"
#include "tests/support/leak_check.h"

enum { WAIT_MS = 10 * 1000 };

/* A publisher, and a peer of it: a subscriber or one who asks for replays. */
struct world {
    struct kv_publisher *publisher;
    void *context;
    void *socket;
};

static struct kv_publisher_config config_of(size_t replay_batches_max)
{
    return (struct kv_publisher_config){
        .events_endpoint = "tcp://127.0.0.1:*",
        .replay_endpoint = "tcp://127.0.0.1:*",
        .topic = "kv@w1@sim",
        .replay_batches_max = replay_batches_max,
    };
}

static void world_init(struct world *world, struct kv_publisher_config config, int type)
{
    int wait_ms = WAIT_MS;

    cr_assert(eq(int, kv_publisher_create(&config, &world->publisher), 0));
    world->context = zmq_ctx_new();
    world->socket = zmq_socket(world->context, type);
    zmq_setsockopt(world->socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    if (type == ZMQ_SUB)
        zmq_setsockopt(world->socket, ZMQ_SUBSCRIBE, "", 0);
    cr_assert(eq(int,
                 zmq_connect(world->socket, type == ZMQ_SUB
                                                ? kv_publisher_events_endpoint(world->publisher)
                                                : kv_publisher_replay_endpoint(world->publisher)),
                 0));
}

static void world_release(struct world *world)
{
    int linger = 0;

    zmq_setsockopt(world->socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_close(world->socket);
    zmq_ctx_term(world->context);
    kv_publisher_destroy(world->publisher);
}

static void put(struct world *world, uint64_t sequence, bool is_sent, bool is_kept)
{
    char payload[32];
    int len = snprintf(payload, sizeof payload, "the batch %" PRIu64, sequence);

    kv_publisher_put(world->publisher, (struct kv_batch){sequence, slice_of(payload, (size_t)len)},
                     is_sent, is_kept);
}

/* The next message as text: its frames, those of eight bytes as a number, which no payload here
 * has. false: none came. */
static bool receive(struct world *world, char *text, size_t size)
{
    int more = 1;
    size_t len = 0, more_size = sizeof more;

    text[0] = '\0';
    while (more != 0) {
        char frame[64];
        uint64_t number;
        int frame_len = zmq_recv(world->socket, frame, sizeof frame, 0);

        if (frame_len < 0)
            return false;
        memcpy(&number, frame, sizeof number);
        len += (size_t)(frame_len == sizeof number
                            ? snprintf(text + len, size - len, "[%" PRId64 "]",
                                       (int64_t)be64toh(number))
                            : snprintf(text + len, size - len, "[%.*s]", frame_len, frame));
        zmq_getsockopt(world->socket, ZMQ_RCVMORE, &more, &more_size);
    }
    return true;
}

static void expect(struct world *world, const char *expected)
{
    char text[256];

    cr_assert(receive(world, text, sizeof text), "instead of %s nothing came", expected);
    cr_assert(eq(str, text, (char *)(uintptr_t)expected));
}

/* Sends the frames that were recorded of one who asked vLLM. */
static void ask_as_recorded(struct world *world, const char *name)
{
    static struct kv_recording recording;
    struct kv_frames frames;

    kv_recording_open(&recording, name);
    cr_assert(kv_recording_next(&recording, &frames));
    for (size_t i = 0; i < frames.count; i++)
        cr_assert(ge(int,
                     zmq_send(world->socket, frames.frames[i].ptr, frames.frames[i].len,
                              i + 1 < frames.count ? ZMQ_SNDMORE : 0),
                     0));
}

static void ask(struct world *world, uint64_t sequence)
{
    uint64_t big = htobe64(sequence);

    cr_assert(eq(int, zmq_send(world->socket, "", 0, ZMQ_SNDMORE), 0));
    cr_assert(eq(int, zmq_send(world->socket, &big, sizeof big, 0), sizeof big));
}

TestSuite(kv_publisher, .fini = leak_check);

Test(kv_publisher, a_batch_is_published_as_topic_sequence_and_payload)
{
    struct world world;
    char text[256] = "";
    uint64_t sequence = 0;
    int poll_ms = 5;
    world_init(&world, config_of(10), ZMQ_SUB);
    zmq_setsockopt(world.socket, ZMQ_RCVTIMEO, &poll_ms, sizeof poll_ms);

    do /* a subscription takes a moment; what came before it is nobody's */
        put(&world, sequence++, true, true);
    while (!receive(&world, text, sizeof text) && sequence < WAIT_MS / 5);

    uint64_t first = 0;
    char expected[64];
    cr_assert(eq(int, sscanf(text, "[kv@w1@sim][%" SCNu64 "]", &first), 1), "%s", text);
    cr_assert(lt(u64, first, sequence));
    snprintf(expected, sizeof expected, "[kv@w1@sim][%" PRIu64 "][the batch %" PRIu64 "]", first,
             first);
    cr_assert(eq(str, text, expected));
    world_release(&world);
}

Test(kv_publisher, a_dropped_batch_is_not_published)
{
    struct world world;
    char text[256] = "";
    uint64_t sequence = 0;
    int poll_ms = 5, wait_ms = WAIT_MS;
    world_init(&world, config_of(10), ZMQ_SUB);
    zmq_setsockopt(world.socket, ZMQ_RCVTIMEO, &poll_ms, sizeof poll_ms);
    do
        put(&world, sequence++, true, true);
    while (!receive(&world, text, sizeof text) && sequence < WAIT_MS / 5);
    zmq_setsockopt(world.socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);

    put(&world, 5000, false, true);
    put(&world, 5001, true, true);

    do /* those from before it, on a busy machine */
        cr_assert(receive(&world, text, sizeof text));
    while (strncmp(text, "[kv@w1@sim][500", 15) != 0);
    cr_assert(eq(str, text, (char *)(uintptr_t) "[kv@w1@sim][5001][the batch 5001]"));
    world_release(&world);
}

Test(kv_publisher, a_replay_begins_where_it_was_asked_for_and_says_its_end)
{
    struct world world;
    world_init(&world, config_of(10), ZMQ_DEALER);
    for (uint64_t i = 0; i < 4; i++)
        put(&world, i, true, true);

    ask(&world, 2);

    expect(&world, "[][kv@w1@sim][2][the batch 2]");
    expect(&world, "[][kv@w1@sim][3][the batch 3]");
    expect(&world, "[][][-1][]");
    world_release(&world);
}

Test(kv_publisher, a_replay_older_than_the_ring_begins_at_its_oldest_without_a_word)
{
    struct world world;
    world_init(&world, config_of(3), ZMQ_DEALER);
    for (uint64_t i = 0; i < 10; i++)
        put(&world, i, true, true);

    ask_as_recorded(&world, "replay-older-than-buffer.request.frames");

    expect(&world, "[][kv@w1@sim][7][the batch 7]");
    expect(&world, "[][kv@w1@sim][8][the batch 8]");
    expect(&world, "[][kv@w1@sim][9][the batch 9]");
    expect(&world, "[][][-1][]");
    world_release(&world);
}

Test(kv_publisher, a_replay_from_the_future_is_its_end_alone_byte_for_byte_as_vllms)
{
    static struct kv_recording recording;
    struct kv_frames frames;
    struct world world;
    world_init(&world, config_of(3), ZMQ_DEALER);
    put(&world, 0, true, true);
    kv_recording_open(&recording, "replay-future.answer.frames");
    cr_assert(kv_recording_next(&recording, &frames));

    ask_as_recorded(&world, "replay-future.request.frames");

    for (size_t i = 0; i < frames.count; i++) {
        char frame[64];
        int len = zmq_recv(world.socket, frame, sizeof frame, 0);

        cr_assert(eq(int, len, (int)frames.frames[i].len));
        cr_assert(eq(int, memcmp(frame, frames.frames[i].ptr, (size_t)len), 0));
    }
    world_release(&world);
}

Test(kv_publisher, a_batch_that_is_lost_for_good_is_not_replayed)
{
    struct world world;
    world_init(&world, config_of(3), ZMQ_DEALER);
    put(&world, 0, false, false);
    put(&world, 1, false, true);

    ask(&world, 0);

    expect(&world, "[][kv@w1@sim][1][the batch 1]");
    expect(&world, "[][][-1][]");
    world_release(&world);
}

Test(kv_publisher, what_is_not_three_frames_is_passed_over_and_the_next_one_answered)
{
    struct world world;
    world_init(&world, config_of(3), ZMQ_DEALER);
    put(&world, 0, true, true);
    cr_assert(eq(int, zmq_send(world.socket, "odd", 3, 0), 3));
    for (int i = 0; i < 4; i++)
        cr_assert(eq(int, zmq_send(world.socket, "", 0, i < 3 ? ZMQ_SNDMORE : 0), 0));

    ask(&world, 1);

    expect(&world, "[][][-1][]");
    world_release(&world);
}

Test(kv_publisher, a_hidden_replay_is_never_answered)
{
    struct kv_publisher_config config = config_of(3);
    struct world world;
    char text[256];
    int short_ms = 100;
    config.hides_replay = true;
    world_init(&world, config, ZMQ_DEALER);
    zmq_setsockopt(world.socket, ZMQ_RCVTIMEO, &short_ms, sizeof short_ms);
    put(&world, 0, true, true);

    ask(&world, 0);

    cr_assert(not(receive(&world, text, sizeof text)));
    world_release(&world);
}

Test(kv_publisher, an_endpoint_that_is_taken_is_said)
{
    struct kv_publisher_config config = config_of(3);
    struct kv_publisher *second = NULL;
    struct world world;
    world_init(&world, config, ZMQ_SUB);
    config.events_endpoint = kv_publisher_events_endpoint(world.publisher);

    cr_assert(eq(int, kv_publisher_create(&config, &second), -EADDRINUSE));

    world_release(&world);
}
