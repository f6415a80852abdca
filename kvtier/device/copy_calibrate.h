/* SPDX-License-Identifier: Apache-2.0 */

/* copy_calibrate: measures on a GPU which way of copying is the faster, for a copy_table. */
#ifndef KVTIER_DEVICE_COPY_CALIBRATE_H
#define KVTIER_DEVICE_COPY_CALIBRATE_H

#include <stddef.h>

#include "backends/runtime/must_check.h"
#include "kvtier/device/copy_table.h"

struct copy_lane;
struct cuda_driver;
struct cuda_function;

/*
 * Copies at most bytes at once, to and fro, some tens of times; bytes is twice needed in HBM and
 * once pinned. The context is current. -EIO: something was refused, table is as it was.
 */
MUST_CHECK int copy_calibrate(const struct cuda_driver *driver, struct copy_lane *lane,
                              struct cuda_function *gather, size_t bytes, struct copy_table *table);

#endif
