/* SPDX-License-Identifier: Apache-2.0 */

/* This program is linked with cuda_driver_none.c, as the agent is with SAMOVAR_CUDA=OFF. */

#include "kvtier/device/device.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "tests/support/leak_check.h"

TestSuite(cuda_driver_none, .fini = leak_check);

Test(cuda_driver_none, an_agent_built_without_cuda_says_so)
{
    struct device *device;
    char why[DEVICE_WHY_BYTES];

    cr_assert(eq(int, device_cuda_create(&device, why), -ENODEV));

    cr_assert(eq(str, why, "built without CUDA (SAMOVAR_CUDA=OFF)"));
    cr_assert(eq(ptr, device, NULL));
}
