/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/worker_url.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Strict on purpose, with its own few rules instead of a URL library: a worker's URL is a host and
 * a port (and "#dp=N": a fragment is never sent, so it cannot mean anything to the engine), and
 * everything else in it is a misunderstanding that would fail later and less clearly (the /v1 that
 * clients write, https, a password). Names are written anew in one spelling, so that
 * equal workers compare equal.
 */

enum { SHOWN_BYTES_MAX = 60, PORT_MAX = 65535, HOST_BYTES_MAX = 230 };

/* The pieces of "http://host:port", as written. */
struct parts {
    struct slice host; /* without brackets */
    struct slice port; /* empty: none */
    bool is_ipv6;
};

__attribute__((format(printf, 2, 3))) static int refuse(char why[WORKER_URL_WHY_BYTES],
                                                        const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, WORKER_URL_WHY_BYTES, format, args);
    va_end(args);
    return -EINVAL;
}

/* The precision of "%.*s": the sentence must fit in why. */
static int shown(struct slice text)
{
    return (int)(text.len < SHOWN_BYTES_MAX ? text.len : SHOWN_BYTES_MAX);
}

static int cut_scheme(struct slice *text, struct worker_url *url, char why[WORKER_URL_WHY_BYTES])
{
    const struct slice whole = *text;
    const char *mark = whole.len > 0 ? memmem(whole.ptr, whole.len, "://", 3) : NULL;
    struct slice scheme;

    if (whole.len == 0)
        return refuse(why, "a worker url is empty: write http://host:port");
    if (slice_find(whole, '@') < whole.len) /* before any sentence that quotes the url */
        return refuse(why, "a worker url holds a user name or password: write http://host:port");
    if (mark == NULL)
        return refuse(why, "worker url '%.*s' has no scheme: write http://%.*s", shown(whole),
                      whole.ptr, shown(whole), whole.ptr);
    scheme = slice_of(whole.ptr, (size_t)(mark - whole.ptr));
    *text = slice_skip(whole, scheme.len + 3);
    url->is_dns = slice_eq_nocase(scheme, SLICE("dns"));
    if (url->is_dns || slice_eq_nocase(scheme, SLICE("http")))
        return 0;
    if (slice_eq_nocase(scheme, SLICE("https")))
        return refuse(why, "worker url '%.*s': TLS to workers is not supported yet: write http://",
                      shown(whole), whole.ptr);
    return refuse(why, "worker url '%.*s': only http:// and dns:// are known", shown(whole),
                  whole.ptr);
}

/* "#dp=N" behind the authority. Anything else behind a '#' is left for cut_path() to refuse. */
static int cut_ranks(struct slice *text, struct worker_url *url, char why[WORKER_URL_WHY_BYTES])
{
    size_t len = slice_find(*text, '#');
    struct slice ranks = slice_skip(*text, len);
    uint32_t count = 0;

    url->rank_count = 0;
    if (!slice_starts_with(ranks, SLICE("#dp=")))
        return 0;
    ranks = slice_skip(ranks, 4);
    for (size_t i = 0; i < ranks.len && count <= WORKER_RANK_COUNT_MAX; i++) {
        bool is_digit = ranks.ptr[i] >= '0' && ranks.ptr[i] <= '9';

        count = is_digit ? count * 10 + (uint32_t)(ranks.ptr[i] - '0') : UINT32_MAX;
    }
    if (count == 0 || count > WORKER_RANK_COUNT_MAX)
        return refuse(why, "worker url '%.*s': the number of ranks behind #dp= is 1 to %d",
                      shown(*text), text->ptr, WORKER_RANK_COUNT_MAX);
    url->rank_count = count;
    text->len = len;
    return 0;
}

/* What follows the authority must be nothing, or the lone slash that people paste. */
static int cut_path(struct slice *text, char why[WORKER_URL_WHY_BYTES])
{
    size_t len = 0;

    while (len < text->len && strchr("/?#", text->ptr[len]) == NULL)
        len++;
    if (len < text->len && !slice_eq(slice_skip(*text, len), SLICE("/")))
        return refuse(why, "worker url '%.*s' goes on behind host and port: write http://%.*s",
                      shown(*text), text->ptr, shown(slice_of(text->ptr, len)), text->ptr);
    text->len = len;
    return 0;
}

static int split_authority(struct slice authority, struct parts *parts,
                           char why[WORKER_URL_WHY_BYTES])
{
    size_t host_len;

    *parts = (struct parts){.is_ipv6 = authority.len > 0 && *authority.ptr == '['};
    if (parts->is_ipv6) {
        host_len = slice_find(authority, ']');
        if (host_len == authority.len)
            return refuse(why, "worker url '%.*s': the bracket is not closed", shown(authority),
                          authority.ptr);
        parts->host = slice_of(authority.ptr + 1, host_len - 1);
        authority = slice_skip(authority, host_len + 1);
    } else {
        host_len = slice_find(authority, ':');
        parts->host = slice_of(authority.ptr, host_len);
        authority = slice_skip(authority, host_len);
    }
    if (authority.len == 0)
        return 0;
    if (*authority.ptr != ':' || authority.len == 1)
        return refuse(why, "worker url '%.*s': a port must follow the host", shown(parts->host),
                      parts->host.ptr);
    parts->port = slice_skip(authority, 1);
    if (slice_find(parts->port, ':') < parts->port.len)
        return refuse(why, "a worker url has more than one ':': write IPv6 as http://[::1]:8000");
    return 0;
}

static bool is_host_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
}

