/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/worker_url.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>

/*
 * DESIGN
 *
 * Strict on purpose, with its own few rules instead of a URL library: a worker's URL is a host and
 * a port, and everything else in it is a misunderstanding that would fail later and less clearly
 * (the /v1 that clients write, https, a password). Names are written anew in one spelling, so that
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

static size_t find_byte(struct slice text, char byte)
{
    const char *found = text.len > 0 ? memchr(text.ptr, byte, text.len) : NULL;

    return found != NULL ? (size_t)(found - text.ptr) : text.len;
}

static int cut_scheme(struct slice *text, char why[WORKER_URL_WHY_BYTES])
{
    const struct slice whole = *text;
    const char *mark = whole.len > 0 ? memmem(whole.ptr, whole.len, "://", 3) : NULL;
    struct slice scheme;

    if (whole.len == 0)
        return refuse(why, "a worker url is empty: write http://host:port");
    if (find_byte(whole, '@') < whole.len) /* before any sentence that quotes the url */
        return refuse(why, "a worker url holds a user name or password: write http://host:port");
    if (mark == NULL)
        return refuse(why, "worker url '%.*s' has no scheme: write http://%.*s", shown(whole),
                      whole.ptr, shown(whole), whole.ptr);
    scheme = slice_of(whole.ptr, (size_t)(mark - whole.ptr));
    *text = slice_skip(whole, scheme.len + 3);
    if (slice_eq_nocase(scheme, SLICE("http")))
        return 0;
    if (slice_eq_nocase(scheme, SLICE("https")))
        return refuse(why, "worker url '%.*s': TLS to workers is not supported yet: write http://",
                      shown(whole), whole.ptr);
    return refuse(why, "worker url '%.*s': only http:// is known", shown(whole), whole.ptr);
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
        host_len = find_byte(authority, ']');
        if (host_len == authority.len)
            return refuse(why, "worker url '%.*s': the bracket is not closed", shown(authority),
                          authority.ptr);
        parts->host = slice_of(authority.ptr + 1, host_len - 1);
        authority = slice_skip(authority, host_len + 1);
    } else {
        host_len = find_byte(authority, ':');
        parts->host = slice_of(authority.ptr, host_len);
        authority = slice_skip(authority, host_len);
    }
    if (authority.len == 0)
        return 0;
    if (*authority.ptr != ':' || authority.len == 1)
        return refuse(why, "worker url '%.*s': a port must follow the host", shown(parts->host),
                      parts->host.ptr);
    parts->port = slice_skip(authority, 1);
    if (find_byte(parts->port, ':') < parts->port.len)
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

    memcpy(url->host, parts->host.ptr, parts->host.len);
    url->host[parts->host.len] = '\0';
    for (char *c = url->host; *c != '\0'; c++)
        *c = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
    snprintf(url->port, sizeof url->port, "%u", port % (PORT_MAX + 1));
    snprintf(url->name, sizeof url->name, "http://%s%.*s%s:%u", open, HOST_BYTES_MAX, url->host,
             close, port);
    snprintf(url->authority, sizeof url->authority, "%s%.*s%s:%u", open, HOST_BYTES_MAX, url->host,
             close, port);
}

int worker_url_parse(struct slice text, struct worker_url *url, char why[WORKER_URL_WHY_BYTES])
{
    struct parts parts;
    unsigned port;
    int status = cut_scheme(&text, why);

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
