/* SPDX-License-Identifier: Apache-2.0 */

/*
 * dns_source: the addresses behind one name, looked up again every so often; tells which came and
 * which left. Knows nothing of workers. Loop thread only.
 */
#ifndef BACKENDS_DNS_SOURCE_H
#define BACKENDS_DNS_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#include "backends/resolver.h"

struct dns_source;

struct dns_source_config {
    const struct resolver *resolver;
    void *resolver_ctx;
    const char *host; /* both borrowed until close */
    const char *port;
    uint64_t interval_ms; /* between two lookups, jittered by a tenth */
    bool is_single;       /* one address is enough, and is kept: no lookup after it */
};

enum {
    DNS_SOURCE_MISSED_COUNT = 2,       /* lookups in a row that do not name an address: it left */
    DNS_SOURCE_ADDRESS_COUNT_MAX = 256 /* of one name; more are ignored */
};

/* None of them may close the source. */
struct dns_source_callbacks {
    void (*on_come)(void *ctx, const struct sockaddr_storage *address);
    void (*on_leave)(void *ctx, const struct sockaddr_storage *address);
    /* After each lookup, behind what it changed: 0, or why it failed, and then nothing changed. */
    void (*on_lookup)(void *ctx, int error);
};

/*
 * Looks it up at once, and again. IPv4 addresses alone count where there are any: a host with both
 * kinds is one worker, not two, and engines mostly listen on 0.0.0.0. Borrows callbacks.
 */
struct dns_source *dns_source_create(uv_loop_t *loop, struct dns_source_config config,
                                     const struct dns_source_callbacks *callbacks, void *ctx);

/* Tells on_leave of each address that it had; then no callback any more. Its memory goes with its
 * handle. */
void dns_source_close(struct dns_source *source);

#endif
