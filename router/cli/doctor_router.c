/* SPDX-License-Identifier: Apache-2.0 */

#include "router/cli/doctor_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/*
 * DESIGN
 *
 * What the running router knows is its own to say: here it is only read out. A probe through it
 * takes the whole way: named, routed, joined with the engine's cache by an agent, published, read
 * back. That each step works shows in two numbers: tokens cached at the second turn, and changes
 * that agents have published.
 */

enum { PUBLISH_MS = 5000, POLL_MS = 100, URL_BYTES_MAX = 320 };

/* "http://host:port" of a listener of options, as it is reached from here. */
static void url_of(const char *host, uint64_t port, char url[URL_BYTES_MAX])
{
    const bool is_any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    const bool is_ipv6 = strchr(host, ':') != NULL && host[0] != '[';

    snprintf(url, URL_BYTES_MAX, "http://%s%s%s:%" PRIu64, is_ipv6 && !is_any ? "[" : "",
             is_any ? "127.0.0.1" : host, is_ipv6 && !is_any ? "]" : "", port);
}

static int find(const char *text, struct worker_url *url, struct sockaddr_storage *address,
                char why[WORKER_URL_WHY_BYTES])
{
    int status = worker_url_parse(slice_of_string(text), url, why);

    return status == 0 ? worker_url_resolve(url, address, why) : status;
}

/* ---- what it knows ---- */

static const char *advice_for(struct slice doubt)
{
    static const struct {
        const char *doubt, *advice;
    } rows[] = {
        {"no_map", "the router does not reach redis: see above"},
        {"no_agent", "run samovar-agent beside it"},
        {"fingerprint", "give its agent the same secret-file and version"},
        {"no_lease", "its agent has gone silent: see its log"},
        {"not_read", "it is being read; if that lasts, see breaks in `samovar show residency`"},
        {"capacity", "its agent claims more than the engine's cache can hold: see its log"},
        {"trust", "answers showed that its claims are wrong: is another engine behind that url?"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        if (slice_eq(doubt, slice_of_string(rows[i].doubt)))
            return rows[i].advice;
    }
    return "see `samovar show residency`";
}

static void say_worker(struct doctor *doctor, struct json_value worker)
{
    const struct slice url = json_string(json_get(worker, "url"));
    const struct slice doubt = json_string(json_get(worker, "doubt"));

    if (json_bool(json_get(worker, "believed")))
        doctor_say(doctor, DOCTOR_FINE,
                   "the router knows exactly what %.*s holds: %" PRId64 " blocks of text",
                   (int)url.len, url.ptr, json_int64(json_get(worker, "records")));
    else
        doctor_say(doctor, DOCTOR_DOUBT, "the router only guesses what %.*s holds (%.*s): %s",
                   (int)url.len, url.ptr, (int)doubt.len, doubt.ptr, advice_for(doubt));
}

static void say_residency(struct doctor *doctor, struct slice body)
{
    struct json_scanner *scanner = json_scanner_create();
    struct json_value root, worker;
    struct json_iterator workers;
    struct parse_error error;

    if (scanner == NULL || json_scan(scanner, body, &root, &error) < 0) {
        doctor_say(doctor, DOCTOR_BAD,
                   "what answers at the router's admin address is no router: see admin-port");
    } else if (json_type(json_get(root, "map")) != JSON_OBJECT) {
        doctor_say(doctor, doctor->options->redis[0] == '\0' ? DOCTOR_FINE : DOCTOR_DOUBT,
                   "the running router has no redis%s",
                   doctor->options->redis[0] == '\0' ? "" : ": it was started without it");
    } else {
        workers = json_iterate(json_get(root, "workers"));
        while (json_next_element(&workers, &worker))
            say_worker(doctor, worker);
    }
    json_scanner_destroy(scanner);
}

/* False: there is no router to ask. */
static bool say_admin(struct doctor *doctor)
{
    char url_text[URL_BYTES_MAX], why[WORKER_URL_WHY_BYTES];
    struct sockaddr_storage address;
    struct doctor_answer answer;
    struct worker_url url;
    bool is_there;

    url_of(doctor->options->admin_host, doctor->options->admin_port, url_text);
    if (doctor->admin != NULL)
        snprintf(url_text, sizeof url_text, "%s", doctor->admin);
    if (find(url_text, &url, &address, why) < 0) {
        doctor_say(doctor, DOCTOR_BAD, "the router's admin address: %s", why);
        return false;
    }
    doctor_ask(doctor, (struct doctor_place){&address, url.authority}, "/residency",
               slice_of(NULL, 0), &answer);
    is_there = answer.error == 0 && answer.status == 200;
    if (is_there)
        say_residency(doctor, buf_slice(&answer.body));
    else
        doctor_say(doctor, DOCTOR_DOUBT,
                   "no router answers at %s: start it, or say where with --admin", url_text);
    buf_release(&answer.body);
    return is_there;
}

/* ---- a probe through it ---- */

static bool has_agents(const struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->worker_count; i++) {
        if (doctor->workers[i].has_lease)
            return true;
    }
    return false;
}

