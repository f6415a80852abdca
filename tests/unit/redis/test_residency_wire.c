/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_wire.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdlib.h>

enum { BUF_BYTES_MAX = 1 << 20 };

static const char worker[] = "http://10.0.0.1:8000#1";

static const struct residency_note_block two_blocks[] = {{0x1111111111111111, 256},
                                                         {0x2222222222222222, 64}};

static struct residency_note anchor_note(void)
{
    return (struct residency_note){
        .kind = RESIDENCY_NOTE_ANCHOR,
        .attempt = 0xa,
        .has_anchor = true,
        .last_block = 0xb,
        .token_count = 1000,
        .tail_tokens = 7,
        .cached_tokens = 512,
    };
}

/* An entry with one note, which must be writable. */
static void write_entry(struct buf *out, const struct residency_note *note,
                        const struct residency_note_block *blocks, size_t block_count)
{
    buf_init(out, BUF_BYTES_MAX);
    cr_assert(eq(int, residency_notes_begin(out, 0xf, 0xe), 0));
    cr_assert(eq(int, residency_note_write(out, note, blocks, block_count), 0));
}

static void check_bytes(const struct buf *buf, const void *expected, size_t len)
{
    const struct slice bytes = buf_slice(buf);

    cr_assert(eq(sz, bytes.len, len));
    for (size_t i = 0; i < len; i++)
        cr_assert(eq(u8, (uint8_t)bytes.ptr[i], ((const uint8_t *)expected)[i]), "byte %zu", i);
}

TestSuite(residency_wire, .fini = leak_check);

/* ---- keys ---- */

Test(residency_wire, keys_are_what_the_header_says)
{
    const struct residency_life life = {0xabc, 7};
    char key[RESIDENCY_KEY_BYTES_MAX];

    cr_assert(eq(sz, residency_key_workers(key, 0xfe), strlen(key)));
    cr_assert(eq(str, key, "smv:00000000000000fe:workers"));
    cr_assert(eq(sz, residency_key(key, worker, RESIDENCY_KEY_META), strlen(key)));
    cr_assert(eq(str, key, "smv:{http://10.0.0.1:8000#1}:meta"));
    residency_key(key, worker, RESIDENCY_KEY_LEASE);
    cr_assert(eq(str, key, "smv:{http://10.0.0.1:8000#1}:lease"));
    residency_key(key, worker, RESIDENCY_KEY_IN);
    cr_assert(eq(str, key, "smv:{http://10.0.0.1:8000#1}:in"));
    residency_key_page(key, worker, life, 12);
    cr_assert(eq(str, key, "smv:{http://10.0.0.1:8000#1}:0000000000000abc-7:p:12"));
    residency_key_out(key, worker, life);
    cr_assert(eq(str, key, "smv:{http://10.0.0.1:8000#1}:0000000000000abc-7:out"));
}

Test(residency_wire, the_longest_name_has_room_in_every_key)
{
    const struct residency_life life = {UINT64_MAX, UINT32_MAX};
    char name[RESIDENCY_WORKER_NAME_BYTES_MAX + 1], key[RESIDENCY_KEY_BYTES_MAX];
    memset(name, 'w', sizeof name);
    name[RESIDENCY_WORKER_NAME_BYTES_MAX] = '\0';

    cr_assert(lt(sz, residency_key_page(key, name, life, UINT32_MAX), RESIDENCY_KEY_BYTES_MAX));
    cr_assert(lt(sz, residency_key_out(key, name, life), RESIDENCY_KEY_BYTES_MAX));
}

/* ---- records ---- */

Test(residency_wire, a_record_is_these_twelve_bytes)
{
    static const uint8_t expected[] = {0x88, 0x77, 0x66, 0x55, 0x44, 0x33,
                                       0x22, 0x11, 0xef, 0xcd, 0x1b, 0x05};
    uint8_t bytes[RESIDENCY_RECORD_BYTES];
    struct residency_record read;

    residency_record_write(bytes, (struct residency_record){0x1122334455667788, 0x1bcdef, 5});
    read = residency_record_read(bytes);

    cr_assert(eq(int, memcmp(bytes, expected, sizeof expected), 0));
    cr_assert(eq(u64, read.hash, 0x1122334455667788));
    cr_assert(eq(u32, read.tokens, 0x1bcdef));
    cr_assert(eq(u8, read.tiers, 5));
}

