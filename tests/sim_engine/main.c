/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/server.h"

#include <stdio.h>
#include <unistd.h>
#include <uv.h>

#include "backends/runtime/log.h"

static int serve(const struct options *options)
{
    struct server server;
    int status = server_init(&server, options);

    if (status < 0) {
        fprintf(stderr, "samovar-sim: cannot listen on %s:%d, or publish on %s: %s\n",
                options->host, (int)options->port, options->kv_events, uv_strerror(status));
    } else {
        server_run(&server);
    }
    server_release(&server);
    log_finish();
    return status < 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
    struct options options;
    char message[512];

    log_init(STDERR_FILENO, LOG_INFO, LOG_FORMAT_AUTO);
    switch (options_parse(argc, argv, &options, message, sizeof message)) {
    case OPTIONS_RUN:
        return serve(&options);
    case OPTIONS_HELP:
        options_print_help();
        return 0;
    case OPTIONS_VERSION:
        printf("samovar-sim %s\n", SAMOVAR_VERSION);
        return 0;
    case OPTIONS_WRONG:
        break;
    }
    fprintf(stderr, "samovar-sim: %s\n", message);
    return 2;
}
