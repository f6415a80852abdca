/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_fetch.h"

#include "tests/support/loop_fixture.h"
#include "tests/support/scripted_server.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { TIMEOUT_MS = 2000, BODY_BYTES_MAX = 1000, BODY_SHOWN_MAX = 2000 };

/* How a fetch ended. */
struct outcome {
    bool is_done;
    uint32_t call_count;
    int error;
    int status;
    char body[BODY_SHOWN_MAX];
    size_t body_len;
};

static void on_done(void *ctx, int error, int status, struct slice body)
{
    struct outcome *outcome = ctx;

    outcome->is_done = true;
    outcome->call_count++;
    outcome->error = error;
    outcome->status = status;
    cr_assert(le(sz, body.len, BODY_SHOWN_MAX));
    if (error == 0 && body.len > 0)
        memcpy(outcome->body, body.ptr, body.len);
    outcome->body_len = body.len;
}

/* What the server does with a request: sends bytes, then one of these. */
enum ending { STAYS_OPEN, CLOSES, RESETS };

struct script {
    struct slice bytes;
    enum ending ending;
    char seen[512]; /* the request's head */
};

static void on_request(void *ctx, struct scripted_conn *conn,
                       const struct scripted_request *request)
{
    struct script *script = ctx;

    cr_assert(lt(sz, request->head.len, sizeof script->seen));
    memcpy(script->seen, request->head.ptr, request->head.len);
    scripted_conn_send(conn, script->bytes);
    if (script->ending == CLOSES)
        scripted_conn_close(conn);
    if (script->ending == RESETS)
        scripted_conn_reset(conn);
}

static struct http_fetch *start(const struct sockaddr_storage *address, uint64_t timeout_ms,
                                struct outcome *outcome)
{
    const struct http_fetch_request request = {
        .address = address,
        .authority = "worker.example:8000",
        .target = "/health",
        .timeout_ms = timeout_ms,
        .body_bytes_max = BODY_BYTES_MAX,
    };

    return http_fetch_get(loop_fixture_loop(), request, on_done, outcome);
}

/* One fetch from a server that follows script. */
static struct outcome fetch(struct script *script, uint64_t timeout_ms)
{
    struct scripted_server *server =
        scripted_server_create(loop_fixture_loop(), 0, on_request, script);
    struct sockaddr_storage address = scripted_server_address(server);
    struct outcome outcome = {.is_done = false};

    cr_assert(ne(ptr, start(&address, timeout_ms, &outcome), NULL));
    cr_assert(not(outcome.is_done), "on_done must not come from within http_fetch_get()");
    cr_assert(loop_run_until_flag(&outcome.is_done, TIMEOUT_MS));
    loop_run_for(10);
    cr_assert(eq(u32, outcome.call_count, 1));
    scripted_server_close(server);
    return outcome;
}

static bool body_is(const struct outcome *outcome, const char *text)
{
    return slice_eq(slice_of(outcome->body, outcome->body_len), slice_of_string(text));
}

TestSuite(http_fetch, .init = loop_fixture_init, .fini = loop_fixture_fini);

struct posted {
    char target[32], body[64], head[1024];
};

static void on_post(void *ctx, struct scripted_conn *conn, const struct scripted_request *request)
{
    struct posted *posted = ctx;

    snprintf(posted->target, sizeof posted->target, "%.*s", (int)request->target.len,
             request->target.ptr);
    snprintf(posted->body, sizeof posted->body, "%.*s", (int)request->body.len, request->body.ptr);
    snprintf(posted->head, sizeof posted->head, "%.*s", (int)request->head.len, request->head.ptr);
    scripted_conn_answer(conn, 200, SLICE("{}"));
}

Test(http_fetch, a_json_text_is_posted_as_it_is)
{
    struct posted posted = {.target = ""};
    struct outcome outcome = {.is_done = false};
    struct scripted_server *server =
        scripted_server_create(loop_fixture_loop(), 0, on_post, &posted);
    struct sockaddr_storage address = scripted_server_address(server);
    const struct http_fetch_request request = {.address = &address,
                                               .authority = "worker.example:8000",
                                               .target = "/v1/completions",
                                               .timeout_ms = TIMEOUT_MS,
                                               .body_bytes_max = BODY_BYTES_MAX};

    cr_assert(ne(ptr,
                 http_fetch_post(loop_fixture_loop(), request, SLICE("{\"prompt\":\"tea\"}"),
                                 on_done, &outcome),
                 NULL));
    cr_assert(loop_run_until_flag(&outcome.is_done, TIMEOUT_MS));

    cr_assert(eq(int, outcome.error, 0));
    cr_assert(eq(str, posted.target, "/v1/completions"));
    cr_assert(eq(str, posted.body, "{\"prompt\":\"tea\"}"));
    cr_assert(ne(ptr, strstr(posted.head, "Content-Type: application/json\r\n"), NULL));
    scripted_server_close(server);
}

