/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fake_stream: streams, events and what runs on them. One thread is the GPU: it takes the head of
 * any stream that may go on, at random. The caller holds the fake's lock, which fake_wait() gives
 * up while it waits.
 */
#ifndef TESTS_SUPPORT_FAKE_CUDA_FAKE_STREAM_H
#define TESTS_SUPPORT_FAKE_CUDA_FAKE_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtier/device/gather.h"
#include "tests/support/fake_cuda/fake_order.h"

/* In memory that processes share, where the event is for several: atomic. */
struct fake_progress {
    uint64_t recorded; /* how often it was told */
    uint64_t reached;  /* how often its stream came to it */
};

struct fake_event {
    struct fake_event *next;     /* of all */
    struct fake_event *original; /* opened by its own process: the same event; else NULL */
    struct fake_progress *progress;
    int fd; /* of progress, to be opened by others; -1 */
    unsigned int flags;
    bool is_remote;          /* of another process: what it knows is not known here */
    struct fake_known known; /* by whoever waits for the newest record */
};

struct fake_copy {
    uint64_t target;
    uint64_t source;
    size_t len;
    void *staged; /* the source's bytes, taken when enqueued; NULL: read when run */
};

enum fake_op_kind { FAKE_COPIES, FAKE_GATHER, FAKE_BUSY, FAKE_RECORD, FAKE_WAIT };

struct fake_op {
    struct fake_op *next;
    enum fake_op_kind kind;
    struct fake_moment moment;
    struct fake_copy *copies;
    size_t copy_count;
    struct gather_job gather;
    uint64_t sum; /* of the tables that it reads, when enqueued */
    struct fake_progress *progress;
    uint64_t number; /* of the record */
};

struct fake_stream {
    uint32_t slot;
    bool is_used;
    bool is_held;
    uint64_t count; /* operations so far; goes on when the slot is used again */
    struct fake_known known;
    struct fake_op *head, **tail;
};

/* Slot 0 is the null stream. NULL: none is free. */
struct fake_stream *fake_stream_add(void);
struct fake_stream *fake_stream_null(void);
void fake_stream_remove(struct fake_stream *stream);
void fake_stream_reset(uint64_t seed);
size_t fake_stream_count(void);

/* The next operation of stream, knowing what it and the host know: to be filled, checked, and
 * pushed. */
struct fake_op *fake_op_next(struct fake_stream *stream, enum fake_op_kind kind,
                             struct fake_known *known);
void fake_op_push(struct fake_stream *stream, struct fake_op *op);
/* Of the tables that a gathering kernel reads. */
uint64_t fake_gather_sum(const struct gather_job *job);

/* The host knows what stream was given so far, or a known. */
struct fake_known *fake_host(void);
void fake_host_learns(const struct fake_known *known);

/* Until the host may go on: the event was reached as often as recorded, the stream is empty. */
bool fake_event_is_reached(const struct fake_progress *progress, uint64_t number);
void fake_wait_event(const struct fake_progress *progress, uint64_t number);
void fake_wait_stream(const struct fake_stream *stream);

void fake_wait_all(void);

void fake_lock(void);
void fake_unlock(void);

#endif
