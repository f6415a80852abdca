# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs parts, keeps their logs, counts their tests. Sourced by ./check.
#
# A part is a function part_NAME that writes to stdout and returns 0, or 77 for "cannot run
# here", or anything else for "broken". It counts its tests itself with count_tests and names
# what it left out with skip. A part that counted nothing is itself one test, except deps.

LOG_DIR=build/check
EXIT_SKIP=77

report_begin()
{
    mkdir -p "$LOG_DIR" || exit 1
    started=$(date +%s)
    passed_total=0 failed_total=0 skipped_total=0
    parts_done='' parts_failed=''
    skips=$LOG_DIR/skipped
    : >"$skips"
}

# count_tests PASSED FAILED SKIPPED
count_tests()
{
    echo "$1 $2 $3" >>"$LOG_DIR/counts"
}

# skip NAME WHY: one test, or one group of tests nobody could count, that did not run
skip()
{
    count_tests 0 0 1
    echo "SKIPPED $1: $2"
    echo "SKIPPED $1: $2" >>"$skips"
}

# say TEXT: a progress line on the terminal, from inside a part
say()
{
    printf '%s\n' "    $*" >&3
}

# needs_failed PART: the first part it stands on that failed
needs_failed()
{
    for needed in $(part_needs "$1"); do
        case " $parts_failed " in *" $needed "*) echo "$needed"; return ;; esac
    done
}

run_part()
{
    part=$1
    parts_done="$parts_done $part"
    log=$LOG_DIR/$part.log
    broken=$(needs_failed "$part")
    if [ -n "$broken" ]; then
        skipped_total=$((skipped_total + 1))
        echo "SKIPPED $part: $broken failed" | tee -a "$skips"
        return
    fi
    part_started=$(date +%s)
    : >"$LOG_DIR/counts"
    printf '==> %s\n' "$part"
    # A subshell: a part may cd, export and trap as it likes. fd 3 is the terminal.
    ("part_$part") 3>&1 >"$log" 2>&1 </dev/null
    status=$?
    # shellcheck disable=SC2046
    set -- $(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' \
        "$LOG_DIR/counts")
    passed=$1 failed=$2 skipped=$3
    if [ "$status" -eq "$EXIT_SKIP" ]; then
        [ "$skipped" -gt 0 ] || skipped=1
    elif [ "$status" -ne 0 ]; then
        [ "$failed" -gt 0 ] || failed=1 # it broke before, or beside, its tests
    elif [ $((passed + failed + skipped)) -eq 0 ] && [ -z "$FILTER" ] && [ "$part" != deps ]; then
        passed=1
    fi
    passed_total=$((passed_total + passed))
    failed_total=$((failed_total + failed))
    skipped_total=$((skipped_total + skipped))
    result="$passed passed, $failed failed, $skipped skipped"
    [ $((passed + failed + skipped)) -gt 0 ] || result="done" # it had no tests to run
    printf '    %s: %s  (%d s)\n' "$part" "$result" $(($(date +%s) - part_started))
    [ "$failed" -eq 0 ] || show_failure
}

show_failure()
{
    parts_failed="$parts_failed $part"
    printf '    --- the last lines of %s ---\n' "$log"
    tail -n 60 "$log" | sed 's/^/    | /'
    printf '    --- all of it: %s ---\n' "$log"
}

report_end()
{
    [ ! -s "$skips" ] || { echo; cat "$skips"; }
    [ -z "$parts_failed" ] || printf '\nFAILED parts:%s (logs in %s/)\n' "$parts_failed" "$LOG_DIR"
    status=$((failed_total > 0))
    if [ -n "$FILTER" ] && [ $((passed_total + failed_total + skipped_total)) -eq 0 ]; then
        printf "\nno test of these parts has a name with '%s'\n" "$FILTER"
        status=1
    fi
    printf '\n%d s in all\n' $(($(date +%s) - started))
    printf '%d passed, %d failed, %d skipped\n' "$passed_total" "$failed_total" "$skipped_total"
    exit $status
}
