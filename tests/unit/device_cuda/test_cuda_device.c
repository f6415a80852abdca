/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/cuda_device.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"
#include "tests/unit/device_cuda/gpu_engine.h"

TestSuite(cuda_device, .fini = leak_check);

enum { ARENA_BYTES = 2 << 20 };

/* Pieces that are copied one by one; small ones, many enough to be gathered; odd small ones. */
static const struct gpu_layout large = {3, 8, 100000, 0};
static const struct gpu_layout small = {20, 8, 2048, 64};
static const struct gpu_layout odd = {20, 8, 1001, 7};

static struct device *device;
static struct gpu_engine engine;
static uint8_t *arena; /* page-aligned */
static char why[DEVICE_WHY_BYTES];

static struct cuda_device_config config_of_tests(void)
{
    struct cuda_device_config config = cuda_device_default();

    config.calibrate_bytes = 0;
    config.slab_bytes = 100000; /* two pages of the small ones */
    config.pin_chunk_bytes = 1 << 20;
    return config;
}

static void create(struct cuda_device_config config)
{
    cr_assert(eq(int, cuda_device_create_with(config, &device, why), 0), "%s", why);
}

static void start(struct gpu_layout layout)
{
    fake_cuda_reset(fake_cuda_default());
    engine = engine_start(layout);
    create(config_of_tests());
    arena = aligned_alloc(4096, ARENA_BYTES);
}

static struct engine_memory *import(void)
{
    struct engine_memory *memory;

    cr_assert(eq(int, device->ops->import(device, &engine.told, &memory, why), 0), "%s", why);
    return memory;
}

static void finish(void)
{
    device->ops->destroy(device);
    engine_end(&engine);
    cr_assert(eq(sz, fake_cuda_counts().allocations, 0));
    cr_assert(eq(sz, fake_cuda_counts().opened, 0));
    cr_assert(eq(sz, fake_cuda_counts().events, 0));
    cr_assert(eq(sz, fake_cuda_counts().streams, 0));
    cr_assert(eq(sz, fake_cuda_counts().registrations, 0));
    free(arena);
}

static int copy(struct engine_memory *memory, enum copy_direction direction,
                const struct page_copy *pages, size_t count)
{
    return device->ops->copy(device, memory, direction, pages, count);
}

static void assert_all(const uint8_t *bytes, size_t len, uint8_t value)
{
    for (size_t i = 0; i < len; i++)
        cr_assert(eq(u8, bytes[i], value), "byte %zu of %zu", i, len);
}

static void assert_block(const struct gpu_layout *layout, uint32_t block, uint8_t value)
{
    for (uint32_t layer = 0; layer < layout->layers; layer++)
        assert_all(engine_bytes(&engine, layer, block), layout->piece_bytes, value);
}

/* ---- copies ---- */

/* Blocks that the engine is still computing come out complete; blocks that it is still using take
 * what goes in after that. */
static void round_trip(struct gpu_layout layout, enum copy_way way)
{
    start(layout);
    struct engine_memory *memory = import();
    uint32_t page = gpu_layout_page(layout);
    struct page_copy out[4], in[4];
    struct cuda_device_stats stats;
    for (uint32_t i = 0; i < 4; i++) {
        out[i] = (struct page_copy){arena + i * page, 7 - i};
        in[i] = (struct page_copy){arena + (3 - i) * page, i};
        engine_computes(&engine, 7 - i, (uint8_t)(i + 1));
    }

    cr_assert(eq(int, copy(memory, COPY_FROM_ENGINE, out, 4), 0));
    for (uint32_t i = 0; i < 4; i++)
        engine_computes(&engine, i, 0xee);
    cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, in, 4), 0));

    for (uint32_t i = 0; i < 4; i++) {
        assert_all(arena + i * page, page, (uint8_t)(i + 1));
        assert_block(&layout, i, (uint8_t)(4 - i));
        assert_block(&layout, 7 - i, (uint8_t)(i + 1));
    }
    stats = cuda_device_stats(device);
    cr_assert(eq(u64, stats.copies[way], 2));
    cr_assert(eq(u64, stats.pages[way], 8));
    cr_assert(eq(u64, stats.bytes[way], 8 * (uint64_t)page));
    cr_assert(eq(u64, stats.ungathered_copies, 0));
    engine_memory_unref(&memory);
    finish();
}

