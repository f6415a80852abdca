/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/redis_link.h"

#include "tests/support/loop_fixture.h"
#include "tests/support/redis_server.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 20000, COMMAND_MS = 20000, SHORT_COMMAND_MS = 300 };

/* A link, and what it was heard to say. */
struct world {
    struct redis_server *server;
    struct redis_link *link;
    uint32_t ready_count;
    uint32_t away_count;
    int away_error;
    char away_why[256];
    uint32_t done_count;
    int done_error; /* of the last one */
    enum redis_reply_kind done_kind;
    int64_t done_integer;
    char done_text[256];
    bool is_closed;
};

static void on_ready(void *ctx)
{
    struct world *world = ctx;

    world->ready_count++;
}

static void on_away(void *ctx, int error, const char *why)
{
    struct world *world = ctx;

    world->away_count++;
    world->away_error = error;
    snprintf(world->away_why, sizeof world->away_why, "%s", why);
}

static void on_done(void *ctx, int error, const struct redis_reply *reply)
{
    struct world *world = ctx;
    struct slice text = {NULL, 0};

    world->done_count++;
    world->done_error = error;
    world->done_text[0] = '\0';
    if (reply == NULL)
        return;
    world->done_kind = redis_reply_kind(reply);
    world->done_integer = redis_reply_integer(reply);
    text = redis_reply_text(reply);
    if (text.len > 0)
        snprintf(world->done_text, sizeof world->done_text, "%.*s", (int)text.len, text.ptr);
}

static void on_closed(void *ctx)
{
    struct world *world = ctx;

    world->is_closed = true;
}

static struct redis_link_config config_for(struct redis_url url)
{
    return (struct redis_link_config){
        .url = url,
        .name = "samovar-test",
        .connect_ms = 2000,
        .command_ms = COMMAND_MS,
        .back_off_ms = 10,
        .back_off_ms_max = 100,
        .pending_max = 1000,
    };
}

static void world_open(struct world *world, struct redis_link_config config)
{
    int status =
        redis_link_open(loop_fixture_loop(), config,
                        (struct redis_link_callbacks){on_ready, on_away}, world, &world->link);

    cr_assert(eq(int, status, 0));
}

static bool is_ready(void *ctx)
{
    const struct world *world = ctx;

    return redis_link_state(world->link) == REDIS_LINK_READY;
}

static bool is_away(void *ctx)
{
    const struct world *world = ctx;

    return world->away_count > 0;
}

static bool nothing_is_pending(void *ctx)
{
    const struct world *world = ctx;

    return redis_link_stats(world->link).pending_count == 0;
}

static void world_await(struct world *world, bool (*is_true)(void *ctx))
{
    cr_assert(loop_run_until(is_true, world, WAIT_MS));
}

/* A server with options, and a link that is READY. */
static void world_init(struct world *world, const char *const *options)
{
    *world = (struct world){.server = redis_server_create(options)};
    world_open(world, config_for(redis_server_url(world->server)));
    world_await(world, is_ready);
}

/* The same, but its commands are to be answered soon. */
static void world_init_impatient(struct world *world)
{
    struct redis_link_config config;

    *world = (struct world){.server = redis_server_create(NULL)};
    config = config_for(redis_server_url(world->server));
    config.command_ms = SHORT_COMMAND_MS;
    world_open(world, config);
    world_await(world, is_ready);
}

static void world_release(struct world *world)
{
    redis_link_close(&world->link, on_closed, world);
    cr_assert(loop_run_until_flag(&world->is_closed, WAIT_MS));
    redis_server_destroy(world->server);
}

static int send_words(struct world *world, const struct slice *words, size_t count)
{
    return redis_link_send(world->link, words, count, on_done, world);
}

/* Words parted by single spaces. */
static int send_line(struct world *world, const char *line)
{
    struct slice words[16], rest = slice_of_string(line);
    size_t count = 0;

    while (rest.len > 0) {
        const char *space = memchr(rest.ptr, ' ', rest.len);
        size_t len = space != NULL ? (size_t)(space - rest.ptr) : rest.len;

        words[count++] = slice_of(rest.ptr, len);
        rest = slice_skip(rest, len < rest.len ? len + 1 : len);
    }
    return send_words(world, words, count);
}

