#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well routers know what engines hold: predicted against reported cached tokens.

Engines with small caches (real ones, or samovar-sim), an agent beside each, a Redis, two routers, and
conversations that do not all fit. Everything is read from the routers' log lines: for each request,
what was predicted when the worker was chosen, and what the engine said it reused. Printed for each
run are the share of prompt tokens that came from a cache, the sum of |predicted - reported| as a share
of all prompt tokens, its median in engine blocks, and how much too much was predicted in each third of
the run: claims that stay wrong would show there. --json has one object a run. --rung guess is the same
without agents and Redis.

    SAMOVAR_VLLM_VENV=/path python3 tests/vllm/residency.py --engine vllm --block 32 128 --hashes int bytes
    python3 tests/vllm/residency.py --engine sim --rung guess exact --template plain tools_late
"""

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

from chat_client import ChatClient
from cluster import Cluster, start_engines
from conversations import Load, Wish
from engines import MODEL, Cache, wait_until

DETAIL_KEYS = ("request_id", "worker", "rung", "prompt_tokens", "predicted_cached_tokens",
               "cached_tokens", "prompt_blocks", "matched_blocks", "attempts")


@dataclasses.dataclass
class Run:
    """What one run varies."""
    rung: str = "exact"
    answer_tokens: int = 1
    has_tools: bool = False
    requests: int = 300
    clients: int = 2
    routers: int = 2
    seed: int = 1
    conversations: int = 24
    tool_calls: float = 0
    text_bytes_max: int = 9000
    think_ms: int = 100


def send_all(cluster, run):
    """Sends the run's turns. Returns the failures, as texts, and the times to first tokens."""
    load = Load(Wish(run.seed, run.conversations, run.answer_tokens, run.has_tools, run.tool_calls,
                     run.text_bytes_max, run.think_ms / 1000))
    choose = random.Random(run.seed)
    turns = iter(range(run.requests))  # next() of a range's iterator is atomic

    def work(_):
        client, failures, ttfts = ChatClient(cluster.routers, MODEL), [], []
        for _ in turns:
            one, body = load.take()
            answer, told = client.ask(choose.choice(cluster.routers), body,
                                      f"c{one.number}-t{one.turn}")
            load.put_back(one, answer)
            (failures if answer is None else ttfts).append(told)
        client.close()
        return failures, ttfts

    with concurrent.futures.ThreadPoolExecutor(run.clients) as pool:
        done = list(pool.map(work, range(run.clients)))
    return sum((failures for failures, _ in done), []), sum((ttfts for _, ttfts in done), [])


def percent(part, whole):
    return round(100 * part / whole, 3) if whole else None


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else None


def figures_of(lines, block_tokens):
    """Of log lines that say what was predicted and what was reported."""
    prompt = sum(line["prompt_tokens"] for line in lines)
    errors = [line["predicted_cached_tokens"] - line["cached_tokens"] for line in lines]
    blocks = [abs(error) / block_tokens for error in errors]
    return {
        "requests": len(lines), "prompt_tokens": prompt,
        "hit_percent": percent(sum(line["cached_tokens"] for line in lines), prompt),
        "predicted_percent": percent(sum(line["predicted_cached_tokens"] for line in lines), prompt),
        "error_percent": percent(sum(map(abs, errors)), prompt),
        "over_percent": percent(sum(e for e in errors if e > 0), prompt),
        "under_percent": percent(-sum(e for e in errors if e < 0), prompt),
        "blocks_median": round(statistics.median(blocks), 2) if blocks else None,
        "blocks_p90": quantile(blocks, 0.9), "blocks_p99": quantile(blocks, 0.99),
    }