Test(cuda_device, large_pieces_go_one_by_one)
{
    round_trip(large, COPY_BATCH);
}

Test(cuda_device, small_pieces_are_gathered)
{
    round_trip(small, COPY_GATHER);
}

Test(cuda_device, pieces_of_odd_sizes_are_gathered_too)
{
    round_trip(odd, COPY_GATHER);
}

Test(cuda_device, few_small_pieces_are_not_gathered)
{
    start(small);
    struct engine_memory *memory = import();
    engine_computes(&engine, 1, 7);
    struct page_copy page = {arena, 1};

    cr_assert(eq(int, copy(memory, COPY_FROM_ENGINE, &page, 1), 0));

    assert_all(arena, gpu_layout_page(small), 7);
    cr_assert(eq(u64, cuda_device_stats(device).pages[COPY_BATCH], 1));
    engine_memory_unref(&memory);
    finish();
}

Test(cuda_device, blocks_side_by_side_become_one_copy)
{
    start((struct gpu_layout){1, 8, 64, 0});
    struct engine_memory *memory = import();
    struct page_copy pages[] = {{arena, 2}, {arena + 64, 3}, {arena + 128, 4}, {arena + 256, 5}};
    for (uint32_t i = 2; i < 6; i++)
        engine_computes(&engine, i, (uint8_t)i);
    size_t before = fake_cuda_counts().copies;

    cr_assert(eq(int, copy(memory, COPY_FROM_ENGINE, pages, 4), 0));

    cr_assert(eq(sz, fake_cuda_counts().copies - before, 2));
    for (uint32_t i = 0; i < 4; i++)
        assert_all(pages[i].host, 64, (uint8_t)(i + 2));
    engine_memory_unref(&memory);
    finish();
}

Test(cuda_device, a_block_in_many_adjacent_layers_is_one_piece)
{
    start(large);
    for (uint32_t i = 0; i < 3; i++) {
        engine.told.layout.segments[i].offset = i * 100;
        engine.told.layout.segments[i].stride = 300;
        engine.told.layout.segments[i].bytes = 100;
    }
    struct engine_memory *memory = import();
    struct page_copy page = {arena, 0};
    cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, &page, 1), 0));
    size_t before = fake_cuda_counts().copies;

    cr_assert(eq(int, copy(memory, COPY_FROM_ENGINE, &page, 1), 0));

    cr_assert(eq(sz, fake_cuda_counts().copies - before, 1));
    engine_memory_unref(&memory);
    finish();
}

/* The slab and the list of blocks are used many times within one job. */
Test(cuda_device, a_job_larger_than_the_slab_is_whole)
{
    start(small);
    struct engine_memory *memory = import();
    uint32_t page = gpu_layout_page(small);
    struct page_copy pages[8];
    for (uint32_t i = 0; i < 8; i++) {
        pages[i] = (struct page_copy){arena + i * page, i};
        engine_computes(&engine, i, (uint8_t)(i + 1));
    }

    cr_assert(eq(int, copy(memory, COPY_FROM_ENGINE, pages, 8), 0));

    cr_assert(eq(sz, fake_cuda_counts().launches, 4));
    for (uint32_t i = 0; i < 8; i++)
        assert_all(pages[i].host, page, (uint8_t)(i + 1));
    engine_memory_unref(&memory);
    finish();
}

Test(cuda_device, a_driver_without_batches_copies_each)
{
    struct fake_cuda_config old = fake_cuda_default();
    old.version = 12020;
    fake_cuda_reset(old);
    engine = engine_start(large);
    create(config_of_tests());
    arena = aligned_alloc(4096, ARENA_BYTES);
    cr_assert(eq(int, device->ops->register_host(device, arena, ARENA_BYTES), 0));
    struct engine_memory *memory = import();
    engine_computes(&engine, 5, 9);
    struct page_copy page = {arena, 5};

    cr_assert(eq(int, copy(memory, COPY_FROM_ENGINE, &page, 1), 0));

    assert_all(arena, gpu_layout_page(large), 9);
    cr_assert(eq(sz, fake_cuda_counts().batches, 0));
    device->ops->unregister_host(device, arena);
    engine_memory_unref(&memory);
    finish();
}

