/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/support/fake_cuda/fake_cuda.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvtier/device/cuda_driver.h"
#include "tests/support/fake_cuda/fake_memory.h"
#include "tests/support/fake_cuda/fake_stream.h"

/*
 * DESIGN
 *
 * Signatures are cuda_driver's rows: what the table below is checked against by the compiler. Each
 * call takes the one lock. Order is judged when something is enqueued, bytes move when it runs.
 *
 * Where the real driver's documentation leaves time open, the fake takes all the time there is:
 * cuMemcpyHtoD() returns when the bytes are staged, not when they have arrived.
 */

enum {
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_SUPPORTED = 801,
};
enum { KERNELS_BYTES_MAX = 65536, NAME_BYTES = 40 };

struct cuda_context {
    int device;
    uint32_t references;
};
struct cuda_module {
    char image[KERNELS_BYTES_MAX];
};
struct cuda_function {
    enum fake_op_kind kind;
};

enum { GPUS_MAX = 8 };

static struct {
    bool is_ready;
    struct fake_cuda_config config;
    struct cuda_context contexts[GPUS_MAX];
    struct fake_event *events;
    size_t registered_bytes;
    size_t copy_count, batch_count, launch_count;
    char failing[NAME_BYTES];
    int failing_result;
    unsigned failing_skip;
} fake;

static _Thread_local struct cuda_context *current;

static struct cuda_function gather_function = {FAKE_GATHER};
static struct cuda_function busy_function = {FAKE_BUSY};

/* ---- tests ---- */

struct fake_cuda_config fake_cuda_default(void)
{
    return (struct fake_cuda_config){.seed = 1,
                                     .gpu_count = 1,
                                     .version = 13000,
                                     .pin_bytes_max = SIZE_MAX,
                                     .registration_bytes_max = SIZE_MAX};
}

static void free_event(struct fake_event *event)
{
    for (struct fake_event **at = &fake.events; *at != NULL; at = &(*at)->next) {
        if (*at == event) {
            *at = event->next;
            break;
        }
    }
    if (event->progress != NULL)
        munmap(event->progress, sizeof *event->progress);
    if (event->fd >= 0)
        close(event->fd);
    free(event);
}

static struct fake_event *add_event(void)
{
    struct fake_event *event = calloc(1, sizeof *event);

    if (event == NULL)
        abort();
    event->fd = -1;
    event->next = fake.events;
    fake.events = event;
    return event;
}

static size_t count_events(void)
{
    size_t count = 0;

    for (const struct fake_event *event = fake.events; event != NULL; event = event->next)
        count++;
    return count;
}

void fake_cuda_reset(struct fake_cuda_config config)
{
    fake_lock();
    fake_stream_reset(config.seed);
    fake_memory_reset();
    fake_order_reset();
    while (fake.events != NULL)
        free_event(fake.events);
    memset(&fake, 0, sizeof fake);
    fake.config = config;
    fake.is_ready = true;
    current = NULL;
    fake_unlock();
}

static void be_ready(void)
{
    if (!fake.is_ready) {
        fake.config = fake_cuda_default();
        fake.is_ready = true;
    }
}

void fake_cuda_fail(const char *function, int result, unsigned skip)
{
    fake_lock();
    snprintf(fake.failing, sizeof fake.failing, "%s", function);
    fake.failing_result = result;
    fake.failing_skip = skip;
    fake_unlock();
}

static struct fake_stream *stream_of(struct cuda_stream *stream)
{
    return stream == NULL ? fake_stream_null() : (void *)stream;
}

void fake_cuda_hold(struct cuda_stream *stream, bool is_held)
{
    fake_lock();
    stream_of(stream)->is_held = is_held;
    fake_unlock();
}

void fake_cuda_settle(void)
{
    fake_lock();
    fake_wait_all();
    fake_unlock();
}

void fake_cuda_touch(const void *bytes, size_t len, bool is_written)
{
    uint64_t address = (uintptr_t)bytes;

    fake_lock();
    if (fake_order_is_used(fake_host(), address, len))
        fake_fault("the host %s what something under way uses", is_written ? "writes" : "reads");
    fake_unlock();
}

void fake_cuda_keep_faults(bool is_kept)
{
    fake_lock();
    fake_fault_keep(is_kept);
    fake_unlock();
}

