/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/kv_event_codec.h"

#include "tests/support/kv_recording.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

enum { TEXT_BYTES_MAX = 16 << 10 };

/* SLICE() as an initialiser of static data. */
#define SLICE_OF(literal)                                                                          \
    {                                                                                              \
        literal, sizeof(literal) - 1                                                               \
    }

/* Opens a payload that must be right. */
static struct kv_event_batch open_batch(struct slice payload)
{
    struct kv_event_batch batch;

    cr_assert(eq(int, kv_event_batch_open(&batch, payload), 0));
    return batch;
}

/* Reads its only event. */
static struct kv_event only_event(struct slice payload)
{
    struct kv_event_batch batch = open_batch(payload);
    struct kv_event event, other;

    cr_assert(kv_event_next(&batch, &event));
    cr_assert(not(kv_event_next(&batch, &other)));
    return event;
}

/* Reads a batch that has no event for us, and says why. */
static struct kv_event_skipped skipped_of(struct slice payload)
{
    struct kv_event_batch batch = open_batch(payload);
    struct kv_event event;

    cr_assert(not(kv_event_next(&batch, &event)));
    return batch.skipped;
}

static void check_hashes(struct kv_event_list hashes, const uint64_t *expected, size_t count)
{
    uint64_t hash;

    cr_assert(eq(sz, hashes.count, count));
    for (size_t i = 0; i < count; i++) {
        cr_assert(kv_event_next_hash(&hashes, &hash));
        cr_assert(eq(u64, hash, expected[i]));
    }
    cr_assert(not(kv_event_next_hash(&hashes, &hash)));
}

/* An event as its recording's .jsonl has it, from its type on, as far as the codec reads it. */
struct text {
    char bytes[TEXT_BYTES_MAX];
    size_t len;
};

static void __attribute__((format(printf, 2, 3))) say(struct text *text, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    int len = vsnprintf(text->bytes + text->len, sizeof text->bytes - text->len, format, arguments);
    va_end(arguments);
    cr_assert(len >= 0 && (size_t)len < sizeof text->bytes - text->len);
    text->len += (size_t)len;
}

static void say_hashes(struct text *text, struct kv_event_list hashes)
{
    const char *comma = "";
    uint64_t hash;

    say(text, "\"block_hashes\": [");
    for (; kv_event_next_hash(&hashes, &hash); comma = ", ")
        say(text, "%s%llu", comma, (unsigned long long)hash);
    say(text, "]");
}

static void say_tokens(struct text *text, struct kv_event_list token_ids)
{
    const char *comma = "";
    uint32_t token;

    say(text, "\"token_ids\": [");
    for (; kv_event_take_tokens(&token_ids, &token, 1) == 1; comma = ", ")
        say(text, "%s%u", comma, token);
    say(text, "]");
}

static void say_event(struct text *text, const struct kv_event *event)
{
    static const char *names[] = {
        [KV_EVENT_STORED] = "BlockStored",
        [KV_EVENT_REMOVED] = "BlockRemoved",
        [KV_EVENT_CLEARED] = "AllBlocksCleared",
    };

    text->len = 0;
    say(text, "{\"type\": \"%s\"", names[event->type]);
    if (event->type == KV_EVENT_CLEARED)
        return;
    say(text, ", ");
    say_hashes(text, event->hashes);
    if (event->type == KV_EVENT_STORED) {
        say(text, ", \"parent_block_hash\": ");
        if (event->has_parent)
            say(text, "%llu, ", (unsigned long long)event->parent);
        else
            say(text, "null, ");
        say_tokens(text, event->token_ids);
        say(text, ", \"block_size\": %u, \"lora_id\": null", event->block_size);
    }
    say(text, ", \"medium\": \"%.*s\"", (int)event->medium.len, event->medium.ptr);
}

