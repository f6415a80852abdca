/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/kv_event_log.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <inttypes.h>

#include "backends/kvevents/kv_event_codec.h"
#include "backends/kvevents/msgpack_reader.h"
#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/scheduler.h"
#include "tests/support/kv_recording.h"
#include "tests/support/leak_check.h"

/*
 * A real vLLM was asked for this and that, and what it published was recorded. Here a scheduler and
 * a cache of the same sizes are asked for the same; each batch is told as text, field by field, in
 * its order, down to the encoding's types; and both texts must be equal. Only time and the hashes'
 * values differ: a hash is told as the how many-th one it is.
 */
enum {
    BLOCK_SIZE = 32,
    BLOCK_COUNT = 64,
    HASH_COUNT_MAX = 512,
    FIRST_PROMPT = 242,
    LONG_PROMPT = 900
};

/* The text of batches. */
struct told {
    struct buf text;
    char hashes[HASH_COUNT_MAX][32];
    size_t hash_count;
};

static void told_init(struct told *told)
{
    told->hash_count = 0;
    buf_init(&told->text, SIZE_MAX);
}

static void tell_hash(struct told *told, const struct msgpack_value *value)
{
    char hash[sizeof told->hashes[0]] = {0};
    size_t i = 0;

    if (value->type == MSGPACK_BINARY) {
        cr_assert(eq(sz, value->bytes.len, sizeof hash));
        memcpy(hash, value->bytes.ptr, value->bytes.len);
    } else {
        cr_assert(eq(int, value->type, MSGPACK_UNSIGNED));
        memcpy(hash, &value->number, sizeof value->number);
    }
    while (i < told->hash_count && memcmp(told->hashes[i], hash, sizeof hash) != 0)
        i++;
    cr_assert(lt(sz, i, (size_t)HASH_COUNT_MAX));
    memcpy(told->hashes[i], hash, sizeof hash);
    told->hash_count += i == told->hash_count;
    text_putf(&told->text, "%s%zu ", value->type == MSGPACK_BINARY ? "bytes" : "int", i);
}

static bool is_of_hashes(struct slice key)
{
    return slice_eq(key, SLICE("block_hashes")) || slice_eq(key, SLICE("parent_block_hash"));
}

/* The next value and all that is in it; key: of the pair it is in. */
static void tell(struct told *told, struct msgpack_reader *reader, struct slice key)
{
    struct msgpack_value value, name;

    cr_assert(eq(int, msgpack_reader_next(reader, &value), 0));
    switch (value.type) {
    case MSGPACK_NIL:
        text_put(&told->text, SLICE("nil "));
        return;
    case MSGPACK_FLOAT:
        text_put(&told->text, SLICE("float "));
        return;
    case MSGPACK_STRING:
        text_putf(&told->text, "\"%.*s\" ", (int)value.bytes.len, value.bytes.ptr);
        return;
    case MSGPACK_ARRAY:
        text_putf(&told->text, "%" PRIu64 "[ ", value.number);
        for (uint64_t i = 0; i < value.number; i++)
            tell(told, reader, key);
        text_put(&told->text, SLICE("] "));
        return;
    case MSGPACK_MAP:
        text_put(&told->text, SLICE("{ "));
        for (uint64_t i = 0; i < value.number; i++) {
            cr_assert(eq(int, msgpack_reader_next(reader, &name), 0));
            text_putf(&told->text, "%.*s: ", (int)name.bytes.len, name.bytes.ptr);
            tell(told, reader, name.bytes);
        }
        text_put(&told->text, SLICE("} "));
        return;
    default:
        if (is_of_hashes(key))
            tell_hash(told, &value);
        else
            text_putf(&told->text, "%" PRIu64 " ", value.number);
    }
}

static void tell_batch(struct told *told, uint64_t sequence, struct slice payload)
{
    struct msgpack_reader reader = {payload};

    text_putf(&told->text, "%" PRIu64 ": ", sequence);
    tell(told, &reader, SLICE(""));
    text_put(&told->text, SLICE("\n"));
    cr_assert(eq(sz, reader.rest.len, 0));
}

static void tell_recording(struct told *told, const char *name)
{
    static struct kv_recording recording;
    struct kv_frames frames;

    kv_recording_open(&recording, name);
    while (kv_recording_next(&recording, &frames)) {
        struct kv_event_message message;

        cr_assert(eq(int, kv_event_message_read(frames.frames, frames.count, &message), 0));
        tell_batch(told, message.sequence, message.payload);
    }
}