const char *fake_cuda_fault(void)
{
    return fake_fault_kept();
}

struct fake_cuda_counts fake_cuda_counts(void)
{
    struct fake_cuda_counts counts;

    fake_lock();
    counts = (struct fake_cuda_counts){.allocations = fake_memory_count(FAKE_HBM),
                                       .opened = fake_memory_opened(),
                                       .events = count_events(),
                                       .streams = fake_stream_count(),
                                       .registrations = fake_memory_count(FAKE_REGISTERED),
                                       .registered_bytes = fake.registered_bytes,
                                       .copies = fake.copy_count,
                                       .batches = fake.batch_count,
                                       .launches = fake.launch_count};
    fake_unlock();
    return counts;
}

/* ---- around each call ---- */

/* Takes the lock. Not 0: the call returns that, after leave(). */
static int enter(const char *function)
{
    fake_lock();
    be_ready();
    if (strcmp(fake.failing, function) != 0 || fake.failing_skip-- > 0)
        return 0;
    fake.failing[0] = '\0';
    return fake.failing_result;
}

static int enter_context(const char *function)
{
    int result = enter(function);

    return result == 0 && current == NULL ? INVALID_CONTEXT : result;
}

static int leave(int result)
{
    fake_unlock();
    return result;
}

/* ---- devices and contexts ---- */

static int init(unsigned int flags)
{
    return leave(enter("cuInit") != 0 || flags != 0 ? INVALID_VALUE : 0);
}

static int get_version(int *version)
{
    int result = enter("cuDriverGetVersion");

    *version = fake.config.version;
    return leave(result);
}

static int error_name(int result, const char **name)
{
    *name = result == CUDA_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return 0;
}

static int device_count(int *count)
{
    int result = enter("cuDeviceGetCount");

    *count = fake.config.gpu_count;
    return leave(result);
}

static int device_get(int *device, int ordinal)
{
    int result = enter("cuDeviceGet");

    *device = ordinal;
    return leave(result == 0 && ordinal >= fake.config.gpu_count ? INVALID_VALUE : result);
}

static int device_name(char *name, int len, int device)
{
    snprintf(name, (size_t)len, "fake GPU %d", device);
    return 0;
}

static int device_uuid(struct cuda_uuid *uuid, int device)
{
    memset(uuid->bytes, 0xa0 + device, sizeof uuid->bytes);
    return 0;
}

static int context_flags(int device, unsigned int flags)
{
    (void)device;
    (void)flags;
    return 0;
}

static int context_retain(struct cuda_context **context, int device)
{
    int result = enter("cuDevicePrimaryCtxRetain");

    if (result == 0) {
        *context = &fake.contexts[device];
        (*context)->device = device;
        (*context)->references++;
    }
    return leave(result);
}

static int context_release(int device)
{
    int result = enter("cuDevicePrimaryCtxRelease");

    if (result == 0 && fake.contexts[device].references-- == 0)
        fake_fault("a context is released more often than retained");
    return leave(result);
}

static int context_set(struct cuda_context *context)
{
    int result = enter("cuCtxSetCurrent");

    if (result == 0)
        current = context;
    return leave(result);
}

static int priority_range(int *least, int *greatest)
{
    int result = enter_context("cuCtxGetStreamPriorityRange");

    *least = 0;
    *greatest = -5;
    return leave(result);
}

/* ---- memory ---- */

static int mem_alloc(uint64_t *address, size_t bytes)
{
    int result = enter_context("cuMemAlloc");
    struct fake_memory *memory;

    if (result == 0 && bytes == 0)
        result = INVALID_VALUE;
    if (result != 0)
        return leave(result);
    memory = fake_memory_add(FAKE_HBM, NULL, bytes);
    if (memory == NULL)
        return leave(CUDA_OUT_OF_MEMORY);
    *address = (uintptr_t)memory->bytes;
    return leave(0);
}

/* memory goes: nothing under way may use it. */
static int remove_memory(uint64_t address, enum fake_kind kind, const char *what)
{
    struct fake_memory *memory = fake_memory_find(address);

    if (memory == NULL || memory->kind != kind || (uintptr_t)memory->bytes != address)
        return INVALID_VALUE;
    if (fake_order_is_used(fake_host(), address, memory->len))
        fake_fault("%s while something under way uses it", what);
    fake_memory_remove(memory);
    return 0;
}

