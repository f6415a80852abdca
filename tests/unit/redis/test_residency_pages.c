/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_pages.h"

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdlib.h>

enum { REDIS_PAGE_COUNT = 16, PLACE_COUNT = 64 };

/* What a Redis has that was told all that was taken, and nothing else. */
struct redis {
    uint8_t bytes[REDIS_PAGE_COUNT][RESIDENCY_PAGE_BYTES];
    uint32_t page_count;
};

static struct residency_record record_of(uint64_t hash, uint32_t tokens)
{
    return (struct residency_record){hash, tokens, 1};
}

static void set(struct residency_pages *pages, struct residency_record record)
{
    cr_assert(eq(int, residency_pages_set(pages, record), 0));
}

static void remove_hash(struct residency_pages *pages, uint64_t hash)
{
    set(pages, (struct residency_record){hash, 0, 0});
}

static size_t held_count(const struct residency_pages *pages)
{
    return residency_pages_stats(pages).held_count;
}

static bool redis_take_page(struct redis *redis, struct residency_pages *pages)
{
    uint32_t page;
    const uint8_t *bytes = residency_pages_take_page(pages, &page);

    if (bytes == NULL)
        return false;
    cr_assert(eq(u32, page, redis->page_count));
    cr_assert(lt(u32, page, REDIS_PAGE_COUNT));
    memcpy(redis->bytes[redis->page_count++], bytes, RESIDENCY_PAGE_BYTES);
    return true;
}

static void redis_take_pages(struct redis *redis, struct residency_pages *pages)
{
    redis->page_count = 0;
    while (redis_take_page(redis, pages))
        continue;
}

static size_t redis_take_places(struct redis *redis, struct residency_pages *pages, size_t max)
{
    struct residency_place places[PLACE_COUNT];
    size_t count = residency_pages_take_places(pages, places, max);

    for (size_t i = 0; i < count; i++) {
        uint32_t page = places[i].slot / RESIDENCY_PAGE_RECORD_COUNT;
        size_t at = places[i].slot % RESIDENCY_PAGE_RECORD_COUNT;
        struct residency_record record = places[i].record;

        cr_assert(lt(u32, page, REDIS_PAGE_COUNT));
        while (redis->page_count <= page)
            memset(redis->bytes[redis->page_count++], 0, RESIDENCY_PAGE_BYTES);
        if (record.tiers == 0)
            record = (struct residency_record){0, 0, 0};
        residency_record_write(&redis->bytes[page][at * RESIDENCY_RECORD_BYTES], record);
    }
    return count;
}

/* The pages of redis hold what stats says was said. */
static void check_said(const struct redis *redis, const struct residency_pages *pages)
{
    const struct residency_pages_stats stats = residency_pages_stats(pages);
    uint64_t count = 0, digest = 0;

    for (uint32_t page = 0; page < redis->page_count; page++) {
        for (size_t i = 0; i < RESIDENCY_PAGE_RECORD_COUNT; i++) {
            struct residency_record record =
                residency_record_read(&redis->bytes[page][i * RESIDENCY_RECORD_BYTES]);

            count += record.hash != 0;
            digest += residency_record_digest(record);
        }
    }
    cr_assert(eq(u64, count, stats.said_count));
    cr_assert(eq(u64, digest, stats.said_digest));
}

/* How redis has hash; tiers 0: not at all. */
static struct residency_record redis_find(const struct redis *redis, uint64_t hash)
{
    for (uint32_t page = 0; page < redis->page_count; page++) {
        for (size_t i = 0; i < RESIDENCY_PAGE_RECORD_COUNT; i++) {
            struct residency_record record =
                residency_record_read(&redis->bytes[page][i * RESIDENCY_RECORD_BYTES]);

            if (record.hash == hash)
                return record;
        }
    }
    return (struct residency_record){hash, 0, 0};
}

TestSuite(residency_pages, .fini = leak_check);