static void on_pause_over(uv_timer_t *timer)
{
    bool *is_over = timer->data;

    *is_over = true;
}

static void pause_for(struct doctor *doctor, uint64_t ms)
{
    bool is_over = false;
    uv_timer_t timer;

    uv_timer_init(&doctor->io->loop, &timer);
    timer.data = &is_over;
    uv_update_time(&doctor->io->loop);
    uv_timer_start(&timer, on_pause_over, ms, 0);
    while (!is_over)
        uv_run(&doctor->io->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&doctor->io->loop, UV_RUN_NOWAIT); /* it lives on the stack */
}

/* Agents say what a prompt left when they have heard of it from both sides, some time later. */
static void say_publication(struct doctor *doctor, uint64_t sequence_before)
{
    for (uint64_t waited_ms = 0; waited_ms < PUBLISH_MS; waited_ms += POLL_MS) {
        if (doctor_agents_sequence(doctor) != sequence_before) {
            doctor_say(doctor, DOCTOR_FINE,
                       "an agent has published what the probe left in its engine's cache");
            return;
        }
        pause_for(doctor, POLL_MS);
    }
    doctor_say(doctor, DOCTOR_BAD,
               "no agent has published what the probe left: do the engine's cache events reach its "
               "agent (--kv-events-config there, kv-events here), and do the router's notes?");
}

static void say_probe(struct doctor *doctor)
{
    const uint64_t sequence = doctor_agents_sequence(doctor);
    char url_text[URL_BYTES_MAX], why[WORKER_URL_WHY_BYTES];
    struct sockaddr_storage address;
    struct worker_url url;
    struct doctor_probe probe;

    url_of(doctor->options->host, doctor->options->port, url_text);
    if (find(url_text, &url, &address, why) < 0) {
        doctor_say(doctor, DOCTOR_BAD, "the router's address: %s", why);
        return;
    }
    probe = doctor_probe(doctor, (struct doctor_place){&address, url.authority});
    if (probe.why[0] != '\0') {
        doctor_say(doctor, DOCTOR_BAD, "a probe through the router at %s failed: %s", url_text,
                   probe.why);
        return;
    }
    if (probe.cached == 0)
        doctor_say(doctor, DOCTOR_BAD,
                   "a probe's second turn through the router found nothing cached: see its receipt "
                   "for where it went");
    else if (probe.cached > 0)
        doctor_say(doctor, DOCTOR_FINE,
                   "a probe's second turn through the router found %" PRId64 " of %" PRId64
                   " tokens cached",
                   probe.cached, probe.prompt);
    if (has_agents(doctor))
        say_publication(doctor, sequence);
}

void doctor_examine_router(struct doctor *doctor, bool is_probing)
{
    if (say_admin(doctor) && is_probing)
        say_probe(doctor);
}