Test(residency_wire, bits_of_later_versions_in_a_record_are_ignored)
{
    uint8_t bytes[RESIDENCY_RECORD_BYTES];
    memset(bytes, 0xff, sizeof bytes);

    struct residency_record record = residency_record_read(bytes);

    cr_assert(eq(u32, record.tokens, RESIDENCY_TOKENS_MAX));
    cr_assert(eq(u8, record.tiers, 7));
}

Test(residency_wire, the_digest_of_a_record_depends_on_all_of_it)
{
    const struct residency_record record = {0x1122334455667788, 1000, 1};
    struct residency_record others[] = {record, record, record, record};
    others[0].hash++;
    others[1].tokens++;
    others[2].tiers = 3;
    others[3].hash--, others[3].tokens++;

    for (size_t i = 0; i < array_count(others); i++)
        cr_assert(ne(u64, residency_record_digest(others[i]), residency_record_digest(record)),
                  "%zu", i);
    cr_assert(eq(u64, residency_record_digest((struct residency_record){7, 5, 0}), 0),
              "what is not held adds nothing");
    cr_assert(eq(u64, residency_record_digest(record), 0xd2978846ebbcf5f1),
              "it is part of the version: other numbers are another version");
}

Test(residency_wire, swapped_tokens_do_not_cancel_out)
{
    const struct residency_record a = {1, 16, 1}, b = {2, 32, 1};
    const struct residency_record c = {1, 32, 1}, d = {2, 16, 1};

    cr_assert(ne(u64, residency_record_digest(a) + residency_record_digest(b),
                 residency_record_digest(c) + residency_record_digest(d)));
}

/* ---- changes ---- */

Test(residency_wire, a_change_is_these_bytes)
{
    static const uint8_t expected[] = {
        1,    'C',  0,    0,    1,    0,    0,    0,                 /* version, sort, records */
        3,    0,    0,    0,    0,    0,    0,    0,                 /* held after it */
        0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,              /* their digest */
        5,    0,    0,    0,    0,    0,    0,    0,    16, 0, 0, 1, /* the record */
    };
    uint8_t record[RESIDENCY_RECORD_BYTES];
    struct residency_change change = {3, 0x0123456789abcdef, slice_of(record, sizeof record)}, read;
    struct buf out;
    buf_init(&out, BUF_BYTES_MAX);
    residency_record_write(record, (struct residency_record){5, 16, 1});

    cr_assert(eq(int, residency_change_write(&out, &change), 0));

    check_bytes(&out, expected, sizeof expected);
    cr_assert(eq(int, residency_change_read(buf_slice(&out), &read), 0));
    cr_assert(eq(u64, read.count, 3));
    cr_assert(eq(u64, read.digest, 0x0123456789abcdef));
    cr_assert(slice_eq(read.records, change.records));
    buf_release(&out);
}

Test(residency_wire, a_change_of_nothing_and_one_of_the_most_are_read)
{
    static const size_t counts[] = {0, RESIDENCY_CHANGE_RECORD_COUNT_MAX};

    for (size_t i = 0; i < array_count(counts); i++) {
        char *records = calloc(RESIDENCY_CHANGE_RECORD_COUNT_MAX, RESIDENCY_RECORD_BYTES);
        struct residency_change change = {1, 2,
                                          slice_of(records, counts[i] * RESIDENCY_RECORD_BYTES)};
        struct residency_change read;
        struct buf out;
        buf_init(&out, BUF_BYTES_MAX);

        cr_assert(eq(int, residency_change_write(&out, &change), 0));
        cr_assert(eq(int, residency_change_read(buf_slice(&out), &read), 0));

        cr_assert(eq(sz, read.records.len, change.records.len));
        free(records);
        buf_release(&out);
    }
}

