/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/cuda_driver.h"

#include <errno.h>
#include <stdio.h>

/* In the place of cuda_driver.c where SAMOVAR_CUDA is OFF: there is no driver, ever. */

int cuda_driver_load(struct cuda_driver *driver, char why[DEVICE_WHY_BYTES])
{
    *driver = (struct cuda_driver){0};
    snprintf(why, DEVICE_WHY_BYTES, "built without CUDA (SAMOVAR_CUDA=OFF)");
    return -ENODEV;
}

void cuda_driver_unload(struct cuda_driver *driver)
{
    *driver = (struct cuda_driver){0};
}

const char *cuda_driver_error(const struct cuda_driver *driver, int result)
{
    (void)driver;
    (void)result;
    return "no driver";
}
