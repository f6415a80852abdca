/* SPDX-License-Identifier: Apache-2.0 */

/* fuzz_load_report: any text gives a report whose numbers make sense, for all ranks and for each.
 */

#include "backends/load_report.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(enum engine_kind engine, const struct worker_report *report)
{
    if (engine == ENGINE_UNKNOWN && report->is_known)
        abort();
    if (!(report->cache_usage >= 0 && report->cache_usage <= 1) || report->at_ms != 7)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct worker_report all, ranks[2];
    enum engine_kind engine = load_report_parse(slice_of(bytes, len), 7, &all);

    check(engine, &all);
    if (load_report_parse_ranks(slice_of(bytes, len), 7, ranks, 2) != engine)
        abort();
    for (uint32_t rank = 0; rank < 2; rank++) {
        check(engine, &ranks[rank]);
        if (ranks[rank].is_known && !all.is_known)
            abort();
    }
    return 0;
}
