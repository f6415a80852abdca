/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_transaction.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/*
 * DESIGN
 *
 * A connection is shared by the reports of several workers, and MULTI is a state of the connection:
 * a transaction that was sent in part would swallow whatever others send next. So all of it goes
 * into the link's buffer within one call, and is taken back when one of its commands has no room.
 *
 * Pages are made whole, of zeros, and then overwritten in place: a string that grows by SETRANGE
 * gets twice the memory it needs, one that is set whole gets its own size.
 */

enum { NUMBER_BYTES = 24, ID_BYTES = 32, WORD_COUNT_MAX = 32, UNLINK_COUNT_MAX = 24 };
enum {
    TEXT_BYTES_MAX = 1024,
    CHANGE_BYTES_MAX = 64 + RESIDENCY_CHANGE_RECORD_COUNT_MAX * RESIDENCY_RECORD_BYTES,
};

static void put(struct residency_transaction *transaction, const struct slice *words, size_t count)
{
    if (transaction->status == 0)
        transaction->status = redis_link_send(transaction->target->link, words, count, NULL, NULL);
    transaction->count++;
}

static void fail(struct residency_transaction *transaction, int status)
{
    if (transaction->status == 0)
        transaction->status = status;
}

/* ---- words ---- */

static struct slice number_word(char text[NUMBER_BYTES], uint64_t number)
{
    return slice_of(text, (size_t)snprintf(text, NUMBER_BYTES, "%" PRIu64, number));
}

static struct slice id_word(char text[ID_BYTES], uint64_t sequence)
{
    return slice_of(text, (size_t)snprintf(text, ID_BYTES, "%" PRIu64 "-1", sequence));
}

static struct slice page_word(char key[RESIDENCY_KEY_BYTES_MAX],
                              const struct residency_target *target, uint32_t page)
{
    return slice_of(key, residency_key_page(key, target->worker, target->life, page));
}

static struct slice out_word(char key[RESIDENCY_KEY_BYTES_MAX],
                             const struct residency_target *target)
{
    return slice_of(key, residency_key_out(key, target->worker, target->life));
}

static struct slice key_word(char key[RESIDENCY_KEY_BYTES_MAX],
                             const struct residency_target *target, enum residency_key_kind kind)
{
    return slice_of(key, residency_key(key, target->worker, kind));
}

/* ---- a transaction ---- */

struct residency_transaction residency_transaction_begin(const struct residency_target *target)
{
    struct residency_transaction transaction = {
        .target = target,
        .mark = redis_link_mark(target->link),
    };
    const struct slice words[] = {SLICE("MULTI")};

    put(&transaction, words, array_count(words));
    transaction.count = 0;
    return transaction;
}

int residency_transaction_end(struct residency_transaction *transaction, redis_done_fn *on_done,
                              void *ctx)
{
    const struct slice words[] = {SLICE("EXEC")};
    struct redis_link *link = transaction->target->link;

    if (transaction->status == 0)
        transaction->status = redis_link_send(link, words, array_count(words), on_done, ctx);
    if (transaction->status < 0)
        redis_link_take_back(link, transaction->mark);
    return transaction->status;
}

void residency_transaction_look(struct residency_transaction *transaction)
{
    char lease[RESIDENCY_KEY_BYTES_MAX], out[RESIDENCY_KEY_BYTES_MAX];
    const struct slice get[] = {SLICE("GET"),
                                key_word(lease, transaction->target, RESIDENCY_KEY_LEASE)};
    const struct slice range[] = {SLICE("XREVRANGE"), out_word(out, transaction->target),
                                  SLICE("+"),         SLICE("-"),
                                  SLICE("COUNT"),     SLICE("1")};

    put(transaction, get, array_count(get));
    put(transaction, range, array_count(range));
}

/* ---- pages ---- */

