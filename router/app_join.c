/* SPDX-License-Identifier: Apache-2.0 */

#include "router/app.h"

#include <assert.h>
#include <errno.h>

#include "backends/redis/redis_link.h"
#include "backends/runtime/log.h"
#include "backends/runtime/system_random.h"
#include "router/join/join.h"
#include "router/load_share.h"

/*
 * DESIGN
 *
 * What this router says through Redis: notes to agents, and its load to other routers. Both go
 * through one link, which never blocks; what others say of their load comes by a link of its own.
 * Neither is waited for at the start: a router is ready without Redis.
 */
enum {
    CONNECT_MS = 2000,
    COMMAND_MS = 1000,
    WATCH_COMMAND_MS = 3000, /* an XREAD that waits for a second */
    BACK_OFF_MS = 100,
    BACK_OFF_MS_MAX = 2000,
    PENDING_MAX = 1024,
};

static void on_ready(void *ctx)
{
    struct app *app = ctx;

    app->has_notes_link = true;
    LOG(LOG_INFO, "notes_link_up");
}

static void on_away(void *ctx, int error, const char *why)
{
    struct app *app = ctx;

    (void)error;
    /* Each state once: a server that is away would fill the log. */
    if (app->has_notes_link)
        LOG(LOG_WARN, "notes_link_down", log_text("why", why));
    app->has_notes_link = false;
}

static struct residency_agent find_agent(void *ctx, const struct worker *worker)
{
    return relay_agent(ctx, worker);
}

static struct redis_link_config link_config(const struct redis_url *url, const char *password)
{
    return (struct redis_link_config){
        .url = *url,
        .password = password,
        .connect_ms = CONNECT_MS,
        .command_ms = COMMAND_MS,
        .back_off_ms = BACK_OFF_MS,
        .back_off_ms_max = BACK_OFF_MS_MAX,
        .pending_max = PENDING_MAX,
    };
}

static int open_links(struct app *app, struct redis_link_config config)
{
    static const struct redis_link_callbacks callbacks = {on_ready, on_away};
    struct relay *relay = &app->relay;
    struct redis_link_config watch = config;
    int status;

    config.name = "samovar-router-notes";
    watch.name = "samovar-router-loads";
    watch.command_ms = WATCH_COMMAND_MS;
    status = redis_link_open(&app->io.loop, config, callbacks, app, &app->notes_link);
    if (status < 0)
        return status;
    return load_share_create((struct load_share_config){&app->io.loop, relay->workers,
                                                        app->notes_link, watch, app->router_id},
                             &relay->loads);
}

static int make_join(struct app *app, const struct router_options *options)
{
    struct relay *relay = &app->relay;

    relay->join = join_create((struct join_config){
        .io = &app->io,
        .link = app->notes_link,
        .threads = relay->parse_threads,
        .scanner = relay->scanner,
        .workers = relay->workers,
        .guess = relay->guess,
        .stats = &relay->stats,
        .secret = relay->secret,
        .fingerprint = relay->fingerprint,
        .router = app->router_id,
        .authorization = app->worker_authorization,
        .anchor_bytes_min = options->anchor_bytes_min,
        .anchor_rate_max = (uint32_t)options->anchor_rate_max,
        .find_agent = find_agent,
        .ctx = relay,
    });
    return relay->join != NULL ? 0 : -ENOMEM;
}

int app_start_join(struct app *app, const struct router_options *options,
                   const struct redis_url *url, const char *password)
{
    int status;

    app->router_id = system_random_id();
    app->has_notes_link = true; /* so that the first failure is said */
    status = open_links(app, link_config(url, password));
    return status < 0 ? status : make_join(app, options);
}

void app_stop_join(struct app *app)
{
    if (app->relay.join != NULL)
        join_close(app->relay.join);
    load_share_close(&app->relay.loads);
    if (app->notes_link != NULL)
        redis_link_close(&app->notes_link, NULL, NULL);
}
