/* SPDX-License-Identifier: Apache-2.0 */

/* fuzz_worker_url: what is taken has one spelling, which is taken again; what is refused says why.
 */

#include "backends/worker_url.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct worker_url url, again;
    char why[WORKER_URL_WHY_BYTES] = "";

    if (worker_url_parse(slice_of(bytes, len), &url, why) < 0) {
        if (why[0] == '\0')
            abort();
        return 0;
    }
    if (worker_url_parse(slice_of_string(url.name), &again, why) < 0)
        abort();
    if (strcmp(url.name, again.name) != 0 || strcmp(url.authority, again.authority) != 0)
        abort();
    return 0;
}
