/* SPDX-License-Identifier: Apache-2.0 */

/*
 * stub: a very cheap HTTP/1.1 upstream that looks like an OpenAI-API engine.
 *
 * One thread, one epoll, COUNT consecutive listening ports (one per "worker").
 *
 *   stub [-p BASE] [-n COUNT] [-e EVENTS] [-i INTERVAL_US] [-d DELAY_US] [-m MODEL] [-v]
 *
 * POST /v1/chat/completions, /v1/completions: a ~600 B JSON body, or, when the
 * request has "stream":true, EVENTS server-sent events of ~270 B, one write
 * each, INTERVAL_US apart (0: as fast as possible, one event per stream in
 * turn), then [DONE]; a request with "include_usage":true gets one event of
 * usage more, unstamped, before it. The first byte comes DELAY_US after the
 * request is complete. Every answer carries "fp_t<16 hex monotonic ns>_<port>", so that a
 * client on one machine can tell the worker and the age of each event.
 *
 * POST /v1/chat/completions/render, /v1/completions/render and /tokenize answer
 * made-up token ids, as vLLM does for routers that ask for them.
 *
 * GET /health, /v1/models (MODEL alone), /metrics and a few engine-information paths.
 * GET /stub/set?events=N&interval_us=N&delay_us=N changes the settings.
 * GET /stub/stats: JSON, totals for each port.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PORTS = 64, HEAD_MAX = 16384, TAIL = 24, STAMP = 16 };
enum body_state { HEAD, LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER };
enum queue_id { NONE, DELAYED, TIMED, FLAT };

struct worker {
    int fd, port;
    long requests, streams, running, bytes, conns, events;
};

struct conn {
    struct conn *prev, *next; /* in the list `queue` */
    enum queue_id queue;
    int64_t due; /* ns, for DELAYED and TIMED */
    struct worker *w;
    int fd;
    enum body_state state;
    int chunked, stream, usage, chat, blocked;
    int render; /* a tokenize or render request: keep the body */
    char *body;
    size_t body_n, body_max;
    uint64_t need;   /* body or chunk bytes still to come */
    int left;        /* events still to send, [DONE] included */
    const char *out; /* unsent rest of a write */
    size_t out_len;
    char *own; /* freed when out has gone */
    int head_len, tail_len, line_len;
    char line[32], tail[TAIL], head[HEAD_MAX];
};

struct list {
    struct conn *first, *last;
};

static struct worker workers[MAX_PORTS];
static int n_workers = 1, verbose, ep;
static const char *model = "m";
static int events = 200;
static int64_t interval = 0, delay = 0;
static struct list lists[4];

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void leave(struct conn *c)
{
    struct list *l = &lists[c->queue];
    if (c->queue == NONE)
        return;
    if (c->prev)
        c->prev->next = c->next;
    else
        l->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    else
        l->last = c->prev;
    c->queue = NONE;
}

/* Appends in order of due time; nearly always at the end. */
static void join(struct conn *c, enum queue_id q, int64_t due)
{
    struct list *l = &lists[q];
    leave(c);
    struct conn *after = l->last;
    while (after && q != FLAT && after->due > due)
        after = after->prev;
    c->queue = q;
    c->due = due;
    c->prev = after;
    c->next = after ? after->next : l->first;
    if (c->next)
        c->next->prev = c;
    else
        l->last = c;
    if (after)
        after->next = c;
    else
        l->first = c;
}

static void drop(struct conn *c)
{
    if (c->left > 0 || c->queue != NONE)
        c->w->running--;
    leave(c);
    c->w->conns--;
    close(c->fd);
    free(c->own);
    free(c->body);
    free(c);
}

static void want_write(struct conn *c, int on)
{
    struct epoll_event e = {.events = EPOLLIN | (on ? EPOLLOUT : 0), .data.ptr = c};
    c->blocked = on;
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}

