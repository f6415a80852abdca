# SPDX-License-Identifier: Apache-2.0
"""
The agent between an engine that the test speaks for, a real Redis, and a router that the test plays:
what the map says is what the engine holds, whatever breaks.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from peers.kv_engine import KvEngine, cleared, removed, stored
from peers.process import REPO, program, wait_until
from peers.residency_map import ResidencyMap, token_names
from peers.residency_wire import (
    ANCHOR, ANSWERED, CPU, HBM, ROUTED, TEXT, UNKNOWN, pack_note, workers_key)

BLOCK_TOKENS = 16
TEXT_BYTES = 200
LEASE_S = 3
TRUE_S = 1   # within which a map is true behind an agent's start
SLACK_S = 1  # for a machine that others keep busy
RECORDINGS = REPO / "tests" / "fixtures" / "vllm-0.32.0" / "kv"


class Prompt:
    """One whose text blocks end where its token blocks do, so that what is claimed is plain."""

    def __init__(self, secret_file, number, block_count=4):
        self.attempt = 1000 + number
        self.hashes = [(number << 16) + i for i in range(1, block_count + 1)]  # the engine's
        self.texts = [(number << 32) + i for i in range(1, block_count + 1)]  # the router's
        self.ids = [number * 1000 + i for i in range(block_count * BLOCK_TOKENS)]
        self.fingerprint, self.names = token_names(secret_file, self.ids, BLOCK_TOKENS)

    def stored(self, **more):
        return stored(self.hashes, self.ids, BLOCK_TOKENS, **more)

    def notes(self):
        return (pack_note(ROUTED, self.attempt, blocks=[(text, TEXT_BYTES) for text in self.texts]),
                pack_note(ANCHOR, self.attempt,
                          anchor=(self.names[-1], len(self.ids), 0, UNKNOWN)))

    def records(self, block_count=None, tiers=HBM):
        return {text: (BLOCK_TOKENS * (i + 1), tiers)
                for i, text in enumerate(self.texts[:block_count])}


class World:
    def __init__(self, engine, redis, worker, secret_file, start_agent):
        self.engine = engine
        self.redis = redis
        self.map = ResidencyMap(redis, worker.url)
        self.worker = worker
        self.secret_file = secret_file
        self._start_agent = start_agent
        self.agent = None

    def start_agent(self, *flags, **options):
        self.agent = self._start_agent(self.worker, self.redis, *flags,
                                       kv_events=self.engine.events,
                                       kv_replay=self.engine.replay, **options)
        self.agent.wait_ready()
        if "state_dir" in options:  # whose state it is, is known with the engine's model
            self.agent.log.wait("engine_state")
        self.engine.wait_subscriber()
        if self.engine.has_replay:
            wait_until(lambda: self.metric("events_caught_up"), "it knows all")
        return self.agent

    def wait_whole(self, is_whole="1"):
        """The lease says so, with the next heartbeat."""
        wait_until(lambda: self.map.lease().get("whole") == is_whole,
                   lambda: f"whole={is_whole}: {self.map.lease()}")

    def prompt(self, number, block_count=4):
        return Prompt(self.secret_file, number, block_count)

    def tell(self, prompt):
        """As the router that sent it would."""
        self.map.write_notes(prompt.fingerprint, *prompt.notes())

    def hold(self, number):
        """A prompt that the engine holds and the router told of, once the map says so."""
        prompt = self.prompt(number)
        self.engine.publish(prompt.stored())
        self.tell(prompt)
        wait_until(lambda: prompt.records().items() <= (self.map.records() or {}).items(),
                   lambda: f"{prompt.records()}, but it says {self.map.records()}")
        return prompt

    def metric(self, name):
        return self.agent.metric_sum(f"samovar_agent_{name}")


@pytest.fixture
def start_engine():
    engines = []

    def start(**options):
        engines.append(KvEngine(**options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.stop()


@pytest.fixture
def start_world(start_engine, redis, worker, secret_file, start_agent):
    """start_world(has_replay=...): everything but the agent."""

    def start(**options):
        return World(start_engine(**options), redis, worker, secret_file, start_agent)

    return start


@pytest.fixture
def world(start_world):
    """With an agent, which knows all that the engine holds: nothing."""
    world = start_world()
    world.start_agent()
    return world


# --- what is reported ---

def test_a_prompt_is_reported_as_far_as_the_engine_holds_it(world):
    prompt = world.prompt(1)

    world.engine.publish(prompt.stored())
    world.tell(prompt)
    world.map.wait_records(prompt.records())
    world.engine.publish(removed(prompt.hashes[3]))

    world.map.wait_records(prompt.records(3))


@pytest.mark.parametrize("order", ["record anchor tokens", "tokens record anchor",
                                   "anchor tokens record"])
def test_what_is_known_of_a_prompt_may_come_in_any_order(world, order):
    prompt = world.prompt(1)
    record, anchor = prompt.notes()
    sayings = {"record": lambda: world.map.write_notes(prompt.fingerprint, record),
               "anchor": lambda: world.map.write_notes(prompt.fingerprint, anchor),
               "tokens": lambda: world.engine.publish(prompt.stored())}

    for word in order.split():
        sayings[word]()

    world.map.wait_records(prompt.records())


def test_who_the_worker_is_stands_beside_what_it_holds(world):
    prompt = world.hold(1)

    meta = world.map.meta()

    assert meta["url"] == world.worker.url
    assert int(meta["block_tokens"]) == BLOCK_TOKENS
    workers = world.redis.call("SMEMBERS", workers_key(prompt.fingerprint))
    assert workers == [world.worker.url.encode()]
    lease = world.map.lease()
    assert int(lease["fp"], 16) == prompt.fingerprint
    assert 0 < world.redis.call("PTTL", world.map.key("lease")) <= LEASE_S * 1000


def test_an_answer_is_reported_behind_its_prompt(world):
    prompt = world.hold(1)
    whole = world.prompt(1, 6)
    answer = [((1 << 32) + 100 + i, TEXT_BYTES) for i in range(2)]

    world.engine.publish(stored(whole.hashes[4:], whole.ids[64:], BLOCK_TOKENS,
                                parent=whole.hashes[3]))
    world.map.write_notes(prompt.fingerprint, pack_note(
        ANSWERED, prompt.attempt, start=prompt.texts[-1], blocks=answer,
        anchor=(prompt.names[-1], len(whole.ids) + 1, 0, UNKNOWN)))

    world.map.wait_records({**prompt.records(), answer[0][0]: (80, HBM), answer[1][0]: (96, HBM)})


def test_a_block_in_two_tiers_is_reported_in_both_until_each_lets_go(world):
    prompt = world.hold(1)

    world.engine.publish(prompt.stored(medium="CPU"))
    world.map.wait_records(prompt.records(tiers=HBM | CPU))
    world.engine.publish(removed(*prompt.hashes))

    world.map.wait_records(prompt.records(tiers=CPU))


def test_a_cache_that_is_emptied_is_reported_empty(world):
    world.hold(1)

    world.engine.publish(cleared())

    world.map.wait_records({})


def test_a_record_that_goes_on_from_what_nobody_knows_is_counted(world):
    prompt = world.prompt(1)

    world.map.write_notes(prompt.fingerprint,
                          pack_note(ROUTED, 7, start=0xbad, blocks=[(1, 100)]),
                          pack_note(TEXT, blocks=[(2, 100)]))

    wait_until(lambda: world.metric("notes_total") == 2, "both are counted")
    metrics = world.agent.metrics()
    labels = f'{{worker="{world.worker.url}",result='
    assert metrics[f'samovar_agent_notes_total{labels}"unknown_start"}}'] == 1
    assert metrics[f'samovar_agent_notes_total{labels}"text"}}'] == 1


def test_routers_of_another_secret_are_not_listened_to_and_said_once(world):
    prompt = world.prompt(1)
    world.engine.publish(prompt.stored())

    for _ in range(3):
        world.map.write_notes(prompt.fingerprint ^ 1, *prompt.notes())

    wait_until(lambda: world.metric("notes_total") == 3, "they are counted")
    assert world.map.records() == {}
    world.agent.log.wait("foreign_router")
    assert len(world.agent.log.find("foreign_router")) == 1


@pytest.mark.parametrize("name", ["01-first-request", "03-second-turn", "04-eviction",
                                  "05-after-eviction"])
def test_what_a_real_engine_published_is_understood_whole(world, name):
    for path in sorted(RECORDINGS.glob("[0-9]*.frames")):
        for frames in recorded(path):
            world.engine.publish_payload(frames[2])
        if path.stem == name:
            break

    wait_until(lambda: world.metric("event_batches_total") == world.engine.next, "all are taken")
    assert world.metric("event_blocks_stored_total") > 0
    for counter in ("event_malformed_total", "event_unknown_total", "event_batches_lost_total",
                    "token_blocks_orphaned_total", "token_removals_unknown_total"):
        assert world.metric(counter) == 0, counter


def recorded(path):
    data = path.read_bytes()
    at = 0

    def number():
        nonlocal at
        at += 4
        return int.from_bytes(data[at - 4:at], "little")

    while at < len(data):
        frames = []
        for _ in range(number()):
            length = number()
            frames.append(data[at:at + length])
            at += length
        yield frames


# --- the engine ---

def test_of_an_engine_that_dies_nothing_is_claimed_a_second_later(world):
    world.hold(1)
    died = time.monotonic()

    world.engine.kill()
    world.map.wait_records({})

    assert time.monotonic() - died < 1
    world.wait_whole("0")
    assert world.agent.admin("/ready").status == 503
    world.engine.start()
    world.agent.wait_ready()


def test_an_engine_that_restarts_and_idles_leaves_no_phantom(world):
    prompt = world.hold(1)
    killed = time.monotonic()

    world.engine.restart()
    world.map.wait_records({})
    assert time.monotonic() - killed < 2
    world.wait_whole()
    world.engine.wait_subscriber()
    assert world.map.records() == {}
    world.engine.publish(prompt.stored())

    world.map.wait_records(prompt.records())  # its text was not forgotten


def test_an_agent_beside_a_warm_engine_learns_all_by_its_replay(start_world):
    world = start_world()
    prompts = [world.prompt(i) for i in range(1, 4)]
    for prompt in prompts:
        world.engine.publish(prompt.stored())
        world.tell(prompt)  # read by the agent when it comes
    world.engine.publish(removed(*prompts[1].hashes))

    world.start_agent()

    world.map.wait_records({**prompts[0].records(), **prompts[2].records()})
    assert world.engine.replays[0] == 0


def test_a_replay_that_begins_too_late_is_not_all_that_is_there(start_world):
    world = start_world(ring=2)
    prompts = [world.prompt(i) for i in range(1, 4)]
    for prompt in prompts:
        world.engine.publish(prompt.stored())
        world.tell(prompt)

    world.agent = world._start_agent(world.worker, world.redis, kv_events=world.engine.events,
                                     kv_replay=world.engine.replay)

    world.map.wait_records({**prompts[1].records(), **prompts[2].records()})
    world.wait_whole("0")
    assert world.metric("event_batches_lost_total") == 1


def test_without_a_replay_only_what_was_heard_from_the_first_message_on_is_whole(start_world):
    world = start_world(has_replay=False)
    world.start_agent()
    world.wait_whole("0")

    prompt = world.hold(1)

    world.wait_whole()
    assert world.map.records() == prompt.records()


def test_one_message_in_a_hundred_that_is_dropped_is_asked_for_again(world):
    dice = random.Random(1)
    prompts = [world.prompt(i) for i in range(1, 41)]
    held = set()
    for prompt in prompts:
        world.tell(prompt)

    for step in range(2000):
        prompt = dice.choice(prompts)
        event = removed(*prompt.hashes) if prompt in held else prompt.stored()
        held ^= {prompt}
        world.engine.publish(event, is_dropped=dice.random() < 0.01 and step < 1999)
        if step % 20 == 19:
            time.sleep(0.005)  # some 4,000 messages a second: an engine's, not a loop's

    expected = {}
    for prompt in held:
        expected.update(prompt.records())
    world.map.wait_records(expected)
    assert world.metric("event_batches_lost_total") == 0
    world.wait_whole()


def test_what_is_lost_for_good_withdraws_all(start_world):
    world = start_world(has_replay=False)
    world.start_agent()
    prompt = world.hold(1)

    world.engine.publish(removed(*prompt.hashes), is_dropped=True)
    world.engine.publish(world.prompt(2).stored())

    world.map.wait_records({})
    world.wait_whole("0")
    assert world.metric("event_batches_lost_total") == 1
    lost, = world.agent.log.find("events_lost")
    assert lost["batches"] == 1 and "withdrawn" in lost["effect"]
    world.hold(3)


def test_a_replay_that_is_not_answered_costs_what_was_claimed_and_no_more(world):
    world.hold(1)
    world.engine.refuses_replay = True

    world.engine.publish(world.prompt(2).stored(), is_dropped=True)
    world.engine.publish(world.prompt(3).stored())

    world.map.wait_records({})
    assert world.metric("event_replays_given_up_total") == 1
    world.hold(4)


def test_the_load_and_geometry_of_the_engine_go_with_the_lease(start_world):
    world = start_world()
    world.worker.metrics = (
        'vllm:num_requests_running{model_name="tiny"} 3\n'
        'vllm:num_requests_waiting{model_name="tiny"} 2\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n')
    world.start_agent("--probe-interval-ms", 20)

    wait_until(lambda: world.map.lease().get("running") == "3", lambda: world.map.lease())
    assert world.map.lease()["waiting"] == "2"
    wait_until(lambda: world.map.meta().get("engine") == "vllm", lambda: world.map.meta())
    assert world.map.meta()["cache_tokens"] == "1600"


# --- the agent ---

def test_two_agents_of_one_worker_do_not_both_report(world):
    prompt = world.hold(1)
    first = world.agent

    second = world._start_agent(world.worker, world.redis, kv_events=world.engine.events,
                                kv_replay=world.engine.replay)
    agents = (first, second)

    def rivalled():
        return [one.metric_sum("samovar_agent_report_rivalled") for one in agents]

    wait_until(lambda: sum(rivalled()) == 1, lambda: f"one gives way: {rivalled()}")
    world.map.wait_records(prompt.records())
    loser = agents[rivalled().index(1)]
    assert loser.admin("/ready").status == 503
    assert b"another agent claims it" in loser.admin("/ready").read_all()



def test_an_agent_that_is_told_to_end_takes_its_lease_back_at_once(world):
    world.hold(1)

    world.agent.stop()

    assert world.map.lease() == {}


def test_an_agent_that_is_killed_is_not_believed_when_its_lease_is_over(world):
    world.hold(1)
    killed = time.monotonic()

    world.agent.kill()
    wait_until(lambda: not world.map.lease(), "the lease ends")

    assert time.monotonic() - killed < LEASE_S + 0.5


def epoch_of(map_):
    """Of whoever holds the lease; None: nobody."""
    return map_.lease().get("life", "").split("-")[0] or None


def outlive_test(world):
    """The lease that an agent has left, which was killed, does not run out: who waits for it waits
    longer than the test."""
    epoch = epoch_of(world.map)
    assert world.redis.call("PEXPIRE", world.map.key("lease"), 10 * 60_000) == 1
    return epoch


@pytest.fixture
def killed(world, tmp_path):
    """An agent with a state that was killed, whose lease does not run out: (world, what it claimed,
    its state, its epoch)."""
    state = tmp_path / "state"
    world.agent.stop()
    world.start_agent("--probe-interval-ms", 20, state_dir=state)
    prompt = world.hold(1)
    world.agent.kill()
    return world, prompt, state, outlive_test(world)


def test_an_agent_that_is_killed_and_restarted_speaks_at_once_and_of_what_is_there(killed):
    world, prompt, state, epoch = killed
    world.engine.publish(removed(prompt.hashes[3]))
    begun = time.monotonic()

    world.start_agent("--probe-interval-ms", 20, state_dir=state)
    wait_until(lambda: epoch_of(world.map) not in (None, epoch), "it reports in a name of its own")
    spoke_s = time.monotonic() - begun
    world.map.wait_records(prompt.records(3))
    knew_s = time.monotonic() - begun

    print(f"spoke {spoke_s:.3f} s after its start, knew all after {knew_s:.3f} s")
    assert knew_s < TRUE_S + SLACK_S
    assert world.agent.log.wait("life_succeeded")["worker"] == world.worker.url
    assert world.metric("report_rivalled") == 0


def test_an_agent_that_crashes_again_before_its_first_word_speaks_at_once(killed):
    """The lease is that of a life before the last one."""
    world, prompt, state, epoch = killed
    for _ in range(3):
        agent = world._start_agent(world.worker, "unix:///nowhere/redis.sock",
                                   kv_events=world.engine.events, kv_replay=world.engine.replay,
                                   state_dir=state)
        agent.log.wait("life_succeeded")
        agent.kill()
    assert epoch_of(world.map) == epoch

    world.start_agent("--probe-interval-ms", 20, state_dir=state)

    wait_until(lambda: epoch_of(world.map) not in (None, epoch), "it reports in a name of its own")
    assert world.map.lease()["after"] == epoch
    world.map.wait_records(prompt.records())


@pytest.mark.parametrize("case, why", [("no state", "without state-dir"), ("a copy", "is a copy")])
def test_an_agent_that_does_not_know_the_lease_for_its_own_waits_for_it(killed, case, why):
    world, prompt, state, epoch = killed
    kept = None
    if case == "a copy":
        kept = state.with_name("copy")
        shutil.copytree(state, kept)
    agent = world._start_agent(world.worker, world.redis, kv_events=world.engine.events,
                               kv_replay=world.engine.replay, state_dir=kept)

    line = agent.log.wait("lease_of_another")
    assert why in line["why"]
    time.sleep(1.5)  # heartbeats, each of which looks
    assert epoch_of(world.map) == epoch
    world.redis.call("PEXPIRE", world.map.key("lease"), 1)  # it runs out after all
    agent.log.wait("lease_taken")

    wait_until(lambda: epoch_of(world.map) not in (None, epoch), "it reports in a name of its own")
    world.map.wait_records(prompt.records())


def test_two_agents_of_one_state_do_not_both_report_and_the_second_succeeds_the_first(world,
                                                                                     tmp_path):
    state = tmp_path / "state"
    world.agent.stop()
    first = world.start_agent("--probe-interval-ms", 20, state_dir=state)
    prompt = world.hold(1)
    first.signal(signal.SIGSTOP)  # it lives, and says nothing
    try:
        epoch = outlive_test(world)
        second = world._start_agent(world.worker, world.redis, kv_events=world.engine.events,
                                    kv_replay=world.engine.replay, state_dir=state)
        assert "which lives" in second.log.wait("lease_of_another")["why"]
        time.sleep(1.5)  # heartbeats, each of which looks
        assert epoch_of(world.map) == epoch
    finally:
        first.signal(signal.SIGCONT)
    wait_until(lambda: 0 < world.redis.call("PTTL", world.map.key("lease")) <= LEASE_S * 1000,
               "the first one goes on")
    first.kill()
    outlive_test(world)

    second.log.wait("life_succeeded")
    second.log.wait("lease_taken")
    world.map.wait_records(prompt.records())


def test_an_agent_that_speaks_before_the_one_before_it_has_ended_is_succeeded_too(world, tmp_path):
    """Their lease and their state are let go of one after the other."""
    state = tmp_path / "state"
    world.agent.stop()
    first = world.start_agent("--probe-interval-ms", 20, state_dir=state)
    prompt = world.hold(1)
    epoch = epoch_of(world.map)
    first.signal(signal.SIGSTOP)  # it lives, and holds its state
    second = world._start_agent(world.worker, world.redis, "--probe-interval-ms", 20,
                                kv_events=world.engine.events, kv_replay=world.engine.replay,
                                state_dir=state)
    world.redis.call("DEL", world.map.key("lease"))
    wait_until(lambda: epoch_of(world.map) not in (None, epoch), "the second one speaks")
    epoch = epoch_of(world.map)
    first.kill()
    written = int(epoch, 16).to_bytes(8, "little")
    wait_until(lambda: written in next(state.glob("life-*")).read_bytes(), "its life is written down")
    second.kill()
    assert outlive_test(world) == epoch

    world.start_agent("--probe-interval-ms", 20, state_dir=state)

    wait_until(lambda: epoch_of(world.map) not in (None, epoch), "it reports in a name of its own")
    world.map.wait_records(prompt.records())


def test_what_was_learned_outlives_the_agent(world, tmp_path):
    """And what routers told, which is trimmed some day; what the engine holds it says itself."""
    state = tmp_path / "state"
    world.agent.stop()
    world.start_agent("--probe-interval-ms", 20, state_dir=state)
    prompt = world.hold(1)
    other = world.hold(2)

    world.agent.stop()
    assert (state.stat().st_mode & 0o777, len(list(state.iterdir()))) == (0o700, 2)
    world.redis.call("FLUSHALL")
    world.engine.publish(removed(*other.hashes))
    world.start_agent("--probe-interval-ms", 20, state_dir=state)

    world.map.wait_records(prompt.records())
    assert world.agent.log.wait("state_taken_up")["text_blocks"] == 8


def test_what_was_learned_seconds_before_outlives_an_agent_that_is_killed(world, tmp_path):
    """Even one that is killed in the midst of the next save."""
    state = tmp_path / "state"
    world.agent.stop()
    world.start_agent("--probe-interval-ms", 20, state_dir=state)
    prompt = world.hold(1)
    wait_until(lambda: world.metric("state_saves_total") >= 1, "it is saved", 10)

    world.agent.kill()
    file = next(state.glob("alignment-*"))
    file.with_name(file.name + ".new").write_bytes(file.read_bytes()[:-40])
    world.redis.call("FLUSHALL")
    world.start_agent("--probe-interval-ms", 20, state_dir=state)

    world.map.wait_records(prompt.records())
    assert world.agent.log.wait("state_taken_up")["text_blocks"] == 4


@pytest.mark.parametrize("harm", ["damaged", "another model", "open to others"])
def test_a_state_that_does_not_fit_is_refused_and_replaced(world, tmp_path, harm):
    state = tmp_path / "state"
    world.agent.stop()
    world.start_agent("--probe-interval-ms", 20, state_dir=state)
    world.hold(1)
    world.agent.stop()
    file = next(state.glob("alignment-*"))
    if harm == "damaged":
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    elif harm == "another model":
        world.worker.models = ["another"]
    else:
        file.chmod(0o622)
    world.redis.call("FLUSHALL")

    world.start_agent("--probe-interval-ms", 20, state_dir=state)
    world.agent.log.wait("state_refused")
    world.hold(2)
    assert world.map.records() == world.prompt(2).records()
    world.agent.stop()

    assert file.stat().st_mode & 0o777 == 0o600
    world.start_agent("--probe-interval-ms", 20, state_dir=state)
    assert world.agent.log.wait("state_taken_up")["text_blocks"] == 4


def test_a_state_that_cannot_be_kept_ends_nothing_and_is_said(world, tmp_path):
    state = tmp_path / "state"
    world.agent.stop()
    world.start_agent("--probe-interval-ms", 20, state_dir=state)
    world.hold(1)
    for path in (*state.iterdir(), state):
        path.rmdir() if path.is_dir() else path.unlink()

    world.agent.stop()

    assert world.agent.log.wait("state_not_saved")["why"] == "No such file or directory"


def test_a_directory_that_others_may_write_is_no_place_for_a_state(redis, secret_file, tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)

    end = run("--engine", "http://a:1", "--kv-events", "tcp://a:1", "--redis", redis.url,
              "--secret-file", secret_file, "--state-dir", state, "--admin-port", 0)

    assert end.returncode == 3
    assert "chmod 700" in end.stderr


def test_nothing_of_a_prompt_is_told_but_names(world):
    prompt = Prompt(world.secret_file, 1)
    canary = 987654321
    prompt.ids[5] = canary
    prompt.fingerprint, prompt.names = token_names(world.secret_file, prompt.ids, BLOCK_TOKENS,
                                                   salt="the-canary")
    world.engine.publish(prompt.stored(extra_keys=[["the-canary"], None, None, None]))
    world.tell(prompt)
    world.map.wait_records(prompt.records())

    said = "\n".join(world.agent.log.text) + world.agent.admin("/metrics").read_all().decode()
    kept = world.redis.everything()

    for word in (str(canary), "the-canary"):
        assert word not in said
        assert word.encode() not in kept
    assert canary.to_bytes(4, "little") not in kept
    assert canary.to_bytes(4, "big") not in kept


# --- Redis ---

def test_a_redis_that_comes_back_empty_is_told_everything_again(world):
    prompt = world.hold(1)

    world.redis.restart()
    world.map.wait_records(prompt.records())

    workers = world.redis.call("SMEMBERS", workers_key(prompt.fingerprint))
    assert workers == [world.worker.url.encode()]
    assert world.map.meta()["url"] == world.worker.url
    world.hold(2)  # notes are read again too


def test_a_redis_that_is_emptied_under_the_agent_is_told_everything_again(world):
    prompt = world.hold(1)

    world.redis.call("FLUSHALL")

    world.map.wait_records(prompt.records())
    wait_until(lambda: world.map.meta().get("url") == world.worker.url, "meta is there again")
    wait_until(lambda: world.redis.call("SCARD", workers_key(prompt.fingerprint)) == 1,
               "the worker is named again")


def test_while_redis_stands_still_the_engine_is_heard_and_the_newest_is_told_behind_it(world):
    prompt = world.hold(1)
    other = world.prompt(2)
    world.tell(other)

    world.redis.pause()
    world.engine.publish(removed(*prompt.hashes))
    world.engine.publish(other.stored())
    wait_until(lambda: world.metric("event_batches_total") == world.engine.next, "it listens")
    wait_until(lambda: world.agent.admin("/ready").status == 503, "it says that it is not ready")
    world.redis.resume()

    world.map.wait_records(other.records())
    world.agent.wait_ready()
    assert len(world.agent.log.find("redis_away")) == 1


def test_an_agent_is_ready_when_redis_has_taken_all(world, start_agent):
    world.agent.stop()
    world.redis.call("REPLICAOF", "127.0.0.1", 1)

    agent = start_agent(world.worker, world.redis, kv_events=world.engine.events,
                        kv_replay=world.engine.replay)

    wait_until(lambda: b"not all is published yet" in agent.admin("/ready").read_all(), "it says why")
    assert agent.admin("/ready").status == 503
    world.redis.call("REPLICAOF", "NO", "ONE")
    agent.wait_ready()


def test_an_agent_starts_while_redis_is_away_and_reports_when_it_is_there(start_world):
    world = start_world()
    prompt = world.prompt(1)
    world.engine.publish(prompt.stored())
    world.redis.kill()

    agent = world._start_agent(world.worker, world.redis, kv_events=world.engine.events,
                               kv_replay=world.engine.replay)
    wait_until(lambda: agent.metric_sum("samovar_agent_events_caught_up") == 1, "it listens")
    world.redis.start()
    world.tell(prompt)

    world.map.wait_records(prompt.records())


# --- as a program ---

def run(*words, env=None):
    return subprocess.run([program("samovar-agent"), *map(str, words)], capture_output=True,
                          text=True, timeout=30, env={**os.environ, **(env or {})})


def test_help_and_man_page_name_every_option(secret_file):
    text = run("--help")
    page = run("--man")

    assert text.returncode == 0 and page.returncode == 0
    for option in ("--engine", "--advertise", "--kv-events", "--kv-replay", "--redis",
                   "--secret-file", "--state-dir", "--admin-port"):
        assert option in text.stdout
        assert option.replace("-", "\\-") in page.stdout
    assert run("--version").stdout.startswith("samovar-agent ")


@pytest.mark.parametrize("flags, code, sentence", [
    ((), 2, "no engine is given"),
    (("--engine", "http://a:1"), 2, "0 for 1 engines"),
    (("--engine", "http://a:1", "--kv-events", "tcp://*:1"), 2, "in place of *"),
    (("--engine", "http://a:1", "--kv-events", "tcp://a:1"), 2, "no map to report to"),
    (("--engine", "http://a:1", "--kv-events", "tcp://a:1", "--redis", "redis://a"), 2,
     "cluster's secret"),
    (("--engine", "http://a:1", "--kv-events", "tcp://a:1", "--redis", "redis://a",
      "--secret-file", "/nowhere"), 3, "/nowhere"),
    (("--engin", "http://a:1"), 2, "did you mean --engine"),
])
def test_a_wrong_start_is_refused_with_a_sentence(flags, code, sentence):
    end = run(*flags)

    assert end.returncode == code
    assert sentence in end.stderr


def test_several_engines_come_from_a_file(start_engine, start_worker, redis, secret_file, tmp_path,
                                          start_agent):
    engines = [start_engine(), start_engine()]
    workers = [start_worker(), start_worker()]
    config = tmp_path / "agent.yaml"
    config.write_text(
        f"engine: [{workers[0].url}, {workers[1].url}]\n"
        f"kv-events: [{engines[0].events}, {engines[1].events}]\n"
        f"kv-replay: [{engines[0].replay}, {engines[1].replay}]\n")
    prompts = [Prompt(secret_file, 1), Prompt(secret_file, 2)]

    start_agent(None, redis, "--config", config).wait_ready()
    for engine, prompt, worker in zip(engines, prompts, workers):
        engine.publish(prompt.stored())
        ResidencyMap(redis, worker.url).write_notes(prompt.fingerprint, *prompt.notes())

    for prompt, worker in zip(prompts, workers):
        ResidencyMap(redis, worker.url).wait_records(prompt.records())


def test_each_data_parallel_rank_is_a_worker_with_the_next_ports(start_engine, worker, redis,
                                                                 secret_file, start_agent):
    first = start_engine()
    second = start_engine(events_port=first.events_port + 1, replay_port=first.replay_port + 1)
    prompts = [Prompt(secret_file, 1), Prompt(secret_file, 2)]
    maps = [ResidencyMap(redis, f"{worker.url}#{rank}") for rank in range(2)]

    start_agent(f"{worker.url}#dp=2", redis, kv_events=first.events,
                kv_replay=first.replay).wait_ready()
    for engine, prompt, map_ in zip((first, second), prompts, maps):
        engine.publish(prompt.stored())
        map_.write_notes(prompt.fingerprint, *prompt.notes())

    for prompt, map_ in zip(prompts, maps):
        map_.wait_records(prompt.records())


def test_a_hangup_changes_nothing_and_says_so(world):
    world.agent.signal(signal.SIGHUP)

    world.agent.log.wait("reload_refused")
    world.hold(1)


def test_the_admin_address_tells_what_there_is(world):
    assert world.agent.admin("/health").status == 200
    assert world.agent.admin("/nothing").status == 404
    assert world.agent.admin("/metrics", "POST").status == 405
