# SPDX-License-Identifier: Apache-2.0
"""Blocks that left a real engine and came back: the answers are those of an engine that never lost
them, token by token, whatever becomes of the agent.

The control is the same load without a connector, twice: where these two differ (floats added up in
another order, as batches fall together otherwise) a difference proves nothing. Each is listed.
"""

import concurrent.futures
import dataclasses
import random
import shutil
import time

import pytest

from cluster import Agent, has_redis, reset_cache
from engines import BIN, Engine, wait_until
from peers.connector_agent import ConnectorAgent, wire
from peers.engine_client import EngineClient, Memory
from tiers import (CACHE, COUNTED, PAGE_BYTES, Node, Trouble, complete, pause_process, prompts_of,
                   run_load)

CPU_MIB, CPU_SMALL_MIB, SSD_MIB = 512, 16, 512
LAYER_BYTES = 4096  # of a page, in one place; how the real pages are cut is another matter

LEFT_OUT, UNSAVED = "vllm:samovar_requests_left_out_total", "vllm:samovar_blocks_unsaved_total"

needs_agent = pytest.mark.skipif(not has_redis() or not (BIN / "samovar-agent").exists(),
                                 reason="redis-server or samovar-agent is missing")


@pytest.mark.smoke
@needs_agent
def test_what_left_an_engine_comes_back_and_an_agent_may_die(fleet, folder):
    """One prompt at a time, against the engine's own cache: what is computed then has the same shape,
    so that even half floats must agree."""
    home = folder / "tiers-smoke"
    home.mkdir()
    node = Node(home, None, engines=fleet.engines, socket=f"{fleet.tiers}/agent.sock")
    engine, few = fleet.engines[0], prompts_of(16)
    try:
        assert complete(engine, few[0])[0]
        alone = engine.metric(LEFT_OUT, reason="away")
        node.start_agent(CPU_MIB, 0)
        own = [(complete(engine, prompt), complete(engine, prompt)[0])[1] for prompt in few]
        came_back = run_until(lambda: node.loaded("cpu") > 0, "came back", engine, few, aborts=0,
                              clients=1)
        loaded = node.loaded("cpu")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill_once_it_loads, node, loaded)
            dying, ended = run_until(killing.done, "the agent dies", engine, few), time.monotonic()
        node.start_agent(CPU_MIB, 0)
        wait_until(lambda: is_served_again(engine), "it is served again", 30)
        node.stop_agent()
    finally:
        node.close()

    assert alone > 0  # requests counted by the engine, while no agent was there to count
    assert all(outcome.answers == own for outcome in came_back) and came_back[-1].hits > 0
    assert [outcome.failures for outcome in dying] == len(dying) * [[]] and killing.result() < ended


def run_until(is_done, name, engine, prompts, **how):
    """Runs of all prompts after evictions: short ones are hardly worth a load, and an engine that was
    not answered in time goes on without for a while. The outcomes."""
    outcomes = []
    while not outcomes or not is_done():
        assert len(outcomes) < 20, f"not in 20 runs: {name}"
        reset_cache(engine)
        outcomes.append(run_load(name, engine, prompts, **how))
    return outcomes


def kill_once_it_loads(node, loaded):
    """When: behind the first blocks that the engine gets, beyond those loaded before."""
    wait_until(lambda: node.loaded("cpu") > loaded, "the agent loads", 30)
    node.agent.kill()
    return time.monotonic()


# --- an agent that does what it should not ---

@pytest.fixture(scope="module")
def fake_node(model_folder, tmp_path_factory):
    """(an agent in this process, an engine that has never known another)"""
    folder = tmp_path_factory.mktemp("tiers-fake")
    with ConnectorAgent(folder / "agent.sock", save_ms=2000) as agent:
        engine = Engine("engine", model_folder, folder, dataclasses.replace(CACHE, tiers=agent.path))
        try:
            engine.wait_ready()
            yield agent, engine
        finally:
            engine.kill()


