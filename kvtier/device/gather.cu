/* SPDX-License-Identifier: Apache-2.0 */

/*
 * DESIGN
 *
 * A warp moves one piece (one segment of one block), then the next but a gridful: pieces are a few
 * KiB, so that a whole thread block would mostly wait for its slowest warp. Four loads are under
 * way in each thread before the first store: the latency of HBM is paid once in 2 KiB. That is far
 * more than the host's link can take, so that a small grid is enough, and leaves the engine its
 * processors.
 *
 * The blocks' numbers lie in the host's pinned memory: 4 bytes over the link for each piece.
 *
 * Written for any compiler of CUDA C, without its headers: registers and 16-byte accesses are
 * named in PTX. gather.ptx is made of this by clang 14 with
 *   clang -x cuda -nocudainc -nocudalib --cuda-device-only --cuda-gpu-arch=sm_70 \
 *         -Xclang -target-feature -Xclang +ptx60 -O2 -S -I. kvtier/device/gather.cu
 * for the oldest GPU that drivers of today know (sm_70); newer ones run it alike.
 */
#include "kvtier/device/gather.h"

#ifndef __global__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#endif

/* 16 bytes. */
struct quad {
    unsigned int words[4];
};

static __device__ unsigned int thread_of_block(void)
{
    unsigned int value;

    asm("mov.u32 %0, %%tid.x;" : "=r"(value));
    return value;
}

static __device__ unsigned int block_of_grid(void)
{
    unsigned int value;

    asm("mov.u32 %0, %%ctaid.x;" : "=r"(value));
    return value;
}

static __device__ unsigned int blocks_of_grid(void)
{
    unsigned int value;

    asm("mov.u32 %0, %%nctaid.x;" : "=r"(value));
    return value;
}

/* cs: streamed through the caches; the engine's lines stay there. */
static __device__ struct quad load_quad(unsigned long long address)
{
    struct quad quad;

    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad.words[0]), "=r"(quad.words[1]), "=r"(quad.words[2]),
                   "=r"(quad.words[3])
                 : "l"(address)
                 : "memory");
    return quad;
}

static __device__ void store_quad(unsigned long long address, struct quad quad)
{
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(address), "r"(quad.words[0]), "r"(quad.words[1]), "r"(quad.words[2]),
                   "r"(quad.words[3])
                 : "memory");
}

static __device__ void copy_bytes(unsigned long long target, unsigned long long source,
                                  unsigned int bytes, unsigned int lane)
{
    for (unsigned int i = lane; i < bytes; i += 32)
        ((unsigned char *)target)[i] = ((const unsigned char *)source)[i];
}

static __device__ void copy_piece(unsigned long long target, unsigned long long source,
                                  unsigned int bytes, unsigned int lane)
{
    unsigned int whole = ((target | source) & 15) == 0 ? bytes & ~15u : 0;
    unsigned int at = lane * 16;

    for (; at + 3 * 512 < whole; at += 4 * 512) {
        struct quad a = load_quad(source + at);
        struct quad b = load_quad(source + at + 512);
        struct quad c = load_quad(source + at + 1024);
        struct quad d = load_quad(source + at + 1536);

        store_quad(target + at, a);
        store_quad(target + at + 512, b);
        store_quad(target + at + 1024, c);
        store_quad(target + at + 1536, d);
    }
    for (; at < whole; at += 512)
        store_quad(target + at, load_quad(source + at));
    copy_bytes(target + whole, source + whole, bytes - whole, lane);
}

extern "C" __global__ void samovar_gather(struct gather_job job)
{
    const struct gather_segment *segments = (const struct gather_segment *)job.segments;
    const unsigned int *blocks = (const unsigned int *)job.blocks;
    unsigned int lane = thread_of_block() & 31;
    unsigned int warps_of_block = GATHER_THREADS / 32;
    unsigned int step = blocks_of_grid() * warps_of_block;
    unsigned int piece_count = job.page_count * job.segment_count;

    for (unsigned int piece = block_of_grid() * warps_of_block + thread_of_block() / 32;
         piece < piece_count; piece += step) {
        unsigned int page = piece / job.segment_count;
        const struct gather_segment *segment = &segments[piece % job.segment_count];
        unsigned long long ours =
            job.slab + (unsigned long long)page * job.page_bytes + segment->page_offset;
        unsigned long long theirs = segment->address + segment->stride * blocks[page];

        if (job.is_scatter)
            copy_piece(theirs, ours, segment->bytes, lane);
        else
            copy_piece(ours, theirs, segment->bytes, lane);
    }
}
