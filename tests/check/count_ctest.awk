# SPDX-License-Identifier: Apache-2.0
#
# Reads the output of ctest -V; prints "PASSED FAILED SKIPPED".
# A Criterion program counts as the tests it holds, by its own closing line; any other as one.
# What ctest calls failed is never counted as passed only, whatever the program printed.

{ gsub(/\033\[[0-9;]*m/, "") }

/^[0-9]+: .*Synthesis: Tested:/ {
    id = $1 + 0
    for (i = 1; i < NF; i++) {
        if ($i == "Passing:") held[id] = $(i + 1) + 0
        if ($i == "Failing:") broken[id] += $(i + 1)
        if ($i == "Crashing:") broken[id] += $(i + 1)
    }
    is_criterion[id] = 1
}

# cr_skip: in no count of the closing line; told one by one at verbosity 1. Disabled is what a
# filter left out.
/^[0-9]+: \[SKIP\] / && !/: Test is disabled$/ { skipped++ }

/^ *[0-9]+\/[0-9]+ Test +#[0-9]+:/ {
    match($0, /#[0-9]+:/)
    id = substr($0, RSTART + 1, RLENGTH - 2) + 0
    if ($0 ~ /\*\*\*(Skipped|Not Run \(Disabled\))/)
        skipped++
    else if ($0 ~ / Passed /)
        passed += is_criterion[id] ? held[id] : 1
    else {
        passed += held[id]
        failed += broken[id] > 0 ? broken[id] : 1
    }
}

END { print passed + 0, failed + 0, skipped + 0 }