def over_by_third(lines, block_tokens):
    """What was promised and not there, first to last."""
    lines = sorted(lines, key=lambda line: line["time"])
    cuts = [len(lines) * i // 3 for i in range(4)]
    return [figures_of(lines[a:b], block_tokens)["over_percent"] for a, b in zip(cuts, cuts[1:])]


def measure(cluster, run, cache):
    """One run on engines that forget what they held. Returns (its figures, its log lines)."""
    began = time.monotonic()
    cluster.begin_run(run.rung, run.routers)
    failures, ttfts = send_all(cluster, run)
    wait_until(lambda: len(cluster.request_lines()) >= run.requests, "a log line a request", 10)
    lines = cluster.request_lines()
    cluster.end_run()
    told = [line for line in lines if "cached_tokens" in line and "predicted_cached_tokens" in line]
    figures = {**dataclasses.asdict(run), "block_tokens": cache.block_tokens, "hashes": cache.hashes,
               "cache_tokens": cache.block_tokens * cache.block_count,
               "engines": len(cluster.engines), "failed": len(failures), "failures": failures[:3],
               **figures_of(told, cache.block_tokens),
               "over_percent_by_third": over_by_third(told, cache.block_tokens),
               "ttft_ms_p50": round(1000 * (quantile(ttfts, 0.5) or 0), 1),
               "ttft_ms_p90": round(1000 * (quantile(ttfts, 0.9) or 0), 1),
               "by_rung": {rung: figures_of([line for line in told if line["rung"] == rung],
                                            cache.block_tokens)
                           for rung in sorted({line["rung"] for line in told})},
               "seconds": round(time.monotonic() - began, 1)}
    return figures, lines


def sentence(name, figures):
    rungs = ", ".join(f"{rung} {part['requests']} (error {part['error_percent']} %)"
                      for rung, part in figures["by_rung"].items())
    return (f"{name} block {figures['block_tokens']} hashes {figures['hashes']} "
            f"{'tools' if figures['has_tools'] else 'no tools'} answers {figures['answer_tokens']} "
            f"{figures['rung']} {figures['clients']} clients: {figures['requests']} requests of {figures['prompt_tokens']} tokens, "
            f"{figures['failed']} failed, hit {figures['hit_percent']} %, predicted "
            f"{figures['predicted_percent']} %, |error| {figures['error_percent']} % (over "
            f"{figures['over_percent']}, by third {figures['over_percent_by_third']}, under "
            f"{figures['under_percent']}), blocks median "
            f"{figures['blocks_median']} p90 {figures['blocks_p90']} p99 {figures['blocks_p99']}; "
            f"{rungs}; {figures['seconds']} s")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--engine", choices=("vllm", "sim"), default="sim")
    add("--engines", type=int, default=2)
    add("--routers", type=int, default=2)
    add("--rung", nargs="+", choices=("exact", "guess"), default=["exact"])
    add("--block", nargs="+", type=int, default=[32], help="tokens of an engine's block")
    add("--hashes", nargs="+", choices=("int", "bytes"), default=["int"])
    add("--tools", nargs="+", type=int, choices=(0, 1), default=[0])
    add("--tool-calls", type=float, default=0, help="share of the turns that must call one")
    add("--answers", nargs="+", type=int, default=[1], help="tokens of an answer")
    add("--template", nargs="+", default=["plain"], help="of samovar-sim")
    add("--sim", nargs="*", default=[], help="more for samovar-sim: retokenise=10")
    add("--cache-tokens", type=int, default=11200, help="that an engine holds")
    add("--requests", type=int, default=300)
    add("--clients", nargs="+", type=int, default=[2],
        help="turns at once; what waits in an engine's queue may be evicted by what is before it")
    add("--conversations", type=int, default=24)
    add("--text-bytes", type=int, default=9000, help="of a conversation that goes on no more")
    add("--think-ms", type=int, default=100,
        help="between an answer and the next turn; below some 50 ms another router may not know yet")
    add("--seed", type=int, default=1)
    add("--json", help="file to which an object a run is appended")
    add("--detail", help="file to which what a request was predicted is appended")
    add("--keep", help="folder for logs that stay")
    return parser.parse_args()


def append_lines(path, objects):
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in objects)


def run_all(options, folder):
    sim_flags = [f"--{flag}" for flag in options.sim]
    for block, hashes, template in itertools.product(options.block, options.hashes,
                                                     options.template):
        cache = Cache(block, options.cache_tokens // block,
                      min(8192, options.cache_tokens - 2 * block), hashes,
                      "exact" in options.rung)
        home = folder / f"{block}-{hashes}-{template}"
        home.mkdir()
        flags = ["--template", template, *sim_flags] if options.engine == "sim" else []
        cluster = Cluster(home, start_engines(home, options.engine, options.engines, cache,
                                              *flags))
        try:
            cluster.wait_ready()
            for tools, answers, clients, rung in itertools.product(
                    options.tools, options.answers, options.clients, options.rung):
                run = Run(rung, answers, bool(tools), options.requests, clients,
                          options.routers, options.seed, options.conversations,
                          options.tool_calls, options.text_bytes, options.think_ms)
                figures, lines = measure(cluster, run, cache)
                name = options.engine + (f" {template}" if flags else "")
                print(sentence(name, figures), flush=True)
                append_lines(options.json, [{"engine": options.engine, "template": template,
                                             "sim": options.sim, **figures}])
                append_lines(options.detail, [{key: line.get(key) for key in DETAIL_KEYS}
                                              for line in lines])
        finally:
            cluster.close()


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="samovar-") as name:
        folder = pathlib.Path(options.keep or name)
        folder.mkdir(exist_ok=True)
        run_all(options, folder)


if __name__ == "__main__":
    sys.exit(main())
