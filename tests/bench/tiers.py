#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tiers are worth and what they cost, with simulated engines and real bytes: pages are copied,
compared and written to the disk of this machine; only the computing is simulated.

thrash    a working set three times what engines, CPU memory and SSD hold together, asked for at
          random: requests a second without tiers, with, and with but without the guard. Goal: with
          >= 0.9 of without.
cycle     the same, asked for in turns: whatever is saved leaves before it is wanted, unless somebody
          lets it stay. The same goal.
fits      at random, and CPU memory holds it all: what tiers are for.
prefetch  prompts that lie on the SSD alone, asked for while the engine is busy with another for two
          seconds: how long behind that one's end the first token comes, with the router's hints (they
          bring the blocks into CPU memory meanwhile) and without.

    build/bench/tiers              # about ten minutes
    build/bench/tiers --quick      # small, short, nothing to quote

Exit 0: goals reached; 1: missed; 2: a page was wrong or a request failed; 77: a program is missing.
"""

import argparse
import dataclasses
import http.client
import itertools
import json
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "integration"))

from peers.openai_api import MODEL  # noqa: E402
from peers.process import program, wait_until  # noqa: E402
from peers.redis_server import RedisServer  # noqa: E402
from peers.router import Router  # noqa: E402
from peers.tiered_node import BLOCK_TOKENS, TieredNode, prompt  # noqa: E402

EXIT_SKIP = 77
DECODE_MS = 5


@dataclasses.dataclass
class Plan:
    engines: int = 2
    engine_blocks: int = 384     # of each
    cpu_pages: int = 768
    ssd_pages: int = 1536
    page_bytes: int = 512 << 10
    prompt_blocks: int = 48
    prefill_tps: int = 8000
    clients: int = 8
    warm_s: float = 10
    seconds: float = 30
    prefetches: int = 20


QUICK = Plan(engine_blocks=96, cpu_pages=96, ssd_pages=192, page_bytes=64 << 10, prompt_blocks=12,
             clients=4, warm_s=1, seconds=2, prefetches=2)


# way -> flags of the agent; None: there is none, and the engines keep nothing.
WAYS = {"no tiers": None, "tiers": [], "tiers, no guard": ["--thrash-guard=false"]}


class Broken(Exception):
    """What no bench may show: a request that failed."""


class Place:
    """A folder, a Redis and a secret; nodes and routers in it, which are killed with it where they
    were not stopped."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.redis = RedisServer()
        self.secret_file = self.folder / "secret"
        self.secret_file.touch(0o600)
        self.secret_file.write_text("as good as any other for a bench\n")
        self.nodes, self.routers = [], []

    def node(self, plan, *agent_flags, has_agent=True, sim_flags=()):
        flags = ["--prefill-tps", plan.prefill_tps, *sim_flags]
        self.nodes.append(TieredNode(
            self.folder / f"node-{len(self.nodes)}", self.redis, self.secret_file,
            engine_count=plan.engines, engine_blocks=plan.engine_blocks + 1,
            cpu_pages=plan.cpu_pages, ssd_pages=plan.ssd_pages, page_bytes=plan.page_bytes,
            sim_flags=flags, agent_flags=agent_flags, has_agent=has_agent))
        return self.nodes[-1]

    def router(self, *flags):
        self.routers.append(Router([], ["--redis", self.redis.url, "--secret-file",
                                        self.secret_file, "--probe-interval-ms", 200, *flags]))
        return self.routers[-1]

    def close(self):
        for process in (*self.routers, *self.nodes):
            process.kill()
        self.redis.stop()


def discard(node):
    """Its pages must have been right; what it has on disk makes room."""
    node.check_pages()
    node.stop()
    shutil.rmtree(node.ssd, ignore_errors=True)


# --- throughput -------------------------------------------------------------------------------------

