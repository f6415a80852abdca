/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/admin_server.h"

#include "backends/http/http_fetch.h"
#include "tests/support/loop_fixture.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

enum { WAIT_MS = 5000, LONG_BODY_BYTES = 3 << 20 };

static int answer_name(void *ctx, struct admin_answer *answer)
{
    answer->status = 201;
    return buf_printf(&answer->body, "%s\n", (const char *)ctx);
}

static int answer_much(void *ctx, struct admin_answer *answer)
{
    (void)ctx;
    return buf_printf(&answer->body, "%*s", LONG_BODY_BYTES, "end");
}

static int answer_nothing(void *ctx, struct admin_answer *answer)
{
    (void)ctx;
    (void)!buf_append(&answer->body, SLICE("half"));
    return -ENOMEM;
}

static const struct admin_endpoint endpoints[] = {
    {"/name", answer_name}, {"/much", answer_much}, {"/fails", answer_nothing}};

struct asked {
    bool is_done;
    int error;
    int status;
    size_t body_len;
    char body[64];
};

static void on_done(void *ctx, int error, int status, struct slice body)
{
    struct asked *asked = ctx;

    *asked = (struct asked){true, error, status, body.len, ""};
    if (error == 0 && body.len > 0 && body.len < sizeof asked->body)
        memcpy(asked->body, body.ptr, body.len);
}

static void open_server(struct admin_server *server)
{
    char why[TCP_LISTEN_WHY_BYTES];

    cr_assert(eq(int,
                 admin_server_open(
                     server, loop_fixture_io(),
                     (struct admin_server_config){.listen = {"127.0.0.1", 0, "admin_listening"},
                                                  .endpoints = endpoints,
                                                  .endpoint_count = array_count(endpoints),
                                                  .client_ms_max = 200,
                                                  .ctx = "agent"},
                     why),
                 0));
}

static struct sockaddr_storage address_of(const struct admin_server *server)
{
    struct sockaddr_storage address;
    int len = sizeof address;

    cr_assert(eq(int, uv_tcp_getsockname(&server->tcp, (struct sockaddr *)&address, &len), 0));
    return address;
}

static struct asked ask(struct admin_server *server, const char *target)
{
    struct sockaddr_storage address = address_of(server);
    struct asked asked = {.is_done = false};

    cr_assert(ne(ptr,
                 http_fetch_get(loop_fixture_loop(),
                                (struct http_fetch_request){.address = &address,
                                                            .authority = "agent",
                                                            .target = target,
                                                            .timeout_ms = WAIT_MS,
                                                            .body_bytes_max = LONG_BODY_BYTES},
                                on_done, &asked),
                 NULL));
    cr_assert(loop_run_until_flag(&asked.is_done, WAIT_MS));
    return asked;
}

TestSuite(admin_server, .init = loop_fixture_init, .fini = loop_fixture_fini);

Test(admin_server, a_path_is_answered_by_who_serves_it_whatever_its_query)
{
    static struct admin_server server; /* in use until the fixture has ended the loop */

    open_server(&server);
    struct asked asked = ask(&server, "/name?x=1");

    cr_assert(eq(int, asked.error, 0));
    cr_assert(eq(int, asked.status, 201));
    cr_assert(eq(str, asked.body, "agent\n"));
    admin_server_close(&server);
}

Test(admin_server, an_unknown_path_is_told_what_there_is)
{
    static struct admin_server server; /* in use until the fixture has ended the loop */

    open_server(&server);
    struct asked asked = ask(&server, "/names");

    cr_assert(eq(int, asked.status, 404));
    cr_assert(eq(str, asked.body, "There are: /name /much /fails\n"));
    admin_server_close(&server);
}

Test(admin_server, a_long_answer_arrives_whole)
{
    static struct admin_server server; /* in use until the fixture has ended the loop */

    open_server(&server);
    struct asked asked = ask(&server, "/much");

    cr_assert(eq(int, asked.error, 0));
    cr_assert(eq(sz, asked.body_len, LONG_BODY_BYTES));
    admin_server_close(&server);
}