/* The events of a line must be those of the message, each found after the one before it. */
static size_t compare_line(struct slice line, struct slice payload)
{
    struct kv_event_batch batch = open_batch(payload);
    static struct text text;
    struct kv_event event;
    size_t count = 0;

    for (; kv_event_next(&batch, &event); count++) {
        const char *found;

        say_event(&text, &event);
        found = memmem(line.ptr, line.len, text.bytes, text.len);
        cr_assert(found != NULL, "%.200s", text.bytes);
        line = slice_skip(line, (size_t)(found - line.ptr) + text.len);
    }
    cr_assert(memmem(line.ptr, line.len, "\"type\"", 6) == NULL, "an event was not read");
    cr_assert(eq(int, batch.skipped.unknown_event_count, 0));
    cr_assert(eq(int, batch.skipped.malformed_event_count, 0));
    cr_assert(eq(int, batch.skipped.unknown_field_count, 0));
    cr_assert(eq(i64, batch.rank, 0));
    cr_assert(batch.at_s > 1795965000 && batch.at_s < 1795967000);
    return count;
}

static struct slice take_line(struct slice *lines)
{
    const char *end = memchr(lines->ptr, '\n', lines->len);
    struct slice line;

    cr_assert(end != NULL);
    line = slice_of(lines->ptr, (size_t)(end - lines->ptr));
    *lines = slice_skip(*lines, line.len + 1);
    return line;
}

static const struct {
    const char *name;
    size_t message_count;
    size_t event_count;
} streams[] = {
    {"01-first-request", 1, 1},
    {"03-second-turn", 1, 1},
    {"04-eviction", 3, 38},
    {"05-after-eviction", 1, 8},
    {"07-cache-salt", 1, 2},
    {"08-salt-again-other-none", 2, 2},
    {"09-blocks-filled-while-decoding", 4, 4},
    {"10-two-requests-at-once", 4, 4},
    {"11-all-http-samples", 6, 6},
    {"12-aborted-requests", 4, 4},
    {"13-server-restart", 3, 3},
    {"14-pythonhashseed-7", 1, 1},
    {"16-sha256-cbor-int", 1, 1},
};

static void open_named(struct kv_recording *recording, const char *name, const char *ending)
{
    char file[64];

    snprintf(file, sizeof file, "%s.%s", name, ending);
    kv_recording_open(recording, file);
}

/* The payload of the only message of a recording. */
static struct slice only_payload(struct kv_recording *recording, const char *name)
{
    struct kv_event_message message;
    struct kv_frames frames;

    open_named(recording, name, "frames");
    cr_assert(kv_recording_next(recording, &frames));
    cr_assert(eq(int, kv_event_message_read(frames.frames, frames.count, &message), 0));
    return message.payload;
}

TestSuite(kv_event_codec, .fini = leak_check);

Test(kv_event_codec, what_a_real_vllm_published_is_read_as_its_own_decoder_read_it)
{
    static struct kv_recording recording, lines;

    for (size_t i = 0; i < array_count(streams); i++) {
        size_t message_count = 0, event_count = 0;
        struct kv_event_message message;
        struct kv_frames frames;
        char sequence[48];
        open_named(&recording, streams[i].name, "frames");
        open_named(&lines, streams[i].name, "jsonl");

        for (; kv_recording_next(&recording, &frames); message_count++) {
            struct slice line = take_line(&lines.rest);

            cr_assert(eq(int, kv_event_message_read(frames.frames, frames.count, &message), 0));
            cr_assert(slice_eq(message.topic, SLICE("kv@w1@tiny")));
            snprintf(sequence, sizeof sequence, "\"seq\": %llu, ",
                     (unsigned long long)message.sequence);
            cr_assert(memmem(line.ptr, line.len, sequence, strlen(sequence)) != NULL);
            event_count += compare_line(line, message.payload);
        }

        cr_assert(eq(sz, lines.rest.len, 0));
        cr_assert(eq(sz, message_count, streams[i].message_count), "%s", streams[i].name);
        cr_assert(eq(sz, event_count, streams[i].event_count), "%s", streams[i].name);
    }
}

