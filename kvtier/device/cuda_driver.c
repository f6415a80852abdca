/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/cuda_driver.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/*
 * DESIGN
 *
 * libcuda.so.1 comes with the kernel's driver, is on GPU nodes only, and is newer or older than any
 * toolkit. So the one symbol that is looked up by name is cuGetProcAddress_v2 (12.0); it gives all
 * others by name and version, and what a version means cannot change under us.
 */

static_assert(sizeof(struct cuda_copy_attributes) == 24, "as CUmemcpyAttributes");
static_assert(sizeof(struct cuda_ipc_handle) == 64, "as CU_IPC_HANDLE_SIZE");
static_assert(sizeof(void *) == sizeof(uint64_t), "a CUdeviceptr is an unsigned long long");

static int refuse(char why[DEVICE_WHY_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int refuse(char why[DEVICE_WHY_BYTES], const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, DEVICE_WHY_BYTES, format, args);
    va_end(args);
    return -ENODEV;
}

/* A pointer to data from dlsym() as one to a function: POSIX lets both be one, ISO C not. */
static void take_function(void *function_pointer, void *symbol)
{
    memcpy(function_pointer, &symbol, sizeof symbol);
}

static bool find(const struct cuda_driver *driver, void *function_pointer, const char *name,
                 int version)
{
    void *symbol = NULL;
    int found = 0;
    int result = driver->find(name, &symbol, version, 0, &found);

    if (result != 0 || symbol == NULL)
        return false;
    take_function(function_pointer, symbol);
    return true;
}

static int find_all(struct cuda_driver *driver, char why[DEVICE_WHY_BYTES])
{
#define CUDA_DRIVER_FIND(member, name, version, parameters)                                        \
    if (!find(driver, &driver->member, #name, version))                                            \
        return refuse(why, "the CUDA driver lacks %s of version %d", #name, version);
    CUDA_DRIVER_SYMBOLS(CUDA_DRIVER_FIND)
#undef CUDA_DRIVER_FIND
    if (!find(driver, &driver->copy_batch, "cuMemcpyBatchAsync", 12080))
        driver->copy_batch = NULL;
    return 0;
}

static int open_library(struct cuda_driver *driver, char why[DEVICE_WHY_BYTES])
{
    void *symbol;

    /* Never unloaded again: it has threads of its own, which would find their code gone. */
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (driver->library == NULL)
        return refuse(why, "no CUDA driver: %s", dlerror());
    symbol = dlsym(driver->library, "cuGetProcAddress_v2");
    if (symbol == NULL)
        return refuse(why, "the CUDA driver is older than 12.0");
    take_function(&driver->find, symbol);
    return 0;
}

static int start(struct cuda_driver *driver, char why[DEVICE_WHY_BYTES])
{
    int count = 0;
    int result = driver->init(0);

    if (result == 0)
        result = driver->get_version(&driver->version);
    if (result == 0)
        result = driver->device_count(&count);
    if (result != 0)
        return refuse(why, "the CUDA driver does not start: %s", cuda_driver_error(driver, result));
    if (driver->version < CUDA_DRIVER_VERSION_MIN)
        return refuse(why, "the CUDA driver is of %d.%d, older than 12.0", driver->version / 1000,
                      driver->version % 1000 / 10);
    if (count == 0)
        return refuse(why, "the CUDA driver sees no GPU");
    return 0;
}

int cuda_driver_load(struct cuda_driver *driver, char why[DEVICE_WHY_BYTES])
{
    int status;

    *driver = (struct cuda_driver){0};
    status = open_library(driver, why);
    if (status == 0)
        status = find_all(driver, why);
    if (status == 0)
        status = start(driver, why);
    if (status < 0)
        cuda_driver_unload(driver);
    return status;
}

void cuda_driver_unload(struct cuda_driver *driver)
{
    if (driver->library != NULL)
        dlclose(driver->library);
    *driver = (struct cuda_driver){0};
}

const char *cuda_driver_error(const struct cuda_driver *driver, int result)
{
    const char *name = NULL;

    return driver->error_name(result, &name) == 0 && name != NULL ? name : "an unknown result";
}
