# SPDX-License-Identifier: Apache-2.0
"""What an operator sees of an agent's GPUs, which tests/support/fake_cuda plays in the agent and in
the engine alike: by which way blocks are copied, and what does not go as it should."""

import random

import pytest

from peers.cuda_memory import FAKE_CUDA, CudaMemory
from peers.engine_client import HIT, EngineClient
from peers.kv_engine import KvEngine
from peers.process import is_sanitized, wait_until
from test_agent_tiers import prompt_ids

MIB = 1 << 20
BLOCKS = 32

pytestmark = [
    pytest.mark.skipif(not (FAKE_CUDA / "libcuda.so.1").exists(), reason="built without CUDA"),
    pytest.mark.skipif(is_sanitized("samovar-agent"),
                       reason="a sanitized library cannot be loaded into Python")]


@pytest.fixture
def start(start_agent, worker, redis, tmp_path):
    """start(memory): an agent with a GPU, and the engine with that memory."""
    events, started = KvEngine(), []

    def start(memory):
        socket = tmp_path / "run" / "agent.sock"
        agent = start_agent(worker, redis, "--cpu-bytes", 8 * MIB, "--ipc-socket", socket,
                            kv_events=events.events,
                            env={"LD_LIBRARY_PATH": str(FAKE_CUDA)})
        started.append(EngineClient(socket, memory=memory))
        return agent, started[-1]

    yield start
    for engine in started:
        engine.stop()
    events.stop()


def round_trip(engine, seed):
    """Blocks saved, and loaded into other places."""
    memory, ids = engine.memory, prompt_ids(seed, BLOCKS)
    pages = [random.Random(f"{seed} {block}").randbytes(memory.page_bytes)
             for block in range(BLOCKS)]
    for block, page in enumerate(pages):
        memory.write(block, page)
        memory.write(BLOCKS + block, bytes(memory.page_bytes))
    request = engine.open(ids)
    saved = engine.save(request, list(range(BLOCKS)))
    tokens, why = engine.lookup(request)
    loaded = engine.load(request, list(range(BLOCKS, 2 * BLOCKS)))
    assert (saved, why, loaded) == ((BLOCKS, 0, 0), HIT, BLOCKS)
    assert [memory.read(BLOCKS + block) for block in range(BLOCKS)] == pages


def test_copies_are_counted(start):
    """By which way they go is measured at the start, and so not to be foretold here."""
    agent, engine = start(CudaMemory(2 * BLOCKS))

    round_trip(engine, 1)

    metrics = agent.metrics()

    def copied(what):
        return sum(metrics[f'samovar_agent_gpu_{what}_total{{way="{way}"}}']
                   for way in ("batch", "gather"))
    assert copied("copied_pages") == 2 * BLOCKS
    assert copied("copied_bytes") == 2 * BLOCKS * engine.memory.page_bytes
    assert 2 <= copied("copies") <= 2 * BLOCKS
    assert metrics["samovar_agent_gpus"] == metrics["samovar_agent_gpus_open"] == 1
    assert metrics["samovar_agent_gpu_allocations"] == 1
    for what in ("gpus_lost", "gpu_copies_failed_total", "gpu_copies_ungathered_total",
                 "gpu_engine_waits_expired_total", "gpu_unpinned_chunks_total"):
        assert metrics[f"samovar_agent_{what}"] == 0
    wait_until(lambda: agent.metric_sum("samovar_agent_gpu_pinned_bytes") >= 7 * MIB,
               "all of --cpu-bytes is pinned")


def test_an_agent_without_a_driver_has_no_gpus(start_agent, worker, redis, tmp_path):
    agent = start_agent(worker, redis, "--cpu-bytes", MIB, "--ipc-socket",
                        tmp_path / "run" / "agent.sock", kv_events="tcp://127.0.0.1:1")

    agent.log.wait("no_gpu")
    assert agent.metric_sum("samovar_agent_gpus") == 0
