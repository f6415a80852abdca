/* SPDX-License-Identifier: Apache-2.0 */

#include "router/app.h"

#include <stdio.h>

#include "backends/runtime/private_file.h"
#include "router/residency_map.h"

/* What agents say of the workers, and what they are told. Nobody waits for it: a router is ready
 * without Redis. */

int app_start_map(struct app *app, const struct router_options *options)
{
    struct residency_map_config config = {
        .feed.fingerprint = app->relay.fingerprint,
        .leave_ms = options->redis_leave_ms,
    };
    struct private_file password = {.len = 0};
    char why[PRIVATE_FILE_WHY_BYTES] = "no memory for the map";
    int status;

    if (options->redis[0] == '\0')
        return EXIT_CODE_OK;
    status =
        private_file_read_line(&password, "redis-password-file", options->redis_password_file, why);
    if (password.len > 0)
        config.feed.password = password.bytes;
    if (status == 0)
        status = redis_url_parse(slice_of_string(options->redis), &config.feed.url, why);
    if (status == 0)
        status = residency_map_open(&app->relay, config, &app->relay.map);
    if (status == 0)
        status = app_start_join(app, options, &config.feed.url, config.feed.password);
    private_file_release(&password);
    if (status < 0)
        fprintf(stderr, "samovar-router: %s\n", why);
    return status < 0 ? EXIT_CODE_CONFIG : EXIT_CODE_OK;
}
