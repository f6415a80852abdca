# SPDX-License-Identifier: Apache-2.0
"""
The tiers of a real agent, and engines that the test plays: what was saved comes back as it was, or
not at all, whoever dies, lies, dawdles or shares; and the map says what can be loaded.
"""

import os
import random
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peers import engine_client as wire
from peers.engine_client import (
    BLOCK_TOKENS, HIT, LATER, MISS, NO_ROOM, SLOWER, EngineClient, Link, Memory)
from peers.kv_engine import KvEngine
from peers.process import REPO, program, wait_until
from peers.residency_map import ResidencyMap, token_names
from peers.residency_wire import ANCHOR, CPU, ROUTED, UNKNOWN, pack_note
from peers.wire import WAIT_S

MIB = 1 << 20
HOLD_S = 1


def prompt_ids(number, block_count, tail=1):
    """Ids of a prompt like no other."""
    chance = random.Random(number)
    return [chance.randrange(1 << 17) for _ in range(block_count * BLOCK_TOKENS + tail)]


def page_of(seed, memory):
    return random.Random(seed).randbytes(memory.page_bytes)


class Node:
    """Redis, one worker's name, and an agent with tiers."""

    def __init__(self, start_agent, redis, worker, directory):
        self._start_agent = start_agent
        self.redis, self.worker = redis, worker
        self.directory = directory
        self.socket = directory / "run" / "agent.sock"
        self.events = KvEngine()
        self.engines = []
        self.agent = None

    def start_agent(self, *flags, cpu_bytes=4 * MIB, ssd_bytes=0, **options):
        flags = ["--cpu-bytes", cpu_bytes, "--ipc-socket", self.socket, *flags]
        if ssd_bytes:
            flags += ["--ssd-bytes", ssd_bytes, "--ssd-dir", self.directory / "ssd",
                      "--ssd-reserve-bytes", 0]
        self.agent = self._start_agent(self.worker, self.redis, *flags,
                                       kv_events=self.events.events, **options)
        self.agent.log.wait("tiers_listening")
        return self.agent

    def engine(self, **options):
        self.engines.append(EngineClient(self.socket, **options))
        return self.engines[-1]

    def metric(self, name, **labels):
        name = f"samovar_agent_{name}"
        if labels:
            name += "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"
            return self.agent.metrics()[name]
        return self.agent.metric_sum(name)

    def wait_metric(self, name, value, **labels):
        wait_until(lambda: self.metric(name, **labels) == value,
                   lambda: f"{name} {value}, but it is {self.metric(name, **labels)}")

    def mappings(self):
        """Of engines' memory in the agent."""
        maps = Path(f"/proc/{self.agent.pid}/maps").read_text()
        return maps.count("memfd:engine")

    def engine_descriptors(self):
        """That the agent has of engines: their sockets, processes and memory."""
        links = []
        for fd in Path(f"/proc/{self.agent.pid}/fd").iterdir():
            try:
                links.append(os.readlink(fd))
            except FileNotFoundError:  # closed meanwhile
                pass
        unix = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]
                if line.endswith(str(self.socket))}
        return sum(link.startswith(("/memfd:engine", "anon_inode:[pidfd]")) or
                   link.removeprefix("socket:[").removesuffix("]") in unix for link in links)

    def wait_nothing_left(self):
        """Of any engine: the listening socket alone."""
        wait_until(lambda: self.mappings() == 0 and self.engine_descriptors() == 1,
                   lambda: f"{self.mappings()} mappings, {self.engine_descriptors()} descriptors")

    def stop(self):
        for engine in self.engines:
            engine.stop()
        self.events.stop()


@pytest.fixture
def node(start_agent, redis, worker, tmp_path):
    node = Node(start_agent, redis, worker, tmp_path)
    yield node
    node.stop()


@pytest.fixture
def engine(node):
    """Registered at an agent with 4 MiB of CPU memory."""
    node.start_agent()
    return node.engine()


def save_prompt(engine, number, block_count, first_page=0):
    """A prompt whose blocks lie in the engine's from first_page on, and are saved. Its ids."""
    ids = prompt_ids(number, block_count)
    blocks = list(range(first_page, first_page + block_count))
    for i, block in enumerate(blocks):
        engine.memory.write(block, page_of(f"{number}/{i}", engine.memory))
    request = engine.open(ids, f"chatcmpl-{number}")
    assert engine.save(request, blocks) == (block_count, 0, 0)
    engine.close_request(request)
    return ids


def expected_page(engine, number, i):
    return page_of(f"{number}/{i}", engine.memory)


def load_prompt(engine, ids, number, block_count, first_page=32):
    """Asks, takes and loads all its blocks, and looks at every byte."""
    request = engine.open(ids, f"chatcmpl-{number}")
    assert engine.lookup_soon(request) == (block_count * BLOCK_TOKENS, HIT)
    engine.take(request, 0, block_count)
    blocks = list(range(first_page, first_page + block_count))
    for block in blocks:
        engine.memory.write(block, bytes(engine.memory.page_bytes))
    assert engine.load(request, blocks) == block_count
    for i, block in enumerate(blocks):
        assert engine.memory.read(block) == expected_page(engine, number, i)
    engine.close_request(request)


# --- the way of a block ---


def test_what_was_saved_is_found_and_comes_back_as_it_was(engine):
    ids = save_prompt(engine, 1, 4)

    load_prompt(engine, ids, 1, 4)


def test_what_nobody_saved_is_a_miss(engine):
    save_prompt(engine, 1, 4)

    request = engine.open(prompt_ids(2, 4))

    assert engine.lookup(request) == (0, MISS)


def test_what_is_found_begins_behind_what_the_engine_has_itself(engine):
    ids = save_prompt(engine, 1, 4)
    request = engine.open(ids)

    assert engine.lookup(request, 2 * BLOCK_TOKENS) == (2 * BLOCK_TOKENS, HIT)
    engine.take(request, 2, 2)
    assert engine.load(request, [40, 41], first_block=2) == 2
    assert engine.memory.read(41) == expected_page(engine, 1, 3)


def test_the_prompts_last_token_is_never_found(engine):
    ids = save_prompt(engine, 1, 4)

    request = engine.open(ids[:4 * BLOCK_TOKENS])

    assert engine.lookup(request) == (3 * BLOCK_TOKENS, HIT)


