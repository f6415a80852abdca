/* SPDX-License-Identifier: Apache-2.0 */

#include "router/metrics.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/worker_set.h"
#include "tests/support/leak_check.h"
#include "tests/support/worker_by_url.h"

struct metrics_world {
    struct router_stats stats;
    struct worker_set *workers;
    struct metrics_sources sources;
    struct buf text;
};

static void metrics_world_init(struct metrics_world *world)
{
    struct worker *worker;

    router_stats_init(&world->stats);
    world->workers = worker_set_create();
    cr_assert(eq(int, add_worker_by_url(world->workers, "http://127.0.0.1:8001", 0, &worker), 0));
    cr_assert(eq(int, add_worker_by_url(world->workers, "http://127.0.0.1:8002", 0, &worker), 0));
    world->sources = (struct metrics_sources){.stats = &world->stats, .workers = world->workers};
    buf_init(&world->text, 1 << 20);
}

/* The text of a scrape, NUL-terminated until the next one. */
static const char *scrape(struct metrics_world *world)
{
    buf_clear(&world->text);
    cr_assert(eq(int, metrics_write(&world->text, &world->sources), 0));
    cr_assert(eq(int, buf_append(&world->text, slice_of("", 1)), 0));
    return buf_slice(&world->text).ptr;
}

static bool has_line(const char *text, const char *line)
{
    const char *at = strstr(text, line);

    return at != NULL && (at == text || at[-1] == '\n') && at[strlen(line)] == '\n';
}

static void metrics_world_release(struct metrics_world *world)
{
    buf_release(&world->text);
    worker_set_destroy(world->workers);
}

TestSuite(metrics, .fini = leak_check);

Test(metrics, what_is_bumped_is_what_is_shown)
{
    struct metrics_world world;
    metrics_world_init(&world);

    world.stats.requests_total[API_CHAT][STATUS_CLASS_2XX][END_OK] = 7;
    world.stats.requests_total[API_OTHER][STATUS_CLASS_NONE][END_CLIENT_ABORT] = 2;
    world.stats.retries_total[RETRY_WORKER_DIED] = 3;
    world.stats.client_connections = 5;
    histogram_observe(&world.stats.ttft_seconds, 0.03);
    worker_set_at(world.workers, 1)->stats.chosen_total = 9;

    const char *text = scrape(&world);
    cr_assert(has_line(text, "samovar_router_requests_total{api=\"chat\",status=\"2xx\","
                             "reason=\"ok\"} 7"));
    cr_assert(has_line(text, "samovar_router_requests_total{api=\"other\",status=\"none\","
                             "reason=\"client_abort\"} 2"));
    cr_assert(has_line(text, "samovar_router_retries_total{reason=\"worker_died\"} 3"));
    cr_assert(has_line(text, "samovar_router_retries_total{reason=\"busy\"} 0"));
    cr_assert(has_line(text, "samovar_router_client_connections 5"));
    cr_assert(has_line(text, "samovar_router_ttft_seconds_bucket{le=\"0.02\"} 0"));
    cr_assert(has_line(text, "samovar_router_ttft_seconds_bucket{le=\"0.04\"} 1"));
    cr_assert(has_line(text, "samovar_router_worker_chosen_total{"
                             "worker=\"http://127.0.0.1:8002\"} 9"));
    cr_assert(has_line(text, "samovar_router_worker_state{worker=\"http://127.0.0.1:8001\","
                             "state=\"starting\"} 1"));
    metrics_world_release(&world);
}

Test(metrics, what_an_engine_did_not_say_is_not_shown_as_zero)
{
    struct metrics_world world;
    metrics_world_init(&world);
    struct worker *worker = worker_set_at(world.workers, 0);
    worker->report.is_known = true;

    const char *text = scrape(&world);

    cr_assert(has_line(text, "samovar_router_worker_reported_running{"
                             "worker=\"http://127.0.0.1:8001\"} 0"));
    cr_assert(eq(ptr,
                 (void *)strstr(text, "samovar_router_worker_reported_running{"
                                      "worker=\"http://127.0.0.1:8002\"}"),
                 NULL));
    metrics_world_release(&world);
}

Test(metrics, a_scrape_that_does_not_fit_is_an_error)
{
    struct metrics_world world;
    metrics_world_init(&world);
    struct buf small;
    buf_init(&small, 1000);

    cr_assert(eq(int, metrics_write(&small, &world.sources), -ENOBUFS));

    buf_release(&small);
    metrics_world_release(&world);
}

Test(metrics, promtool_has_nothing_to_say)
{
    if (system("command -v promtool >/dev/null 2>&1") != 0)
        cr_skip("promtool is not installed (package prometheus)");

    struct metrics_world world;
    metrics_world_init(&world);
    world.stats.requests_total[API_CHAT][STATUS_CLASS_5XX][END_UPSTREAM_TRUNCATED] = 1;
    for (uint32_t i = 0; i < 2; i++)
        worker_set_at(world.workers, i)->report.is_known = true;

    FILE *promtool = popen("promtool check metrics", "w");
    fputs(scrape(&world), promtool);

    cr_assert(eq(int, pclose(promtool), 0));
    metrics_world_release(&world);
}

Test(metrics, a_status_falls_into_its_class)
{
    static const struct {
        int status;
        enum status_class class;
    } rows[] = {{0, STATUS_CLASS_NONE},  {101, STATUS_CLASS_NONE}, {200, STATUS_CLASS_2XX},
                {299, STATUS_CLASS_2XX}, {307, STATUS_CLASS_3XX},  {404, STATUS_CLASS_4XX},
                {599, STATUS_CLASS_5XX}, {600, STATUS_CLASS_NONE}, {-1, STATUS_CLASS_NONE}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_assert(eq(int, status_class_of(rows[i].status), rows[i].class));
}
