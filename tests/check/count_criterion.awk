# SPDX-License-Identifier: Apache-2.0
#
# Reads the output of one Criterion program at verbosity 1; prints "PASSED FAILED SKIPPED".

{ gsub(/\033\[[0-9;]*m/, "") }

/Synthesis: Tested:/ {
    for (i = 1; i < NF; i++) {
        if ($i == "Passing:") passed += $(i + 1)
        if ($i == "Failing:" || $i == "Crashing:") failed += $(i + 1)
    }
}

/^\[SKIP\] / && !/: Test is disabled$/ { skipped++ }

END { print passed + 0, failed + 0, skipped + 0 }