Test(residency_wire, what_is_no_change_is_refused)
{
    uint8_t records[2 * RESIDENCY_RECORD_BYTES] = {0};
    struct residency_change change = {1, 2, slice_of(records, sizeof records)}, read = {0};
    struct slice whole;
    struct buf out;
    buf_init(&out, BUF_BYTES_MAX);
    cr_assert(eq(int, residency_change_write(&out, &change), 0));
    whole = buf_slice(&out);

    for (size_t len = 0; len < whole.len; len++)
        cr_assert(eq(int, residency_change_read(slice_of(whole.ptr, len), &read), -EPROTO),
                  "%zu bytes", len);
    out.bytes[out.start] = 2;
    cr_assert(eq(int, residency_change_read(whole, &read), -EPROTO), "another version");
    out.bytes[out.start] = 1, out.bytes[out.start + 1] = 'N';
    cr_assert(eq(int, residency_change_read(whole, &read), -EPROTO), "another sort");
    out.bytes[out.start + 1] = 'C', out.bytes[out.start + 7] = 1;
    cr_assert(eq(int, residency_change_read(whole, &read), -EPROTO), "another count");
    cr_assert(eq(u64, read.count, 0), "nothing of it was used");
    buf_release(&out);
}

/* ---- lease ---- */

static struct residency_lease full_lease(void)
{
    return (struct residency_lease){
        .fingerprint = 0xfe,
        .life = {0xabc, 7},
        .after_epoch = 0xab,
        .sequence = 123,
        .page_count = 2,
        .interval_ms = 1000,
        .is_whole = true,
        .has_load = true,
        .running = 3,
        .waiting = 0,
        .cpu_queue_ms = 2,
        .ssd_queue_ms = 40,
    };
}

Test(residency_wire, a_lease_is_this_text)
{
    struct residency_lease lease = full_lease(), read;
    struct buf out;
    buf_init(&out, BUF_BYTES_MAX);

    cr_assert(eq(int, residency_lease_write(&out, &lease), 0));
    cr_assert(eq(int, residency_lease_read(buf_slice(&out), &read), 0));

    cr_assert(slice_eq(
        buf_slice(&out),
        SLICE("v=1 fp=00000000000000fe life=0000000000000abc-7 seq=123 pages=2 "
              "ms=1000 whole=1 after=00000000000000ab running=3 waiting=0 cpuq=2 ssdq=40")));
    cr_assert(eq(u64, read.fingerprint, 0xfe));
    cr_assert(eq(u64, read.life.epoch, 0xabc));
    cr_assert(eq(u32, read.life.generation, 7));
    cr_assert(eq(u64, read.after_epoch, 0xab));
    cr_assert(eq(u64, read.sequence, 123));
    cr_assert(eq(u32, read.page_count, 2));
    cr_assert(eq(u32, read.interval_ms, 1000));
    cr_assert(read.is_whole);
    cr_assert(read.has_load);
    cr_assert(eq(u32, read.running, 3));
    cr_assert(eq(u32, read.cpu_queue_ms, 2));
    cr_assert(eq(u32, read.ssd_queue_ms, 40));
    buf_release(&out);
}

Test(residency_wire, load_that_is_not_known_is_not_said)
{
    struct residency_lease lease = full_lease(), read;
    struct buf out;
    buf_init(&out, BUF_BYTES_MAX);
    lease.has_load = false;
    lease.is_whole = false;

    cr_assert(eq(int, residency_lease_write(&out, &lease), 0));
    cr_assert(eq(int, residency_lease_read(buf_slice(&out), &read), 0));

    cr_assert(eq(ptr, memmem(out.bytes, buf_len(&out), "running", 7), NULL));
    cr_assert(not(read.has_load));
    cr_assert(not(read.is_whole));
    buf_release(&out);
}

Test(residency_wire, a_life_of_which_none_before_is_known_names_none)
{
    struct residency_lease lease = full_lease(), read = {.after_epoch = 7};
    struct buf out;
    buf_init(&out, BUF_BYTES_MAX);
    lease.after_epoch = 0;

    cr_assert(eq(int, residency_lease_write(&out, &lease), 0));
    cr_assert(eq(int, residency_lease_read(buf_slice(&out), &read), 0));

    cr_assert(eq(ptr, memmem(out.bytes, buf_len(&out), "after", 5), NULL));
    cr_assert(eq(u64, read.after_epoch, 0));
    buf_release(&out);
}

