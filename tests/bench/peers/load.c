/* SPDX-License-Identifier: Apache-2.0 */

/*
 * load: an HTTP/1.1 load client for OpenAI-style endpoints; one thread, one
 * epoll.
 *
 *   load -p PORT [-c CONNS] [-n REQUESTS] [-f BODIES | -s SIZE] [-S]
 *        [-r RATE] [-t SECONDS] [-u PATH] [-H HEADER] [-o FILE]
 *
 * -c  keep-alive connections            -n  requests in all
 * -f  JSON lines, one body each, used in turn
 * -s  without -f: one made-up body of about SIZE bytes
 * -S  with -s: ask for a stream         -u  default /v1/chat/completions
 * -r  open loop: RATE arrivals per second at fixed distances, each waiting
 *     for a free connection, latency counted from its arrival; without -r a
 *     closed loop, each connection sending its next request at once
 * -t  give up after SECONDS (default 120); what is unfinished is reported
 * -H  one more header line              -o  a line for each answer:
 *     request number, worker port, status, latency in us
 *
 * Prints one JSON object: counts, errors, latency and time to first byte of
 * complete answers in us, and the age of each server-sent event on arrival
 * (the stub stamps its answers with "fp_t<16 hex ns>_<port>").
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_LEN = 512, CARRY = 40, BUF = 1 << 18, BUCKETS = 64 * 32 };
enum state { IDLE, STATUS, HEADERS, LENGTH, TO_CLOSE, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER };

struct body {
    const char *p;
    size_t n;
};

struct conn {
    int fd, status, close, chunked, port, want_out, fresh;
    enum state state;
    long id; /* of the request in flight */
    int64_t t0, first;
    uint64_t need;
    size_t sent;
    struct body body;
    char head[512];
    size_t head_n;
    int line_n, carry_n;
    char line[LINE_MAX_LEN], carry[CARRY];
};

static int ep, n_conns = 8, port, stream;
static long n_requests = 1000, issued, finished, errors, bad_status, reconnects, n_events,
            unfinished;
static double rate, max_seconds = 120;
static const char *path = "/v1/chat/completions", *header = "";
static struct body *bodies;
static long n_bodies;
static int64_t *latency, *ttfb, start;
static long n_latency;
static uint32_t ages[BUCKETS];
static uint64_t bytes_in;
static int64_t age_max;
static struct conn *conns, **idle;
static int n_idle;
static FILE *out;
static int first_bad;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Log-linear buckets, 32 for each power of two: 3 % wide. */
static int bucket(uint64_t v)
{
    if (v < 32)
        return (int)v;
    int top = 63 - __builtin_clzll(v);
    return (top - 4) * 32 + (int)((v >> (top - 5)) & 31);
}

static double bucket_value(int b)
{
    return b < 32 ? b : (double)((uint64_t)(32 + (b & 31)) << (b / 32 - 1));
}

static double age_percentile(double q)
{
    uint64_t total = 0, sum = 0;
    for (int i = 0; i < BUCKETS; i++)
        total += ages[i];
    for (int i = 0; i < BUCKETS; i++) {
        sum += ages[i];
        if (total && sum >= q * total)
            return bucket_value(i) / 1e3;
    }
    return 0;
}

static void connect_to(struct conn *c)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof a)) {
        perror("load: connect");
        exit(1);
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->want_out = 0;
    c->fresh = 1;
    epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
}

static void reconnect(struct conn *c)
{
    close(c->fd);
    reconnects++;
    connect_to(c);
}

/* 0, or -1 when the connection is broken. */
static int push(struct conn *c)
{
    size_t total = c->head_n + c->body.n;
    while (c->sent < total) {
        struct iovec v[2] = {{c->head, c->head_n}, {(void *)c->body.p, c->body.n}};
        int k = 0;
        size_t skip = c->sent;
        if (skip >= c->head_n) {
            skip -= c->head_n;
            k = 1;
        }
        v[k].iov_base = (char *)v[k].iov_base + skip;
        v[k].iov_len -= skip;
        ssize_t r = writev(c->fd, v + k, 2 - k);
        if (r < 0 && errno == EAGAIN)
            break;
        if (r < 0)
            return -1;
        c->sent += r;
    }
    int want = c->sent < total;
    if (want != c->want_out) {
        struct epoll_event e = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
        c->want_out = want;
    }
    return 0;
}