Test(kv_event_codec, a_recorded_event_has_what_its_map_leaves_out)
{
    static struct kv_recording recording;
    struct kv_event event = only_event(only_payload(&recording, "01-first-request"));

    cr_assert(eq(int, event.type, KV_EVENT_STORED));
    cr_assert(eq(sz, event.token_ids.count, 7 * event.block_size));
    cr_assert(slice_eq_nocase(event.medium, SLICE("gpu")));
    cr_assert(slice_eq(event.spec_kind, SLICE("full_attention")));
    cr_assert(eq(i64, event.group, 0));
    cr_assert(eq(i64, event.lora_id, -1));
    cr_assert(eq(i64, event.sliding_window, -1));
    cr_assert(eq(sz, event.lora_name.len, 0));
}

Test(kv_event_codec, a_block_has_one_alias_as_an_integer_and_as_bytes)
{
    static struct kv_recording as_integers, as_bytes;
    struct kv_event left = only_event(only_payload(&as_integers, "01-first-request"));
    struct kv_event right = only_event(only_payload(&as_bytes, "15-sha256-bytes-hashes"));
    uint64_t a, b;

    cr_assert(eq(sz, right.hashes.count, 7));
    while (kv_event_next_hash(&left.hashes, &a)) {
        cr_assert(kv_event_next_hash(&right.hashes, &b));
        cr_assert(eq(u64, a, b));
    }
    cr_assert(eq(sz, right.hashes.count, 0));
}

Test(kv_event_codec, a_salt_is_an_extra_key_of_the_first_block_alone)
{
    static struct kv_recording recording;
    struct kv_event_batch batch = open_batch(only_payload(&recording, "07-cache-salt"));
    struct kv_event event;
    struct slice encoded;
    cr_assert(kv_event_next(&batch, &event));
    cr_assert(eq(int, event.type, KV_EVENT_CLEARED));
    cr_assert(kv_event_next(&batch, &event));

    cr_assert(eq(sz, event.extra_keys.count, 7));
    cr_assert(kv_event_next_extra_keys(&event.extra_keys, &encoded));
    cr_assert(slice_eq(encoded, SLICE("\x91\xa8tenant-a")));
    while (kv_event_next_extra_keys(&event.extra_keys, &encoded))
        cr_assert(eq(sz, encoded.len, 0));
}

Test(kv_event_codec, a_payload_cut_anywhere_is_no_batch)
{
    static const char *names[] = {"05-after-eviction", "07-cache-salt", "15-sha256-bytes-hashes"};
    static struct kv_recording recording;

    for (size_t i = 0; i < array_count(names); i++) {
        struct slice payload = only_payload(&recording, names[i]);

        for (size_t len = 0; len < payload.len; len++) {
            char *cut = malloc(len > 0 ? len : 1); /* exact, for the address sanitizer */
            struct kv_event_batch batch;

            cr_assert(ne(ptr, cut, NULL));
            memcpy(cut, payload.ptr, len);
            cr_assert(eq(int, kv_event_batch_open(&batch, (struct slice){cut, len}), -EINVAL));
            free(cut);
        }
    }
}

Test(kv_event_codec, a_payload_with_any_byte_changed_is_survived)
{
    static struct kv_recording recording;
    struct slice payload = only_payload(&recording, "05-after-eviction");
    char *copy = malloc(payload.len);
    size_t opened_count = 0;
    cr_assert(ne(ptr, copy, NULL));
    memcpy(copy, payload.ptr, payload.len);

    for (size_t i = 0; i < payload.len; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            struct kv_event_batch batch;
            struct kv_event event;
            uint64_t hash;

            copy[i] = (char)(copy[i] ^ 1 << bit);
            if (kv_event_batch_open(&batch, (struct slice){copy, payload.len}) == 0) {
                opened_count++;
                while (kv_event_next(&batch, &event))
                    while (kv_event_next_hash(&event.hashes, &hash))
                        ;
            }
            copy[i] = payload.ptr[i];
        }

    cr_assert(gt(sz, opened_count, 0));
    free(copy);
}

