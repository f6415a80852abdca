# SPDX-License-Identifier: Apache-2.0
"""Real vLLM servers on the CPU and the router in front of them, as processes."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parents[1]
CONNECTOR = REPO / "kvtier/connector/python"
BIN = pathlib.Path(os.environ.get("SAMOVAR_BIN_DIR", REPO / "build" / "bin"))
MODEL = "tiny"
VERSION = "0.32.0"
BLOCK_TOKENS = 32
PREFILL_STEP_TOKENS = 1024
START_S = 600 # half a minute on a machine of its own

ENGINE_FLAGS = [
    "--served-model-name", MODEL, "--host", "127.0.0.1", "--enforce-eager",
    # Long prompts take several steps, as they do on a real GPU.
    "--max-num-batched-tokens", str(PREFILL_STEP_TOKENS),
    "--enable-prompt-tokens-details",
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
]
ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_RESPONSES_API_STORE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_SERVER_DEV_MODE": "1", # POST /reset_prefix_cache
    # Even where the caller's environment forbids it: each of an engine's three processes would
    # compile half of its packages anew.
    "PYTHONDONTWRITEBYTECODE": "",
}


def free_port():
    """Below the ports that the kernel gives out by itself: an engine takes a minute until it
    listens, and whoever asks for any port must not get this one meanwhile."""
    for _ in range(100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(20000, 32000)))
            return probe.getsockname()[1]
    raise AssertionError("no free port")


def get(url, timeout_s=5):
    """(status, text); status 0 when nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def wait_until(is_true, what, timeout_s):
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


# A process that ends when we do, however that is, and first kills the sessions that we have left: no
# signal that ends us reaches them.
GUARD = """
import contextlib, os, signal, sys
sessions = set()
for line in sys.stdin:
    {"+": sessions.add, "-": sessions.discard}[line[0]](int(line[1:]))
for session in sessions:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)
"""


@functools.cache
def guard():
    return subprocess.Popen([sys.executable, "-c", GUARD], stdin=subprocess.PIPE, bufsize=0,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            start_new_session=True)


class Process:
    """A program of its own session: whatever it starts ends with it, and nothing else does."""

    def __init__(self, name, command, folder, environment=None, port=None):
        self.name, self.port = name, port or free_port()
        self.log_path = folder / f"{name}.log"
        command = [str(word).replace("{port}", str(self.port)) for word in command]
        with open(self.log_path, "wb") as log:
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                          stderr=subprocess.STDOUT, start_new_session=True,
                                          env={**os.environ, **(environment or {})})
        guard().stdin.write(b"+%d\n" % self.child.pid)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def is_running(self):
        return self.child.poll() is None

    def log_tail(self):
        return "".join(self.log_path.read_text(errors="replace").splitlines(True)[-30:])

    def signal_all(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)

    def kill(self):
        """kill -9, to the last of its processes."""
        self.signal_all(signal.SIGKILL)
        self.child.wait()
        guard().stdin.write(b"-%d\n" % self.child.pid)

    def stop(self):
        """Asks, waits, and returns the exit status; kills what does not listen."""
        if self.is_running():
            self.child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(20)
        status = self.child.poll()
        self.kill()
        return status


@dataclasses.dataclass
class Cache:
    """The KV cache of an engine, and what it publishes of it."""
    block_tokens: int = BLOCK_TOKENS
    block_count: int = 768
    context_tokens: int = 8192
    hashes: str = "int"  # or "bytes": of published blocks
    publishes: bool = False
    dtype: str = "bfloat16"
    tiers: str = ""  # the socket of an agent that has some, or will have; empty: no connector
    dies_at: str = ""  # "LOAD:3": as by kill -9, behind the connector's third LOAD
    tensor_ranks: int = 1
    pipeline_ranks: int = 1

    @property
    def ranks(self):
        return self.tensor_ranks * self.pipeline_ranks