/* And waits for the reply, which is then in done_*. */
static void ask(struct world *world, const char *line)
{
    cr_assert(eq(int, send_line(world, line), 0));
    world_await(world, nothing_is_pending);
}

TestSuite(redis_link, .init = loop_fixture_init, .fini = loop_fixture_fini, .timeout = 60);

Test(redis_link, every_state_and_event_has_its_place_in_the_table)
{
    for (int state = 0; state < REDIS_LINK_STATE_COUNT; state++) {
        for (int event = 0; event < REDIS_LINK_EVENT_COUNT; event++) {
            int expected = -1;

            if (state == REDIS_LINK_AWAY && event == REDIS_LINK_EVENT_DUE)
                expected = REDIS_LINK_CONNECTING;
            if (state == REDIS_LINK_CONNECTING && event == REDIS_LINK_EVENT_CONNECTED)
                expected = REDIS_LINK_GREETING;
            if (state == REDIS_LINK_GREETING && event == REDIS_LINK_EVENT_GREETED)
                expected = REDIS_LINK_READY;
            if (state != REDIS_LINK_AWAY && state != REDIS_LINK_CLOSED &&
                event == REDIS_LINK_EVENT_FAILED)
                expected = REDIS_LINK_AWAY;
            if (state != REDIS_LINK_CLOSED && event == REDIS_LINK_EVENT_CLOSE)
                expected = REDIS_LINK_CLOSED;

            int after =
                redis_link_state_after((enum redis_link_state)state, (enum redis_link_event)event);

            cr_assert(eq(int, after, expected), "state %d, event %d", state, event);
        }
    }
}

Test(redis_link, commands_of_any_bytes_are_answered_in_order)
{
    struct world world;
    const struct slice set[] = {SLICE("SET"), SLICE("k\0\r\n"), SLICE("\0\xff\r\n$5")};
    const struct slice get[] = {SLICE("GETRANGE"), SLICE("k\0\r\n"), SLICE("1"), SLICE("1")};
    const struct slice length[] = {SLICE("STRLEN"), SLICE("k\0\r\n")};
    world_init(&world, NULL);

    cr_assert(eq(int, send_words(&world, set, array_count(set)), 0));
    cr_assert(eq(int, send_words(&world, get, array_count(get)), 0));
    cr_assert(eq(int, send_words(&world, length, array_count(length)), 0));
    world_await(&world, nothing_is_pending);

    cr_assert(eq(u32, world.done_count, 3));
    cr_assert(eq(int, world.done_error, 0));
    cr_assert(eq(int, world.done_kind, REDIS_REPLY_INTEGER), "the last one's");
    cr_assert(eq(i64, world.done_integer, 6));
    world_release(&world);
}

struct read_list {
    size_t count;
    char id[32], field[32];
    bool is_done;
};

static void on_list(void *ctx, int error, const struct redis_reply *reply)
{
    struct read_list *list = ctx;
    const struct redis_reply *entry = redis_reply_at(reply, 0);
    struct slice id = redis_reply_text(redis_reply_at(entry, 0));
    struct slice field = redis_reply_text(redis_reply_at(redis_reply_at(entry, 1), 1));

    cr_assert(eq(int, error, 0));
    list->count = redis_reply_count(reply);
    snprintf(list->id, sizeof list->id, "%.*s", (int)id.len, id.ptr);
    snprintf(list->field, sizeof list->field, "%.*s", (int)field.len, field.ptr);
    list->is_done = true;
}

Test(redis_link, lists_within_lists_are_read)
{
    struct world world;
    struct read_list list = {.count = 0};
    const struct slice range[] = {SLICE("XRANGE"), SLICE("s"), SLICE("-"), SLICE("+")};
    world_init(&world, NULL);
    ask(&world, "XADD s 1-1 b one");
    ask(&world, "XADD s 2-1 b two");

    cr_assert(eq(int, redis_link_send(world.link, range, array_count(range), on_list, &list), 0));
    cr_assert(loop_run_until_flag(&list.is_done, WAIT_MS));

    cr_assert(eq(sz, list.count, 2));
    cr_assert(eq(str, list.id, "1-1"));
    cr_assert(eq(str, list.field, "one"));
    world_release(&world);
}