/* The dialect of before June 2026. */
Test(kv_event_codec, an_event_may_be_an_array_without_its_last_fields)
{
    static const char payload[] = "\x92\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x91"
                                  "\x97\xab"
                                  "BlockStored"
                                  "\x92\xff\x07"     /* block_hashes */
                                  "\xc4\x02\x01\x02" /* parent_block_hash */
                                  "\x94\x01\x02\xcd\x01\x00\xce\xff\xff\xff\xff"
                                  "\x02\x05\xa3"
                                  "CPU";
    static const uint64_t hashes[] = {UINT64_MAX, 7};
    uint32_t tokens[8] = {0};
    struct kv_event_batch batch = open_batch(slice_of(payload, sizeof payload - 1));
    struct kv_event event;

    cr_assert(kv_event_next(&batch, &event));

    cr_assert(eq(dbl, batch.at_s, 1.5));
    cr_assert(eq(i64, batch.rank, -1));
    check_hashes(event.hashes, hashes, 2);
    cr_assert(event.has_parent);
    cr_assert(eq(u64, event.parent, 0x102));
    cr_assert(eq(int, event.block_size, 2));
    cr_assert(eq(i64, event.lora_id, 5));
    cr_assert(slice_eq_nocase(event.medium, SLICE("cpu")));
    cr_assert(eq(i64, event.group, -1));
    cr_assert(eq(sz, kv_event_take_tokens(&event.token_ids, tokens, 3), 3));
    cr_assert(eq(sz, kv_event_take_tokens(&event.token_ids, tokens + 3, 5), 1));
    cr_assert(eq(sz, kv_event_take_tokens(&event.token_ids, tokens + 4, 4), 0));
    cr_assert(eq(u32, tokens[2], 256));
    cr_assert(eq(u32, tokens[3], UINT32_MAX));
    cr_assert(eq(u32, tokens[4], 0));
}

Test(kv_event_codec, a_batch_may_be_a_map_in_any_order)
{
    struct kv_event_batch batch = open_batch(SLICE("\x84\xb2"
                                                   "data_parallel_rank\x03"
                                                   "\xa3new\x91\xc0\xa6"
                                                   "events\x91\x81\xa4type\xb0"
                                                   "AllBlocksCleared\xa2ts\x09"));
    struct kv_event event;

    cr_assert(kv_event_next(&batch, &event));

    cr_assert(eq(int, event.type, KV_EVENT_CLEARED));
    cr_assert(eq(i64, batch.rank, 3));
    cr_assert(eq(dbl, batch.at_s, 9));
    cr_assert(eq(int, batch.skipped.unknown_field_count, 1));
}

Test(kv_event_codec, a_placeholder_has_neither_tokens_nor_a_size)
{
    struct kv_event nils = only_event(SLICE("\x93\x00\x91\x9b\xab"
                                            "BlockStored\x91\x07\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0"
                                            "\xc0\xc0"));
    struct kv_event empty = only_event(SLICE("\x93\x00\x91\x97\xab"
                                             "BlockStored\x91\x07\x00\x90\x00\xc0\xa0\xc0"));

    cr_assert(not(nils.has_parent));
    cr_assert(eq(sz, nils.token_ids.count, 0));
    cr_assert(eq(int, nils.block_size, 0));
    cr_assert(slice_eq(nils.medium, SLICE("gpu")));
    cr_assert(empty.has_parent);
    cr_assert(eq(u64, empty.parent, 0));
    cr_assert(slice_eq(empty.medium, SLICE("gpu")));
}

Test(kv_event_codec, bytes_of_any_length_are_a_hash_by_their_last_eight)
{
    static const uint64_t hashes[] = {0xff, 0x0102030405060708, 0x0203040506070809, 1};
    struct kv_event event = only_event(SLICE("\x92\x00\x91\x92\xac"
                                             "BlockRemoved\x94\xc4\x01\xff"
                                             "\xc4\x08\x01\x02\x03\x04\x05\x06\x07\x08"
                                             "\xc5\x00\x09\x01\x02\x03\x04\x05\x06\x07\x08\x09"
                                             "\x01"));

    check_hashes(event.hashes, hashes, 4);
}