@pytest.fixture(autouse=True)
def well_behaved(request):
    """Whatever a test made the agent do ends with it."""
    yield
    if "fake_node" in request.fixturenames:
        agent, _ = request.getfixturevalue("fake_node")
        agent.before.clear()
        agent.instead.clear()
        agent.limits["save_ms"] = 2000


def is_served_again(engine):
    """Registered, and something comes out of the agent's store."""
    prompt = prompts_of(1, seed=time.monotonic_ns())[0]
    hits = engine.metric(COUNTED["hits"])
    complete(engine, prompt)
    reset_cache(engine)
    complete(engine, prompt)
    return engine.metric(COUNTED["hits"]) > hits


def test_a_plain_agent_gives_back_what_the_engine_lost(fake_node, control, prompts):
    agent, engine = fake_node
    control.check(run_load("fake, fresh", engine, prompts))
    reset_cache(engine)

    loaded = agent.loaded
    outcome = run_load("fake, from its store", engine, prompts)

    control.check(outcome)
    assert outcome.hits > 0 and agent.loaded > loaded


def test_wrong_pages_would_be_seen(fake_node, control, prompts):
    """Of the right size and at the right place, but of other tokens: what no check of the agent's
    would let through. If this passed for right, so would anything."""
    agent, engine = fake_node
    reset_cache(engine)
    some = prompts[:30]
    right = dict(agent.pages)
    keys = list(right)
    agent.pages.update(zip(keys, (right[key] for key in keys[1:] + keys[:1])))

    loaded = agent.loaded
    outcome = run_load("fake, wrong", engine, some, aborts=0)

    agent.pages = right
    reset_cache(engine)
    assert agent.loaded > loaded and not outcome.failures
    wrong = [i for i, answer in enumerate(outcome.answers) if answer != control.outcome.answers[i]]
    print(f"fake, wrong: differs at {wrong}")
    assert len(wrong) > len(some) / 3


def lie_or_wait(rng):
    """What one message meets: mostly what it should, else anything."""
    def act(agent, connection, message):
        kind = rng.choice(["right"] * 6 + ["slow", "silent", "garbage", "some", "gone"])
        if kind == "silent":
            connection.loads.clear()
            return
        if kind == "slow":
            time.sleep(rng.uniform(0, 0.3))
        if kind == "garbage":
            connection.say_bytes(rng.randbytes(rng.randint(1, 200)))
        if kind == "gone":
            connection.close()
            return
        if kind == "some" and message.kind == wire.LOAD:
            message.engine_blocks = message.engine_blocks[:rng.randint(0, 3)]
        agent.answer(connection, message)
    return act


def test_an_agent_that_lies_and_dawdles_changes_no_answer(fake_node, control, prompts):
    """A silent LOAD would hold its request for ever, and may: only its connection's end frees it. So
    it ends, now and then."""
    agent, engine = fake_node
    agent.limits["save_ms"] = 100
    act = lie_or_wait(random.Random(3))
    for kind in (wire.LOOKUP, wire.LOAD, wire.SAVE, wire.HELLO):
        agent.instead[kind] = act
    loaded, left_out, unsaved = agent.loaded, engine.metric(LEFT_OUT), engine.metric(UNSAVED)
    with Trouble(lambda _rng: agent.restart(), (1, 4)) as trouble:
        outcome = run_load("fake, lying", engine, prompts)
    agent.instead.clear()

    control.check(outcome)
    assert trouble.count > 0 and agent.loaded > loaded
    assert engine.metric(LEFT_OUT) > left_out     # its scheduler counted
    assert engine.metric(UNSAVED) > unsaved       # and its worker
    agent.restart()
    wait_until(lambda: is_served_again(engine), "it is served again", 30)


# --- the real one ---

@pytest.fixture(scope="module")
def node(model_folder, tmp_path_factory, control):
    """Two engines; the second one is left alone until its test."""
    node = Node(tmp_path_factory.mktemp("tiers"), model_folder)
    try:
        engines = [node.start_engine() for _ in range(2)]
        for engine in engines:
            engine.wait_ready()
        yield node
    finally:
        node.close()


