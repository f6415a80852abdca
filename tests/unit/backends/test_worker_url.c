/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/worker_url.h"

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <netinet/in.h>

TestSuite(worker_url, .fini = leak_check);

Test(worker_url, good_urls_get_one_name)
{
    static const struct {
        const char *url, *name, *authority;
        uint32_t rank_count;
        bool is_dns;
    } rows[] = {
        {"http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1:8000", 0, false},
        {"HTTP://127.0.0.1:08001/", "http://127.0.0.1:8001", "127.0.0.1:8001", 0, false},
        {"http://LocalHost", "http://localhost:80", "localhost:80", 0, false},
        {"http://[::1]:8000", "http://[::1]:8000", "[::1]:8000", 0, false},
        {"http://127.0.0.1:65535", "http://127.0.0.1:65535", "127.0.0.1:65535", 0, false},
        {"dns://workers.svc:8000", "dns://workers.svc:8000", "workers.svc:8000", 0, true},
        {"http://a:1#dp=4", "http://a:1", "a:1", 4, false},
        {"DNS://a:1#dp=64", "dns://a:1", "a:1", 64, true},
        {"http://a#dp=1", "http://a:80", "a:80", 1, false},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct worker_url url;
        char why[WORKER_URL_WHY_BYTES] = "";

        int status = worker_url_parse(slice_of_string(rows[i].url), &url, why);

        cr_assert(eq(int, status, 0), "%s: %s", rows[i].url, why);
        cr_assert(eq(str, url.name, (char *)rows[i].name));
        cr_assert(eq(str, url.authority, (char *)rows[i].authority));
        cr_assert(eq(u32, url.rank_count, rows[i].rank_count));
        cr_assert(eq(int, url.is_dns, rows[i].is_dns));
    }
}

Test(worker_url, bad_urls_are_refused_with_what_to_write_instead)
{
    static const struct {
        const char *url;
        const char *said;
    } rows[] = {
        {"", "empty"},
        {"foo:80", "'foo:80' has no scheme: write http://foo:80"},
        {"https://foo:80", "TLS to workers is not supported yet"},
        {"tcp://foo:80", "only http:// and dns:// are known"},
        {"http://foo:80/v1", "write http://foo:80"},
        {"http://foo:80?x=1", "write http://foo:80"},
        {"http://foo:80//", "write http://foo:80"},
        {"http://user:pass@foo:80", "user name or password"},
        {"http://", "no host"},
        {"http://:80", "no host"},
        {"http://foo:", "a port must follow"},
        {"http://foo:0", "from 1 to 65535"},
        {"http://foo:65536", "from 1 to 65535"},
        {"http://foo:99999999999999999999", "from 1 to 65535"},
        {"http://foo:80x", "from 1 to 65535"},
        {"http://foo: 80", "from 1 to 65535"},
        {"http://::1:80", "write IPv6 as http://[::1]:8000"},
        {"http://[::1", "not closed"},
        {"http://[::1]8000", "a port must follow"},
        {"http://[foo]:80", "no IPv6 address"},
        {"http://foo bar:80", "no host name has"},
        {"http://foo\r\nX", "no host name has"},
        {"http://a:1#dp=0", "behind #dp= is 1 to 64"},
        {"http://a:1#dp=65", "behind #dp= is 1 to 64"},
        {"http://a:1#dp=", "behind #dp= is 1 to 64"},
        {"http://a:1#dp=-1", "behind #dp= is 1 to 64"},
        {"http://a:1#dp=4x", "behind #dp= is 1 to 64"},
        {"http://a:1#dp=99999999999999999999", "behind #dp= is 1 to 64"},
        {"http://a:1#rank", "write http://a:1"},
        {"http://a:1/#dp=4/", "behind #dp= is 1 to 64"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct worker_url url;
        char why[WORKER_URL_WHY_BYTES] = "";

        int status = worker_url_parse(slice_of_string(rows[i].url), &url, why);

        cr_assert(eq(int, status, -EINVAL), "'%s' was taken", rows[i].url);
        cr_assert(ne(ptr, strstr(why, rows[i].said), NULL), "'%s' said: %s", rows[i].url, why);
    }
}

Test(worker_url, a_very_long_one_is_refused_within_the_sentence)
{
    struct worker_url url;
    char text[4000] = "http://", why[WORKER_URL_WHY_BYTES];
    memset(text + 7, 'a', sizeof text - 8);

    cr_assert(eq(int, worker_url_parse(slice_of_string(text), &url, why), -EINVAL));
    cr_assert(eq(int, worker_url_parse(slice_of_string(text + 7), &url, why), -EINVAL));

    cr_assert(lt(sz, strlen(why), WORKER_URL_WHY_BYTES));
}

Test(worker_url, an_address_needs_no_resolving_and_is_written_back_alike)
{
    static const struct {
        const char *url;
        bool is_address;
    } rows[] = {
        {"http://127.0.0.1:8000", true},
        {"http://[fd00::7]:8000", true},
        {"http://localhost:8000", false},
        {"http://127.0.0.1.example:8000", false},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct sockaddr_storage address;
        char authority[WORKER_NAME_BYTES_MAX], why[WORKER_URL_WHY_BYTES];
        struct worker_url url;
        cr_assert(eq(int, worker_url_parse(slice_of_string(rows[i].url), &url, why), 0));

        bool is_address = worker_url_address(&url, &address);

        cr_assert(eq(int, is_address, rows[i].is_address), "%s", rows[i].url);
        if (!is_address)
            continue;
        worker_url_authority(&address, authority);
        cr_assert(eq(str, authority, url.authority));
    }
}

Test(worker_url, a_name_with_both_kinds_of_address_resolves_to_ipv4)
{
    struct sockaddr_storage address;
    char why[WORKER_URL_WHY_BYTES];
    struct worker_url url;
    cr_assert(eq(int, worker_url_parse(SLICE("http://localhost:8001"), &url, why), 0));

    cr_assert(eq(int, worker_url_resolve(&url, &address, why), 0));

    cr_assert(eq(int, address.ss_family, AF_INET), "engines mostly listen on IPv4");
}

Test(worker_url, a_name_that_nobody_has_is_named)
{
    struct sockaddr_storage address;
    char why[WORKER_URL_WHY_BYTES];
    struct worker_url url;
    cr_assert(eq(int, worker_url_parse(SLICE("http://no.invalid:1"), &url, why), 0));

    cr_assert(eq(int, worker_url_resolve(&url, &address, why), -EINVAL));

    cr_assert(ne(ptr, strstr(why, "'no.invalid' is not known"), NULL));
}
