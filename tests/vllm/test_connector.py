# SPDX-License-Identifier: Apache-2.0
"""The engine's half of the tiers, without an engine: against an agent that is right, slow, lying,
dying, or another one than before. Whatever it does, the engine goes on, in time, and with the right
bytes or none."""

import os
import pathlib
import random
import re
import subprocess
import threading
import time
import types

import pytest

from engines import CONNECTOR
from half_engine import BLOCK_TOKENS, HalfEngine
from peers.connector_agent import ConnectorAgent, load_some, once, put_off, refuse, wire
from peers.process import REPO, wait_until
import samovar_vllm
from samovar_vllm import link, scheduler
from samovar_vllm.worker import JOB_BITS

pytestmark = pytest.mark.smoke

CORPUS = REPO / "tests/fuzz/corpus/ipc_wire"
PROMPT = list(range(100, 100 + 10 * BLOCK_TOKENS + 5))
WHOLE = 10 * BLOCK_TOKENS  # of PROMPT, what can be loaded
AT_ONCE_S = 0.25           # no limit of the wire, but of this machine


@pytest.fixture
def agent(tmp_path):
    with ConnectorAgent(tmp_path / "agent.sock") as agent:
        yield agent


@pytest.fixture
def engine(agent):
    engine = HalfEngine(agent.path)
    engine.wait_registered()
    yield engine
    agent.stop()
    engine.close()


def silent(_agent, _connection, _message):
    """Does nothing instead."""


def begin_load(engine, name="again", tokens=None):
    """A request whose load was asked for."""
    request = engine.add(name, tokens or PROMPT)
    external = engine.scheduler.match(request, 0)
    assert external == WHOLE
    engine.admit(request, external)
    engine.step()
    return request


def clocked(act):
    began = time.monotonic()
    result = act()
    return result, time.monotonic() - began


# --- the wire ---

@pytest.mark.parametrize("path", sorted(CORPUS.glob("*")), ids=lambda path: path.name)
def test_what_the_agents_side_wrote_is_read_and_written_as_the_same_bytes(path):
    raw = path.read_bytes()
    if path.name in ("load_cut", "other_version", "save_many_entries"):
        with pytest.raises(wire.Broken):
            wire.read(raw)
        return

    message = vars(wire.read(raw))

    assert wire.write(message.pop("kind"), message.pop("boot"), **message) == raw


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*")), ids=lambda path: path.name)
def test_no_cut_or_changed_message_is_read_as_another_one(path):
    raw = path.read_bytes()
    rng = random.Random(path.name)
    changed = [raw[:cut] for cut in range(len(raw))] + [raw + b"\0"]
    for _ in range(300):
        at = rng.randrange(len(raw))
        changed.append(raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1:])

    for other in changed:
        try:
            message = vars(wire.read(other))
        except wire.Broken:
            continue
        assert wire.write(message.pop("kind"), message.pop("boot"), **message) == other


def test_a_step_that_fills_many_blocks_is_saved_in_messages_that_fit():
    entries = [(1, 0, list(range(40000))), (2, 7, [3]), *((n, 0, [n]) for n in range(3, 1500))]

    batches = list(wire.save_batches(entries))

    raw = [wire.write(wire.SAVE, 1, job=1, entries=batch, step_tokens=0, step_us=0)
           for batch in batches]
    blocks = {}
    for message in map(wire.read, raw):
        for request, first, part in message.entries:
            for index, block in enumerate(part, first):
                assert (request, index) not in blocks
                blocks[request, index] = block
    assert blocks == {(request, first + i): block for request, first, part in entries
                      for i, block in enumerate(part)}


def test_the_version_is_the_projects():
    text = (REPO / "CMakeLists.txt").read_text()

    assert re.search(r"project\(samovar VERSION (\S+)", text)[1] == samovar_vllm.__version__


# --- the engine's memory ---

def test_blocks_of_all_layouts_are_named_byte_by_byte():
    """layouts.py, in the engine's Python: it needs torch, which the others here do not."""
    python = pathlib.Path(os.environ["SAMOVAR_VLLM_VENV"]) / "bin" / "python"
    done = subprocess.run([python, pathlib.Path(__file__).with_name("layouts.py")], text=True,
                          env={**os.environ, "PYTHONPATH": str(CONNECTOR)}, capture_output=True,
                          check=False)

    assert done.returncode == 0, done.stderr


