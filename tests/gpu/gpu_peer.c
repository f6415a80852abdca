/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/gpu/gpu_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kvtier/device/cuda_driver.h"
#include "tests/gpu/ipc_handle.h"

/* A kernel that multiplies and adds, and touches no memory but one word a thread. */
static const char busy_ptx[] =
    ".version 6.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".visible .entry samovar_busy(.param .u64 target, .param .u32 turns)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .f32 %f<4>;\n"
    "    .reg .b32 %r<4>;\n"
    "    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [target];\n"
    "    ld.param.u32 %r1, [turns];\n"
    "    mov.u32 %r2, 0;\n"
    "    mov.f32 %f1, 0f3F800000;\n"
    "    mov.f32 %f2, 0f3F7FFFFE;\n"
    "AGAIN:\n"
    "    fma.rn.f32 %f1, %f1, %f2, %f2;\n"
    "    fma.rn.f32 %f1, %f1, %f2, %f2;\n"
    "    fma.rn.f32 %f1, %f1, %f2, %f2;\n"
    "    fma.rn.f32 %f1, %f1, %f2, %f2;\n"
    "    add.u32 %r2, %r2, 1;\n"
    "    setp.lt.u32 %p1, %r2, %r1;\n"
    "    @%p1 bra AGAIN;\n"
    "    mov.u32 %r3, %tid.x;\n"
    "    mul.wide.u32 %rd2, %r3, 4;\n"
    "    add.s64 %rd3, %rd1, %rd2;\n"
    "    st.global.f32 [%rd3], %f1;\n"
    "    ret;\n"
    "}\n";

enum { BUSY_GRID = 264, BUSY_THREADS = 256, COMPUTE_TURNS = 2000000 };

struct peer {
    struct cuda_driver driver;
    struct cuda_context *context;
    struct cuda_stream *stream;
    struct cuda_event *event; /* for the agent */
    struct cuda_event *done;  /* for itself */
    struct cuda_module *module;
    struct cuda_function *busy;
    uint64_t scratch;
    uint64_t pages;
    uint8_t *staged; /* pinned, as large: what is on its way to the pages */
    struct peer_layout layout;
};

static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int get_handle(const struct peer *peer, const char *name, const void *of, uint8_t *bytes)
{
    struct cuda_ipc_handle handle;
    int result = ipc_handle_get(&peer->driver, name, of, &handle);

    if (result == 0)
        memcpy(bytes, &handle, sizeof handle);
    return result;
}

static int start(struct peer *peer)
{
    struct cuda_driver *driver = &peer->driver;
    char why[DEVICE_WHY_BYTES];
    int result;

    if (cuda_driver_load(driver, why) < 0)
        return -1;
    if ((result = driver->context_retain(&peer->context, 0)) != 0 ||
        (result = driver->context_set(peer->context)) != 0 ||
        (result = driver->stream_create(&peer->stream, CUDA_STREAM_NON_BLOCKING, 0)) != 0 ||
        (result = driver->event_create(&peer->event,
                                       CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING)) != 0 ||
        (result = driver->event_create(&peer->done, CUDA_EVENT_DISABLE_TIMING)) != 0 ||
        (result = driver->module_load(&peer->module, busy_ptx)) != 0 ||
        (result = driver->module_function(&peer->busy, peer->module, "samovar_busy")) != 0)
        return result;
    return driver->mem_alloc(&peer->scratch, BUSY_THREADS * sizeof(float));
}

/* ---- orders ---- */

static size_t page_bytes(const struct peer *peer)
{
    return (size_t)peer->layout.layers * peer->layout.piece_bytes;
}

static uint64_t piece(const struct peer *peer, uint32_t layer, uint32_t block)
{
    return peer->pages + ((uint64_t)layer * peer->layout.blocks + block) * peer->layout.piece_bytes;
}

static int allocate(struct peer *peer, struct peer_layout layout, struct engine_export *told)
{
    uint64_t layer_bytes = (uint64_t)layout.blocks * layout.piece_bytes;
    struct cuda_uuid uuid;
    void *staged = NULL;
    int result = peer->driver.mem_alloc(&peer->pages, layer_bytes * layout.layers);

    if (result == 0)
        result = peer->driver.host_alloc(&staged, layer_bytes * layout.layers, CUDA_HOST_PORTABLE);
    if (result != 0)
        return result;
    peer->staged = staged;
    peer->layout = layout;
    told->kind = DEVICE_CUDA;
    told->layout = (struct page_layout){.block_count = layout.blocks,
                                        .region_count = 1,
                                        .segment_count = layout.layers,
                                        .region_bytes = {layer_bytes * layout.layers}};
    for (uint32_t i = 0; i < layout.layers; i++)
        told->layout.segments[i] = (struct page_segment){
            .offset = i * layer_bytes, .stride = layout.piece_bytes, .bytes = layout.piece_bytes};
    result = peer->driver.device_uuid(&uuid, 0);
    memcpy(told->uuid, uuid.bytes, sizeof told->uuid);
    if (result == 0)
        result = get_handle(peer, "cuIpcGetMemHandle", (const void *)(uintptr_t)peer->pages,
                            told->handles[0]);
    if (result == 0)
        result = get_handle(peer, "cuIpcGetEventHandle", peer->event, told->event_handle);
    return result;
}

