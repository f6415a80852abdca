#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long until the first token of a long prompt, by where its blocks are: in the engine's own cache,
in CPU memory, on the SSD, or nowhere.

One real engine, one client. Each prompt is asked for a single token, so that the answer's time is the
first token's. Beside the loads stands what the agent predicted for them: blocks by its own measured
rates (its metrics, just before), and its constant for the beginning of a load.

    SAMOVAR_VLLM_VENV=/path build/venv/bin/python tests/vllm/tiers_ttft.py --rounds 50
"""

import argparse
import dataclasses
import pathlib
import random
import statistics
import sys
import tempfile
import time

from cluster import reset_cache
from engines import Cache, make_model
from tiers import COUNTED, PAGE_BYTES, VOCABULARY, Node, complete

BLOCK_TOKENS = 32
LOAD_START_MS = 5   # the agent's, of any load
CPU_SMALL_MIB = 10  # of two prompts
PUSHERS = 4
CACHE = Cache(block_tokens=BLOCK_TOKENS, block_count=200, context_tokens=4608, dtype="float32",
              publishes=True)


@dataclasses.dataclass
class Row:
    name: str
    ms: list = dataclasses.field(default_factory=list)
    load_ms: list = dataclasses.field(default_factory=list)  # beyond the engine's own cache
    predicted_ms: list = dataclasses.field(default_factory=list)
    missed: int = 0  # asked for, but its blocks were not where the row says

    def text(self):
        quarters = statistics.quantiles(self.ms, n=4) if len(self.ms) > 1 else [0, 0, 0]
        return (f"{self.name:<24} {len(self.ms):4} {middle(self.ms)} {quarters[0]:8.1f} "
                f"{quarters[2]:8.1f} {middle(self.load_ms)} {middle(self.predicted_ms)}"
                + (f"   {self.missed} were elsewhere" if self.missed else ""))


def middle(values):
    return f"{statistics.median(values):8.1f}" if values else "       -"


class Measure:
    def __init__(self, node, tokens):
        self.node, self.engine, self.tokens = node, node.engines[0], tokens
        self.blocks = (tokens - 1) // BLOCK_TOKENS
        self.rng = random.Random(1)

    def prompt(self):
        return [self.rng.randrange(10, VOCABULARY) for _ in range(self.tokens)]

    def ask(self, row, prompt, counts=lambda: 0, wanted=0):
        """wanted: by how much the count must grow, so that the time is that of the row."""
        before, began = counts(), time.monotonic()
        complete(self.engine, prompt, max_tokens=1)
        ms = (time.monotonic() - began) * 1000
        is_there = counts() - before >= wanted
        if is_there:
            row.ms.append(ms)
        row.missed += not is_there
        return is_there

    def ask_own(self, row, prompt):
        return self.ask(row, prompt, lambda: self.engine.metric(COUNTED["own_hits"]), self.tokens * 0.9)

    def ask_tier(self, row, prompt, tier):
        reset_cache(self.engine)
        rate = self.node.agent.metric("samovar_agent_tier_load_bytes_per_s", tier=tier)
        queue_ms = self.node.agent.metric("samovar_agent_tier_load_queue_ms", tier=tier)
        own = Row("")
        if not (self.ask(row, prompt, lambda: self.node.loaded(tier), self.blocks * 0.9)
                and self.ask_own(own, prompt)):
            return
        # The same prompt again differs by the load alone, and the machine had no time to change.
        row.load_ms.append(row.ms[-1] - own.ms[0])
        if rate > 0:
            row.predicted_ms.append(LOAD_START_MS + queue_ms
                                    + self.blocks * PAGE_BYTES / rate * 1000)

    def from_cpu(self, rounds):
        fresh, own, cpu = Row("computed, and saved"), Row("the engine's own cache"), Row("CPU memory")
        for _ in range(rounds):
            prompt = self.prompt()
            self.ask(fresh, prompt)
            self.ask_own(own, prompt)
            self.ask_tier(cpu, prompt, "cpu")
        return [own, cpu, fresh]

    def from_ssd(self, rounds):
        """Each prompt is loaded once while it is in CPU memory, and so is worth a write when others
        push it out. The last ones push, and are not measured."""
        ssd, unused = Row("SSD"), Row("")
        prompts = [self.prompt() for _ in range(rounds + PUSHERS)]
        for prompt in prompts:
            self.ask(unused, prompt)
            self.ask_tier(unused, prompt, "cpu")
        for prompt in prompts[:rounds]:
            self.ask_tier(ssd, prompt, "ssd")
        return [ssd]

    def computed(self, rounds):
        """Without an agent."""
        row = Row("computed, no agent")
        for _ in range(rounds):
            self.ask(row, self.prompt())
        return [row]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=4096)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="samovar-ttft-") as name:
        folder = pathlib.Path(name)
        node = Node(folder, make_model(folder / "tiny"), CACHE)
        try:
            node.start_engine().wait_ready()
            measure = Measure(node, options.tokens)
            rows = measure.computed(options.rounds)
            node.start_agent(1024, 0)
            rows = measure.from_cpu(options.rounds) + rows
            node.stop_agent()
            node.start_agent(CPU_SMALL_MIB, 1024)
            rows[2:2] = measure.from_ssd(options.rounds)
            node.stop_agent()
        finally:
            node.close()
    print(f"first token of {options.tokens} tokens, ms; the load: beyond the engine's own cache\n"
          f"{'blocks are in':<24} {'n':>4} {'median':>8} {'25 %':>8} {'75 %':>8} "
          f"{'load':>8} {'said':>8}")
    for row in rows:
        print(row.text())
    return 0 if all(row.ms for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