class Clients:
    """Ask in a loop, each over a connection of its own; prompts at random, equally often, or in
    turns."""

    def __init__(self, plan, sims, prompts, in_turns):
        self.prompts = prompts
        self.turns = itertools.cycle(prompts) if in_turns else None
        self.done, self.cached, self.failures = 0, 0, []
        self.is_over = False
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(sims[n % len(sims)], n), daemon=True)
                        for n in range(plan.clients)]
        for thread in self.threads:
            thread.start()

    def run(self, sim, number):
        choose = random.Random(number)
        conn = http.client.HTTPConnection(*sim.address, timeout=60)
        while not self.is_over:
            if self.turns:
                with self.lock:
                    body = next(self.turns)
            else:
                body = choose.choice(self.prompts)
            try:
                conn.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                answer = conn.getresponse()
                told = json.loads(answer.read())
                cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
            except (OSError, KeyError, http.client.HTTPException) as failure:
                self.failures.append(repr(failure))
                conn.close()
                continue
            with self.lock:
                self.done += 1
                self.cached += cached

    def stop(self):
        self.is_over = True
        for thread in self.threads:
            thread.join()


def throughput(plan, node, working_set, in_turns):
    """(requests a second, share of prompt tokens that was not computed) once it runs evenly."""
    count = max(2, int(working_set / plan.prompt_blocks))
    prompts = [json.dumps({"model": MODEL, "prompt": prompt(seed, plan.prompt_blocks),
                           "max_tokens": 1}) for seed in range(count)]
    clients = Clients(plan, node.sims, prompts, in_turns)
    time.sleep(plan.warm_s)
    done, cached, begun = clients.done, clients.cached, time.monotonic()
    time.sleep(plan.seconds)
    done, cached = clients.done - done, clients.cached - cached
    took = time.monotonic() - begun
    clients.stop()
    if clients.failures:
        raise Broken(f"{len(clients.failures)} requests failed: {clients.failures[0]}")
    return done / took, cached / (done * (plan.prompt_blocks * BLOCK_TOKENS + 1))


def tier_figures(node):
    metrics = node.agent.metrics()
    names = ("saved", "save_refused", "turned_away", "demoted", "demotion_skipped", "loaded_cpu", "loaded_ssd",
             "evicted_cpu", "evicted_ssd")
    return ", ".join(f"{name} {metrics[f'samovar_agent_tier_blocks_{name}_total']:.0f}"
                     for name in names)


def run_load(place, plan, name, working_set, in_turns=False):
    """Whether tiers cost no more than a tenth."""
    rates = {}
    print(f"{name}: {working_set:.0f} blocks of {plan.page_bytes >> 10} KiB are asked for; engines "
          f"hold {plan.engines * plan.engine_blocks}, CPU {plan.cpu_pages}, SSD {plan.ssd_pages}")
    for way, flags in WAYS.items():
        node = place.node(plan, *(flags or ()), has_agent=flags is not None)
        rates[way], share = throughput(plan, node, working_set, in_turns)
        print(f"  {way:22} {rates[way]:7.1f} requests/s, {100 * share:5.1f} % found"
              + (f"; {tier_figures(node)}" if flags is not None else ""), flush=True)
        discard(node)
    share = rates["tiers"] / rates["no tiers"]
    print(f"  goal: tiers >= 0.9 of no tiers: {share:.2f}: {'reached' if share >= 0.9 else 'MISSED'}")
    return share >= 0.9


# --- prefetch ---------------------------------------------------------------------------------------

def first_token_s(address, body):
    """From the request to the first event with text."""
    conn = http.client.HTTPConnection(*address, timeout=120)
    begun = time.monotonic()
    conn.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}),
                 {"Content-Type": "application/json"})
    answer = conn.getresponse()
    if answer.status != 200:
        raise Broken(f"{answer.status}: {answer.read()!r}")
    while True:
        line = answer.readline()
        if not line:
            raise Broken("a stream without text")
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            took = time.monotonic() - begun
            answer.read()
            conn.close()
            return took


def talk(seed, plan):
    """Text of about prompt_blocks blocks."""
    words = random.Random(seed)
    text = " ".join(f"{words.getrandbits(32):08x}" for _ in range(plan.prompt_blocks * 6))
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4}


def busy_tokens():
    """The tokens of an answer that takes two seconds."""
    return int(2000 / DECODE_MS)