# --- an agent as it should be ---

def test_what_was_saved_is_loaded_again_byte_by_byte(engine):
    fresh = engine.run("fresh", PROMPT)
    again = engine.run("again", PROMPT)

    assert fresh == (0, True)
    assert again == (WHOLE, True)


def test_another_engine_loads_what_it_has_never_seen(engine, agent):
    engine.run("fresh", PROMPT)
    other = HalfEngine(agent.path, name="other")
    other.wait_registered()

    loaded = other.run("elsewhere", PROMPT)

    other.close()
    assert loaded == (WHOLE, True)


def test_the_last_token_of_a_prompt_is_never_loaded(engine):
    whole_blocks = PROMPT[:4 * BLOCK_TOKENS]
    engine.run("fresh", whole_blocks)

    assert engine.run("again", whole_blocks) == (3 * BLOCK_TOKENS, True)


def test_only_what_is_beyond_the_engines_own_hit_is_asked_for(engine, agent):
    engine.run("fresh", PROMPT)
    request = engine.add("again", PROMPT)

    external = engine.scheduler.match(request, 3 * BLOCK_TOKENS)
    engine.admit(request, external)
    plan = engine.step()

    assert external == WHOLE - 3 * BLOCK_TOKENS
    (load,) = plan.loads
    assert (load.first_block, len(load.engine_blocks)) == (3, 7)
    assert load.engine_blocks == engine.blocks["again"][3:10]


def test_a_prompt_computed_in_pieces_is_saved_in_pieces(engine, agent):
    request = engine.add("fresh", PROMPT)
    engine.admit(request, engine.scheduler.match(request, 0))

    saves = [engine.step(new=[(request, 0, 40)]).saves,
             engine.step(cached=[(request, 40, 8)]).saves,
             engine.step(cached=[(request, 48, len(PROMPT) - 48)]).saves,
             engine.step(cached=[(request, len(PROMPT), 1)]).saves]

    assert [[(first, len(blocks)) for _, first, blocks in step] for step in saves] == [
        [(0, 2)], [(2, 1)], [(3, 7)], []]
    assert len(agent.pages) == 10


def test_a_preempted_request_is_saved_from_its_new_blocks(engine, agent):
    request = engine.add("fresh", PROMPT)
    engine.admit(request, engine.scheduler.match(request, 0))
    engine.step(new=[(request, 0, 40)])
    engine.free += engine.blocks["fresh"]
    request.num_preemptions = 1

    engine.admit(request, engine.scheduler.match(request, WHOLE))
    engine.step(cached=[(request, 0, len(PROMPT))], resumed=[request])
    engine.end(request)

    assert engine.run("again", PROMPT) == (WHOLE, True)


def test_a_preempted_request_is_looked_up_once_more(engine):
    engine.run("fresh", PROMPT)
    request = begin_load(engine)
    engine.wait_loaded(request)

    assert engine.scheduler.match(request, 0) == 0
    request.num_preemptions = 1
    assert engine.scheduler.match(request, 0) == WHOLE


def test_a_long_prompt_is_told_in_parts(engine, agent):
    tokens = [n % 50000 for n in range(40003)]
    engine.add("long", tokens)

    wait_until(lambda: agent.heard_kinds().count(wire.TOKENS) == 2, "all of it was told")
    (connection,) = agent.of_role(wire.SCHEDULER)
    assert [prompt.tokens for prompt in connection.prompts.values()] == [tokens]


def test_a_load_longer_than_a_message_comes_in_parts(engine, agent, monkeypatch):
    engine.run("fresh", PROMPT)
    monkeypatch.setattr(wire, "BLOCK_COUNT_MAX", 4)

    assert engine.run("again", PROMPT) == (WHOLE, True)
    assert agent.heard_kinds().count(wire.LOAD) == 3


