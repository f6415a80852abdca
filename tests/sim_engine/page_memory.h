/* SPDX-License-Identifier: Apache-2.0 */

/*
 * page_memory: the engine's KV memory: a sealed memfd with a page for each cache block, all layers'
 * parts of a block apart from each other as in vLLM. What a page must hold follows from the name of
 * its block, that is from all tokens up to its end: a page that is another block's, stale or half
 * written is told from a right one. One thread at a time.
 */
#ifndef TESTS_SIM_ENGINE_PAGE_MEMORY_H
#define TESTS_SIM_ENGINE_PAGE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

struct page_memory;

enum {
    PAGE_LAYER_COUNT = 4,
    PAGE_LINE_BYTES = 64,
    PAGE_GRAIN_BYTES = PAGE_LAYER_COUNT * PAGE_LINE_BYTES, /* a page is a multiple of it */
};

/* -errno: the system has no such memory to give. */
MUST_CHECK int page_memory_create(uint32_t block_count, uint32_t page_bytes,
                                  struct page_memory **memory);
void page_memory_destroy(struct page_memory *memory);

/* Of the memfd; the memory's for its life. Part p of block b is layer_bytes at
 * p * layer_stride + b * layer_bytes. */
int page_memory_fd(const struct page_memory *memory);
uint64_t page_memory_bytes(const struct page_memory *memory);
uint32_t page_memory_block_count(const struct page_memory *memory);
uint64_t page_memory_layer_bytes(const struct page_memory *memory);
uint64_t page_memory_layer_stride(const struct page_memory *memory);

/* Fills the page of block with what a block of that name must hold. */
void page_memory_write(struct page_memory *memory, uint32_t block, uint64_t name);

/* Whether it holds that, to the byte. */
bool page_memory_holds(const struct page_memory *memory, uint32_t block, uint64_t name);

#endif