Test(redis_link, what_the_server_refuses_is_told_apart)
{
    static const struct {
        const char *said;
        int error;
    } rows[] = {
        {"MOVED 3999 127.0.0.1:6381", -EXDEV},
        {"ASK 3999 127.0.0.1:6381", -EXDEV},
        {"CLUSTERDOWN Hash slot not served", -EXDEV},
        {"CROSSSLOT Keys in request", -EXDEV},
        {"NOAUTH Authentication required.", -EACCES},
        {"NOPERM this user has no permissions", -EACCES},
        {"WRONGPASS invalid username-password pair", -EACCES},
        {"LOADING Redis is loading the dataset in memory", -EBUSY},
        {"BUSY Redis is busy running a script.", -EBUSY},
        {"MASTERDOWN Link with MASTER is down", -EBUSY},
        {"TRYAGAIN Multiple keys request", -EBUSY},
        {"READONLY You can't write against a read only replica.", -EROFS},
        {"OOM command not allowed", -ENOSPC},
        {"WRONGTYPE Operation against a key", -EREMOTEIO},
        {"BUSYGROUP Consumer Group name already exists", -EREMOTEIO},
    };
    struct world world;
    world_init(&world, NULL);

    for (size_t i = 0; i < array_count(rows); i++) {
        const struct slice eval[] = {SLICE("EVAL"), SLICE("return redis.error_reply(ARGV[1])"),
                                     SLICE("0"), slice_of_string(rows[i].said)};

        cr_assert(eq(int, send_words(&world, eval, array_count(eval)), 0));
        world_await(&world, nothing_is_pending);

        cr_assert(eq(int, world.done_error, rows[i].error), "%s", rows[i].said);
        cr_assert(eq(str, world.done_text, (char *)rows[i].said));
    }
    cr_assert(eq(u64, redis_link_stats(world.link).error_count, array_count(rows)));
    cr_assert(eq(int, redis_link_state(world.link), REDIS_LINK_READY), "and the link stays");
    world_release(&world);
}

Test(redis_link, a_replica_a_full_server_and_a_cluster_say_so)
{
    static const struct {
        const char *options[8];
        int error;
    } rows[] = {
        {{"--replicaof", "127.0.0.1 1"}, -EROFS},
        {{"--maxmemory", "1"}, -ENOSPC},
        {{"--cluster-enabled", "yes", "--port", "0"}, -EXDEV},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct world world;
        world_init(&world, rows[i].options);

        ask(&world, "SET k v");

        cr_assert(eq(int, world.done_error, rows[i].error), "%s: %s", rows[i].options[0],
                  world.done_text);
        world_release(&world);
    }
}

Test(redis_link, a_server_that_is_not_there_is_tried_until_it_is)
{
    struct world world = {.server = redis_server_create(NULL)};
    redis_server_kill(world.server);

    world_open(&world, config_for(redis_server_url(world.server)));
    world_await(&world, is_away);
    cr_assert(eq(int, world.away_error, -ECONNREFUSED), "%s", world.away_why);
    cr_assert(eq(int, send_line(&world, "PING"), -ENOTCONN));
    redis_server_restart(world.server);
    world_await(&world, is_ready);

    cr_assert(eq(u32, world.ready_count, 1));
    cr_assert(eq(u32, world.done_count, 0), "what was refused is not answered");
    cr_assert(eq(u64, redis_link_stats(world.link).refused_count, 1));
    world_release(&world);
}

Test(redis_link, a_server_that_is_killed_is_found_again)
{
    struct world world;
    world_init(&world, NULL);
    cr_assert(eq(int, send_line(&world, "XREAD BLOCK 0 STREAMS s 0"), 0));
    loop_run_for(10);

    redis_server_kill(world.server);
    world_await(&world, is_away);
    cr_assert(eq(int, world.done_error, -ECONNRESET), "whether it was done is not known");
    cr_assert(eq(int, world.away_error, -ECONNRESET), "%s", world.away_why);
    redis_server_restart(world.server);
    world_await(&world, is_ready);

    ask(&world, "PING");
    cr_assert(eq(str, world.done_text, "PONG"));
    cr_assert(eq(u64, redis_link_stats(world.link).connect_count, 2));
    world_release(&world);
}

