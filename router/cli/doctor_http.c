/* SPDX-License-Identifier: Apache-2.0 */

#include "router/cli/doctor_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/http/http_fetch.h"
#include "backends/json/json_write.h"
#include "backends/runtime/clock.h"
#include "backends/runtime/random.h"

enum { BODY_BYTES_MAX = 4 << 20, REQUEST_BYTES_MAX = 64 << 10, PROBE_WORD_COUNT = 500 };

static void on_done(void *ctx, int error, int status, struct slice body)
{
    struct doctor_answer *answer = ctx;

    answer->is_done = true;
    answer->error = error;
    answer->status = status;
    if (error == 0)
        answer->error = buf_append(&answer->body, body);
}

void doctor_ask(struct doctor *doctor, struct doctor_place place, const char *target,
                struct slice json, struct doctor_answer *answer)
{
    const struct http_fetch_request request = {
        .address = place.address,
        .authority = place.authority,
        .target = target,
        .authorization = doctor->authorization,
        .timeout_ms = DOCTOR_TIMEOUT_MS,
        .body_bytes_max = BODY_BYTES_MAX,
    };
    const uint64_t begin_ns = uv_hrtime();
    struct http_fetch *fetch;

    *answer = (struct doctor_answer){.is_done = false};
    buf_init(&answer->body, BODY_BYTES_MAX);
    fetch = json.len > 0 ? http_fetch_post(&doctor->io->loop, request, json, on_done, answer)
                         : http_fetch_get(&doctor->io->loop, request, on_done, answer);
    if (fetch == NULL) {
        answer->error = -ENOMEM;
        return;
    }
    while (!answer->is_done)
        uv_run(&doctor->io->loop, UV_RUN_ONCE);
    answer->seconds = (double)(uv_hrtime() - begin_ns) / 1e9;
}

/* ---- a probe ---- */

/* Of the first model that the place lists; -errno with why. */
static int read_model(struct doctor *doctor, struct doctor_place place, struct buf *model,
                      char why[256])
{
    struct json_scanner *scanner = json_scanner_create();
    struct json_value root, entry;
    struct json_iterator entries;
    struct parse_error error;
    struct doctor_answer answer;
    int status = -EPROTO;

    doctor_ask(doctor, place, "/v1/models", slice_of(NULL, 0), &answer);
    if (answer.error < 0)
        snprintf(why, 256, "/v1/models: %s", strerror(-answer.error));
    else if (answer.status != 200)
        snprintf(why, 256, "/v1/models answers %d", answer.status);
    else if (scanner != NULL && json_scan(scanner, buf_slice(&answer.body), &root, &error) == 0) {
        entries = json_iterate(json_get(root, "data"));
        if (json_next_element(&entries, &entry) && json_type(json_get(entry, "id")) == JSON_STRING)
            status = buf_append(model, json_string(json_get(entry, "id")));
        else
            snprintf(why, 256, "/v1/models lists no model");
    } else {
        snprintf(why, 256, "/v1/models is no JSON");
    }
    json_scanner_destroy(scanner);
    buf_release(&answer.body);
    return status;
}

/* text: of the first turn; is_second: with an answer and another turn behind it. */
static int write_turn(struct buf *body, struct slice model, struct slice text, bool is_second)
{
    int status = buf_append(body, SLICE("{\"model\":"));

    if (status == 0)
        status = json_write_string(body, model);
    if (status == 0)
        status = buf_append(body, SLICE(",\"max_tokens\":1,\"temperature\":0,\"messages\":["
                                        "{\"role\":\"user\",\"content\":"));
    if (status == 0)
        status = json_write_string(body, text);
    if (status == 0 && is_second)
        status = buf_append(body, SLICE("},{\"role\":\"assistant\",\"content\":\"yes\"},"
                                        "{\"role\":\"user\",\"content\":\"And now?\""));
    return status == 0 ? buf_append(body, SLICE("}]}")) : status;
}

/* Words that nobody has said before. */
static int write_text(struct buf *text)
{
    uint64_t random = clock_wall_ms() ^ (uint64_t)getpid() << 40;
    int status = buf_append(text, SLICE("samovar doctor asks:"));

    for (int i = 0; i < PROBE_WORD_COUNT && status == 0; i++)
        status = buf_printf(text, " %05" PRIx64, random_next(&random) & 0xfffff);
    return status;
}

static void read_usage(struct slice body, struct doctor_probe *probe)
{
    struct json_scanner *scanner = json_scanner_create();
    struct json_value root, usage, cached;
    struct parse_error error;

    if (scanner == NULL || json_scan(scanner, body, &root, &error) < 0) {
        snprintf(probe->why, sizeof probe->why, "its answer is no JSON");
    } else {
        usage = json_get(root, "usage");
        probe->prompt = json_int64(json_get(usage, "prompt_tokens"));
        cached = json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens");
        probe->cached = json_type(cached) == JSON_INT64 ? json_int64(cached) : -1;
    }
    json_scanner_destroy(scanner);
}

static void ask_turn(struct doctor *doctor, struct doctor_place place, struct slice json,
                     struct doctor_probe *probe)
{
    struct doctor_answer answer;

    doctor_ask(doctor, place, "/v1/chat/completions", json, &answer);
    if (answer.error < 0)
        snprintf(probe->why, sizeof probe->why, "/v1/chat/completions: %s",
                 strerror(-answer.error));
    else if (answer.status != 200)
        snprintf(probe->why, sizeof probe->why, "/v1/chat/completions answers %d", answer.status);
    else
        read_usage(buf_slice(&answer.body), probe);
    buf_release(&answer.body);
}

struct doctor_probe doctor_probe(struct doctor *doctor, struct doctor_place place)
{
    struct doctor_probe probe = {.cached = -1};
    struct buf model, text, body;
    int status;

    buf_init(&model, REQUEST_BYTES_MAX);
    buf_init(&text, REQUEST_BYTES_MAX);
    buf_init(&body, REQUEST_BYTES_MAX);
    status = read_model(doctor, place, &model, probe.why);
    if (status == 0)
        status = write_text(&text);
    for (int turn = 0; turn < 2 && status == 0 && probe.why[0] == '\0'; turn++) {
        buf_clear(&body);
        status = write_turn(&body, buf_slice(&model), buf_slice(&text), turn == 1);
        if (status == 0)
            ask_turn(doctor, place, buf_slice(&body), &probe);
    }
    if (status < 0 && probe.why[0] == '\0')
        snprintf(probe.why, sizeof probe.why, "%s", strerror(-status));
    buf_release(&model);
    buf_release(&text);
    buf_release(&body);
    return probe;
}
