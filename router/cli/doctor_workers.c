/* SPDX-License-Identifier: Apache-2.0 */

#include "router/cli/doctor_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/runtime/clock.h"

/*
 * DESIGN
 *
 * Whether a worker keeps an idle connection for as long as we do is not asked but tried, on all
 * workers at once: one request each, and then who closes before our own limit is over.
 */

enum { IDLE_MS_MAX = 10000, ANSWER_BYTES = 4096 };

/* One connection that is left idle. */
struct idle {
    const struct doctor_worker *worker;
    uint64_t answered_ms; /* when the last byte came; 0: none yet */
    uint64_t closed_ms;   /* when the worker closed; 0: it has not */
};

static void say_answer(struct doctor *doctor, struct doctor_worker *worker)
{
    const struct doctor_place place = {&worker->address, worker->url.authority};
    struct doctor_answer answer;

    doctor_ask(doctor, place, "/health", slice_of(NULL, 0), &answer);
    worker->is_reachable = answer.error == 0;
    if (answer.error < 0)
        doctor_say(doctor, DOCTOR_BAD, "%s does not answer: %s: is the engine running there?",
                   worker->name, strerror(-answer.error));
    else if (answer.status >= 500)
        doctor_say(doctor, DOCTOR_BAD, "%s says %d of its own health: see the engine's log",
                   worker->name, answer.status);
    else
        doctor_say(doctor, DOCTOR_FINE, "%s answers in %.1f ms", worker->name,
                   answer.seconds * 1000);
    buf_release(&answer.body);
}

/* ---- idle connections ---- */

static socklen_t address_bytes(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

/* A connection with one request on it; -1: none could be made. */
static int open_idle(const struct doctor_worker *worker)
{
    char request[WORKER_NAME_BYTES_MAX + 64];
    const int len = snprintf(request, sizeof request, "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n",
                             worker->url.authority);
    int fd = socket(worker->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)&worker->address, address_bytes(&worker->address)) <
            0 ||
        send(fd, request, (size_t)len, MSG_NOSIGNAL) != len || fcntl(fd, F_SETFL, O_NONBLOCK) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void read_idle(struct pollfd *poll, struct idle *idle)
{
    char ignored[ANSWER_BYTES];
    ssize_t count;

    while ((count = recv(poll->fd, ignored, sizeof ignored, 0)) > 0)
        idle->answered_ms = clock_now_ms();
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    idle->closed_ms = clock_now_ms();
    close(poll->fd);
    poll->fd = -1; /* poll() passes over it */
}

static void watch_idle(struct pollfd *polls, struct idle *idles, size_t count, uint64_t idle_ms)
{
    const uint64_t end_ms = clock_now_ms() + idle_ms;
    uint64_t now_ms;

    while ((now_ms = clock_now_ms()) < end_ms) {
        if (poll(polls, count, (int)(end_ms - now_ms)) <= 0)
            continue;
        for (size_t i = 0; i < count; i++) {
            if (polls[i].fd >= 0 && polls[i].revents != 0)
                read_idle(&polls[i], &idles[i]);
        }
    }
}

static void say_idle(struct doctor *doctor, const struct idle *idle, uint64_t idle_ms)
{
    const char *name = idle->worker->name;
    const uint64_t kept_ms = idle->closed_ms - idle->answered_ms;

    if (idle->answered_ms == 0)
        doctor_say(doctor, DOCTOR_DOUBT,
                   "%s did not answer within %.1f s on a connection that was to be kept: is it "
                   "overloaded?",
                   name, (double)idle_ms / 1000);
    else if (idle->closed_ms == 0)
        doctor_say(doctor, DOCTOR_FINE, "%s keeps idle connections for more than %.1f s", name,
                   (double)idle_ms / 1000);
    else
        doctor_say(doctor, DOCTOR_BAD,
                   "%s closes connections that have been idle for %.1f s, and the router keeps "
                   "them for %.1f: set worker-idle-ms below that, or requests meet closed "
                   "connections",
                   name, (double)kept_ms / 1000, (double)doctor->options->worker_idle_ms / 1000);
}

static void say_idles(struct doctor *doctor)
{
    static struct pollfd polls[DOCTOR_WORKER_COUNT_MAX];
    static struct idle idles[DOCTOR_WORKER_COUNT_MAX];
    const uint64_t idle_ms = doctor->options->worker_idle_ms < IDLE_MS_MAX
                                 ? doctor->options->worker_idle_ms
                                 : IDLE_MS_MAX;
    size_t count = 0;

    for (size_t i = 0; i < doctor->worker_count; i++) {
        const struct doctor_worker *worker = &doctor->workers[i];
        const int fd = worker->is_reachable ? open_idle(worker) : -1;

        if (fd < 0)
            continue;
        polls[count] = (struct pollfd){.fd = fd, .events = POLLIN};
        idles[count++] = (struct idle){.worker = worker};
    }
    if (count > 0)
        watch_idle(polls, idles, count, idle_ms);
    for (size_t i = 0; i < count; i++) {
        say_idle(doctor, &idles[i], idle_ms);
        if (polls[i].fd >= 0)
            close(polls[i].fd);
    }
}

/* ---- its cache ---- */

static void say_probe(struct doctor *doctor, const struct doctor_worker *worker)
{
    const struct doctor_place place = {&worker->address, worker->url.authority};
    const struct doctor_probe probe = doctor_probe(doctor, place);

    if (probe.why[0] != '\0')
        doctor_say(doctor, DOCTOR_DOUBT, "%s could not be probed: %s%s", worker->name, probe.why,
                   doctor->authorization == NULL ? ": if it asks for a key, see worker-api-key-file"
                                                 : "");
    else if (probe.cached < 0)
        doctor_say(doctor, DOCTOR_DOUBT,
                   "%s does not say how much of a prompt it had cached, so nobody can check what "
                   "is believed of it: vLLM says it with --enable-prompt-tokens-details",
                   worker->name);
    else if (probe.cached == 0)
        doctor_say(doctor, DOCTOR_BAD,
                   "%s found nothing of a probe's second turn (%" PRId64
                   " tokens): is prefix caching off, or its cache too small?",
                   worker->name, probe.prompt);
    else
        doctor_say(doctor, DOCTOR_FINE,
                   "%s found %" PRId64 " of %" PRId64 " tokens of a probe's second turn in its "
                   "cache",
                   worker->name, probe.cached, probe.prompt);
}

void doctor_examine_workers(struct doctor *doctor, bool is_probing)
{
    if (doctor->worker_count == 0)
        doctor_say(doctor, DOCTOR_BAD,
                   "there is no worker: name some in worker-urls, or run an agent beside each");
    for (size_t i = 0; i < doctor->worker_count; i++)
        say_answer(doctor, &doctor->workers[i]);
    say_idles(doctor);
    for (size_t i = 0; i < doctor->worker_count && is_probing; i++) {
        if (doctor->workers[i].is_reachable)
            say_probe(doctor, &doctor->workers[i]);
    }
}