Test(redis_link, a_server_that_stands_still_is_given_up_and_found_again)
{
    struct world world;
    world_init_impatient(&world);
    ask(&world, "PING");

    redis_server_stop(world.server);
    cr_assert(eq(int, send_line(&world, "PING"), 0));
    cr_assert(eq(int, send_line(&world, "PING"), 0));
    world_await(&world, is_away);
    cr_assert(eq(u32, world.done_count, 3));
    cr_assert(eq(int, world.done_error, -ETIMEDOUT));
    cr_assert(eq(int, world.away_error, -ETIMEDOUT), "%s", world.away_why);
    cr_assert(eq(u64, redis_link_stats(world.link).timeout_count, 1));
    redis_server_continue(world.server);
    world_await(&world, is_ready);

    ask(&world, "PING");
    cr_assert(eq(str, world.done_text, "PONG"));
    world_release(&world);
}

Test(redis_link, a_server_that_is_slow_is_waited_for)
{
    struct world world;
    world_init(&world, NULL);
    ask(&world, "CLIENT PAUSE 500 ALL");

    uint64_t begin_ms = uv_hrtime() / 1000000;
    ask(&world, "GET k");

    cr_assert(ge(u64, uv_hrtime() / 1000000 - begin_ms, 300), "it was slow");
    cr_assert(eq(int, world.done_error, 0));
    cr_assert(eq(int, world.done_kind, REDIS_REPLY_NIL));
    cr_assert(eq(u32, world.away_count, 0));
    world_release(&world);
}

Test(redis_link, a_pause_of_our_own_is_not_the_servers)
{
    const struct timespec pause = {0, (SHORT_COMMAND_MS + 100) * 1000000L};
    struct world world;
    world_init_impatient(&world);
    cr_assert(eq(int, send_line(&world, "PING"), 0));
    uv_run(loop_fixture_loop(), UV_RUN_NOWAIT); /* it is sent, perhaps answered, but not read */

    nanosleep(&pause, NULL);
    world_await(&world, nothing_is_pending);

    cr_assert(eq(str, world.done_text, "PONG"));
    cr_assert(eq(u32, world.away_count, 0));
    world_release(&world);
}

Test(redis_link, a_server_that_loads_is_not_ready)
{
    const char *options[] = {NULL, NULL, NULL, NULL, NULL};
    char reply[64];
    struct world world = {.server = redis_server_create(options)};
    for (int i = 0; i < 100; i++)
        redis_server_ask(world.server, "SET k v", reply, sizeof reply);
    redis_server_ask(world.server, "EVAL \"for i = 1, 3000 do redis.call('SET', i, 'v') end\" 0",
                     reply, sizeof reply);
    redis_server_ask(world.server, "SAVE", reply, sizeof reply);
    cr_assert(eq(str, reply, "+OK\r\n"));
    options[0] = "--key-load-delay", options[1] = "200"; /* us: 0.6 s in all */
    options[2] = "--loading-process-events-interval-bytes", options[3] = "1024";
    redis_server_restart(world.server);

    world_open(&world, config_for(redis_server_url(world.server)));
    world_await(&world, is_away);
    cr_assert(eq(int, world.away_error, -EBUSY), "%s", world.away_why);
    cr_assert(ne(ptr, strstr(world.away_why, "LOADING"), NULL), "%s", world.away_why);
    world_await(&world, is_ready);

    ask(&world, "GET 3000");
    cr_assert(eq(str, world.done_text, "v"));
    world_release(&world);
}