static int mem_free(uint64_t address)
{
    int result = enter_context("cuMemFree");

    return leave(result == 0 ? remove_memory(address, FAKE_HBM, "memory is freed") : result);
}

static int mem_range(uint64_t *base, size_t *bytes, uint64_t address)
{
    int result = enter_context("cuMemGetAddressRange");
    const struct fake_memory *memory = fake_memory_find(address);

    if (result == 0 && (memory == NULL || !fake_memory_is_hbm(memory)))
        result = NOT_FOUND;
    if (result != 0)
        return leave(result);
    *base = (uintptr_t)memory->bytes;
    *bytes = memory->len;
    return leave(0);
}

static int host_alloc(void **bytes, size_t len, unsigned int flags)
{
    int result = enter_context("cuMemHostAlloc");
    struct fake_memory *memory;

    (void)flags;
    if (result != 0)
        return leave(result);
    memory = fake_memory_add(FAKE_PINNED, NULL, len);
    if (memory == NULL)
        return leave(CUDA_OUT_OF_MEMORY);
    *bytes = memory->bytes;
    return leave(0);
}

static int host_free(void *bytes)
{
    int result = enter_context("cuMemFreeHost");

    return leave(result == 0
                     ? remove_memory((uintptr_t)bytes, FAKE_PINNED, "pinned memory is freed")
                     : result);
}

static int host_register(void *bytes, size_t len, unsigned int flags)
{
    int result = enter_context("cuMemHostRegister");

    (void)flags;
    if (result != 0)
        return leave(result);
    if (len > fake.config.registration_bytes_max ||
        len > fake.config.pin_bytes_max - fake.registered_bytes)
        return leave(CUDA_OUT_OF_MEMORY);
    if (fake_memory_add(FAKE_REGISTERED, bytes, len) == NULL)
        return leave(CUDA_OUT_OF_MEMORY);
    fake.registered_bytes += len;
    return leave(0);
}

static int host_unregister(void *bytes)
{
    int result = enter_context("cuMemHostUnregister");
    struct fake_memory *memory = fake_memory_find((uintptr_t)bytes);

    if (result != 0 || memory == NULL)
        return leave(result != 0 ? result : INVALID_VALUE);
    fake.registered_bytes -= memory->len;
    return leave(remove_memory((uintptr_t)bytes, FAKE_REGISTERED, "memory is unpinned"));
}

/* ---- between processes ---- */

static struct cuda_ipc_handle pack(struct fake_handle handle)
{
    struct cuda_ipc_handle packed;

    static_assert(sizeof packed == sizeof handle, "a handle is 64 bytes");
    memcpy(&packed, &handle, sizeof packed);
    return packed;
}

static struct fake_handle unpack(struct cuda_ipc_handle packed)
{
    struct fake_handle handle;

    memcpy(&handle, &packed, sizeof handle);
    return handle;
}

static int ipc_get_memory(struct cuda_ipc_handle *handle, uint64_t address)
{
    int result = enter_context("cuIpcGetMemHandle");
    struct fake_memory *memory = fake_memory_find(address);

    if (result == 0 && (memory == NULL || memory->kind != FAKE_HBM))
        result = INVALID_VALUE;
    if (result == 0)
        *handle = pack(fake_memory_export(memory));
    return leave(result);
}

static int ipc_open_memory(uint64_t *address, struct cuda_ipc_handle handle, unsigned int flags)
{
    int result = enter_context("cuIpcOpenMemHandle");
    struct fake_memory *memory;

    if (result == 0 && flags != CUDA_IPC_LAZY_PEER_ACCESS)
        result = INVALID_VALUE;
    if (result != 0)
        return leave(result);
    memory = fake_memory_open(unpack(handle));
    if (memory == NULL)
        return leave(INVALID_HANDLE);
    *address = (uintptr_t)memory->bytes;
    return leave(0);
}