/* Writes all, or keeps a copy of the rest and waits for room. -1: broken. */
static int put(struct conn *c, const char *p, size_t n)
{
    ssize_t r = c->blocked ? 0 : send(c->fd, p, n, MSG_NOSIGNAL);
    if (r < 0 && errno != EAGAIN)
        return -1;
    if (r < 0)
        r = 0;
    if ((size_t)r == n)
        return 0;
    char *rest = malloc(c->out_len + n - r);
    if (!rest)
        return -1;
    memcpy(rest, c->out, c->out_len);
    memcpy(rest + c->out_len, p + r, n - r);
    c->out_len += n - r;
    free(c->own);
    c->own = rest;
    c->out = rest;
    if (!c->blocked)
        want_write(c, 1);
    return 0;
}

static void stamp(char *at)
{
    static const char hex[] = "0123456789abcdef";
    uint64_t t = now_ns();
    for (int i = STAMP - 1; i >= 0; i--, t >>= 4)
        at[i] = hex[t & 15];
}

struct message {
    char text[1024];
    int len, at;
};

static struct message *chunk(struct message *m, const char *body)
{
    m->len = snprintf(m->text, sizeof m->text, "%zx\r\n%s\r\n", strlen(body), body);
    char *t = strstr(m->text, "fp_t");
    m->at = t ? (int)(t - m->text) + 4 : -1;
    return m;
}

static struct message msg_event[MAX_PORTS][2], msg_last[MAX_PORTS][2], msg_json[MAX_PORTS][2];
static const char usage_body[] =
    "data: {\"id\":\"chatcmpl-7d2f1c04a9e84b3c\",\"object\":"
    "\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":[],\"usage\":"
    "{\"prompt_tokens\":240,\"completion_tokens\":200,\"total_tokens\":440,"
    "\"prompt_tokens_details\":{\"cached_tokens\":128}}}\n\n";
static struct message msg_usage;
static const char done_text[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
static const char sse_head[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";

static void make_messages(int i)
{
    chunk(&msg_usage, usage_body);
    char b[900];
    int port = workers[i].port;
    for (int chat = 0; chat < 2; chat++) {
        const char *obj = chat ? "chat.completion" : "text_completion";
        const char *piece = chat ? "\"delta\":{\"content\":\" token\"}" : "\"text\":\" token\"";
        for (int last = 0; last < 2; last++) {
            snprintf(
                b, sizeof b,
                "data: {\"id\":\"chatcmpl-7d2f1c04a9e84b3c\",\"object\":\"%s%s\","
                "\"created\":1700000000,\"model\":\"m\",\"system_fingerprint\":\"fp_t%016d_%d\","
                "\"choices\":[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":%s}]}\n\n",
                obj, chat ? ".chunk" : "", 0, port, piece, last ? "\"stop\"" : "null");
            chunk(last ? &msg_last[i][chat] : &msg_event[i][chat], b);
        }
        const char *reply =
            "The quick brown fox jumps over the lazy dog, then it comes back to see "
            "whether the dog is awake, and the two of them talk about routing for a while.";
        char whole[400];
        snprintf(whole, sizeof whole,
                 chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"%s\","
                        "\"tool_calls\":[]}"
                      : "\"text\":\"%s\"",
                 reply);
        snprintf(
            b, sizeof b,
            "{\"id\":\"chatcmpl-7d2f1c04a9e84b3c\",\"object\":\"%s\",\"created\":1700000000,"
            "\"model\":\"m\",\"system_fingerprint\":\"fp_t%016d_%d\",\"choices\":[{\"index\":0,%s,"
            "\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":240,"
            "\"completion_tokens\":36,\"total_tokens\":276,\"prompt_tokens_details\":"
            "{\"cached_tokens\":128}}}",
            obj, 0, port, whole);
        struct message *m = &msg_json[i][chat];
        m->len = snprintf(m->text, sizeof m->text,
                          "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                          "Content-Length: %zu\r\n\r\n%s",
                          strlen(b), b);
        m->at = (int)(strstr(m->text, "fp_t") - m->text) + 4;
    }
}

