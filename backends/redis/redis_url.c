/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/redis_url.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

/*
 * DESIGN
 *
 * Strict, with a few rules of its own: what a URL says that is not understood here would fail
 * later and less clearly. Nothing is unescaped: no host, user or path that people use needs it, and
 * what was written is what is shown. A sentence never quotes a url before it is known to hold no
 * password.
 */

enum { SHOWN_BYTES_MAX = 60, PORT_DEFAULT = 6379, PORT_MAX = 65535, DATABASE_MAX = 65535 };

__attribute__((format(printf, 2, 3))) static int refuse(char why[REDIS_URL_WHY_BYTES],
                                                        const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, REDIS_URL_WHY_BYTES, format, args);
    va_end(args);
    return -EINVAL;
}

/* The precision of "%.*s": the sentence must fit in why. */
static int shown(struct slice text)
{
    return (int)(text.len < SHOWN_BYTES_MAX ? text.len : SHOWN_BYTES_MAX);
}

/* Cuts off what stands before byte, and byte; all of it where there is none. */
static struct slice cut_at(struct slice *text, char byte)
{
    const size_t len = slice_find(*text, byte);
    const struct slice head = slice_of(text->ptr, len);

    *text = slice_skip(*text, len < text->len ? len + 1 : len);
    return head;
}

static bool has_two(struct slice text, char byte)
{
    const size_t first = slice_find(text, byte);

    return first + 1 < text.len && memchr(text.ptr + first + 1, byte, text.len - first - 1) != NULL;
}

static bool is_printable(struct slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] <= ' ' || text.ptr[i] > '~')
            return false;
    }
    return true;
}

static int copy(struct slice text, char *to, size_t size, char why[REDIS_URL_WHY_BYTES])
{
    if (text.len >= size)
        return refuse(why, "redis url: '%.*s...' is longer than %zu bytes", shown(text), text.ptr,
                      size - 1);
    if (text.len > 0)
        memcpy(to, text.ptr, text.len);
    to[text.len] = '\0';
    return 0;
}

/* A number of digits alone; -ERANGE: none, or more than max. */
static int read_number(struct slice text, uint32_t max, uint32_t *number)
{
    uint32_t value = 0;

    if (text.len == 0)
        return -ERANGE;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] < '0' || text.ptr[i] > '9')
            return -ERANGE;
        value = value * 10 + (uint32_t)(text.ptr[i] - '0');
        if (value > max)
            return -ERANGE;
    }
    *number = value;
    return 0;
}

static int read_database(struct slice text, struct redis_url *url, char why[REDIS_URL_WHY_BYTES])
{
    if (read_number(text, DATABASE_MAX, &url->database) < 0)
        return refuse(why, "redis url: database '%.*s' is no number from 0 to %d", shown(text),
                      text.ptr, DATABASE_MAX);
    return 0;
}

static int read_user(struct slice text, struct redis_url *url, char why[REDIS_URL_WHY_BYTES])
{
    if (slice_find(text, ':') < text.len)
        return refuse(why, "a redis url holds a password, which ps and logs would show: write it "
                           "to a file, and name that with --redis-password-file");
    return copy(text, url->user, sizeof url->user, why);
}

static bool is_host_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
}

static int check_name(struct slice host, char why[REDIS_URL_WHY_BYTES])
{
    for (size_t i = 0; i < host.len; i++) {
        if (!is_host_byte(host.ptr[i]))
            return refuse(why, "redis url: a host has a character that no host name has");
    }
    return 0;
}

static int check_ipv6(struct slice host, char why[REDIS_URL_WHY_BYTES])
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr ignored;

    snprintf(text, sizeof text, "%.*s", (int)(host.len < sizeof text ? host.len : sizeof text),
             host.ptr);
    if (host.len >= sizeof text || inet_pton(AF_INET6, text, &ignored) != 1)
        return refuse(why, "redis url: what stands in brackets is no IPv6 address");
    return 0;
}

static int read_host(struct slice *text, struct redis_url *url, char why[REDIS_URL_WHY_BYTES])
{
    const bool is_ipv6 = text->len > 0 && *text->ptr == '[';
    struct slice host;

    if (is_ipv6) {
        *text = slice_skip(*text, 1);
        if (slice_find(*text, ']') == text->len)
            return refuse(why, "redis url: the bracket is not closed");
        host = cut_at(text, ']');
    } else {
        if (has_two(*text, ':'))
            return refuse(why,
                          "a redis url has more than one ':': write IPv6 as redis://[::1]:6379");
        host = slice_of(text->ptr, slice_find(*text, ':'));
        *text = slice_skip(*text, host.len);
    }
    if (host.len == 0)
        return refuse(why, "a redis url has no host: write redis://host:port");
    if ((is_ipv6 ? check_ipv6(host, why) : check_name(host, why)) < 0)
        return -EINVAL;
    return copy(host, url->host, sizeof url->host, why);
}

