/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cuda_driver: what we call of the CUDA driver, found at run time in libcuda.so.1: nothing of CUDA
 * is needed to build, and nothing is linked. One table says which functions, and of which version.
 *
 * Names, numbers and layouts are those of cuda.h 13.0 (and cudaTypedefs.h, which has each version's
 * signature); the versions asked for are in every driver since CUDA 12.0. Handles are opaque
 * pointers there too. A CUresult is an int here; 0 is success.
 */
#ifndef KVTIER_DEVICE_CUDA_DRIVER_H
#define KVTIER_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/device/device.h"

struct cuda_context;
struct cuda_stream;
struct cuda_event;
struct cuda_module;
struct cuda_function;

/* CUipcMemHandle and CUipcEventHandle; CUuuid. Passed by value. */
struct cuda_ipc_handle {
    uint8_t bytes[DEVICE_HANDLE_BYTES];
};
struct cuda_uuid {
    uint8_t bytes[16];
};

/* CUmemcpyAttributes; the hints are CUmemLocations, ignored for memory such as ours. */
struct cuda_copy_attributes {
    int source_order; /* enum cuda_source_order */
    int source_hint[2];
    int target_hint[2];
    unsigned int flags;
};

enum cuda_source_order {
    CUDA_SOURCE_STREAM = 1, /* read when the stream comes to it */
    CUDA_SOURCE_ANY = 3,    /* read whenever: only what nothing in the stream writes */
};

enum {
    CUDA_DRIVER_VERSION_MIN = 12000,

    /* Results that decide something. */
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_READY = 600,

    /* Flags and attributes. */
    CUDA_CONTEXT_BLOCKING_SYNC = 0x4,
    CUDA_STREAM_NON_BLOCKING = 0x1,
    CUDA_EVENT_BLOCKING_SYNC = 0x1,
    CUDA_EVENT_DISABLE_TIMING = 0x2,
    CUDA_EVENT_INTERPROCESS = 0x4,
    CUDA_HOST_PORTABLE = 0x1, /* of cuMemHostAlloc() and cuMemHostRegister(): to all contexts */
    CUDA_IPC_LAZY_PEER_ACCESS = 0x1, /* what cuIpcOpenMemHandle() wants to be given */
    CUDA_COPY_PREFER_OVERLAP = 0x1,  /* with compute: a hint for the copy engines */
};

/*
 * row(member, name, version, parameters). version: of the signature, as cuGetProcAddress() counts;
 * a newer driver then gives that one, whatever its header makes of the name. Each row must be
 * found.
 */