def test_polls_of_a_waiting_request_cost_no_messages(engine, agent):
    engine.run("fresh", PROMPT)
    request = engine.add("again", PROMPT)

    answers, took_s = clocked(lambda: [engine.scheduler.match(request, 0) for _ in range(600)])

    assert set(answers) == {WHOLE}
    assert agent.heard_kinds().count(wire.LOOKUP) <= 1 + 1
    assert took_s < 1


def test_what_was_not_taken_is_let_go(engine, agent):
    engine.run("fresh", PROMPT)
    request = engine.add("again", PROMPT)
    assert engine.scheduler.match(request, 0) == WHOLE

    engine.admit(request, 0)

    wait_until(lambda: wire.TAKE in agent.heard_kinds(), "TAKE")
    assert [(m.first_block, m.block_count) for _, m in agent.heard
            if m.kind == wire.TAKE] == [(0, 0)]


def test_salt_and_adapter_are_part_of_what_is_asked_for(engine):
    adapter = types.SimpleNamespace(lora_name="adapter")
    engine.run("fresh", PROMPT)

    assert engine.run("salted", PROMPT, cache_salt="s")[0] == 0
    assert engine.run("adapted", PROMPT, lora_request=adapter)[0] == 0
    assert engine.run("salted again", PROMPT, cache_salt="s") == (WHOLE, True)


@pytest.mark.parametrize("reason, fields", [
    ("embeddings", {"prompt_token_ids": None}), ("embeddings", {"prompt_embeds": object()}),
    ("media", {"mm_features": [object()]}),
    ("media", {"mm_features": [object()], "prompt_token_ids": None}),
    ("embeddings", {"prompt_is_token_ids": [True, False]}), ("resumable", {"resumable": True}),
    ("unsayable", {"cache_salt": "s" * 1025}), ("unsayable", {"cache_salt": "\ud800"}),
    ("unsayable", {"lora_request": types.SimpleNamespace(lora_name="a" * 1025)})], ids=str)
def test_requests_whose_tokens_do_not_say_all_stay_out(engine, agent, reason, fields):
    request = engine.add("other", PROMPT, **fields)

    assert engine.scheduler.match(request, 0) == 0
    engine.scheduler.finish("other")
    assert wire.OPEN not in agent.heard_kinds()
    assert engine.counts.take() == {f"requests_left_out {reason}": 1}


def test_an_id_of_any_length_and_letters_is_told_as_far_as_it_fits(engine, agent):
    engine.add("\ud800" + "é" * 2000, PROMPT)

    wait_until(lambda: wire.OPEN in agent.heard_kinds(), "OPEN")


@pytest.mark.parametrize("moment", ["added", "matched", "taken", "loading", "loaded", "computing"])
def test_an_abort_at_any_point_closes_the_request_once(engine, agent, moment):
    engine.run("fresh", PROMPT)
    wait_until(lambda: wire.CLOSE in agent.heard_kinds(), "all of it was heard")
    agent.heard.clear()
    request = engine.add("aborted", PROMPT)
    external = engine.scheduler.match(request, 0) if moment != "added" else 0
    if moment not in ("added", "matched"):
        engine.admit(request, external)
    if moment in ("loading", "loaded", "computing"):
        engine.step()
    if moment in ("loaded", "computing"):
        engine.wait_loaded(request)
    if moment == "computing":
        engine.step(new=[(request, WHOLE, 5)])

    engine.scheduler.finish("aborted")
    if moment == "taken":
        engine.step()
    if moment in ("taken", "loading"):
        engine.wait_loaded(request)  # it is named although it has ended
        engine.worker.failed()

    wait_until(lambda: wire.CLOSE in agent.heard_kinds(), "CLOSE")
    assert agent.heard_kinds().count(wire.CLOSE) == 1
    assert engine.worker.finished() == set()
    assert engine.run("again", PROMPT) == (WHOLE, True)


def test_a_reset_forgets_all_pages(engine):
    engine.run("fresh", PROMPT)

    assert engine.scheduler.reset() is True
    assert engine.run("again", PROMPT) == (0, True)
    assert engine.run("once more", PROMPT) == (WHOLE, True)