Test(redis_link, passwords_open_and_do_not_open)
{
    static const struct {
        const char *user, *password, *said; /* said NULL: it opens */
    } rows[] = {
        {"", "secret", NULL},         {"", NULL, "NOAUTH"},
        {"", "wrong", "WRONGPASS"},   {"agent", "its own", NULL},
        {"agent", "no", "WRONGPASS"}, {"nobody", "secret", "WRONGPASS"},
        {"agent", NULL, "WRONGPASS"}, {"open", NULL, NULL},
        {"idle", "", "NOPERM"},
    };
    char reply[64];
    struct redis_server *server = redis_server_create(NULL);
    redis_server_ask(server, "ACL SETUSER agent on \">its own\" ~* +@all", reply, sizeof reply);
    redis_server_ask(server, "ACL SETUSER open on nopass ~* +ping", reply, sizeof reply);
    redis_server_ask(server, "ACL SETUSER idle on nopass ~* -@all", reply, sizeof reply);
    redis_server_ask(server, "CONFIG SET requirepass secret", reply, sizeof reply);

    for (size_t i = 0; i < array_count(rows); i++) {
        struct world world = {.server = NULL};
        struct redis_link_config config = config_for(redis_server_url(server));
        snprintf(config.url.user, sizeof config.url.user, "%s", rows[i].user);
        config.password = rows[i].password;

        world_open(&world, config);
        world_await(&world, rows[i].said == NULL ? is_ready : is_away);

        if (rows[i].said != NULL) {
            cr_assert(eq(int, world.away_error, -EACCES), "row %zu: %s", i, world.away_why);
            cr_assert(ne(ptr, strstr(world.away_why, rows[i].said), NULL), "row %zu: %s", i,
                      world.away_why);
        }
        cr_assert(eq(u32, world.away_count, rows[i].said != NULL));
        world_release(&world);
    }
    redis_server_destroy(server);
}

Test(redis_link, the_database_of_the_url_is_selected)
{
    struct world world = {.server = redis_server_create(NULL)};
    struct redis_link_config config = config_for(redis_server_url(world.server));
    char reply[64];
    config.url.database = 3;

    world_open(&world, config);
    world_await(&world, is_ready);
    ask(&world, "SET k v");

    redis_server_ask(world.server, "EXISTS k", reply, sizeof reply);
    cr_assert(eq(str, reply, ":0\r\n"), "in database 0");
    ask(&world, "EXISTS k");
    cr_assert(eq(i64, world.done_integer, 1));
    world_release(&world);
}

Test(redis_link, a_database_that_is_not_there_is_said)
{
    struct world world = {.server = redis_server_create(NULL)};
    struct redis_link_config config = config_for(redis_server_url(world.server));
    config.url.database = 9999;

    world_open(&world, config);
    world_await(&world, is_away);

    cr_assert(ne(ptr, strstr(world.away_why, "DB index is out of range"), NULL));
    world_release(&world);
}

Test(redis_link, the_server_lists_it_by_its_name)
{
    struct world world;
    world_init(&world, NULL);

    ask(&world, "CLIENT GETNAME");

    cr_assert(eq(str, world.done_text, "samovar-test"));
    world_release(&world);
}

Test(redis_link, no_more_than_pending_max_wait)
{
    struct world world = {.server = redis_server_create(NULL)};
    struct redis_link_config config = config_for(redis_server_url(world.server));
    config.pending_max = 2;
    world_open(&world, config);
    world_await(&world, is_ready);

    cr_assert(eq(int, send_line(&world, "PING"), 0));
    cr_assert(eq(int, send_line(&world, "PING"), 0));
    cr_assert(eq(int, send_line(&world, "PING"), -ENOBUFS));
    world_await(&world, nothing_is_pending);
    cr_assert(eq(int, send_line(&world, "PING"), 0), "and again when they were answered");
    world_await(&world, nothing_is_pending);

    cr_assert(eq(u32, world.done_count, 3));
    cr_assert(eq(u64, redis_link_stats(world.link).refused_count, 1));
    world_release(&world);
}

Test(redis_link, more_than_a_socket_takes_at_once_arrives)
{
    struct world world;
    char *value = calloc(1, 48 << 10);
    const struct slice append[] = {SLICE("APPEND"), SLICE("k"), slice_of(value, 48 << 10)};
    world_init(&world, NULL);

    for (int i = 0; i < 300; i++)
        cr_assert(eq(int, send_words(&world, append, array_count(append)), 0));
    world_await(&world, nothing_is_pending);

    cr_assert(eq(i64, world.done_integer, 300 * (48 << 10)));
    cr_assert(eq(u32, world.away_count, 0));
    free(value);
    world_release(&world);
}

