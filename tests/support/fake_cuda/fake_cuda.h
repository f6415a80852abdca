/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fake_cuda: a libcuda.so.1 for tests. HBM is memory of this machine, streams are queues that one
 * thread (the GPU) works on in a random order with random pauses, the copies of a batch go in
 * random order, and IPC handles work between processes. A program that links it, or finds it in
 * LD_LIBRARY_PATH, has GPUs.
 *
 * It sees what real GPUs hide. Whatever the timing, it aborts with a sentence when two operations
 * touch the same bytes, one of them writes, and nothing orders them (see fake_order.h); when HBM is
 * read that was never written; when memory is freed or unpinned while something under way uses it;
 * when a copy crosses allocations, or a kernel's table changes before the kernel has run.
 *
 * One process may play engine and agent at once: it may open its own IPC handles, which the real
 * driver refuses. What follows is what tests say to it, from any thread.
 */
#ifndef TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H
#define TESTS_SUPPORT_FAKE_CUDA_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_stream;

struct fake_cuda_config {
    uint64_t seed;
    int gpu_count;
    int version;                   /* 12080: CUDA 12.8 */
    size_t pin_bytes_max;          /* in all */
    size_t registration_bytes_max; /* at once */
};

/* Everything is forgotten, as at the start of a process; nothing may be under way. Without it:
 * seed 1, one GPU, CUDA 13.0, no limits. */
void fake_cuda_reset(struct fake_cuda_config config);
struct fake_cuda_config fake_cuda_default(void);

/* The call of that name after skip others returns result without doing anything, once. */
void fake_cuda_fail(const char *function, int result, unsigned skip);

/* Nothing of stream runs until it is let go. */
void fake_cuda_hold(struct cuda_stream *stream, bool is_held);

/* Waits until nothing is under way; streams that are held are let go. */
void fake_cuda_settle(void);

/* The host touches memory: checked as an operation is. */
void fake_cuda_touch(const void *bytes, size_t len, bool is_written);

/* Faults are kept instead of aborting: the newest sentence, "" without one. */
void fake_cuda_keep_faults(bool is_kept);
const char *fake_cuda_fault(void);

struct fake_cuda_counts {
    size_t allocations; /* of HBM, not freed */
    size_t opened;      /* IPC memory handles, not closed; each open counts */
    size_t events;      /* made or opened, not destroyed */
    size_t streams;
    size_t registrations; /* of host memory */
    size_t registered_bytes;
    size_t copies; /* since the reset: of cuMemcpyAsync() and in batches */
    size_t batches;
    size_t launches;
};
struct fake_cuda_counts fake_cuda_counts(void);

#endif
