/* SPDX-License-Identifier: Apache-2.0 */

/*
 * arena: memory of one request, released all at once. Grows in chunks; no single piece is freed.
 * One thread at a time.
 */
#ifndef BACKENDS_RUNTIME_ARENA_H
#define BACKENDS_RUNTIME_ARENA_H

#include <stddef.h>

#include "backends/runtime/slice.h"

struct arena_chunk;

struct arena {
    struct arena_chunk *chunks; /* newest first */
    size_t used;                /* bytes of the newest chunk that are taken */
    size_t bytes_max;           /* of all chunks together */
    size_t bytes;
};

/* Takes no memory yet. bytes_max is a limit on the whole arena. */
void arena_init(struct arena *arena, size_t bytes_max);

/* size bytes aligned for any type, not zeroed; NULL when that would pass bytes_max. */
void *arena_alloc(struct arena *arena, size_t size);

/* A copy of slice in the arena, NUL-terminated beyond its length; ptr is NULL when full. */
struct slice arena_copy(struct arena *arena, struct slice slice);

/* Frees everything; the arena is empty and may be used again. */
void arena_release(struct arena *arena);

#endif
