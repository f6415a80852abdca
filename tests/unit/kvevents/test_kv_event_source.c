/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/kv_event_source.h"

#include "tests/support/kv_recording.h"
#include "tests/support/loop_fixture.h"

#include <zmq.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

enum {
    WAIT_MS = 10000,
    ENDPOINT_BYTES_MAX = 128,
    BATCH_COUNT_MAX = 256,
    CONTACT_COUNT_MAX = 16,
    IDENTITY_BYTES_MAX = 256,
    QUEUED_BYTES_MAX = 1 << 20,
    PAYLOAD_LEN = 11,
};

/* An engine that publishes and replays what the test says, from the test's own thread. */
struct engine {
    void *zmq;
    void *publisher; /* XPUB: it tells when a subscriber has come */
    void *replayer;
    char endpoint[ENDPOINT_BYTES_MAX];
    char replay_endpoint[ENDPOINT_BYTES_MAX];
    char client[IDENTITY_BYTES_MAX]; /* who asked last */
    size_t client_len;
};

/* What the source told. */
struct world {
    struct engine engine;
    struct kv_event_source *source;
    struct {
        double at_s; /* the engine below writes the sequence there, or what it is told to */
        struct kv_event_notice notice;
    } batches[BATCH_COUNT_MAX];
    size_t batch_count;
    struct {
        enum kv_event_contact contact;
        size_t batch_count; /* that came before */
    } contacts[CONTACT_COUNT_MAX];
    size_t contact_count;
    size_t awaited_count;
    bool is_closed;
};

/* endpoint: where, or "" for any free place; becomes where it is. */
static void *bind_socket(void *zmq, int type, char *endpoint)
{
    void *socket = zmq_socket(zmq, type);
    const char *wanted = endpoint[0] != '\0' ? endpoint : "tcp://127.0.0.1:*";
    size_t len = ENDPOINT_BYTES_MAX;
    const int wait_ms = WAIT_MS, linger_ms = 0;

    cr_assert(socket != NULL);
    cr_assert(zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms) == 0);
    cr_assert(zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms) == 0);
    cr_assert(zmq_bind(socket, wanted) == 0);
    cr_assert(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &len) == 0);
    return socket;
}

/* A process of the engine begins; another one at the same addresses, once it was open. */
static void engine_open(struct engine *engine)
{
    engine->zmq = zmq_ctx_new();
    engine->publisher = bind_socket(engine->zmq, ZMQ_XPUB, engine->endpoint);
    engine->replayer = bind_socket(engine->zmq, ZMQ_ROUTER, engine->replay_endpoint);
}

static void engine_close(struct engine *engine)
{
    zmq_close(engine->publisher);
    zmq_close(engine->replayer);
    zmq_ctx_term(engine->zmq);
}

static void engine_await_subscriber(struct engine *engine)
{
    char message[64];

    cr_assert(eq(int, zmq_recv(engine->publisher, message, sizeof message, 0), 3));
    cr_assert(memcmp(message, "\1kv", 3) == 0);
}

static void send_frame(void *socket, const void *bytes, size_t len, bool has_more)
{
    cr_assert(zmq_send(socket, bytes, len, has_more ? ZMQ_SNDMORE : 0) == (int)len);
}

/* [at_s, []] */
static void write_payload(char *payload, double at_s)
{
    uint64_t bits;

    memcpy(&bits, &at_s, sizeof bits);
    payload[0] = '\x92';
    payload[1] = '\xcb';
    for (size_t i = 0; i < 8; i++)
        payload[2 + i] = (char)(bits >> (56 - 8 * i));
    payload[10] = '\x90';
}

static void send_batch(void *socket, uint64_t sequence, double at_s)
{
    uint8_t frame[KV_EVENT_SEQUENCE_BYTES];
    char payload[PAYLOAD_LEN];

    kv_event_request_write(sequence, frame);
    write_payload(payload, at_s);
    send_frame(socket, frame, sizeof frame, true);
    send_frame(socket, payload, sizeof payload, false);
}

