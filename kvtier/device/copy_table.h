/* SPDX-License-Identifier: Apache-2.0 */

/*
 * copy_table: which way pages go, by how small their pieces are, how many, and in which direction:
 * piece by piece with the copy engines, or gathered by a kernel into a slab that goes as one. What
 * each way takes was measured on this GPU (copy_calibrate()). Pure but for that; read by any
 * thread once made.
 */
#ifndef KVTIER_DEVICE_COPY_TABLE_H
#define KVTIER_DEVICE_COPY_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/device/device.h"

enum copy_way { COPY_BATCH, COPY_GATHER, COPY_WAY_COUNT };

enum { COPY_TABLE_SIZES = 4, COPY_TABLE_COUNTS = 2, COPY_DIRECTIONS = 2 };

/* The classes: a piece is of the first size it is not larger than, a number of the last count it is
 * not below. Beyond the largest and below the least it is always COPY_BATCH. */
extern const uint32_t copy_table_piece_bytes[COPY_TABLE_SIZES];
extern const uint32_t copy_table_piece_counts[COPY_TABLE_COUNTS];

struct copy_cell {
    double us[COPY_WAY_COUNT]; /* of that many such pieces; 0: not measured */
    enum copy_way way;
};

struct copy_table {
    struct copy_cell cells[COPY_DIRECTIONS][COPY_TABLE_SIZES][COPY_TABLE_COUNTS];
};

/* What is known of other GPUs: gathering pays below 28 KiB from 64 pieces on. */
struct copy_table copy_table_default(void);

/* Decides a cell by its times: gathering must be clearly faster, for it takes processors of the
 * GPU that the engine wants, where the copy engines do not. */
enum copy_way copy_table_decide(const double us[COPY_WAY_COUNT]);

enum copy_way copy_table_way(const struct copy_table *table, enum copy_direction direction,
                             uint64_t piece_bytes, uint64_t piece_count);

#endif
