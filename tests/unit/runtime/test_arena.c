/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/arena.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdalign.h>
#include <stdint.h>

#include "tests/support/leak_check.h"

TestSuite(arena, .fini = leak_check);

Test(arena, pieces_of_any_size_are_aligned_and_do_not_overlap)
{
    enum { PIECE_COUNT = 500 };
    struct arena arena;
    unsigned char *pieces[PIECE_COUNT];
    arena_init(&arena, 1 << 20);

    for (size_t i = 0; i < PIECE_COUNT; i++) {
        pieces[i] = arena_alloc(&arena, i);
        cr_assert(ne(ptr, pieces[i], NULL));
        cr_assert(eq(sz, (uintptr_t)pieces[i] % alignof(max_align_t), 0));
        memset(pieces[i], (int)(i & 255), i);
    }

    for (size_t i = 0; i < PIECE_COUNT; i++)
        for (size_t j = 0; j < i; j++)
            cr_assert(eq(u8, pieces[i][j], i & 255));
    arena_release(&arena);
}

Test(arena, a_piece_larger_than_a_chunk_gets_a_chunk_of_its_own)
{
    struct arena arena;
    arena_init(&arena, 1 << 20);

    char *large = arena_alloc(&arena, 100000);

    cr_assert(ne(ptr, large, NULL));
    memset(large, 1, 100000);
    arena_release(&arena);
}

Test(arena, the_limit_refuses_and_what_was_given_stays_good)
{
    struct arena arena;
    arena_init(&arena, 10000);
    struct slice kept = arena_copy(&arena, SLICE("kept"));

    void *refused = arena_alloc(&arena, 10001);
    void *refused_in_a_new_chunk = arena_alloc(&arena, 9990);

    cr_assert(eq(ptr, refused, NULL));
    cr_assert(eq(ptr, refused_in_a_new_chunk, NULL));
    cr_assert(slice_eq(kept, SLICE("kept")));
    arena_release(&arena);
}

Test(arena, no_size_wraps_around_the_limit)
{
    struct arena arena;
    arena_init(&arena, SIZE_MAX);

    cr_assert(eq(ptr, arena_alloc(&arena, SIZE_MAX), NULL));
    cr_assert(eq(ptr, arena_alloc(&arena, SIZE_MAX - 8), NULL));
    arena_release(&arena);
}

Test(arena, a_copy_is_terminated_and_its_own)
{
    struct arena arena;
    char text[] = "model";
    arena_init(&arena, 4096);

    struct slice copy = arena_copy(&arena, slice_of(text, 3));
    text[0] = 'X';

    cr_assert(slice_eq(copy, SLICE("mod")));
    cr_assert(eq(chr, copy.ptr[copy.len], '\0'));
    arena_release(&arena);
}

Test(arena, release_may_come_twice_and_the_arena_goes_on)
{
    struct arena arena;
    arena_init(&arena, 8192);
    cr_assert(ne(ptr, arena_alloc(&arena, 4096), NULL));

    arena_release(&arena);
    arena_release(&arena);

    cr_assert(ne(ptr, arena_alloc(&arena, 4096), NULL));
    arena_release(&arena);
}
