# SPDX-License-Identifier: Apache-2.0
"""Engines (real or simulated), an agent each, a Redis and routers, as processes."""

import os
import re
import shutil
import subprocess
import urllib.request

from engines import (BIN, MODEL, Engine, Process, Router, free_port, get, make_model,
                     wait_until)


class SimEngine(Process):
    """samovar-sim in the place of a vLLM server."""

    def __init__(self, name, folder, cache, *flags):
        self.kv_events, self.kv_replay = (f"ipc://{folder}/{name}.{what}"
                                          for what in ("events", "replay"))
        published = ["--kv-events", self.kv_events, "--kv-replay", self.kv_replay,
                     "--kv-hashes", cache.hashes] if cache.publishes else []
        super().__init__(name, [
            BIN / "samovar-sim", "--host", "127.0.0.1", "--port", "{port}", "--model", MODEL,
            "--block-size", cache.block_tokens, "--blocks", cache.block_count,
            "--max-model-len", cache.context_tokens, *published, *flags], folder)

    def wait_ready(self):
        def is_ready():
            assert self.is_running(), f"{self.name} ended:\n{self.log_tail()}"
            return get(f"{self.url}/health")[0] == 200
        wait_until(is_ready, f"{self.name} is ready:\n{self.log_tail()}", 30)


def reset_cache(engine):
    """Forgets all it holds. It may wait for requests whose clients have gone."""
    def is_reset():
        request = urllib.request.Request(f"{engine.url}/reset_prefix_cache", b"", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return b"true" in answer.read()
    wait_until(is_reset, f"{engine.name} resets its cache", 30)


def make_secret(folder):
    path = folder / "secret"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


class Redis(Process):
    """Nothing on disk, on a Unix socket."""

    def __init__(self, name, folder):
        self.path = f"{folder}/{name}.sock"
        super().__init__(name, ["redis-server", "--port", 0, "--unixsocket", self.path,
                                "--save", "", "--appendonly", "no", "--dir", folder], folder)
        wait_until(self.is_ready, f"{name} listens:\n{self.log_tail()}", 10)

    @property
    def url(self):
        return f"unix://{self.path}"

    def is_ready(self):
        assert self.is_running(), f"{self.name} ended:\n{self.log_tail()}"
        return self.command("PING") == "PONG"

    def command(self, *words):
        done = subprocess.run(["redis-cli", "-s", self.path, *map(str, words)],
                              capture_output=True, text=True, check=False)
        return done.stdout.strip()


class Agent(Process):
    def __init__(self, name, engines, redis, secret_file, folder, *flags, state="agent",
                 environment=None):
        """state: of which agent of before it takes up what it knew; of none, when it is new."""
        self.admin_port = free_port()
        state = folder / f"{state}.state"
        state.mkdir(exist_ok=True)
        super().__init__(name, [
            BIN / "samovar-agent", *words_of("--engine", engines, "url"),
            *words_of("--advertise", engines, "url"), *words_of("--kv-events", engines, "kv_events"),
            *words_of("--kv-replay", engines, "kv_replay"),
            "--redis", redis.url, "--secret-file", secret_file, "--state-dir", state,
            "--admin-port", self.admin_port, "--log-format", "json", *flags], folder, environment)

    def metric(self, name, **labels):
        """The sum over the label sets that have these; 0 where there is none."""
        text = get(f"http://127.0.0.1:{self.admin_port}/metrics")[1]
        found = re.findall(rf"^{re.escape(name)}({{.*}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for which, value in found
                   if all(f'{label}="{wanted}"' in which for label, wanted in labels.items()))


def words_of(flag, engines, what):
    return [flag, ",".join(getattr(engine, what) for engine in engines)]


def start_engines(folder, kind, count, cache, *flags):
    """kind: "vllm" or "sim"; flags: of samovar-sim. They start side by side."""
    if kind == "sim":
        return [SimEngine(f"engine-{i}", folder, cache, *flags) for i in range(count)]
    model = make_model(folder / "tiny")
    return [Engine(f"engine-{i}", model, folder, cache) for i in range(count)]


class Cluster:
    """Engines that live for several runs; what a run needs beside them is made for it and ends with
    it."""

    def __init__(self, folder, engines):
        self.folder, self.engines = folder, engines
        self.run_count = 0
        self.agents, self.routers, self.redis = [], [], None
        self.secret_file = make_secret(folder)

    def wait_ready(self):
        for engine in self.engines:
            engine.wait_ready()

    def begin_run(self, rung, router_count, *router_flags):
        """rung "exact": agents and a Redis; "guess": routers that know what they sent."""
        self.run_count += 1
        for engine in self.engines:
            reset_cache(engine)
        flags = list(router_flags)
        if rung == "exact":
            self.redis = Redis(f"redis-{self.run_count}", self.folder)
            self.agents = [Agent(f"agent-{self.run_count}-{i}", [engine], self.redis,
                                 self.secret_file, self.folder,
                                 state=f"agent-{self.run_count}-{i}")
                           for i, engine in enumerate(self.engines)]
            flags += ["--redis", self.redis.url, "--secret-file", self.secret_file]
        self.routers = [Router(f"router-{self.run_count}-{i}",
                               self.engines if rung == "guess" else [], self.folder, *flags)
                        for i in range(router_count)]
        for router in self.routers:
            router.wait_up(len(self.engines))

    def request_lines(self):
        return [line for router in self.routers for line in router.request_lines()]

    def keep_metrics(self):
        """Beside the logs: what routers and agents counted."""
        for process in [*self.routers, *self.agents]:
            text = get(f"http://127.0.0.1:{process.admin_port}/metrics")[1]
            (self.folder / f"{process.name}.metrics").write_text(text)

    def end_run(self):
        """Asks everybody to end, routers first; each must end well."""
        self.keep_metrics()
        others = [*self.agents, *([self.redis] if self.redis else [])]
        statuses = {process.name: process.stop() for process in [*self.routers, *others]}
        self.agents, self.routers, self.redis = [], [], None
        assert not any(statuses.values()), statuses

    def abandon_run(self):
        """Kills what a failed run has left; nothing where it ended."""
        for process in [*self.routers, *self.agents, *([self.redis] if self.redis else [])]:
            process.kill()
        self.agents, self.routers, self.redis = [], [], None

    def close(self):
        self.abandon_run()
        for engine in self.engines:
            engine.kill()


def has_redis():
    return shutil.which("redis-server") is not None
