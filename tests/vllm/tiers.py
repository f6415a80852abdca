# SPDX-License-Identifier: Apache-2.0
"""Real engines whose blocks an agent keeps: a node of them, a load of prompts, and what came of it.

The load is more than the engine's own cache holds, by several clients at once, so that blocks are
evicted and requests preempted; now and then a client leaves. Prompts are token ids, and answers are
compared as token ids.
"""

import concurrent.futures
import dataclasses
import http.client
import json
import random
import signal
import threading
import time
import urllib.request

from cluster import Agent, Redis, make_secret
from engines import MODEL, Cache, Engine, wait_until

PROMPTS = 200
CLIENTS = 8
ANSWER_TOKENS = 40
VOCABULARY = 4000
PAGE_BYTES = 32768  # of the tiny model in float32, 32 tokens a block
ASK_S = 120
# Of the engine: fewer blocks than its clients want at once.
CACHE = Cache(block_tokens=32, block_count=120, context_tokens=2304, dtype="float32",
              publishes=True)


def prompts_of(count, seed=1, tokens_max=1100):
    """Families with a common beginning, as conversations have; no two are equal."""
    rng = random.Random(seed)

    def tokens(least, most):
        return [rng.randrange(10, VOCABULARY) for _ in range(rng.randint(least, most))]
    stems = [tokens(200, tokens_max // 2) for _ in range(max(1, count // 4))]
    return [rng.choice(stems) + tokens(60, tokens_max // 2) for _ in range(count)]


def complete(engine, prompt, max_tokens=ANSWER_TOKENS):
    """(the answer's token ids, the usage)"""
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": max_tokens,
                       "temperature": 0, "return_token_ids": True, "ignore_eos": True})
    request = urllib.request.Request(f"{engine.url}/v1/completions", body.encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ASK_S) as answer:
        said = json.loads(answer.read())
    return said["choices"][0]["token_ids"], said["usage"]


def ask_and_leave(engine, prompt, after_s):
    """A client that leaves before it is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=ASK_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(
            {"model": MODEL, "prompt": prompt, "max_tokens": 200, "temperature": 0}),
            {"Content-Type": "application/json"})
        time.sleep(after_s)
    finally:
        connection.close()


@dataclasses.dataclass
class Outcome:
    """What a load came to."""
    name: str
    answers: list  # of each prompt, its token ids
    failures: list
    hits: float = 0         # tokens that came from the agent's tiers
    own_hits: float = 0     # tokens that came from the engine's own cache
    preemptions: float = 0
    took_s: float = 0

    def differences(self, other):
        return [i for i, answer in enumerate(self.answers) if answer != other.answers[i]]

    def __str__(self):
        return (f"{self.name}: {len(self.answers)} prompts, {len(self.failures)} failed, "
                f"{self.own_hits:.0f} tokens of the engine's own cache, {self.hits:.0f} of the "
                f"tiers, {self.preemptions:.0f} preemptions, {self.took_s:.1f} s")


COUNTED = {"hits": "vllm:external_prefix_cache_hits_total",
           "own_hits": "vllm:prefix_cache_hits_total",
           "preemptions": "vllm:num_preemptions_total"}


def run_load(name, engine, prompts, aborts=0.15, clients=CLIENTS, seed=1):
    """Asks all prompts, in an order of the seed's; aborts: clients that leave, for each that stays."""
    rng = random.Random(seed)
    order = list(range(len(prompts)))
    rng.shuffle(order)
    outcome = Outcome(name, [None] * len(prompts), [])
    before = {field: engine.metric(metric) for field, metric in COUNTED.items()}
    began = time.monotonic()

    def one(index, leaves_after_s):
        if leaves_after_s is not None:
            ask_and_leave(engine, prompts[index], leaves_after_s)
            return
        try:
            outcome.answers[index] = complete(engine, prompts[index])[0]
        except Exception as error:  # whatever it is, it is no answer
            outcome.failures.append((index, repr(error)))

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        for index in order:
            if rng.random() < aborts:
                pool.submit(one, rng.randrange(len(prompts)), rng.uniform(0.002, 0.3))
            pool.submit(one, index, None)
    outcome.took_s = time.monotonic() - began
    wait_until(lambda: engine.running() == 0, "the engine is idle", 60)
    for field, metric in COUNTED.items():
        setattr(outcome, field, engine.metric(metric) - before[field])
    print(outcome, flush=True)
    return outcome


class Control:
    """The answers without a connector: of the same load, twice."""

    DIFFERENCES_MAX = 10  # more, and the control is none

    def __init__(self, first, second):
        self.outcome = first
        self.unsure = set(first.differences(second))
        print(f"control: prompts whose two answers differ: {sorted(self.unsure)}")
        assert not first.failures and not second.failures
        assert len(self.unsure) <= self.DIFFERENCES_MAX

    def check(self, outcome):
        """All answered, and as without tiers. outcome: of all prompts, or of the first so many."""
        different = outcome.differences(self.outcome)
        counted = [index for index in different if index not in self.unsure]
        print(f"{outcome.name}: differs at {different}, of which count {counted}")
        assert outcome.failures == []
        assert counted == []


class Node:
    """One agent with tiers, and the engines that share it."""

    def __init__(self, folder, model_folder, cache=CACHE, engines=(), socket=None, beside=None):
        """engines: that are there already, with a connector to socket; they stay when it closes, as
        does the map of the node beside this one."""
        self.folder, self.model_folder = folder, model_folder
        self.socket = socket or str(folder / "ipc" / "agent.sock")
        (folder / "ipc").mkdir(mode=0o700)
        self.ssd = folder / "ssd"
        self.ssd.mkdir(mode=0o700)
        self.cache = dataclasses.replace(cache, tiers=self.socket)
        self.secret_file = beside.secret_file if beside else make_secret(folder)
        self.redis = beside.redis if beside else Redis("redis", folder)
        self.others = [*engines, *([self.redis] if beside else [])]
        self.engines, self.agent, self.started = [*engines], None, 0

    def start_engine(self, port=None, **fields):
        """Ready later. fields: of Cache, that are otherwise with it."""
        self.started += 1
        engine = Engine(f"engine-{self.started}", self.model_folder, self.folder,
                        dataclasses.replace(self.cache, **fields), port)
        self.engines.append(engine)
        return engine

    def restart_engine(self, engine, **fields):
        """On the same port."""
        engine.kill()
        self.engines.remove(engine)
        again = self.start_engine(engine.port, **fields)
        again.wait_ready()
        return again

    def start_agent(self, cpu_mib, ssd_mib, *flags, environment=None, is_awaited=True):
        """Returns when the engines are registered, unless that is not awaited: it may die before."""
        self.started += 1
        ssd = ["--ssd-bytes", f"{ssd_mib}MiB", "--ssd-dir", self.ssd, "--ssd-reserve-bytes",
               "64MiB"] if ssd_mib else []
        self.agent = Agent(f"agent-{self.started}", self.engines, self.redis, self.secret_file,
                           self.folder, "--ipc-socket", self.socket, "--cpu-bytes",
                           f"{cpu_mib}MiB", *ssd, *flags, environment=environment)
        if is_awaited:
            self.wait_registered()

    def wait_registered(self):
        """Each engine's scheduler, and the workers of all its ranks."""
        def is_there():
            assert self.agent.is_running(), f"the agent ended:\n{self.agent.log_tail()}"
            alive = sum(engine.is_running() for engine in self.engines)
            return (self.agent.metric("samovar_agent_engine_connections")
                    >= (1 + self.cache.ranks) * alive)
        wait_until(is_there, f"the engines are registered:\n{self.agent.log_tail()}", 30)

    def stop_agent(self):
        status = self.agent.stop()
        assert status == 0, f"the agent ended with {status}:\n{self.agent.log_tail()}"

    def wait_scanned(self):
        """All that the SSD held before is known again."""
        wait_until(lambda: self.agent.metric("samovar_agent_tier_layouts_scanning") == 0,
                   "the SSD is scanned", 30)

    def loaded(self, tier):
        """Blocks that engines got from "cpu" or "ssd" in this life of the agent."""
        return self.agent.metric(f"samovar_agent_tier_blocks_loaded_{tier}_total")

    def close(self):
        for process in [*self.engines, *([self.agent] if self.agent else []), self.redis]:
            if process not in self.others:
                process.kill()


class Trouble(threading.Thread):
    """Calls act(rng), then again after some time, until it is stopped."""

    def __init__(self, act, pause_s, seed=1):
        super().__init__(daemon=True)
        self.act, self.pause_s, self.rng = act, pause_s, random.Random(seed)
        self.count, self._ends = 0, threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        self.join()

    def run(self):
        while not self._ends.wait(self.rng.uniform(*self.pause_s)):
            self.act(self.rng)
            self.count += 1


def pause_process(process, for_s):
    """SIGSTOP, and SIGCONT after that."""
    process.signal_all(signal.SIGSTOP)
    time.sleep(for_s)
    process.signal_all(signal.SIGCONT)


