/* SPDX-License-Identifier: Apache-2.0 */

#include "router/request_record.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backends/runtime/log.h"
#include "backends/runtime/must_check.h"
#include "router/relay.h"
#include "tests/support/leak_check.h"

enum { LINE_BYTES_MAX = 8192 };

/* Counters and a log that can be read back. Of the relay only the counters are used here. */
struct record_world {
    struct relay *relay;
    struct request_record record;
    int fds[2];
    char line[LINE_BYTES_MAX];
};

static void record_world_init(struct record_world *world, enum log_level level)
{
    world->relay = calloc(1, sizeof *world->relay);
    router_stats_init(&world->relay->stats);
    cr_assert(eq(int, pipe(world->fds), 0));
    fcntl(world->fds[0], F_SETFL, O_NONBLOCK);
    log_init(world->fds[1], level, LOG_FORMAT_LOGFMT);
    world->record = (struct request_record){
        .begun_us = 1000000,
        .read_us = 1001000,
        .method = HTTP_METHOD_POST,
        .status = 200,
        .request_id = "req-1",
        .path = "/v1/chat/completions",
        .bytes_in = 10,
        .bytes_out = 20,
    };
}

static void record_world_release(struct record_world *world)
{
    close(world->fds[0]);
    close(world->fds[1]);
    free(world->relay);
}

/* Of a request that a worker answered, with usage. */
static void make_relayed(struct request_record *record)
{
    record->is_relayed = true;
    record->parsed_us = 1002000;
    record->sent_us = 1005000;
    record->token_us = 1105000;
    record->connect_us = 500;
    record->overhead_us = 250;
    record->worker = "http://127.0.0.1:8001";
    record->policy = "ttft";
    record->rung = ROUTE_RUNG_GUESS;
    record->attempt_count = 1;
    record->prompt_block_count = 7;
    record->matched_block_count = 5;
    record->predicted_ttft_ms = 12.5;
    record->predicted_cached_tokens = 90.7;
    record->has_usage = true;
    record->has_cached = true;
    record->cached_tokens = 80;
    record->prompt_tokens = 100;
    record->completion_tokens = 9;
    record->event_count = 11;
    request_record_copy(record->attempt_id, sizeof record->attempt_id, SLICE("req-1-abcdef"));
    request_record_copy(record->model, sizeof record->model, SLICE("tiny"));
}

/* Finishes the record at 1.2 s; what was logged, from the event's name on. */
static const char *finish(struct record_world *world)
{
    ssize_t count;
    char *event;

    request_record_finish(&world->record, world->relay, 1200000);
    log_flush();
    count = read(world->fds[0], world->line, sizeof world->line - 1);
    world->line[count > 0 ? count : 0] = '\0';
    event = strstr(world->line, "event=");
    return event != NULL ? event : "";
}

TestSuite(request_record, .fini = leak_check);

Test(request_record, a_request_that_a_worker_answered_has_all_fields)
{
    struct record_world world;
    record_world_init(&world, LOG_INFO);
    make_relayed(&world.record);

    cr_assert(eq(str, (char *)finish(&world),
                 "event=request request_id=req-1 attempt_id=req-1-abcdef api=chat method=POST "
                 "path=/v1/chat/completions status=200 end=ok model=tiny "
                 "worker=http://127.0.0.1:8001 policy=ttft rung=guess attempts=1 prompt_blocks=7 "
                 "matched_blocks=5 predicted_cached_tokens=90 guessed_tokens=90 cached_tokens=80 "
                 "prompt_tokens=100 completion_tokens=9 predicted_ttft_ms=12.500 queue_ms=3.000 "
                 "connect_ms=0.500 "
                 "ttft_ms=105.000 total_ms=200.000 overhead_us=250 bytes_in=10 bytes_out=20 "
                 "events=11\n"));

    record_world_release(&world);
}

Test(request_record, what_is_claimed_and_where_it_lies_are_told_apart)
{
    struct record_world world;
    record_world_init(&world, LOG_INFO);
    make_relayed(&world.record);
    world.record.claimed_tokens = 80;
    world.record.cpu_tokens = 30;
    world.record.ssd_tokens = 20;
    world.record.move_ms = 1.25;
    world.record.prefill_ms = 2.5;

    cr_assert(ne(ptr,
                 strstr(finish(&world), " predicted_cached_tokens=90 claimed_tokens=80 "
                                        "guessed_tokens=10 matched_hbm_tokens=40 "
                                        "matched_cpu_tokens=30 matched_ssd_tokens=20 "
                                        "move_ms=1.250 prefill_ms=2.500 cached_tokens=80 "),
                 NULL));

    record_world_release(&world);
}

Test(request_record, one_that_no_worker_saw_has_only_what_is_known)
{
    struct record_world world;
    record_world_init(&world, LOG_INFO);
    world.record.api = API_OTHER;
    world.record.status = 404;
    world.record.end = END_CLIENT_ERROR;
    world.record.phase = ABORT_READ;
    world.record.path[0] = '\0'; /* of no endpoint of ours: it may hold anything */

    cr_assert(eq(str, (char *)finish(&world),
                 "event=request request_id=req-1 api=other method=POST status=404 "
                 "end=client_error phase=read total_ms=200.000 bytes_in=10 bytes_out=20\n"));

    record_world_release(&world);
}