Test(kv_event_codec, what_is_unknown_is_passed_over_and_counted)
{
    struct kv_event_batch batch =
        open_batch(SLICE("\x95\x00\x93"
                         "\x92\xa3New\x01"                     /* an unknown event */
                         "\x83\xa3new\x81\x01\x02\xa4type\xac" /* an unknown field, of two */
                         "BlockRemoved\xac"
                         "block_hashes\x91\x05"
                         "\x98\xac"
                         "BlockRemoved\x91\x06\xc0\xc0\xc0\xc0\x01\x02" /* two fields too many */
                         "\xc0\x01\x02"));                              /* of the batch, two */
    static const uint64_t five[] = {5}, six[] = {6};
    struct kv_event first, second, third;

    cr_assert(kv_event_next(&batch, &first));
    cr_assert(kv_event_next(&batch, &second));
    cr_assert(not(kv_event_next(&batch, &third)));

    check_hashes(first.hashes, five, 1);
    check_hashes(second.hashes, six, 1);
    cr_assert(eq(int, batch.skipped.unknown_event_count, 1));
    cr_assert(eq(int, batch.skipped.unknown_field_count, 1 + 2 + 2));
    cr_assert(eq(int, batch.skipped.malformed_event_count, 0));
}

Test(kv_event_codec, an_event_that_is_not_as_it_should_be_is_passed_over_and_counted)
{
    static const struct slice events[] = {
        SLICE_OF("\xc0"),
        SLICE_OF("\x90"),
        SLICE_OF("\x91\x01"),
        SLICE_OF("\x80"),
        SLICE_OF("\x81\xa4type\x01"),
        SLICE_OF("\x91\xac"
                 "BlockRemoved"), /* no hashes */
        SLICE_OF("\x81\xa4type\xac"
                 "BlockRemoved"), /* the same, as a map */
        SLICE_OF("\x92\xac"
                 "BlockRemoved\x01"), /* not a list */
        SLICE_OF("\x92\xac"
                 "BlockRemoved\x91\xa1x"), /* a text is no hash */
        SLICE_OF("\x92\xac"
                 "BlockRemoved\x91\xc4\x00"), /* nor are no bytes */
        SLICE_OF("\x92\xac"
                 "BlockRemoved\x91\xc0"), /* nor is nil */
        SLICE_OF("\x93\xac"
                 "BlockRemoved\x90\x01"), /* medium is no text */
        SLICE_OF("\x94\xab"
                 "BlockStored\x90\xc0\x90"), /* no block size */
        SLICE_OF("\x95\xab"
                 "BlockStored\x90\xc0\x91\xff\x01"), /* a token below zero */
        SLICE_OF("\x95\xab"
                 "BlockStored\x90\xc0\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00\x01"),
        SLICE_OF("\x95\xab"
                 "BlockStored\x90\xc0\x90\xff"), /* a size below zero */
        SLICE_OF("\x95\xab"
                 "BlockStored\x90\xc0\x90\xcf\x00\x00\x00\x01\x00\x00\x00\x00"),
    };

    for (size_t i = 0; i < array_count(events); i++) {
        char payload[128] = "\x92\x00\x91";
        memcpy(payload + 3, events[i].ptr, events[i].len);

        struct kv_event_skipped skipped = skipped_of(slice_of(payload, 3 + events[i].len));

        cr_assert(eq(int, skipped.malformed_event_count, 1), "event %zu", i);
        cr_assert(eq(int, skipped.unknown_event_count, 0), "event %zu", i);
    }
}

Test(kv_event_codec, what_is_no_batch_is_an_error)
{
    static const struct slice payloads[] = {
        SLICE_OF(""),
        SLICE_OF("\xc0"),
        SLICE_OF("\x90"),
        SLICE_OF("\x91\x00"),
        SLICE_OF("\x92\x00\x01"),                     /* events are no list */
        SLICE_OF("\x92\xa1x\x90"),                    /* the time is none */
        SLICE_OF("\x93\x00\x90\xff"),                 /* the rank is none */
        SLICE_OF("\x80"),                             /* no events */
        SLICE_OF("\x92\x00\x90\x00"),                 /* something follows */
        SLICE_OF("\x92\x00\xdd\xff\xff\xff\xff\x01"), /* a lie */
        SLICE_OF("\x92\x00\x91\xc1"),
    };

    for (size_t i = 0; i < array_count(payloads); i++) {
        struct kv_event_batch batch;

        cr_assert(eq(int, kv_event_batch_open(&batch, payloads[i]), -EINVAL), "payload %zu", i);
    }
}