Test(residency_wire, queues_of_tiers_that_are_empty_are_not_said)
{
    struct residency_lease lease = full_lease(), read = {.cpu_queue_ms = 7, .ssd_queue_ms = 7};
    struct buf out;
    buf_init(&out, BUF_BYTES_MAX);
    lease.cpu_queue_ms = 0;
    lease.ssd_queue_ms = 0;

    cr_assert(eq(int, residency_lease_write(&out, &lease), 0));
    cr_assert(eq(int, residency_lease_read(buf_slice(&out), &read), 0));

    cr_assert(eq(ptr, memmem(out.bytes, buf_len(&out), "cpuq", 4), NULL));
    cr_assert(eq(ptr, memmem(out.bytes, buf_len(&out), "ssdq", 4), NULL));
    cr_assert(eq(u32, read.cpu_queue_ms, 0), "as from an agent that does not know the word");
    cr_assert(eq(u32, read.ssd_queue_ms, 0));
    buf_release(&out);
}

#define LEASE_REST "fp=00000000000000fe life=0000000000000abc-7 seq=123 pages=2 ms=1000"

Test(residency_wire, a_lease_of_a_later_agent_is_read_by_what_is_known)
{
    struct residency_lease read;
    struct slice text = SLICE("v=1 colour=red " LEASE_REST " again x=");

    cr_assert(eq(int, residency_lease_read(text, &read), 0));

    cr_assert(eq(u64, read.sequence, 123));
}

Test(residency_wire, what_is_no_lease_is_refused)
{
    static const char *const rows[] = {
        "",
        "v=2 " LEASE_REST,
        "v= " LEASE_REST,
        LEASE_REST,
        "v=1 fp=fe life=0000000000000abc-7 seq=1 pages=2 ms=1000",
        "v=1 fp=00000000000000FE life=0000000000000abc-7 seq=1 pages=2 ms=1000",
        "v=1 fp=00000000000000fe life=0000000000000abc seq=1 pages=2 ms=1000",
        "v=1 fp=00000000000000fe life=0000000000000000-1 seq=1 pages=2 ms=1000",
        "v=1 fp=00000000000000fe life=0000000000000abc-x seq=1 pages=2 ms=1000",
        "v=1 fp=00000000000000fe life=0000000000000abc-4294967296 seq=1 pages=2 ms=1000",
        "v=1 fp=00000000000000fe life=0000000000000abc-1 seq=-1 pages=2 ms=1000",
        "v=1 fp=00000000000000fe life=0000000000000abc-1 seq=18446744073709551616 pages=2 ms=1",
        "v=1 fp=00000000000000fe life=0000000000000abc-1 seq=1 pages=2",
        "v=1 " LEASE_REST " whole=2",
        "v=1 " LEASE_REST " running=",
        "v=1  " LEASE_REST " waiting=3 running=x",
        "v=1 " LEASE_REST " cpuq=-1",
        "v=1 " LEASE_REST " ssdq=4294967296",
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct residency_lease read = {.sequence = 77};

        int status = residency_lease_read(slice_of_string(rows[i]), &read);

        cr_assert(eq(int, status, -EPROTO), "'%s' was taken", rows[i]);
        cr_assert(eq(u64, read.sequence, 77), "'%s': nothing of it is used", rows[i]);
    }
}

/* ---- meta ---- */

static struct residency_meta full_meta(void)
{
    return (struct residency_meta){
        .fingerprint = 0xfe,
        .url = "http://10.0.0.1:8000",
        .engine = "vllm",
        .node = "gpu-7",
        .version = "0.1.0",
        .epoch = 0xabc,
        .block_tokens = 16,
        .cache_tokens = 1u << 20,
        .has_anchors = true,
        .text_depth_max = 65536,
        .bytes_per_token = 131072,
        .cpu_bytes_per_s = 20000000000,
        .ssd_bytes_per_s = 3000000000,
        .cpu_start_us = 5200,
        .ssd_start_us = 6100,
        .prefill_tokens_per_s = 8000,
    };
}

