/* SPDX-License-Identifier: Apache-2.0 */

#include "router/load_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 * Each message says all that a router has in flight. It takes the place of the one before: what
 * that one had added to the sums is taken off, what this one says is added. So sums hold no drift,
 * and a choice, which asks for each of its workers, finds one sum instead of adding up.
 */
enum {
    SUM_COUNT_MAX = 4096, /* workers that somebody else has something at */
    PLACES_BYTES_MAX = 1 << 20,
};

struct load_router {
    uint64_t id;
    uint64_t heard_ms;
    struct residency_load *loads; /* heap; NULL: none */
    size_t load_count;
};

int load_table_init(struct load_table *table, uint64_t own)
{
    *table = (struct load_table){
        .own = own,
        .routers = calloc(LOAD_TABLE_ROUTER_COUNT_MAX, sizeof *table->routers),
        .sums = calloc(SUM_COUNT_MAX, sizeof *table->sums),
        .free_sums = calloc(SUM_COUNT_MAX, sizeof *table->free_sums),
        .sum_count_max = SUM_COUNT_MAX,
    };
    block_map_init(&table->places, PLACES_BYTES_MAX);
    if (table->routers != NULL && table->sums != NULL && table->free_sums != NULL)
        return 0;
    load_table_release(table);
    return -ENOMEM;
}

/* The sum of a worker, a new one where there is none; NULL: too many. */
static struct load_sum *claim_sum(struct load_table *table, uint64_t name_hash)
{
    uint64_t *place;
    uint32_t index;

    if (name_hash == 0)
        return NULL;
    place = block_map_find(&table->places, name_hash);
    if (place != NULL)
        return &table->sums[*place - 1];
    if (table->free_count == 0 && table->sum_count == table->sum_count_max)
        return NULL;
    place = block_map_claim(&table->places, name_hash);
    if (place == NULL)
        return NULL;
    index = table->free_count > 0 ? table->free_sums[--table->free_count]
                                  : (uint32_t)table->sum_count++;
    *place = (uint64_t)index + 1;
    return &table->sums[index];
}

static bool is_nothing(const struct load_sum *sum)
{
    return sum->in_flight == 0 && sum->decoding == 0 && sum->queued_tokens == 0;
}

/* False: there is no room for that worker, so that nothing was added. */
static bool add(struct load_table *table, const struct residency_load *load)
{
    struct load_sum *sum = claim_sum(table, load->worker);

    if (sum == NULL)
        return false;
    sum->in_flight += load->in_flight;
    sum->decoding += load->decoding;
    sum->queued_tokens += load->queued_tokens;
    return true;
}

static void take_off(struct load_table *table, const struct residency_load *load)
{
    uint64_t *place = block_map_find(&table->places, load->worker);
    struct load_sum *sum;

    assert(place != NULL);

    sum = &table->sums[*place - 1];
    assert(sum->in_flight >= load->in_flight && sum->queued_tokens >= load->queued_tokens);
    sum->in_flight -= load->in_flight;
    sum->decoding -= load->decoding;
    sum->queued_tokens -= load->queued_tokens;
    if (is_nothing(sum)) {
        table->free_sums[table->free_count++] = (uint32_t)(*place - 1);
        block_map_remove(&table->places, load->worker);
    }
}

static void forget_loads(struct load_table *table, struct load_router *router)
{
    for (size_t i = 0; i < router->load_count; i++)
        take_off(table, &router->loads[i]);
    free(router->loads);
    router->loads = NULL;
    router->load_count = 0;
}

static struct load_router *router_of(struct load_table *table, uint64_t id)
{
    struct load_router *router;

    for (size_t i = 0; i < table->router_count; i++) {
        if (table->routers[i].id == id)
            return &table->routers[i];
    }
    if (table->router_count == LOAD_TABLE_ROUTER_COUNT_MAX)
        return NULL;
    router = &table->routers[table->router_count++];
    *router = (struct load_router){.id = id};
    return router;
}

static bool has_something(const struct residency_load *load)
{
    return load->in_flight > 0 || load->decoding > 0 || load->queued_tokens > 0;
}

static void take_loads(struct load_table *table, struct load_router *router, struct slice message,
                       size_t count)
{
    router->loads = count > 0 ? malloc(count * sizeof *router->loads) : NULL;
    for (size_t i = 0; router->loads != NULL && i < count; i++) {
        struct residency_load load = residency_loads_at(message, i);

        if (has_something(&load) && add(table, &load))
            router->loads[router->load_count++] = load;
    }
}

void load_table_take(struct load_table *table, struct slice message, uint64_t now_ms)
{
    struct load_router *router;
    uint64_t id;
    size_t count;

    if (residency_loads_read(message, &id, &count) < 0) {
        table->refused_total++;
        return;
    }
    if (id == table->own)
        return;
    router = router_of(table, id);
    if (router == NULL) {
        table->refused_total++;
        return;
    }
    forget_loads(table, router);
    take_loads(table, router, message, count);
    router->heard_ms = now_ms;
}

void load_table_expire(struct load_table *table, uint64_t now_ms)
{
    for (size_t i = table->router_count; i-- > 0;) {
        struct load_router *router = &table->routers[i];

        if (now_ms - router->heard_ms <= LOAD_TABLE_SILENT_MS_MAX)
            continue;
        forget_loads(table, router);
        *router = table->routers[--table->router_count];
    }
}

struct load_sum load_table_find(const struct load_table *table, uint64_t name_hash)
{
    const uint64_t *place = NULL;

    if (table->router_count > 0 && name_hash != 0)
        place = block_map_find(&table->places, name_hash);
    return place != NULL ? table->sums[*place - 1] : (struct load_sum){0};
}

size_t load_table_router_count(const struct load_table *table)
{
    return table->router_count;
}

uint64_t load_table_in_flight(const struct load_table *table)
{
    uint64_t in_flight = 0;

    for (size_t i = 0; i < table->sum_count; i++)
        in_flight += table->sums[i].in_flight; /* 0 in those that are free */
    return in_flight;
}

void load_table_release(struct load_table *table)
{
    for (size_t i = 0; i < table->router_count; i++)
        free(table->routers[i].loads);
    free(table->routers);
    free(table->sums);
    free(table->free_sums);
    block_map_release(&table->places);
    *table = (struct load_table){0};
}