static int ipc_close_memory(uint64_t address)
{
    int result = enter_context("cuIpcCloseMemHandle");
    struct fake_memory *memory = fake_memory_find(address);

    if (result != 0)
        return leave(result);
    if (memory == NULL || memory->opened == 0) {
        fake_fault("a handle is closed that is not open");
        return leave(INVALID_VALUE);
    }
    if (fake_order_is_used(fake_host(), address, memory->len))
        fake_fault("a handle is closed while something under way uses its memory");
    if (--memory->opened == 0 && memory->kind == FAKE_IMPORTED)
        fake_memory_remove(memory);
    return leave(0);
}

static int ipc_get_event(struct cuda_ipc_handle *handle, struct cuda_event *event)
{
    int result = enter_context("cuIpcGetEventHandle");
    const struct fake_event *of = (void *)event;

    if (result == 0 && of->fd < 0)
        result = INVALID_HANDLE; /* not made to be shared */
    if (result == 0)
        *handle = pack((struct fake_handle){.magic = FAKE_HANDLE_MAGIC,
                                            .pid = getpid(),
                                            .fd = of->fd,
                                            .is_event = 1,
                                            .len = sizeof *of->progress,
                                            .padding = {(uintptr_t)of}});
    return leave(result);
}

static int ipc_open_event(struct cuda_event **event, struct cuda_ipc_handle packed)
{
    int result = enter_context("cuIpcOpenEventHandle");
    struct fake_handle handle = unpack(packed);
    struct fake_event *opened;

    if (result == 0 && (handle.magic != FAKE_HANDLE_MAGIC || !handle.is_event))
        result = INVALID_HANDLE;
    if (result != 0)
        return leave(result);
    opened = add_event();
    if (handle.pid == getpid()) {
        opened->original = (void *)(uintptr_t)handle.padding[0];
    } else {
        opened->is_remote = true;
        opened->progress = fake_map_remote(handle, handle.len);
        if (opened->progress == NULL) {
            free_event(opened);
            return leave(INVALID_HANDLE);
        }
    }
    *event = (void *)opened;
    return leave(0);
}

/* ---- events and streams ---- */

static struct fake_event *event_of(struct cuda_event *event)
{
    struct fake_event *opened = (void *)event;

    return opened->original != NULL ? opened->original : opened;
}

static int event_create(struct cuda_event **event, unsigned int flags)
{
    int result = enter_context("cuEventCreate");
    struct fake_event *made;
    void *mapped;

    if ((flags & CUDA_EVENT_INTERPROCESS) && !(flags & CUDA_EVENT_DISABLE_TIMING))
        result = INVALID_VALUE;
    if (result != 0)
        return leave(result);
    made = add_event();
    made->flags = flags;
    made->fd = flags & CUDA_EVENT_INTERPROCESS ? memfd_create("fake_event", MFD_CLOEXEC) : -1;
    if (made->fd >= 0 && ftruncate(made->fd, sizeof *made->progress) < 0)
        abort();
    mapped = mmap(NULL, sizeof *made->progress, PROT_READ | PROT_WRITE,
                  made->fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, made->fd, 0);
    if (mapped == MAP_FAILED)
        abort();
    made->progress = mapped;
    *event = (void *)made;
    return leave(0);
}

static int event_destroy(struct cuda_event *event)
{
    int result = enter_context("cuEventDestroy");
    struct fake_event *gone = (void *)event;

    if (result != 0)
        return leave(result);
    if (gone->original == NULL && !gone->is_remote &&
        !fake_event_is_reached(gone->progress, gone->progress->recorded))
        fake_fault("an event is destroyed that its stream has not come to");
    free_event(gone);
    return leave(0);
}

static int event_record(struct cuda_event *event, struct cuda_stream *stream)
{
    int result = enter_context("cuEventRecord");
    struct fake_event *of = event_of(event);
    struct fake_known known;
    struct fake_op *op;

    if (result == 0 && of->is_remote)
        result = NOT_SUPPORTED; /* the real driver can; nobody here does */
    if (result != 0)
        return leave(result);
    op = fake_op_next(stream_of(stream), FAKE_RECORD, &known);
    of->known = known;
    op->progress = of->progress;
    op->number = __atomic_add_fetch(&of->progress->recorded, 1, __ATOMIC_RELEASE);
    fake_op_push(stream_of(stream), op);
    return leave(0);
}

static uint64_t recorded(const struct fake_event *event)
{
    return __atomic_load_n(&event->progress->recorded, __ATOMIC_ACQUIRE);
}