static int release(struct peer *peer)
{
    int result = peer->driver.stream_synchronize(peer->stream);

    if (result == 0)
        result = peer->driver.host_free(peer->staged);
    return result == 0 ? peer->driver.mem_free(peer->pages) : result;
}

static int launch_busy(struct peer *peer, uint32_t turns)
{
    void *parameters[] = {&peer->scratch, &turns};

    return peer->driver.launch(peer->busy, BUSY_GRID, 1, 1, BUSY_THREADS, 1, 1, 0, peer->stream,
                               parameters, NULL);
}

static int await_stream(struct peer *peer)
{
    return peer->driver.stream_synchronize(peer->stream);
}

/* What a block should hold, by layers. */
static void fill(const struct peer *peer, uint32_t number, uint32_t block, uint8_t *page)
{
    uint32_t what = block % 2 == 0 ? number : 0;

    for (uint64_t i = 0; i < page_bytes(peer); i++)
        page[i] = peer_pattern(what, block, i);
}

/* Pinned, so that nothing of it is done when this returns but what the kernel has let pass. */
static int compute(struct peer *peer, uint32_t number)
{
    int result = await_stream(peer);

    if (result == 0)
        result = launch_busy(peer, COMPUTE_TURNS);
    for (uint32_t block = 0; result == 0 && block < peer->layout.blocks; block++) {
        uint8_t *page = peer->staged + block * page_bytes(peer);

        fill(peer, number, block, page);
        for (uint32_t layer = 0; result == 0 && layer < peer->layout.layers; layer++)
            result = peer->driver.copy(piece(peer, layer, block),
                                       (uintptr_t)page + (size_t)layer * peer->layout.piece_bytes,
                                       peer->layout.piece_bytes, peer->stream);
    }
    return result == 0 ? peer->driver.event_record(peer->event, peer->stream) : result;
}

static int verify(struct peer *peer, uint32_t number, double *wrong_bytes)
{
    uint8_t *expected = malloc(page_bytes(peer)), *found = malloc(page_bytes(peer));
    int result = expected == NULL || found == NULL ? CUDA_OUT_OF_MEMORY : 0;

    for (uint32_t block = 0; result == 0 && block < peer->layout.blocks; block++) {
        fill(peer, number, block, expected);
        for (uint32_t layer = 0; result == 0 && layer < peer->layout.layers; layer++)
            result = peer->driver.copy((uintptr_t)found + (size_t)layer * peer->layout.piece_bytes,
                                       piece(peer, layer, block), peer->layout.piece_bytes,
                                       peer->stream);
        if (result == 0)
            result = await_stream(peer);
        for (size_t i = 0; result == 0 && i < page_bytes(peer); i++)
            *wrong_bytes += expected[i] != found[i];
    }
    free(expected);
    free(found);
    return result;
}

static int be_busy(struct peer *peer, uint32_t turns, double *us)
{
    double begin = now_us();
    int result = launch_busy(peer, turns);

    if (result == 0)
        result = await_stream(peer);
    *us = now_us() - begin;
    return result;
}

static void obey(struct peer *peer, const struct peer_message *message, struct peer_answer *answer)
{
    switch (message->order) {
    case PEER_ALLOCATE:
        answer->status = allocate(peer, message->layout, &answer->told);
        break;
    case PEER_FREE:
        answer->status = release(peer);
        break;
    case PEER_COMPUTE:
        answer->status = compute(peer, message->number);
        break;
    case PEER_VERIFY:
        answer->status = verify(peer, message->number, &answer->value);
        break;
    case PEER_BUSY:
        answer->status = be_busy(peer, message->number, &answer->value);
        break;
    case PEER_END:
        break;
    }
}

int gpu_peer_run(int socket)
{
    static struct peer peer;
    static struct peer_answer answer;
    struct peer_message message;
    int started = start(&peer);

    while (recv(socket, &message, sizeof message, MSG_WAITALL) == (ssize_t)sizeof message &&
           message.order != PEER_END) {
        answer = (struct peer_answer){.status = started};
        if (started == 0)
            obey(&peer, &message, &answer);
        if (send(socket, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer)
            break;
    }
    return started == 0 ? 0 : 1;
}

bool gpu_peer_tell(int socket, struct peer_message message, struct peer_answer *answer)
{
    return send(socket, &message, sizeof message, MSG_NOSIGNAL) == (ssize_t)sizeof message &&
           recv(socket, answer, sizeof *answer, MSG_WAITALL) == (ssize_t)sizeof *answer;
}
