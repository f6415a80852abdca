# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# ./check --docker: builds the images with buildah and runs the programs from the built roots.
# Sourced by ./check. Needs root, for chroot; no daemon and no image registry.

CONTAINER_DIR=build/docker
BASE_IMAGE=docker.io/library/debian:bookworm-slim

# A store of our own: other people's images are none of our business.
bud()
{
    buildah --root "$PWD/$CONTAINER_DIR/storage" --runroot "$PWD/$CONTAINER_DIR/run" \
        --storage-driver vfs "$@"
}

# The Dockerfiles name Debian's image; here it is made from Debian's packages under that name.
make_base_image()
{
    if [ ! -e $CONTAINER_DIR/base.tar ]; then
        say "debootstrap: the base image"
        rm -rf $CONTAINER_DIR/base
        debootstrap --variant=minbase bookworm $CONTAINER_DIR/base || return "$EXIT_SKIP"
        tar -C $CONTAINER_DIR/base -cf $CONTAINER_DIR/base.tar.new . &&
            mv $CONTAINER_DIR/base.tar.new $CONTAINER_DIR/base.tar || return 1
        rm -rf $CONTAINER_DIR/base
    fi
    container=$(bud from scratch) && bud add "$container" $CONTAINER_DIR/base.tar / &&
        bud config --cmd /bin/bash "$container" && bud commit --rm "$container" $BASE_IMAGE
}

# build_image NAME: docker/NAME.Dockerfile -> image samovar-NAME; prints nothing, logs all.
build_image()
{
    say "building docker/$1.Dockerfile"
    bud build --isolation chroot --format docker --pull-never --network host \
        -t "samovar-$1" -f "docker/$1.Dockerfile" .
}

# image_root NAME: the folder where a container of the image is mounted
image_root()
{
    bud mount "$(bud from --pull-never "samovar-$1")"
}

# expect NAME COMMAND...: one counted test
expect()
{
    name=$1
    shift
    is_asked "$name" || return 0
    if "$@"; then
        count_tests 1 0 0
        echo "ok: $name"
    else
        count_tests 0 1 0
        say "FAILED: $name"
        container_status=1
    fi
}

# image_says NAME TEXT
image_says()
{
    bud inspect --type image "samovar-$1" | grep -Fq "$2"
}

# start_in ROOT PROGRAM ARGUMENT...: as the image's user, in the image's root; sets started_pid
start_in()
{
    root=$1
    shift
    chroot --userspec=65532:65532 "$root" "$@" &
    started_pid=$!
    pids="$pids $started_pid"
}

# answers URL [SECONDS]: waits until it answers 200
answers()
{
    tries=$((${2:-10} * 10))
    while [ $tries -gt 0 ]; do
        [ "$(curl -s -o /dev/null -m 5 -w '%{http_code}' "$1")" != 200 ] || return 0
        tries=$((tries - 1))
        sleep 0.1
    done
    return 1
}

ask()
{
    curl -sS -m 10 -D "$LOG_DIR/answer.head" -o "$LOG_DIR/answer.body" \
        -H 'Content-Type: application/json' "http://127.0.0.1:$1/v1/chat/completions" \
        -d '{"model": "sim", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}'
}

answer_is_whole()
{
    head -n 1 "$LOG_DIR/answer.head" | grep -q ' 200 ' &&
        grep -qi '^x-samovar-worker:' "$LOG_DIR/answer.head" &&
        grep -q '"choices"' "$LOG_DIR/answer.body"
}

runs_as_nobody()
{
    [ "$(awk '/^Uid:/ { print $2 }' "/proc/$1/status")" = 65532 ]
}

ends_well()
{
    kill -TERM "$1" && wait "$1"
}