/* All ids that a recording's blocks hold, in their order. */
static struct token_list recorded_ids(const char *name)
{
    static struct kv_recording recording;
    struct token_list ids = {0};
    struct kv_frames frames;

    kv_recording_open(&recording, name);
    while (kv_recording_next(&recording, &frames)) {
        struct kv_event_message message;
        struct kv_event_batch batch;
        struct kv_event event;
        uint32_t token;

        cr_assert(eq(int, kv_event_message_read(frames.frames, frames.count, &message), 0));
        cr_assert(eq(int, kv_event_batch_open(&batch, message.payload), 0));
        while (kv_event_next(&batch, &event)) {
            while (event.type == KV_EVENT_STORED &&
                   kv_event_take_tokens(&event.token_ids, &token, 1) == 1)
                token_list_append(&ids, token);
        }
    }
    return ids;
}

/* An engine without its shell. */
struct world {
    struct prefix_cache *cache;
    struct kv_event_log *log;
    struct scheduler *scheduler;
    struct told told;
    uint64_t now_us;
};

static void on_token(void *ctx, struct sequence *sequence, bool is_last)
{
    (void)ctx;
    (void)sequence;
    (void)is_last;
}

static void on_step(void *ctx)
{
    struct world *world = ctx;
    struct kv_batch batch;

    if (kv_event_log_take(world->log, 1.5, &batch))
        tell_batch(&world->told, batch.sequence, batch.payload);
}

static void world_init(struct world *world, enum kv_dialect dialect, enum kv_hash_form hash_form)
{
    struct scheduler_config config = {
        .time = {.prefill_tokens_per_s = 1000, .speedup = 1},
        .running_count_max = 8,
        .on_step = on_step,
    };
    struct kv_event_log_config log_config = {dialect, hash_form, BLOCK_SIZE};

    *world = (struct world){.cache = prefix_cache_create(BLOCK_COUNT, BLOCK_SIZE)};
    world->log = kv_event_log_create(log_config, world->cache);
    world->scheduler = scheduler_create(config, world->cache, on_token, world);
    told_init(&world->told);
}

/* A request: ids, and filler for as many as they are too few. */
struct wish {
    struct token_list ids;
    size_t first; /* of ids */
    size_t prompt_count;
    size_t answer_count;
    const char *salt;
};

static void begin(struct world *world, struct sequence *sequence, const struct wish *wish)
{
    size_t count = wish->prompt_count + wish->answer_count;

    sequence_init(sequence, strlen(wish->salt));
    sequence->cache.root = *wish->salt != '\0' ? (uint64_t)wish->salt[strlen(wish->salt) - 1] : 0;
    sequence->cache.keys.salt = slice_of_string(wish->salt);
    for (size_t i = 0; i < count; i++)
        token_list_append(&sequence->tokens, wish->first + i < wish->ids.count
                                                 ? wish->ids.ids[wish->first + i]
                                                 : (uint32_t)i);
    sequence->prompt_count = wish->prompt_count;
    sequence->answer_count = wish->answer_count;
    scheduler_add(world->scheduler, sequence);
}

static void step(struct world *world)
{
    uint64_t next_us = scheduler_step(world->scheduler, world->now_us);

    world->now_us = next_us != 0 ? next_us : world->now_us;
}

static void run(struct world *world)
{
    while (scheduler_running_count(world->scheduler) + scheduler_waiting_count(world->scheduler) >
           0)
        step(world);
}

static void ask(struct world *world, struct wish wish)
{
    struct sequence sequence;

    begin(world, &sequence, &wish);
    run(world);
    sequence_release(&sequence);
}

/* As if that many batches had been published before. */
static void skip_sequences(struct world *world, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct kv_batch batch;

        cr_assert(prefix_cache_reset(world->cache));
        cr_assert(kv_event_log_take(world->log, 1.5, &batch));
    }
}

static void world_release(struct world *world)
{
    scheduler_destroy(world->scheduler);
    kv_event_log_destroy(world->log);
    prefix_cache_destroy(world->cache);
    buf_release(&world->told.text);
}