Test(residency_wire, meta_is_these_fields_and_read_back_alike)
{
    static const char *const expected[RESIDENCY_META_FIELD_COUNT][2] = {
        {"fp", "00000000000000fe"},
        {"url", "http://10.0.0.1:8000"},
        {"engine", "vllm"},
        {"node", "gpu-7"},
        {"version", "0.1.0"},
        {"epoch", "0000000000000abc"},
        {"block_tokens", "16"},
        {"cache_tokens", "1048576"},
        {"has_anchors", "1"},
        {"text_depth_max", "65536"},
        {"bytes_per_token", "131072"},
        {"cpu_bytes_per_s", "20000000000"},
        {"ssd_bytes_per_s", "3000000000"},
        {"cpu_start_us", "5200"},
        {"ssd_start_us", "6100"},
        {"prefill_tokens_per_s", "8000"},
    };
    const struct residency_meta meta = full_meta();
    struct residency_meta read = {.fingerprint = 0};

    for (size_t i = 0; i < RESIDENCY_META_FIELD_COUNT; i++) {
        const char *field;
        struct buf value;
        buf_init(&value, BUF_BYTES_MAX);

        cr_assert(eq(int, residency_meta_write_field(&meta, i, &field, &value), 0));
        cr_assert(eq(str, (char *)(uintptr_t)field, (char *)(uintptr_t)expected[i][0]));
        cr_assert(slice_eq(buf_slice(&value), slice_of_string(expected[i][1])), "%s", field);
        cr_assert(eq(
            int, residency_meta_read_field(&read, slice_of_string(field), buf_slice(&value)), 0));
        buf_release(&value);
    }

    cr_assert(eq(int, residency_meta_check(&read), 0));
    cr_assert(eq(int, memcmp(&read, &meta, sizeof meta), 0));
}

