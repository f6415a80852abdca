/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/engine_spec.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT_MAX = 65535 };

/* Of "tcp://host:port": the port, and where it begins in text; 0: there is none. */
static unsigned long port_of(const char *text, size_t *at)
{
    const char *colon = strrchr(text, ':');
    char *end;
    unsigned long port;

    if (strncmp(text, "tcp://", 6) != 0 || colon < text + 6)
        return 0;
    port = strtoul(colon + 1, &end, 10);
    *at = (size_t)(colon + 1 - text);
    return colon[1] >= '0' && colon[1] <= '9' && *end == '\0' && port <= PORT_MAX ? port : 0;
}

int engine_endpoint_check(struct slice text, char why[OPTION_WHY_BYTES])
{
    char copy[ENGINE_ENDPOINT_BYTES_MAX];
    size_t at;

    if (text.len >= sizeof copy) {
        snprintf(why, OPTION_WHY_BYTES, "is longer than %zu bytes", sizeof copy - 1);
        return -EINVAL;
    }
    snprintf(copy, sizeof copy, "%.*s", (int)text.len, text.ptr);
    if (strchr(copy, '*') != NULL) {
        snprintf(why, OPTION_WHY_BYTES,
                 "is where the engine listens; write the host that it is reached at in place of *");
        return -EINVAL;
    }
    if (port_of(copy, &at) != 0 || (slice_starts_with(text, SLICE("ipc://")) && text.len > 6))
        return 0;
    snprintf(why, OPTION_WHY_BYTES, "write tcp://host:port or ipc:///path");
    return -EINVAL;
}

/* The endpoint of a rank: its port is that of rank 0 and so many more. */
static int endpoint_of(const char *text, uint32_t rank, char endpoint[ENGINE_ENDPOINT_BYTES_MAX])
{
    size_t at = 0;
    unsigned long port = port_of(text, &at);

    if (rank == 0)
        snprintf(endpoint, ENGINE_ENDPOINT_BYTES_MAX, "%s", text);
    else if (port != 0 && port + rank <= PORT_MAX)
        snprintf(endpoint, ENGINE_ENDPOINT_BYTES_MAX, "%.*s%lu", (int)at, text, port + rank);
    else
        return -EINVAL;
    return 0;
}

static int refuse(const char **option, const char *name, char why[ENGINE_SPEC_WHY_BYTES],
                  const char *sentence)
{
    *option = name;
    snprintf(why, ENGINE_SPEC_WHY_BYTES, "%s", sentence);
    return -EINVAL;
}

static const char *item(const struct option_list *list, size_t index)
{
    return index < list->count ? list->items[index] : "";
}

static int check_counts(const struct engine_lists *lists, const char **option,
                        char why[ENGINE_SPEC_WHY_BYTES])
{
    const struct {
        const char *name;
        const struct option_list *list;
        bool is_needed;
    } rows[] = {
        {"advertise", &lists->advertise, false},
        {"kv-events", &lists->kv_events, true},
        {"kv-replay", &lists->kv_replay, false},
    };

    if (lists->engine.count == 0)
        return refuse(option, "engine", why, "no engine is given: add --engine http://host:port");
    for (size_t i = 0; i < array_count(rows); i++) {
        if (rows[i].list->count == lists->engine.count ||
            (rows[i].list->count == 0 && !rows[i].is_needed))
            continue;
        *option = rows[i].name;
        snprintf(why, ENGINE_SPEC_WHY_BYTES,
                 "there are %zu for %zu engines: give one for each --engine, in the same order",
                 rows[i].list->count, lists->engine.count);
        return -EINVAL;
    }
    return 0;
}

/* Both were checked one by one when they were read. */
static int read_urls(const struct engine_lists *lists, size_t engine, struct worker_url *url,
                     struct worker_url *advertised)
{
    const char *text = lists->engine.items[engine];
    const char *other = lists->advertise.count > 0 ? lists->advertise.items[engine] : text;
    char ignored[WORKER_URL_WHY_BYTES];

    if (worker_url_parse(slice_of_string(text), url, ignored) < 0 ||
        worker_url_parse(slice_of_string(other), advertised, ignored) < 0)
        return -EINVAL;
    return 0;
}

/* The worker of one rank, named as every router names it. */
static int make_spec(const struct engine_lists *lists, struct engine_spec *spec,
                     const struct worker_url *advertised)
{
    size_t len;

    snprintf(spec->name, sizeof spec->name, "http://%.240s", advertised->authority);
    len = strlen(spec->name);
    if (spec->url.rank_count > 0)
        snprintf(spec->name + len, sizeof spec->name - len, "#%u", spec->rank);
    if (endpoint_of(item(&lists->kv_events, spec->engine), spec->rank, spec->events) < 0)
        return -EINVAL;
    return lists->kv_replay.count > 0
               ? endpoint_of(lists->kv_replay.items[spec->engine], spec->rank, spec->replay)
               : 0;
}

static bool is_there(const struct engine_spec *specs, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(specs[i].name, name) == 0)
            return true;
    return false;
}

int engine_specs_make(const struct engine_lists *lists,
                      struct engine_spec specs[ENGINE_WORKER_COUNT_MAX], const char **option,
                      char why[ENGINE_SPEC_WHY_BYTES])
{
    struct worker_url url, advertised;
    int status = check_counts(lists, option, why);
    uint32_t count = 0;

    for (uint32_t engine = 0; status == 0 && engine < lists->engine.count; engine++) {
        if (read_urls(lists, engine, &url, &advertised) < 0)
            return refuse(option, "engine", why, "is no URL of an engine");
        if (url.is_dns || advertised.is_dns)
            return refuse(option, url.is_dns ? "engine" : "advertise", why,
                          "dns:// names many engines; an agent speaks for those it is told one by "
                          "one: write http://");
        if (lists->advertise.count > 0 && advertised.rank_count != 0 &&
            advertised.rank_count != url.rank_count)
            return refuse(option, "advertise", why, "has another #dp=N than its --engine");
        for (uint32_t rank = 0; rank == 0 || rank < url.rank_count; rank++) {
            struct engine_spec spec = {.url = url, .engine = engine, .rank = rank};

            if (count == ENGINE_WORKER_COUNT_MAX)
                return refuse(option, "engine", why, "these are more than 64 workers");
            if (make_spec(lists, &spec, &advertised) < 0)
                return refuse(option, "kv-events", why,
                              "ranks need tcp:// endpoints with room for their ports");
            if (is_there(specs, count, spec.name))
                return refuse(option, lists->advertise.count > 0 ? "advertise" : "engine", why,
                              "names one worker twice");
            specs[count++] = spec;
        }
    }
    return status < 0 ? status : (int)count;
}