static void send_next(struct conn *c, int64_t t0)
{
    c->id = issued++;
    c->body = bodies[c->id % n_bodies];
    c->head_n = snprintf(c->head, sizeof c->head,
                         "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
                         "Content-Type: application/json\r\n%s%sContent-Length: %zu\r\n\r\n",
                         path, port, header, *header ? "\r\n" : "", c->body.n);
    c->sent = 0;
    c->t0 = t0;
    c->first = 0;
    c->state = STATUS;
    c->line_n = c->carry_n = c->port = c->close = c->chunked = 0;
    c->need = UINT64_MAX;
    if (push(c)) { /* closed by the peer while idle */
        reconnect(c);
        c->sent = 0;
        push(c);
    }
}

static void next_or_idle(struct conn *c)
{
    c->state = IDLE;
    if (!rate && issued < n_requests)
        send_next(c, now_ns());
    else
        idle[n_idle++] = c;
}

static void fail(struct conn *c)
{
    errors++;
    finished++;
    if (out)
        fprintf(out, "%ld 0 0 0\n", c->id);
    reconnect(c);
    next_or_idle(c);
}

static void done(struct conn *c)
{
    int64_t t = now_ns();
    finished++;
    c->fresh = 0;
    if (c->status == 200) {
        latency[n_latency] = t - c->t0;
        ttfb[n_latency++] = c->first - c->t0;
    } else {
        bad_status++;
        if (!first_bad)
            first_bad = c->status;
    }
    if (out)
        fprintf(out, "%ld %d %d %ld\n", c->id, c->port, c->status, (long)(t - c->t0) / 1000);
    if (c->close)
        reconnect(c);
    next_or_idle(c);
}

/* Finds the stamps of the stub in a piece of the body. */
static void scan(struct conn *c, const char *p, size_t n)
{
    enum { HEX = 16, WHOLE = 4 + HEX + 6 }; /* fp_t, hex, _port */
    static char joined[BUF + CARRY];
    memcpy(joined, c->carry, c->carry_n);
    memcpy(joined + c->carry_n, p, n);
    n += c->carry_n;
    const char *at = joined, *end = joined + n, *rest = n < 3 ? joined : end - 3;
    int64_t now = 0;
    while ((at = memmem(at, end - at, "fp_t", 4))) {
        if (end - at < WHOLE) {
            rest = at;
            break;
        }
        char hex[HEX + 1] = {0};
        memcpy(hex, at + 4, HEX);
        if (!now)
            now = now_ns();
        int64_t age = now - (int64_t)strtoull(hex, NULL, 16);
        c->port = (int)strtol(at + 4 + HEX + 1, NULL, 10);
        if (age < 0)
            age = 0;
        if (age > age_max)
            age_max = age;
        ages[bucket(age)]++;
        n_events++;
        at += WHOLE;
        rest = end - at < 3 ? at : end - 3;
    }
    c->carry_n = (int)(end - rest);
    memcpy(c->carry, rest, c->carry_n);
}

static void end_of_head(struct conn *c)
{
    if (c->status / 100 == 1)
        c->state = STATUS;
    else if (c->chunked)
        c->state = CHUNK_SIZE;
    else if (c->need == UINT64_MAX)
        c->state = TO_CLOSE, c->close = 1;
    else if (c->need)
        c->state = LENGTH;
    else
        done(c);
}