static int check_host(const struct parts *parts, char why[WORKER_URL_WHY_BYTES])
{
    struct in6_addr ignored;
    char host[INET6_ADDRSTRLEN];

    if (parts->host.len == 0)
        return refuse(why, "a worker url has no host: write http://host:port");
    if (parts->host.len > HOST_BYTES_MAX)
        return refuse(why, "the host of a worker url is longer than %d bytes", HOST_BYTES_MAX);
    if (parts->is_ipv6) {
        snprintf(host, sizeof host, "%.*s", (int)parts->host.len, parts->host.ptr);
        if (parts->host.len >= sizeof host || inet_pton(AF_INET6, host, &ignored) != 1)
            return refuse(why, "worker url: '[%.*s]' is no IPv6 address", shown(parts->host),
                          parts->host.ptr);
        return 0;
    }
    for (size_t i = 0; i < parts->host.len; i++) {
        if (!is_host_byte(parts->host.ptr[i]))
            return refuse(why, "worker url: host '%.*s' has a character no host name has",
                          shown(slice_of(parts->host.ptr, i)), parts->host.ptr);
    }
    return 0;
}

/* The port as a number without leading zeros: names must compare. */
static int read_port(struct slice text, unsigned *port, char why[WORKER_URL_WHY_BYTES])
{
    *port = text.len == 0 ? 80 : 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] < '0' || text.ptr[i] > '9' || *port > PORT_MAX)
            return refuse(why, "worker url: port '%.*s' is no number from 1 to 65535", shown(text),
                          text.ptr);
        *port = *port * 10 + (unsigned)(text.ptr[i] - '0');
    }
    if (*port == 0 || *port > PORT_MAX)
        return refuse(why, "worker url: port '%.*s' is no number from 1 to 65535", shown(text),
                      text.ptr);
    return 0;
}

static void write_parts(const struct parts *parts, unsigned port, struct worker_url *url)
{
    const char *open = parts->is_ipv6 ? "[" : "", *close = parts->is_ipv6 ? "]" : "";
    const char *scheme = url->is_dns ? "dns" : "http";

    memcpy(url->host, parts->host.ptr, parts->host.len);
    url->host[parts->host.len] = '\0';
    for (char *c = url->host; *c != '\0'; c++)
        *c = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
    snprintf(url->port, sizeof url->port, "%u", port % (PORT_MAX + 1));
    snprintf(url->name, sizeof url->name, "%s://%s%.*s%s:%u", scheme, open, HOST_BYTES_MAX,
             url->host, close, port);
    snprintf(url->authority, sizeof url->authority, "%s%.*s%s:%u", open, HOST_BYTES_MAX, url->host,
             close, port);
}

int worker_url_parse(struct slice text, struct worker_url *url, char why[WORKER_URL_WHY_BYTES])
{
    struct parts parts;
    unsigned port;
    int status = cut_scheme(&text, url, why);

    if (status == 0)
        status = cut_ranks(&text, url, why);
    if (status == 0)
        status = cut_path(&text, why);
    if (status == 0)
        status = split_authority(text, &parts, why);
    if (status == 0)
        status = check_host(&parts, why);
    if (status == 0)
        status = read_port(parts.port, &port, why);
    if (status == 0)
        write_parts(&parts, port, url);
    return status;
}

int worker_url_check(struct slice text, char why[WORKER_URL_WHY_BYTES])
{
    struct worker_url url;

    return worker_url_parse(text, &url, why);
}

int worker_url_resolve(const struct worker_url *url, struct sockaddr_storage *address,
                       char why[WORKER_URL_WHY_BYTES])
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL, *best;
    int status = getaddrinfo(url->host, url->port, &hints, &found);

    if (status != 0)
        return refuse(why, "worker host '%.100s' is not known: %s", url->host,
                      status == EAI_SYSTEM ? strerror(errno) : gai_strerror(status));
    assert(found != NULL);
    best = found;
    for (struct addrinfo *info = found; info != NULL; info = info->ai_next) {
        if (info->ai_family == AF_INET) {
            best = info;
            break;
        }
    }
    memset(address, 0, sizeof *address);
    memcpy(address, best->ai_addr, best->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

bool worker_url_address(const struct worker_url *url, struct sockaddr_storage *address)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    in_port_t port = htons((uint16_t)strtoul(url->port, NULL, 10));

    memset(address, 0, sizeof *address);
    v4.sin_port = v6.sin6_port = port;
    if (inet_pton(AF_INET, url->host, &v4.sin_addr) == 1)
        memcpy(address, &v4, sizeof v4);
    else if (inet_pton(AF_INET6, url->host, &v6.sin6_addr) == 1)
        memcpy(address, &v6, sizeof v6);
    return address->ss_family != AF_UNSPEC;
}

void worker_url_authority(const struct sockaddr_storage *address,
                          char authority[WORKER_NAME_BYTES_MAX])
{
    char host[INET6_ADDRSTRLEN] = "?";

    if (address->ss_family == AF_INET6) {
        struct sockaddr_in6 v6;

        memcpy(&v6, address, sizeof v6);
        (void)inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
        snprintf(authority, WORKER_NAME_BYTES_MAX, "[%s]:%u", host, ntohs(v6.sin6_port));
    } else {
        struct sockaddr_in v4;

        assert(address->ss_family == AF_INET);
        memcpy(&v4, address, sizeof v4);
        (void)inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
        snprintf(authority, WORKER_NAME_BYTES_MAX, "%s:%u", host, ntohs(v4.sin_port));
    }
}