Test(kv_event_codec, a_payload_above_the_limit_is_refused_unread)
{
    struct kv_event_batch batch;

    int status = kv_event_batch_open(&batch, (struct slice){NULL, KV_EVENT_PAYLOAD_BYTES_MAX + 1});

    cr_assert(eq(int, status, -EMSGSIZE));
}

Test(kv_event_codec, a_message_is_three_frames_with_eight_bytes_of_sequence)
{
    struct slice frames[4] = {SLICE("topic"), SLICE("\0\0\0\0\0\0\1\2"), SLICE("\x90"), SLICE("")};
    struct kv_event_message message;

    cr_assert(eq(int, kv_event_message_read(frames, 3, &message), 0));
    cr_assert(eq(u64, message.sequence, 258));
    cr_assert(slice_eq(message.topic, SLICE("topic")));
    cr_assert(slice_eq(message.payload, SLICE("\x90")));
    for (size_t count = 0; count <= 4; count++)
        if (count != 3)
            cr_assert(eq(int, kv_event_message_read(frames, count, &message), -EPROTO));
    frames[1].len = 7;
    cr_assert(eq(int, kv_event_message_read(frames, 3, &message), -EPROTO));
}

/* How many batches a recorded answer has, which must end as answers do; the first one's sequence.
 */
static size_t read_answer(const char *name, uint64_t *first)
{
    static struct kv_recording recording;
    struct kv_event_message message;
    struct kv_frames frames;
    size_t count = 0;
    int status = 0;

    for (open_named(&recording, name, "frames"); kv_recording_next(&recording, &frames); count++) {
        cr_assert(eq(int, status, 0), "something follows the end");
        status = kv_event_reply_read(frames.frames, frames.count, &message);
        if (status == 1)
            break;
        cr_assert(eq(int, status, 0));
        *first = count == 0 ? message.sequence : *first;
        cr_assert(eq(u64, message.sequence, *first + count));
        (void)open_batch(message.payload);
    }
    cr_assert(eq(int, status, 1));
    cr_assert(eq(sz, recording.rest.len, 0));
    return count;
}

Test(kv_event_codec, recorded_replays_are_read_to_their_end)
{
    uint64_t first = 0;

    cr_assert(eq(sz, read_answer("replay-future.answer", &first), 0));
    cr_assert(eq(sz, read_answer("replay-last-two.answer", &first), 2));
    cr_assert(eq(u64, first, 26));
    cr_assert(eq(sz, read_answer("replay-older-than-buffer.answer", &first), 24));
    cr_assert(eq(u64, first, 4));
}

Test(kv_event_codec, a_request_is_written_as_it_was_recorded)
{
    static struct kv_recording recording;
    uint8_t frame[KV_EVENT_SEQUENCE_BYTES];
    struct kv_frames frames;
    open_named(&recording, "replay-last-two.request", "frames");
    cr_assert(kv_recording_next(&recording, &frames));

    kv_event_request_write(26, frame);

    cr_assert(eq(sz, frames.count, 2));
    cr_assert(eq(sz, frames.frames[0].len, 0));
    cr_assert(slice_eq(frames.frames[1], slice_of(frame, sizeof frame)));
}

Test(kv_event_codec, a_reply_may_lack_the_topic)
{
    struct slice frames[] = {SLICE(""), SLICE("\0\0\0\0\0\0\0\5"), SLICE("\x90")};
    struct slice end[] = {SLICE(""), SLICE("\xff\xff\xff\xff\xff\xff\xff\xff"), SLICE("")};
    struct kv_event_message message;

    cr_assert(eq(int, kv_event_reply_read(frames, 3, &message), 0));
    cr_assert(eq(u64, message.sequence, 5));
    cr_assert(eq(sz, message.topic.len, 0));
    cr_assert(eq(int, kv_event_reply_read(end, 3, &message), 1));
    cr_assert(eq(int, kv_event_reply_read(frames + 1, 2, &message), -EPROTO));
    frames[0] = SLICE("x");
    cr_assert(eq(int, kv_event_reply_read(frames, 3, &message), -EPROTO));
}