static void engine_publish(struct engine *engine, uint64_t sequence, double at_s)
{
    send_frame(engine->publisher, "kv@", 3, true);
    send_batch(engine->publisher, sequence, at_s);
}

/* Waits for a request to replay. Returns from where. */
static uint64_t engine_await_request(struct engine *engine)
{
    uint8_t frame[16];
    uint64_t from = 0;
    int len = zmq_recv(engine->replayer, engine->client, sizeof engine->client, 0);

    cr_assert(len > 0, "nobody asked for a replay");
    engine->client_len = (size_t)len;
    cr_assert(eq(int, zmq_recv(engine->replayer, frame, sizeof frame, 0), 0));
    cr_assert(eq(int, zmq_recv(engine->replayer, frame, sizeof frame, 0), 8));
    for (size_t i = 0; i < 8; i++)
        from = from << 8 | frame[i];
    return from;
}

static void engine_address(struct engine *engine, bool has_topic)
{
    send_frame(engine->replayer, engine->client, engine->client_len, true);
    send_frame(engine->replayer, "", 0, true);
    if (has_topic)
        send_frame(engine->replayer, "kv@", 3, true);
}

static void engine_reply(struct engine *engine, uint64_t sequence, bool has_topic)
{
    engine_address(engine, has_topic);
    send_batch(engine->replayer, sequence, (double)sequence);
}

static void engine_end_reply(struct engine *engine, bool has_topic)
{
    engine_address(engine, has_topic);
    send_frame(engine->replayer, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, true);
    send_frame(engine->replayer, "", 0, false);
}

static void on_batch(void *context, struct kv_event_notice notice, struct kv_event_batch *batch)
{
    struct world *world = context;

    cr_assert(world->batch_count < BATCH_COUNT_MAX);
    world->batches[world->batch_count].at_s = batch->at_s;
    world->batches[world->batch_count++].notice = notice;
}

static void on_contact(void *context, enum kv_event_contact contact)
{
    struct world *world = context;

    cr_assert(world->contact_count < CONTACT_COUNT_MAX);
    world->contacts[world->contact_count].contact = contact;
    world->contacts[world->contact_count++].batch_count = world->batch_count;
}

static const struct kv_event_source_callbacks callbacks = {on_batch, on_contact};

static void on_closed(void *context)
{
    struct world *world = context;

    world->is_closed = true;
}

/* A source that listens to the engine; with a replay, it has asked for all from 0 on. */
static void world_open(struct world *world, bool has_replay, struct kv_event_source_config config)
{
    *world = (struct world){0};
    engine_open(&world->engine);
    config.endpoint = world->engine.endpoint;
    config.replay_endpoint = has_replay ? world->engine.replay_endpoint : NULL;
    config.topic = "kv";
    cr_assert(eq(
        int, kv_event_source_create(loop_fixture_loop(), config, &callbacks, world, &world->source),
        0));
    engine_await_subscriber(&world->engine);
    if (has_replay)
        cr_assert(eq(u64, engine_await_request(&world->engine), 0));
}

static const struct kv_event_source_config patient = {
    .replay_idle_ms = WAIT_MS,
    .replay_cooldown_ms = 0,
    .queued_bytes_max = QUEUED_BYTES_MAX,
};

static void world_close(struct world *world)
{
    kv_event_source_close(&world->source, on_closed);
    cr_assert(loop_run_until_flag(&world->is_closed, WAIT_MS));
    cr_assert(world->source == NULL);
    engine_close(&world->engine);
}

static bool has_batches(void *context)
{
    struct world *world = context;

    return world->batch_count >= world->awaited_count;
}

/* Runs the loop until count batches have come in all; they are 0, 1, 2, ... */
static void await_batches(struct world *world, size_t count)
{
    world->awaited_count = count;
    cr_assert(loop_run_until(has_batches, world, WAIT_MS), "%zu batches", world->batch_count);
    cr_assert(eq(sz, world->batch_count, count));
}

