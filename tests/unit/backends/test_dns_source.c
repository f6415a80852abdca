/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/dns_source.h"

#include "backends/runtime/must_check.h"
#include "tests/support/loop_fixture.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 10000, INTERVAL_MS = 10, ANSWER_ADDRESS_MAX = 8, PORT = 8000 };

/* What the name server says to one lookup; the last answer is said for ever. */
struct dns_answer {
    int error;
    const char *addresses[ANSWER_ADDRESS_MAX]; /* NULL ends them */
};

/* A name server that says what the test says, one turn of the loop later; what its source told. */
struct dns_world {
    const struct dns_answer *answers;
    size_t answer_count;
    size_t asked_count;
    bool is_silent; /* it never answers */
    struct dns_source *source;
    char here[256];    /* "10.0.0.1 10.0.0.2 ": in the order they came */
    size_t come_count; /* all in all */
    size_t left_count;
    size_t lookup_count; /* that ended */
    int last_error;
    size_t wanted; /* lookups that has_looked_up() waits for */
};

struct resolver_lookup {
    uv_timer_t timer;
    struct dns_world *world;
    resolver_done_fn *done;
    void *ctx;
    const struct dns_answer *answer;
};

static void free_lookup(uv_handle_t *timer)
{
    free(timer->data);
}

static struct sockaddr_storage address_of(const char *text)
{
    struct sockaddr_storage address = {0};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(PORT)};

    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        memcpy(&address, &v4, sizeof v4);
    else if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1)
        memcpy(&address, &v6, sizeof v6);
    return address;
}

static void answer(uv_timer_t *timer)
{
    struct resolver_lookup *lookup = timer->data;
    struct sockaddr_storage addresses[ANSWER_ADDRESS_MAX];
    size_t count = 0;

    while (count < ANSWER_ADDRESS_MAX && lookup->answer->addresses[count] != NULL) {
        addresses[count] = address_of(lookup->answer->addresses[count]);
        count++;
    }
    if (lookup->done != NULL)
        lookup->done(lookup->ctx, lookup->answer->error, addresses, count);
    uv_close((uv_handle_t *)timer, free_lookup);
}

static struct resolver_lookup *start(void *ctx, const char *host, const char *port,
                                     resolver_done_fn *done, void *done_ctx)
{
    struct dns_world *world = ctx;
    struct resolver_lookup *lookup = calloc(1, sizeof *lookup);
    size_t which =
        world->asked_count < world->answer_count ? world->asked_count : world->answer_count - 1;

    cr_assert(eq(str, (char *)host, "workers.svc"));
    cr_assert(eq(str, (char *)port, "8000"));
    world->asked_count++;
    *lookup = (struct resolver_lookup){
        .world = world, .done = done, .ctx = done_ctx, .answer = &world->answers[which]};
    uv_timer_init(loop_fixture_loop(), &lookup->timer);
    lookup->timer.data = lookup;
    if (!world->is_silent)
        uv_timer_start(&lookup->timer, answer, 0, 0);
    return lookup;
}

static void cancel(struct resolver_lookup *lookup)
{
    lookup->done = NULL;
    if (lookup->world->is_silent)
        uv_close((uv_handle_t *)&lookup->timer, free_lookup);
}

static const struct resolver fake_resolver = {start, cancel};