/* ---- waiting for the engine ---- */

struct waiting_copy {
    struct engine_memory *memory;
    struct page_copy page;
    enum copy_direction direction;
    int status;
    bool is_done; /* atomic */
};

static void *run_copy(void *arg)
{
    struct waiting_copy *waiting = arg;

    waiting->status = copy(waiting->memory, waiting->direction, &waiting->page, 1);
    __atomic_store_n(&waiting->is_done, true, __ATOMIC_RELEASE);
    return NULL;
}

static void waits(enum copy_direction direction)
{
    start(large);
    struct waiting_copy waiting = {.memory = import(), .page = {arena, 3}, .direction = direction};
    memset(arena, 2, gpu_layout_page(large));
    pthread_t thread;
    size_t before;
    fake_cuda_hold(engine.stream, true); /* computing goes on */
    engine_computes(&engine, 3, 1);
    before = fake_cuda_counts().copies;

    pthread_create(&thread, NULL, run_copy, &waiting);
    usleep(20000);
    bool was_done = __atomic_load_n(&waiting.is_done, __ATOMIC_ACQUIRE);
    size_t begun = fake_cuda_counts().copies - before;
    fake_cuda_hold(engine.stream, false);
    fake_cuda_settle();
    pthread_join(thread, NULL);

    cr_assert(not(was_done));
    cr_assert(eq(sz, begun, 0));
    engine_memory_unref(&waiting.memory);
    finish();
}

Test(cuda_device, a_save_waits_for_the_engines_stream)
{
    waits(COPY_FROM_ENGINE);
}

Test(cuda_device, a_load_waits_for_the_engines_stream)
{
    waits(COPY_TO_ENGINE);
}

Test(cuda_device, an_engine_that_never_gets_there_fails_the_copy_and_nothing_else)
{
    fake_cuda_reset(fake_cuda_default());
    engine = engine_start(large);
    struct cuda_device_config config = config_of_tests();
    config.engine_wait_ms_max = 10;
    create(config);
    arena = aligned_alloc(4096, ARENA_BYTES);
    struct engine_memory *memory = import();
    struct page_copy page = {arena, 3};
    fake_cuda_hold(engine.stream, true);
    cr_assert(eq(int, engine.driver.event_record(engine.event, engine.stream), 0));
    size_t before = fake_cuda_counts().copies;

    cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, &page, 1), -EIO));

    cr_assert(eq(sz, fake_cuda_counts().copies, before));
    cr_assert(eq(u64, cuda_device_stats(device).engine_waits_expired, 1));
    fake_cuda_hold(engine.stream, false);
    fake_cuda_settle();
    cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, &page, 1), 0));
    engine_memory_unref(&memory);
    finish();
}

Test(cuda_device, an_engine_without_an_event_has_waited_itself)
{
    start(large);
    memset(engine.told.event_handle, 0, sizeof engine.told.event_handle);
    struct engine_memory *memory = import();
    engine_computes(&engine, 0, 4);
    cr_assert(eq(int, engine.driver.stream_synchronize(engine.stream), 0));
    struct page_copy page = {arena, 0};

    cr_assert(eq(int, copy(memory, COPY_FROM_ENGINE, &page, 1), 0));

    assert_all(arena, gpu_layout_page(large), 4);
    engine_memory_unref(&memory);
    finish();
}

/* ---- imports ---- */