static void check_rising(const struct world *world)
{
    for (size_t i = 0; i < world->batch_count; i++) {
        cr_assert(eq(dbl, world->batches[i].at_s, (double)i));
        cr_assert(not(world->batches[i].notice.is_restarted));
        cr_assert(eq(u64, world->batches[i].notice.lost_count, 0));
    }
}

/* Waits until the source has taken all that was published: the last of it is one frame, which is no
 * message and is counted. */
static void await_taken(struct world *world)
{
    const uint64_t refused_count = kv_event_source_stats(world->source).refused_count;

    send_frame(world->engine.publisher, "kv@", 3, false);
    for (int ms = 0; kv_event_source_stats(world->source).refused_count == refused_count; ms++) {
        cr_assert(ms < WAIT_MS);
        poll(NULL, 0, 1);
    }
}

TestSuite(kv_event_source, .init = loop_fixture_init, .fini = loop_fixture_fini, .timeout = 60);

Test(kv_event_source, what_was_before_is_replayed_and_what_is_published_meanwhile_follows)
{
    for (int has_topic = 0; has_topic <= 1; has_topic++) {
        struct world world;
        world_open(&world, true, patient);

        engine_publish(&world.engine, 2, 2);
        engine_publish(&world.engine, 3, 3);
        await_taken(&world);
        for (uint64_t i = 0; i < 3; i++)
            engine_reply(&world.engine, i, has_topic);
        engine_end_reply(&world.engine, has_topic);
        engine_publish(&world.engine, 4, 4);
        await_batches(&world, 5);

        check_rising(&world);
        world_close(&world);
    }
}

Test(kv_event_source, a_hole_is_asked_for_and_filled)
{
    struct world world;
    world_open(&world, true, patient);
    engine_reply(&world.engine, 0, true);
    engine_end_reply(&world.engine, true);
    await_batches(&world, 1);

    engine_publish(&world.engine, 3, 3);
    cr_assert(eq(u64, engine_await_request(&world.engine), 1));
    for (uint64_t i = 1; i <= 3; i++)
        engine_reply(&world.engine, i, true);
    engine_end_reply(&world.engine, true);
    engine_publish(&world.engine, 4, 4);
    await_batches(&world, 5);

    check_rising(&world);
    cr_assert(eq(u64, kv_event_source_stats(world.source).replay_count, 2));
    cr_assert(eq(u64, kv_event_source_stats(world.source).lost_count, 0));
    world_close(&world);
}

Test(kv_event_source, a_hole_behind_a_replay_begins_the_next_and_keeps_the_order)
{
    struct world world;
    world_open(&world, true, patient);

    for (uint64_t i = 5; i <= 9; i += i == 5 ? 2 : 1) /* not 6 */
        engine_publish(&world.engine, i, (double)i);
    await_taken(&world);
    for (uint64_t i = 0; i <= 5; i++)
        engine_reply(&world.engine, i, true);
    engine_end_reply(&world.engine, true);
    cr_assert(eq(u64, engine_await_request(&world.engine), 6));
    engine_reply(&world.engine, 6, true);
    engine_end_reply(&world.engine, true);
    await_batches(&world, 10);

    check_rising(&world);
    world_close(&world);
}

Test(kv_event_source, a_replay_that_falls_silent_is_given_up_and_the_loss_is_said)
{
    struct kv_event_source_config hasty = patient;
    struct world world;
    hasty.replay_idle_ms = 20;
    world_open(&world, true, hasty);

    engine_publish(&world.engine, 7, 7);
    await_batches(&world, 1);

    cr_assert(eq(dbl, world.batches[0].at_s, 7));
    cr_assert(eq(u64, world.batches[0].notice.lost_count, 7));
    cr_assert(eq(u64, kv_event_source_stats(world.source).given_up_count, 1));
    world_close(&world);
}

Test(kv_event_source, a_reply_to_a_replay_given_up_reaches_nobody)
{
    struct kv_event_source_config hasty = patient;
    struct world world;
    hasty.replay_idle_ms = 20;
    world_open(&world, true, hasty);
    engine_publish(&world.engine, 1, 1);
    await_batches(&world, 1);

    engine_reply(&world.engine, 0, true);
    engine_end_reply(&world.engine, true);
    engine_publish(&world.engine, 2, 2);
    await_batches(&world, 2);

    cr_assert(eq(dbl, world.batches[1].at_s, 2));
    world_close(&world);
}

