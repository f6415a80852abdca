# SPDX-License-Identifier: Apache-2.0
"""
A node whose engines keep blocks with an agent: samovar-sims with the connector, samovar-agent with
CPU memory and an SSD directory, all of them real, and what may happen to each. Engines are asked past
any router, by token ids: what an engine says of its cached tokens is the truth.
"""

import json
import random
from pathlib import Path

from peers.agent import Agent
from peers.http1 import request_bytes
from peers.openai_api import MODEL
from peers.process import wait_until
from peers.sim import Sim
from peers.wire import HOST, Wire

BLOCK_TOKENS = 16
PAGE_BYTES = 16384
KV = f"tcp://{HOST}:*"


def prompt(seed, block_count, extra=1):
    """Token ids of so many blocks and extra more, the same for the same seed."""
    choose = random.Random(seed)
    return [choose.randrange(1000, 60000) for _ in range(block_count * BLOCK_TOKENS + extra)]


def completion(ids, answer_tokens=4, **fields):
    return {"model": MODEL, "prompt": ids, "max_tokens": answer_tokens, **fields}


class TieredSim(Sim):
    def ask(self, ids, **fields):
        """(cached tokens, text) of a whole answer."""
        answer = self.post("/v1/completions", completion(ids, **fields))
        assert answer.status == 200, answer.read_all()
        told = json.loads(answer.read_all())
        return told["usage"]["prompt_tokens_details"]["cached_tokens"], told["choices"][0]["text"]

    def begin(self, ids, **fields):
        """A request whose answer is not waited for: its connection."""
        wire = Wire.connect(self.address)
        body = json.dumps(completion(ids, **fields)).encode()
        wire.send(request_bytes("POST", "/v1/completions", body, {"Content-Type": "application/json"}))
        return wire

    def told(self):
        """What its connector counts."""
        lines = self.get("/metrics").read_all().decode().splitlines()
        return {line.split()[0][4:]: int(line.split()[1]) for line in lines
                if line.startswith("sim_")}

    def wait_registered(self, times=1):
        wait_until(lambda: self.told()["registered"] == 1
                   and self.told()["registrations_total"] >= times,
                   lambda: f"registered {times} times: {self.told()}; log ends: {self.log.text[-5:]}")
        return self

    def evict(self, block_count):
        """What it has of before makes room for a prompt that nobody else asks for."""
        self.ask(prompt(random.getrandbits(60), block_count, -1), answer_tokens=1)


class TieredNode:
    """Ends what it started, in order, in stop()."""

    def __init__(self, directory, redis, secret_file, *, engine_count=1, engine_blocks=65,
                 cpu_pages=256, ssd_pages=0, page_bytes=PAGE_BYTES, sim_flags=(), agent_flags=(),
                 has_tiers=True, env=None):
        """has_tiers: False: engines that keep nothing beneath their own cache, and no agent."""
        self.directory = Path(directory)
        self.redis, self.secret_file = redis, secret_file
        self.engine_blocks, self.page_bytes = engine_blocks, page_bytes
        self.cpu_pages, self.ssd_pages = cpu_pages, ssd_pages
        self.sim_flags, self.agent_flags = sim_flags, agent_flags
        self.socket = self.directory / "engines" / "agent.sock"
        self.ssd = self.directory / "ssd"
        self.state = self.directory / "state"
        for path in (self.socket.parent, self.ssd, self.state):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.agent, self.sims, self.has_tiers = None, [], has_tiers
        try:
            for _ in range(engine_count):
                self.sims.append(TieredSim(*self.engine_flags()))
            if has_tiers:
                self.start_agent(env)
        except BaseException:
            self.kill()
            raise

    def engine_flags(self, events=KV, replay=KV):
        connected = ["--connector", self.socket, "--page-bytes", self.page_bytes,
                     "--connector-lookup-ms", 1000] if self.has_tiers else []
        return ["--blocks", self.engine_blocks, "--block-size", BLOCK_TOKENS, "--kv-events", events,
                "--kv-replay", replay, *connected, *self.sim_flags]

    def start_agent(self, env=None):
        """Returns when all engines that run are registered with it."""
        joined = {"kv_events": ",".join(sim.kv_events for sim in self.sims),
                  "kv_replay": ",".join(sim.kv_replay for sim in self.sims)}
        times = [sim.told()["registrations_total"] for sim in self.sims]
        flags = ["--ipc-socket", self.socket, "--cpu-bytes", self.cpu_pages * self.page_bytes,
                 "--probe-interval-ms", 200]
        if self.ssd_pages:
            flags += ["--ssd-dir", self.ssd, "--ssd-bytes", self.ssd_bytes,
                      "--ssd-reserve-bytes", 0]
        self.agent = Agent(",".join(sim.url for sim in self.sims), self.redis, self.secret_file,
                           *flags, *self.agent_flags, state_dir=self.state, env=env, **joined)
        with self.agent.killed_on_failure():
            for sim, before in zip(self.sims, times):
                sim.wait_registered(before + 1)
        return self.agent

    @property
    def ssd_bytes(self):
        """The quota: a header a page, and a little more."""
        return self.ssd_pages * (self.page_bytes + 4096)

    def restart_agent(self, env=None):
        """kill -9, unless it is dead, and another one."""
        self.agent.kill()
        return self.start_agent(env)

    def restart_engine(self, number, *flags, is_awaited=True):
        """kill -9, unless it is dead, and another one on the same ports. Returns when it is
        registered, unless that is not awaited: it may die before."""
        sim = self.sims[number]
        sim.restart(*self.engine_flags(self.events[number], self.replays[number]), *flags)
        if is_awaited:
            sim.wait_registered()

    def remember_ports(self):
        """Before an engine dies: what it printed is asked of a running one alone."""
        self.events = [sim.kv_events for sim in self.sims]
        self.replays = [sim.kv_replay for sim in self.sims]
        return self

    def ssd_used(self):
        """Bytes of files and blocks below the directory, whichever is more."""
        files = [path.stat() for path in self.ssd.rglob("*") if path.is_file()]
        return sum(max(file.st_size, file.st_blocks * 512) for file in files)

    def mappings(self):
        """Of engines' pages, in the agent."""
        maps = Path(f"/proc/{self.agent.pid}/maps").read_text().splitlines()
        return sum("samovar-sim pages" in line for line in maps)

    def check_pages(self):
        """None was wrong, and some were looked at."""
        for sim in self.sims:
            told = sim.told()
            assert told["wrong_pages_total"] == 0, sim.log.text[-10:]

    def stop(self):
        failures = []
        for process in (*self.sims, self.agent):
            try:
                if process is not None:
                    process.stop()
            except Exception as failure:  # the others must end too
                failures.append(f"{type(failure).__name__}: {failure}")
        self.kill()
        assert not failures, "\n".join(failures)

    def kill(self):
        for process in (*self.sims, self.agent):
            if process is not None:
                process.kill()
