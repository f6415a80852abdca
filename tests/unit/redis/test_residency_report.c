/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_report.h"

#include "backends/redis/residency_pages.h"
#include "backends/redis/residency_report_state.h"
#include "backends/runtime/random.h"
#include "tests/support/loop_fixture.h"
#include "tests/support/redis_server.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    WAIT_MS = 20000,
    HASH_COUNT = 12000, /* hashes are 1 to this */
    LEASE_MS = 300,
    LONG_LEASE_MS = 3 * WAIT_MS, /* nobody waits for its end */
    COMMAND_MS = 400,
};

static const char worker[] = "http://10.0.0.1:8000";

/* An agent's half: a report on a link of its own. */
struct agent {
    struct redis_link *link;
    struct residency_report *report;
    uint32_t away_count;
    bool is_report_closed;
    bool is_link_closed;
};

/* What whoever reads it all at one moment finds. */
struct snapshot {
    bool has_lease;
    struct residency_lease lease;
    uint64_t sequence; /* of the last change; 0: none */
    struct residency_change change;
    uint64_t count, digest; /* of the pages */
    struct residency_record held[HASH_COUNT + 1];
    bool is_replaced; /* the lease, while all this was asked for */
    bool is_done;
};

struct world {
    struct redis_server *server;
    struct agent agent;
    struct redis_link *reader; /* reads all at once, which no router may: the default user */
    bool is_reader_closed;
    struct residency_record held[HASH_COUNT + 1]; /* as it was set */
    struct snapshot snapshot;
};

/* ---- agents ---- */

static void on_ready(void *ctx)
{
    struct agent *agent = ctx;

    if (agent->report != NULL)
        residency_report_linked(agent->report);
}

static void on_away(void *ctx, int error, const char *why)
{
    struct agent *agent = ctx;

    (void)error;
    (void)why;
    agent->away_count++;
}

static struct redis_link_config link_config(struct redis_url url)
{
    return (struct redis_link_config){
        .url = url,
        .name = "samovar-test",
        .connect_ms = 2000,
        .command_ms = COMMAND_MS,
        .back_off_ms = 10,
        .back_off_ms_max = 50,
        .pending_max = 4096,
    };
}

static struct redis_link_config link_config_of(struct redis_url url, const char *user,
                                               const char *password)
{
    struct redis_link_config config = link_config(url);

    snprintf(config.url.user, sizeof config.url.user, "%s", user);
    config.password = password;
    return config;
}

static struct residency_report_config report_config(uint64_t epoch)
{
    return (struct residency_report_config){
        .worker = worker,
        .epoch = epoch,
        .flush_ms = 5,
        .lease_ms = LEASE_MS,
        .page_ttl_s = 900,
        .record_count_max = HASH_COUNT,
        .change_count_max = 4096,
    };
}

static struct residency_meta some_meta(void)
{
    return (struct residency_meta){
        .fingerprint = 0xfe, .url = "http://10.0.0.1:8000", .engine = "vllm", .block_tokens = 16};
}

static void agent_open(struct agent *agent, struct redis_url url,
                       struct residency_report_config config)
{
    const struct residency_meta meta = some_meta();

    *agent = (struct agent){.link = NULL};
    cr_assert(
        eq(int,
           redis_link_open(loop_fixture_loop(), link_config_of(url, "agent-1", "change-me-agent-1"),
                           (struct redis_link_callbacks){on_ready, on_away}, agent, &agent->link),
           0));
    cr_assert(eq(
        int, residency_report_create(loop_fixture_loop(), agent->link, config, &agent->report), 0));
    residency_report_set_meta(agent->report, &meta);
    residency_report_set_whole(agent->report, true);
}

static void note_closed(void *ctx)
{
    bool *is_closed = ctx;

    *is_closed = true;
}

static void agent_close(struct agent *agent)
{
    residency_report_close(&agent->report, note_closed, &agent->is_report_closed);
    cr_assert(loop_run_until_flag(&agent->is_report_closed, WAIT_MS));
    redis_link_close(&agent->link, note_closed, &agent->is_link_closed);
    cr_assert(loop_run_until_flag(&agent->is_link_closed, WAIT_MS));
}