Test(kv_event_source, a_replay_that_repeats_itself_is_given_up)
{
    struct kv_event_source_config hasty = patient;
    struct world world;
    hasty.replay_idle_ms = 50;
    world_open(&world, true, hasty);
    engine_reply(&world.engine, 0, true);
    engine_publish(&world.engine, 7, 7);

    for (int ms = 0; world.batch_count < 2; ms++) {
        cr_assert(ms < WAIT_MS);
        engine_reply(&world.engine, 0, true);
        poll(NULL, 0, 1);
        uv_run(loop_fixture_loop(), UV_RUN_NOWAIT);
    }

    cr_assert(eq(dbl, world.batches[1].at_s, 7));
    cr_assert(eq(u64, world.batches[1].notice.lost_count, 6));
    world_close(&world);
}

Test(kv_event_source, a_replay_that_begins_too_late_says_what_is_lost)
{
    struct world world;
    world_open(&world, true, patient);

    engine_reply(&world.engine, 4, true);
    engine_reply(&world.engine, 5, true);
    engine_end_reply(&world.engine, true);
    await_batches(&world, 2);

    cr_assert(eq(u64, world.batches[0].notice.lost_count, 4));
    cr_assert(eq(u64, world.batches[1].notice.lost_count, 0));
    world_close(&world);
}

Test(kv_event_source, without_a_replay_a_hole_is_said_with_the_batch_after_it)
{
    struct world world;
    world_open(&world, false, patient);

    engine_publish(&world.engine, 0, 0);
    engine_publish(&world.engine, 5, 5);
    await_batches(&world, 2);

    cr_assert(eq(u64, world.batches[0].notice.lost_count, 0));
    cr_assert(eq(u64, world.batches[1].notice.lost_count, 4));
    world_close(&world);
}

Test(kv_event_source, a_recorded_restart_is_said_with_the_first_batch_after_it)
{
    static struct kv_recording recording;
    struct kv_frames message;
    struct world world;
    world_open(&world, false, patient);
    kv_recording_open(&recording, "13-server-restart.frames");

    while (kv_recording_next(&recording, &message))
        for (size_t i = 0; i < message.count; i++)
            send_frame(world.engine.publisher, message.frames[i].ptr, message.frames[i].len,
                       i + 1 < message.count);
    await_batches(&world, 3);

    for (size_t i = 0; i < 3; i++) {
        cr_assert(eq(int, world.batches[i].notice.is_restarted, i == 2));
        cr_assert(eq(u64, world.batches[i].notice.lost_count, 0));
    }
    world_close(&world);
}

Test(kv_event_source, what_is_no_message_is_counted_and_a_broken_batch_is_lost)
{
    struct world world;
    world_open(&world, false, patient);

    send_frame(world.engine.publisher, "kv@", 3, true);
    send_batch(world.engine.publisher, 0, 0);
    send_frame(world.engine.publisher, "kv@", 3, true);
    send_frame(world.engine.publisher, "\0", 1, false); /* two frames */
    for (int i = 0; i < 9; i++)                         /* nine */
        send_frame(world.engine.publisher, "kv@", 3, i < 8);
    send_frame(world.engine.publisher, "kv@", 3, true);
    send_frame(world.engine.publisher, "\0\0\0\0\0\0\0\1", 8, true);
    send_frame(world.engine.publisher, "\x92", 1, false); /* message 1, cut */
    engine_publish(&world.engine, 2, 2);
    await_batches(&world, 2);

    cr_assert(eq(dbl, world.batches[1].at_s, 2));
    cr_assert(eq(u64, world.batches[1].notice.lost_count, 1));
    cr_assert(eq(u64, kv_event_source_stats(world.source).refused_count, 3));
    world_close(&world);
}

