/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>

/* The first chunk is small, since thousands of idle streams keep theirs; then they double. Less
 * malloc's own header, so that the largest stay within a page. */
enum { ARENA_CHUNK_BYTES_MIN = 512 - 16, ARENA_CHUNK_BYTES_MAX = 4096 - 16 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t size;
    alignas(max_align_t) char bytes[];
};

void arena_init(struct arena *arena, size_t bytes_max)
{
    *arena = (struct arena){.bytes_max = bytes_max};
}

static size_t chunk_bytes_after(const struct arena_chunk *newest)
{
    size_t bytes = ARENA_CHUNK_BYTES_MIN;

    if (newest != NULL)
        bytes = 2 * (newest->size + sizeof *newest);
    return bytes < ARENA_CHUNK_BYTES_MAX ? bytes : ARENA_CHUNK_BYTES_MAX;
}

static struct arena_chunk *add_chunk(struct arena *arena, size_t size)
{
    size_t left = arena->bytes_max - arena->bytes;
    size_t chunk_size = chunk_bytes_after(arena->chunks) - sizeof(struct arena_chunk);
    struct arena_chunk *chunk;

    if (size > left)
        return NULL;
    chunk_size = chunk_size < left ? chunk_size : left;
    chunk_size = chunk_size > size ? chunk_size : size;
    chunk = malloc(sizeof *chunk + chunk_size);
    if (chunk == NULL)
        return NULL;
    chunk->size = chunk_size;
    chunk->next = arena->chunks;
    arena->chunks = chunk;
    arena->used = 0;
    arena->bytes += chunk_size;
    return chunk;
}

void *arena_alloc(struct arena *arena, size_t size)
{
    struct arena_chunk *chunk = arena->chunks;
    void *piece;

    if (size > arena->bytes_max || size > SIZE_MAX / 2) /* neither sum below wraps */
        return NULL;
    size = (size + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
    if (chunk == NULL || chunk->size - arena->used < size)
        chunk = add_chunk(arena, size);
    if (chunk == NULL)
        return NULL;
    piece = chunk->bytes + arena->used;
    arena->used += size;
    return piece;
}

struct slice arena_copy(struct arena *arena, struct slice slice)
{
    char *copy = arena_alloc(arena, slice.len + 1);

    if (copy == NULL)
        return (struct slice){NULL, 0};
    if (slice.len > 0)
        memcpy(copy, slice.ptr, slice.len);
    copy[slice.len] = '\0';
    return slice_of(copy, slice.len);
}

void arena_release(struct arena *arena)
{
    while (arena->chunks != NULL) {
        struct arena_chunk *next = arena->chunks->next;

        free(arena->chunks);
        arena->chunks = next;
    }
    arena->used = 0;
    arena->bytes = 0;
}
