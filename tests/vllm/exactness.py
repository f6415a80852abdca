#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What exact knowledge is worth: hit ratio and time to first token, exact against guess.

Eight simulated engines, and conversations that together are 0.9 of what the fleet's caches hold: they
fit if each is kept once, by the engine that will be asked again. Turns come at random moments
(Poisson), to a router at random, first as many as there are conversations, unmeasured; then the ones
that count. Times are the routers' own: first byte of the request to first content of the answer.

    build/bench/exactness            # about six minutes
    build/bench/exactness --quick    # four small engines, faster than real ones

Exit 0: exact reuses more than guess; 2: it does not, or a request failed: that is no matter of how
fast the machine is; 77: a program is missing.
"""

import argparse
import concurrent.futures
import dataclasses
import pathlib
import random
import sys
import tempfile
import threading
import time

from chat_client import ChatClient
from cluster import Cluster, has_redis, start_engines
from conversations import Load, Wish
from engines import BIN, MODEL, Cache, wait_until
from residency import append_lines, figures_of, percent, quantile

BYTES_PER_TOKEN = 3.3  # of such text in samovar-sim's tokens, marks included
EXIT_SKIP = 77


@dataclasses.dataclass
class Plan:
    engines: int
    routers: int
    cache: Cache
    working_set: float  # of what the fleet's caches hold
    turns: int          # that are measured
    rate: float         # turns a second
    answer_tokens: int
    seed: int
    speedup: float


def mean_tokens(plan):
    """Of a conversation in the middle of its life: the load is run through without an engine."""
    load = Load(Wish(plan.seed, 8))
    sizes = []
    for _ in range(400):
        one, _ = load.take()
        sizes.append(one.size() / BYTES_PER_TOKEN)
        load.put_back(one, {"role": "assistant", "content": load.writer.about(5.8, 0.8)})
    return sum(sizes[100:]) / len(sizes[100:])


def make_load(plan):
    """Conversations that are the working set, each somewhere in its life."""
    fleet_tokens = plan.engines * plan.cache.block_tokens * plan.cache.block_count
    count = int(plan.working_set * fleet_tokens / mean_tokens(plan))
    load = Load(Wish(plan.seed, count, plan.answer_tokens))
    for _ in range(6 * count):
        one, _ = load.take()
        load.put_back(one, {"role": "assistant", "content": load.writer.about(5.8, 0.8)})
    return load, count


def send_all(plan, cluster, load, warm_count):
    """Sends all turns at their moments. Returns how many failed."""
    chance = random.Random(plan.seed)
    local = threading.local()
    clients, failures = [], []

    def ask(number, router):
        if not hasattr(local, "client"):
            local.client = ChatClient(cluster.routers, MODEL)
            clients.append(local.client)
        one, body = load.take()
        kind = "warm" if number < warm_count else "turn"
        answer, told = local.client.ask(router, body, f"{kind}-{number}")
        load.put_back(one, answer)
        if answer is None:
            failures.append(told)

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        asked, moment = [], time.monotonic()
        for number in range(warm_count + plan.turns):
            moment += chance.expovariate(plan.rate)
            time.sleep(max(0, moment - time.monotonic()))
            asked.append(pool.submit(ask, number, chance.choice(cluster.routers)))
        for one in asked:
            one.result()
    for client in clients:
        client.close()
    return failures


def measure(plan, cluster, rung):
    began = time.monotonic()
    load, count = make_load(plan)
    cluster.begin_run(rung, plan.routers)
    failures = send_all(plan, cluster, load, count)
    wait_until(lambda: len(cluster.request_lines()) >= count + plan.turns,
               "a log line a request", 10)
    lines = [line for line in cluster.request_lines() if line["request_id"].startswith("turn-")
             and "cached_tokens" in line]
    cluster.end_run()
    ttfts = [line["ttft_ms"] for line in lines if "ttft_ms" in line]
    return {"rung": rung, "conversations": count, "failed": len(failures), "failures": failures[:3],
            **figures_of(lines, plan.cache.block_tokens),
            "exact_percent": percent(sum(line["rung"] == "exact" for line in lines), len(lines)),
            "ttft_ms_p50": round(quantile(ttfts, 0.5), 1),
            "ttft_ms_p90": round(quantile(ttfts, 0.9), 1),
            "ttft_ms_p99": round(quantile(ttfts, 0.99), 1),
            "seconds": round(time.monotonic() - began, 1)}


def sentence(figures):
    return (f"{figures['rung']:<5} {figures['requests']} turns of {figures['conversations']} "
            f"conversations, {figures['failed']} failed: hit {figures['hit_percent']} %, TTFT p50 "
            f"{figures['ttft_ms_p50']} p90 {figures['ttft_ms_p90']} p99 {figures['ttft_ms_p99']} ms, "
            f"|error| {figures['error_percent']} %, {figures['exact_percent']} % chosen exactly, "
            f"{figures['seconds']} s")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="under half a minute; shows that it works, no figures")
    add("--engines", type=int, default=8)
    add("--routers", type=int, default=2)
    add("--working-set", type=float, default=0.9)
    add("--turns", type=int, default=1500)
    add("--rate", type=float, default=16, help="turns a second, of all")
    add("--seed", type=int, default=1)
    add("--rung", nargs="+", default=["guess", "exact"])
    add("--json", help="file to which an object a run is appended")
    return parser.parse_args()


def make_plan(options):
    if options.quick:
        return Plan(4, options.routers, Cache(16, 1024, 4096, publishes=True), 0.9, 250, 60, 4,
                    options.seed, 8)
    return Plan(options.engines, options.routers, Cache(16, 2560, 8192, publishes=True),
                options.working_set, options.turns, options.rate, 24, options.seed, 1)


def main():
    options = parse_arguments()
    if "exact" in options.rung and not (has_redis() and (BIN / "samovar-agent").exists()):
        print("redis-server or samovar-agent is missing")
        return EXIT_SKIP
    plan = make_plan(options)
    found = {}
    with tempfile.TemporaryDirectory(prefix="samovar-") as name:
        folder = pathlib.Path(name)
        cluster = Cluster(folder, start_engines(folder, "sim", plan.engines, plan.cache,
                                                "--speedup", plan.speedup))
        try:
            cluster.wait_ready()
            for rung in options.rung:
                found[rung] = measure(plan, cluster, rung)
                print(sentence(found[rung]), flush=True)
                append_lines(options.json, [{**dataclasses.asdict(plan), **found[rung]}])
        finally:
            cluster.close()
    if len(found) < 2:
        return 0
    is_more = found["exact"]["hit_percent"] > found["guess"]["hit_percent"]
    has_failed = any(figures["failed"] for figures in found.values())
    print(f"exact reuses {'more' if is_more else 'NOT more'} than guess"
          f"{', and requests failed' if has_failed else ''}")
    return 2 if has_failed or not is_more else 0


if __name__ == "__main__":
    sys.exit(main())
