/* SPDX-License-Identifier: Apache-2.0 */

/* A fault that parses acts by its own words; one that does not says where, within the text. */
#include "tests/fuzz/fuzz_input.h"
#include "tests/sim_engine/fault.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct slice spec = slice_of(bytes, size);
    struct parse_error error = {0};
    struct fault_rule rule = {0};

    if (fault_parse(spec, &rule.fault, &error) < 0) {
        assert(error.offset <= size);
        assert(error.message[0] != '\0');
        return 0;
    }
    assert(rule.fault.kind < FAULT_KIND_COUNT);
    assert(slice_starts_with(spec, slice_of_string(fault_name(rule.fault.kind))));
    assert(rule.fault.share >= 0 && rule.fault.share <= 1);
    assert((rule.fault.which == FAULT_EVERY || rule.fault.which == FAULT_NTH) ==
           (rule.fault.number >= 1));
    if (fault_is_inner(rule.fault.kind))
        (void)fault_rule_hits_inner(&rule);
    else
        (void)fault_rule_hits(&rule, SLICE("/v1/chat/completions"), true);
    assert(rule.seen_count <= 1);
    return 0;
}