/* Line by line: an event that differs is found, and not a page of text. */
static void assert_same(const struct told *actual, const struct told *expected)
{
    struct slice a = buf_slice(&actual->text), b = buf_slice(&expected->text);

    while (a.len > 0 && b.len > 0) {
        const char *a_end = memchr(a.ptr, '\n', a.len), *b_end = memchr(b.ptr, '\n', b.len);
        struct slice a_line = slice_of(a.ptr, (size_t)(a_end - a.ptr));
        struct slice b_line = slice_of(b.ptr, (size_t)(b_end - b.ptr));

        cr_assert(slice_eq(a_line, b_line), "we publish\n%.*s\nbut vLLM did\n%.*s", (int)a_line.len,
                  a_line.ptr, (int)b_line.len, b_line.ptr);
        a = slice_skip(a, a_line.len + 1);
        b = slice_skip(b, b_line.len + 1);
    }
    cr_assert(eq(sz, a.len, b.len));
}

TestSuite(kv_event_log, .fini = leak_check);

Test(kv_event_log, a_conversation_eviction_reset_and_salts_are_told_as_vllm_told_them)
{
    static const char *const names[] = {
        "01-first-request.frames",  "03-second-turn.frames", "04-eviction.frames",
        "05-after-eviction.frames", "07-cache-salt.frames",  "08-salt-again-other-none.frames"};
    static struct world world;
    static struct told expected;
    struct token_list chat = recorded_ids(names[0]), later = recorded_ids(names[1]);
    struct token_list filler = recorded_ids(names[2]);
    told_init(&expected);
    for (size_t i = 0; i < array_count(names); i++)
        tell_recording(&expected, names[i]);
    token_list_append_all(&chat, later.ids, later.count);
    world_init(&world, KV_DIALECT_MAP, KV_HASH_INT);

    for (int i = 0; i < 2; i++) /* the second time it finds all and says nothing */
        ask(&world, (struct wish){chat, 0, FIRST_PROMPT, 8, ""});
    ask(&world, (struct wish){chat, 0, 419, 8, ""});
    for (size_t i = 0; i < 3; i++)
        ask(&world,
            (struct wish){filler, i * (LONG_PROMPT / BLOCK_SIZE * BLOCK_SIZE), LONG_PROMPT, 1, ""});
    ask(&world, (struct wish){chat, 0, FIRST_PROMPT, 8, ""});
    cr_assert(prefix_cache_reset(world.cache));
    ask(&world, (struct wish){chat, 0, FIRST_PROMPT, 8, "tenant-a"});
    ask(&world, (struct wish){chat, 0, FIRST_PROMPT, 8, "tenant-a"});
    ask(&world, (struct wish){chat, 0, FIRST_PROMPT, 8, "tenant-b"});
    ask(&world, (struct wish){chat, 0, FIRST_PROMPT, 8, ""});

    assert_same(&world.told, &expected);
    token_list_release(&chat);
    token_list_release(&later);
    token_list_release(&filler);
    buf_release(&expected.text);
    world_release(&world);
}

Test(kv_event_log, blocks_filled_by_an_answer_are_told_one_by_one_as_by_vllm)
{
    static struct world world;
    static struct told expected;
    struct token_list ids = recorded_ids("09-blocks-filled-while-decoding.frames");
    told_init(&expected);
    tell_recording(&expected, "09-blocks-filled-while-decoding.frames");
    world_init(&world, KV_DIALECT_MAP, KV_HASH_INT);
    skip_sequences(&world, 9);

    ask(&world, (struct wish){ids, 0, 40, 100, ""});

    assert_same(&world.told, &expected);
    token_list_release(&ids);
    buf_release(&expected.text);
    world_release(&world);
}

Test(kv_event_log, two_requests_at_once_are_told_step_by_step_as_by_vllm)
{
    static struct world world;
    static struct told expected;
    struct token_list ids = recorded_ids("10-two-requests-at-once.frames");
    struct token_list first = {0}, second = {0};
    struct sequence a, b;
    told_init(&expected);
    tell_recording(&expected, "10-two-requests-at-once.frames");
    /* Three blocks of the one, three of the other, then one each. */
    token_list_append_all(&first, ids.ids, 96);
    token_list_append_all(&first, ids.ids + 192, 32);
    token_list_append_all(&second, ids.ids + 96, 96);
    token_list_append_all(&second, ids.ids + 224, 32);
    world_init(&world, KV_DIALECT_MAP, KV_HASH_INT);
    skip_sequences(&world, 13);

    begin(&world, &a, &(struct wish){first, 0, 100, 40, ""});
    step(&world);
    begin(&world, &b, &(struct wish){second, 0, 100, 40, ""});
    run(&world);

    assert_same(&world.told, &expected);
    sequence_release(&a);
    sequence_release(&b);
    token_list_release(&ids);
    token_list_release(&first);
    token_list_release(&second);
    buf_release(&expected.text);
    world_release(&world);
}