def test_a_longer_prompt_is_found_up_to_where_it_parts(engine):
    ids = save_prompt(engine, 1, 4)

    request = engine.open(ids[:3 * BLOCK_TOKENS] + prompt_ids(2, 2))

    assert engine.lookup(request) == (3 * BLOCK_TOKENS, HIT)


@pytest.mark.parametrize("other", [{"salt": "s"}, {"lora": "l"}])
def test_other_salts_and_loras_share_nothing(engine, other):
    ids = save_prompt(engine, 1, 4)

    assert engine.lookup(engine.open(ids, **other)) == (0, MISS)


def test_saving_again_is_known(engine):
    ids = save_prompt(engine, 1, 4)

    assert engine.save(engine.open(ids), [0, 1, 2, 3]) == (0, 4, 0)


def test_a_prompt_of_many_messages_is_one(node):
    node.start_agent("--cpu-bytes", 64 * MIB)
    engine = node.engine(memory=Memory(block_count=3000, layer_count=1))
    ids = prompt_ids(1, 2500)  # three messages
    request = engine.open(ids)
    assert engine.save(request, list(range(2500))) == (2500, 0, 0)

    assert engine.lookup(engine.open(ids)) == (2500 * BLOCK_TOKENS, HIT)


def test_asking_again_is_the_same_answer_and_a_longer_local_hit_another(engine):
    ids = save_prompt(engine, 1, 4)
    request = engine.open(ids)

    for _ in range(100):
        assert engine.lookup(request) == (4 * BLOCK_TOKENS, HIT)
    assert engine.lookup(request, BLOCK_TOKENS) == (3 * BLOCK_TOKENS, HIT)
    assert engine.lookup(request) == (4 * BLOCK_TOKENS, HIT)


def test_what_computing_beats_is_not_loaded(engine):
    ids = save_prompt(engine, 1, 4)
    quick = engine.open(prompt_ids(2, 8))
    engine.save(quick, list(range(8)), step_tokens=128, step_us=10)

    assert engine.lookup(engine.open(ids)) == (0, SLOWER)


def test_reset_forgets_what_was_saved(engine):
    ids = save_prompt(engine, 1, 4)

    engine.reset()

    assert engine.lookup(engine.open(ids)) == (0, MISS)


# --- promises ---


def test_a_promise_runs_out(node):
    node.start_agent("--hold-ms", HOLD_S * 1000)
    engine = node.engine()
    ids = save_prompt(engine, 1, 4)
    request = engine.open(ids)
    engine.lookup(request)
    assert node.metric("tier_holds") == 4

    wait_until(lambda: node.metric("tier_holds_expired_total") == 1, "it has run out", 5 * HOLD_S)

    assert node.metric("tier_holds") == 0
    assert engine.load(request, [40, 41, 42, 43]) == 0


def test_taking_fewer_gives_up_the_rest_and_closing_all(node, engine):
    ids = save_prompt(engine, 1, 4)
    request = engine.open(ids)
    engine.lookup(request)

    engine.take(request, 0, 1)
    engine.scheduler.ping()
    assert node.metric("tier_holds") == 1
    engine.close_request(request)
    engine.scheduler.ping()
    assert node.metric("tier_holds") == 0


def test_what_is_loaded_is_held_no_longer(node, engine):
    ids = save_prompt(engine, 1, 4)
    request = engine.open(ids)
    engine.lookup(request)
    engine.take(request, 0, 4)

    assert engine.load(request, [40, 41, 42, 43]) == 4

    assert node.metric("tier_holds") == 0


def test_what_was_not_promised_is_not_loaded(engine):
    ids = save_prompt(engine, 1, 4)
    request = engine.open(ids)

    assert engine.load(request, [40]) == 0  # it did not ask
    assert engine.load(99, [40]) == 0  # nobody knows it
    engine.lookup(request)
    assert engine.load(request, [40], first_block=4) == 0


def test_a_worker_is_served_after_all_that_its_scheduler_has_said(engine):
    """However late that is read."""
    for number in range(50):
        ids = prompt_ids(number, 2)
        request = engine.open(ids, f"chatcmpl-{number}")
        assert engine.save(request, [0, 1]) == (2, 0, 0)


# --- room ---


def fill(engine, count, start=1000):
    """Prompts of 8 blocks each: [(number, ids)]"""
    return [(number, save_prompt(engine, number, 8)) for number in range(start, start + count)]


def test_what_is_used_longest_ago_goes_first(node):
    node.start_agent(cpu_bytes=MIB)
    engine = node.engine()
    prompts = fill(engine, 30)

    assert engine.lookup(engine.open(prompts[0][1])) == (0, MISS)
    load_prompt(engine, prompts[-1][1], prompts[-1][0], 8)
    assert node.metric("tier_blocks_evicted_cpu_total") > 0