void residency_transaction_make_page(struct residency_transaction *transaction, uint32_t page)
{
    static const char zeros[RESIDENCY_PAGE_BYTES];
    char key[RESIDENCY_KEY_BYTES_MAX], ttl[NUMBER_BYTES];
    const struct slice words[] = {SLICE("SET"), page_word(key, transaction->target, page),
                                  slice_of(zeros, sizeof zeros), SLICE("EX"),
                                  number_word(ttl, transaction->target->ttl_s)};

    put(transaction, words, array_count(words));
}

void residency_transaction_set_places(struct residency_transaction *transaction,
                                      const struct residency_place *places, size_t count)
{
    const uint32_t page = places[0].slot / RESIDENCY_PAGE_RECORD_COUNT;
    const uint32_t first = places[0].slot % RESIDENCY_PAGE_RECORD_COUNT;
    char key[RESIDENCY_KEY_BYTES_MAX], offset[NUMBER_BYTES];
    uint8_t bytes[RESIDENCY_PAGE_BYTES];

    assert(count > 0 && first + count <= RESIDENCY_PAGE_RECORD_COUNT);

    for (size_t i = 0; i < count; i++) {
        struct residency_record record = places[i].record;

        assert(places[i].slot == places[0].slot + i);
        if (record.tiers == 0)
            record = (struct residency_record){.hash = 0}; /* a free place */
        residency_record_write(bytes + i * RESIDENCY_RECORD_BYTES, record);
    }
    put(transaction,
        (const struct slice[]){SLICE("SETRANGE"), page_word(key, transaction->target, page),
                               number_word(offset, (uint64_t)first * RESIDENCY_RECORD_BYTES),
                               slice_of(bytes, count * RESIDENCY_RECORD_BYTES)},
        4);
}

int residency_send_page(const struct residency_target *target, uint32_t page,
                        const uint8_t bytes[RESIDENCY_PAGE_BYTES], redis_done_fn *on_done,
                        void *ctx)
{
    char key[RESIDENCY_KEY_BYTES_MAX], ttl[NUMBER_BYTES];
    const struct slice words[] = {SLICE("SET"), page_word(key, target, page),
                                  slice_of(bytes, RESIDENCY_PAGE_BYTES), SLICE("EX"),
                                  number_word(ttl, target->ttl_s)};

    return redis_link_send(target->link, words, array_count(words), on_done, ctx);
}

/* ---- changes ---- */

void residency_transaction_add_change(struct residency_transaction *transaction, uint64_t sequence,
                                      uint64_t first_kept, const struct residency_change *change)
{
    char key[RESIDENCY_KEY_BYTES_MAX], id[ID_BYTES], first[ID_BYTES];
    const struct slice out = out_word(key, transaction->target);
    struct buf body;
    int status;

    buf_init(&body, CHANGE_BYTES_MAX);
    status = residency_change_write(&body, change);
    if (status < 0)
        fail(transaction, status);
    else if (sequence == 1)
        put(transaction,
            (const struct slice[]){SLICE("XADD"), out, id_word(id, sequence), SLICE("b"),
                                   buf_slice(&body)},
            5);
    else
        put(transaction,
            (const struct slice[]){SLICE("XADD"), out, SLICE("NOMKSTREAM"), SLICE("MINID"),
                                   SLICE("~"), id_word(first, first_kept), id_word(id, sequence),
                                   SLICE("b"), buf_slice(&body)},
            9);
    buf_release(&body);
}

/* ---- time to live ---- */

static void renew(struct residency_transaction *transaction, struct slice key)
{
    char ttl[NUMBER_BYTES];
    const struct slice words[] = {SLICE("EXPIRE"), key,
                                  number_word(ttl, transaction->target->ttl_s)};

    put(transaction, words, array_count(words));
}

void residency_transaction_renew_page(struct residency_transaction *transaction, uint32_t page)
{
    char key[RESIDENCY_KEY_BYTES_MAX];

    renew(transaction, page_word(key, transaction->target, page));
}