/* The thread alone, while the loop stands still: until it has taken count messages. */
static void await_arrivals(struct world *world, uint64_t message_count)
{
    struct kv_event_source_stats stats = kv_event_source_stats(world->source);

    for (int ms = 0; stats.batch_count + stats.overflow_count < message_count; ms++) {
        cr_assert(ms < WAIT_MS);
        poll(NULL, 0, 1);
        stats = kv_event_source_stats(world->source);
    }
}

Test(kv_event_source, a_loop_that_stands_still_costs_batches_and_not_memory)
{
    struct kv_event_source_config small = patient;
    struct world world;
    uint64_t overflow_count;
    small.queued_bytes_max = 4096;
    world_open(&world, false, small);

    for (uint64_t i = 0; i < 100; i++)
        engine_publish(&world.engine, i, (double)i);
    await_arrivals(&world, 100);
    overflow_count = kv_event_source_stats(world.source).overflow_count;
    cr_assert(gt(u64, overflow_count, 0));
    cr_assert(lt(u64, overflow_count, 100));
    await_batches(&world, (size_t)(100 - overflow_count));
    check_rising(&world);
    engine_publish(&world.engine, 100, 100);
    await_batches(&world, (size_t)(101 - overflow_count));

    cr_assert(eq(u64, world.batches[world.batch_count - 1].notice.lost_count, overflow_count));
    world_close(&world);
}

Test(kv_event_source, one_that_is_closed_in_the_midst_of_a_replay_leaves_nothing)
{
    struct world world;
    world_open(&world, true, patient);

    engine_publish(&world.engine, 9, 9);
    engine_reply(&world.engine, 0, true);
    await_batches(&world, 1);

    world_close(&world);
}

static bool has_contacts(void *context)
{
    struct world *world = context;

    return world->contact_count >= world->awaited_count;
}

static void await_contacts(struct world *world, size_t count)
{
    world->awaited_count = count;
    cr_assert(loop_run_until(has_contacts, world, WAIT_MS), "%zu contacts", world->contact_count);
    cr_assert(eq(sz, world->contact_count, count));
}

Test(kv_event_source, that_all_was_told_is_said_behind_it)
{
    struct world world;
    world_open(&world, true, patient);

    for (uint64_t i = 0; i < 2; i++)
        engine_reply(&world.engine, i, true);
    engine_end_reply(&world.engine, true);
    await_contacts(&world, 2);

    cr_assert(eq(int, world.contacts[0].contact, KV_EVENT_CONTACT_MADE));
    cr_assert(eq(int, world.contacts[1].contact, KV_EVENT_CONTACT_WHOLE));
    cr_assert(eq(sz, world.contacts[1].batch_count, 2));
    world_close(&world);
}

Test(kv_event_source, an_engine_that_dies_is_missed_at_once_and_its_successor_asked_from_the_start)
{
    struct world world;
    world_open(&world, true, patient);
    for (uint64_t i = 0; i < 2; i++)
        engine_reply(&world.engine, i, true);
    engine_end_reply(&world.engine, true);
    await_contacts(&world, 2);

    engine_publish(&world.engine, 2, 2);
    await_batches(&world, 3);
    cr_assert(eq(u64, kv_event_source_stats(world.source).sequence_end, 3));
    engine_close(&world.engine);
    await_contacts(&world, 3);
    cr_assert(eq(int, world.contacts[2].contact, KV_EVENT_CONTACT_LOST));
    cr_assert(eq(sz, world.contacts[2].batch_count, 3));
    cr_assert(eq(u64, kv_event_source_stats(world.source).sequence_end, 0));

    engine_open(&world.engine);
    engine_await_subscriber(&world.engine);
    cr_assert(eq(u64, engine_await_request(&world.engine), 0));
    engine_reply(&world.engine, 0, true);
    engine_end_reply(&world.engine, true);
    await_contacts(&world, 5);

    cr_assert(eq(int, world.contacts[3].contact, KV_EVENT_CONTACT_MADE));
    cr_assert(eq(int, world.contacts[4].contact, KV_EVENT_CONTACT_WHOLE));
    cr_assert(eq(sz, world.batch_count, 4));
    cr_assert(eq(u64, world.batches[3].notice.lost_count, 0));
    cr_assert(eq(u64, kv_event_source_stats(world.source).sequence_end, 1));
    world_close(&world);
}

