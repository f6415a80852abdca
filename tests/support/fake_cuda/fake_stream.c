/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/support/fake_cuda/fake_stream.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/runtime/random.h"

/*
 * DESIGN
 *
 * Operations run under the lock: that two streams run at once shows nothing that order by
 * fake_order does not. Between two of them the GPU's thread gives the lock away some random times,
 * so that the host gets ahead of it, or does not.
 *
 * Events of another process are looked at every 100 us.
 */
enum { REMOTE_POLL_NS = 100000, YIELDS_MAX = 4, BUSY_YIELDS = 50 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool has_thread;
static uint64_t random_state = 1;
static struct fake_known host_known;
static struct fake_stream streams[FAKE_STREAMS_MAX];

void fake_lock(void)
{
    pthread_mutex_lock(&lock);
}

void fake_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static void wait_a_little(void)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += REMOTE_POLL_NS;
    if (end.tv_nsec >= 1000000000) {
        end.tv_nsec -= 1000000000;
        end.tv_sec++;
    }
    pthread_cond_timedwait(&changed, &lock, &end);
}

/* ---- what operations do ---- */

static void copy(const struct fake_copy *copy)
{
    void *target = (void *)(uintptr_t)copy->target;
    const void *source =
        copy->staged != NULL ? copy->staged : (const void *)(uintptr_t)copy->source;

    memcpy(target, source, copy->len);
}

static void run_copies(struct fake_op *op)
{
    for (size_t left = op->copy_count; left > 0; left--) {
        size_t drawn = random_next(&random_state) % left;

        copy(&op->copies[drawn]);
        free(op->copies[drawn].staged);
        op->copies[drawn] = op->copies[left - 1];
    }
}