/* As kill -9 of its process: the link goes first, so that nothing more is said. */
static void agent_kill(struct agent *agent)
{
    redis_link_close(&agent->link, note_closed, &agent->is_link_closed);
    residency_report_close(&agent->report, note_closed, &agent->is_report_closed);
    cr_assert(loop_run_until_flag(&agent->is_report_closed, WAIT_MS));
    cr_assert(loop_run_until_flag(&agent->is_link_closed, WAIT_MS));
}

static struct residency_report_stats agent_stats(const struct agent *agent)
{
    return residency_report_stats(agent->report);
}

static bool is_live(void *ctx)
{
    const struct agent *agent = ctx;

    return agent_stats(agent).is_live;
}

static bool is_not_live(void *ctx)
{
    return !is_live(ctx);
}

static bool is_rivalled(void *ctx)
{
    const struct agent *agent = ctx;

    return agent_stats(agent).is_rivalled;
}

/* All that was set is said. */
static bool is_settled(void *ctx)
{
    const struct agent *agent = ctx;

    return agent_stats(agent).is_live && agent_stats(agent).unsaid_count == 0;
}

static bool is_failing(void *ctx)
{
    const struct agent *agent = ctx;

    return agent_stats(agent).failed_total >= 3 && agent_stats(agent).error != 0;
}

/* ---- the world ---- */

static void await(bool (*is_true)(void *ctx), void *ctx)
{
    cr_assert(loop_run_until(is_true, ctx, WAIT_MS));
}

static bool is_reader_ready(void *ctx)
{
    const struct world *world = ctx;

    return redis_link_state(world->reader) == REDIS_LINK_READY;
}

static struct world *world_create_with(const char *const *options,
                                       struct residency_report_config config)
{
    struct world *world = calloc(1, sizeof *world);

    world->server = redis_server_create_with_users(options, "users.acl", "10.0.0.1");
    cr_assert(eq(int,
                 redis_link_open(loop_fixture_loop(), link_config(redis_server_url(world->server)),
                                 (struct redis_link_callbacks){NULL, NULL}, world, &world->reader),
                 0));
    agent_open(&world->agent, redis_server_url(world->server), config);
    return world;
}

static struct world *world_create(const char *const *options)
{
    return world_create_with(options, report_config(0xabc));
}

static void world_destroy(struct world *world)
{
    if (world->agent.report != NULL)
        agent_close(&world->agent);
    redis_link_close(&world->reader, note_closed, &world->is_reader_closed);
    cr_assert(loop_run_until_flag(&world->is_reader_closed, WAIT_MS));
    redis_server_destroy(world->server);
    free(world);
}

static void world_set(struct world *world, uint64_t hash, uint32_t tokens, uint8_t tiers)
{
    const struct residency_record record = {hash, tokens, tiers};

    cr_assert(eq(int, residency_report_set(world->agent.report, record), 0));
    world->held[hash] = record;
}

static void world_set_many(struct world *world, uint64_t first, uint64_t last)
{
    for (uint64_t hash = first; hash <= last; hash++)
        world_set(world, hash, 16, 1);
}

static void world_set_at_random(struct world *world, uint64_t *random, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t next = random_next(random);

        world_set(world, 1 + next % HASH_COUNT, (uint32_t)(next >> 40) % 100000,
                  (uint8_t)(next >> 32 & 1));
    }
}

static void ask(const struct world *world, const char *command, const char *expected)
{
    char reply[256];

    redis_server_ask(world->server, command, reply, sizeof reply);
    cr_assert(eq(str, reply, (char *)(uintptr_t)expected), "%s", command);
}

/* ---- reading it all ---- */

static void count_page(struct snapshot *snapshot, struct slice page)
{
    cr_assert(eq(sz, page.len, RESIDENCY_PAGE_BYTES));
    for (size_t at = 0; at < page.len; at += RESIDENCY_RECORD_BYTES) {
        const struct residency_record record =
            residency_record_read((const uint8_t *)page.ptr + at);

        if (record.hash == 0)
            continue;
        cr_assert(ne(u8, record.tiers, 0));
        cr_assert(le(u64, record.hash, HASH_COUNT));
        cr_assert(eq(u8, snapshot->held[record.hash].tiers, 0), "a hash lies in two places");
        snapshot->held[record.hash] = record;
        snapshot->count++;
        snapshot->digest += residency_record_digest(record);
    }
}

