/* SPDX-License-Identifier: Apache-2.0 */

/*
 * redis_url: what an operator writes for a Redis, checked and taken apart. Pure.
 */
#ifndef BACKENDS_REDIS_REDIS_URL_H
#define BACKENDS_REDIS_REDIS_URL_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/option.h"
#include "backends/runtime/slice.h"

enum {
    REDIS_URL_TEXT_BYTES_MAX = 256,
    REDIS_URL_SHOWN_BYTES = 2 * REDIS_URL_TEXT_BYTES_MAX + 32,
    REDIS_URL_WHY_BYTES = OPTION_WHY_BYTES,
};

struct redis_url {
    char host[REDIS_URL_TEXT_BYTES_MAX]; /* without brackets; "" where path is */
    uint16_t port;
    char path[108];                      /* of a Unix socket; "" where host is */
    char user[REDIS_URL_TEXT_BYTES_MAX]; /* "": the default user */
    uint32_t database;
};

/*
 * "redis://[user@]host[:port][/database]", "unix:///path[?user=U&db=N]". No password: it is read
 * from a file, so that neither ps nor a log shows it. rediss:// (TLS) is not supported. -EINVAL
 * with a sentence in why that says what to write instead.
 */
MUST_CHECK int redis_url_parse(struct slice text, struct redis_url *url,
                               char why[REDIS_URL_WHY_BYTES]);

/* The check of an option that names one, or, empty, none. */
MUST_CHECK int redis_url_check(struct slice text, char why[REDIS_URL_WHY_BYTES]);

/* As it may be shown, and as it was written but for defaults. */
void redis_url_text(const struct redis_url *url, char text[REDIS_URL_SHOWN_BYTES]);

#endif