static int event_query(struct cuda_event *event)
{
    int result = enter_context("cuEventQuery");
    const struct fake_event *of = event_of(event);

    if (result != 0)
        return leave(result);
    if (!fake_event_is_reached(of->progress, recorded(of)))
        return leave(CUDA_NOT_READY);
    fake_host_learns(&of->known);
    return leave(0);
}

static int event_synchronize(struct cuda_event *event)
{
    int result = enter_context("cuEventSynchronize");
    const struct fake_event *of = event_of(event);
    struct fake_known known;

    if (result != 0)
        return leave(result);
    known = of->known;
    fake_wait_event(of->progress, recorded(of));
    fake_host_learns(&known);
    return leave(0);
}

static int stream_create(struct cuda_stream **stream, unsigned int flags, int priority)
{
    int result = enter_context("cuStreamCreateWithPriority");

    (void)priority;
    if (result == 0 && flags != CUDA_STREAM_NON_BLOCKING)
        fake_fault("a stream that waits for the null stream waits for everybody");
    if (result != 0)
        return leave(result);
    *stream = (void *)fake_stream_add();
    return leave(*stream == NULL ? CUDA_OUT_OF_MEMORY : 0);
}

static int stream_destroy(struct cuda_stream *stream)
{
    int result = enter_context("cuStreamDestroy");

    if (result == 0)
        fake_stream_remove(stream_of(stream));
    return leave(result);
}

static int stream_synchronize(struct cuda_stream *stream)
{
    int result = enter_context("cuStreamSynchronize");
    struct fake_stream *of = stream_of(stream);
    struct fake_known known = of->known;

    if (result != 0)
        return leave(result);
    fake_wait_stream(of);
    fake_host_learns(&known);
    return leave(0);
}

static int stream_wait_event(struct cuda_stream *stream, struct cuda_event *event,
                             unsigned int flags)
{
    int result = enter_context("cuStreamWaitEvent");
    const struct fake_event *of = event_of(event);
    struct fake_known known;
    struct fake_op *op;

    if (result == 0 && flags != 0)
        result = INVALID_VALUE;
    if (result != 0)
        return leave(result);
    op = fake_op_next(stream_of(stream), FAKE_WAIT, &known);
    fake_known_add(&stream_of(stream)->known, &of->known);
    op->progress = of->progress;
    op->number = recorded(of);
    fake_op_push(stream_of(stream), op);
    return leave(0);
}

/* ---- copies ---- */

/* Whether address to len is in one allocation, or in none. */
static struct fake_memory *memory_of(uint64_t address, size_t len)
{
    struct fake_memory *memory = fake_memory_find(address);

    if (fake_memory_find(address + len - 1) != memory)
        fake_fault("a copy crosses the border of an allocation");
    return memory;
}

static void read_bytes(struct fake_moment moment, const struct fake_known *known, uint64_t address,
                       size_t len, const char *what)
{
    const struct fake_memory *memory = memory_of(address, len);

    if (memory != NULL && fake_memory_is_hbm(memory) &&
        !fake_memory_is_written(memory, address, len))
        fake_fault("%s reads HBM that was never written", what);
    fake_order_access(moment, known, address, len, false, what);
}

static void write_bytes(struct fake_moment moment, const struct fake_known *known, uint64_t address,
                        size_t len, const char *what)
{
    struct fake_memory *memory = memory_of(address, len);

    fake_order_access(moment, known, address, len, true, what);
    if (memory != NULL && fake_memory_is_hbm(memory))
        fake_memory_mark(memory, address, len);
}

static void *stage(uint64_t source, size_t len)
{
    void *staged = malloc(len);

    if (staged == NULL)
        abort();
    memcpy(staged, (const void *)(uintptr_t)source, len);
    return staged;
}

static struct fake_op *copies_next(struct fake_stream *stream, size_t count,
                                   struct fake_known *known)
{
    struct fake_op *op = fake_op_next(stream, FAKE_COPIES, known);

    op->copies = calloc(count, sizeof *op->copies);
    op->copy_count = count;
    if (op->copies == NULL)
        abort();
    fake.copy_count += count;
    return op;
}

