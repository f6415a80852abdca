/* SPDX-License-Identifier: Apache-2.0 */

#include "router/doubts.h"

#include "backends/tcp_listen.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

/*
 * DESIGN
 *
 * One row a doubt: when it holds, and what to say. The defaults give none on any machine that is
 * worth running on, or people would learn to look past them.
 */

enum {
    ENGINE_IDLE_MS = 5000,   /* uvicorn's keep-alive, in front of vLLM and others */
    BODY_COUNT_AT_ONCE = 16, /* large bodies that a busy router may hold together */
    DESCRIPTORS_OF_OURS = 64,
};

static bool is_admin_public(const struct router_options *options, const struct machine *machine)
{
    (void)machine;
    return !tcp_is_loopback(options->admin_host);
}

static bool are_bodies_too_large(const struct router_options *options,
                                 const struct machine *machine)
{
    return options->body_bytes_max > machine->memory_bytes / 2 / BODY_COUNT_AT_ONCE;
}

static bool are_clients_too_many(const struct router_options *options,
                                 const struct machine *machine)
{
    return options->client_count_max + DESCRIPTORS_OF_OURS > machine->descriptor_count_max;
}

static bool is_head_slower_than_body(const struct router_options *options,
                                     const struct machine *machine)
{
    (void)machine;
    return options->client_header_ms > options->client_body_ms;
}

static bool is_connect_slower_than_answer(const struct router_options *options,
                                          const struct machine *machine)
{
    (void)machine;
    return options->connect_ms >= options->upstream_header_ms;
}

static bool may_any_page_read(const struct router_options *options, const struct machine *machine)
{
    (void)machine;
    for (size_t i = 0; i < options->cors_origins.count; i++)
        if (strcmp(options->cors_origins.items[i], "*") == 0)
            return true;
    return false;
}

static bool is_keepalive_too_late(const struct router_options *options,
                                  const struct machine *machine)
{
    (void)machine;
    return options->keepalive_ms >= options->upstream_idle_ms;
}

static bool is_drain_short(const struct router_options *options, const struct machine *machine)
{
    (void)machine;
    return options->drain_ms < 5000;
}

static bool is_probing_hard(const struct router_options *options, const struct machine *machine)
{
    (void)machine;
    return options->probe_interval_ms < 100;
}

static bool is_probing_rarely(const struct router_options *options, const struct machine *machine)
{
    (void)machine;
    return options->probe_interval_ms > 30000;
}

static bool is_residency_too_large(const struct router_options *options,
                                   const struct machine *machine)
{
    return options->residency_bytes_max > machine->memory_bytes / 2;
}

static bool is_seeded(const struct router_options *options, const struct machine *machine)
{
    (void)machine;
    return options->seed != 0;
}

static bool is_prefill_cut(const struct router_options *options, const struct machine *machine)
{
    (void)machine;
    return options->upstream_header_ms < 10000;
}

static bool is_thinking_cut(const struct router_options *options, const struct machine *machine)
{
    (void)machine;
    return options->upstream_idle_ms < 5000;
}

static bool is_idle_longer_than_engines(const struct router_options *options,
                                        const struct machine *machine)
{
    (void)machine;
    return options->worker_idle_ms >= ENGINE_IDLE_MS;
}

static const struct doubt_row {
    bool (*holds)(const struct router_options *options, const struct machine *machine);
    struct doubt doubt;
} doubt_rows[] = {
    {is_admin_public,
     {"admin-host", "whoever reaches this address reads metrics and workers: it has no password",
      "use 127.0.0.1, or an address that only the operators reach"}},
    {are_bodies_too_large,
     {"body-bytes-max", "16 bodies of this size at once fill half of the memory",
      "lower it, or give the router more memory"}},
    {are_clients_too_many,
     {"client-count-max",
      "the limit of open files is reached first: each connection takes one, and a stream two",
      "raise it (ulimit -n, LimitNOFILE=), or lower this"}},
    {is_head_slower_than_body,
     {"client-header-ms", "a head, which is small, may take longer than a pause within a body",
      "make it shorter than client-body-ms, or slow clients hold connections for nothing"}},
    {is_connect_slower_than_answer,
     {"connect-ms", "a connection may take as long as the whole wait for an answer",
      "make it much shorter than upstream-header-ms, so that another worker can be tried"}},
    {may_any_page_read,
     {"cors-origins", "any web page that a user opens may send prompts and read the answers",
      "name the origins that may, as https://host"}},
    {is_drain_short,
     {"drain-ms", "a restart cuts answers that need longer than this",
      "give it the time of a long answer, and the supervisor some seconds more"}},
    {is_keepalive_too_late,
     {"keepalive-ms", "a silent stream is cut before a keepalive is due",
      "make it shorter than upstream-idle-ms"}},
    {is_probing_hard,
     {"probe-interval-ms", "each worker is asked more than ten times a second",
      "once a second notices a dead worker within three"}},
    {is_probing_rarely,
     {"probe-interval-ms", "a dead worker is noticed by its probes only after minutes",
      "once a second costs an engine nothing"}},
    {is_residency_too_large,
     {"residency-bytes-max", "the memory for prefixes may fill more than half of the machine",
      "lower it; the default is 256MiB"}},
    {is_seeded,
     {"seed", "hashes of prefixes and request ids can be foretold by whoever knows the seed",
      "leave it out, except to repeat a run"}},
    {is_prefill_cut,
     {"upstream-header-ms", "long prompts take longer than this until their first token",
      "give it minutes: a dead worker is noticed by its probes"}},
    {is_thinking_cut,
     {"upstream-idle-ms", "a busy engine pauses longer than this between two tokens",
      "give it a minute or more"}},
    {is_idle_longer_than_engines,
     {"worker-idle-ms", "engines close idle connections after 5 s (vLLM): requests meet them",
      "stay below 5s, or raise the engines' own limit (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)"}},
};
static_assert(sizeof doubt_rows / sizeof *doubt_rows <= DOUBT_COUNT_MAX, "all of them fit");

size_t doubts_find(const struct router_options *options, const struct machine *machine,
                   const struct doubt *doubts[DOUBT_COUNT_MAX])
{
    size_t count = 0;

    for (size_t i = 0; i < array_count(doubt_rows); i++)
        if (doubt_rows[i].holds(options, machine))
            doubts[count++] = &doubt_rows[i].doubt;
    return count;
}