/* Of the same life, with the same pages. */
static bool is_lease(const struct residency_lease *lease, const struct redis_reply *reply)
{
    struct residency_lease now;

    return residency_lease_read(redis_reply_text(reply), &now) == 0 &&
           now.life.epoch == lease->life.epoch && now.life.generation == lease->life.generation &&
           now.page_count == lease->page_count;
}

static void on_pages(void *ctx, int error, const struct redis_reply *reply)
{
    struct snapshot *snapshot = ctx;

    cr_assert(eq(int, error, 0));
    snapshot->is_done = true;
    snapshot->is_replaced = !is_lease(&snapshot->lease, redis_reply_at(reply, 0));
    if (snapshot->is_replaced)
        return;
    for (size_t i = 2; i < redis_reply_count(reply); i++)
        count_page(snapshot, redis_reply_text(redis_reply_at(reply, i)));
    if (redis_reply_count(redis_reply_at(reply, 1)) > 0) {
        const struct redis_reply *entry = redis_reply_at(redis_reply_at(reply, 1), 0);
        const struct redis_reply *fields = redis_reply_at(entry, 1);

        snapshot->sequence = strtoull(redis_reply_text(redis_reply_at(entry, 0)).ptr, NULL, 10);
        cr_assert(eq(
            int,
            residency_change_read(redis_reply_text(redis_reply_at(fields, 1)), &snapshot->change),
            0));
    }
    snapshot->is_done = true;
}

static void on_lease(void *ctx, int error, const struct redis_reply *reply)
{
    struct snapshot *snapshot = ctx;

    cr_assert(eq(int, error, 0));
    snapshot->has_lease = redis_reply_kind(reply) == REDIS_REPLY_TEXT;
    if (snapshot->has_lease)
        cr_assert(eq(int, residency_lease_read(redis_reply_text(reply), &snapshot->lease), 0));
    snapshot->is_done = true;
}

static void send_words(struct redis_link *link, const struct slice *words, size_t count,
                       redis_done_fn *on_done, void *ctx)
{
    cr_assert(eq(int, redis_link_send(link, words, count, on_done, ctx), 0));
}

static void read_lease(struct world *world)
{
    char key[RESIDENCY_KEY_BYTES_MAX];
    const size_t len = residency_key(key, worker, RESIDENCY_KEY_LEASE);
    const struct slice get[] = {SLICE("GET"), slice_of(key, len)};

    memset(&world->snapshot, 0, sizeof world->snapshot);
    await(is_reader_ready, world);
    send_words(world->reader, get, array_count(get), on_lease, &world->snapshot);
    cr_assert(loop_run_until_flag(&world->snapshot.is_done, WAIT_MS));
}

/* In one transaction, with the lease by which it is known what to read. */
static void read_pages(struct world *world)
{
    const struct residency_lease lease = world->snapshot.lease;
    char key[RESIDENCY_KEY_BYTES_MAX], lease_key[RESIDENCY_KEY_BYTES_MAX];
    const size_t len = residency_key_out(key, worker, lease.life);
    const size_t lease_len = residency_key(lease_key, worker, RESIDENCY_KEY_LEASE);
    const struct slice multi[] = {SLICE("MULTI")}, exec[] = {SLICE("EXEC")};
    const struct slice last[] = {SLICE("XREVRANGE"), slice_of(key, len), SLICE("+"),
                                 SLICE("-"),         SLICE("COUNT"),     SLICE("1")};

    const struct slice get_lease[] = {SLICE("GET"), slice_of(lease_key, lease_len)};

    world->snapshot.is_done = false;
    send_words(world->reader, multi, array_count(multi), NULL, NULL);
    send_words(world->reader, get_lease, array_count(get_lease), NULL, NULL);
    send_words(world->reader, last, array_count(last), NULL, NULL);
    for (uint32_t page = 0; page < lease.page_count; page++) {
        char page_key[RESIDENCY_KEY_BYTES_MAX];
        const size_t page_len = residency_key_page(page_key, worker, lease.life, page);
        const struct slice get[] = {SLICE("GET"), slice_of(page_key, page_len)};

        send_words(world->reader, get, array_count(get), NULL, NULL);
    }
    send_words(world->reader, exec, array_count(exec), on_pages, &world->snapshot);
    cr_assert(loop_run_until_flag(&world->snapshot.is_done, WAIT_MS));
}