/* Pageable memory is staged when it is read; what is written there is there on return. */
static int copy(uint64_t target, uint64_t source, size_t bytes, struct cuda_stream *stream)
{
    int result = enter_context("cuMemcpyAsync");
    struct fake_stream *on = stream_of(stream);
    struct fake_known known;
    struct fake_op *op;

    if (result == 0 && bytes == 0)
        result = INVALID_VALUE;
    if (result != 0)
        return leave(result);
    op = copies_next(on, 1, &known);
    op->copies[0] = (struct fake_copy){.target = target, .source = source, .len = bytes};
    if (fake_memory_find(source) == NULL)
        op->copies[0].staged = stage(source, bytes);
    else
        read_bytes(op->moment, &known, source, bytes, "a copy");
    write_bytes(op->moment, &known, target, bytes, "a copy");
    fake_op_push(on, op);
    if (fake_memory_find(target) == NULL) {
        known = on->known;
        fake_wait_stream(on);
        fake_host_learns(&known);
    }
    return leave(0);
}

static int copy_now(uint64_t target, const void *source, size_t bytes)
{
    int result = enter_context("cuMemcpyHtoD");
    struct fake_known known;
    struct fake_op *op;

    if (result != 0)
        return leave(result);
    op = copies_next(fake_stream_null(), 1, &known);
    op->copies[0] = (struct fake_copy){
        .target = target, .len = bytes, .staged = stage((uintptr_t)source, bytes)};
    write_bytes(op->moment, &known, target, bytes, "cuMemcpyHtoD()");
    fake_op_push(fake_stream_null(), op);
    return leave(0);
}

static int check_batch(const size_t *sizes, size_t count,
                       const struct cuda_copy_attributes *attributes,
                       const size_t *attribute_firsts, size_t attribute_count,
                       const struct cuda_stream *stream)
{
    if (count == 0 || attribute_count != 1 || attribute_firsts[0] != 0 || stream == NULL)
        return INVALID_VALUE;
    if (attributes[0].source_order != CUDA_SOURCE_STREAM &&
        attributes[0].source_order != CUDA_SOURCE_ANY)
        return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (sizes[i] == 0)
            return INVALID_VALUE;
    }
    return 0;
}

static int copy_batch(uint64_t *targets, uint64_t *sources, size_t *sizes, size_t count,
                      struct cuda_copy_attributes *attributes, size_t *attribute_firsts,
                      size_t attribute_count, size_t *failed, struct cuda_stream *stream)
{
    int result = enter_context("cuMemcpyBatchAsync");
    struct fake_known known;
    const struct fake_known *source_known;
    struct fake_op *op;

    *failed = SIZE_MAX;
    if (result == 0)
        result = check_batch(sizes, count, attributes, attribute_firsts, attribute_count, stream);
    if (result != 0)
        return leave(result);
    op = copies_next(stream_of(stream), count, &known);
    /* Sources that are read at any time are ordered behind what the host knows, and nothing else.
     */
    source_known = attributes[0].source_order == CUDA_SOURCE_ANY ? fake_host() : &known;
    fake.batch_count++;
    for (size_t i = 0; i < count; i++) {
        if (memory_of(sources[i], sizes[i]) == NULL || memory_of(targets[i], sizes[i]) == NULL)
            fake_fault("pageable memory in a batch");
        op->copies[i] = (struct fake_copy){targets[i], sources[i], sizes[i], NULL};
        read_bytes(op->moment, source_known, sources[i], sizes[i], "a batch");
        write_bytes(op->moment, &known, targets[i], sizes[i], "a batch");
    }
    fake_op_push(stream_of(stream), op);
    return leave(0);
}

/* ---- kernels ---- */

static int module_load(struct cuda_module **module, const void *image)
{
    int result = enter_context("cuModuleLoadData");

    if (result != 0)
        return leave(result);
    *module = calloc(1, sizeof **module);
    if (*module == NULL)
        abort();
    snprintf((*module)->image, sizeof(*module)->image, "%s", (const char *)image);
    return leave(0);
}

static int module_function(struct cuda_function **function, struct cuda_module *module,
                           const char *name)
{
    int result = enter_context("cuModuleGetFunction");
    char entry[NAME_BYTES + 16];

    snprintf(entry, sizeof entry, ".entry %s(", name);
    if (result == 0 && strstr(module->image, entry) == NULL)
        result = NOT_FOUND;
    if (result != 0)
        return leave(result);
    *function = strcmp(name, GATHER_NAME) == 0 ? &gather_function : &busy_function;
    return leave(0);
}