@needs_agent
def test_fresh_and_from_the_engines_own_cache(node, control, prompts):
    node.start_agent(CPU_MIB, 0)
    engine = node.engines[0]

    fresh = run_load("fresh", engine, prompts)
    twice = [(complete(engine, prompt)[0], complete(engine, prompt)[0]) for prompt in prompts[:40]]

    control.check(fresh)
    assert fresh.preemptions > 0
    assert [a for a, b in twice] == [b for a, b in twice] == control.outcome.answers[:40]


@needs_agent
def test_from_cpu_memory_after_eviction(node, control, prompts):
    engine = node.engines[0]
    reset_cache(engine)

    outcome = run_load("from CPU memory", engine, prompts)

    control.check(outcome)
    assert outcome.hits > 0 and node.loaded("cpu") > 0


@needs_agent
def test_a_second_engine_loads_what_it_never_saw(node, control, prompts):
    outcome = run_load("by a second engine", node.engines[1], prompts)

    control.check(outcome)
    assert outcome.hits > 0


@needs_agent
def test_after_the_engine_was_started_anew(node, control, prompts):
    engine = node.restart_engine(node.engines[0])
    node.wait_registered()

    outcome = run_load("after an engine restart", engine, prompts)

    control.check(outcome)
    assert outcome.hits > 0


@needs_agent
def test_from_the_ssd_when_cpu_memory_is_too_small(node, control, prompts):
    node.stop_agent()
    node.start_agent(CPU_SMALL_MIB, SSD_MIB)
    engine = node.engines[-1]
    for time_ in ("first", "second"):
        reset_cache(engine)
        control.check(run_load(f"small CPU memory, {time_} time", engine, prompts))
    reset_cache(engine)
    loaded = node.loaded("ssd")

    outcome = run_load("from the SSD", engine, prompts)

    control.check(outcome)
    assert outcome.hits > 0 and node.loaded("ssd") > loaded


@needs_agent
def test_after_the_agent_was_started_anew_from_what_its_ssd_kept(node, control, prompts):
    engine = node.engines[-1]
    node.stop_agent()
    node.start_agent(CPU_SMALL_MIB, SSD_MIB)
    node.wait_scanned()
    reset_cache(engine)

    outcome = run_load("after an agent restart", engine, prompts)

    control.check(outcome)
    assert outcome.hits > 0 and node.loaded("ssd") > 0


SECTOR_BYTES = 4096
SLOT_BYTES = SECTOR_BYTES + PAGE_BYTES
LIST_SLOTS = 72  # behind each sector that lists them
HEADER_BYTES = 112


def flip(raw, at):
    raw[at] ^= 0x40


def slots_of(raw):
    """Where they begin."""
    group = SECTOR_BYTES + LIST_SLOTS * SLOT_BYTES
    return [begin for at in range(0, len(raw), group)
            for begin in range(at + SECTOR_BYTES, at + group, SLOT_BYTES)
            if begin + SLOT_BYTES <= len(raw)]


def harm_slots(raw, rng):
    """Headers, what they say of their block, payloads, and payloads of other blocks."""
    begins = slots_of(raw)
    for begin in begins:
        payload = begin + SECTOR_BYTES
        kind = rng.choice(["none", "header", "payload", "exchange", "move"])
        if kind == "header":
            flip(raw, begin + rng.randrange(HEADER_BYTES))
        elif kind == "payload":
            flip(raw, payload + rng.randrange(PAGE_BYTES))
        elif kind in ("exchange", "move"):
            other = rng.choice(begins)
            if kind == "exchange":  # under this header, the bytes of another
                raw[payload:payload + PAGE_BYTES] = raw[other + SECTOR_BYTES:other + SLOT_BYTES]
            else:                   # all of another: right, but in the wrong place
                raw[begin:begin + SLOT_BYTES] = raw[other:other + SLOT_BYTES]