def test_a_reset_that_nobody_heard_comes_before_anything_else(engine, agent):
    engine.run("fresh", PROMPT)
    agent.stop()
    pages = dict(agent.pages)

    assert engine.scheduler.reset() is False
    agent.instead[wire.RESET] = silent
    agent.start()
    agent.pages = pages
    agent.heard.clear()
    engine.wait_registered()
    assert engine.run("meanwhile", PROMPT) == (0, True)
    assert engine.counts.take() == {"requests_left_out reset": 1}
    agent.instead.clear()
    restart(agent, engine)
    agent.pages = pages

    wait_until(engine.scheduler._pump, "the reset is done")
    assert engine.run("again", PROMPT) == (0, True)
    kinds = agent.heard_kinds(wire.SCHEDULER)
    assert [kind for kind in kinds if kind != wire.HELLO][0] == wire.RESET


# --- several ranks ---

def test_jobs_are_numbered_by_the_step_that_all_ranks_share(engine, agent):
    """Also behind steps in which this rank had nobody to say them to."""
    request = engine.add("fresh", PROMPT)
    engine.admit(request, engine.scheduler.match(request, 0))

    steps = [engine.step(new=[(request, 0, 40)]).step, engine.step(cached=[(request, 40, 8)]).step]
    agent.stop()
    engine.step(cached=[(request, 48, 40)])
    agent.start()
    engine.wait_registered()
    steps.append(engine.step(cached=[(request, 88, len(PROMPT) - 88)]).step)

    jobs = [message.job for _, message in agent.heard if message.kind == wire.SAVE]
    assert steps == [1, 2, 4]
    assert jobs == [(step << JOB_BITS) + 1 for step in steps]


@pytest.fixture
def pipelined(agent):
    engine = HalfEngine(agent.path, name="pipelined", is_pipelined=True)
    engine.wait_registered()
    yield engine
    agent.stop()
    engine.close()


def begin_save(engine, agent):
    """A step whose save is not answered: (its request, how long it took)"""
    agent.holds.add(wire.SAVED)
    request = engine.add("fresh", PROMPT)
    engine.admit(request, engine.scheduler.match(request, 0))
    return request, clocked(lambda: engine.step(new=[(request, 0, len(PROMPT))]))[1]


def test_a_pipelined_rank_ends_its_step_before_its_save_is_over(pipelined, agent):
    """The next rank, for whose save the agent waits, has nothing to compute from before."""
    _, took_s = begin_save(pipelined, agent)
    wait_until(lambda: agent.held, "the agent has copied")
    agent.release()

    _, next_took_s = clocked(pipelined.step)

    assert took_s < AT_ONCE_S and next_took_s < AT_ONCE_S
    assert pipelined.is_registered()
    assert pipelined.run("again", PROMPT) == (WHOLE, True)


def test_a_pipelined_rank_changes_nothing_before_its_save_is_over_or_given_up(pipelined, agent):
    request, took_s = begin_save(pipelined, agent)
    wait_until(lambda: agent.held, "the agent has copied")

    _, next_took_s = clocked(lambda: pipelined.step(cached=[(request, len(PROMPT), 1)]))

    assert took_s < AT_ONCE_S <= next_took_s  # save_ms: what the agent has asked for
    assert not pipelined.worker._link.is_ready()


# --- slow ---

