/* SPDX-License-Identifier: Apache-2.0 */

/* machine: what the process may use of the machine that it runs on. Reads /proc and /sys. */
#ifndef BACKENDS_RUNTIME_MACHINE_H
#define BACKENDS_RUNTIME_MACHINE_H

#include <stdint.h>

struct machine {
    uint64_t memory_bytes;         /* of the machine, or of our container where that is less */
    uint64_t descriptor_count_max; /* that the process can raise its limit to */
};

/* UINT64_MAX for what the system does not say: it limits nothing. */
struct machine machine_read(void);

#endif