Test(cuda_device, an_allocation_is_imported_once_for_two_engines_and_all_regions)
{
    start(large);
    struct page_layout *layout = &engine.told.layout;
    uint64_t whole = layout->region_bytes[0];
    layout->region_count = 2; /* the last layer apart */
    layout->region_bytes[0] = layout->segments[2].offset;
    layout->region_bytes[1] = whole - layout->segments[2].offset;
    engine.told.handle_offsets[1] = layout->segments[2].offset;
    layout->segments[2].offset = 0;
    layout->segments[2].region = 1;
    memcpy(engine.told.handles[1], engine.told.handles[0], DEVICE_HANDLE_BYTES);

    struct engine_memory *first = import(), *second = import();

    cr_assert(eq(sz, fake_cuda_counts().opened, 1));
    cr_assert(eq(u32, cuda_device_stats(device).allocations, 1));
    engine_memory_unref(&first);
    cr_assert(eq(sz, fake_cuda_counts().opened, 1));
    layout->segments[2] = (struct page_segment){
        .offset = engine.told.handle_offsets[1], .stride = 100000, .bytes = 100000};
    engine_computes(&engine, 6, 8); /* as one region again */
    struct page_copy page = {arena, 6};
    cr_assert(eq(int, copy(second, COPY_FROM_ENGINE, &page, 1), 0));
    assert_all(arena, gpu_layout_page(large), 8);
    engine_memory_unref(&second);
    cr_assert(eq(sz, fake_cuda_counts().opened, 0));
    finish();
}

Test(cuda_device, a_region_beyond_its_allocation_is_refused)
{
    start(large);
    struct engine_memory *memory;
    engine.told.handle_offsets[0] = 1;

    cr_assert(eq(int, device->ops->import(device, &engine.told, &memory, why), -EINVAL));

    cr_assert(
        eq(str, why, "region 0 (2400000 bytes at 1) reaches out of its allocation of 2400000"));
    engine.told.handle_offsets[0] = UINT64_MAX;
    cr_assert(eq(int, device->ops->import(device, &engine.told, &memory, why), -EINVAL));
    cr_assert(eq(sz, fake_cuda_counts().opened, 0));
    finish();
}

Test(cuda_device, what_is_no_handle_is_refused)
{
    start(large);
    struct engine_memory *memory;
    struct engine_export told = engine.told;
    memset(told.handles[0], 0x55, DEVICE_HANDLE_BYTES);

    cr_assert(eq(int, device->ops->import(device, &told, &memory, why), -EINVAL));

    cr_assert(eq(str, why, "fake GPU 0: an IPC handle cannot be opened: CUDA_ERROR_FAKE"));
    told = engine.told;
    memset(told.event_handle, 0x55, DEVICE_HANDLE_BYTES);
    cr_assert(eq(int, device->ops->import(device, &told, &memory, why), -EINVAL));
    cr_assert(eq(str, why,
                 "the engine's event cannot be opened: CUDA_ERROR_FAKE (do both see one "
                 "/dev/shm?)"));
    told = engine.told;
    told.uuid[3]++;
    cr_assert(eq(int, device->ops->import(device, &told, &memory, why), -ENODEV));
    cr_assert(eq(str, why, "the engine's GPU is not among ours (by UUID)"));
    told = engine.told;
    told.layout.segments[1].bytes = UINT64_MAX;
    cr_assert(eq(int, device->ops->import(device, &told, &memory, why), -EINVAL));
    cr_assert(eq(sz, fake_cuda_counts().opened, 0));
    finish();
}

Test(cuda_device, an_import_that_the_driver_refuses_leaves_nothing_open)
{
    static const struct {
        const char *call;
        int result;
        int status;
        const char *why;
    } cases[] = {
        {"cuIpcOpenMemHandle", CUDA_OUT_OF_MEMORY, -ENOMEM,
         "fake GPU 0: an IPC handle cannot be opened: CUDA_ERROR_OUT_OF_MEMORY"},
        {"cuMemGetAddressRange", 999, -EINVAL,
         "fake GPU 0: the size of an engine's allocation is not known: CUDA_ERROR_FAKE"},
    };
    struct engine_memory *memory;
    start(large);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_cuda_fail(cases[i].call, cases[i].result, 0);

        cr_assert(
            eq(int, device->ops->import(device, &engine.told, &memory, why), cases[i].status));

        cr_assert(eq(str, why, (char *)cases[i].why));
        cr_assert(eq(ptr, memory, NULL));
        cr_assert(eq(sz, fake_cuda_counts().opened, 0));
    }
    finish();
}

