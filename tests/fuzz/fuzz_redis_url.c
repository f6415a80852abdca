/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any text as the url of a Redis: one that is taken is shown in one spelling, which is taken again
 * and means the same; a refusal says why, within its room.
 */
#include "backends/redis/redis_url.h"

#include "tests/fuzz/fuzz_input.h"

#include <assert.h>

static void check_taken(const struct redis_url *url)
{
    char text[REDIS_URL_SHOWN_BYTES], again_text[REDIS_URL_SHOWN_BYTES];
    char why[REDIS_URL_WHY_BYTES];
    struct redis_url again;

    assert((url->host[0] == '\0') != (url->path[0] == '\0'));
    assert(url->path[0] != '\0' || url->port != 0);
    assert(strchr(url->user, ':') == NULL);
    redis_url_text(url, text);
    assert(redis_url_parse(slice_of_string(text), &again, why) == 0);
    redis_url_text(&again, again_text);
    assert(strcmp(text, again_text) == 0);
    assert(strcmp(url->host, again.host) == 0 && strcmp(url->path, again.path) == 0);
    assert(strcmp(url->user, again.user) == 0);
    assert(url->port == again.port && url->database == again.database);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct redis_url url;
    char why[REDIS_URL_WHY_BYTES] = "";

    if (redis_url_parse(slice_of(data, size), &url, why) == 0)
        check_taken(&url);
    else
        assert(why[0] != '\0' && memchr(why, '\0', sizeof why) != NULL);
    return 0;
}