/* Pages and the last change say the same; false: nobody is to be believed now. */
static bool world_read(struct world *world)
{
    const struct snapshot *snapshot = &world->snapshot;

    do {
        read_lease(world);
        if (!snapshot->has_lease)
            return false;
        read_pages(world);
    } while (snapshot->is_replaced);
    cr_assert(ge(u64, snapshot->sequence, 1));
    cr_assert(eq(u64, snapshot->count, snapshot->change.count));
    cr_assert(eq(u64, snapshot->digest, snapshot->change.digest));
    return true;
}

/* Redis has what was set, all of it and nothing else. */
static void check_published(struct world *world)
{
    await(is_settled, &world->agent);
    cr_assert(world_read(world));
    for (uint64_t hash = 1; hash <= HASH_COUNT; hash++) {
        cr_assert(eq(u8, world->snapshot.held[hash].tiers, world->held[hash].tiers), "%" PRIu64,
                  hash);
        if (world->held[hash].tiers != 0)
            cr_assert(eq(u32, world->snapshot.held[hash].tokens, world->held[hash].tokens));
    }
    cr_assert(eq(u64, world->snapshot.sequence, agent_stats(&world->agent).sequence));
    cr_assert(
        eq(u32, world->snapshot.lease.life.generation, agent_stats(&world->agent).generation));
}

TestSuite(residency_report, .init = loop_fixture_init, .fini = loop_fixture_fini, .timeout = 30);

/* ---- tests ---- */

Test(residency_report, every_state_and_event_has_its_place_in_the_table)
{
    static const int expected[RESIDENCY_REPORT_STATE_COUNT][RESIDENCY_REPORT_EVENT_COUNT] = {
        [RESIDENCY_REPORT_AWAY] = {1, 0, -1, -1, -1, -1, -1, -1, -1, 6},
        [RESIDENCY_REPORT_LOOKING] = {1, 0, -1, -1, 5, 2, 3, -1, -1, 6},
        [RESIDENCY_REPORT_RIVALLED] = {1, 0, 1, -1, -1, -1, -1, -1, -1, 6},
        [RESIDENCY_REPORT_PAGING] = {1, 0, -1, -1, -1, -1, 3, 4, -1, 6},
        [RESIDENCY_REPORT_OPENING] = {1, 0, -1, -1, -1, 2, 3, -1, 5, 6},
        [RESIDENCY_REPORT_LIVE] = {1, 0, -1, 1, -1, 2, 3, -1, -1, 6},
        [RESIDENCY_REPORT_CLOSED] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
    };

    for (int state = 0; state < RESIDENCY_REPORT_STATE_COUNT; state++) {
        for (int event = 0; event < RESIDENCY_REPORT_EVENT_COUNT; event++) {
            int after = residency_report_state_after((enum residency_report_state)state,
                                                     (enum residency_report_event)event);

            cr_assert(eq(int, after, expected[state][event]), "state %d, event %d", state, event);
        }
    }
}

Test(residency_report, what_is_held_is_published_with_who_holds_it)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, 5000);

    check_published(world);

    cr_assert(eq(u64, world->snapshot.lease.fingerprint, 0xfe));
    cr_assert(eq(u64, world->snapshot.lease.life.epoch, 0xabc));
    cr_assert(world->snapshot.lease.is_whole);
    cr_assert(eq(u32, world->snapshot.lease.interval_ms, LEASE_MS / 3));
    ask(world, "SMEMBERS smv:00000000000000fe:workers", "*1\r\n$20\r\nhttp://10.0.0.1:8000\r\n");
    ask(world, "HMGET smv:{http://10.0.0.1:8000}:meta epoch engine block_tokens",
        "*3\r\n$16\r\n0000000000000abc\r\n$4\r\nvllm\r\n$2\r\n16\r\n");
    ask(world,
        "EVAL \"for _, k in ipairs(redis.call('KEYS', 'smv:{*')) do "
        "if redis.call('PTTL', k) < 0 then return k end end\" 0",
        "$-1\r\n");
    world_destroy(world);
}

Test(residency_report, a_worker_that_holds_nothing_is_published_too)
{
    struct world *world = world_create(NULL);

    check_published(world);

    cr_assert(eq(u64, world->snapshot.change.count, 0));
    cr_assert(eq(u32, world->snapshot.lease.page_count, 0));
    world_destroy(world);
}

