/* SPDX-License-Identifier: Apache-2.0 */

/*
 * host_pins: pins arenas of ours for the GPUs of this node, in pieces, in the background. One
 * registration of all would fail from 512 GiB on, and would keep everybody waiting for minutes.
 * Add and remove: loop thread. Views: any thread, between add and remove.
 */
#ifndef KVTIER_DEVICE_HOST_PINS_H
#define KVTIER_DEVICE_HOST_PINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

struct cuda_context;
struct cuda_driver;
struct host_pins;

enum { HOST_PINS_ARENAS_MAX = 16 };

struct host_pins_config {
    const struct cuda_driver *driver;
    struct cuda_context *context; /* a pin is known to all contexts; it is made in one */
    size_t chunk_bytes;           /* a multiple of a memory page */
};

struct host_pins_stats {
    uint64_t pinned_bytes;
    uint64_t failed_chunks; /* copied as pageable memory */
};

/* NULL: no memory. */
struct host_pins *host_pins_create(struct host_pins_config config);
/* Every arena must have been removed. NULL is fine. */
void host_pins_destroy(struct host_pins *pins);

/* Begins to pin; bytes is aligned to a memory page. -ENOSPC: too many arenas; -ENOMEM. Where no
 * thread can be had it is never pinned, and counted. */
MUST_CHECK int host_pins_add(struct host_pins *pins, void *bytes, size_t len);
/* Waits for a chunk that is being pinned, then unpins. No copy may use it any more. An arena that
 * was refused is fine. */
void host_pins_remove(struct host_pins *pins, void *bytes);

struct host_pins_stats host_pins_stats(const struct host_pins *pins);

/* All arenas that there are now, for a copy to look up many places without a lock. It stays good
 * when another copy's arena is removed meanwhile. */
struct host_view {
    struct host_arena *arenas[HOST_PINS_ARENAS_MAX];
    uint32_t arena_count;
    bool is_pinned_elsewhere; /* what is in no arena was allocated pinned */
};

/* From a place on, what is pinned or not as one: a copy may not reach beyond it. */
struct host_span {
    size_t bytes; /* until the chunk's end; SIZE_MAX: of no arena */
    bool is_pinned;
};

struct host_view host_view_acquire(struct host_pins *pins);
void host_view_return(struct host_view *view);
struct host_span host_view_span(const struct host_view *view, const void *at);

#endif