/* clang-format off */
#define CUDA_DRIVER_SYMBOLS(row)                                                                   \
    row(init, cuInit, 2000, (unsigned int flags))                                                  \
    row(get_version, cuDriverGetVersion, 2020, (int *version))                                     \
    row(error_name, cuGetErrorName, 6000, (int result, const char **name))                         \
    row(device_count, cuDeviceGetCount, 2000, (int *count))                                        \
    row(device_get, cuDeviceGet, 2000, (int *device, int ordinal))                                 \
    row(device_name, cuDeviceGetName, 2000, (char *name, int len, int device))                     \
    row(device_uuid, cuDeviceGetUuid, 11040, (struct cuda_uuid *uuid, int device))                 \
    row(context_flags, cuDevicePrimaryCtxSetFlags, 11000, (int device, unsigned int flags))        \
    row(context_retain, cuDevicePrimaryCtxRetain, 7000,                                            \
        (struct cuda_context **context, int device))                                               \
    row(context_release, cuDevicePrimaryCtxRelease, 11000, (int device))                           \
    row(context_set, cuCtxSetCurrent, 4000, (struct cuda_context *context))                        \
    row(priority_range, cuCtxGetStreamPriorityRange, 5050, (int *least, int *greatest))            \
    row(mem_alloc, cuMemAlloc, 3020, (uint64_t *address, size_t bytes))                            \
    row(mem_free, cuMemFree, 3020, (uint64_t address))                                             \
    row(mem_range, cuMemGetAddressRange, 3020,                                                     \
        (uint64_t *base, size_t *bytes, uint64_t address))                                         \
    row(host_alloc, cuMemHostAlloc, 2020, (void **bytes, size_t len, unsigned int flags))          \
    row(host_free, cuMemFreeHost, 2000, (void *bytes))                                             \
    row(host_register, cuMemHostRegister, 6050, (void *bytes, size_t len, unsigned int flags))     \
    row(host_unregister, cuMemHostUnregister, 4000, (void *bytes))                                 \
    row(ipc_open_memory, cuIpcOpenMemHandle, 11000,                                                \
        (uint64_t *address, struct cuda_ipc_handle handle, unsigned int flags))                    \
    row(ipc_close_memory, cuIpcCloseMemHandle, 4010, (uint64_t address))                           \
    row(ipc_open_event, cuIpcOpenEventHandle, 4010,                                                \
        (struct cuda_event **event, struct cuda_ipc_handle handle))                                \
    row(event_create, cuEventCreate, 2000, (struct cuda_event **event, unsigned int flags))        \
    row(event_record, cuEventRecord, 2000,                                                         \
        (struct cuda_event *event, struct cuda_stream *stream))                                    \
    row(event_query, cuEventQuery, 2000, (struct cuda_event *event))                               \
    row(event_synchronize, cuEventSynchronize, 2000, (struct cuda_event *event))                   \
    row(event_destroy, cuEventDestroy, 4000, (struct cuda_event *event))                           \
    row(stream_create, cuStreamCreateWithPriority, 5050,                                           \
        (struct cuda_stream **stream, unsigned int flags, int priority))                           \
    row(stream_wait_event, cuStreamWaitEvent, 3020,                                                \
        (struct cuda_stream *stream, struct cuda_event *event, unsigned int flags))                \
    row(stream_synchronize, cuStreamSynchronize, 2000, (struct cuda_stream *stream))               \
    row(stream_destroy, cuStreamDestroy, 4000, (struct cuda_stream *stream))                       \
    row(copy, cuMemcpyAsync, 4000,                                                                 \
        (uint64_t target, uint64_t source, size_t bytes, struct cuda_stream *stream))              \
    row(copy_now, cuMemcpyHtoD, 3020, (uint64_t target, const void *source, size_t bytes))         \
    row(module_load, cuModuleLoadData, 2000, (struct cuda_module **module, const void *image))     \
    row(module_function, cuModuleGetFunction, 2000,                                                \
        (struct cuda_function **function, struct cuda_module *module, const char *name))           \
    row(module_unload, cuModuleUnload, 2000, (struct cuda_module *module))                         \
    row(launch, cuLaunchKernel, 4000,                                                              \
        (struct cuda_function *function, unsigned int grid_x, unsigned int grid_y,                 \
         unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,    \
         unsigned int shared_bytes, struct cuda_stream *stream, void **parameters, void **extra))
/* clang-format on */

#define CUDA_DRIVER_MEMBER(member, name, version, parameters) int(*member) parameters;
struct cuda_driver {
    void *library;
    int version; /* 12080: CUDA 12.8 */
    /* Finds any other function of the driver: cuGetProcAddress() of 12.0. */
    int (*find)(const char *name, void **function, int version, uint64_t flags, int *found);
    CUDA_DRIVER_SYMBOLS(CUDA_DRIVER_MEMBER)
    /*
     * cuMemcpyBatchAsync() as 12.8 has it, with the number of the copy that failed; 13.0 dropped
     * that parameter under the same name, and still gives 12.8's to who asks for that. NULL: an
     * older driver.
     */
    int (*copy_batch)(uint64_t *targets, uint64_t *sources, size_t *sizes, size_t count,
                      struct cuda_copy_attributes *attributes, size_t *attribute_firsts,
                      size_t attribute_count, size_t *failed, struct cuda_stream *stream);
};
#undef CUDA_DRIVER_MEMBER

/* Loads and initialises the driver. -ENODEV with a sentence in why: there is none, it is too old,
 * or finds no GPU; then driver is empty. */
MUST_CHECK int cuda_driver_load(struct cuda_driver *driver, char why[DEVICE_WHY_BYTES]);
void cuda_driver_unload(struct cuda_driver *driver);

/* What the driver calls a result: "CUDA_ERROR_INVALID_VALUE". */
const char *cuda_driver_error(const struct cuda_driver *driver, int result);

#endif