Test(cuda_device, a_copy_in_flight_keeps_the_memory_of_an_engine_that_is_gone)
{
    start(large);
    struct engine_memory *memory = import();
    struct engine_memory *of_a_job = engine_memory_ref(memory);
    struct page_copy page = {arena, 1};

    engine_memory_unref(&memory);

    cr_assert(eq(int, copy(of_a_job, COPY_TO_ENGINE, &page, 1), 0));
    cr_assert(eq(sz, fake_cuda_counts().opened, 1));
    engine_memory_unref(&of_a_job);
    cr_assert(eq(sz, fake_cuda_counts().opened, 0));
    finish();
}

/* ---- memory of ours ---- */

static void await_pins(uint64_t chunks, uint64_t chunk_bytes)
{
    struct cuda_device_stats stats;

    do {
        usleep(100);
        stats = cuda_device_stats(device);
    } while (stats.pinned_bytes / chunk_bytes + stats.unpinned_chunks < chunks);
}

/* Every page lies across a border, and only the first chunks can be pinned. */
Test(cuda_device, pages_across_pinned_and_unpinned_chunks_are_whole)
{
    struct fake_cuda_config limited = fake_cuda_default();
    limited.pin_bytes_max = 4 * 8192;
    limited.registration_bytes_max = 8192;
    fake_cuda_reset(limited);
    engine = engine_start((struct gpu_layout){1, 8, 8192, 0});
    struct cuda_device_config config = config_of_tests();
    config.pin_chunk_bytes = 8192;
    create(config);
    arena = aligned_alloc(4096, 16 * 8192);
    cr_assert(eq(int, device->ops->register_host(device, arena, 16 * 8192), 0));
    await_pins(16, 8192);
    struct engine_memory *memory = import();
    struct page_copy pages[8];
    for (uint32_t i = 0; i < 8; i++) {
        pages[i] = (struct page_copy){arena + 100 + i * 8192, i};
        engine_computes(&engine, i, (uint8_t)(i + 1));
    }

    cr_assert(eq(int, copy(memory, COPY_FROM_ENGINE, pages, 8), 0));
    for (uint32_t i = 0; i < 8; i++)
        engine_computes(&engine, i, 0);
    cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, pages, 8), 0));

    for (uint32_t i = 0; i < 8; i++)
        assert_all(engine_bytes(&engine, 0, i), 8192, (uint8_t)(i + 1));
    cr_assert(eq(u64, cuda_device_stats(device).pinned_bytes, 4 * 8192));
    cr_assert(eq(u64, cuda_device_stats(device).unpinned_chunks, 12));
    device->ops->unregister_host(device, arena);
    cr_assert(eq(sz, fake_cuda_counts().registered_bytes, 0));
    engine_memory_unref(&memory);
    finish();
}

Test(cuda_device, an_arena_may_be_taken_back_while_it_is_being_pinned)
{
    start(large);

    for (int i = 0; i < 50; i++) {
        cr_assert(eq(int, device->ops->register_host(device, arena, ARENA_BYTES), 0));
        device->ops->unregister_host(device, arena);
    }

    cr_assert(eq(sz, fake_cuda_counts().registrations, 0));
    cr_assert(eq(u64, cuda_device_stats(device).pinned_bytes, 0));
    finish();
}

/* ---- failures ---- */

Test(cuda_device, a_copy_that_the_driver_refuses_fails_alone)
{
    static const char *const calls[] = {"cuStreamWaitEvent", "cuMemcpyAsync", "cuLaunchKernel",
                                        "cuEventQuery"};

    start(small);
    struct engine_memory *memory = import();
    struct page_copy pages[4];
    for (uint32_t i = 0; i < 4; i++)
        pages[i] = (struct page_copy){arena + i * gpu_layout_page(small), i};

    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        fake_cuda_fail(calls[i], 1, 0);
        cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, pages, 4), -EIO), "%s", calls[i]);
        fake_cuda_touch(arena, ARENA_BYTES, true); /* nothing is under way */
        cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, pages, 4), 0));
    }

    cr_assert(eq(u64, cuda_device_stats(device).failed_copies, 4));
    cr_assert(eq(u32, cuda_device_stats(device).lost_gpus, 0));
    engine_memory_unref(&memory);
    finish();
}