static void take_line(struct conn *c)
{
    c->line[c->line_n] = 0;
    switch (c->state) {
    case STATUS:
        c->status = c->line_n > 12 ? (int)strtol(c->line + 9, NULL, 10) : 0;
        c->state = HEADERS;
        break;
    case HEADERS:
        if (!c->line_n)
            end_of_head(c);
        else if (!strncasecmp(c->line, "content-length:", 15))
            c->need = strtoull(c->line + 15, NULL, 10);
        else if (!strncasecmp(c->line, "transfer-encoding:", 18))
            c->chunked = !!strcasestr(c->line, "chunked");
        else if (!strncasecmp(c->line, "connection:", 11))
            c->close = !!strcasestr(c->line, "close");
        break;
    case CHUNK_SIZE:
        c->need = strtoull(c->line, NULL, 16);
        c->state = c->need ? CHUNK_DATA : TRAILER;
        break;
    case CHUNK_END:
        c->state = CHUNK_SIZE;
        break;
    default:
        if (!c->line_n)
            done(c);
    }
    c->line_n = 0;
}

static void feed(struct conn *c, const char *p, size_t n)
{
    while (n && c->state != IDLE) {
        if (!c->first)
            c->first = now_ns();
        if (c->state == LENGTH || c->state == CHUNK_DATA || c->state == TO_CLOSE) {
            size_t take = n < c->need ? n : c->need;
            scan(c, p, take);
            p += take;
            n -= take;
            if (c->state == TO_CLOSE)
                continue;
            c->need -= take;
            if (!c->need && c->state == CHUNK_DATA)
                c->state = CHUNK_END;
            else if (!c->need)
                done(c);
            continue;
        }
        const char *nl = memchr(p, '\n', n);
        size_t take = nl ? (size_t)(nl - p) : n;
        size_t room = LINE_MAX_LEN - 1 - c->line_n;
        size_t copy = take < room ? take : room;
        memcpy(c->line + c->line_n, p, copy);
        c->line_n += (int)copy;
        p += take;
        n -= take;
        if (!nl)
            return;
        p++;
        n--;
        if (c->line_n && c->line[c->line_n - 1] == '\r')
            c->line_n--;
        take_line(c);
    }
}

static void readable(struct conn *c)
{
    static char buf[BUF];
    ssize_t r = recv(c->fd, buf, sizeof buf, 0);
    if (r < 0 && errno == EAGAIN)
        return;
    if (r > 0) {
        bytes_in += r;
        feed(c, buf, r);
        return;
    }
    if (c->state == TO_CLOSE) {
        done(c);
    } else if (c->state == IDLE) {
        reconnect(c);
    } else if (!c->first && !c->fresh) { /* keep-alive race: once more */
        reconnect(c);
        c->sent = 0;
        push(c);
    } else {
        fail(c);
    }
}