Test(kv_event_source, what_was_held_for_an_engine_that_died_reaches_nobody)
{
    struct world world;
    world_open(&world, true, patient);
    engine_publish(&world.engine, 7, 7);
    await_taken(&world);

    engine_close(&world.engine);
    await_contacts(&world, 2);
    engine_open(&world.engine);
    engine_await_subscriber(&world.engine);
    cr_assert(eq(u64, engine_await_request(&world.engine), 0));
    engine_end_reply(&world.engine, true);
    await_contacts(&world, 4);

    cr_assert(eq(int, world.contacts[3].contact, KV_EVENT_CONTACT_WHOLE));
    cr_assert(eq(sz, world.batch_count, 0));
    world_close(&world);
}

Test(kv_event_source, behind_a_replay_given_up_all_is_asked_for_once_more)
{
    struct kv_event_source_config hasty = patient;
    struct world world;
    hasty.replay_idle_ms = 500;
    hasty.renew_ms = 60;
    world_open(&world, true, hasty);
    engine_publish(&world.engine, 1, 1);
    await_batches(&world, 1);
    cr_assert(eq(u64, world.batches[0].notice.lost_count, 1));

    cr_assert(eq(u64, engine_await_request(&world.engine), 0));
    for (uint64_t i = 0; i <= 1; i++)
        engine_reply(&world.engine, i, true);
    engine_end_reply(&world.engine, true);
    await_contacts(&world, 4);

    cr_assert(eq(int, world.contacts[1].contact, KV_EVENT_CONTACT_LOST));
    cr_assert(eq(int, world.contacts[2].contact, KV_EVENT_CONTACT_MADE));
    cr_assert(eq(int, world.contacts[3].contact, KV_EVENT_CONTACT_WHOLE));
    cr_assert(eq(sz, world.batch_count, 3));
    cr_assert(eq(u64, world.batches[1].notice.lost_count, 0));
    world_close(&world);
}

Test(kv_event_source, without_a_replay_too_the_death_of_an_engine_is_said)
{
    struct world world;
    world_open(&world, false, patient);
    engine_publish(&world.engine, 0, 0);
    await_batches(&world, 1);

    engine_close(&world.engine);
    await_contacts(&world, 2);
    engine_open(&world.engine);
    engine_await_subscriber(&world.engine);
    engine_publish(&world.engine, 0, 0);
    await_batches(&world, 2);

    cr_assert(eq(int, world.contacts[1].contact, KV_EVENT_CONTACT_LOST));
    cr_assert(not(world.batches[1].notice.is_restarted), "that was said already");
    world_close(&world);
}

Test(kv_event_source, a_hole_within_the_cool_down_is_filled_behind_it)
{
    struct kv_event_source_config cool = patient;
    struct world world;
    cool.replay_cooldown_ms = 50;
    world_open(&world, true, cool);
    engine_reply(&world.engine, 0, true);
    engine_end_reply(&world.engine, true);
    await_batches(&world, 1);

    engine_publish(&world.engine, 2, 2);
    cr_assert(eq(u64, engine_await_request(&world.engine), 1));
    engine_reply(&world.engine, 1, true);
    engine_end_reply(&world.engine, true);
    await_batches(&world, 3);

    check_rising(&world);
    world_close(&world);
}

Test(kv_event_source, what_is_no_endpoint_is_refused)
{
    struct kv_event_source_config config = patient;
    struct kv_event_source *source;
    config.topic = "";

    config.endpoint = "no endpoint";
    cr_assert(eq(int,
                 kv_event_source_create(loop_fixture_loop(), config, &callbacks, NULL, &source),
                 -EINVAL));
    config.endpoint = "tcp://127.0.0.1:1";
    config.replay_endpoint = "neither";
    cr_assert(eq(int,
                 kv_event_source_create(loop_fixture_loop(), config, &callbacks, NULL, &source),
                 -EINVAL));
    cr_assert(source == NULL);
}