Test(cuda_device, a_gpu_that_is_lost_fails_at_once_from_then_on)
{
    start(large);
    struct engine_memory *memory = import(), *another;
    struct page_copy page = {arena, 0};
    fake_cuda_fail("cuEventSynchronize", 700, 0);

    cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, &page, 1), -EIO));

    fake_cuda_settle();
    size_t before = fake_cuda_counts().copies;
    cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, &page, 1), -EIO));
    cr_assert(eq(sz, fake_cuda_counts().copies, before));
    cr_assert(eq(u32, cuda_device_stats(device).lost_gpus, 1));
    cr_assert(eq(int, device->ops->import(device, &engine.told, &another, why), -ENODEV));
    cr_assert(eq(str, why, "fake GPU 0 failed; restart the agent to use it again"));
    engine_memory_unref(&memory);
    cr_assert(eq(sz, fake_cuda_counts().opened, 0));
    device->ops->destroy(device);
    free(arena);
}

Test(cuda_device, no_memory_for_a_slab_means_no_gathering)
{
    start(small);
    struct engine_memory *memory = import();
    struct page_copy pages[4];
    for (uint32_t i = 0; i < 4; i++)
        pages[i] = (struct page_copy){arena + i * gpu_layout_page(small), i};
    fake_cuda_fail("cuMemAlloc", CUDA_OUT_OF_MEMORY, 0);

    cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, pages, 4), 0));

    cr_assert(eq(u64, cuda_device_stats(device).pages[COPY_BATCH], 4));
    cr_assert(eq(u64, cuda_device_stats(device).ungathered_copies, 1));
    engine_memory_unref(&memory);
    finish();
}