Test(residency_pages, all_that_is_held_is_said_page_by_page_and_then_by_place)
{
    struct redis *redis = calloc(1, sizeof *redis);
    struct residency_pages *pages = residency_pages_create(10000);
    for (uint64_t hash = 1; hash <= 5000; hash++)
        set(pages, record_of(hash, (uint32_t)hash));

    redis_take_pages(redis, pages);
    check_said(redis, pages);
    set(pages, record_of(77, 1));
    set(pages, record_of(9999, 2));
    remove_hash(pages, 5000);

    cr_assert(eq(u32, redis->page_count, 2));
    cr_assert(eq(u64, residency_pages_stats(pages).unsaid_count, 3));
    cr_assert(eq(sz, redis_take_places(redis, pages, PLACE_COUNT), 3));
    check_said(redis, pages);
    cr_assert(eq(u32, redis_find(redis, 77).tokens, 1));
    cr_assert(eq(u32, redis_find(redis, 9999).tokens, 2));
    cr_assert(eq(u8, redis_find(redis, 5000).tiers, 0));
    cr_assert(eq(sz, redis_take_places(redis, pages, PLACE_COUNT), 0));
    residency_pages_destroy(pages);
    free(redis);
}

Test(residency_pages, only_the_newest_state_is_said_and_nothing_where_it_came_back)
{
    struct redis *redis = calloc(1, sizeof *redis);
    struct residency_pages *pages = residency_pages_create(100);
    set(pages, record_of(1, 16));
    set(pages, record_of(2, 16));
    redis_take_pages(redis, pages);

    set(pages, record_of(1, 32));
    set(pages, record_of(1, 48));
    remove_hash(pages, 2);
    set(pages, record_of(2, 16));
    set(pages, record_of(3, 16));
    remove_hash(pages, 3);

    cr_assert(eq(sz, redis_take_places(redis, pages, PLACE_COUNT), 1));
    check_said(redis, pages);
    cr_assert(eq(u32, redis_find(redis, 1).tokens, 48));
    cr_assert(eq(sz, held_count(pages), 2));
    residency_pages_destroy(pages);
    free(redis);
}

Test(residency_pages, a_place_is_not_taken_before_its_removal_is_said)
{
    struct redis *redis = calloc(1, sizeof *redis);
    struct residency_pages *pages = residency_pages_create(100);
    set(pages, record_of(1, 16));
    redis_take_pages(redis, pages);
    remove_hash(pages, 1);
    set(pages, record_of(2, 16));

    cr_assert(eq(sz, redis_take_places(redis, pages, 1), 1));
    check_said(redis, pages);
    cr_assert(eq(u8, redis_find(redis, 1).tiers, 0), "the oldest is said first");
    cr_assert(eq(sz, redis_take_places(redis, pages, 1), 1));
    check_said(redis, pages);

    cr_assert(eq(u32, redis_find(redis, 2).tokens, 16));
    residency_pages_destroy(pages);
    free(redis);
}

Test(residency_pages, free_places_are_taken_lowest_first)
{
    struct residency_place places[PLACE_COUNT];
    struct residency_pages *pages = residency_pages_create(1000);
    uint32_t page;
    for (uint64_t hash = 1; hash <= 500; hash++)
        set(pages, record_of(hash, 16));
    while (residency_pages_take_page(pages, &page) != NULL)
        continue;
    remove_hash(pages, 400);
    remove_hash(pages, 3);
    remove_hash(pages, 130);
    cr_assert(eq(sz, residency_pages_take_places(pages, places, PLACE_COUNT), 3));

    for (uint64_t hash = 1001; hash <= 1004; hash++)
        set(pages, record_of(hash, 16));

    cr_assert(eq(sz, residency_pages_take_places(pages, places, PLACE_COUNT), 4));
    cr_assert(eq(u32, places[0].slot, 2));
    cr_assert(eq(u32, places[1].slot, 129));
    cr_assert(eq(u32, places[2].slot, 399));
    cr_assert(eq(u32, places[3].slot, 500));
    residency_pages_destroy(pages);
}

