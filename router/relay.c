/* SPDX-License-Identifier: Apache-2.0 */

#include "router/relay.h"

#include <assert.h>

#include "backends/runtime/log.h"
#include "backends/runtime/random.h"
#include "router/policy/policy_defaults.h"

enum { DESCRIPTORS_WARNED_MS = 10000 };

static const char *const wait_names[] = {
    [RELAY_WAIT_CLIENT_HEADER] = "client-header-ms",
    [RELAY_WAIT_CLIENT_BODY] = "client-body-ms",
    [RELAY_WAIT_CLIENT_IDLE] = "client-idle-ms",
    [RELAY_WAIT_CLIENT_STALL] = "client-stall-ms",
    [RELAY_WAIT_CLIENT_LINGER] = "client-linger-ms",
    [RELAY_WAIT_CLIENT_HANGUP] = "client-hangup-ms",
    [RELAY_WAIT_CONNECT] = "connect-ms",
    [RELAY_WAIT_EARLY_HEAD] = "early-head-ms",
    [RELAY_WAIT_KEEPALIVE] = "keepalive-ms",
    [RELAY_WAIT_UPSTREAM_HEADER] = "upstream-header-ms",
    [RELAY_WAIT_UPSTREAM_IDLE] = "upstream-idle-ms",
    [RELAY_WAIT_WORKER_IDLE] = "worker-idle-ms",
};
static_assert(array_count(wait_names) == RELAY_WAIT_COUNT, "every wait has a name");

void relay_init(struct relay *relay, struct io_loop *io, struct relay_config config,
                io_expired_fn *const on_expired[RELAY_WAIT_COUNT])
{
    memset(relay, 0, sizeof *relay);
    relay->io = io;
    relay->config = config;
    relay->tokens_per_byte = POLICY_TOKENS_PER_BYTE_DEFAULT;
    list_init(&relay->clients);
    outbox_hub_init(&relay->outboxes);
    router_stats_init(&relay->stats);
    retry_budget_init(&relay->retry_budget);
    poison_table_init(&relay->poison, config.poison_memory_ms);
    for (size_t wait = 0; wait < RELAY_WAIT_COUNT; wait++)
        io_deadlines_init(&relay->waits[wait], io, config.wait_ms[wait], on_expired[wait]);
}

void relay_configure(struct relay *relay, struct relay_config config)
{
    relay->config = config;
    relay->poison.memory_ms = config.poison_memory_ms;
    for (size_t wait = 0; wait < RELAY_WAIT_COUNT; wait++)
        deadline_list_set_duration(&relay->waits[wait].list, config.wait_ms[wait]);
}

void relay_wait(struct relay *relay, enum relay_wait wait, struct deadline *deadline)
{
    struct deadline_list *list = &relay->waits[wait].list;
    uint64_t now_ms = io_loop_now_ms(relay->io);

    /* Renewed within the same tick, as for each event of a stream: its place in the list is good
     * enough, and its neighbours' memory stays untouched. */
    if (deadline->list == list && deadline->expires_ms + IO_TICK_MS > now_ms + list->duration_ms)
        return;
    deadline_arm(deadline, list, now_ms);
}

const char *relay_wait_name(enum relay_wait wait)
{
    assert(wait < RELAY_WAIT_COUNT);

    return wait_names[wait];
}

void relay_warn_descriptors(struct relay *relay, const char *where)
{
    uint64_t now_ms = io_loop_now_ms(relay->io);

    if (relay->descriptors_warned_ms > 0 &&
        now_ms - relay->descriptors_warned_ms < DESCRIPTORS_WARNED_MS)
        return;
    relay->descriptors_warned_ms = now_ms;
    LOG(LOG_WARN, "no_descriptors", log_text("for", where),
        log_text("help", "raise the limit of open files: ulimit -n, or LimitNOFILE of the unit"));
}

void relay_random_id(struct relay *relay, char *id, size_t count)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    uint64_t bits = 0;

    for (size_t i = 0; i < count; i++) {
        if (i % 12 == 0)
            bits = random_next(&relay->id_state);
        id[i] = letters[bits & 31];
        bits >>= 5;
    }
}

static_assert((int)RESIDENCY_SYNC_WORKER_COUNT_MAX == (int)WORKER_COUNT_MAX,
              "each worker may have an agent");

struct residency_agent relay_agent(const struct relay *relay, const struct worker *worker)
{
    if (relay->sync == NULL)
        return (struct residency_agent){.doubt = RESIDENCY_DOUBT_NO_MAP};
    return residency_sync_agent(relay->sync, worker->index, io_loop_now_ms(relay->io));
}

bool relay_is_ready(const struct relay *relay)
{
    const struct worker_lists *lists = worker_set_lists(relay->workers);

    return !relay->is_draining &&
           lists->by_state[WORKER_UP].count + lists->by_state[WORKER_TRIAL].count > 0;
}
