/* SPDX-License-Identifier: Apache-2.0 */

/*
 * huge_array: memory of large arrays that are looked up at random: begins at a cache line, and lies
 * in huge pages where the kernel gives some.
 */
#ifndef BACKENDS_RUNTIME_HUGE_ARRAY_H
#define BACKENDS_RUNTIME_HUGE_ARRAY_H

#include <stddef.h>

/* count items, zeroed; count may be 0. Freed by free(). NULL: no memory. */
void *huge_array_alloc(size_t count, size_t item_bytes);

#endif