Test(residency_wire, meta_values_that_make_no_sense_are_refused)
{
    static const char *const rows[][2] = {
        {"fp", ""},
        {"fp", "00000000000000zz"},
        {"epoch", "abc"},
        {"block_tokens", "-1"},
        {"block_tokens", "4294967296"},
        {"cache_tokens", "99999999999999999999999"},
        {"bytes_per_token", "4294967296"},
        {"cpu_bytes_per_s", "fast"},
        {"ssd_bytes_per_s", ""},
        {"cpu_start_us", "-1"},
        {"ssd_start_us", "4294967296"},
        {"prefill_tokens_per_s", "8000.5"},
        {"has_anchors", "yes"},
        {"url", "http://a\nX-Header: 1"},
        {"node", "\x1b[31mred"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct residency_meta meta = full_meta();

        int status = residency_meta_read_field(&meta, slice_of_string(rows[i][0]),
                                               slice_of_string(rows[i][1]));

        cr_assert(eq(int, status, -EPROTO), "%s=%s was taken", rows[i][0], rows[i][1]);
    }
}

Test(residency_wire, texts_of_meta_end_in_their_room)
{
    char text[RESIDENCY_TEXT_BYTES_MAX];
    struct residency_meta meta = full_meta();
    memset(text, 'n', sizeof text);

    cr_assert(eq(int, residency_meta_read_field(&meta, SLICE("node"), slice_of(text, sizeof text)),
                 -EPROTO));
    cr_assert(eq(
        int, residency_meta_read_field(&meta, SLICE("node"), slice_of(text, sizeof text - 1)), 0));

    cr_assert(eq(sz, strlen(meta.node), sizeof text - 1));
}

Test(residency_wire, fields_of_a_later_agent_are_ignored)
{
    struct residency_meta meta = full_meta(), before = meta;

    cr_assert(eq(int, residency_meta_read_field(&meta, SLICE("colour"), SLICE("red")), 0));
    cr_assert(eq(int, residency_meta_read_field(&meta, SLICE(""), SLICE("")), 0));

    cr_assert(eq(int, memcmp(&meta, &before, sizeof meta), 0));
}

Test(residency_wire, meta_without_what_a_worker_needs_is_refused)
{
    struct residency_meta without_url = full_meta(), without_epoch = full_meta();
    struct residency_meta without_fingerprint = full_meta();
    without_url.url[0] = '\0';
    without_epoch.epoch = 0;
    without_fingerprint.fingerprint = 0;

    cr_assert(eq(int, residency_meta_check(&without_url), -EPROTO));
    cr_assert(eq(int, residency_meta_check(&without_epoch), -EPROTO));
    cr_assert(eq(int, residency_meta_check(&without_fingerprint), -EPROTO));
}

/* ---- notes ---- */

Test(residency_wire, notes_are_these_bytes)
{
    static const uint8_t expected[] = {
        1,
        'N',
        0,
        0,
        0,
        0,
        0,
        0,
        0xf,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0xe,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        /* routed: kind, flags, blocks, length, attempt, start, a block */
        2,
        0,
        1,
        0,
        34,
        0,
        0,
        0,
        0xa,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0xc,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0x11,
        0x11,
        0x11,
        0x11,
        0x11,
        0x11,
        0x11,
        0x11,
        0,
        1,
        /* anchor: last block, tokens, tail, cached */
        4,
        1,
        0,
        0,
        44,
        0,
        0,
        0,
        0xa,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0xb,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0xe8,
        3,
        0,
        0,
        7,
        0,
        0,
        0,
        0,
        2,
        0,
        0,
    };
    const struct residency_note routed = {
        .kind = RESIDENCY_NOTE_ROUTED, .attempt = 0xa, .start = 0xc};
    const struct residency_note anchor = anchor_note();
    struct buf out;

    write_entry(&out, &routed, two_blocks, 1);
    cr_assert(eq(int, residency_note_write(&out, &anchor, NULL, 0), 0));

    check_bytes(&out, expected, sizeof expected);
    buf_release(&out);
}

Test(residency_wire, every_kind_of_note_is_read_back)
{
    const struct residency_note rows[] = {
        {.kind = RESIDENCY_NOTE_TEXT, .start = 0},
        {.kind = RESIDENCY_NOTE_ROUTED, .attempt = 1, .start = 2},
        {.kind = RESIDENCY_NOTE_ANSWERED, .attempt = 3, .start = 4},
        {.kind = RESIDENCY_NOTE_ANSWERED,
         .attempt = 5,
         .start = 6,
         .has_anchor = true,
         .last_block = 7,
         .token_count = 100,
         .tail_tokens = 3,
         .cached_tokens = UINT32_MAX},
        anchor_note(),
        {.kind = RESIDENCY_NOTE_PREFETCH, .start = 8, .within_ms = UINT32_MAX},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        const size_t block_count = rows[i].kind == RESIDENCY_NOTE_ANCHOR ? 0 : 2;
        struct residency_notes notes;
        struct residency_note read;
        struct buf out;
        write_entry(&out, &rows[i], two_blocks, block_count);

        cr_assert(eq(int, residency_notes_open(&notes, buf_slice(&out)), 0));
        cr_assert(residency_notes_next(&notes, &read), "row %zu", i);

        cr_assert(eq(u64, notes.fingerprint, 0xf));
        cr_assert(eq(u64, notes.router, 0xe));
        cr_assert(eq(int, read.kind, rows[i].kind));
        cr_assert(eq(u64, read.attempt, rows[i].attempt));
        cr_assert(eq(u64, read.start, rows[i].start));
        cr_assert(eq(u32, read.within_ms, rows[i].within_ms));
        cr_assert(eq(int, read.has_anchor, rows[i].has_anchor));
        cr_assert(eq(sz, read.block_count, block_count));
        for (size_t j = 0; j < block_count; j++) {
            struct residency_note_block block = residency_note_block(&read, j);

            cr_assert(eq(u64, block.hash, two_blocks[j].hash));
            cr_assert(eq(u32, block.bytes, two_blocks[j].bytes));
        }
        if (rows[i].has_anchor) {
            cr_assert(eq(u64, read.last_block, rows[i].last_block));
            cr_assert(eq(u32, read.token_count, rows[i].token_count));
            cr_assert(eq(u32, read.tail_tokens, rows[i].tail_tokens));
            cr_assert(eq(u32, read.cached_tokens, rows[i].cached_tokens));
        }
        cr_assert(not(residency_notes_next(&notes, &read)));
        cr_assert(eq(u32, notes.skipped_count, 0));
        buf_release(&out);
    }
}

Test(residency_wire, an_entry_cut_short_gives_the_notes_that_are_whole)
{
    const struct residency_note routed = {.kind = RESIDENCY_NOTE_ROUTED, .attempt = 1, .start = 2};
    const struct residency_note anchor = anchor_note();
    struct buf out;
    size_t first_end, whole;
    write_entry(&out, &routed, two_blocks, 2);
    first_end = buf_len(&out);
    cr_assert(eq(int, residency_note_write(&out, &anchor, NULL, 0), 0));
    whole = buf_len(&out);

    for (size_t len = 0; len < whole; len++) {
        struct residency_notes notes;
        struct residency_note read;
        size_t count = 0;
        char *copy = malloc(len + 1); /* so that reading too far is found */
        memcpy(copy, buf_slice(&out).ptr, len);

        int status = residency_notes_open(&notes, slice_of(copy, len));

        cr_assert(eq(int, status, len < RESIDENCY_NOTES_HEAD_BYTES ? -EPROTO : 0), "%zu", len);
        if (status == 0) {
            while (residency_notes_next(&notes, &read))
                count++;
            cr_assert(eq(sz, count, len >= first_end), "%zu bytes", len);
            cr_assert(eq(u32, notes.skipped_count,
                         len != first_end && len != RESIDENCY_NOTES_HEAD_BYTES));
        }
        free(copy);
    }
    buf_release(&out);
}

Test(residency_wire, kinds_yet_to_come_are_passed_over)
{
    const struct residency_note drain = {.kind = RESIDENCY_NOTE_DRAIN};
    const struct residency_note anchor = anchor_note();
    struct residency_notes notes;
    struct residency_note read;
    struct buf out;
    write_entry(&out, &drain, two_blocks, 2);
    cr_assert(eq(int, buf_append(&out, SLICE("\x63\0\0\0\x09\0\0\0?")), 0)); /* a kind 99 */
    cr_assert(eq(int, residency_note_write(&out, &anchor, NULL, 0), 0));
    cr_assert(eq(int, residency_notes_open(&notes, buf_slice(&out)), 0));

    cr_assert(residency_notes_next(&notes, &read));

    cr_assert(eq(int, read.kind, RESIDENCY_NOTE_ANCHOR));
    cr_assert(eq(u32, notes.skipped_count, 2));
    buf_release(&out);
}

Test(residency_wire, notes_that_make_no_sense_are_skipped)
{
    const struct residency_note sane = anchor_note();
    struct residency_note rows[] = {sane, sane, sane, sane, sane, sane, sane};
    size_t block_counts[array_count(rows)] = {0};
    rows[0].attempt = 0;
    rows[1].token_count = RESIDENCY_TOKENS_MAX + 1;
    rows[2].tail_tokens = sane.token_count + 1;
    block_counts[3] = 1; /* an anchor has none */
    rows[4] = (struct residency_note){.kind = RESIDENCY_NOTE_ROUTED};
    rows[5] = (struct residency_note){.kind = RESIDENCY_NOTE_TEXT};
    rows[6] = (struct residency_note){.kind = RESIDENCY_NOTE_PREFETCH, .within_ms = 1};

    for (size_t i = 0; i < array_count(rows); i++) {
        struct residency_notes notes;
        struct residency_note read;
        struct buf out;
        write_entry(&out, &rows[i], two_blocks, block_counts[i]);
        cr_assert(eq(int, residency_notes_open(&notes, buf_slice(&out)), 0));

        cr_assert(not(residency_notes_next(&notes, &read)), "row %zu", i);

        cr_assert(eq(u32, notes.skipped_count, 1));
        buf_release(&out);
    }
}

Test(residency_wire, a_block_without_hash_or_of_impossible_length_spoils_its_note)
{
    static const uint8_t rows[][RESIDENCY_NOTE_BLOCK_BYTES] = {{0, 0, 0, 0, 0, 0, 0, 0, 1, 0},
                                                               {1, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                                                               {1, 0, 0, 0, 0, 0, 0, 0, 1, 2}};
    const struct residency_note text = {.kind = RESIDENCY_NOTE_TEXT};

    for (size_t i = 0; i < array_count(rows); i++) {
        struct residency_notes notes;
        struct residency_note read;
        struct buf out;
        write_entry(&out, &text, two_blocks, 2);
        memcpy(out.bytes + out.end - sizeof rows[i], rows[i], sizeof rows[i]);
        cr_assert(eq(int, residency_notes_open(&notes, buf_slice(&out)), 0));

        cr_assert(not(residency_notes_next(&notes, &read)), "row %zu", i);

        cr_assert(eq(u32, notes.skipped_count, 1));
        buf_release(&out);
    }
}

Test(residency_wire, an_entry_is_never_longer_than_its_limit)
{
    enum { FIT = (RESIDENCY_NOTE_BYTES_MAX - RESIDENCY_NOTES_HEAD_BYTES - 24) / 10 };
    const struct residency_note text = {.kind = RESIDENCY_NOTE_TEXT};
    struct residency_note_block *blocks = calloc(FIT + 1, sizeof *blocks);
    struct residency_notes notes;
    struct residency_note read;
    struct buf out;
    buf_init(&out, BUF_BYTES_MAX);
    for (size_t i = 0; i <= FIT; i++)
        blocks[i] = (struct residency_note_block){i + 1, 256};
    cr_assert(eq(int, residency_notes_begin(&out, 1, 2), 0));

    cr_assert(eq(int, residency_note_write(&out, &text, blocks, FIT + 1), -EMSGSIZE));
    cr_assert(eq(sz, buf_len(&out), RESIDENCY_NOTES_HEAD_BYTES), "nothing was appended");
    cr_assert(eq(int, residency_note_write(&out, &text, blocks, FIT), 0));
    cr_assert(eq(int, residency_note_write(&out, &text, blocks, 1), -EMSGSIZE));

    cr_assert(eq(int, residency_notes_open(&notes, buf_slice(&out)), 0));
    cr_assert(residency_notes_next(&notes, &read));
    cr_assert(eq(sz, read.block_count, FIT));
    free(blocks);
    buf_release(&out);
}

/* ---- loads ---- */

Test(residency_wire, loads_are_these_bytes)
{
    static const uint8_t expected[] = {
        1, 'L', 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 8, 0,
        0, 0,   0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0,
    };
    const struct residency_load load = {8, 2, 256, 1};
    struct residency_load read;
    struct buf out;
    uint64_t router;
    size_t count;
    buf_init(&out, BUF_BYTES_MAX);

    cr_assert(eq(int, residency_loads_write(&out, 9, &load, 1), 0));
    cr_assert(eq(int, residency_loads_read(buf_slice(&out), &router, &count), 0));
    read = residency_loads_at(buf_slice(&out), 0);

    check_bytes(&out, expected, sizeof expected);
    cr_assert(eq(u64, router, 9));
    cr_assert(eq(sz, count, 1));
    cr_assert(eq(u64, read.worker, 8));
    cr_assert(eq(u32, read.in_flight, 2));
    cr_assert(eq(u32, read.queued_tokens, 256));
    cr_assert(eq(u32, read.decoding, 1));
    buf_release(&out);
}

Test(residency_wire, what_is_no_loads_is_refused)
{
    const struct residency_load loads[2] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    struct slice whole;
    struct buf out;
    uint64_t router;
    size_t count;
    buf_init(&out, BUF_BYTES_MAX);
    cr_assert(eq(int, residency_loads_write(&out, 9, loads, 2), 0));
    whole = buf_slice(&out);

    for (size_t len = 0; len < whole.len; len++)
        cr_assert(
            eq(int, residency_loads_read(slice_of(whole.ptr, len), &router, &count), -EPROTO));
    out.bytes[out.start + 4] = 1;
    cr_assert(eq(int, residency_loads_read(whole, &router, &count), -EPROTO), "another count");
    out.bytes[out.start + 4] = 2, out.bytes[out.start] = 3;
    cr_assert(eq(int, residency_loads_read(whole, &router, &count), -EPROTO), "another version");
    buf_release(&out);
}
