/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/redis_url.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

TestSuite(redis_url, .fini = leak_check);

Test(redis_url, good_urls_are_taken_apart_and_shown_in_one_spelling)
{
    static const struct {
        const char *text, *host, *path, *user, *shown;
        uint32_t port, database;
    } rows[] = {
        {"redis://r", "r", "", "", "redis://r:6379", 6379, 0},
        {"REDIS://r/", "r", "", "", "redis://r:6379", 6379, 0},
        {"redis://10.0.0.1:7000/3", "10.0.0.1", "", "", "redis://10.0.0.1:7000/3", 7000, 3},
        {"redis://[::1]:7000", "::1", "", "", "redis://[::1]:7000", 7000, 0},
        {"redis://[fd00::2]", "fd00::2", "", "", "redis://[fd00::2]:6379", 6379, 0},
        {"redis://router@r:1", "r", "", "router", "redis://router@r:1", 1, 0},
        {"redis://a@[::1]:7/0", "::1", "", "a", "redis://a@[::1]:7", 7, 0},
        {"unix:///run/r.sock", "", "/run/r.sock", "", "unix:///run/r.sock", 0, 0},
        {"unix:///r?user=a&db=2", "", "/r", "a", "unix:///r?user=a&db=2", 0, 2},
        {"unix:///r?db=2&user=a", "", "/r", "a", "unix:///r?user=a&db=2", 0, 2},
        {"unix:///r?db=2", "", "/r", "", "unix:///r?db=2", 0, 2},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct redis_url url;
        char why[REDIS_URL_WHY_BYTES] = "", shown[REDIS_URL_SHOWN_BYTES];

        int status = redis_url_parse(slice_of_string(rows[i].text), &url, why);

        cr_assert(eq(int, status, 0), "%s: %s", rows[i].text, why);
        cr_assert(eq(str, url.host, (char *)rows[i].host), "%s", rows[i].text);
        cr_assert(eq(str, url.path, (char *)rows[i].path), "%s", rows[i].text);
        cr_assert(eq(str, url.user, (char *)rows[i].user), "%s", rows[i].text);
        cr_assert(eq(u32, url.port, rows[i].port), "%s", rows[i].text);
        cr_assert(eq(u32, url.database, rows[i].database), "%s", rows[i].text);
        redis_url_text(&url, shown);
        cr_assert(eq(str, shown, (char *)rows[i].shown));
    }
}

Test(redis_url, bad_urls_are_refused_with_what_to_write_instead)
{
    static const struct {
        const char *text, *said;
    } rows[] = {
        {"", "no scheme: write redis://host:port"},
        {"localhost:6379", "no scheme: write redis://host:port"},
        {"http://r", "only redis:// and unix://"},
        {"rediss://r", "TLS is not supported yet"},
        {"redis://", "no host"},
        {"redis://a@", "no host"},
        {"redis://:6379", "no host"},
        {"redis://r:", "from 1 to 65535"},
        {"redis://r:0", "from 1 to 65535"},
        {"redis://r:65536", "from 1 to 65535"},
        {"redis://r:99999999999999999999", "from 1 to 65535"},
        {"redis://r:1x", "from 1 to 65535"},
        {"redis://[::1", "not closed"},
        {"redis://[::1]6379", "a port must follow"},
        {"redis://::1:6379", "write IPv6 as redis://[::1]:6379"},
        {"redis://[r]", "no IPv6 address"},
        {"redis://[::1::2]", "no IPv6 address"},
        {"redis://a@b@r", "no host name has"},
        {"redis://r?db=1", "no host name has"},
        {"redis://r/x", "no number from 0"},
        {"redis://r/1/2", "no number from 0"},
        {"redis://r/70000", "no number from 0"},
        {"redis://r b", "a character that none has"},
        {"redis://r\r\nFLUSHALL", "a character that none has"},
        {"unix://r.sock", "no absolute path"},
        {"unix://", "no absolute path"},
        {"unix:///r?user=a&tls=1", "only ?user= and &db="},
        {"unix:///r?db=", "no number from 0"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct redis_url url;
        char why[REDIS_URL_WHY_BYTES] = "";

        int status = redis_url_parse(slice_of_string(rows[i].text), &url, why);

        cr_assert(eq(int, status, -EINVAL), "'%s' was taken", rows[i].text);
        cr_assert(ne(ptr, strstr(why, rows[i].said), NULL), "'%s' said: %s", rows[i].text, why);
    }
}

Test(redis_url, a_password_is_refused_and_not_repeated)
{
    static const char *const rows[] = {
        "redis://:hunter2@r",         "redis://a:hunter2@r:1/0", "unix:///r?user=a:hunter2",
        "unix:///r?password=hunter2", "http://a:hunter2@r",      "a:hunter2@r",
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct redis_url url;
        char why[REDIS_URL_WHY_BYTES] = "";

        int status = redis_url_parse(slice_of_string(rows[i]), &url, why);

        cr_assert(eq(int, status, -EINVAL), "'%s' was taken", rows[i]);
        cr_assert(eq(ptr, strstr(why, "hunter2"), NULL), "'%s' said: %s", rows[i], why);
    }
}

Test(redis_url, what_is_too_long_is_refused_within_the_sentence)
{
    static const char *const starts[] = {"redis://", "redis://a@", "unix:///", "unix:///r?user="};

    for (size_t i = 0; i < array_count(starts); i++) {
        struct redis_url url;
        char text[2000], why[REDIS_URL_WHY_BYTES] = "";
        memset(text, 'a', sizeof text);
        memcpy(text, starts[i], strlen(starts[i]));

        int status = redis_url_parse(slice_of(text, sizeof text), &url, why);

        cr_assert(eq(int, status, -EINVAL), "%s", starts[i]);
        cr_assert(lt(sz, strlen(why), REDIS_URL_WHY_BYTES));
    }
}
