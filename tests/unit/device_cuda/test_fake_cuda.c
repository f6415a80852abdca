/* SPDX-License-Identifier: Apache-2.0 */

/* The fake finds the mistakes that it is there for, whatever the timing; and none in what is right.
 */

#include "tests/support/fake_cuda/fake_cuda.h"

#include <signal.h>
#include <stdlib.h>

#include "tests/support/leak_check.h"
#include "tests/unit/device_cuda/gpu_engine.h"

TestSuite(fake_cuda, .fini = leak_check);

enum { BLOCKS = 4, PIECE = 512 };

static const struct gpu_layout layout = {1, BLOCKS, PIECE, 0};

static struct gpu_engine engine;
static struct cuda_stream *other;
static void *pinned;

static void start(uint64_t seed)
{
    struct fake_cuda_config config = fake_cuda_default();

    config.seed = seed;
    fake_cuda_reset(config);
    fake_cuda_keep_faults(true);
    engine = engine_start(layout);
    cr_assert(eq(int, engine.driver.stream_create(&other, CUDA_STREAM_NON_BLOCKING, 0), 0));
    cr_assert(eq(int, engine.driver.host_alloc(&pinned, BLOCKS * PIECE, 0), 0));
}

static uint64_t host_at(uint32_t block)
{
    return (uintptr_t)pinned + block * PIECE;
}

static int batch(uint64_t *targets, uint64_t *sources, size_t count, int order)
{
    struct cuda_copy_attributes attributes = {.source_order = order};
    size_t sizes[] = {PIECE, PIECE, PIECE, PIECE}, first = 0, failed;

    return engine.driver.copy_batch(targets, sources, sizes, count, &attributes, &first, 1, &failed,
                                    other);
}

Test(fake_cuda, a_copy_that_waits_for_the_writers_event_is_right)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        start(seed);
        engine_computes(&engine, 2, 'x');

        engine.driver.stream_wait_event(other, engine.event, 0);
        engine.driver.copy(host_at(0), engine_piece(&engine, 0, 2), PIECE, other);
        engine.driver.stream_synchronize(other);

        cr_assert(eq(str, (char *)fake_cuda_fault(), ""));
        cr_assert(eq(chr, ((char *)pinned)[PIECE - 1], 'x'));
        fake_cuda_touch(pinned, PIECE, true);
        cr_assert(eq(str, (char *)fake_cuda_fault(), ""));
    }
}

Test(fake_cuda, a_copy_that_does_not_wait_for_the_writer_is_found)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        start(seed);
        engine_computes(&engine, 2, 'x');

        engine.driver.copy(host_at(0), engine_piece(&engine, 0, 2), PIECE, other);

        cr_assert(eq(str, (char *)fake_cuda_fault(),
                     "a copy reads what a copy has not written yet: nothing orders them"));
        engine.driver.stream_synchronize(other);
    }
}

Test(fake_cuda, an_event_that_was_recorded_too_early_orders_nothing)
{
    start(1);
    engine_computes(&engine, 1, 'x'); /* records */
    uint8_t bytes[PIECE] = {0};
    engine.driver.copy(engine_piece(&engine, 0, 2), (uintptr_t)bytes, PIECE, engine.stream);

    engine.driver.stream_wait_event(other, engine.event, 0);
    engine.driver.copy(host_at(0), engine_piece(&engine, 0, 2), PIECE, other);

    cr_assert(eq(str, (char *)fake_cuda_fault(),
                 "a copy reads what a copy has not written yet: nothing orders them"));
}

Test(fake_cuda, blocks_that_are_used_again_before_a_copy_is_done_are_found)
{
    start(1);
    engine_computes(&engine, 2, 'x');
    engine.driver.stream_wait_event(other, engine.event, 0);
    engine.driver.copy(host_at(0), engine_piece(&engine, 0, 2), PIECE, other);

    engine_computes(&engine, 2, 'y');

    cr_assert(eq(str, (char *)fake_cuda_fault(),
                 "a copy writes what a copy still reads: nothing orders them"));
}

