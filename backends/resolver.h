/* SPDX-License-Identifier: Apache-2.0 */

/*
 * resolver: asks for the addresses of a name without blocking the loop. A table of two functions,
 * so that tests answer for it. Loop thread only.
 */
#ifndef BACKENDS_RESOLVER_H
#define BACKENDS_RESOLVER_H

#include <stddef.h>
#include <sys/socket.h>

struct resolver_lookup;

/* Exactly once unless cancelled, never from within start(). error: 0, or an UV_E... of libuv, and
 * then count is 0. addresses end with the call; they may repeat, and be of both families. */
typedef void resolver_done_fn(void *ctx, int error, const struct sockaddr_storage *addresses,
                              size_t count);

struct resolver {
    /* NULL: none could be started; done will not be called. Copies host and port. */
    struct resolver_lookup *(*start)(void *ctx, const char *host, const char *port,
                                     resolver_done_fn *done, void *done_ctx);
    /* done will not be called any more. */
    void (*cancel)(struct resolver_lookup *lookup);
};

/* The system's, in a thread of libuv's pool; its ctx is the loop. */
extern const struct resolver resolver_system;

#endif
