/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ipc_handle: what whoever plays an engine calls of the driver, and the agent does not:
 * cuIpcGetMemHandle() and cuIpcGetEventHandle(), by name. The real driver or the fake one.
 */
#ifndef TESTS_GPU_IPC_HANDLE_H
#define TESTS_GPU_IPC_HANDLE_H

#include <string.h>

#include "backends/runtime/must_check.h"
#include "kvtier/device/cuda_driver.h"

/* of: the allocation's address, or the event. What the driver says: 0, or handle is as it was. */
MUST_CHECK static inline int ipc_handle_get(const struct cuda_driver *driver, const char *name,
                                            const void *of, struct cuda_ipc_handle *handle)
{
    int (*get)(struct cuda_ipc_handle *, const void *);
    void *symbol = NULL;
    int found, result = driver->find(name, &symbol, 4010, 0, &found);

    if (result != 0)
        return result;
    memcpy(&get, &symbol, sizeof get);
    return get(handle, of);
}

#endif