static void load_bodies(const char *file, size_t size)
{
    if (!file) {
        char *p = malloc(size + 256);
        int h = snprintf(p, size + 256,
                         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"");
        size_t fill = size > 100 ? size - 90 : 10;
        for (size_t i = 0; i < fill; i++)
            p[h + i] = "lorem ipsum dolor sit amet "[i % 27];
        int t = snprintf(p + h + fill, 64, "\"}],\"max_tokens\":64,\"stream\":%s}",
                         stream ? "true" : "false");
        bodies = malloc(sizeof *bodies);
        bodies[0] = (struct body){p, h + fill + t};
        n_bodies = 1;
        return;
    }
    struct stat st;
    int fd = open(file, O_RDONLY);
    if (fd < 0 || fstat(fd, &st)) {
        perror(file);
        exit(1);
    }
    char *p = malloc(st.st_size + 1), *end = p;
    while (end - p < st.st_size) {
        ssize_t r = read(fd, end, st.st_size - (end - p));
        if (r <= 0)
            exit(1);
        end += r;
    }
    close(fd);
    for (char *at = p, *nl; at < end; at = nl + 1) {
        nl = memchr(at, '\n', end - at);
        if (!nl)
            nl = end;
        if (nl == at)
            continue;
        if (!(n_bodies & (n_bodies - 1)))
            bodies = realloc(bodies, sizeof *bodies * (n_bodies ? 2 * n_bodies : 1));
        bodies[n_bodies++] = (struct body){at, nl - at};
    }
    if (!n_bodies)
        exit(1);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void print_times(const char *name, int64_t *v, long n)
{
    static const double q[] = {.5, .9, .99};
    static const char *label[] = {"p50", "p90", "p99"};
    qsort(v, n, sizeof *v, by_value);
    printf(",\"%s_us\":{", name);
    for (int i = 0; i < 3; i++)
        printf("\"%s\":%.1f,", label[i], n ? v[(long)(q[i] * (n - 1))] / 1e3 : 0);
    printf("\"max\":%.1f}", n ? v[n - 1] / 1e3 : 0);
}

static void report(int64_t end)
{
    struct rusage u;
    double wall = (end - start) / 1e9;
    getrusage(RUSAGE_SELF, &u);
    printf("{\"requests\":%ld,\"ok\":%ld,\"errors\":%ld,\"bad_status\":%ld,\"first_bad_status\":%d,"
           "\"unfinished\":%ld,\"reconnects\":%ld,\"events\":%ld,\"bytes_in\":%lu,\"wall_s\":%.4f,"
           "\"rps\":%.1f,"
           "\"events_per_s\":%.1f,\"client_cpu_s\":%.4f",
           issued, n_latency, errors, bad_status, first_bad, unfinished, reconnects, n_events,
           (unsigned long)bytes_in, wall, finished / wall, n_events / wall,
           u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
    print_times("latency", latency, n_latency);
    print_times("ttfb", ttfb, n_latency);
    printf(",\"event_age_us\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"max\":%.1f}}\n",
           age_percentile(.5), age_percentile(.9), age_percentile(.99), age_max / 1e3);
}

int main(int argc, char **argv)
{
    static struct epoll_event es[512];
    const char *file = NULL, *out_file = NULL;
    size_t size = 1024;
    int o;
    while ((o = getopt(argc, argv, "p:c:n:f:s:Sr:t:u:H:o:")) != -1) {
        switch (o) {
        case 'p':
            port = (int)strtol(optarg, NULL, 10);
            break;
        case 'c':
            n_conns = (int)strtol(optarg, NULL, 10);
            break;
        case 'n':
            n_requests = strtol(optarg, NULL, 10);
            break;
        case 'f':
            file = optarg;
            break;
        case 's':
            size = strtoul(optarg, NULL, 10);
            break;
        case 'S':
            stream = 1;
            break;
        case 'r':
            rate = strtod(optarg, NULL);
            break;
        case 't':
            max_seconds = strtod(optarg, NULL);
            break;
        case 'u':
            path = optarg;
            break;
        case 'H':
            header = optarg;
            break;
        case 'o':
            out_file = optarg;
            break;
        default:
            return 2;
        }
    }
    if (!port || n_conns < 1 || n_requests < 1)
        return 2;
    if (out_file && !(out = fopen(out_file, "w")))
        return 1;
    signal(SIGPIPE, SIG_IGN);
    load_bodies(file, size);
    latency = calloc(n_requests, sizeof *latency);
    ttfb = calloc(n_requests, sizeof *ttfb);
    conns = calloc(n_conns, sizeof *conns);
    idle = calloc(n_conns, sizeof *idle);
    ep = epoll_create1(0);
    for (int i = n_conns - 1; i >= 0; i--) {
        connect_to(&conns[i]);
        idle[n_idle++] = &conns[i];
    }
    start = now_ns();
    int64_t stop = start + (int64_t)(max_seconds * 1e9), gap = rate ? (int64_t)(1e9 / rate) : 0;
    while (finished < n_requests) {
        int64_t now = now_ns(), due = start + issued * gap;
        if (now > stop)
            break;
        while (n_idle && issued < n_requests && due <= now) {
            send_next(idle[--n_idle], rate ? due : now);
            due = start + issued * gap;
        }
        int64_t ns = n_idle && issued < n_requests && due - now < 50000000 ? due - now : 50000000;
        struct timespec ts = {0, ns};
        int n = epoll_pwait2(ep, es, 512, &ts, NULL);
        for (int i = 0; i < n; i++) {
            struct conn *c = es[i].data.ptr;
            if (es[i].events & EPOLLOUT && c->want_out && push(c)) {
                fail(c);
                continue;
            }
            if (es[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                readable(c);
        }
    }
    unfinished = issued - finished;
    report(now_ns());
    if (out)
        fclose(out);
    return 0;
}