static uint64_t add_bytes(uint64_t sum, uint64_t address, size_t len)
{
    const uint8_t *bytes = (const uint8_t *)(uintptr_t)address;

    for (size_t i = 0; i < len; i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3;
    return sum;
}

uint64_t fake_gather_sum(const struct gather_job *job)
{
    uint64_t sum = add_bytes(1, job->segments, job->segment_count * sizeof(struct gather_segment));

    return add_bytes(sum, job->blocks, job->page_count * sizeof(uint32_t));
}

static void run_gather(const struct fake_op *op)
{
    const struct gather_job *job = &op->gather;
    const struct gather_segment *segments = (const void *)(uintptr_t)job->segments;
    const uint32_t *blocks = (const void *)(uintptr_t)job->blocks;

    if (fake_gather_sum(job) != op->sum)
        fake_fault("a kernel's tables were changed before it ran");
    for (uint64_t i = 0; i < (uint64_t)job->page_count * job->segment_count; i++) {
        const struct gather_segment *segment = &segments[i % job->segment_count];
        uint64_t page = i / job->segment_count;
        struct fake_copy piece = {.target =
                                      job->slab + page * job->page_bytes + segment->page_offset,
                                  .source = segment->address + segment->stride * blocks[page],
                                  .len = segment->bytes};

        if (job->is_scatter) {
            uint64_t slab = piece.target;
            piece.target = piece.source;
            piece.source = slab;
        }
        copy(&piece);
    }
}

static void pause_randomly(unsigned yields_max)
{
    unsigned yields = (unsigned)(random_next(&random_state) % yields_max);

    if (yields == 0)
        return;
    fake_unlock();
    while (yields-- > 0)
        sched_yield();
    fake_lock();
}

static void run(struct fake_op *op)
{
    switch (op->kind) {
    case FAKE_COPIES:
        run_copies(op);
        break;
    case FAKE_GATHER:
        run_gather(op);
        break;
    case FAKE_RECORD:
        __atomic_store_n(&op->progress->reached, op->number, __ATOMIC_RELEASE);
        break;
    case FAKE_BUSY:
    case FAKE_WAIT:
        break;
    }
}

/* ---- the GPU ---- */

static bool may_run(const struct fake_stream *stream)
{
    const struct fake_op *op = stream->head;

    if (op == NULL || stream->is_held)
        return false;
    return op->kind != FAKE_WAIT || fake_event_is_reached(op->progress, op->number);
}

/* Any stream that may go on; NULL. waits: some stream waits for an event. */
static struct fake_stream *draw_stream(bool *waits)
{
    struct fake_stream *drawn = NULL;
    uint64_t count = 0;

    *waits = false;
    for (size_t i = 0; i < FAKE_STREAMS_MAX; i++) {
        if (may_run(&streams[i]) && random_next(&random_state) % ++count == 0)
            drawn = &streams[i];
        *waits |= streams[i].head != NULL && streams[i].head->kind == FAKE_WAIT;
    }
    return drawn;
}

/* The operation stays the head while it runs, so that who waits for the stream waits for it. */
static void advance(struct fake_stream *stream)
{
    struct fake_op *op = stream->head;

    pause_randomly(op->kind == FAKE_BUSY ? BUSY_YIELDS : YIELDS_MAX);
    run(op);
    stream->head = op->next;
    if (stream->head == NULL)
        stream->tail = &stream->head;
    free(op->copies);
    free(op);
    pthread_cond_broadcast(&changed);
}

static void *be_gpu(void *arg)
{
    (void)arg;
    fake_lock();
    for (;;) {
        bool waits;
        struct fake_stream *stream = draw_stream(&waits);

        if (stream != NULL)
            advance(stream);
        else if (waits)
            wait_a_little();
        else
            pthread_cond_wait(&changed, &lock);
    }
    return NULL;
}

static void start_thread(void)
{
    pthread_t thread;

    if (has_thread)
        return;
    if (pthread_create(&thread, NULL, be_gpu, NULL) != 0)
        abort();
    pthread_detach(thread);
    has_thread = true;
}

/* ---- streams ---- */

static struct fake_stream *use_slot(size_t slot)
{
    struct fake_stream *stream = &streams[slot];

    stream->slot = (uint32_t)slot;
    stream->is_used = true;
    stream->is_held = false;
    stream->known = host_known;
    stream->head = NULL;
    stream->tail = &stream->head;
    return stream;
}

struct fake_stream *fake_stream_add(void)
{
    for (size_t i = 1; i < FAKE_STREAMS_MAX; i++) {
        if (!streams[i].is_used)
            return use_slot(i);
    }
    return NULL;
}

struct fake_stream *fake_stream_null(void)
{
    return streams[0].is_used ? &streams[0] : use_slot(0);
}

void fake_stream_remove(struct fake_stream *stream)
{
    if (stream->head != NULL)
        fake_fault("a stream is destroyed that has work");
    stream->is_used = false;
}

size_t fake_stream_count(void)
{
    size_t count = 0;

    for (size_t i = 1; i < FAKE_STREAMS_MAX; i++)
        count += streams[i].is_used;
    return count;
}

void fake_stream_reset(uint64_t seed)
{
    fake_wait_all();
    memset(streams, 0, sizeof streams);
    host_known = (struct fake_known){0};
    random_state = seed;
}

/* ---- operations ---- */

struct fake_op *fake_op_next(struct fake_stream *stream, enum fake_op_kind kind,
                             struct fake_known *known)
{
    struct fake_op *op = calloc(1, sizeof *op);

    if (op == NULL)
        abort();
    fake_known_add(&stream->known, &host_known);
    *known = stream->known;
    stream->known.counts[stream->slot] = ++stream->count;
    op->kind = kind;
    op->moment = (struct fake_moment){stream->slot, stream->count};
    return op;
}

void fake_op_push(struct fake_stream *stream, struct fake_op *op)
{
    start_thread();
    *stream->tail = op;
    stream->tail = &op->next;
    pthread_cond_broadcast(&changed);
}

/* ---- the host ---- */

struct fake_known *fake_host(void)
{
    return &host_known;
}

void fake_host_learns(const struct fake_known *known)
{
    fake_known_add(&host_known, known);
    fake_order_forget(&host_known);
}

bool fake_event_is_reached(const struct fake_progress *progress, uint64_t number)
{
    return __atomic_load_n(&progress->reached, __ATOMIC_ACQUIRE) >= number;
}

void fake_wait_event(const struct fake_progress *progress, uint64_t number)
{
    while (!fake_event_is_reached(progress, number))
        wait_a_little();
}

void fake_wait_stream(const struct fake_stream *stream)
{
    while (stream->head != NULL)
        wait_a_little();
}

void fake_wait_all(void)
{
    for (size_t i = 0; i < FAKE_STREAMS_MAX; i++)
        streams[i].is_held = false;
    pthread_cond_broadcast(&changed);
    for (size_t i = 0; i < FAKE_STREAMS_MAX; i++) {
        fake_wait_stream(&streams[i]);
        fake_host_learns(&streams[i].known);
    }
}