Test(admin_server, what_could_not_be_written_is_503_and_empty)
{
    static struct admin_server server; /* in use until the fixture has ended the loop */

    open_server(&server);
    struct asked asked = ask(&server, "/fails");

    cr_assert(eq(int, asked.status, 503));
    cr_assert(eq(sz, asked.body_len, 0));
    admin_server_close(&server);
}

/* A client of the test's own: sends bytes, waits for the end. */
struct raw_client {
    uv_tcp_t tcp;
    uv_connect_t connect;
    const char *text;
    char seen[512];
    size_t seen_len;
    bool is_ended;
};

static void on_raw_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct raw_client *client = stream->data;

    if (io_read_is_nothing(count))
        return;
    if (count < 0) {
        client->is_ended = true;
        uv_close((uv_handle_t *)stream, NULL);
        return;
    }
    cr_assert(lt(sz, client->seen_len + (size_t)count, sizeof client->seen));
    memcpy(client->seen + client->seen_len, buffer->base, (size_t)count);
    client->seen_len += (size_t)count;
}

static void on_raw_connected(uv_connect_t *connect, int status)
{
    struct raw_client *client = connect->data;
    uv_buf_t bytes = uv_buf_init((char *)(uintptr_t)client->text, (unsigned)strlen(client->text));

    cr_assert(eq(int, status, 0));
    cr_assert(
        eq(int, uv_read_start((uv_stream_t *)&client->tcp, io_lend_read_buffer, on_raw_read), 0));
    if (bytes.len > 0)
        cr_assert(eq(int, uv_try_write((uv_stream_t *)&client->tcp, &bytes, 1), (int)bytes.len));
}

static void raw_talk(struct raw_client *client, struct admin_server *server, const char *text)
{
    struct sockaddr_storage address = address_of(server);

    *client = (struct raw_client){.text = text};
    uv_tcp_init(loop_fixture_loop(), &client->tcp);
    client->tcp.data = client->connect.data = client;
    cr_assert(eq(int,
                 uv_tcp_connect(&client->connect, &client->tcp, (struct sockaddr *)&address,
                                on_raw_connected),
                 0));
    cr_assert(loop_run_until_flag(&client->is_ended, WAIT_MS));
}

Test(admin_server, only_get_is_served)
{
    static struct admin_server server; /* in use until the fixture has ended the loop */
    static struct raw_client client;

    open_server(&server);
    raw_talk(&client, &server, "DELETE /name HTTP/1.1\r\nHost: a\r\n\r\n");

    cr_assert(eq(int, strncmp(client.seen, "HTTP/1.1 405 ", 13), 0));
    cr_assert(ne(ptr, strstr(client.seen, "allow: GET\r\n"), NULL));
    admin_server_close(&server);
}

Test(admin_server, what_is_not_http_is_refused_and_ends)
{
    static struct admin_server server; /* in use until the fixture has ended the loop */
    static struct raw_client client;

    open_server(&server);
    raw_talk(&client, &server, "PING\r\n\r\n");

    cr_assert(eq(int, strncmp(client.seen, "HTTP/1.1 400 ", 13), 0));
    admin_server_close(&server);
}

Test(admin_server, a_client_that_says_nothing_is_ended_in_time)
{
    static struct admin_server server; /* in use until the fixture has ended the loop */
    static struct raw_client client;

    open_server(&server);
    raw_talk(&client, &server, "");

    cr_assert(eq(sz, client.seen_len, 0));
    admin_server_close(&server);
}

Test(admin_server, an_address_in_use_is_a_sentence)
{
    static struct admin_server server, other;
    char why[TCP_LISTEN_WHY_BYTES];
    int status;

    open_server(&server);
    struct sockaddr_storage address = address_of(&server);
    struct admin_server_config config = server.config;

    config.listen.port = ntohs(((struct sockaddr_in *)&address)->sin_port);
    status = admin_server_open(&other, loop_fixture_io(), config, why);

    cr_assert(eq(int, status, UV_EADDRINUSE));
    cr_assert(ne(ptr, strstr(why, "another process has it"), NULL));
    admin_server_close(&other);
    admin_server_close(&server);
}