class Engine(Process):
    """One vLLM server. Created at once, ready later: several start side by side."""

    def __init__(self, name, model_folder, folder, cache=Cache(), port=None):
        program = pathlib.Path(os.environ["SAMOVAR_VLLM_VENV"]) / "bin" / "vllm"
        self.kv_events, self.kv_replay = (f"ipc://{folder}/{name}.{what}"
                                          for what in ("events", "replay"))
        flags = ["--dtype", cache.dtype, "--max-model-len", cache.context_tokens, "--block-size", cache.block_tokens,
                 "--num-gpu-blocks-override", cache.block_count]
        if cache.ranks > 1:
            flags += ["--distributed-executor-backend", "mp", "--tensor-parallel-size", cache.tensor_ranks,
                      "--pipeline-parallel-size", cache.pipeline_ranks]
        if cache.publishes:
            flags += ["--kv-events-config", json.dumps({
                "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self.kv_events,
                "replay_endpoint": self.kv_replay})]
        if cache.tiers:
            flags += ["--kv-transfer-config", json.dumps({
                "kv_connector": "DyingConnector" if cache.dies_at else "SamovarConnector",
                "kv_connector_module_path":
                    "dying_connector" if cache.dies_at else "samovar_vllm.connector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"socket": cache.tiers,
                                              "worker": "http://127.0.0.1:{port}"}})]
        environment = {**ENGINE_ENVIRONMENT, "PYTHONPATH": f"{CONNECTOR}:{HERE}",
                       "SAMOVAR_TEST_DIES_AT": cache.dies_at,
                       "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": str(int(cache.hashes == "int"))}
        super().__init__(name, [program, "serve", model_folder, "--port", "{port}", *ENGINE_FLAGS,
                                *flags], folder, environment, port)

    def is_ready(self):
        assert self.is_running(), f"{self.name} ended:\n{self.log_tail()}"
        return VERSION in get(f"{self.url}/version")[1] and self.is_alive()

    def wait_ready(self):
        wait_until(self.is_ready, f"{self.name} is ready:\n{self.log_tail()}", START_S)

    def metric(self, name, **labels):
        """The sum over all sets with these labels; 0 when the engine has no such metric yet."""
        text = get(f"{self.url}/metrics")[1]
        rows = re.findall(rf"^{re.escape(name)}({{.*}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for said, value in rows
                   if all(f'{label}="{wanted}"' in said for label, wanted in labels.items()))

    def running(self):
        return self.metric("vllm:num_requests_running")

    def is_alive(self):
        """An engine whose core died answers 503, or not at all."""
        return get(f"{self.url}/health")[0] == 200


class Router(Process):
    def __init__(self, name, engines, folder, *flags):
        """engines: those it is told of; where there are none, flags say where it finds them."""
        self.admin_port = free_port()
        urls = ["--worker-urls", ",".join(engine.url for engine in engines)] if engines else []
        super().__init__(name, [
            BIN / "samovar-router", "--host", "127.0.0.1", "--port", "{port}",
            "--admin-port", self.admin_port, "--log-format", "json", *urls, *flags], folder)

    def workers(self):
        text = get(f"http://127.0.0.1:{self.admin_port}/workers")[1]
        return json.loads(text)["workers"] if text else []

    def request_lines(self):
        """The log lines of the requests that have ended."""
        lines = [json.loads(text) for text in self.log_path.read_text().splitlines()
                 if text.startswith("{") and text.endswith("}")]
        return [line for line in lines if line["event"] == "request"]

    def request_line(self, request_id):
        """The log line of that request; it may come a moment after the answer."""
        def find():
            return [line for line in self.request_lines() if line["request_id"] == request_id]
        wait_until(find, f"a log line of {request_id}", 5)
        return find()[0]

    def up_count(self):
        assert self.is_running(), f"the router ended:\n{self.log_tail()}"
        return sum(1 for row in self.workers() if row["state"] == "up")

    def wait_up(self, count, timeout_s=30):
        wait_until(lambda: self.up_count() == count, f"{count} workers up", timeout_s)


def make_model(folder, *flags):
    """A seeded model of a few megabytes, made by the engine's own Python."""
    python = pathlib.Path(os.environ["SAMOVAR_VLLM_VENV"]) / "bin" / "python"
    subprocess.run([python, HERE / "make-tiny-model.py", folder, *flags], check=True,
                   stdout=subprocess.DEVNULL)
    return folder