/* Writes address behind a blank into text, to be found there. */
static void write_address(const struct sockaddr_storage *address, char text[64])
{
    char host[INET6_ADDRSTRLEN];
    const void *bytes = address->ss_family == AF_INET
                            ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
                            : (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr;

    inet_ntop(address->ss_family, bytes, host, sizeof host);
    snprintf(text, 64, "%s ", host);
}

static void on_come(void *ctx, const struct sockaddr_storage *address)
{
    struct dns_world *world = ctx;
    char text[64];

    write_address(address, text);
    cr_assert(eq(ptr, strstr(world->here, text), NULL), "%scame twice", text);
    snprintf(world->here + strlen(world->here), sizeof world->here - strlen(world->here), "%s",
             text);
    world->come_count++;
}

static void on_leave(void *ctx, const struct sockaddr_storage *address)
{
    struct dns_world *world = ctx;
    char text[64];
    char *at;

    write_address(address, text);
    at = strstr(world->here, text);
    cr_assert(ne(ptr, at, NULL), "%sleft and was not there", text);
    memmove(at, at + strlen(text), strlen(at + strlen(text)) + 1);
    world->left_count++;
}

static void on_lookup(void *ctx, int error)
{
    struct dns_world *world = ctx;

    world->lookup_count++;
    world->last_error = error;
}

static const struct dns_source_callbacks callbacks = {on_come, on_leave, on_lookup};

static void world_start(struct dns_world *world, bool is_single)
{
    world->source = dns_source_create(loop_fixture_loop(),
                                      (struct dns_source_config){.resolver = &fake_resolver,
                                                                 .resolver_ctx = world,
                                                                 .host = "workers.svc",
                                                                 .port = "8000",
                                                                 .interval_ms = INTERVAL_MS,
                                                                 .is_single = is_single},
                                      &callbacks, world);
}

static bool has_looked_up(void *ctx)
{
    struct dns_world *world = ctx;

    return world->lookup_count >= world->wanted;
}

/* Until count lookups have ended. */
static void look_up(struct dns_world *world, size_t count)
{
    world->wanted = count;
    cr_assert(loop_run_until(has_looked_up, world, WAIT_MS));
}

TestSuite(dns_source, .init = loop_fixture_init, .fini = loop_fixture_fini);

Test(dns_source, addresses_come_and_leave_as_the_answers_change)
{
    static const struct {
        struct dns_answer answers[4];
        const char *here; /* after all four */
        size_t come_count;
    } rows[] = {
        {{{0, {"10.0.0.1", "10.0.0.2"}},
          {0, {"10.0.0.2", "10.0.0.1"}},
          {0, {"10.0.0.1", "10.0.0.2"}},
          {0, {"10.0.0.2", "10.0.0.1"}}},
         "10.0.0.1 10.0.0.2 ",
         2}, /* the order is nobody's business */
        {{{0, {"10.0.0.1"}},
          {0, {"10.0.0.1", "10.0.0.2"}},
          {0, {"10.0.0.1", "10.0.0.2"}},
          {0, {"10.0.0.1", "10.0.0.2"}}},
         "10.0.0.1 10.0.0.2 ",
         2}, /* one comes */
        {{{0, {"10.0.0.1", "10.0.0.2"}},
          {0, {"10.0.0.2"}},
          {0, {"10.0.0.1", "10.0.0.2"}},
          {0, {"10.0.0.2"}}},
         "10.0.0.1 10.0.0.2 ",
         2}, /* missed once is not gone */
        {{{0, {"10.0.0.1", "10.0.0.2"}}, {0, {"10.0.0.2"}}, {0, {"10.0.0.2"}}, {0, {"10.0.0.2"}}},
         "10.0.0.2 ",
         2}, /* twice is */
        {{{0, {"10.0.0.1"}}, {0, {"10.0.0.2"}}, {0, {"10.0.0.2"}}, {0, {"10.0.0.1"}}},
         "10.0.0.2 10.0.0.1 ",
         3}, /* what left may come again */
        {{{0, {"10.0.0.1", "10.0.0.1", "10.0.0.1"}},
          {0, {"10.0.0.1"}},
          {0, {"10.0.0.1"}},
          {0, {"10.0.0.1"}}},
         "10.0.0.1 ",
         1}, /* one for each kind of socket: one address */
        {{{0, {"fd00::1", "10.0.0.1", "fd00::2"}},
          {0, {"10.0.0.1"}},
          {0, {"10.0.0.1"}},
          {0, {"10.0.0.1", "fd00::1"}}},
         "10.0.0.1 ",
         1}, /* two families of one host: one worker */
        {{{0, {"fd00::1", "fd00::2"}},
          {0, {"fd00::1", "fd00::2"}},
          {0, {"fd00::2"}},
          {0, {"fd00::2"}}},
         "fd00::2 ",
         2}, /* IPv6 alone */
        {{{0, {"10.0.0.1"}}, {UV_EAI_AGAIN, {NULL}}, {UV_EAI_NONAME, {NULL}}, {0, {NULL}}},
         "10.0.0.1 ",
         1}, /* failures and empty answers keep what is known */
        {{{0, {"10.0.0.1", "10.0.0.2"}},
          {0, {"10.0.0.1"}},
          {UV_EAI_AGAIN, {NULL}},
          {0, {"10.0.0.1", "10.0.0.2"}}},
         "10.0.0.1 10.0.0.2 ",
         2}, /* a failure is not a second miss */
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct dns_world world = {.answers = rows[i].answers, .answer_count = 4};
        world_start(&world, false);

        look_up(&world, 4);

        cr_assert(eq(str, world.here, (char *)rows[i].here), "row %zu", i);
        cr_assert(eq(sz, world.come_count, rows[i].come_count), "row %zu", i);
        dns_source_close(world.source);
        cr_assert(eq(str, world.here, ""), "at the end all leave");
        loop_run_for(2);
    }
}

Test(dns_source, a_failed_lookup_is_told_and_tried_again)
{
    static const struct dns_answer answers[] = {
        {UV_EAI_AGAIN, {NULL}}, {0, {NULL}}, {0, {"10.0.0.1"}}};
    struct dns_world world = {.answers = answers, .answer_count = 3};
    world_start(&world, false);

    look_up(&world, 1);
    cr_assert(eq(int, world.last_error, UV_EAI_AGAIN));
    look_up(&world, 2);
    cr_assert(eq(int, world.last_error, UV_EAI_NODATA), "no address is no answer");
    look_up(&world, 3);

    cr_assert(eq(int, world.last_error, 0));
    cr_assert(eq(str, world.here, "10.0.0.1 "));
    dns_source_close(world.source);
}

Test(dns_source, one_address_is_enough_for_a_single_one)
{
    static const struct dns_answer answers[] = {{UV_EAI_AGAIN, {NULL}},
                                                {0, {"10.0.0.1", "10.0.0.2"}}};
    struct dns_world world = {.answers = answers, .answer_count = 2};
    world_start(&world, true);

    look_up(&world, 2);
    loop_run_for(10 * INTERVAL_MS);

    cr_assert(eq(sz, world.asked_count, 2), "no lookup after it has one");
    cr_assert(eq(str, world.here, "10.0.0.1 "));
    dns_source_close(world.source);
}

static bool was_asked(void *ctx)
{
    struct dns_world *world = ctx;

    return world->asked_count > 0;
}

Test(dns_source, closing_amid_a_lookup_hears_of_it_no_more)
{
    static const struct dns_answer answers[] = {{0, {"10.0.0.1"}}};
    struct dns_world world = {.answers = answers, .answer_count = 1, .is_silent = true};
    world_start(&world, false);
    cr_assert(loop_run_until(was_asked, &world, WAIT_MS));

    dns_source_close(world.source);
    loop_run_for(5 * INTERVAL_MS);

    cr_assert(eq(sz, world.asked_count, 1));
    cr_assert(eq(sz, world.lookup_count, 0));
}

/* ---- the system's own resolver ---- */

struct found {
    bool is_done;
    int error;
    size_t count;
    bool has_loopback;
};

static void on_found(void *ctx, int error, const struct sockaddr_storage *addresses, size_t count)
{
    struct found *found = ctx;

    *found = (struct found){.is_done = true, .error = error, .count = count};
    for (size_t i = 0; i < count; i++) {
        struct sockaddr_in v4;

        memcpy(&v4, &addresses[i], sizeof v4);
        found->has_loopback |= addresses[i].ss_family == AF_INET &&
                               v4.sin_addr.s_addr == htonl(INADDR_LOOPBACK) &&
                               v4.sin_port == htons(PORT);
    }
}

TestSuite(resolver, .init = loop_fixture_init, .fini = loop_fixture_fini);

Test(resolver, the_system_knows_localhost)
{
    struct found found = {0};
    cr_assert(ne(ptr,
                 resolver_system.start(loop_fixture_loop(), "localhost", "8000", on_found, &found),
                 NULL));

    cr_assert(loop_run_until_flag(&found.is_done, WAIT_MS));

    cr_assert(eq(int, found.error, 0));
    cr_assert(found.has_loopback);
}

Test(resolver, a_name_that_nobody_has_is_an_error)
{
    struct found found = {0};
    cr_assert(ne(ptr,
                 resolver_system.start(loop_fixture_loop(), "no.invalid", "1", on_found, &found),
                 NULL));

    cr_assert(loop_run_until_flag(&found.is_done, 60000));

    cr_assert(lt(int, found.error, 0));
    cr_assert(eq(sz, found.count, 0));
}

Test(resolver, who_cancels_hears_nothing)
{
    struct found found = {0};
    struct resolver_lookup *lookup =
        resolver_system.start(loop_fixture_loop(), "localhost", "8000", on_found, &found);
    cr_assert(ne(ptr, lookup, NULL));

    resolver_system.cancel(lookup);
    uv_run(loop_fixture_loop(), UV_RUN_NOWAIT);
    loop_run_for(50);

    cr_assert(not(found.is_done));
}