/* ":port", or nothing. */
static int read_port(struct slice text, struct redis_url *url, char why[REDIS_URL_WHY_BYTES])
{
    uint32_t port = PORT_DEFAULT;

    if (text.len > 0 && *text.ptr != ':')
        return refuse(why, "redis url: a port must follow host '%.*s'",
                      shown(slice_of_string(url->host)), url->host);
    if (text.len > 0 && (read_number(slice_skip(text, 1), PORT_MAX, &port) < 0 || port == 0))
        return refuse(why, "redis url: port '%.*s' is no number from 1 to %d",
                      shown(slice_skip(text, 1)), text.ptr + 1, PORT_MAX);
    url->port = (uint16_t)port;
    return 0;
}

/* "[user@]host[:port][/database]" */
static int read_tcp(struct slice text, struct redis_url *url, char why[REDIS_URL_WHY_BYTES])
{
    struct slice place = cut_at(&text, '/');
    int status = 0;

    if (slice_find(place, '@') < place.len)
        status = read_user(cut_at(&place, '@'), url, why);
    if (status == 0)
        status = read_host(&place, url, why);
    if (status == 0)
        status = read_port(place, url, why);
    if (status == 0 && text.len > 0)
        status = read_database(text, url, why);
    return status;
}

static int read_query(struct slice query, struct redis_url *url, char why[REDIS_URL_WHY_BYTES])
{
    int status = 0;

    while (status == 0 && query.len > 0) {
        struct slice value = cut_at(&query, '&');
        const struct slice name = cut_at(&value, '=');

        if (slice_eq(name, SLICE("user")))
            status = read_user(value, url, why);
        else if (slice_eq(name, SLICE("db")))
            status = read_database(value, url, why);
        else /* unquoted: it might be a password */
            status = refuse(why, "redis url: only ?user= and &db= may follow the path");
    }
    return status;
}

/* "/path[?user=U&db=N]" */
static int read_unix(struct slice text, struct redis_url *url, char why[REDIS_URL_WHY_BYTES])
{
    const struct slice path = cut_at(&text, '?');

    if (path.len == 0 || *path.ptr != '/')
        return refuse(why, "a redis url has no absolute path: write unix:///run/redis/redis.sock");
    if (path.len >= sizeof url->path)
        return refuse(why, "redis url: a socket's path has at most %zu bytes",
                      sizeof url->path - 1);
    if (read_query(text, url, why) < 0)
        return -EINVAL;
    return copy(path, url->path, sizeof url->path, why);
}

int redis_url_parse(struct slice text, struct redis_url *url, char why[REDIS_URL_WHY_BYTES])
{
    const char *mark = text.len > 0 ? memmem(text.ptr, text.len, "://", 3) : NULL;
    struct slice scheme;

    *url = (struct redis_url){.port = 0};
    if (!is_printable(text))
        return refuse(why, "a redis url has a character that none has");
    if (mark == NULL)
        return refuse(why, "a redis url has no scheme: write redis://host:port or unix:///path");
    scheme = slice_of(text.ptr, (size_t)(mark - text.ptr));
    text = slice_skip(text, scheme.len + 3);
    if (slice_eq_nocase(scheme, SLICE("redis")))
        return read_tcp(text, url, why);
    if (slice_eq_nocase(scheme, SLICE("unix")))
        return read_unix(text, url, why);
    if (slice_eq_nocase(scheme, SLICE("rediss")))
        return refuse(why, "redis url: TLS is not supported yet: write redis://, or unix:// to a "
                           "tunnel's end");
    return refuse(why, "redis url: only redis:// and unix:// are known");
}

int redis_url_check(struct slice text, char why[REDIS_URL_WHY_BYTES])
{
    struct redis_url url;

    return text.len > 0 ? redis_url_parse(text, &url, why) : 0;
}

void redis_url_text(const struct redis_url *url, char text[REDIS_URL_SHOWN_BYTES])
{
    const bool is_ipv6 = strchr(url->host, ':') != NULL;
    char database[16] = "";

    if (url->path[0] != '\0') {
        if (url->database != 0)
            snprintf(database, sizeof database, "%sdb=%u", url->user[0] != '\0' ? "&" : "?",
                     url->database);
        snprintf(text, REDIS_URL_SHOWN_BYTES, "unix://%s%s%s%s", url->path,
                 url->user[0] != '\0' ? "?user=" : "", url->user, database);
        return;
    }
    if (url->database != 0)
        snprintf(database, sizeof database, "/%u", url->database);
    snprintf(text, REDIS_URL_SHOWN_BYTES, "redis://%s%s%s%s%s:%u%s", url->user,
             url->user[0] != '\0' ? "@" : "", is_ipv6 ? "[" : "", url->host, is_ipv6 ? "]" : "",
             url->port, database);
}