static int put_message(struct conn *c, struct message *m)
{
    stamp(m->text + m->at);
    return put(c, m->text, m->len);
}

/* One step of a stream: an event, or the end. -1: broken. */
static int step(struct conn *c)
{
    int i = (int)(c->w - workers);
    if (c->left == 1) {
        c->left = 0;
        c->w->running--;
        leave(c);
        if (c->usage && put(c, msg_usage.text, (size_t)msg_usage.len))
            return -1;
        return put(c, done_text, sizeof done_text - 1);
    }
    struct message *m = c->left == 2 ? &msg_last[i][c->chat] : &msg_event[i][c->chat];
    c->left--;
    c->w->events++;
    return put_message(c, m);
}

/* The request is complete and its delay is over. -1: broken. */
static int answer(struct conn *c)
{
    int i = (int)(c->w - workers);
    leave(c);
    if (!c->stream) {
        c->w->running--;
        return put_message(c, &msg_json[i][c->chat]);
    }
    c->w->streams++;
    c->left = events + 1;
    if (put(c, sse_head, sizeof sse_head - 1) || step(c))
        return -1;
    if (interval)
        join(c, TIMED, now_ns() + interval);
    else
        join(c, FLAT, 0);
    return 0;
}

static int reply(struct conn *c, int status, const char *type, const char *body)
{
    char b[4096];
    int n =
        snprintf(b, sizeof b, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n%s",
                 status, status == 200 ? "OK" : "Not Found", type, strlen(body), body);
    return put(c, b, n);
}

static long param(const char *path, const char *name, long old)
{
    const char *p = strstr(path, name);
    return p ? strtol(p + strlen(name), NULL, 10) : old;
}

static int get(struct conn *c, const char *path)
{
    char b[3000];
    const char *json = "application/json";
    if (!strncmp(path, "/stub/set", 9)) {
        events = (int)param(path, "events=", events);
        interval = param(path, "interval_us=", interval / 1000) * 1000;
        delay = param(path, "delay_us=", delay / 1000) * 1000;
        snprintf(b, sizeof b, "{\"events\":%d,\"interval_us\":%ld,\"delay_us\":%ld}\n", events,
                 (long)interval / 1000, (long)delay / 1000);
        return reply(c, 200, json, b);
    }
    if (!strncmp(path, "/stub/stats", 11)) {
        int n = snprintf(b, sizeof b, "{");
        for (int i = 0; i < n_workers && n < (int)sizeof b - 200; i++) {
            struct worker *w = &workers[i];
            n += snprintf(b + n, sizeof b - n,
                          "%s\"%d\":{\"requests\":%ld,\"streams\":%ld,\"running\":%ld,"
                          "\"body_bytes\":%ld,\"conns\":%ld,\"events\":%ld}",
                          i ? "," : "", w->port, w->requests, w->streams, w->running, w->bytes,
                          w->conns, w->events);
        }
        snprintf(b + n, sizeof b - n, "}\n");
        return reply(c, 200, json, b);
    }
    if (!strncmp(path, "/health", 7) || !strncmp(path, "/ping", 5))
        return reply(c, 200, "text/plain", "");
    if (!strncmp(path, "/v1/models", 10)) {
        snprintf(b, sizeof b,
                 "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\","
                 "\"created\":1700000000,\"owned_by\":\"vllm\",\"root\":\"%s\",\"max_model_"
                 "len\":1048576}]}",
                 model, model);
        return reply(c, 200, json, b);
    }
    if (!strncmp(path, "/metrics", 8)) {
        snprintf(b, sizeof b,
                 "# TYPE vllm:num_requests_running gauge\n"
                 "vllm:num_requests_running{model_name=\"m\"} %ld\n"
                 "# TYPE vllm:num_requests_waiting "
                 "gauge\nvllm:num_requests_waiting{model_name=\"m\"} 0\n"
                 "# TYPE vllm:kv_cache_usage_perc "
                 "gauge\nvllm:kv_cache_usage_perc{model_name=\"m\"} 0.25\n"
                 "# TYPE vllm:prefix_cache_queries "
                 "counter\nvllm:prefix_cache_queries_total{model_name=\"m\"} %ld\n"
                 "# TYPE vllm:prefix_cache_hits "
                 "counter\nvllm:prefix_cache_hits_total{model_name=\"m\"} 0\n",
                 c->w->running, c->w->requests);
        return reply(c, 200, "text/plain; version=0.0.4", b);
    }
    if (strstr(path, "model_info"))
        return reply(c, 200, json, "{\"is_generation\":true}");
    if (strstr(path, "server_info"))
        return reply(c, 200, json,
                     "{\"served_model_name\":\"m\",\"tp_size\":1,"
                     "\"dp_size\":1,\"version\":\"0.0.0\"}");
    if (!strncmp(path, "/version", 8))
        return reply(c, 200, json, "{\"version\":\"0.10.0\"}");
    return reply(c, 404, json, "{\"error\":\"no such path\"}");
}