Test(redis_link, memory_for_commands_is_bounded)
{
    struct world world;
    char *value = calloc(1, 1 << 20);
    const struct slice set[] = {SLICE("SET"), SLICE("k"), slice_of(value, 1 << 20)};
    int status = 0;
    world_init(&world, NULL);

    for (int i = 0; i < 200 && status == 0; i++)
        status = send_words(&world, set, array_count(set));

    cr_assert(eq(int, status, -ENOBUFS), "200 MiB in one turn");
    world_await(&world, nothing_is_pending);
    cr_assert(eq(int, world.done_error, 0), "those that were taken are whole");
    free(value);
    world_release(&world);
}

Test(redis_link, closing_answers_those_that_wait)
{
    struct world world;
    world_init(&world, NULL);
    cr_assert(eq(int, send_line(&world, "PING"), 0));
    cr_assert(eq(int, send_line(&world, "PING"), 0));

    redis_link_close(&world.link, on_closed, &world);

    cr_assert(eq(ptr, world.link, NULL));
    cr_assert(eq(u32, world.done_count, 2));
    cr_assert(eq(int, world.done_error, -ECANCELED));
    cr_assert(not(world.is_closed), "not from within");
    cr_assert(loop_run_until_flag(&world.is_closed, WAIT_MS));
    cr_assert(eq(u32, world.away_count, 0));
    redis_server_destroy(world.server);
}

Test(redis_link, it_can_be_closed_in_any_state)
{
    struct redis_url nowhere = {.host = "no.invalid", .port = 1};
    struct redis_url refused = {.host = "127.0.0.1", .port = 1};
    struct redis_server *server = redis_server_create(NULL);
    const struct redis_url urls[] = {nowhere, refused, redis_server_url(server)};

    for (size_t i = 0; i < 3 * 6; i++) {
        struct world world = {.server = NULL};
        world_open(&world, config_for(urls[i % 3]));
        for (size_t turn = 0; turn < i / 3; turn++)
            uv_run(loop_fixture_loop(), UV_RUN_NOWAIT);

        world_release(&world);

        cr_assert(world.is_closed);
    }
    redis_server_destroy(server);
}

static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert(eq(int, bind(fd, (const struct sockaddr *)&address, len), 0));
    cr_assert(eq(int, getsockname(fd, (struct sockaddr *)&address, &len), 0));
    close(fd);
    return ntohs(address.sin_port);
}

Test(redis_link, a_name_is_tried_at_all_its_addresses)
{
    struct world world = {.server = NULL};
    char port[8];
    const char *options[] = {"--port", port, "--bind", "127.0.0.1", NULL};
    struct redis_url url = {.host = "localhost", .port = free_port()};
    snprintf(port, sizeof port, "%u", url.port);
    world.server = redis_server_create(options);

    world_open(&world, config_for(url));
    world_await(&world, is_ready);

    cr_assert(eq(u32, world.away_count, 0), "%s", world.away_why);
    world_release(&world);
}

Test(redis_link, a_name_that_nobody_has_is_named)
{
    struct world world = {.server = NULL};
    struct redis_url url = {.host = "no.invalid", .port = 6379};

    world_open(&world, config_for(url));
    world_await(&world, is_away);

    cr_assert(eq(int, world.away_error, -EHOSTUNREACH));
    cr_assert(ne(ptr, strstr(world.away_why, "no.invalid"), NULL), "%s", world.away_why);
    world_release(&world);
}

Test(redis_link, a_url_that_names_nothing_is_refused)
{
    struct redis_link *link;
    struct redis_link_config config = config_for((struct redis_url){.port = 1});

    int status =
        redis_link_open(loop_fixture_loop(), config, (struct redis_link_callbacks){0}, NULL, &link);

    cr_assert(eq(int, status, -EINVAL));
    cr_assert(eq(ptr, link, NULL));
}

/* ---- a server that says what no Redis says ---- */

struct talker {
    uv_pipe_t listener;
    uv_pipe_t conns[64];
    size_t count;
    const char *words; /* said to everybody who connects */
    bool is_closing;   /* after that */
    char path[64];
};