Test(cuda_device, what_fails_at_the_start_is_said)
{
    static const struct {
        const char *call;
        int result;
        const char *why;
    } cases[] = {
        {"cuInit", 999, "the CUDA driver does not start: CUDA_ERROR_FAKE"},
        {"cuDevicePrimaryCtxRetain", CUDA_OUT_OF_MEMORY,
         "fake GPU 0: no context: CUDA_ERROR_OUT_OF_MEMORY"},
        {"cuCtxSetCurrent", 999, "fake GPU 0: the context cannot be used: CUDA_ERROR_FAKE"},
        {"cuDeviceGet", 999, "the CUDA driver gives no GPU"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_cuda_reset(fake_cuda_default());
        fake_cuda_fail(cases[i].call, cases[i].result, 0);

        cr_assert(eq(int, cuda_device_create_with(config_of_tests(), &device, why), -ENODEV));

        cr_assert(eq(str, why, (char *)cases[i].why));
        cr_assert(eq(ptr, device, NULL));
    }
}

Test(cuda_device, an_old_driver_and_one_without_a_gpu_are_refused)
{
    struct fake_cuda_config config = fake_cuda_default();
    config.version = 11080;
    fake_cuda_reset(config);
    cr_assert(eq(int, device_cuda_create(&device, why), -ENODEV));
    cr_assert(eq(str, why, "the CUDA driver is of 11.8, older than 12.0"));

    config.version = 11030;
    fake_cuda_reset(config);
    cr_assert(eq(int, device_cuda_create(&device, why), -ENODEV));
    cr_assert(eq(str, why, "the CUDA driver lacks cuDeviceGetUuid of version 11040"));

    config = fake_cuda_default();
    config.gpu_count = 0;
    fake_cuda_reset(config);
    cr_assert(eq(int, device_cuda_create(&device, why), -ENODEV));
    cr_assert(eq(str, why, "the CUDA driver sees no GPU"));
}

/* One of two GPUs has no memory when the agent starts; it is used once it has. */
Test(cuda_device, a_gpu_that_could_not_be_opened_is_tried_again)
{
    struct fake_cuda_config config = fake_cuda_default();
    config.gpu_count = 2;
    fake_cuda_reset(config);
    engine = engine_start(large);
    fake_cuda_fail("cuDevicePrimaryCtxRetain", CUDA_OUT_OF_MEMORY, 0);
    create(config_of_tests());
    arena = NULL;
    cr_assert(eq(u32, cuda_device_stats(device).open_gpus, 1));

    struct engine_memory *memory = import();

    cr_assert(eq(u32, cuda_device_stats(device).open_gpus, 2));
    engine_memory_unref(&memory);
    finish();
}

/* ---- measuring ---- */

Test(cuda_device, each_cell_that_fits_is_measured)
{
    fake_cuda_reset(fake_cuda_default());
    struct cuda_device_config config = config_of_tests();
    config.slab_bytes = config.calibrate_bytes = 1 << 20;
    engine = engine_start(large);
    arena = NULL;
    create(config);

    const struct copy_table *table = cuda_device_table(device, 0);

    cr_assert(gt(dbl, table->cells[COPY_TO_ENGINE][0][1].us[COPY_GATHER], 0));
    cr_assert(gt(dbl, table->cells[COPY_FROM_ENGINE][1][0].us[COPY_BATCH], 0));
    cr_assert(eq(dbl, table->cells[COPY_FROM_ENGINE][3][1].us[COPY_BATCH], 0)); /* 48 MiB */
    finish();
}

/* ---- schedules ---- */

/* An engine that computes, saves, forgets and loads, for one seed. */
static void random_life(uint64_t seed)
{
    struct fake_cuda_config config = fake_cuda_default();
    uint64_t random = seed;
    struct gpu_layout layout = {1 + (uint32_t)(random_next(&random) % 20), 6,
                                1 + (uint32_t)(random_next(&random) % 300),
                                (uint32_t)(random_next(&random) % 40)};
    uint32_t page = gpu_layout_page(layout);
    uint8_t values[6];

    config.seed = seed;
    fake_cuda_reset(config);
    engine = engine_start(layout);
    struct cuda_device_config device_config = config_of_tests();
    device_config.slab_bytes = 2 * page + 5;
    device_config.pin_chunk_bytes = 4096;
    create(device_config);
    arena = aligned_alloc(4096, 40960);
    bool is_registered = random_next(&random) % 2;
    if (is_registered)
        cr_assert(eq(int, device->ops->register_host(device, arena, 40960), 0));
    struct engine_memory *memory = import();

    for (int step = 0; step < 3; step++) {
        struct page_copy pages[6];
        uint32_t count = 1 + (uint32_t)(random_next(&random) % 6);
        uint32_t rotation = (uint32_t)(random_next(&random) % 6);
        for (uint32_t i = 0; i < count; i++) {
            values[i] = (uint8_t)random_next(&random);
            pages[i] = (struct page_copy){arena + i * page, (i + rotation) % 6};
            engine_computes(&engine, pages[i].engine_block, values[i]);
        }
        cr_assert(eq(int, copy(memory, COPY_FROM_ENGINE, pages, count), 0));
        fake_cuda_touch(arena, count * page, false);
        for (uint32_t i = 0; i < count; i++) {
            assert_all(arena + i * page, page, values[i]);
            pages[i].engine_block = (pages[i].engine_block + 1) % 6;
            engine_computes(&engine, pages[i].engine_block, 0);
        }
        cr_assert(eq(int, copy(memory, COPY_TO_ENGINE, pages, count), 0));
        for (uint32_t i = 0; i < count; i++)
            assert_block(&layout, pages[i].engine_block, values[i]);
    }
    engine_memory_unref(&memory);
    if (is_registered)
        device->ops->unregister_host(device, arena);
    finish();
}

Test(cuda_device, random_lives_lose_nothing)
{
    for (uint64_t seed = 0; seed < 1000; seed++)
        random_life(seed);
}