static int module_unload(struct cuda_module *module)
{
    int result = enter("cuModuleUnload");

    free(module);
    return leave(result);
}

static void check_gather(const struct fake_op *op, const struct fake_known *known)
{
    const struct gather_job *job = &op->gather;
    const struct gather_segment *segments = (const void *)(uintptr_t)job->segments;
    const uint32_t *blocks = (const void *)(uintptr_t)job->blocks;

    read_bytes(op->moment, known, job->segments, job->segment_count * sizeof *segments, "a kernel");
    read_bytes(op->moment, known, job->blocks, job->page_count * sizeof *blocks, "a kernel");
    for (uint64_t i = 0; i < (uint64_t)job->page_count * job->segment_count; i++) {
        const struct gather_segment *segment = &segments[i % job->segment_count];
        uint64_t page = i / job->segment_count;
        uint64_t ours = job->slab + page * job->page_bytes + segment->page_offset;
        uint64_t theirs = segment->address + segment->stride * blocks[page];

        read_bytes(op->moment, known, job->is_scatter ? ours : theirs, segment->bytes, "a kernel");
        write_bytes(op->moment, known, job->is_scatter ? theirs : ours, segment->bytes, "a kernel");
    }
}

static int launch(struct cuda_function *function, unsigned int grid_x, unsigned int grid_y,
                  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                  unsigned int block_z, unsigned int shared_bytes, struct cuda_stream *stream,
                  void **parameters, void **extra)
{
    int result = enter_context("cuLaunchKernel");
    struct fake_known known;
    struct fake_op *op;

    (void)shared_bytes;
    if (result == 0 &&
        (grid_x * grid_y * grid_z == 0 || block_x * block_y * block_z == 0 || extra != NULL))
        result = INVALID_VALUE;
    if (result != 0)
        return leave(result);
    op = fake_op_next(stream_of(stream), function->kind, &known);
    if (function->kind == FAKE_GATHER) {
        if (block_x != GATHER_THREADS)
            fake_fault("the gathering kernel wants blocks of %d threads", GATHER_THREADS);
        memcpy(&op->gather, parameters[0], sizeof op->gather);
        check_gather(op, &known);
        op->sum = fake_gather_sum(&op->gather);
    }
    fake.launch_count++;
    fake_op_push(stream_of(stream), op);
    return leave(0);
}

/* ---- the library ---- */

struct symbol {
    const char *name;
    int version;
    void (*function)(void);
};

typedef void any_fn(void);

#define FAKE_SYMBOL(member, name, version, parameters) {#name, version, (any_fn *)member},
static const struct symbol symbols[] = {
    CUDA_DRIVER_SYMBOLS(FAKE_SYMBOL) /* as the agent calls them */
    {"cuMemcpyBatchAsync", 12080, (any_fn *)copy_batch},
    {"cuIpcGetMemHandle", 4010, (any_fn *)ipc_get_memory}, /* as an engine does */
    {"cuIpcGetEventHandle", 4010, (any_fn *)ipc_get_event},
};
#undef FAKE_SYMBOL

/* A row whose signature is not the driver's does not compile. */
#define FAKE_CHECK(member, name, version, parameters) .member = member,
extern const struct cuda_driver fake_cuda_signatures;
const struct cuda_driver fake_cuda_signatures = {CUDA_DRIVER_SYMBOLS(FAKE_CHECK).copy_batch =
                                                     copy_batch};
#undef FAKE_CHECK

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found);

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found)
{
    int driver_version;

    (void)flags;
    *function = NULL;
    *found = 1; /* not found */
    if (get_version(&driver_version) != 0)
        return NOT_INITIALIZED;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        const struct symbol *symbol = &symbols[i];

        if (strcmp(symbol->name, name) != 0)
            continue;
        *found = 2; /* known, but not of that version */
        if (symbol->version > version || symbol->version > driver_version)
            return NOT_FOUND;
        memcpy(function, &symbol->function, sizeof *function);
        *found = 0;
        return 0;
    }
    return NOT_FOUND;
}
