/* SPDX-License-Identifier: Apache-2.0 */

/*
 * process_usage: what the kernel says of this process, as metrics of the names that dashboards
 * know. Reads /proc. One thread.
 */
#ifndef BACKENDS_RUNTIME_PROCESS_USAGE_H
#define BACKENDS_RUNTIME_PROCESS_USAGE_H

#include "backends/runtime/metric.h"

/* Writes a family each; no sample of what /proc does not say. */
void process_usage_write(struct metric_writer *writer);

#endif