def test_what_is_promised_stays_and_new_blocks_are_refused_where_all_is(node):
    node.start_agent(cpu_bytes=MIB)
    engine = node.engine()
    slots = int(node.metric("tier_slots", tier="cpu"))
    held = []
    for number in range(1000, 1000 + slots // 8):
        ids = save_prompt(engine, number, 8)
        request = engine.open(ids)
        assert engine.lookup(request) == (8 * BLOCK_TOKENS, HIT)
        held.append((number, request))
    request = engine.open(prompt_ids(1, 16))

    saved, known, refused = engine.save(request, list(range(16)))

    assert saved == slots % 8 and known == 0 and saved + refused == 16
    for number, request in held:
        assert engine.load(request, list(range(40, 48))) == 8
        assert [engine.memory.read(40 + i) for i in range(8)] == [
            expected_page(engine, number, i) for i in range(8)]


def test_blocks_go_to_the_ssd_and_come_back(node):
    node.start_agent(cpu_bytes=MIB, ssd_bytes=16 * MIB)
    engine = node.engine()
    first = (1, save_prompt(engine, 1, 8))
    load_prompt(engine, first[1], 1, 8)  # used: worth a write
    fill(engine, 40)
    wait_until(lambda: node.metric("tier_held_blocks", tier="ssd") >= 8, "they are on the SSD")
    fill(engine, 40, start=2000)  # on their way down they were kept in memory

    load_prompt(engine, first[1], 1, 8)

    assert node.metric("tier_blocks_loaded_ssd_total") + node.metric(
        "tier_blocks_promoted_total") >= 8


def test_what_another_brings_up_from_the_ssd_is_waited_for_and_found(node):
    sizes = {"cpu_bytes": 192 * MIB, "ssd_bytes": 192 * MIB}
    pages = {"block_count": 64, "layer_count": 1, "layer_bytes": 2 * MIB}
    agent = node.start_agent(**sizes)
    engine = node.engine(memory=Memory(**pages))
    ids = save_prompt(engine, 1, 24)
    load_prompt(engine, ids, 1, 24)  # used: worth a write
    node.wait_metric("tier_held_blocks", 24, tier="ssd")
    engine.close()
    agent.kill()
    node.start_agent(**sizes)  # whose CPU memory is empty
    engine = node.engine(memory=Memory(**pages))
    wait_until(lambda: engine.lookup(engine.open(ids)) == (24 * BLOCK_TOKENS, HIT), "found again")
    first, second = engine.open(ids), engine.open(ids)
    assert engine.lookup(first) == (24 * BLOCK_TOKENS, HIT)
    job = engine.begin_load(first, list(range(32, 56)))
    engine.worker.ping()  # it is under way: to read 48 MiB takes longer than this

    assert engine.lookup(second) == (0, LATER)

    assert engine.loaded(job) == 24
    assert engine.lookup_soon(second) == (24 * BLOCK_TOKENS, HIT)
    assert engine.load(second, list(range(32, 56))) == 24
    assert node.metric("tier_blocks_loaded_ssd_total") == 24
    assert node.metric("tier_blocks_loaded_cpu_total") == 24


def test_what_is_on_the_ssd_outlives_the_agent(node):
    agent = node.start_agent(cpu_bytes=MIB, ssd_bytes=16 * MIB)
    engine = node.engine()
    ids = save_prompt(engine, 1, 8)
    load_prompt(engine, ids, 1, 8)
    fill(engine, 40)
    wait_until(lambda: node.metric("tier_held_blocks", tier="ssd") >= 8, "they are on the SSD")
    engine.close()
    agent.kill()
    node.start_agent(cpu_bytes=MIB, ssd_bytes=16 * MIB)

    engine = node.engine()
    wait_until(lambda: engine.lookup(engine.open(ids))[1] == HIT, "they are found again")

    load_prompt(engine, ids, 1, 8)


# --- weights that changed ---


SSD_SIZES = {"cpu_bytes": MIB, "ssd_bytes": 16 * MIB}


def save_on_ssd(node, engine):
    """Ids of a prompt of 8 blocks that lie on the SSD too."""
    node.wait_metric("tier_layouts_scanning", 0)  # nothing is written there before
    ids = save_prompt(engine, 1, 8)
    load_prompt(engine, ids, 1, 8)
    node.wait_metric("tier_held_blocks", 8, tier="ssd")
    return ids


def begin_again(node, engine, **options):
    """Another agent in the place of one that has died; the engine is registered there."""
    engine.close()
    node.start_agent(**SSD_SIZES, **options)
    engine.register()
    node.wait_metric("tier_layouts_scanning", 0)


def die_at(node, engine, point):
    """Of a RESET, before that is answered."""
    with pytest.raises((wire.Ended, ConnectionError)):
        engine.reset()
    assert node.agent.wait_exit(WAIT_S) == -signal.SIGKILL, point


def test_a_reset_before_which_the_agent_dies_is_asked_for_again_and_lasts(node):
    node.start_agent(**SSD_SIZES, env={"SAMOVAR_FAULT_POINT": "clear-told"})
    engine = node.engine()
    ids = save_on_ssd(node, engine)

    die_at(node, engine, "clear-told")
    begin_again(node, engine)
    engine.reset()  # as an engine does that was not told that it is done
    node.agent.kill()
    begin_again(node, engine)

    assert engine.lookup(engine.open(ids)) == (0, MISS)
    assert node.metric("tier_held_blocks", tier="ssd") == 0


def test_a_reset_after_which_the_agent_dies_is_done(node):
    node.start_agent(**SSD_SIZES, env={"SAMOVAR_FAULT_POINT": "clear-durable"})
    engine = node.engine()
    ids = save_on_ssd(node, engine)

    die_at(node, engine, "clear-durable")
    begin_again(node, engine)

    assert engine.lookup(engine.open(ids)) == (0, MISS)
    save_on_ssd(node, engine)
    node.agent.kill()
    begin_again(node, engine)
    assert node.metric("tier_held_blocks", tier="ssd") == 8  # what was saved since


def test_a_reset_before_the_worker_has_come_is_done_when_it_comes(node):
    agent = node.start_agent(**SSD_SIZES)
    engine = node.engine()
    ids = save_on_ssd(node, engine)
    engine.close()
    agent.kill()
    node.start_agent(**SSD_SIZES)

    engine.register_scheduler()
    engine.begin_reset()
    engine.scheduler.ping()  # which is answered, and DONE was not said before
    engine.register_worker()
    engine.end_reset()

    assert engine.lookup(engine.open(ids)) == (0, MISS)
    node.wait_metric("tier_held_blocks", 0, tier="ssd")


def test_pages_of_another_model_under_this_ones_name_are_misses(node):
    """Somebody moved or copied directories: the ids are the same, the bytes are not."""
    sizes = {"cpu_bytes": MIB, "ssd_bytes": 16 * MIB}

    def life(model):
        """An agent, and its one engine, of that model."""
        return node.start_agent(**sizes), node.engine(model=model)

    def layouts():
        return {path for path in (node.directory / "ssd").iterdir() if path.is_dir()}
    agent, engine = life("this")
    engine.close()
    agent.stop()
    mine = layouts()
    agent, engine = life("another")
    ids = save_prompt(engine, 1, 8)
    load_prompt(engine, ids, 1, 8)  # used: worth a write
    fill(engine, 40)
    wait_until(lambda: node.metric("tier_held_blocks", tier="ssd") >= 8, "they are on the SSD")
    engine.close()
    agent.stop()
    (this,), (another,) = mine, layouts() - mine
    shutil.rmtree(this)
    shutil.copytree(another, this)
    this.chmod(0o700)

    agent, engine = life("this")
    node.wait_metric("tier_layouts_scanning", 0)

    assert node.metric("tier_blocks_scanned_total") == 0
    assert engine.lookup(engine.open(ids)) == (0, MISS)
    engine.close()
    agent.stop()
    agent, engine = life("another")  # whose own are as they were
    node.wait_metric("tier_layouts_scanning", 0)
    load_prompt(engine, ids, 1, 8)


def save_again(engine, ids):
    """(saved, known, refused) of a prompt of 8 blocks, which is closed again."""
    request = engine.open(ids)
    outcome = engine.save(request, list(range(8)))
    engine.close_request(request)
    return outcome


def thrash(engine):
    """Prompts of three times the room, in turns, until one is turned away: (all, their outcomes)"""
    prompts = [ids for _, ids in fill(engine, 48)]
    outcomes = []
    while outcomes[-1:] != [(0, 0, 8)]:  # each has just gone when it comes again
        outcomes.append(save_again(engine, prompts[len(outcomes)]))
    return prompts, outcomes


def test_what_thrashes_is_let_in_no_more_and_what_is_held_stays(node):
    agent = node.start_agent(cpu_bytes=MIB)
    engine = node.engine()

    prompts, outcomes = thrash(engine)

    agent.log.wait("tiers_thrash")
    assert set(outcomes[:-1]) == {(8, 0, 0)}
    assert node.metric("tier_layouts_thrashing") == 1 and node.metric("tier_thrashings_total") == 1
    assert node.metric("tier_blocks_turned_away_total") == 8
    assert node.metric("tier_blocks_refaulted_total") > node.metric("tier_slots", tier="cpu") // 4
    assert save_again(engine, prompts[-1]) == (0, 8, 0)
    load_prompt(engine, prompts[-1], 1047, 8)


def test_behind_what_was_turned_away_nothing_of_that_request_is_saved(node):
    node.start_agent(cpu_bytes=MIB)
    engine = node.engine()
    prompts, _ = thrash(engine)
    request = engine.open(prompts[-1][:4 * BLOCK_TOKENS] + prompt_ids(1, 60))

    outcomes = [engine.save(request, [i], first_block=i) for i in range(64)]

    assert outcomes == [(0, 1, 0)] * 4 + [(0, 0, 1)] * 60  # though one question in 16 lets in
    assert node.metric("tier_blocks_turned_away_total") == 8 + 60


def test_without_the_guard_all_is_let_in(node):
    node.start_agent("--thrash-guard=false", cpu_bytes=MIB)
    engine = node.engine()
    prompts = [ids for _, ids in fill(engine, 48)]

    assert [save_again(engine, ids) for ids in prompts * 2] == [(8, 0, 0)] * 96
    assert node.metric("tier_pressure_percent") == 0


def test_a_request_that_asks_again_after_it_was_saved_adds_to_the_pressure(node):
    node.start_agent(cpu_bytes=MIB)
    engine = node.engine()
    prompts = [ids for _, ids in fill(engine, 48)]
    for ids in prompts[:2]:
        assert save_again(engine, ids) == (8, 0, 0)
    request = engine.open(prompts[2])
    before = node.metric("tier_pressure_percent")
    for _ in range(2):
        assert engine.lookup(request) == (0, MISS)
    assert node.metric("tier_pressure_percent") == before > 0
    engine.save(request, list(range(8)))
    saved = node.metric("tier_pressure_percent")

    engine.lookup(request)  # it was preempted

    assert node.metric("tier_pressure_percent") > saved


def test_an_engine_of_another_model_gets_nothing_of_this_one(node):
    node.start_agent("--layouts-max", 2)
    engine = node.engine()
    ids = save_prompt(engine, 1, 4)

    other = node.engine(model="another")

    assert other.lookup(other.open(ids)) == (0, MISS)


# --- engines come and go ---


def test_an_engine_that_comes_again_finds_what_it_saved(node, engine):
    ids = save_prompt(engine, 1, 4)
    engine.close()
    node.wait_metric("engines", 0)

    load_prompt(node.engine(), ids, 1, 4)


def test_two_engines_share_what_each_has_saved(start_agent, redis, start_worker, tmp_path):
    workers = [start_worker(), start_worker()]
    node = Node(start_agent, redis, ",".join(worker.url for worker in workers), tmp_path)
    events = [node.events, KvEngine()]
    agent = start_agent(node.worker, redis, "--cpu-bytes", 4 * MIB, "--ipc-socket", node.socket,
                        kv_events=",".join(source.events for source in events))
    agent.log.wait("tiers_listening")
    node.agent = agent
    first, second = (node.engine(worker=worker.url) for worker in workers)
    ids = save_prompt(first, 1, 4)

    load_prompt(second, ids, 1, 4)

    events[1].stop()
    node.stop()


@pytest.fixture
def two_models(start_agent, redis, start_worker, tmp_path):
    """(node, small, large): two engines of one agent, each with a model and a size of page of its
    own: a block of the second is four of the first."""
    workers, second = [start_worker(), start_worker()], KvEngine()
    node = Node(start_agent, redis, ",".join(worker.url for worker in workers), tmp_path)
    node.agent = start_agent(
        node.worker, redis, "--layouts-max", 2, "--cpu-bytes", 4 * MIB, "--ipc-socket", node.socket,
        "--ssd-bytes", 8 * MIB, "--ssd-dir", tmp_path / "ssd", "--ssd-reserve-bytes", 0,
        kv_events=f"{node.events.events},{second.events}")
    node.agent.log.wait("tiers_listening")
    small = node.engine(worker=workers[0].url, model="small")
    large = node.engine(worker=workers[1].url, model="large", memory=Memory(layer_bytes=16384))
    yield node, small, large
    second.stop()
    node.stop()


def disk_bytes(directory):
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def test_two_models_have_half_of_each_tier_and_nothing_of_each_other(two_models, secret_file):
    node, small, large = two_models
    assert node.metric("tier_layouts") == 2
    assert node.metric("tier_slots", tier="cpu") == 2 * MIB // 8192 + 2 * MIB // 32768
    maps = [ResidencyMap(node.redis, engine.worker_name) for engine in (small, large)]
    prompt = MappedPrompt(secret_file, 1, 4)
    for one in maps:
        prompt.write_notes(one)

    ids = save_prompt(small, 1, 4)
    wait_until(lambda: set(maps[0].records() or ()) == set(prompt.texts), "one has it")
    assert large.lookup(large.open(ids)) == (0, MISS)  # the same ids, by another model
    assert maps[1].records() == {}
    save_prompt(large, 1, 4)
    wait_until(lambda: set(maps[1].records() or ()) == set(prompt.texts), "both have it")
    others = fill(small, 60)  # far more than its half

    maps[0].wait_records({})
    wait_until(lambda: set(maps[1].records() or ()) == set(prompt.texts), "it cost the other nothing")
    load_prompt(large, ids, 1, 4)
    number, last = others[-1]
    load_prompt(small, last, number, 8)
    assert disk_bytes(node.directory / "ssd") <= 8 * MIB


def engine_of_a_third(node, before):
    """Of another model, where before was; None: its place is being made."""
    try:
        return node.engine(worker=before.worker_name, model="third")
    except AssertionError:  # REFUSED
        return None


def test_a_model_that_leaves_its_half_makes_room_for_another_and_for_no_third(two_models):
    node, small, large = two_models
    ids = save_prompt(large, 1, 4)
    code, why = refused_hello(node, model="third", worker=small.worker_name)
    assert code == wire.REFUSED_LAYOUT and "2 other models or page layouts" in why
    small.close()
    node.wait_metric("engines", 1)

    code, why = refused_hello(node, model="third", worker=small.worker_name)
    assert code == wire.REFUSED_BUSY and "come again" in why

    third = wait_until(lambda: engine_of_a_third(node, small), "the place is free")
    save_prompt(third, 2, 4)
    load_prompt(large, ids, 1, 4)
    assert node.metric("tier_layouts") == 2


def test_a_model_of_which_a_request_holds_something_keeps_its_half(two_models):
    """Its worker may be gone: it comes again, and loads what its scheduler was promised."""
    node, small, _ = two_models
    request = small.open(save_prompt(small, 1, 4))
    assert small.lookup(request) == (4 * BLOCK_TOKENS, HIT)
    small.worker.close()
    node.wait_metric("engines", 1)

    code, why = refused_hello(node, model="third", worker=small.worker_name)

    assert code == wire.REFUSED_LAYOUT and "2 other models or page layouts" in why
    assert small.lookup(request) == (0, NO_ROOM)
    small.register_worker()
    assert small.load(request, [60, 61, 62, 63]) == 4
    assert [small.memory.read(60 + i) for i in range(4)] == [
        expected_page(small, 1, i) for i in range(4)]
    small.worker.close()
    node.wait_metric("engines", 1)
    wait_until(lambda: engine_of_a_third(node, small), "what was loaded is held no more")


@pytest.mark.parametrize("closes", ["scheduler", "worker", "both"])
def test_a_connection_that_ends_takes_all_of_its_with_it(node, engine, closes):
    ids = save_prompt(engine, 1, 4)
    engine.lookup(engine.open(ids))
    assert node.mappings() > 0

    if closes != "worker":
        engine.scheduler.close()
        engine.scheduler = None
        node.wait_metric("tier_holds", 0)
        node.wait_metric("engine_requests", 0)
    if closes != "scheduler":
        engine.worker.close()
        engine.worker = None
        node.wait_metric("engines", 0)
        wait_until(lambda: node.mappings() == 0, "its memory is let go")
    wait_until(lambda: node.engine_descriptors() == (1 if closes == "both" else 3),
               lambda: f"{node.engine_descriptors()} descriptors are left")


ENGINE_PROCESS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from peers.engine_client import EngineClient
engine = EngineClient(sys.argv[2])
ids = list(range(65))
request = engine.open(ids)
engine.save(request, [0, 1, 2, 3])
engine.lookup(request)
if os.fork() == 0:
    time.sleep(600)  # a child that has its sockets too
print("ready", flush=True)
time.sleep(600)
"""


def test_a_killed_engine_is_gone_within_a_second_though_its_child_has_its_sockets(node):
    node.start_agent()
    child = subprocess.Popen(
        [sys.executable, "-c", ENGINE_PROCESS, REPO / "tests" / "integration", node.socket],
        stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert child.stdout.readline() == b"ready\n"
        assert node.metric("tier_holds") == 4 and node.mappings() > 0
        child.kill()
        died = time.monotonic()

        node.wait_nothing_left()

        assert time.monotonic() - died < 1
        assert node.metric("tier_holds") == 0 and node.metric("engine_connections") == 0
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def test_an_engine_that_registers_again_takes_the_place_of_its_last_life(node, engine):
    ids = save_prompt(engine, 1, 4)
    old = engine.scheduler, engine.worker
    engine.lookup(engine.open(ids))

    engine.register()

    for link in old:
        link.expect_end()
        link.close()
    assert node.metric("tier_holds") == 0
    load_prompt(engine, ids, 1, 4)


def test_a_save_of_an_engine_that_did_not_wait_is_thrown_away(node):
    node.start_agent(cpu_bytes=64 * MIB)
    engine = node.engine(memory=Memory(block_count=64, layer_count=1, layer_bytes=MIB // 2))
    ids = prompt_ids(1, 60)
    request = engine.open(ids)
    engine.begin_save((request, 0, list(range(60))))

    engine.worker.socket.shutdown(wire.socket.SHUT_WR)

    engine.saved(engine.next_job - 1)  # whatever it says: 60 pages take longer than that
    engine.worker.expect_end()
    node.wait_metric("engines", 0)
    saved = node.metric("tier_blocks_saved_total")
    assert saved == 0 or node.metric("engine_saves_discarded_total") == 0
    engine.worker.close()
    engine.register_worker()
    tokens, why = engine.lookup(engine.open(ids))
    assert tokens == saved * BLOCK_TOKENS and why == (HIT if saved else MISS)


def test_the_end_comes_behind_the_last_load(node):
    """Whoever has ended its sending side hears of its loads, and then reads the end."""
    node.start_agent(cpu_bytes=64 * MIB)
    engine = node.engine(memory=Memory(block_count=64, layer_count=1, layer_bytes=MIB // 2))
    ids = save_prompt(engine, 1, 30)
    request = engine.open(ids)
    assert engine.lookup(request) == (30 * BLOCK_TOKENS, HIT)
    jobs = [engine.begin_load(request, list(range(32, 62)))]

    engine.worker.socket.shutdown(wire.socket.SHUT_WR)

    assert [engine.loaded(job) for job in jobs] == [30]
    engine.worker.expect_end()
    assert [engine.memory.read(32 + i) for i in range(30)] == [
        expected_page(engine, 1, i) for i in range(30)]


def test_an_agent_that_stops_ends_its_engines_and_leaves_no_socket(node, engine):
    node.agent.stop()

    engine.scheduler.expect_end()
    engine.worker.expect_end()
    assert not node.socket.exists()


def test_a_second_agent_is_refused_and_a_dead_ones_socket_replaced(node, secret_file):
    agent = node.start_agent()
    argv = [program("samovar-agent"), "--redis", node.redis.url, "--secret-file", secret_file,
            "--engine", node.worker.url, "--kv-events", node.events.events, "--admin-port", 0,
            "--cpu-bytes", MIB, "--ipc-socket", node.socket]

    second = subprocess.run([str(word) for word in argv], capture_output=True, text=True,
                            timeout=WAIT_S)

    assert second.returncode == 4 and "another agent serves it" in second.stderr
    agent.kill()
    assert node.socket.exists()
    node.start_agent()
    node.engine()


# --- who may come, and with what ---


def test_the_socket_is_its_users_alone(node):
    node.start_agent()

    assert stat.S_IMODE(node.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.socket.parent.stat().st_mode) == 0o700


def refused_hello(node, role=wire.WORKER, fds=None, **other):
    engine = EngineClient(node.socket, registers=False)
    link = Link(node.socket)
    link.send(wire.HELLO, engine.hello(role, **other),
              [engine.memory.fd] if fds is None and role == wire.WORKER else fds or [])
    refusal = link.refusal()
    link.close()
    engine.stop()
    return refusal


@pytest.mark.parametrize(("other", "code", "words"), [
    ({"rank_count": 65}, wire.REFUSED_RANKS, "ranks"),
    ({"rank_count": 0}, wire.REFUSED_RANKS, "ranks"),
    ({"rank": 2, "rank_count": 2}, wire.REFUSED_RANKS, "ranks"),
    ({"worker": "http://10.1.1.1:1"}, wire.REFUSED_WORKER, "--advertise"),
    ({"block_tokens": 0}, wire.REFUSED_LAYOUT, "tokens"),
    ({"segments": [(0, 1 << 40, 4096, 4096)]}, wire.REFUSED_LAYOUT, ""),
    ({"segments": []}, wire.REFUSED_LAYOUT, ""),
    ({"region_bytes": 1 << 40}, wire.REFUSED_LAYOUT, ""),
    ({"fds": []}, wire.REFUSED_LAYOUT, "descriptor"),
    ({"device": 1, "fds": []}, wire.REFUSED_LAYOUT, "GPU"),
    ({"role": wire.SCHEDULER, "fds": [0]}, wire.REFUSED_BROKEN, "no memory"),
])
def test_what_cannot_be_served_is_refused_with_a_sentence(node, other, code, words):
    node.start_agent()

    refusal = refused_hello(node, **other)

    assert refusal[0] == code and words in refusal[1], refusal
    node.agent.log.wait("engine_refused")
    node.wait_nothing_left()
    node.engine()  # others are served


def test_one_layout_too_many_is_refused_while_the_first_is_in_use(node, engine):
    code, why = refused_hello(node, model="another")

    assert code == wire.REFUSED_LAYOUT and "--layouts-max" in why
    engine.close()
    node.wait_metric("engines", 0)
    code, why = refused_hello(node, model="another")
    assert code == wire.REFUSED_BUSY and "come again" in why

    def registers():
        try:
            node.engine(model="another")
            return True
        except AssertionError:  # REFUSED: its place is being made
            return False
    wait_until(registers, "the place is free")


def test_what_does_not_belong_here_is_refused(node, engine):
    for kind, body in ((wire.LOAD, struct.pack("<QQII", 1, 1, 0, 0)), (wire.HELLO, b""),
                       (wire.WELCOME, bytes(18))):
        engine.scheduler.send(kind, body)
        assert engine.scheduler.refusal()[0] == wire.REFUSED_BROKEN
        engine.scheduler.close()
        engine.register_scheduler()


def open_body(request, prompt_tokens, ids):
    return struct.pack("<QII", request, prompt_tokens, len(ids)) + 3 * wire.text("") + wire.numbers(ids)


def lookup_body(request, local_tokens):
    return struct.pack("<QII", request, local_tokens, 0)


@pytest.mark.parametrize(("messages", "words"), [
    ([(wire.OPEN, open_body(1, 8, [1])), (wire.OPEN, open_body(1, 8, [1]))], "opened twice"),
    ([(wire.OPEN, open_body(1, 1, [1, 2]))], "more tokens than its prompt has"),
    ([(wire.OPEN, open_body(1, 8, [1])), (wire.TOKENS, struct.pack("<QIII", 1, 2, 1, 7))], "gap"),
    ([(wire.LOOKUP, lookup_body(1, 3))], "multiple of the block"),
    ([(wire.OPEN, open_body(1, 8, [])), (wire.LOOKUP, lookup_body(1, 1 << 20))], "longer than the"),
    ([(wire.SAVE, struct.pack("<QIIII", 1, 0, 0, 0, 0))], "does not belong here"),
    ([(wire.PING, bytes(7))], "no message"),
])
def test_a_scheduler_that_contradicts_itself_reads_how(engine, messages, words):
    for kind, body in messages:
        engine.scheduler.send(kind, body)

    code, why = engine.scheduler.refusal()

    assert code == wire.REFUSED_BROKEN and words in why


def test_who_says_something_else_before_hello_or_of_another_life_reads_what_to_do(node, engine):
    link = Link(node.socket)
    link.send_raw(wire.message(wire.PING, bytes(8)))
    assert link.refusal() == (wire.REFUSED_BROKEN, "the first message is HELLO, and no other")
    link.close()

    engine.worker.send_raw(wire.message(wire.PING, bytes(8), engine.worker.boot ^ 1))
    code, why = engine.worker.refusal()
    assert code == wire.REFUSED_BROKEN and "register anew" in why

    engine.scheduler.send(wire.PING, bytes(8), [0])
    code, why = engine.scheduler.refusal()
    assert code == wire.REFUSED_BROKEN and "HELLO alone" in why


def test_a_worker_that_contradicts_its_scheduler_is_refused(node, engine):
    link = Link(node.socket)
    link.send(wire.HELLO, engine.hello(wire.WORKER, block_tokens=2 * BLOCK_TOKENS),
              [engine.memory.fd])

    code, why = link.refusal()

    assert code == wire.REFUSED_LAYOUT and "do not say the same" in why
    link.close()
    save_prompt(engine, 1, 4)


def test_a_block_that_the_engine_does_not_have_is_never_written(engine):
    ids = save_prompt(engine, 1, 4)
    request = engine.open(ids)
    engine.lookup(request)

    engine.begin_load(request, [engine.memory.block_count])

    assert engine.worker.refusal()[0] == wire.REFUSED_BROKEN


def test_another_version_is_told_apart(node):
    node.start_agent()
    link = Link(node.socket)

    link.send_raw(wire.message(wire.HELLO, b"", version=2))

    assert link.refusal()[0] == wire.REFUSED_VERSION
    link.close()


def test_random_messages_harm_nobody(node, engine):
    chance = random.Random(7)
    ids = save_prompt(engine, 1, 4)
    for _ in range(300):
        link = Link(node.socket)
        try:
            if chance.random() < 0.5:
                link.send(wire.HELLO, engine.hello(wire.SCHEDULER, worker=""))
                link.receive(wire.WELCOME)
            for _ in range(chance.randrange(4)):
                body = chance.randbytes(chance.randrange(200))
                kind = chance.randrange(256) if chance.random() < 0.3 else chance.randrange(1, 11)
                raw = wire.message(kind, body, link.boot)
                if chance.random() < 0.3:
                    raw = raw[:chance.randrange(len(raw)) or 1]
                link.send_raw(raw, [0] * chance.randrange(3))
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before it was through
        link.close()
    engine.close()  # whose id others had said
    node.wait_nothing_left()

    load_prompt(node.engine(), ids, 1, 4)


def test_an_engine_that_does_not_read_is_ended_and_others_are_served(node, engine):
    ids = save_prompt(engine, 1, 4)
    deaf = node.engine(engine_id=b"d" * 16)
    deaf.scheduler.socket.settimeout(1)
    try:
        while True:
            deaf.scheduler.send(wire.PING, bytes(8))
    except (BrokenPipeError, ConnectionResetError, TimeoutError):
        pass

    node.wait_metric("engine_connections_unread_total", 1)
    load_prompt(engine, ids, 1, 4)


def test_connections_are_bounded(node):
    node.start_agent("--ipc-clients-max", 3)
    engine = node.engine()
    third = Link(node.socket)
    fourth = Link(node.socket)

    code, why = fourth.refusal()
    assert code == wire.REFUSED_BUSY and "--ipc-clients-max" in why

    third.close()
    fourth.close()
    engine.scheduler.ping()


# --- what routers are told ---


class MappedPrompt:
    """One whose text blocks end where its token blocks do."""

    def __init__(self, secret_file, number, block_count):
        self.attempt = 1000 + number
        self.ids = prompt_ids(number, block_count, tail=0)
        self.texts = [(number << 32) + i for i in range(1, block_count + 1)]
        self.fingerprint, self.names = token_names(secret_file, self.ids, BLOCK_TOKENS)

    def write_notes(self, residency):
        """As a router that sent it does."""
        blocks = [(text, 200) for text in self.texts]
        anchor = (self.names[-1], len(self.ids), 0, UNKNOWN)
        residency.write_notes(self.fingerprint, pack_note(ROUTED, self.attempt, blocks=blocks),
                              pack_note(ANCHOR, self.attempt, anchor=anchor))

    def records(self, tiers):
        return {text: (BLOCK_TOKENS * (i + 1), tiers) for i, text in enumerate(self.texts)}


def test_the_map_says_what_an_engine_could_load_as_long_as_it_is_there(node, engine, secret_file):
    residency = ResidencyMap(node.redis, node.worker.url)
    prompt = MappedPrompt(secret_file, 1, 4)
    prompt.write_notes(residency)
    engine.save(engine.open(prompt.ids), [0, 1, 2, 3])

    residency.wait_records(prompt.records(CPU))

    engine.close()
    residency.wait_records({})
    node.engine()  # another life, which has saved nothing
    residency.wait_records(prompt.records(CPU))


def test_what_is_evicted_goes_from_the_map_before_it_is_missed(node, secret_file):
    node.start_agent(cpu_bytes=MIB)
    engine = node.engine()
    residency = ResidencyMap(node.redis, node.worker.url)
    prompt = MappedPrompt(secret_file, 1, 4)
    prompt.write_notes(residency)
    engine.save(engine.open(prompt.ids), [0, 1, 2, 3])
    residency.wait_records(prompt.records(CPU))

    fill(engine, 30)

    residency.wait_records({})
    assert engine.lookup(engine.open([*prompt.ids, 1])) == (0, MISS)


def test_meta_says_that_the_engine_tells_its_prompts_and_what_a_load_costs(node, engine):
    residency = ResidencyMap(node.redis, node.worker.url)
    ids = save_prompt(engine, 1, 8)
    load_prompt(engine, ids, 1, 8)

    wait_until(lambda: residency.meta().get("cpu_bytes_per_s", "0") != "0",
               lambda: f"a measured rate: {residency.meta()}")

    meta = residency.meta()
    assert meta["has_anchors"] == "1"
    assert 5000 <= int(meta["cpu_start_us"]) < 10**6, "with what is assumed of an engine"
    assert meta["ssd_start_us"] == meta["ssd_bytes_per_s"] == "0", "nothing was loaded from there"
    assert meta["prefill_tokens_per_s"] == "0", "no step was told of"
    assert int(meta["bytes_per_token"]) == engine.memory.page_bytes // BLOCK_TOKENS
    engine.close()
    wait_until(lambda: residency.meta()["has_anchors"] == "0", "it is known that the engine has gone")


TURN_S = 0.08


def test_what_an_engine_adds_to_a_load_and_how_fast_it_computes_is_measured(node, engine):
    """From the TAKE that asks for a load to the TAKE that says it goes on, but for the load."""
    residency = ResidencyMap(node.redis, node.worker.url)
    request = engine.open(save_prompt(engine, 1, 8))
    engine.lookup(request)
    began = time.monotonic()
    engine.take(request, 0, 8)
    assert engine.load(request, list(range(40, 48))) == 8
    time.sleep(TURN_S)  # it does something else
    engine.take(request, 0, 0)
    engine.take(request, 0, 0)  # nothing more
    assert engine.save(request, list(range(40, 48)), step_tokens=512, step_us=64000)[1] == 8
    engine.lookup(request)  # whatever its scheduler said before has been heard
    took_s = time.monotonic() - began

    assert node.metric("engine_turns_total") == 1
    assert TURN_S <= node.metric("engine_turns_us_total") / 10**6 <= took_s
    wait_until(lambda: int(residency.meta()["cpu_start_us"]) >= TURN_S * 10**6,
               lambda: f"it is told: {residency.meta()}")
    assert int(residency.meta()["prefill_tokens_per_s"]) == pytest.approx(8000, rel=0.01)


# --- what operators are told ---


def shown_tiers(agent):
    """The lines of `samovar show tiers`."""
    shown = subprocess.run([program("samovar"), "show", "tiers", "--admin",
                            "http://%s:%d" % agent.admin_address], capture_output=True, text=True,
                           timeout=WAIT_S)
    assert (shown.returncode, shown.stderr) == (0, "")
    return shown.stdout.splitlines()


def test_an_operator_reads_how_the_tiers_are(node):
    agent = node.start_agent(cpu_bytes=MIB, ssd_bytes=16 * MIB)
    (before,) = shown_tiers(agent)
    assert before.startswith("doubt  no engine has come yet") and str(node.socket) in before

    engine = node.engine()
    ids = save_prompt(engine, 1, 8)
    load_prompt(engine, ids, 1, 8)
    lines = shown_tiers(agent)

    assert all(line.startswith("fine   ") for line in lines), lines
    text = "\n".join(lines)
    assert "engines connected: 1" in text and "CPU memory holds 8 of" in text
    assert "the SSD holds" in text and "100 % found something to load" in text
    assert "8 blocks were saved, 8 loaded from CPU memory" in text
    engine.close()
    node.wait_metric("engines", 0)
    assert "no engine is connected any more" in shown_tiers(agent)[0]


def test_an_operator_of_an_agent_without_tiers_reads_that(start_agent, worker, redis):
    agent = start_agent(worker, redis, kv_events="tcp://127.0.0.1:1")

    assert shown_tiers(agent) == ["fine   there are no tiers beneath the engines (--cpu-bytes)"]


# --- options ---


def test_tiers_without_a_way_to_them_are_refused(node, secret_file):
    def refusal(*flags):
        argv = [program("samovar-agent"), "--redis", node.redis.url, "--secret-file", secret_file,
                "--engine", node.worker.url, "--kv-events", node.events.events, *flags]
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True,
                              timeout=WAIT_S)
        assert done.returncode == 2
        return done.stderr

    assert "--ipc-socket" in refusal("--cpu-bytes", "1GiB")
    assert "--cpu-bytes" in refusal("--ipc-socket", node.socket)
    assert "absolute" in refusal("--cpu-bytes", "1GiB", "--ipc-socket", "agent.sock")
    assert "--ssd-dir" in refusal("--cpu-bytes", "1GiB", "--ipc-socket", node.socket,
                                  "--ssd-bytes", "1GiB")
    assert "no such group" in refusal("--cpu-bytes", "1GiB", "--ipc-socket", node.socket,
                                      "--ipc-group", "nobody knows it")
    assert "lru_leaf" in refusal("--eviction", "fifo")
    assert "at least 1024, or leave it out" in refusal("--token-blocks-max", "1023")
    assert "add --cpu-bytes" in refusal("--ssd-bytes", "1GiB", "--ssd-dir", "/ssd")
    assert "add --ssd-bytes" in refusal("--cpu-bytes", "1GiB", "--ipc-socket", node.socket,
                                        "--ssd-dir", "/ssd")


def machine_bytes():
    """Memory of this machine, or of its control group."""
    group = Path("/sys/fs/cgroup/memory.max")
    limit = group.read_text().strip() if group.exists() else "max"
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    return whole if limit == "max" else min(whole, int(limit))


@pytest.mark.parametrize(("flags", "sizes", "option", "advice"), [
    ([], {"cpu_bytes": machine_bytes() // 100 * 95}, "cpu-bytes", "leave some to the engines"),
    ([], {"ssd_bytes": MIB}, "ssd-bytes", "several times --cpu-bytes"),
    (["--page-checksums=false"], {"ssd_bytes": 16 * MIB}, "page-checksums", "leave it on"),
])
def test_what_is_doubtful_of_tiers_is_said_at_the_start(node, flags, sizes, option, advice):
    agent = node.start_agent(*flags, **sizes)

    assert advice in agent.log.wait("option_doubtful", option=option)["advice"]


def test_tiers_with_more_blocks_than_routers_can_be_told_of_are_doubtful(node):
    agent = node.start_agent("--token-blocks-max", 1024, "--text-blocks-max", 1024,
                             cpu_bytes=64 * MIB)
    node.engine()

    doubt = agent.log.wait("option_doubtful", option="token-blocks-max")
    text = agent.log.wait("option_doubtful", option="text-blocks-max")

    slots = node.metric("tier_slots", tier="cpu")
    assert (int(doubt["needed"]), int(doubt["allowed"])) == (slots, 1024)
    assert (int(text["needed"]), int(text["allowed"])) == (slots * BLOCK_TOKENS // 64, 1024)
    assert doubt["advice"].startswith("raise it above what is needed")
    assert node.metric("token_blocks_allowed") == 1024


def test_room_for_what_routers_are_told_of_follows_from_the_tiers(node):
    agent = node.start_agent(cpu_bytes=16 * MIB, ssd_bytes=16 * MIB)
    before = node.metric("token_blocks_allowed")
    node.engine()

    slots = node.metric("tier_slots")
    assert slots > 2000 and before == 262144
    assert node.metric("token_blocks_allowed") == before + slots
    assert agent.log.find("option_doubtful", option="token-blocks-max") == []
