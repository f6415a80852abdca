/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/host_pins.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "kvtier/device/cuda_driver.h"

/*
 * DESIGN
 *
 *   arena:  | chunk 0: pinned | chunk 1: pinned | chunk 2: being pinned | chunk 3: not yet |
 *
 * One thread an arena pins chunk after chunk and ends. A chunk goes from false to true once, by an
 * atomic, and stays: whoever saw it pinned may rely on it until the arena is removed.
 *
 * A copy never crosses a border between chunks, be they pinned or not: the driver knows each as an
 * allocation of its own. A chunk that cannot be pinned (locked memory is limited, or the GPU's
 * tables are full) stays pageable and is counted. That leaves nothing behind: the driver's own
 * interface has no error that sticks, unlike the runtime's, which is not used here.
 */

struct host_arena {
    struct host_pins *pins;
    uint32_t references; /* atomic: pins' own until it is removed, and each view's */
    uint8_t *bytes;
    size_t len;
    size_t chunk_bytes;
    size_t chunk_count;
    pthread_t thread;
    bool has_thread;
    bool is_ending;   /* atomic */
    bool is_pinned[]; /* atomic, by chunk */
};

struct host_pins {
    struct host_pins_config config;
    pthread_mutex_t lock;
    struct host_arena *arenas[HOST_PINS_ARENAS_MAX]; /* by lock */
    uint32_t arena_count;                            /* by lock */
    struct host_pins_stats stats;                    /* atomic */
};

static size_t chunk_len(const struct host_arena *arena, size_t chunk)
{
    size_t left = arena->len - chunk * arena->chunk_bytes;

    return left < arena->chunk_bytes ? left : arena->chunk_bytes;
}

/* ---- pinning ---- */

static void pin_chunk(struct host_arena *arena, size_t chunk)
{
    struct host_pins *pins = arena->pins;
    size_t len = chunk_len(arena, chunk);
    int result = pins->config.driver->host_register(arena->bytes + chunk * arena->chunk_bytes, len,
                                                    CUDA_HOST_PORTABLE);

    if (result != 0) {
        __atomic_fetch_add(&pins->stats.failed_chunks, 1, __ATOMIC_RELAXED);
        return;
    }
    /* In this order: what is counted as pinned is copied as pinned. */
    __atomic_store_n(&arena->is_pinned[chunk], true, __ATOMIC_RELEASE);
    __atomic_fetch_add(&pins->stats.pinned_bytes, len, __ATOMIC_RELEASE);
}

static void *pin_arena(void *arg)
{
    struct host_arena *arena = arg;
    const struct host_pins_config *config = &arena->pins->config;

    if (config->driver->context_set(config->context) != 0) {
        __atomic_fetch_add(&arena->pins->stats.failed_chunks, arena->chunk_count, __ATOMIC_RELAXED);
        return NULL;
    }
    for (size_t i = 0; i < arena->chunk_count; i++) {
        if (__atomic_load_n(&arena->is_ending, __ATOMIC_RELAXED))
            break;
        pin_chunk(arena, i);
    }
    return NULL;
}

static void unpin_arena(struct host_arena *arena)
{
    struct host_pins *pins = arena->pins;

    (void)pins->config.driver->context_set(pins->config.context);
    for (size_t i = 0; i < arena->chunk_count; i++) {
        if (!arena->is_pinned[i])
            continue;
        /* Refused only by a context that is lost, and then there is no pin any more. */
        (void)pins->config.driver->host_unregister(arena->bytes + i * arena->chunk_bytes);
        __atomic_fetch_sub(&pins->stats.pinned_bytes, chunk_len(arena, i), __ATOMIC_RELAXED);
    }
}

/* ---- arenas ---- */

static struct host_arena *arena_create(struct host_pins *pins, void *bytes, size_t len)
{
    size_t chunk_bytes = pins->config.chunk_bytes;
    size_t chunk_count = (len + chunk_bytes - 1) / chunk_bytes;
    struct host_arena *arena = calloc(1, sizeof *arena + chunk_count * sizeof arena->is_pinned[0]);

    if (arena == NULL)
        return NULL;
    arena->pins = pins;
    arena->references = 1;
    arena->bytes = bytes;
    arena->len = len;
    arena->chunk_bytes = chunk_bytes;
    arena->chunk_count = chunk_count;
    return arena;
}

