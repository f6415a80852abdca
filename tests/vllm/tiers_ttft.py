#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long until the first token of a long prompt, by where its blocks are: in the engine's own cache,
in CPU memory, on the SSD, or nowhere; and whether the router foresaw it.

One real engine with an agent, a Redis and a router, one client. Each prompt is asked for a single
token, so that the answer's time is the first token's. All cases alternate within one run, so that
whatever else the machine does meets all of them. Beside a load stand

  predicted   the router's move_ms for it, from its log line; for what is computed, its prefill_ms
  load        what the agent measured for it: from the engine's LOAD to LOADED
  engine      and what the engine added: from having room for it to going on, but for the load
  felt        the first token's time beyond that of the same prompt asked again, which is then in the
              engine's own cache: nobody's estimate

and the verdict: medians of what is predicted within 25 % of load and engine together, or, where
something is computed, of what is felt.

    SAMOVAR_VLLM_VENV=/path build/venv/bin/python tests/vllm/tiers_ttft.py --rounds 60
"""

import argparse
import dataclasses
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time
import urllib.request

from cluster import reset_cache
from engines import MODEL, Cache, Router, get, make_model, wait_until
from tiers import COUNTED, VOCABULARY, Node, complete

BLOCK_TOKENS = 32
CPU_SMALL_MIB = 10  # of two prompts
SSD_MIB = 1024
LATER = 4           # prompts after which one has left CPU memory
WITHIN = 0.25
CACHE = Cache(block_tokens=BLOCK_TOKENS, block_count=200, context_tokens=4608, dtype="float32",
              publishes=True)


@dataclasses.dataclass
class Row:
    name: str
    ms: list = dataclasses.field(default_factory=list)
    predicted_ms: list = dataclasses.field(default_factory=list)
    load_ms: list = dataclasses.field(default_factory=list)
    engine_ms: list = dataclasses.field(default_factory=list)
    felt_ms: list = dataclasses.field(default_factory=list)
    missed: int = 0  # asked for, but its blocks were not where the row says

    def ratio(self):
        """Predicted to actual; None where nothing is predicted."""
        if not self.predicted_ms:
            return None
        actual = [load + engine for load, engine in zip(self.load_ms, self.engine_ms)]
        return statistics.median(self.predicted_ms) / statistics.median(actual or self.felt_ms)

    def is_foreseen(self):
        return self.ratio() is None or abs(self.ratio() - 1) <= WITHIN

    def text(self):
        quarters = statistics.quantiles(self.ms, n=4) if len(self.ms) > 1 else [0, 0, 0]
        ratio = self.ratio()
        verdict = "" if ratio is None else f"{ratio:8.2f}   {'yes' if self.is_foreseen() else 'NO'}"
        return (f"{self.name:<24} {len(self.ms):4} {middle(self.ms)} {quarters[0]:8.1f} "
                f"{quarters[2]:8.1f} {middle(self.predicted_ms)} {middle(self.load_ms)} "
                f"{middle(self.engine_ms)} {middle(self.felt_ms)} {verdict}"
                + (f"   {self.missed} were elsewhere" if self.missed else ""))


HEAD = (f"{'blocks are in':<24} {'n':>4} {'median':>8} {'25 %':>8} {'75 %':>8} {'predict':>8} "
        f"{'load':>8} {'engine':>8} {'felt':>8} {'ratio':>8}   within 25 %")


def middle(values):
    return f"{statistics.median(values):8.1f}" if values else "       -"


class Measure:
    def __init__(self, node, router, tokens):
        self.node, self.router, self.engine = node, router, node.engines[0]
        self.tokens, self.blocks = tokens, (tokens - 1) // BLOCK_TOKENS
        self.rng, self.asked = random.Random(1), 0
        self.own, self.cpu = Row("the engine's own cache"), Row("CPU memory")
        self.ssd, self.fresh = Row("SSD"), Row("computed, and saved")

    def prompt(self):
        return [self.rng.randrange(10, VOCABULARY) for _ in range(self.tokens)]

    def ask(self, prompt):
        """Through the router: (ms until the token, its log line)"""
        self.asked += 1
        name = f"ask-{self.asked}"
        body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0,
                           "ignore_eos": True}).encode()
        request = urllib.request.Request(
            f"{self.router.url}/v1/completions", body,
            {"Content-Type": "application/json", "X-Request-Id": name})
        began = time.monotonic()
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
        return (time.monotonic() - began) * 1000, self.router.request_line(name)

    def note(self, row, ms, is_there):
        row.missed += not is_there
        if is_there:
            row.ms.append(ms)
        return is_there

    def ask_own(self, row, prompt):
        before = self.engine.metric(COUNTED["own_hits"])
        ms, _ = self.ask(prompt)
        return self.note(row, ms, self.engine.metric(COUNTED["own_hits"]) - before
                         >= self.tokens * 0.9)

    def timed_us(self, tier):
        metric = self.node.agent.metric
        return (metric("samovar_agent_tier_load_measured_us_total", tier=tier),
                metric("samovar_agent_engine_turns_us_total"))

    def push_down(self, tier):
        """The engine forgets all, and the router knows it."""
        reset_cache(self.engine)
        complete(self.engine, list(range(10, 20)), 1)  # an idle engine does not say what it forgot

        def is_down():
            row = json.loads(get(f"http://127.0.0.1:{self.router.admin_port}/residency")[1])
            row = row["workers"][0]
            return row["hbm"] == 0 and row[tier] > 0 and row["lag"] == 0
        wait_until(is_down, f"the map has nothing in the engine, and something in {tier}", 10)

    def ask_tier(self, row, prompt, tier):
        self.push_down(tier)
        loaded, (load_us, engine_us) = self.node.loaded(tier), self.timed_us(tier)
        ms, line = self.ask(prompt)
        is_there = (self.node.loaded(tier) - loaded >= self.blocks * 0.9
                    and line.get(f"matched_{tier}_tokens", 0) >= self.tokens * 0.9)
        own = Row("")
        if not self.note(row, ms, is_there):
            print("elsewhere:", tier, {key: value for key, value in line.items()
                                       if key.endswith("_tokens")}, file=sys.stderr)
        if not is_there or not self.ask_own(own, prompt):
            return
        load_us, engine_us = (now - then for now, then in zip(self.timed_us(tier),
                                                              (load_us, engine_us)))
        row.predicted_ms.append(line["move_ms"])
        row.load_ms.append(load_us / 1000)
        row.engine_ms.append(engine_us / 1000)
        # The same prompt again differs by the load alone, and the machine had no time to change.
        row.felt_ms.append(row.ms[-1] - own.ms[0])

    def ask_fresh(self, prompt):
        ms, line = self.ask(prompt)
        self.fresh.ms.append(ms)
        if self.ask_own(self.own, prompt):
            self.fresh.predicted_ms.append(line["prefill_ms"])
            self.fresh.felt_ms.append(ms - self.own.ms[-1])

    def run(self, rounds, seconds):
        """A prompt that was used once is worth a write when others push it out: those are the next
        ones. The last ones only push. Fewer rounds where the time is over before."""
        prompts, until = [], time.monotonic() + seconds
        while len(prompts) < rounds and time.monotonic() < until:
            prompts.append(self.prompt())
            self.ask_fresh(prompts[-1])
            self.ask_tier(self.cpu, prompts[-1], "cpu")
            if len(prompts) > LATER:
                self.ask_tier(self.ssd, prompts[-1 - LATER], "ssd")
        for prompt in prompts[-LATER:]:
            complete(self.engine, self.prompt(), 1)
            self.ask_tier(self.ssd, prompt, "ssd")
        return [self.own, self.cpu, self.ssd, self.fresh]

    def run_alone(self, rounds):
        """Without an agent."""
        row = Row("computed, no agent")
        for _ in range(rounds):
            row.ms.append(self.ask(self.prompt())[0])
        return row


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=int, default=3600, help="for all rounds, at most")
    parser.add_argument("--tokens", type=int, default=4096)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="samovar-ttft-") as name:
        folder = pathlib.Path(name)
        node, router = Node(folder, make_model(folder / "tiny"), CACHE), None
        try:
            node.start_engine().wait_ready()
            node.start_agent(CPU_SMALL_MIB, SSD_MIB)
            # A hint would have what lies on the SSD in CPU memory before the engine asks.
            router = Router("router", [], folder, "--redis", node.redis.url, "--secret-file",
                            node.secret_file, "--prefetch-hints=false")
            router.wait_up(1)
            measure = Measure(node, router, options.tokens)
            rows = measure.run(options.rounds, options.seconds)
            shown = get(f"http://127.0.0.1:{router.admin_port}/residency")[1]
            node.stop_agent()
            rows.append(measure.run_alone(len(rows[0].ms)))
            status = router.stop()
            assert status == 0, router.log_tail()
        finally:
            if router is not None:
                router.kill()
            node.close()
    print(f"first token of {options.tokens} tokens, ms\n{HEAD}")
    for row in rows:
        print(row.text())
    print("its agent says:", json.loads(shown)["workers"][0]["agent"])
    return 0 if all(row.ms and row.is_foreseen() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
