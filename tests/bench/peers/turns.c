/* SPDX-License-Identifier: Apache-2.0 */

/*
 * turns: preloaded into a program with an event loop, measures the CPU time from the end of one
 * epoll_wait() to the begin of the next: how long whoever else has something to do must wait for
 * the loop, however busy the machine is. At the exit the program's main thread leaves one JSON
 * object in the file $TURNS_OUT: counts, the 99.9 % quantile and the longest turn, in us.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

enum { BUCKET_COUNT = 100000, BUCKET_NS = 10000 }; /* 10 us each, up to 1 s */

static uint32_t turns[BUCKET_COUNT];
static uint64_t turn_count;
static int64_t begin_ns, longest_ns;

static int64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void end_turn(void)
{
    int64_t ns = cpu_ns() - begin_ns, bucket = ns / BUCKET_NS;

    if (begin_ns == 0)
        return;
    turns[bucket < BUCKET_COUNT ? bucket : BUCKET_COUNT - 1]++;
    turn_count++;
    longest_ns = ns > longest_ns ? ns : longest_ns;
}

/* Only the main thread waits in this way; libuv calls one of the two. */
int epoll_pwait(int epfd, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
    static int (*real)(int, struct epoll_event *, int, int, const sigset_t *);
    int count;

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "epoll_pwait");
    end_turn();
    count = real(epfd, events, max, timeout, mask);
    begin_ns = cpu_ns();
    return count;
}

int epoll_wait(int epfd, struct epoll_event *events, int max, int timeout)
{
    return epoll_pwait(epfd, events, max, timeout, NULL);
}

static double quantile_us(double share)
{
    uint64_t wanted = (uint64_t)((double)turn_count * share), seen = 0;
    int bucket = 0;

    while (bucket < BUCKET_COUNT - 1 && (seen += turns[bucket]) <= wanted)
        bucket++;
    return (bucket + 1) * (BUCKET_NS / 1e3);
}

__attribute__((destructor)) static void write_turns(void)
{
    const char *path = getenv("TURNS_OUT");
    FILE *file = path != NULL ? fopen(path, "w") : NULL;

    if (file == NULL)
        return;
    fprintf(file, "{\"turns\":%llu,\"p99.9\":%.0f,\"max\":%.0f}\n", (unsigned long long)turn_count,
            quantile_us(.999), (double)longest_ns / 1e3);
    fclose(file);
}