Test(request_record, it_ends_once_and_counts_without_a_line_too)
{
    struct record_world world;
    record_world_init(&world, LOG_ERROR);

    cr_assert(eq(str, (char *)finish(&world), ""));

    cr_assert(eq(u64, world.record.begun_us, 0));
    cr_assert(eq(u64, histogram_count(&world.relay->stats.request_duration_seconds), 1));
    record_world_release(&world);
}

/* The sum over all labels. */
static uint64_t requests_total(const struct router_stats *stats)
{
    uint64_t sum = 0;

    for (size_t api = 0; api < API_COUNT; api++)
        for (size_t status = 0; status < STATUS_CLASS_COUNT; status++)
            for (size_t end = 0; end < END_REASON_COUNT; end++)
                sum += stats->requests_total[api][status][end];
    return sum;
}

Test(request_record, every_end_has_a_counter_of_its_own)
{
    for (int end = 0; end < END_REASON_COUNT; end++) {
        struct record_world world;
        record_world_init(&world, LOG_ERROR);
        world.record.api = API_COMPLETIONS;
        world.record.status = 502;
        world.record.end = (enum end_reason)end;
        world.record.phase = ABORT_SEND;

        finish(&world);

        const struct router_stats *stats = &world.relay->stats;
        cr_assert(eq(u64, requests_total(stats), 1));
        cr_assert(eq(u64, stats->requests_total[API_COMPLETIONS][STATUS_CLASS_5XX][end], 1));
        cr_assert(eq(u64, stats->client_aborts_total[ABORT_SEND], end == END_CLIENT_ABORT));
        cr_assert(eq(u64, stats->truncated_streams_total, end == END_UPSTREAM_TRUNCATED));
        record_world_release(&world);
    }
}

Test(request_record, usage_is_compared_with_the_prediction_where_the_engine_says_it)
{
    struct record_world world;
    record_world_init(&world, LOG_ERROR);
    make_relayed(&world.record);

    finish(&world);

    const struct router_stats *stats = &world.relay->stats;
    cr_assert(eq(u64, stats->prompt_tokens_total, 100));
    cr_assert(eq(u64, stats->reported_cached_tokens_total, 80));
    cr_assert(eq(u64, stats->predicted_cached_tokens_total, 90));
    cr_assert(eq(u64, histogram_count(&stats->prediction_error_tokens), 1));
    cr_assert(epsilon_eq(dbl, stats->prediction_error_tokens.sum, 10.7, 1e-9));
    cr_assert(eq(u64, histogram_count(&stats->ttft_seconds), 1));
    cr_assert(epsilon_eq(dbl, stats->ttft_seconds.sum, 0.105, 1e-9));
    cr_assert(eq(u64, histogram_count(&stats->queue_seconds), 1));
    cr_assert(eq(u64, histogram_count(&stats->overhead_seconds), 1));
    record_world_release(&world);
}

Test(request_record, what_an_engine_does_not_say_is_not_compared)
{
    struct record_world world;
    record_world_init(&world, LOG_ERROR);
    make_relayed(&world.record);
    world.record.has_cached = false;

    finish(&world);

    cr_assert(eq(u64, world.relay->stats.prompt_tokens_total, 100));
    cr_assert(eq(u64, world.relay->stats.predicted_cached_tokens_total, 0));
    cr_assert(eq(u64, histogram_count(&world.relay->stats.prediction_error_tokens), 0));
    record_world_release(&world);
}

Test(request_record, a_failed_request_has_no_overhead_and_no_first_token)
{
    struct record_world world;
    record_world_init(&world, LOG_ERROR);
    make_relayed(&world.record);
    world.record.end = END_UPSTREAM_TIMEOUT;
    world.record.token_us = 0;

    finish(&world);

    cr_assert(eq(u64, histogram_count(&world.relay->stats.overhead_seconds), 0));
    cr_assert(eq(u64, histogram_count(&world.relay->stats.ttft_seconds), 0));
    record_world_release(&world);
}

Test(request_record, a_path_loses_its_query_and_what_is_too_long)
{
    struct request_record record;
    char long_path[2 * REQUEST_PATH_BYTES_MAX];
    memset(long_path, 'a', sizeof long_path);

    request_record_set_path(&record, SLICE("/v1/models?key=secret?x"));
    cr_assert(eq(str, record.path, "/v1/models"));
    request_record_set_path(&record, SLICE("?secret"));
    cr_assert(eq(str, record.path, ""));
    request_record_set_path(&record, slice_of(NULL, 0));
    cr_assert(eq(str, record.path, ""));
    request_record_set_path(&record, slice_of(long_path, sizeof long_path));
    cr_assert(eq(sz, strlen(record.path), REQUEST_PATH_BYTES_MAX));
}

Test(request_record, a_field_takes_what_fits_and_ends)
{
    char field[4] = "xxx";

    request_record_copy(field, sizeof field, SLICE("ab"));
    cr_assert(eq(str, field, "ab"));
    request_record_copy(field, sizeof field, SLICE("abc"));
    cr_assert(eq(str, field, "abc"));
    request_record_copy(field, sizeof field, SLICE("abcd"));
    cr_assert(eq(str, field, "abc"));
}
