/* SPDX-License-Identifier: Apache-2.0 */

/* fuzz_load_report: any text gives a report whose numbers make sense. */

#include "backends/load_report.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct worker_report report;
    enum engine_kind engine = load_report_parse(slice_of(bytes, len), 7, &report);

    if (engine == ENGINE_UNKNOWN && report.is_known)
        abort();
    if (!(report.cache_usage >= 0 && report.cache_usage <= 1) || report.at_ms != 7)
        abort();
    return 0;
}