Test(residency_pages, what_comes_while_pages_are_said_is_said_once)
{
    struct redis *redis = calloc(1, sizeof *redis);
    struct residency_pages *pages = residency_pages_create(20000);
    for (uint64_t hash = 1; hash <= 3 * RESIDENCY_PAGE_RECORD_COUNT; hash++)
        set(pages, record_of(hash, 16));

    cr_assert(redis_take_page(redis, pages));            /* page 0 */
    set(pages, record_of(1, 32));                        /* in page 0 */
    remove_hash(pages, 2 * RESIDENCY_PAGE_RECORD_COUNT); /* in page 1 */
    remove_hash(pages, 3 * RESIDENCY_PAGE_RECORD_COUNT); /* in page 2 */
    set(pages, record_of(100000, 16));                   /* into the lowest of these */
    for (uint64_t hash = 100001; hash <= 100010; hash++)
        set(pages, record_of(hash, 16)); /* and into a page that begins */
    while (redis_take_page(redis, pages))
        check_said(redis, pages);

    cr_assert(eq(u32, redis->page_count, 4));
    cr_assert(eq(u64, residency_pages_stats(pages).unsaid_count, 1));
    cr_assert(eq(sz, redis_take_places(redis, pages, PLACE_COUNT), 1));
    check_said(redis, pages);
    cr_assert(eq(u64, residency_pages_stats(pages).said_count, held_count(pages)));
    residency_pages_destroy(pages);
    free(redis);
}

Test(residency_pages, more_than_record_count_max_is_refused)
{
    struct residency_pages *pages = residency_pages_create(3);
    for (uint64_t hash = 1; hash <= 3; hash++)
        set(pages, record_of(hash, 16));

    cr_assert(eq(int, residency_pages_set(pages, record_of(4, 16)), -ENOBUFS));
    set(pages, record_of(3, 32));
    remove_hash(pages, 1);
    set(pages, record_of(4, 16));

    cr_assert(eq(sz, held_count(pages), 3));
    residency_pages_destroy(pages);
}

Test(residency_pages, places_that_wait_for_their_removal_are_bounded)
{
    struct redis *redis = calloc(1, sizeof *redis);
    struct residency_pages *pages = residency_pages_create(100);
    uint64_t hash = 0;
    for (; hash < 100; hash++)
        set(pages, record_of(hash + 1, 16));
    redis_take_pages(redis, pages);
    for (; hash < 200; hash++) {
        remove_hash(pages, hash - 99);
        set(pages, record_of(hash + 1, 16));
    }

    remove_hash(pages, 101);
    cr_assert(eq(int, residency_pages_set(pages, record_of(1000, 16)), -ENOBUFS));
    residency_pages_restart(pages);
    set(pages, record_of(1000, 16));

    redis_take_pages(redis, pages);
    check_said(redis, pages);
    cr_assert(eq(u64, residency_pages_stats(pages).said_count, 100));
    residency_pages_destroy(pages);
    free(redis);
}

Test(residency_pages, what_is_not_held_is_removed_without_a_word)
{
    struct residency_pages *pages = residency_pages_create(10);
    uint32_t page;
    cr_assert(eq(ptr, (void *)(uintptr_t)residency_pages_take_page(pages, &page), NULL));

    remove_hash(pages, 1);

    cr_assert(eq(u64, residency_pages_stats(pages).unsaid_count, 0));
    residency_pages_destroy(pages);
}

Test(residency_pages, after_clear_nothing_is_held_and_all_can_be_held_again)
{
    struct redis *redis = calloc(1, sizeof *redis);
    struct residency_pages *pages = residency_pages_create(10000);
    for (uint64_t hash = 1; hash <= 10000; hash++)
        set(pages, record_of(hash, 16));
    redis_take_pages(redis, pages);
    remove_hash(pages, 1);

    residency_pages_clear(pages);

    cr_assert(eq(sz, held_count(pages), 0));
    redis_take_pages(redis, pages);
    cr_assert(eq(u32, redis->page_count, 0));
    for (uint64_t hash = 1; hash <= 10000; hash++)
        set(pages, record_of(hash, 32));
    while (redis_take_places(redis, pages, PLACE_COUNT) > 0)
        check_said(redis, pages);
    cr_assert(eq(u64, residency_pages_stats(pages).said_count, 10000));
    residency_pages_destroy(pages);
    free(redis);
}