static void keep(struct conn *c, const char *p, size_t n)
{
    if (c->body_n + n > c->body_max) {
        c->body_max = 2 * (c->body_n + n);
        c->body = realloc(c->body, c->body_max);
    }
    memcpy(c->body + c->body_n, p, n);
    c->body_n += n;
}

/* Made-up token ids, one for each four bytes of the body: equal prefixes give
   equal ids. As long as those of a real engine. */
static int render(struct conn *c, int tokenize)
{
    size_t tokens = c->body_n / 4 + 1;
    size_t size = tokens * 7 + 512;
    char *b = malloc(size), *p = b + 256;
    p += snprintf(p, size - 256,
                  tokenize ? "{\"count\":%zu,\"max_model_len\":1048576,\"tokens\":["
                           : "{\"request_id\":\"r%zu\",\"token_ids\":[",
                  tokens);
    for (size_t i = 0; i < tokens; i++) {
        uint32_t v = 0;
        memcpy(&v, c->body + 4 * i, i + 1 < tokens ? 4 : c->body_n % 4);
        v = 20000 + (uint32_t)(v * 2654435761u) % 80000;
        for (int k = 4; k >= 0; k--, v /= 10)
            p[k] = (char)('0' + v % 10);
        p[5] = ',';
        p += 6;
    }
    p--;
    p += snprintf(
        p, (size_t)(b + size - p),
        tokenize ? "]}"
                 : "],\"sampling_params\":{\"max_tokens\":256},\"model\":\"m\",\"stream\":false}");
    char head[128];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     (size_t)(p - b - 256));
    char *start = b + 256 - n;
    memcpy(start, head, n);
    int r = put(c, start, p - start);
    free(b);
    return r;
}

/* The whole request has been read. -1: broken. */
static int complete(struct conn *c)
{
    char method[8], path[256];
    c->state = HEAD;
    if (sscanf(c->head, "%7s %255s", method, path) != 2)
        return -1;
    if (verbose)
        fprintf(stderr, "%d %s %s\n", c->w->port, method, path);
    c->head_len = 0;
    if (strcmp(method, "POST"))
        return get(c, path);
    path[strcspn(path, "?")] = 0;
    if (c->render)
        return render(c, !strcmp(path, "/tokenize"));
    if (strcmp(path, "/v1/chat/completions") && strcmp(path, "/v1/completions"))
        return reply(c, 404, "application/json", "{\"error\":\"no such path\"}");
    c->chat = path[4] == 'c' && path[5] == 'h';
    c->w->requests++;
    c->w->running++;
    if (!delay)
        return answer(c);
    join(c, DELAYED, now_ns() + delay);
    return 0;
}

/* 1 when p[0..n) has the key with the value true after it. */
static int has_true(const char *p, size_t n, const char *key)
{
    const char *end = p + n;
    while ((p = memmem(p, end - p, key, strlen(key)))) {
        for (p += strlen(key); p < end && *p == ' '; p++)
            ;
        if (p < end && *p == 't')
            return 1;
    }
    return 0;
}