Test(residency_report, whoever_reads_at_any_moment_reads_what_adds_up)
{
    struct world *world = world_create(NULL);
    uint64_t random = 7;
    size_t read_count = 0;

    for (int i = 0; i < 200; i++) {
        world_set_at_random(world, &random, random_next(&random) % 300);
        loop_run_for(random_next(&random) % 4);
        read_count += world_read(world);
    }

    check_published(world);
    cr_assert(ge(sz, read_count, 100));
    cr_assert(eq(u32, agent_stats(&world->agent).generation, 1));
    cr_assert(ge(u64, agent_stats(&world->agent).flush_total, 50));
    world_destroy(world);
}

Test(residency_report, more_than_one_flush_takes_is_said_in_several)
{
    struct world *world = world_create(NULL);
    await(is_live, &world->agent);

    world_set_many(world, 1, 5000);
    check_published(world);

    cr_assert(eq(u32, agent_stats(&world->agent).generation, 1));
    cr_assert(ge(u64, agent_stats(&world->agent).flush_total, 5));
    cr_assert(eq(u64, agent_stats(&world->agent).record_total, 5000));
    world_destroy(world);
}

Test(residency_report, an_empty_redis_is_filled_again)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, 5000);
    check_published(world);

    redis_server_kill(world->server);
    world_set_many(world, 4000, 6000);
    redis_server_restart(world->server);
    await(is_not_live, &world->agent);

    check_published(world);
    cr_assert(eq(u32, agent_stats(&world->agent).generation, 2));
    cr_assert(eq(u64, agent_stats(&world->agent).anew_total, 2));
    world_destroy(world);
}

static bool is_generation_2(void *ctx)
{
    const struct agent *agent = ctx;

    return agent_stats(agent).generation == 2 && is_settled(ctx);
}

Test(residency_report, a_flushall_is_noticed_by_the_next_flush)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, 5000);
    check_published(world);

    ask(world, "FLUSHALL", "+OK\r\n");
    world_set_many(world, 1, 1); /* as it is: nothing to say */
    world_set(world, 2, 99, 1);
    await(is_generation_2, &world->agent);

    check_published(world);
    world_destroy(world);
}

Test(residency_report, a_flushall_is_noticed_by_the_heartbeat)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, 100);
    check_published(world);

    ask(world, "FLUSHALL", "+OK\r\n");
    await(is_generation_2, &world->agent);

    check_published(world);
    world_destroy(world);
}

Test(residency_report, a_page_that_vanishes_is_noticed_by_a_change_in_it)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, 5000);
    check_published(world);

    ask(world, "DEL smv:{http://10.0.0.1:8000}:0000000000000abc-1:p:1", ":1\r\n");
    world_set(world, 1, 99, 1); /* in page 0 */
    await(is_settled, &world->agent);
    cr_assert(eq(u32, agent_stats(&world->agent).generation, 1), "this one cannot see it");
    world_set(world, 5000, 99, 1);
    await(is_generation_2, &world->agent);

    check_published(world);
    world_destroy(world);
}

Test(residency_report, a_page_that_vanishes_is_noticed_by_the_sweep)
{
    struct residency_report_config config = report_config(0xabc);
    struct world *world;
    config.page_ttl_s = 3; /* a sweep takes half a second */
    world = world_create_with(NULL, config);
    world_set_many(world, 1, 5000);
    check_published(world);

    ask(world, "DEL smv:{http://10.0.0.1:8000}:0000000000000abc-1:p:1", ":1\r\n");
    await(is_generation_2, &world->agent);

    check_published(world);
    world_destroy(world);
}

Test(residency_report, what_is_renewed_outlives_its_time)
{
    struct residency_report_config config = report_config(0xabc);
    struct world *world;
    config.page_ttl_s = 1;
    world = world_create_with(NULL, config);
    world_set_many(world, 1, 10000);
    check_published(world);

    loop_run_for(2500);

    check_published(world);
    cr_assert(eq(u32, agent_stats(&world->agent).generation, 1));
    ask(world, "EXISTS smv:{http://10.0.0.1:8000}:meta", ":1\r\n");
    world_destroy(world);
}

