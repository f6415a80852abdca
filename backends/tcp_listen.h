/* SPDX-License-Identifier: Apache-2.0 */

/* tcp_listen: binds an address that an operator wrote and listens there. Loop thread only. */
#ifndef BACKENDS_TCP_LISTEN_H
#define BACKENDS_TCP_LISTEN_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backends/runtime/must_check.h"

struct tcp_listen_config {
    const char *host;  /* address or name; a name is resolved here, blocking: at boot only */
    uint16_t port;     /* 0: any free one */
    const char *event; /* of the log line that says where it listens */
};

enum { TCP_LISTEN_WHY_BYTES = 256 };

/*
 * Initialises tcp on loop, binds, listens, logs; on_connection comes from the loop, with tcp as its
 * stream. -errno, with a sentence in why: then tcp is closed, or was never opened, and its
 * memory in use until the loop has run once more.
 */
MUST_CHECK int tcp_listen(uv_tcp_t *tcp, uv_loop_t *loop, struct tcp_listen_config config,
                          uv_connection_cb on_connection, char why[TCP_LISTEN_WHY_BYTES]);

/* Whether host, as it is written, is of this machine alone. */
bool tcp_is_loopback(const char *host);

#endif