/* Looks for "stream":true and "include_usage":true, also across reads. */
static void scan(struct conn *c, const char *p, size_t n)
{
    char seam[2 * TAIL + 1];
    size_t head = n < TAIL ? n : TAIL;
    c->w->bytes += n;
    if (c->render) {
        keep(c, p, n);
        return;
    }
    memcpy(seam, c->tail, c->tail_len);
    memcpy(seam + c->tail_len, p, head);
    for (int pass = 0; pass < 2; pass++) {
        const char *at = pass ? p : seam;
        size_t len = pass ? n : c->tail_len + head;
        c->stream = c->stream || has_true(at, len, "\"stream\":");
        c->usage = c->usage || has_true(at, len, "\"include_usage\":");
    }
    char joined[2 * TAIL];
    size_t m = n < TAIL ? n : TAIL;
    memcpy(joined, c->tail, c->tail_len);
    memcpy(joined + c->tail_len, p + n - m, m);
    m += c->tail_len;
    c->tail_len = m < TAIL ? (int)m : TAIL;
    memcpy(c->tail, joined + m - c->tail_len, c->tail_len);
}

/* 1: end of the head, 0: more to come, -1: too long. Takes up to *n bytes. */
static int read_head(struct conn *c, const char *p, size_t *n)
{
    size_t room = HEAD_MAX - 1 - c->head_len, take = *n < room ? *n : room;
    int from = c->head_len > 3 ? c->head_len - 3 : 0;
    memcpy(c->head + c->head_len, p, take);
    c->head[c->head_len + take] = 0;
    char *end = memmem(c->head + from, c->head_len + take - from, "\r\n\r\n", 4);
    if (!end) {
        c->head_len += (int)take;
        *n = take;
        return c->head_len == HEAD_MAX - 1 ? -1 : 0;
    }
    *n = end + 4 - c->head - c->head_len;
    end[2] = 0;
    char *v = strcasestr(c->head, "\r\ncontent-length:");
    c->need = v ? strtoull(v + 17, NULL, 10) : 0;
    v = strcasestr(c->head, "\r\ntransfer-encoding:");
    c->chunked = v && strcasestr(v, "chunked");
    c->stream = c->usage = c->tail_len = c->line_len = 0;
    c->body_n = 0;
    c->render = strstr(c->head, "/render HTTP/") || strstr(c->head, " /tokenize HTTP/");
    v = strcasestr(c->head, "\r\nexpect:");
    if (v && strcasestr(v, "100-continue"))
        put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return 1;
}

/* -1: broken or malformed. */
static int feed(struct conn *c, const char *p, size_t n)
{
    while (n) {
        size_t take = n;
        switch (c->state) {
        case HEAD: {
            int r = read_head(c, p, &take);
            if (r < 0)
                return -1;
            if (!r)
                break;
            c->state = c->chunked ? CHUNK_SIZE : LENGTH;
            if (!c->chunked && !c->need && complete(c))
                return -1;
            break;
        }
        case LENGTH:
        case CHUNK_DATA:
            if (take > c->need)
                take = c->need;
            scan(c, p, take);
            c->need -= take;
            if (c->need)
                break;
            if (c->state == CHUNK_DATA)
                c->state = CHUNK_END;
            else if (complete(c))
                return -1;
            break;
        default: /* a line of the chunked coding */
            take = 1;
            if (*p != '\n') {
                if (*p != '\r' && c->line_len < (int)sizeof c->line - 1)
                    c->line[c->line_len++] = *p;
                break;
            }
            c->line[c->line_len] = 0;
            if (c->state == CHUNK_SIZE) {
                c->need = strtoull(c->line, NULL, 16);
                c->state = c->need ? CHUNK_DATA : TRAILER;
            } else if (c->state == CHUNK_END) {
                c->state = CHUNK_SIZE;
            } else if (!c->line_len && complete(c)) {
                return -1;
            }
            c->line_len = 0;
        }
        p += take;
        n -= take;
    }
    return 0;
}