run_built_programs()
{
    router_root=$(image_root router) && sim_root=$(image_root sim) &&
        agent_root=$(image_root agent) || return 1
    pids='' container_status=0
    # By their ids, and only ours; the mounts go with the store.
    trap 'for p in $pids; do kill "$p" 2>/dev/null; done; bud umount --all >/dev/null' EXIT
    port=$((20000 + $$ % 10000))
    start_in "$sim_root" /usr/bin/samovar-sim --port $((port + 1)) --model sim
    start_in "$router_root" /usr/bin/samovar-router --host 127.0.0.1 --port $port \
        --admin-port $((port + 2)) --worker-urls "http://127.0.0.1:$((port + 1))"
    router_pid=$started_pid

    expect "image: not root" image_says router '"User": "65532:65532"'
    expect "image: health check" image_says router /health
    expect "image: has no compiler" test ! -e "$router_root/usr/bin/gcc"
    expect "router: runs as its user" runs_as_nobody "$router_pid"
    expect "router: alive" answers "http://127.0.0.1:$port/health"
    expect "router: ready" answers "http://127.0.0.1:$port/readyz"
    expect "router: health check of the image" chroot --userspec=65532:65532 "$router_root" \
        env SAMOVAR_PORT=$port bash -c "$(health_command router)"
    expect "router: relays" ask $port
    expect "router: the answer is the engine's" answer_is_whole
    expect "router: drains and exits 0 on SIGTERM" ends_well "$router_pid"
    run_built_agent
    return $container_status
}

# The agent beside a second engine, and a Redis of this machine.
run_built_agent()
{
    redis-server --bind 127.0.0.1 --port $((port + 3)) --save '' --appendonly no >/dev/null &
    pids="$pids $!"
    start_in "$sim_root" /usr/bin/samovar-sim --port $((port + 4)) --model sim \
        --kv-events "tcp://127.0.0.1:$((port + 5))" --kv-replay "tcp://127.0.0.1:$((port + 6))"
    echo 'for this test' >"$agent_root/tmp/secret"
    start_in "$agent_root" env SAMOVAR_AGENT_STATE_DIR=/var/lib/samovar-agent \
        /usr/bin/samovar-agent --admin-port $((port + 7)) --secret-file /tmp/secret \
        --cpu-bytes 1MiB --ipc-socket /run/samovar/agent.sock \
        --engine "http://127.0.0.1:$((port + 4))" --redis "redis://127.0.0.1:$((port + 3))" \
        --kv-events "tcp://127.0.0.1:$((port + 5))" --kv-replay "tcp://127.0.0.1:$((port + 6))"
    agent_pid=$started_pid

    expect "agent image: not root" image_says agent '"User": "65532:65532"'
    expect "agent image: has no compiler" test ! -e "$agent_root/usr/bin/gcc"
    expect "agent image: has the connector" \
        test -f "$agent_root/usr/share/samovar/python/samovar_vllm/connector.py"
    expect "agent: runs as its user" runs_as_nobody "$agent_pid"
    expect "agent: hears its engine, and Redis it" answers "http://127.0.0.1:$((port + 7))/ready"
    expect "agent: listens for engines" test -S "$agent_root/run/samovar/agent.sock"
    expect "agent: health check of the image" chroot --userspec=65532:65532 "$agent_root" \
        env SAMOVAR_AGENT_ADMIN_PORT=$((port + 7)) bash -c "$(health_command agent)"
    expect "agent: names its worker in Redis" redis_has $((port + 3)) 'smv:*:workers'
    expect "agent: exits 0 on SIGTERM" ends_well "$agent_pid"
    expect "agent: gave up its lease" redis_lacks $((port + 3)) 'smv:*:lease'
}

redis_has()
{
    [ -n "$(redis-cli -p "$1" --scan --pattern "$2")" ]
}

redis_lacks()
{
    [ -z "$(redis-cli -p "$1" --scan --pattern "$2")" ]
}

# The health check as the image has it, not as this file thinks it is.
health_command()
{
    bud inspect --type image "samovar-$1" | python3 -c '
import json, sys
def find(value):
    if isinstance(value, dict):
        check = value.get("Healthcheck") or value.get("healthcheck")
        if isinstance(check, dict) and check.get("Test"):
            return check["Test"]
        value = list(value.values())
    if isinstance(value, list):
        return next(filter(None, map(find, value)), None)
print(find(json.load(sys.stdin))[-1])'
}

part_docker()
{
    if [ "$(id -u)" -ne 0 ]; then
        skip docker "needs root: chroot and debootstrap"
        return 0
    fi
    # shellcheck disable=SC2086
    install_packages $PACKAGES_DOCKER redis-server ||
        { skip docker "needs: $PACKAGES_DOCKER redis-server"; return 0; }
    mkdir -p $CONTAINER_DIR
    make_base_image
    case $? in
    0) ;;
    "$EXIT_SKIP") skip docker "debootstrap cannot fetch Debian here"; return 0 ;;
    *) return 1 ;;
    esac
    build_image router && build_image agent && build_image sim && run_built_programs
}