def test_a_late_lookup_is_a_miss_in_time_and_its_answer_nobodys(engine, agent):
    engine.run("fresh", PROMPT)
    release = threading.Event()
    agent.before[wire.LOOKUP] = first_only_before(lambda: release.wait(5))
    late, other = engine.add("late", PROMPT), engine.add("other", PROMPT[:WHOLE // 2])

    found, took_s = clocked(lambda: engine.scheduler.match(late, 0))
    more, took_more_s = clocked(lambda: [engine.scheduler.match(other, 0) for _ in range(50)])
    release.set()

    assert found == 0 and took_s < AT_ONCE_S
    assert set(more) == {0} and took_more_s < AT_ONCE_S
    wait_until(lambda: engine.scheduler.match(other, 0) == WHOLE // 2 - BLOCK_TOKENS,
               "the other one is found, and as its own")
    for name in ("late", "other"):
        engine.scheduler.finish(name)
    assert engine.counts.take() == {"requests_left_out late": 1}  # the other was answered, later


def first_only_before(act):
    done = []

    def before(_agent, _connection, _message):
        if not done:
            done.append(True)
            act()
    return before


def test_what_is_put_off_is_asked_for_again(engine, agent):
    engine.run("fresh", PROMPT)
    agent.instead[wire.LOOKUP] = once(put_off(30))
    request = engine.add("again", PROMPT)

    assert engine.scheduler.match(request, 0) is None
    wait_until(lambda: engine.scheduler.match(request, 0) == WHOLE, "it is found")
    assert agent.heard_kinds().count(wire.LOOKUP) >= 2


def test_a_request_is_not_put_off_for_ever(agent):
    now = [0.0]
    engine = HalfEngine(agent.path, clock=lambda: now[0])
    engine.wait_registered()
    agent.instead[wire.LOOKUP] = put_off(2**32 - 1)
    request = engine.add("waiting", PROMPT)
    answers = []

    while now[0] < 2 * scheduler.PATIENCE_S:
        answers.append(engine.scheduler.match(request, 0))
        now[0] += 0.1
    engine.scheduler.finish("waiting")

    engine.close()
    assert answers[0] is None and answers[-1] == 0
    assert engine.counts.take() == {"requests_left_out put_off": 1}


def test_a_load_is_over_when_the_agent_says_so_and_not_before(engine, agent):
    engine.run("fresh", PROMPT)
    release = threading.Event()
    agent.before[wire.LOAD] = lambda *_: release.wait(5)
    request = begin_load(engine)

    polls = [clocked(engine.worker.finished) for _ in range(200)]
    release.set()

    assert all(done == set() for done, _ in polls)
    assert max(took_s for _, took_s in polls) < AT_ONCE_S
    engine.wait_loaded(request)
    assert engine.worker.failed() == set()
    assert engine.holds(request, WHOLE)


def test_that_the_engine_goes_on_behind_its_load_is_said_once(engine, agent):
    engine.run("fresh", PROMPT)
    request = begin_load(engine)
    engine.wait_loaded(request)

    engine.scheduler.take(request, lambda: engine.blocks[request.request_id], 0)

    wait_until(lambda: agent.heard_kinds().count(wire.TAKE) == 2, "another TAKE")
    assert [(m.first_block, m.block_count) for _, m in agent.heard
            if m.kind == wire.TAKE] == [(0, WHOLE // BLOCK_TOKENS), (0, 0)]


def test_a_late_save_ends_the_connection_before_the_engine_goes_on(engine, agent):
    release, ended = threading.Event(), []

    def slow(_agent, connection, _message):
        release.wait(5)
        ended.append(connection.has_ended())
    agent.before[wire.SAVE] = slow
    agent.limits["save_ms"] = 50
    restart(agent, engine)

    _, took_s = clocked(lambda: engine.run("fresh", PROMPT))
    release.set()

    assert took_s < AT_ONCE_S + 0.05
    wait_until(lambda: ended, "the agent goes on")
    assert ended == [True]  # and so throws away what it copied
    assert engine.counts.take() == {"blocks_unsaved late": WHOLE // BLOCK_TOKENS}
    agent.before.clear()
    engine.wait_registered()
    engine.run("fresh again", PROMPT)
    assert engine.run("again", PROMPT)[1]


def test_a_save_that_is_late_leaves_a_load_to_the_agent(engine, agent):
    """The load's blocks are the agent's until it says LOADED, although the engine has given it up."""
    agent.limits["save_ms"] = 50
    restart(agent, engine)
    engine.run("fresh", PROMPT)
    loads = []
    agent.instead[wire.LOAD] = lambda _agent, connection, message: loads.append(
        (connection, message))
    agent.instead[wire.SAVE] = silent
    loading = begin_load(engine, "loading")
    wait_until(lambda: loads, "the agent loads")

    engine.run("computed", [7] * 40)
    polls = [engine.worker.finished() for _ in range(50)]
    agent.answer(*loads[0])

    assert all(done == set() for done in polls)
    engine.wait_loaded(loading)
    assert engine.worker.failed() == set()
    assert engine.holds(loading, WHOLE)


def test_an_agent_that_reads_nothing_is_given_up(engine, agent):
    release = threading.Event()
    agent.before[wire.OPEN] = lambda *_: release.wait(20)

    def many_requests():
        for n in range(300):
            request = engine.add(f"r{n}", [n] * 4000)
            assert engine.scheduler.match(request, 0) == 0
            engine.scheduler.finish(f"r{n}")
    _, took_s = clocked(many_requests)

    assert took_s < 5
    assert not engine.scheduler._link.is_ready()
    counted = engine.counts.take()
    assert set(counted) == {"requests_left_out late", "requests_left_out away"}
    assert sum(counted.values()) == 300
    release.set()


# --- dying ---

def restart(agent, engine):
    agent.restart()
    engine.wait_registered()


def test_requests_are_served_without_an_agent(tmp_path):
    engine = HalfEngine(tmp_path / "nobody.sock")

    assert engine.run("alone", PROMPT) == (0, True)
    assert engine.counts.take() == {"requests_left_out away": 1}
    assert engine.scheduler.reset() is False
    engine.close()


def test_an_idle_engine_registers_with_an_agent_that_was_started_anew(engine, agent):
    agent.stop()
    agent.heard.clear()
    agent.start()

    wait_until(lambda: agent.heard_kinds().count(wire.HELLO) == 2, "both halves say HELLO")
    engine.wait_registered()
    engine.run("fresh", PROMPT)
    assert engine.run("again", PROMPT) == (WHOLE, True)


def test_what_runs_is_told_and_saved_anew(engine, agent):
    request = engine.add("running", PROMPT)
    engine.admit(request, engine.scheduler.match(request, 0))
    engine.step(new=[(request, 0, len(PROMPT))])
    agent.pages.clear()
    restart(agent, engine)

    engine.step(cached=[(request, len(PROMPT), 1)])

    assert len(agent.pages) == 10
    assert engine.run("again", PROMPT) == (WHOLE, True)


def test_an_agent_that_dies_while_it_loads_fails_the_whole_load(engine, agent):
    engine.run("fresh", PROMPT)
    agent.instead[wire.LOAD] = silent
    request = begin_load(engine)

    agent.stop()

    engine.wait_loaded(request)
    assert engine.worker.failed() == set(engine.blocks["again"][:10])
    assert engine.scheduler.match(request, 0) == 0  # it is computed now


def test_an_agent_that_dies_between_answer_and_load_fails_the_load(engine, agent):
    engine.run("fresh", PROMPT)
    request = engine.add("again", PROMPT)
    external = engine.scheduler.match(request, 0)
    agent.stop()

    engine.admit(request, external)
    engine.step()

    engine.wait_loaded(request)
    assert engine.worker.failed() == set(engine.blocks["again"][:10])


def test_an_agent_that_dies_while_it_saves_costs_only_the_save(engine, agent):
    agent.instead[wire.SAVE] = lambda _agent, connection, _message: connection.close()

    _, took_s = clocked(lambda: engine.run("fresh", PROMPT))

    assert took_s < AT_ONCE_S
    assert engine.counts.take() == {"blocks_unsaved away": WHOLE // BLOCK_TOKENS}
    agent.instead.clear()
    engine.wait_registered()
    engine.run("fresh again", PROMPT)
    assert engine.run("again", PROMPT) == (WHOLE, True)


def test_a_hold_is_not_believed_in_after_its_connection(engine, agent):
    engine.run("fresh", PROMPT)
    request = engine.add("again", PROMPT)
    assert engine.scheduler.match(request, 0) == WHOLE
    agent.heard.clear()
    restart(agent, engine)

    assert engine.scheduler.match(request, 0) == WHOLE
    assert agent.heard_kinds(wire.SCHEDULER) == [wire.HELLO, wire.OPEN, wire.LOOKUP]


# --- lying ---

def test_fewer_blocks_than_asked_for_fail_from_there_on(engine, agent):
    engine.run("fresh", PROMPT)
    agent.instead[wire.LOAD] = load_some(3)
    request = begin_load(engine)

    engine.wait_loaded(request)

    assert engine.worker.failed() == set(engine.blocks["again"][3:10])
    assert engine.holds(request, 3 * BLOCK_TOKENS)


@pytest.mark.parametrize("tokens", [WHOLE + BLOCK_TOKENS, BLOCK_TOKENS + 1, 2**32 - 16])
def test_what_cannot_be_found_is_not_believed(engine, agent, tokens):
    agent.instead[wire.LOOKUP] = once(lambda _agent, connection, message: connection.say(
        wire.FOUND, request=message.request, tokens=tokens, later_ms=0, why=wire.HIT))

    assert engine.run("lied to", PROMPT) == (0, True)
    assert engine.counts.take()["requests_left_out away"] == 1
    engine.wait_registered()
    assert engine.run("again", PROMPT)[1]


def test_more_loaded_than_asked_for_is_nothing_loaded(engine, agent):
    engine.run("fresh", PROMPT)
    agent.instead[wire.LOAD] = lambda _agent, connection, message: connection.say(
        wire.LOADED, job=message.job, block_count=len(message.engine_blocks) + 1)
    request = begin_load(engine)

    engine.wait_loaded(request)

    assert engine.worker.failed() == set(engine.blocks["again"][:10])


LIES = {
    "garbage": lambda c, m: c.say_bytes(b"\0" * 40),
    "another boot": lambda c, m: c.say(wire.FOUND, boot=c.boot + 1, request=m.request, tokens=16,
                                       later_ms=0, why=wire.HIT),
    "another request": lambda c, m: c.say(wire.FOUND, request=m.request + 7, tokens=16, later_ms=0,
                                          why=wire.HIT),
    "another kind": lambda c, m: c.say(wire.SAVED, job=1, saved=0, known=0, refused=0),
    "a question": lambda c, m: c.say(wire.PING, number=1),
    "refused": lambda c, m: c.say(wire.REFUSED, code=wire.REFUSED_BROKEN, text="no"),
}


def request_left_out(engine, request):
    return engine.scheduler._prompts[request.request_id].left_out


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_whoever_answers_anything_else_is_registered_with_anew(engine, agent, lie):
    engine.run("fresh", PROMPT)
    agent.instead[wire.LOOKUP] = once(
        lambda _agent, connection, message: lie(connection, message))
    request = engine.add("lied to", PROMPT)

    found, took_s = clocked(lambda: engine.scheduler.match(request, 0))

    assert found == 0 and took_s < AT_ONCE_S
    assert request_left_out(engine, request) == "away"
    wait_until(lambda: engine.scheduler.match(request, 0) == WHOLE, "it is served again")
    assert request_left_out(engine, request) is None


def test_a_lie_during_a_load_is_no_end_of_it(engine, agent):
    engine.run("fresh", PROMPT)
    loads = []
    agent.instead[wire.LOAD] = lambda _agent, connection, message: loads.append(
        (connection, message))
    request = begin_load(engine)
    wait_until(lambda: loads, "the agent loads")

    loads[0][0].say_bytes(b"\0" * 40)
    polls = []
    wait_until(lambda: polls.append(engine.worker.finished()) or not engine.worker._link.is_ready(),
               "it is given up")

    assert all(done == set() for done in polls)
    agent.answer(*loads[0])
    engine.wait_loaded(request)
    assert engine.worker.failed() == set()


def test_an_engine_that_is_refused_serves_and_asks_again(agent, monkeypatch):
    monkeypatch.setattr(link, "REFUSED_RETRY_S", 0.05)
    agent.instead[wire.HELLO] = refuse(wire.REFUSED_LAYOUT, "one layout too many")
    engine = HalfEngine(agent.path)

    wait_until(engine.scheduler._link.is_refused, "it was refused")
    assert engine.run("refused", PROMPT) == (0, True)
    assert engine.counts.take() == {"requests_left_out refused": 1}
    agent.instead.clear()
    engine.wait_registered()

    engine.run("fresh", PROMPT)
    assert engine.run("again", PROMPT) == (WHOLE, True)
    engine.close()