Test(fake_cuda, copies_of_one_batch_that_overlap_are_found)
{
    start(1);
    uint64_t targets[] = {engine.pages, engine.pages + PIECE / 2},
             sources[] = {host_at(0), host_at(1)};

    cr_assert(eq(int, batch(targets, sources, 2, CUDA_SOURCE_ANY), 0));

    cr_assert(eq(str, (char *)fake_cuda_fault(),
                 "a batch and a batch of one operation overlap: they have no order"));
}

Test(fake_cuda, the_copies_of_a_batch_go_in_any_order)
{
    bool was_first = false, was_last = false;

    for (uint64_t seed = 0; seed < 200 && !(was_first && was_last); seed++) {
        start(seed);
        fake_cuda_keep_faults(true);
        memset(pinned, 'a', PIECE);
        memset((char *)pinned + PIECE, 'b', PIECE);
        uint64_t targets[] = {engine.pages, engine.pages}, sources[] = {host_at(0), host_at(1)};

        cr_assert(eq(int, batch(targets, sources, 2, CUDA_SOURCE_ANY), 0));
        engine.driver.stream_synchronize(other);

        was_first |= *(char *)(uintptr_t)engine.pages == 'b';
        was_last |= *(char *)(uintptr_t)engine.pages == 'a';
    }

    cr_assert(was_first && was_last);
}

Test(fake_cuda, hbm_read_at_any_time_is_found_even_behind_an_event)
{
    start(1);
    engine_computes(&engine, 2, 'x');
    engine.driver.stream_wait_event(other, engine.event, 0);
    uint64_t targets[] = {host_at(0)}, sources[] = {engine_piece(&engine, 0, 2)};

    cr_assert(eq(int, batch(targets, sources, 1, CUDA_SOURCE_ANY), 0));

    cr_assert(eq(str, (char *)fake_cuda_fault(),
                 "a batch reads what a copy has not written yet: nothing orders them"));
}

Test(fake_cuda, hbm_that_was_never_written_is_found)
{
    start(1);

    engine.driver.copy(host_at(0), engine_piece(&engine, 0, 3), PIECE, other);

    cr_assert(eq(str, (char *)fake_cuda_fault(), "a copy reads HBM that was never written"));
}

Test(fake_cuda, memory_that_is_freed_under_a_copy_is_found)
{
    start(1);
    fake_cuda_hold(other, true);
    engine.driver.copy(engine.pages, host_at(0), PIECE, other);

    engine.driver.mem_free(engine.pages);

    cr_assert(
        eq(str, (char *)fake_cuda_fault(), "memory is freed while something under way uses it"));
}

Test(fake_cuda, pages_that_the_host_takes_back_too_early_are_found)
{
    start(1);
    engine.driver.copy(engine.pages, host_at(0), PIECE, other);

    fake_cuda_touch(pinned, 1, true);

    cr_assert(eq(str, (char *)fake_cuda_fault(), "the host writes what something under way uses"));
}

Test(fake_cuda, a_copy_over_two_registrations_is_found)
{
    start(1);
    char *page = aligned_alloc(4096, 8192);
    cr_assert(eq(int, engine.driver.host_register(page, 4096, CUDA_HOST_PORTABLE), 0));
    cr_assert(eq(int, engine.driver.host_register(page + 4096, 4096, CUDA_HOST_PORTABLE), 0));

    engine.driver.copy(engine.pages, (uintptr_t)page + 4096 - 1, 2, other);

    cr_assert(eq(str, (char *)fake_cuda_fault(), "a copy crosses the border of an allocation"));
    engine.driver.stream_synchronize(other);
    free(page);
}

Test(fake_cuda, a_fault_ends_the_process, .signal = SIGABRT)
{
    start(1);
    fake_cuda_keep_faults(false);

    engine.driver.copy(host_at(0), engine_piece(&engine, 0, 3), PIECE, other);
}