def push_down(node, plan):
    """Engine and CPU memory are full of others' blocks."""
    for _ in range(2 + plan.cpu_pages // plan.engine_blocks):
        node.sims[0].evict(plan.engine_blocks)


def wait_behind(node, plan, address, body):
    """How long behind the end of another's answer of two seconds the first token comes, where the
    engine does one at a time."""
    ended = []

    def work():
        node.sims[0].ask(prompt(random.getrandbits(60), 1), answer_tokens=busy_tokens())
        ended.append(time.monotonic())

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: node.sims[0].running() == 1, "the engine works")
    begun = time.monotonic()
    took = first_token_s(address, body)
    worker.join()
    return begun + took - ended[0]


def run_prefetch(place, plan):
    plan = dataclasses.replace(plan, engines=1, prompt_blocks=4 * plan.prompt_blocks)
    plan = dataclasses.replace(plan, engine_blocks=2 * plan.prompt_blocks + 32,
                               cpu_pages=3 * plan.prompt_blocks, ssd_pages=6 * plan.prompt_blocks)
    node = place.node(plan, sim_flags=["--max-running", 1, "--decode-ms", DECODE_MS,
                                       "--decode-ms-per-request", 0])
    routers = {"no hints": place.router("--prefetch-hints=false"), "hints": place.router()}
    for router in routers.values():
        router.wait_ready()
        router.wait_states("up", 1)
        router.wait_believed(1, BLOCK_TOKENS)
    waits = {way: [] for way in routers}
    from_ssd = {way: 0 for way in routers}
    for number in range(plan.prefetches):
        for way, router in routers.items():
            body = talk(f"{way} {number}", plan)
            for _ in range(3):  # used, and so worth a place on the SSD
                first_token_s(router.address, body)
                node.sims[0].evict(plan.engine_blocks)
            push_down(node, plan)
            time.sleep(0.1)  # the map says so
            before = loaded(node, "ssd")
            waits[way].append(wait_behind(node, plan, router.address, body))
            from_ssd[way] += loaded(node, "ssd") - before
    print(f"prefetch: prompts of {plan.prompt_blocks} blocks of {plan.page_bytes >> 10} KiB on the SSD "
          "alone, asked for while the engine is busy for two seconds")
    for way, taken in waits.items():
        print(f"  {way:22} first token {statistics.median(taken) * 1000:6.1f} ms behind its turn "
              f"(median of {len(taken)}, {min(taken) * 1000:.1f} to {max(taken) * 1000:.1f}); "
              f"{from_ssd[way] / len(taken):.0f} blocks a request from the SSD")
    print(f"  {tier_figures(node)}; promoted "
          f"{node.agent.metrics()['samovar_agent_tier_blocks_promoted_total']:.0f}")
    for router in routers.values():
        router.stop()
    discard(node)


def loaded(node, tier):
    return node.agent.metrics()[f"samovar_agent_tier_blocks_loaded_{tier}_total"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["thrash", "cycle", "fits", "prefetch"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", help="on the disk to measure (default: a temporary one)")
    arguments = parser.parse_args()
    if not shutil.which("redis-server") or not program("samovar-agent").exists():
        print("SKIPPED: redis-server or samovar-agent is missing")
        return EXIT_SKIP
    plan = QUICK if arguments.quick else Plan()
    held = plan.engines * plan.engine_blocks + plan.cpu_pages + plan.ssd_pages
    is_reached = True
    with tempfile.TemporaryDirectory(prefix="tiers-", dir=arguments.folder) as folder:
        place = Place(folder)
        try:
            if "thrash" in arguments.what:
                is_reached &= run_load(place, plan, "thrash", 3 * held)
            if "cycle" in arguments.what:
                is_reached &= run_load(place, plan, "cycle", 3 * held, in_turns=True)
            if "fits" in arguments.what:
                is_reached &= run_load(place, plan, "fits", 0.8 * plan.cpu_pages + plan.engine_blocks)
            if "prefetch" in arguments.what:
                run_prefetch(place, plan)
        except (AssertionError, Broken) as failure:
            print(f"BROKEN: {failure}")
            return 2
        finally:
            place.close()
    print("reached" if is_reached else "MISSED")
    return 0 if is_reached or arguments.quick else 1


if __name__ == "__main__":
    sys.exit(main())