Test(residency_report, a_server_that_stood_still_is_continued)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, 5000);
    check_published(world);

    redis_server_stop(world->server);
    world_set_many(world, 4000, 6000); /* said into the void: EXEC's reply does not come */
    await(is_not_live, &world->agent);
    world_set(world, 1, 77, 1);
    redis_server_continue(world->server);

    check_published(world);
    cr_assert(eq(u32, agent_stats(&world->agent).generation, 1));
    world_destroy(world);
}

/* Redis keeps what it was told, and is killed before it reads a flush. */
Test(residency_report, a_flush_that_was_not_taken_is_said_again)
{
    static const char *const options[] = {"--appendonly", "yes", "--appendfsync", "always", NULL};
    struct world *world = world_create(options);
    world_set_many(world, 1, 5000);
    check_published(world);

    redis_server_stop(world->server);
    world_set_many(world, 4990, 6000);
    loop_run_for(50); /* it is sent */
    redis_server_kill(world->server);
    redis_server_restart(world->server);
    await(is_not_live, &world->agent);

    check_published(world);
    cr_assert(eq(u32, agent_stats(&world->agent).generation, 1));
    world_destroy(world);
}

Test(residency_report, when_too_much_has_changed_all_is_said_anew)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, 5000);
    check_published(world);

    redis_server_stop(world->server);
    for (uint64_t hash = 1; hash <= 5000; hash++)
        world_set(world, hash, 0, 0);
    await(is_not_live, &world->agent);
    world_set_many(world, 5001, 8000);
    for (uint64_t hash = 8001; hash <= HASH_COUNT; hash++)
        world_set(world, hash, 16, 1);
    redis_server_continue(world->server);

    check_published(world);
    cr_assert(eq(u32, agent_stats(&world->agent).generation, 2));
    world_destroy(world);
}

static bool are_four_keys_left(void *ctx)
{
    const struct world *world = ctx;
    char reply[64];

    redis_server_ask(world->server, "DBSIZE", reply, sizeof reply);
    return strcmp(reply, ":4\r\n") == 0; /* workers, meta, lease, out */
}

Test(residency_report, after_a_clear_nothing_is_claimed_and_the_old_pages_go)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, 9000);
    check_published(world);

    residency_report_clear(world->agent.report);
    memset(world->held, 0, sizeof world->held);

    check_published(world);
    cr_assert(eq(u64, world->snapshot.change.count, 0));
    cr_assert(eq(u32, agent_stats(&world->agent).generation, 2));
    await(are_four_keys_left, world);
    world_set_many(world, 1, 10);
    check_published(world);
    world_destroy(world);
}

Test(residency_report, a_clear_while_something_is_under_way_counts)
{
    for (uint64_t turns = 0; turns < 12; turns++) {
        struct world *world = world_create(NULL);
        world_set_many(world, 1, 9000);
        for (uint64_t i = 0; i < turns; i++)
            uv_run(loop_fixture_loop(), UV_RUN_ONCE);

        residency_report_clear(world->agent.report);
        memset(world->held, 0, sizeof world->held);
        world_set_many(world, 100, 200);

        check_published(world);
        world_destroy(world);
    }
}

Test(residency_report, a_redis_that_refuses_is_asked_again_until_it_does_not)
{
    static const char *const rows[][2] = {
        {"CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"},
        {"REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"},
        {"ACL SETUSER agent-1 -exec", "ACL SETUSER agent-1 +exec"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct world *world = world_create(NULL);
        world_set_many(world, 1, 5000);
        check_published(world);

        ask(world, rows[i][0], "+OK\r\n");
        world_set_many(world, 4000, 6000);
        await(is_failing, &world->agent);
        cr_assert(eq(u32, world->agent.away_count, 0), "the link stays");
        ask(world, rows[i][1], "+OK\r\n");

        check_published(world);
        world_destroy(world);
    }
}

Test(residency_report, a_redis_that_refuses_from_the_start_is_filled_when_it_does_not)
{
    static const char *const options[] = {"--maxmemory", "1", NULL};
    struct world *world = world_create(options);
    world_set_many(world, 1, 5000);

    await(is_failing, &world->agent);
    read_lease(world);
    cr_assert(not(world->snapshot.has_lease), "nobody is to believe half of it");
    ask(world, "CONFIG SET maxmemory 0", "+OK\r\n");

    check_published(world);
    world_destroy(world);
}

Test(residency_report, the_lease_ends_when_the_agent_does)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, 10);
    check_published(world);

    agent_close(&world->agent);

    read_lease(world);
    cr_assert(not(world->snapshot.has_lease));
    world_destroy(world);
}

