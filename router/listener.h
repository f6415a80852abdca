/* SPDX-License-Identifier: Apache-2.0 */

/* listener: accepts connections on one address and hands each to a client_conn. Loop thread only.
 */
#ifndef ROUTER_LISTENER_H
#define ROUTER_LISTENER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backends/runtime/must_check.h"

struct endpoint_table;
struct relay;

struct listener {
    uv_tcp_t tcp;
    struct relay *relay;
    const struct endpoint_table *endpoints;
    bool is_open;
    uv_tcp_t refused;     /* takes connections that there is no memory for, to close them */
    bool is_refused_busy; /* until the loop has closed the last one */
    bool has_refused;     /* another one waits for that */
};

struct listener_config {
    const char *host;  /* address or name */
    uint16_t port;     /* 0: any free one */
    const char *event; /* of the log line that says where it listens */
};

/* Binds, listens, logs. -errno, with a sentence in why (256 bytes). */
MUST_CHECK int listener_open(struct listener *listener, struct relay *relay,
                             const struct endpoint_table *endpoints, struct listener_config config,
                             char why[256]);

/* Accepts no more; may be called twice. The memory is in use until the loop has run once more. */
void listener_close(struct listener *listener);

#endif
