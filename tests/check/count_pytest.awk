# SPDX-License-Identifier: Apache-2.0
#
# Reads the output of pytest; prints "PASSED FAILED SKIPPED" from its closing line.
# An error (a fixture that broke) is a failure; an expected failure is not a pass.

/ in [0-9.]+s/ && /passed|failed|error|skipped|deselected|no tests ran/ { last = $0 }

END {
    n = split(last, words, /[ ,=]+/)
    for (i = 1; i < n; i++) {
        if (words[i + 1] == "passed") passed += words[i]
        if (words[i + 1] ~ /^(failed|errors?|xpassed)$/) failed += words[i]
        if (words[i + 1] ~ /^(skipped|xfailed)$/) skipped += words[i]
    }
    print passed + 0, failed + 0, skipped + 0
}