void residency_transaction_renew_out(struct residency_transaction *transaction)
{
    char key[RESIDENCY_KEY_BYTES_MAX];

    renew(transaction, out_word(key, transaction->target));
}

void residency_transaction_unlink(struct residency_transaction *transaction, uint32_t generation,
                                  uint32_t from, uint32_t end)
{
    struct residency_target gone = *transaction->target;
    char keys[UNLINK_COUNT_MAX + 1][RESIDENCY_KEY_BYTES_MAX];
    struct slice words[UNLINK_COUNT_MAX + 2] = {SLICE("UNLINK")};
    size_t count = 1;

    assert(end - from <= UNLINK_COUNT_MAX);

    gone.life.generation = generation;
    words[count++] = out_word(keys[UNLINK_COUNT_MAX], &gone);
    for (uint32_t page = from; page < end; page++)
        words[count++] = page_word(keys[page - from], &gone, page);
    put(transaction, words, count);
}

/* ---- meta and lease ---- */

static void set_fields(struct residency_transaction *transaction, const struct residency_meta *meta)
{
    struct slice words[2 + 2 * RESIDENCY_META_FIELD_COUNT] = {SLICE("HSET")};
    struct buf values[RESIDENCY_META_FIELD_COUNT];
    char key[RESIDENCY_KEY_BYTES_MAX];
    int status = 0;

    words[1] = key_word(key, transaction->target, RESIDENCY_KEY_META);
    for (size_t i = 0; i < RESIDENCY_META_FIELD_COUNT; i++) {
        const char *field = "";

        buf_init(&values[i], TEXT_BYTES_MAX);
        if (status == 0)
            status = residency_meta_write_field(meta, i, &field, &values[i]);
        words[2 + 2 * i] = slice_of_string(field);
        words[3 + 2 * i] = buf_slice(&values[i]);
    }
    if (status < 0)
        fail(transaction, status);
    put(transaction, words, array_count(words));
    for (size_t i = 0; i < RESIDENCY_META_FIELD_COUNT; i++)
        buf_release(&values[i]);
}

void residency_transaction_set_meta(struct residency_transaction *transaction,
                                    const struct residency_meta *meta)
{
    char meta_key[RESIDENCY_KEY_BYTES_MAX], workers_key[RESIDENCY_KEY_BYTES_MAX];
    const size_t workers_len = residency_key_workers(workers_key, meta->fingerprint);
    const struct slice add[] = {SLICE("SADD"), slice_of(workers_key, workers_len),
                                slice_of_string(transaction->target->worker)};

    set_fields(transaction, meta);
    renew(transaction, key_word(meta_key, transaction->target, RESIDENCY_KEY_META));
    put(transaction, add, array_count(add));
}

void residency_transaction_set_lease(struct residency_transaction *transaction,
                                     const struct residency_lease *lease, uint32_t lease_ms)
{
    char key[RESIDENCY_KEY_BYTES_MAX], ms[NUMBER_BYTES];
    struct buf text;
    int status;

    buf_init(&text, TEXT_BYTES_MAX);
    status = residency_lease_write(&text, lease);
    if (status < 0)
        fail(transaction, status);
    put(transaction,
        (const struct slice[]){
            SLICE("SET"), key_word(key, transaction->target, RESIDENCY_KEY_LEASE), buf_slice(&text),
            SLICE("PX"), number_word(ms, lease_ms), SLICE("GET")},
        6);
    buf_release(&text);
}

int residency_send_unlink_lease(const struct residency_target *target, redis_done_fn *on_done,
                                void *ctx)
{
    char key[RESIDENCY_KEY_BYTES_MAX];
    const struct slice words[] = {SLICE("UNLINK"), key_word(key, target, RESIDENCY_KEY_LEASE)};

    return redis_link_send(target->link, words, array_count(words), on_done, ctx);
}