Test(kv_event_log, hashes_as_bytes_are_told_as_by_vllm)
{
    static struct world world;
    static struct told expected;
    struct token_list ids = recorded_ids("15-sha256-bytes-hashes.frames");
    told_init(&expected);
    tell_recording(&expected, "15-sha256-bytes-hashes.frames");
    world_init(&world, KV_DIALECT_MAP, KV_HASH_BYTES);

    ask(&world, (struct wish){ids, 0, FIRST_PROMPT, 8, ""});

    assert_same(&world.told, &expected);
    token_list_release(&ids);
    buf_release(&expected.text);
    world_release(&world);
}

/* All that the codec gives of the events of one payload, as text. */
static void tell_read(struct buf *text, struct slice payload)
{
    struct kv_event_batch batch;
    struct kv_event event;

    cr_assert(eq(int, kv_event_batch_open(&batch, payload), 0));
    while (kv_event_next(&batch, &event)) {
        struct slice keys;
        uint64_t hash;

        text_putf(text,
                  "type %d medium %.*s group %" PRId64 " parent %d %" PRIx64 " size %" PRIu32
                  " tokens %zu lora %" PRId64 " %.*s kind %.*s",
                  (int)event.type, (int)event.medium.len, event.medium.ptr, event.group,
                  event.has_parent, event.parent, event.block_size, event.token_ids.count,
                  event.lora_id, (int)event.lora_name.len, event.lora_name.ptr,
                  (int)event.spec_kind.len, event.spec_kind.ptr);
        while (kv_event_next_hash(&event.hashes, &hash))
            text_putf(text, " %" PRIx64, hash);
        while (event.type == KV_EVENT_STORED && kv_event_next_extra_keys(&event.extra_keys, &keys))
            text_putf(text, " (%.*s)", (int)keys.len, keys.ptr);
        text_put(text, SLICE("\n"));
    }
    cr_assert(eq(u32, batch.skipped.unknown_event_count, 0));
    cr_assert(eq(u32, batch.skipped.malformed_event_count, 0));
    cr_assert(eq(u32, batch.skipped.unknown_field_count, 0));
}

/* What a LoRA's request with a salt, an eviction and a reset are read as. */
static void tell_read_form(struct buf *text, enum kv_dialect dialect, enum kv_hash_form hash_form)
{
    struct prefix_cache *cache = prefix_cache_create(4, 2);
    struct kv_event_log_config config = {dialect, hash_form, 2};
    struct kv_event_log *log = kv_event_log_create(config, cache);
    struct cache_sequence sequence;
    struct kv_batch batch;
    uint32_t tokens[6] = {1, 2, 3, 4, 5, 6};

    for (uint64_t root = 0; root < 2; root++) {
        cache_sequence_init(&sequence, root);
        sequence.keys = (struct cache_keys){SLICE("lora-a"), 7, SLICE("salt")};
        cr_assert(eq(int, prefix_cache_grow(cache, &sequence, tokens, 6, 0), 0));
        prefix_cache_free(cache, &sequence);
        cache_sequence_release(&sequence);
    }
    cr_assert(prefix_cache_reset(cache));
    cr_assert(kv_event_log_take(log, 1.5, &batch));
    tell_read(text, batch.payload);
    cr_assert(not(kv_event_log_take(log, 1.5, &batch)));
    cr_assert(eq(u64, kv_event_log_count(log), batch.sequence + 1));
    kv_event_log_destroy(log);
    prefix_cache_destroy(cache);
}

Test(kv_event_log, each_dialect_and_each_form_of_hashes_is_read_as_the_same)
{
    struct buf expected;
    buf_init(&expected, SIZE_MAX);

    tell_read_form(&expected, KV_DIALECT_MAP, KV_HASH_INT);

    cr_assert(memmem(expected.bytes, expected.end, "lora 7 lora-a", 13) != NULL);
    for (int i = 1; i < 4; i++) {
        struct buf text;
        buf_init(&text, SIZE_MAX);
        tell_read_form(&text, i & 1 ? KV_DIALECT_ARRAY : KV_DIALECT_MAP,
                       i & 2 ? KV_HASH_BYTES : KV_HASH_INT);
        cr_assert(slice_eq(buf_slice(&text), buf_slice(&expected)), "%.*s\n%.*s", (int)text.end,
                  text.bytes, (int)expected.end, expected.bytes);
        buf_release(&text);
    }
    buf_release(&expected);
}