Test(residency_pages, a_restart_gives_up_pages_that_are_empty_at_the_end)
{
    struct redis *redis = calloc(1, sizeof *redis);
    struct residency_pages *pages = residency_pages_create(20000);
    for (uint64_t hash = 1; hash <= 20000; hash++)
        set(pages, record_of(hash, 16));
    redis_take_pages(redis, pages);
    cr_assert(eq(u32, redis->page_count, 5));
    for (uint64_t hash = 5001; hash <= 20000; hash++)
        remove_hash(pages, hash);

    residency_pages_restart(pages);
    redis_take_pages(redis, pages);

    cr_assert(eq(u32, redis->page_count, 2));
    check_said(redis, pages);
    residency_pages_destroy(pages);
    free(redis);
}

/* A model of what is held, hash by hash, and steps of all kinds at random. */
enum { MODEL_HASH_COUNT = 9000, MODEL_RECORD_COUNT_MAX = 6000, MODEL_STEPS = 60000 };

struct model {
    struct residency_record held[MODEL_HASH_COUNT + 1];
    size_t count;
};

static void model_set(struct model *model, struct residency_pages *pages, uint64_t random)
{
    const uint64_t hash = 1 + random % MODEL_HASH_COUNT;
    const struct residency_record record = {hash, (uint32_t)(random >> 32) % 1000,
                                            (uint8_t)((random >> 20) % 4)};
    const bool was_held = model->held[hash].tiers != 0;
    int status = residency_pages_set(pages, record);

    if (record.tiers != 0 && !was_held && model->count == MODEL_RECORD_COUNT_MAX) {
        cr_assert(eq(int, status, -ENOBUFS));
        return;
    }
    cr_assert(eq(int, status, 0));
    model->count += (size_t)(record.tiers != 0) - (size_t)was_held;
    model->held[hash] = record;
}

static void check_model(const struct model *model, const struct redis *redis)
{
    uint64_t count = 0;

    for (uint32_t page = 0; page < redis->page_count; page++) {
        for (size_t i = 0; i < RESIDENCY_PAGE_RECORD_COUNT; i++) {
            struct residency_record record =
                residency_record_read(&redis->bytes[page][i * RESIDENCY_RECORD_BYTES]);

            if (record.hash == 0)
                continue;
            cr_assert(le(u64, record.hash, MODEL_HASH_COUNT));
            cr_assert(eq(u8, record.tiers, model->held[record.hash].tiers));
            cr_assert(eq(u32, record.tokens, model->held[record.hash].tokens));
            count++;
        }
    }
    cr_assert(eq(u64, count, model->count));
}

Test(residency_pages, whatever_happens_in_whatever_order_what_was_said_adds_up)
{
    struct redis *redis = calloc(1, sizeof *redis);
    struct model *model = calloc(1, sizeof *model);
    struct residency_pages *pages = residency_pages_create(MODEL_RECORD_COUNT_MAX);
    uint64_t random = 1;

    for (int step = 0; step < MODEL_STEPS; step++) {
        const uint64_t what = random_next(&random) % 6000;

        model_set(model, pages, random_next(&random));
        if (what < 60)
            redis_take_places(redis, pages, 1 + what);
        if (what == 60)
            residency_pages_restart(pages), redis->page_count = 0;
        if (what > 60 && what < 80)
            redis_take_page(redis, pages);
        if (what == 80) {
            residency_pages_clear(pages);
            memset(model, 0, sizeof *model);
            redis->page_count = 0;
        }
        if (what < 90)
            check_said(redis, pages);
        cr_assert(eq(sz, held_count(pages), model->count));
    }
    while (redis_take_page(redis, pages))
        continue;
    while (redis_take_places(redis, pages, PLACE_COUNT) > 0)
        continue;

    check_said(redis, pages);
    check_model(model, redis);
    residency_pages_destroy(pages);
    free(model);
    free(redis);
}