static int flush(struct conn *c)
{
    ssize_t r = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);
    if (r < 0)
        return errno == EAGAIN ? 0 : -1;
    c->out += r;
    c->out_len -= r;
    if (!c->out_len) {
        free(c->own);
        c->own = NULL;
        c->out = NULL;
        want_write(c, 0);
    }
    return 0;
}

static void accept_all(struct worker *w)
{
    int fd, one = 1;
    while ((fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct conn *c = calloc(1, sizeof *c);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->fd = fd;
        c->w = w;
        w->conns++;
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    }
}

static void run_timers(void)
{
    int64_t now = now_ns();
    struct conn *c, *next;
    while ((c = lists[DELAYED].first) && c->due <= now)
        if (answer(c))
            drop(c);
    while ((c = lists[TIMED].first) && c->due <= now) {
        int64_t due = c->due + interval;
        if (step(c))
            drop(c);
        else if (c->queue == TIMED)
            join(c, TIMED, due);
    }
    for (c = lists[FLAT].first; c; c = next) {
        next = c->next;
        if (!c->blocked && step(c))
            drop(c);
    }
}

/* -1: for ever; a stream that cannot be written to is woken by EPOLLOUT. */
static int64_t wait_ns(void)
{
    int64_t first = INT64_MAX, now = now_ns();
    for (struct conn *c = lists[FLAT].first; c; c = c->next)
        if (!c->blocked)
            return 0;
    for (int q = DELAYED; q <= TIMED; q++)
        if (lists[q].first && lists[q].first->due < first)
            first = lists[q].first->due;
    return first == INT64_MAX ? -1 : first > now ? first - now : 0;
}

static int listen_on(int port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096)) {
        perror("stub: listen");
        exit(1);
    }
    return fd;
}

int main(int argc, char **argv)
{
    static struct epoll_event es[512];
    static char buf[1 << 18];
    int base = 9001, o;
    while ((o = getopt(argc, argv, "p:n:e:i:d:m:v")) != -1) {
        switch (o) {
        case 'p':
            base = (int)strtol(optarg, NULL, 10);
            break;
        case 'n':
            n_workers = (int)strtol(optarg, NULL, 10);
            break;
        case 'e':
            events = (int)strtol(optarg, NULL, 10);
            break;
        case 'i':
            interval = strtol(optarg, NULL, 10) * 1000;
            break;
        case 'd':
            delay = strtol(optarg, NULL, 10) * 1000;
            break;
        case 'm':
            model = optarg;
            break;
        case 'v':
            verbose = 1;
            break;
        default:
            return 2;
        }
    }
    if (n_workers < 1 || n_workers > MAX_PORTS)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    ep = epoll_create1(0);
    for (int i = 0; i < n_workers; i++) {
        struct worker *w = &workers[i];
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = w};
        w->port = base + i;
        w->fd = listen_on(w->port);
        epoll_ctl(ep, EPOLL_CTL_ADD, w->fd, &e);
        make_messages(i);
    }
    for (;;) {
        int64_t ns = wait_ns();
        struct timespec ts = {ns / 1000000000, ns % 1000000000};
        int n = epoll_pwait2(ep, es, 512, ns < 0 ? NULL : &ts, NULL);
        for (int i = 0; i < n; i++) {
            struct worker *w = es[i].data.ptr;
            struct conn *c = es[i].data.ptr;
            if (w >= workers && w < workers + n_workers) {
                accept_all(w);
                continue;
            }
            if (es[i].events & EPOLLOUT && flush(c)) {
                drop(c);
                continue;
            }
            if (es[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
                ssize_t r = recv(c->fd, buf, sizeof buf, 0);
                if (r < 0 && errno == EAGAIN)
                    continue;
                if (r <= 0 || feed(c, buf, r))
                    drop(c);
            }
        }
        run_timers();
    }
}