static void on_talk_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    static char ignored[1024];

    (void)handle;
    (void)suggested;
    *buffer = uv_buf_init(ignored, sizeof ignored);
}

static void on_talk_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    (void)buffer;
    if (count < 0)
        uv_read_stop(stream);
}

static void on_talk(uv_stream_t *listener, int status)
{
    struct talker *talker = listener->data;
    uv_pipe_t *conn = &talker->conns[talker->count++];
    uv_buf_t words = uv_buf_init((char *)(uintptr_t)talker->words, (unsigned)strlen(talker->words));

    cr_assert(eq(int, status, 0));
    cr_assert(le(sz, talker->count, array_count(talker->conns)));
    uv_pipe_init(listener->loop, conn, 0);
    cr_assert(eq(int, uv_accept(listener, (uv_stream_t *)conn), 0));
    cr_assert(eq(int, uv_try_write((uv_stream_t *)conn, &words, 1), (int)words.len));
    uv_read_start((uv_stream_t *)conn, on_talk_alloc, on_talk_read);
    if (talker->is_closing)
        uv_close((uv_handle_t *)conn, NULL);
}

static struct redis_url talker_open(struct talker *talker, const char *words, bool is_closing)
{
    struct redis_url url = {.port = 0};

    *talker = (struct talker){.words = words, .is_closing = is_closing};
    snprintf(talker->path, sizeof talker->path, "/tmp/samovar-talker-%d", (int)getpid());
    (void)unlink(talker->path);
    uv_pipe_init(loop_fixture_loop(), &talker->listener, 0);
    talker->listener.data = talker;
    cr_assert(eq(int, uv_pipe_bind(&talker->listener, talker->path), 0));
    cr_assert(eq(int, uv_listen((uv_stream_t *)&talker->listener, 8, on_talk), 0));
    memcpy(url.path, talker->path, sizeof talker->path);
    return url;
}

static void talker_close(struct talker *talker)
{
    uv_close((uv_handle_t *)&talker->listener, NULL);
    for (size_t i = 0; i < talker->count; i++) {
        if (!uv_is_closing((uv_handle_t *)&talker->conns[i]))
            uv_close((uv_handle_t *)&talker->conns[i], NULL);
    }
    loop_run_for(1);
}

Test(redis_link, what_is_no_redis_is_left_alone)
{
    static const struct {
        const char *words, *why;
        bool is_closing;
        int error;
    } rows[] = {
        {"HTTP/1.1 400 Bad Request\r\n\r\n", "Protocol error", false, -EPROTO},
        {"*-7\r\n", "", false, -EPROTO},
        {"-DENIED Redis is running in protected mode\r\n", "protected mode", true, -EACCES},
        {"-ERR max number of clients reached\r\n", "max number", true, -EREMOTEIO},
        {"", "closed the connection", true, -ECONNRESET},
        {"+OK\r\n+PONG\r\n+MORE\r\n", "nobody asked", false, -EPROTO},
        {"", "no greeting within", false, -ETIMEDOUT},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct talker talker;
        struct world world = {.server = NULL};
        struct redis_link_config config =
            config_for(talker_open(&talker, rows[i].words, rows[i].is_closing));
        config.connect_ms = 100;

        world_open(&world, config);
        world_await(&world, is_away);

        cr_assert(eq(int, world.away_error, rows[i].error), "row %zu: %s", i, world.away_why);
        cr_assert(ne(ptr, strstr(world.away_why, rows[i].why), NULL), "row %zu: %s", i,
                  world.away_why);
        world_release(&world);
        talker_close(&talker);
    }
}

Test(redis_link, those_who_wait_for_a_dead_server_wait_longer_each_time)
{
    struct talker talker;
    struct world world = {.server = NULL};
    struct redis_link_config config = config_for(talker_open(&talker, "-ERR no\r\n", true));
    config.back_off_ms = 8, config.back_off_ms_max = 64;

    world_open(&world, config);
    loop_run_for(640);

    /* 4..8, 8..16, 16..32, then 32..64 each: about 15 in 640 ms; 8 ms each would be 80 and more. */
    cr_assert(le(u32, world.away_count, 24));
    cr_assert(ge(u32, world.away_count, 4));
    world_release(&world);
    talker_close(&talker);
}