static bool has_no_lease(void *ctx)
{
    struct world *world = ctx;
    char reply[64];

    redis_server_ask(world->server, "EXISTS smv:{http://10.0.0.1:8000}:lease", reply, sizeof reply);
    return strcmp(reply, ":0\r\n") == 0;
}

Test(residency_report, the_lease_of_an_agent_that_is_killed_runs_out)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, 10);
    check_published(world);

    agent_kill(&world->agent);
    read_lease(world);
    cr_assert(world->snapshot.has_lease);

    await(has_no_lease, world);
    world_destroy(world);
}

Test(residency_report, who_comes_second_waits_for_the_first_to_go)
{
    struct world *world = world_create(NULL);
    struct agent rival;
    world_set_many(world, 1, 10);
    check_published(world);

    agent_open(&rival, redis_server_url(world->server), report_config(0xdef));
    await(is_rivalled, &rival);
    loop_run_for(3 * LEASE_MS);
    cr_assert(is_live(&world->agent), "the first is not disturbed");
    cr_assert(is_rivalled(&rival));
    cr_assert(eq(u32, agent_stats(&rival).generation, 0), "nothing is published");
    check_published(world);
    agent_close(&world->agent);
    await(is_live, &rival);

    cr_assert(not(is_rivalled(&rival)));
    ask(world, "HGET smv:{http://10.0.0.1:8000}:meta epoch", "$16\r\n0000000000000def\r\n");
    agent_close(&rival);
    world_destroy(world);
}

Test(residency_report, who_comes_after_a_killed_one_takes_over_when_its_lease_is_out)
{
    struct world *world = world_create(NULL);
    struct agent next;
    world_set_many(world, 1, 10);
    check_published(world);
    agent_kill(&world->agent);

    agent_open(&next, redis_server_url(world->server), report_config(0xdef));
    await(is_rivalled, &next);
    await(is_live, &next);

    cr_assert(eq(u64, agent_stats(&next).record_count, 0));
    cr_assert(world_read(world));
    cr_assert(eq(u64, world->snapshot.lease.life.epoch, 0xdef));
    cr_assert(eq(u64, world->snapshot.change.count, 0), "nothing of the one before is claimed");
    agent_close(&next);
    world_destroy(world);
}

struct pair {
    const struct agent *first, *second;
};

static bool is_one_live_and_one_rivalled(void *ctx)
{
    const struct pair *pair = ctx;
    const struct residency_report_stats a = agent_stats(pair->first), b = agent_stats(pair->second);

    return (a.is_live && b.is_rivalled && !b.is_live) || (b.is_live && a.is_rivalled && !a.is_live);
}

Test(residency_report, of_two_that_come_at_once_one_stays)
{
    for (int i = 0; i < 3; i++) {
        struct world *world = world_create(NULL);
        struct agent rival;
        struct pair pair = {&world->agent, &rival};
        agent_open(&rival, redis_server_url(world->server), report_config(0xdef));

        await(is_one_live_and_one_rivalled, &pair);
        loop_run_for(2 * LEASE_MS);

        cr_assert(is_one_live_and_one_rivalled(&pair), "and it stays so");
        agent_close(&rival);
        world_destroy(world);
    }
}

/* As agent_open(), of whoever knows that the lives of epochs are over. */
static void successor_open(struct agent *agent, struct world *world,
                           const uint64_t epochs[RESIDENCY_FORMER_COUNT_MAX])
{
    agent_open(agent, redis_server_url(world->server), report_config(0xdef));
    residency_report_succeed(agent->report, epochs);
}

Test(residency_report, a_life_that_is_over_is_succeeded_while_its_lease_lives)
{
    static const uint64_t epochs[RESIDENCY_FORMER_COUNT_MAX] = {0x123, 0xabc};
    struct residency_report_config config = report_config(0xabc);
    struct world *world;
    struct agent next;
    config.lease_ms = LONG_LEASE_MS;
    world = world_create_with(NULL, config);
    world_set_many(world, 1, 10);
    check_published(world);
    agent_kill(&world->agent);

    successor_open(&next, world, epochs);
    await(is_live, &next);

    cr_assert(world_read(world));
    cr_assert(eq(u64, world->snapshot.lease.life.epoch, 0xdef));
    cr_assert(eq(u64, world->snapshot.lease.after_epoch, 0xabc), "it says after whom it comes");
    cr_assert(eq(u64, world->snapshot.change.count, 0), "nothing of the one before is claimed");
    agent_close(&next);
    world_destroy(world);
}