static void unref(struct host_arena *arena)
{
    if (__atomic_fetch_sub(&arena->references, 1, __ATOMIC_ACQ_REL) == 1)
        free(arena);
}

int host_pins_add(struct host_pins *pins, void *bytes, size_t len)
{
    struct host_arena *arena;

    assert(len > 0);

    if (pins->arena_count == HOST_PINS_ARENAS_MAX)
        return -ENOSPC;
    arena = arena_create(pins, bytes, len);
    if (arena == NULL)
        return -ENOMEM;

    pthread_mutex_lock(&pins->lock);
    pins->arenas[pins->arena_count++] = arena;
    pthread_mutex_unlock(&pins->lock);

    arena->has_thread = pthread_create(&arena->thread, NULL, pin_arena, arena) == 0;
    if (!arena->has_thread)
        __atomic_fetch_add(&pins->stats.failed_chunks, arena->chunk_count, __ATOMIC_RELAXED);
    return 0;
}

static struct host_arena *take_arena(struct host_pins *pins, const void *bytes)
{
    struct host_arena *arena = NULL;

    pthread_mutex_lock(&pins->lock);
    for (uint32_t i = 0; arena == NULL && i < pins->arena_count; i++) {
        if (pins->arenas[i]->bytes == bytes) {
            arena = pins->arenas[i];
            pins->arenas[i] = pins->arenas[--pins->arena_count];
        }
    }
    pthread_mutex_unlock(&pins->lock);
    return arena;
}

void host_pins_remove(struct host_pins *pins, void *bytes)
{
    struct host_arena *arena = take_arena(pins, bytes);

    if (arena == NULL)
        return;
    __atomic_store_n(&arena->is_ending, true, __ATOMIC_RELAXED);
    if (arena->has_thread)
        pthread_join(arena->thread, NULL);
    unpin_arena(arena);
    unref(arena);
}

/* ---- looking ---- */

struct host_view host_view_acquire(struct host_pins *pins)
{
    struct host_view view = {.is_pinned_elsewhere = false};

    pthread_mutex_lock(&pins->lock);
    view.arena_count = pins->arena_count;
    for (uint32_t i = 0; i < pins->arena_count; i++) {
        view.arenas[i] = pins->arenas[i];
        __atomic_fetch_add(&view.arenas[i]->references, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&pins->lock);
    return view;
}

void host_view_return(struct host_view *view)
{
    while (view->arena_count > 0)
        unref(view->arenas[--view->arena_count]);
}

struct host_span host_view_span(const struct host_view *view, const void *at)
{
    for (uint32_t i = 0; i < view->arena_count; i++) {
        const struct host_arena *arena = view->arenas[i];
        uintptr_t offset = (uintptr_t)at - (uintptr_t)arena->bytes; /* huge where at is below */
        size_t chunk = offset / arena->chunk_bytes;

        if (offset >= arena->len)
            continue;
        return (struct host_span){
            .bytes = chunk_len(arena, chunk) - (offset - chunk * arena->chunk_bytes),
            .is_pinned = __atomic_load_n(&arena->is_pinned[chunk], __ATOMIC_ACQUIRE)};
    }
    return (struct host_span){.bytes = SIZE_MAX, .is_pinned = view->is_pinned_elsewhere};
}

struct host_pins_stats host_pins_stats(const struct host_pins *pins)
{
    return (struct host_pins_stats){
        .pinned_bytes = __atomic_load_n(&pins->stats.pinned_bytes, __ATOMIC_ACQUIRE),
        .failed_chunks = __atomic_load_n(&pins->stats.failed_chunks, __ATOMIC_RELAXED)};
}

/* ---- life ---- */

struct host_pins *host_pins_create(struct host_pins_config config)
{
    struct host_pins *pins = calloc(1, sizeof *pins);

    assert(config.chunk_bytes > 0);

    if (pins == NULL)
        return NULL;
    pins->config = config;
    pthread_mutex_init(&pins->lock, NULL);
    return pins;
}

void host_pins_destroy(struct host_pins *pins)
{
    if (pins == NULL)
        return;
    assert(pins->arena_count == 0);
    pthread_mutex_destroy(&pins->lock);
    free(pins);
}
