/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/copy_table.h"

#include <assert.h>

/* Around what is known of A30, H100 and H200: the ways are equal somewhere from 8 to 28 KiB. */
const uint32_t copy_table_piece_bytes[COPY_TABLE_SIZES] = {2 << 10, 8 << 10, 28 << 10, 96 << 10};
const uint32_t copy_table_piece_counts[COPY_TABLE_COUNTS] = {64, 512};

enum { DEFAULT_GATHER_SIZES = 3 };

struct copy_table copy_table_default(void)
{
    struct copy_table table = {0};

    for (size_t direction = 0; direction < COPY_DIRECTIONS; direction++) {
        for (size_t size = 0; size < DEFAULT_GATHER_SIZES; size++) {
            for (size_t count = 0; count < COPY_TABLE_COUNTS; count++)
                table.cells[direction][size][count].way = COPY_GATHER;
        }
    }
    return table;
}

enum copy_way copy_table_decide(const double us[COPY_WAY_COUNT])
{
    return us[COPY_GATHER] < 0.8 * us[COPY_BATCH] ? COPY_GATHER : COPY_BATCH;
}

enum copy_way copy_table_way(const struct copy_table *table, enum copy_direction direction,
                             uint64_t piece_bytes, uint64_t piece_count)
{
    size_t size = 0, count = COPY_TABLE_COUNTS;

    assert((int)direction < COPY_DIRECTIONS);

    while (size < COPY_TABLE_SIZES && piece_bytes > copy_table_piece_bytes[size])
        size++;
    while (count > 0 && piece_count < copy_table_piece_counts[count - 1])
        count--;
    if (size == COPY_TABLE_SIZES || count == 0)
        return COPY_BATCH;
    return table->cells[direction][size][count - 1].way;
}