Test(http_fetch, a_whole_answer_comes_with_status_and_body)
{
    struct script script = {
        .bytes = SLICE("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
    };

    struct outcome outcome = fetch(&script, TIMEOUT_MS);

    cr_assert(eq(int, outcome.error, 0));
    cr_assert(eq(int, outcome.status, 200));
    cr_assert(body_is(&outcome, "hello"));
    cr_assert(ne(ptr, strstr(script.seen, "GET /health HTTP/1.1\r\n"), NULL));
    cr_assert(ne(ptr, strstr(script.seen, "Host: worker.example:8000\r\n"), NULL));
    cr_assert(ne(ptr, strstr(script.seen, "Connection: close\r\n"), NULL));
}

Test(http_fetch, an_error_status_is_an_answer_too)
{
    struct script script = {.bytes = SLICE("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")};

    struct outcome outcome = fetch(&script, TIMEOUT_MS);

    cr_assert(eq(int, outcome.error, 0));
    cr_assert(eq(int, outcome.status, 404));
    cr_assert(eq(sz, outcome.body_len, 0));
}

Test(http_fetch, chunks_are_joined)
{
    struct script script = {
        .bytes = SLICE("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                       "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"),
    };

    struct outcome outcome = fetch(&script, TIMEOUT_MS);

    cr_assert(eq(int, outcome.error, 0));
    cr_assert(body_is(&outcome, "abcdefg"));
}

Test(http_fetch, a_body_may_end_with_the_connection)
{
    struct script script = {.bytes = SLICE("HTTP/1.1 200 OK\r\n\r\nuntil the end"),
                            .ending = CLOSES};

    struct outcome outcome = fetch(&script, TIMEOUT_MS);

    cr_assert(eq(int, outcome.error, 0));
    cr_assert(body_is(&outcome, "until the end"));
}

Test(http_fetch, a_body_cut_short_is_no_answer)
{
    struct script script = {
        .bytes = SLICE("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"),
        .ending = CLOSES,
    };

    struct outcome outcome = fetch(&script, TIMEOUT_MS);

    cr_assert(eq(int, outcome.error, -EPIPE));
}

Test(http_fetch, a_connection_closed_without_a_byte_is_no_answer)
{
    struct script script = {.ending = CLOSES};

    struct outcome outcome = fetch(&script, TIMEOUT_MS);

    cr_assert(eq(int, outcome.error, -EPIPE));
}

Test(http_fetch, a_reset_is_told)
{
    struct script script = {.ending = RESETS};

    struct outcome outcome = fetch(&script, TIMEOUT_MS);

    cr_assert(eq(int, outcome.error, -ECONNRESET));
}

Test(http_fetch, a_worker_that_does_not_answer_in_time_is_given_up)
{
    struct script script = {.bytes = SLICE("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")};
    uint64_t start_ns = uv_hrtime();

    struct outcome outcome = fetch(&script, 50);

    cr_assert(eq(int, outcome.error, -ETIMEDOUT));
    cr_assert(ge(u64, uv_hrtime() - start_ns, 45 * 1000000ull));
}

Test(http_fetch, nobody_there_is_refused)
{
    struct script script = {.ending = CLOSES};
    struct scripted_server *server =
        scripted_server_create(loop_fixture_loop(), 0, on_request, &script);
    struct sockaddr_storage address = scripted_server_address(server);
    struct outcome outcome = {.is_done = false};
    scripted_server_close(server);
    loop_run_for(1);

    cr_assert(ne(ptr, start(&address, TIMEOUT_MS, &outcome), NULL));
    cr_assert(loop_run_until_flag(&outcome.is_done, TIMEOUT_MS));

    cr_assert(eq(int, outcome.error, -ECONNREFUSED));
}

Test(http_fetch, an_address_that_cannot_be_used_is_told_later_not_at_once)
{
    struct sockaddr_storage address = {.ss_family = AF_UNIX};
    struct outcome outcome = {.is_done = false};

    cr_assert(ne(ptr, start(&address, TIMEOUT_MS, &outcome), NULL));
    cr_assert(not(outcome.is_done));
    cr_assert(loop_run_until_flag(&outcome.is_done, TIMEOUT_MS));

    cr_assert(lt(int, outcome.error, 0));
    cr_assert(ne(int, outcome.error, -ETIMEDOUT));
}

Test(http_fetch, a_body_above_the_limit_is_refused)
{
    char bytes[BODY_BYTES_MAX + 200] = "HTTP/1.1 200 OK\r\n\r\n";
    size_t head_len = strlen(bytes);
    struct script script = {.ending = STAYS_OPEN};
    memset(bytes + head_len, 'x', BODY_BYTES_MAX + 1);
    script.bytes = slice_of(bytes, head_len + BODY_BYTES_MAX + 1);

    struct outcome outcome = fetch(&script, TIMEOUT_MS);

    cr_assert(eq(int, outcome.error, -ENOBUFS));
}

Test(http_fetch, what_is_not_http_is_refused)
{
    struct script script = {.bytes = SLICE("220 mail.example ESMTP\r\n")};

    struct outcome outcome = fetch(&script, TIMEOUT_MS);

    cr_assert(eq(int, outcome.error, -EBADMSG));
}

Test(http_fetch, cancel_tells_before_it_returns_and_never_again)
{
    static const uint64_t waits_ms[] = {0, 5, 30}; /* before, while and after connecting */
    struct script script = {.ending = STAYS_OPEN};
    struct scripted_server *server =
        scripted_server_create(loop_fixture_loop(), 0, on_request, &script);
    struct sockaddr_storage address = scripted_server_address(server);

    for (size_t i = 0; i < array_count(waits_ms); i++) {
        struct outcome outcome = {.is_done = false};
        struct http_fetch *fetch = start(&address, TIMEOUT_MS, &outcome);
        if (waits_ms[i] > 0)
            loop_run_for(waits_ms[i]);

        http_fetch_cancel(fetch);

        cr_assert(eq(int, outcome.error, -ECANCELED));
        loop_run_for(20);
        cr_assert(eq(u32, outcome.call_count, 1));
    }
    scripted_server_close(server);
}
