/* SPDX-License-Identifier: Apache-2.0 */

/*
 * gpu_peer: the engine's half of the GPU check: a process of its own that has pages in HBM and a
 * stream that computes, and does what the agent's half says over a socket, one order at a time.
 */
#ifndef TESTS_GPU_GPU_PEER_H
#define TESTS_GPU_GPU_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/device/device.h"

struct peer_layout {
    uint32_t layers;
    uint32_t blocks;
    uint32_t piece_bytes;
};

enum peer_order {
    PEER_ALLOCATE, /* pages of that layout; answers with what an engine tells */
    PEER_FREE,
    PEER_COMPUTE, /* behind a kernel that takes its time: even blocks get pattern(number), odd ones
                     canaries; recorded, not waited for */
    PEER_VERIFY,  /* even blocks have pattern(number), odd ones their canaries: value is the count
                     of wrong bytes */
    PEER_BUSY,    /* a kernel of number turns: value is how long it took, in us */
    PEER_END,
};

struct peer_message {
    enum peer_order order;
    struct peer_layout layout;
    uint32_t number;
};

struct peer_answer {
    int status; /* 0, or what the driver said */
    double value;
    struct engine_export told; /* to PEER_ALLOCATE */
};

/* What byte at of a block holds. number 0: a canary. */
static inline uint8_t peer_pattern(uint32_t number, uint32_t block, uint64_t at)
{
    return (uint8_t)(number * 31 + block * 7 + at + (at >> 8) * 13);
}

/* The process of the peer: serves orders until PEER_END or the socket's end. Returns its exit
 * status. */
int gpu_peer_run(int socket);

/* The agent's half: sends an order and waits for the answer. False: the peer is gone. */
bool gpu_peer_tell(int socket, struct peer_message message, struct peer_answer *answer);

#endif
