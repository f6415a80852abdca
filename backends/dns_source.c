/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/dns_source.h"

#include "backends/runtime/clock.h"
#include "backends/runtime/random.h"

#include <assert.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 *   timer -> lookup --answer--> diff: come, leave --> timer
 *                    `-failed-> nothing changes ----> timer
 *
 * A name server that fails, or a name that has no address for a moment, is no statement about the
 * workers: what was known stays. An address leaves when two lookups in a row do not name it, since
 * answers over UDP are cut now and then; whoever really went away refuses connections anyway, which
 * is seen sooner.
 */

struct known {
    struct sockaddr_storage address;
    uint32_t missed_count; /* lookups in a row without it */
};

struct dns_source {
    struct dns_source_config config;
    const struct dns_source_callbacks *callbacks;
    void *ctx;
    uv_timer_t timer;
    struct resolver_lookup *lookup; /* the one under way, or NULL */
    uint64_t random;
    size_t known_count;
    struct known known[DNS_SOURCE_ADDRESS_COUNT_MAX];
};

static bool is_same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    struct sockaddr_in a4, b4;
    struct sockaddr_in6 a6, b6;

    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET) {
        memcpy(&a4, a, sizeof a4);
        memcpy(&b4, b, sizeof b4);
        return a4.sin_addr.s_addr == b4.sin_addr.s_addr && a4.sin_port == b4.sin_port;
    }
    memcpy(&a6, a, sizeof a6);
    memcpy(&b6, b, sizeof b6);
    return memcmp(&a6.sin6_addr, &b6.sin6_addr, sizeof a6.sin6_addr) == 0 &&
           a6.sin6_port == b6.sin6_port && a6.sin6_scope_id == b6.sin6_scope_id;
}

static struct known *find_known(struct dns_source *source, const struct sockaddr_storage *address)
{
    for (size_t i = 0; i < source->known_count; i++) {
        if (is_same(&source->known[i].address, address))
            return &source->known[i];
    }
    return NULL;
}

/* The family that counts: IPv4 where there is one. */
static int family_of(const struct sockaddr_storage *addresses, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (addresses[i].ss_family == AF_INET)
            return AF_INET;
    }
    return AF_INET6;
}

static void take_address(struct dns_source *source, const struct sockaddr_storage *address)
{
    struct known *known = find_known(source, address);

    if (known != NULL) {
        known->missed_count = 0;
    } else if (source->known_count <
               (source->config.is_single ? 1 : DNS_SOURCE_ADDRESS_COUNT_MAX)) {
        source->known[source->known_count++] = (struct known){.address = *address};
        source->callbacks->on_come(source->ctx, address);
    }
}

/* Lets go of what was not named for the last time it had. */
static void drop_missed(struct dns_source *source)
{
    size_t kept = 0;

    for (size_t i = 0; i < source->known_count; i++) {
        const struct known known = source->known[i];

        if (known.missed_count < DNS_SOURCE_MISSED_COUNT)
            source->known[kept++] = known;
        else
            source->callbacks->on_leave(source->ctx, &known.address);
    }
    source->known_count = kept;
}

static void take_addresses(struct dns_source *source, const struct sockaddr_storage *addresses,
                           size_t count)
{
    int family = family_of(addresses, count);

    for (size_t i = 0; i < source->known_count; i++)
        source->known[i].missed_count++;
    for (size_t i = 0; i < count; i++) {
        if (addresses[i].ss_family == family)
            take_address(source, &addresses[i]);
    }
    drop_missed(source);
}

static void on_timer(uv_timer_t *timer);

static void wait_for_next(struct dns_source *source)
{
    uint64_t interval_ms = source->config.interval_ms;
    int status;

    interval_ms =
        interval_ms - interval_ms / 10 + random_next(&source->random) % (interval_ms / 5 + 1);
    status = uv_timer_start(&source->timer, on_timer, interval_ms, 0);
    assert(status == 0);
    (void)status;
}

static void on_done(void *ctx, int error, const struct sockaddr_storage *addresses, size_t count)
{
    struct dns_source *source = ctx;

    source->lookup = NULL;
    if (error == 0 && count == 0)
        error = UV_EAI_NODATA;
    if (error == 0)
        take_addresses(source, addresses, count);
    source->callbacks->on_lookup(source->ctx, error);
    if (!source->config.is_single || source->known_count == 0)
        wait_for_next(source);
}

static void on_timer(uv_timer_t *timer)
{
    struct dns_source *source = timer->data;
    const struct dns_source_config *config = &source->config;

    assert(source->lookup == NULL);

    source->lookup =
        config->resolver->start(config->resolver_ctx, config->host, config->port, on_done, source);
    if (source->lookup == NULL) {
        source->callbacks->on_lookup(source->ctx, UV_ENOMEM);
        wait_for_next(source);
    }
}

struct dns_source *dns_source_create(uv_loop_t *loop, struct dns_source_config config,
                                     const struct dns_source_callbacks *callbacks, void *ctx)
{
    struct dns_source *source = calloc(1, sizeof *source);
    int status;

    assert(config.interval_ms > 0);

    if (source == NULL)
        abort(); /* bookkeeping */
    source->config = config;
    source->callbacks = callbacks;
    source->ctx = ctx;
    source->random = clock_now_us();
    status = uv_timer_init(loop, &source->timer);
    assert(status == 0);
    source->timer.data = source;
    status = uv_timer_start(&source->timer, on_timer, 0, 0);
    assert(status == 0);
    (void)status;
    return source;
}

static void on_closed(uv_handle_t *timer)
{
    free(timer->data);
}

void dns_source_close(struct dns_source *source)
{
    if (source->lookup != NULL)
        source->config.resolver->cancel(source->lookup);
    source->lookup = NULL;
    for (size_t i = 0; i < source->known_count; i++)
        source->callbacks->on_leave(source->ctx, &source->known[i].address);
    source->known_count = 0;
    uv_close((uv_handle_t *)&source->timer, on_closed);
}