Test(residency_report, no_other_life_is_succeeded)
{
    static const uint64_t epochs[RESIDENCY_FORMER_COUNT_MAX] = {0xab, 0xabcd};
    struct world *world = world_create(NULL);
    struct agent next;
    check_published(world);

    successor_open(&next, world, epochs);
    await(is_rivalled, &next);
    loop_run_for(3 * LEASE_MS);

    cr_assert(is_live(&world->agent), "the first is not disturbed");
    cr_assert(eq(u32, agent_stats(&next).generation, 0), "nothing is published");
    agent_close(&next);
    world_destroy(world);
}

Test(residency_report, of_one_that_was_thought_dead_and_lives_and_its_successor_one_falls_silent)
{
    static const uint64_t epochs[RESIDENCY_FORMER_COUNT_MAX] = {0xabc};
    struct world *world = world_create(NULL);
    struct agent next;
    struct pair pair = {&world->agent, &next};
    check_published(world);

    successor_open(&next, world, epochs);
    await(is_rivalled, &world->agent);
    await(is_one_live_and_one_rivalled, &pair);
    loop_run_for(3 * LEASE_MS);

    cr_assert(is_one_live_and_one_rivalled(&pair), "and it stays so");
    agent_close(&next);
    world_destroy(world);
}

Test(residency_report, more_than_can_be_held_is_refused_and_counted)
{
    struct world *world = world_create(NULL);
    world_set_many(world, 1, HASH_COUNT);

    int status =
        residency_report_set(world->agent.report, (struct residency_record){HASH_COUNT + 1, 16, 1});

    cr_assert(eq(int, status, -ENOBUFS));
    cr_assert(eq(u64, agent_stats(&world->agent).refused_total, 1));
    check_published(world);
    world_destroy(world);
}

Test(residency_report, out_keeps_so_many_changes_and_no_more)
{
    struct residency_report_config config = report_config(0xabc);
    struct world *world;
    char reply[64];
    config.change_count_max = 16;
    world = world_create_with(NULL, config);
    await(is_live, &world->agent);

    for (uint64_t i = 0; i < 100; i++) {
        world_set_many(world, 100 * i + 1, 100 * i + 100); /* 1,200 bytes: few in one node */
        await(is_settled, &world->agent);
    }

    redis_server_ask(world->server, "XLEN smv:{http://10.0.0.1:8000}:0000000000000abc-1:out", reply,
                     sizeof reply);
    cr_assert(ge(int, (int)strtol(reply + 1, NULL, 10), 16), "%s", reply);
    cr_assert(le(int, (int)strtol(reply + 1, NULL, 10), 24), "%s", reply);
    check_published(world);
    world_destroy(world);
}

Test(residency_report, meta_and_load_that_change_are_told)
{
    struct world *world = world_create(NULL);
    struct residency_meta meta = some_meta();
    check_published(world);

    meta.block_tokens = 32;
    residency_report_set_meta(world->agent.report, &meta);
    residency_report_set_load(world->agent.report, true, 3, 1);
    residency_report_set_whole(world->agent.report, false);
    do
        read_lease(world);
    while (!world->snapshot.lease.has_load);

    ask(world, "HGET smv:{http://10.0.0.1:8000}:meta block_tokens", "$2\r\n32\r\n");
    cr_assert(eq(u32, world->snapshot.lease.running, 3));
    cr_assert(eq(u32, world->snapshot.lease.waiting, 1));
    cr_assert(not(world->snapshot.lease.is_whole));
    world_destroy(world);
}

Test(residency_report, it_can_be_closed_at_any_time)
{
    for (uint64_t turns = 0; turns < 16; turns++) {
        struct world *world = world_create(NULL);
        world_set_many(world, 1, 6000);
        for (uint64_t i = 0; i < turns; i++)
            uv_run(loop_fixture_loop(), UV_RUN_ONCE);

        agent_close(&world->agent);

        cr_assert(world->agent.is_report_closed);
        world_destroy(world);
    }
}
