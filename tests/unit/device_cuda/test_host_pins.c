/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/host_pins.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/leak_check.h"
#include "tests/unit/device_cuda/gpu_engine.h"

TestSuite(host_pins, .fini = leak_check);

enum { CHUNK = 8192 };

static struct cuda_driver driver;
static struct host_pins *pins;

static void start(struct fake_cuda_config config)
{
    struct cuda_context *context;
    char why[DEVICE_WHY_BYTES];

    fake_cuda_reset(config);
    cr_assert(eq(int, cuda_driver_load(&driver, why), 0), "%s", why);
    cr_assert(eq(int, driver.context_retain(&context, 0), 0));
    pins = host_pins_create(
        (struct host_pins_config){.driver = &driver, .context = context, .chunk_bytes = CHUNK});
}

static void finish(void)
{
    host_pins_destroy(pins);
    cuda_driver_unload(&driver);
    cr_assert(eq(sz, fake_cuda_counts().registrations, 0));
}

static char *add(size_t len)
{
    char *arena = aligned_alloc(4096, (len + 4095) / 4096 * 4096);

    cr_assert(eq(int, host_pins_add(pins, arena, len), 0));
    return arena;
}

static void await_bytes(uint64_t bytes)
{
    while (host_pins_stats(pins).pinned_bytes < bytes)
        usleep(100);
}

Test(host_pins, the_last_chunk_may_be_short)
{
    start(fake_cuda_default());
    char *arena = add(2 * CHUNK + 100);
    await_bytes(2 * CHUNK + 100);

    struct host_view view = host_view_acquire(pins);

    cr_assert(eq(sz, fake_cuda_counts().registrations, 3));
    cr_assert(eq(sz, host_view_span(&view, arena).bytes, CHUNK));
    cr_assert(eq(sz, host_view_span(&view, arena + CHUNK - 1).bytes, 1));
    cr_assert(eq(sz, host_view_span(&view, arena + 2 * CHUNK + 1).bytes, 99));
    cr_assert(host_view_span(&view, arena + 2 * CHUNK + 99).is_pinned);
    cr_assert(eq(sz, host_view_span(&view, arena + 2 * CHUNK + 100).bytes, SIZE_MAX));
    cr_assert(not(host_view_span(&view, arena - 1).is_pinned));
    host_view_return(&view);
    host_pins_remove(pins, arena);
    free(arena);
    finish();
}

/* Copies of one layout go on while the arena of another is taken away. */
Test(host_pins, a_view_stays_good_when_another_arena_is_removed)
{
    start(fake_cuda_default());
    char *ours = add(CHUNK), *theirs = add(CHUNK);
    await_bytes(2 * CHUNK);
    struct host_view view = host_view_acquire(pins);

    host_pins_remove(pins, theirs);
    free(theirs);

    cr_assert(host_view_span(&view, ours).is_pinned);
    host_view_return(&view);
    host_pins_remove(pins, ours);
    free(ours);
    finish();
}

Test(host_pins, a_chunk_that_is_refused_is_counted_and_the_next_one_tried)
{
    start(fake_cuda_default());
    fake_cuda_fail("cuMemHostRegister", CUDA_OUT_OF_MEMORY, 1);

    char *arena = add(4 * CHUNK);
    await_bytes(3 * CHUNK);

    struct host_view view = host_view_acquire(pins);
    cr_assert(host_view_span(&view, arena).is_pinned);
    cr_assert(not(host_view_span(&view, arena + CHUNK).is_pinned));
    cr_assert(host_view_span(&view, arena + 2 * CHUNK).is_pinned);
    cr_assert(eq(u64, host_pins_stats(pins).failed_chunks, 1));
    host_view_return(&view);
    host_pins_remove(pins, arena);
    free(arena);
    finish();
}

Test(host_pins, more_arenas_than_there_is_room_for_are_refused)
{
    char *arenas[HOST_PINS_ARENAS_MAX], *one_more = aligned_alloc(4096, CHUNK);
    start(fake_cuda_default());
    for (size_t i = 0; i < HOST_PINS_ARENAS_MAX; i++)
        arenas[i] = add(CHUNK);

    cr_assert(eq(int, host_pins_add(pins, one_more, CHUNK), -ENOSPC));
    host_pins_remove(pins, one_more);

    for (size_t i = 0; i < HOST_PINS_ARENAS_MAX; i++) {
        host_pins_remove(pins, arenas[i]);
        free(arenas[i]);
    }
    free(one_more);
    finish();
}