def harm_files(paths, rng):
    for path in paths:
        raw = bytearray(path.read_bytes())
        harm_slots(raw, rng)
        path.write_bytes(raw[:rng.choice([len(raw), len(raw) * 3 // 4 + 1000])])
    if len(paths) > 1:
        spare = paths[0].with_name("spare")
        paths[0].rename(spare)
        paths[1].rename(paths[0])
        spare.rename(paths[1])


@needs_agent
def test_what_was_changed_on_the_ssd_is_a_miss(node, control, prompts):
    engine = node.engines[-1]
    node.stop_agent()
    paths = sorted(node.ssd.rglob("slots-*"))
    assert paths
    harm_files(paths, random.Random(5))
    node.start_agent(CPU_SMALL_MIB, SSD_MIB)
    node.wait_scanned()
    reset_cache(engine)

    outcome = run_load("from a harmed SSD", engine, prompts)

    control.check(outcome)
    assert outcome.hits > 0  # some slots were left alone
    assert node.agent.metric("samovar_agent_tier_blocks_corrupt_total") > 0


def keep_as_another_model(node, prompts):
    """In the SSD directory of an agent of its own: the same prompts, wrong bytes, pages cut alike."""
    folder = node.folder / "another"
    folder.mkdir(mode=0o700)
    socket, ssd = folder / "agent.sock", folder / "ssd"
    agent = Agent("agent-another", node.engines, node.redis, node.secret_file, folder, "--ipc-socket",
                  socket, "--cpu-bytes", "256MiB", "--ssd-bytes", "512MiB", "--ssd-dir", ssd,
                  "--ssd-reserve-bytes", 0)
    wait_until(socket.exists, "the agent listens", 30)
    layers = PAGE_BYTES // LAYER_BYTES
    engine = EngineClient(socket, node.engines[0].url, "another", CACHE.block_tokens,
                          Memory(64, layers, LAYER_BYTES))
    for number, prompt in enumerate(prompts):
        blocks = list(range((len(prompt) - 1) // CACHE.block_tokens))
        for block in blocks:
            engine.memory.write(block, random.Random(number * 1000 + block).randbytes(PAGE_BYTES))
        first, second = engine.open(prompt), engine.open(prompt)
        engine.save(first, blocks)
        tokens, _ = engine.lookup_soon(second)
        engine.load(second, blocks[:tokens // CACHE.block_tokens])  # used again: worth a write
    wait_until(lambda: agent.metric("samovar_agent_tier_held_blocks", tier="ssd") > 100,
               "they are on the SSD", 30)
    engine.stop()
    assert agent.stop() == 0
    (written,) = [path for path in ssd.iterdir() if path.is_dir()]
    return written


@needs_agent
def test_what_another_model_wrote_is_a_miss(node, control, prompts):
    """Beside this model's own, and under its name, as somebody may have copied it."""
    engine, some = node.engines[-1], prompts[:30]
    node.stop_agent()
    (mine,) = [path for path in node.ssd.iterdir() if path.is_dir()]
    written = keep_as_another_model(node, some)
    shutil.rmtree(mine)
    for place in (mine, node.ssd / written.name):
        shutil.copytree(written, place)
        place.chmod(0o700)
    node.start_agent(CPU_SMALL_MIB, SSD_MIB)
    node.wait_scanned()
    reset_cache(engine)

    assert node.agent.metric("samovar_agent_tier_blocks_scanned_total") == 0
    outcome = run_load("from another model's SSD", engine, some, aborts=0)

    control.check(outcome)


@needs_agent
def test_an_agent_that_is_killed_and_stopped_changes_no_answer(node, control, prompts):
    engine = node.engines[-1]

    def trouble(rng):
        if rng.random() < 0.5:
            pause_process(node.agent, rng.uniform(0.01, 1.5))
            return
        node.agent.kill()
        time.sleep(rng.uniform(0, 0.5))
        node.start_agent(CPU_SMALL_MIB, SSD_MIB)
    with Trouble(trouble, (0.5, 2)) as troubles:
        outcomes = [run_load(f"an agent in trouble, {i}", engine, prompts, seed=i)
                    for i in range(3)]

    for outcome in outcomes:
        control.check(outcome)
    assert troubles.count >= 3
    node.wait_registered()
    wait_until(lambda: is_served_again(engine), "it is served again", 30)
    assert node.agent.metric("samovar_agent_tier_holds") == 0
