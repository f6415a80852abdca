/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/resolver.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

/*
 * DESIGN
 *
 * getaddrinfo() blocks for as long as the system's resolver likes (some ten seconds of a dead name
 * server), so it runs in libuv's pool of threads. libuv counts it as slow work, of which at most
 * half of the threads are given to: names that hang leave the other half to whoever shares the
 * pool.
 *
 * A lookup that a thread has begun cannot be stopped: cancelling forgets who asked, and its memory
 * goes when it ends.
 */
enum { ADDRESS_COUNT_MAX = 1024 };

struct resolver_lookup {
    uv_getaddrinfo_t request;
    resolver_done_fn *done; /* NULL: cancelled */
    void *ctx;
};

static void tell(const struct resolver_lookup *lookup, const struct addrinfo *found)
{
    struct sockaddr_storage *addresses;
    size_t count = 0;

    for (const struct addrinfo *info = found; info != NULL && count < ADDRESS_COUNT_MAX;
         info = info->ai_next)
        count++;
    addresses = calloc(count + 1, sizeof *addresses);
    if (addresses == NULL) {
        lookup->done(lookup->ctx, UV_ENOMEM, NULL, 0);
        return;
    }
    count = 0;
    for (const struct addrinfo *info = found; info != NULL && count < ADDRESS_COUNT_MAX;
         info = info->ai_next)
        memcpy(&addresses[count++], info->ai_addr, info->ai_addrlen);
    lookup->done(lookup->ctx, 0, addresses, count);
    free(addresses);
}

static void on_done(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
    struct resolver_lookup *lookup = request->data;

    if (lookup->done != NULL && status == 0)
        tell(lookup, found);
    else if (lookup->done != NULL)
        lookup->done(lookup->ctx, status, NULL, 0);
    uv_freeaddrinfo(found);
    free(lookup);
}

static struct resolver_lookup *start(void *ctx, const char *host, const char *port,
                                     resolver_done_fn *done, void *done_ctx)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct resolver_lookup *lookup = calloc(1, sizeof *lookup);
    uv_loop_t *loop = ctx;

    if (lookup == NULL)
        return NULL;
    lookup->request.data = lookup;
    lookup->done = done;
    lookup->ctx = done_ctx;
    if (uv_getaddrinfo(loop, &lookup->request, on_done, host, port, &hints) < 0) {
        free(lookup);
        return NULL;
    }
    return lookup;
}

static void cancel(struct resolver_lookup *lookup)
{
    lookup->done = NULL;
    (void)uv_cancel((uv_req_t *)&lookup->request); /* else it ends by itself */
}

const struct resolver resolver_system = {start, cancel};
