/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet: the workers of a running router. Brings them in and takes them out with all that hangs on
 * one (connections, probe, what it is believed to hold), as the configuration and the addresses of
 * names say; tells the log what becomes of them. Loop thread only.
 */
#ifndef ROUTER_FLEET_H
#define ROUTER_FLEET_H

#include <stddef.h>
#include <stdint.h>

#include "backends/health.h"
#include "backends/resolver.h"
#include "backends/runtime/must_check.h"
#include "backends/worker_url.h"

struct fleet;
struct relay;

/* Told of workers that come, and are about to be freed: what others keep of them by index. */
struct fleet_observer {
    void (*on_come)(void *ctx, struct worker *worker);
    void (*on_gone)(void *ctx, struct worker *worker);
    void *ctx;
};

struct fleet_config {
    struct health_config health;
    const struct resolver *resolver;
    void *resolver_ctx;
    uint64_t dns_interval_ms;
    size_t answer_head_bytes_max;
};

struct fleet_changes {
    uint32_t added; /* urls, not workers: a name may have any number of addresses */
    uint32_t removed;
    uint32_t kept;
};

/* Without workers. Borrows relay, whose workers, guess, waits and limits must be there. */
struct fleet *fleet_create(struct relay *relay, struct fleet_config config);

/* Another one from now on, told of whoever is there; NULL: none. Borrowed. */
void fleet_set_observer(struct fleet *fleet, const struct fleet_observer *observer);

/*
 * These are the workers from now on, at the start and whenever the configuration changes: all or
 * nothing. -EINVAL, with a sentence in why, where one is not understood or there twice: nothing
 * changes then. What is there already goes on untouched, its health included. What is new becomes
 * STARTING: at once where its address is written, when its name is resolved otherwise (a name that
 * cannot be is tried again, and holds up nobody). What is no more named is DRAINING: it gets
 * nothing new, finishes what it has, and is GONE then. changes may be NULL.
 */
MUST_CHECK int fleet_set_urls(struct fleet *fleet, const char *const *urls, size_t count,
                              struct fleet_changes *changes, char why[WORKER_URL_WHY_BYTES]);

/*
 * An agent speaks for the worker of that name ("http://host:port", "#rank" behind it): it is one of
 * the workers from now on, whatever the urls say, until fleet_leave(). 0 too where it is already;
 * -EINVAL, with a sentence in why: no name of a worker.
 */
MUST_CHECK int fleet_join(struct fleet *fleet, const char *name, char why[WORKER_URL_WHY_BYTES]);

/* No agent does any more: it stays only if the urls name it too. */
void fleet_leave(struct fleet *fleet, const char *name);

/* Another time between two health probes of a worker, from each one's next probe on. */
void fleet_set_probe_interval(struct fleet *fleet, uint64_t probe_interval_ms);

/* Names whose last lookup failed, and failed lookups since the start. */
struct fleet_lookups {
    uint32_t failing_count;
    uint64_t failed_total;
};
struct fleet_lookups fleet_lookups(const struct fleet *fleet);

/* Stops: no attempt may be in flight. The workers stay in their set, without connections. */
void fleet_close(struct fleet *fleet);

/* After the loop has closed all handles. */
void fleet_destroy(struct fleet *fleet);

#endif
