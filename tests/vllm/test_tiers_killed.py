# SPDX-License-Identifier: Apache-2.0
"""kill -9 of an agent and of an engine, anywhere: at each of the agent's points of death, and behind
the messages of an engine's connector. Beneath real engines, so that a wrong page is another answer.

Prompts want more than there is in all tiers, so that blocks are saved, demoted, withdrawn and loaded
all the while. The lease of an agent that was killed does not run out: who waited for that, would wait
longer than the tests do.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import signal
import threading
import time
import urllib.request

import pytest

from cluster import has_redis, reset_cache
from engines import BIN, MODEL, Router, wait_until
from peers.agent import FAULT_POINTS
from peers.redis_server import RedisClient
from peers.residency_map import ResidencyMap
from peers.residency_wire import CPU, SSD
from prompts import user, words
from tiers import CACHE, Node, complete, run_load

PROMPTS = 40
CPU_MIB, SSD_MIB = 8, 12
TRUE_S = 1   # within which the map says nothing but the truth, from an agent's start on
SLACK_S = 2  # for a machine of few cores, under load
DEATH_S = 120  # of whoever comes to a point now and then

pytestmark = pytest.mark.skipif(not has_redis() or not (BIN / "samovar-agent").exists(),
                                reason="redis-server or samovar-agent is missing")


class Talk:
    """A conversation by way of the router, so that its text is known; always the same."""

    MESSAGES = user(words(700, "samovars"))

    def __init__(self, node, router):
        self.node, self.router = node, router
        self.answer, _ = self.ask(router)

    def ask(self, server):
        """(the answer, cached tokens)"""
        body = json.dumps({"model": MODEL, "messages": self.MESSAGES, "max_tokens": 8,
                           "temperature": 0})
        request = urllib.request.Request(f"{server.url}/v1/chat/completions", body.encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=DEATH_S) as answer:
            said = json.loads(answer.read())
        return (said["choices"][0]["message"]["content"],
                (said["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0))


@pytest.fixture(scope="module")
def node(model_folder, tmp_path_factory, control):
    """One engine, an agent whose tiers are too small, and a router; the engine lives through all of
    it."""
    node = Node(tmp_path_factory.mktemp("killed"), model_folder)
    try:
        node.start_engine().wait_ready()
        node.start_agent(CPU_MIB, SSD_MIB)
        yield node
    finally:
        node.close()


@pytest.fixture(scope="module")
def talk(node):
    router = Router("router", [], node.folder, "--redis", node.redis.url, "--secret-file",
                    node.secret_file)
    try:
        router.wait_up(1)
        yield Talk(node, router)
    finally:
        status = router.stop()
    assert status == 0, router.log_tail()


@pytest.fixture(scope="module")
def usual(node, talk, prompts):
    """What an engine and the agent have open when nobody was killed yet, and nothing moves."""
    run_load("before", node.engines[0], prompts[:PROMPTS])
    wait_quiet(node)
    return {"descriptors": open_descriptors(node.engines[0]), "mappings": mappings(node)}


# --- what there is ---

def open_descriptors(process):
    """Of all processes of its session."""
    count = 0
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(folder.name)) == process.child.pid:
                count += len(os.listdir(folder / "fd"))
    return count


def mappings(node):
    """Of engines' memory, in the agent."""
    maps = pathlib.Path(f"/proc/{node.agent.child.pid}/maps").read_text().splitlines()
    return sum("samovar-kv" in line for line in maps)


def slots_agree(agent):
    """Each slot is some block's, or free."""
    def of(name, tier):
        return agent.metric(f"samovar_agent_tier_{name}", tier=tier)
    return all(of("held_blocks", tier) + of("slots_free", tier) == of("slots", tier)
               for tier in ("cpu", "ssd"))


def wait_quiet(node):
    """Nothing moves, and nobody holds anything."""
    def is_quiet():
        return all(node.agent.metric(f"samovar_agent_{name}") == 0 for name in
                   ("engine_requests", "engine_transfers", "tier_holds")) and \
            slots_agree(node.agent)
    wait_until(is_quiet, "nothing moves or is held", 30)


def ssd_used(node):
    files = [path.stat() for path in node.ssd.rglob("*") if path.is_file()]
    return sum(max(file.st_size, file.st_blocks * 512) for file in files)


def check_clean(node, usual):
    """Nothing is held or leaked, and the quota is kept."""
    wait_quiet(node)
    wait_until(lambda: mappings(node) == usual["mappings"], "one memory an engine is mapped", 5)
    wait_until(lambda: open_descriptors(node.engines[0]) <= usual["descriptors"] + 4,
               "as many descriptors as before, but for clients that are about to go", 30)
    assert node.agent.metric("samovar_agent_engines") == 1
    assert ssd_used(node) <= SSD_MIB << 20


# --- what the map says ---

def map_of(node):
    return ResidencyMap(RedisClient(node.redis.path), node.engines[0].url)


def told_tokens(node):
    """{tiers: tokens up to the end of the farthest block there} as the map says."""
    found = []

    def is_read():
        found.append(map_of(node).records())
        return found[-1] is not None
    wait_until(is_read, "the map can be read", 10)
    told = {}
    for tokens, tiers in found[-1].values():
        told[tiers] = max(told.get(tiers, 0), tokens)
    return told


def beneath(told):
    return max((tokens for tiers, tokens in told.items() if tiers & (CPU | SSD)), default=0)


def push_down(node):
    """What the engine held is in the tiers alone, and the map says so."""
    engine = node.engines[0]
    wait_quiet(node)
    reset_cache(engine)
    complete(engine, list(range(10, 20)), 1)  # an idle engine says nothing of what it forgot
    wait_quiet(node)
    wait_until(lambda: node.agent.metric("samovar_agent_report_unsaid") == 0, "all is said", 10)


def check_told(node, talk):
    """What the map says of the talk is there when the engine has none of it, and it is what it was.
    An engine waits 2 ms for what the agent finds: on a machine that is busy it goes on without, and
    for a while neither asks nor tells. So what the agent has promised it counts too, and asking is
    repeated where nobody was told, or asked."""
    for _ in range(10):
        assert talk.ask(talk.router)[0] == talk.answer
        push_down(node)
        told = told_tokens(node)
        if beneath(told) == 0:
            continue
        asked, promised = lookups(node), promised_tokens(node)
        answer, cached = talk.ask(node.engines[0])
        asked, promised = lookups(node) - asked, promised_tokens(node) - promised
        print(f"the map tells of {told}, {cached} tokens were there, {promised} were promised")
        assert answer == talk.answer
        if asked > 0:
            break
    else:
        pytest.fail("in ten turns the agent was never told of the talk and asked for it")
    assert max(cached, promised) >= beneath(told) - CACHE.block_tokens


def lookups(node):
    return node.agent.metric("samovar_agent_engine_lookups_total")


def promised_tokens(node):
    return node.agent.metric("samovar_agent_tier_blocks_found_total") * CACHE.block_tokens


# --- agents ---

@contextlib.contextmanager
def load_of(name, engine, prompts):
    """Asks all prompts, again and again, until the block ends; their outcomes."""
    ends, outcomes = threading.Event(), []

    def run():
        while not ends.is_set():
            outcomes.append(run_load(f"{name}, {len(outcomes)}", engine, prompts,
                                     seed=len(outcomes)))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield outcomes
        finally:
            ends.set()
    running.result()


def start_doomed(node, point, rng):
    """In the place of the agent: one that dies at that point."""
    node.agent.kill()
    node.start_agent(CPU_MIB, SSD_MIB, is_awaited=False, environment={
        "SAMOVAR_FAULT_POINT": f"{point}:{rng.randint(1, 6)}"})


def come_back(node):
    """An agent in the place of a dead one: how long it took until another life spoke, which by then
    claims nothing that lay in CPU memory."""
    map_ = map_of(node)
    assert map_.redis.call("PEXPIRE", map_.key("lease"), 10 * 60_000) == 1
    life, begun = map_.lease()["life"], time.monotonic()
    node.start_agent(CPU_MIB, SSD_MIB, is_awaited=False)
    wait_until(lambda: map_.lease()["life"] != life, "another life speaks", 30)
    spoke_s = time.monotonic() - begun
    told = told_tokens(node)
    assert not any(tiers & CPU for tiers in told), told
    node.wait_registered()
    return spoke_s


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_an_agent_that_dies_anywhere_changes_no_answer_and_leaves_nothing(
        node, talk, usual, control, prompts, point):
    engine, some = node.engines[0], prompts[:PROMPTS]

    with load_of(point, engine, some) as outcomes:
        start_doomed(node, point, random.Random(point))
        begun = time.monotonic()
        assert node.agent.child.wait(DEATH_S) == -signal.SIGKILL
        died_s = time.monotonic() - begun
        spoke_s = come_back(node)
    after = run_load(f"{point}, behind it", engine, some)

    print(f"{point}: died after {died_s:.2f} s, spoke {spoke_s:.3f} s after its start, "
          f"{after.hits:.0f} tokens came from the tiers behind it")
    for outcome in (*outcomes, after):
        control.check(outcome)
    assert after.hits > 0
    assert spoke_s < TRUE_S + SLACK_S
    check_clean(node, usual)
    check_told(node, talk)


# --- engines ---

@pytest.fixture
def doomed_engine(node, request):
    """A second engine, on the point of death, and the agent that serves both."""
    kind, count = request.param
    node.agent.kill()
    engine = node.start_engine(dies_at=f"{kind}:{count}")
    try:
        engine.wait_ready()
        node.start_agent(CPU_MIB, SSD_MIB)
        yield engine
    finally:
        engine.kill()
        node.engines.remove(engine)


def ask_until_it_dies(engine, prompts, has_died):
    def ask(first):
        at = first
        while not has_died():
            with contextlib.suppress(OSError, ValueError):  # as it dies
                complete(engine, prompts[at % len(prompts)])
            at += 1
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(0, len(prompts), len(prompts) // 4)))


@pytest.mark.parametrize("doomed_engine", [("LOOKUP", 5), ("LOAD", 3), ("SAVE", 6)], indirect=True,
                         ids=["lookup", "load", "save"])
def test_of_an_engine_that_dies_nothing_is_held_and_the_other_serves_on(
        node, usual, doomed_engine, control, prompts):
    engine, some = node.engines[0], prompts[:PROMPTS]
    descriptors = len(os.listdir(f"/proc/{node.agent.child.pid}/fd"))

    def has_died():
        return node.agent.metric("samovar_agent_engines") == 1
    deadline = time.monotonic() + DEATH_S
    with load_of("beside the dying", engine, some) as outcomes:
        ask_until_it_dies(doomed_engine, some, lambda: has_died() or time.monotonic() > deadline)
        assert has_died()
        wait_until(lambda: mappings(node) == usual["mappings"], "its memory is let go", 1)
    after = run_load("behind its death", engine, some)

    for outcome in (*outcomes, after):
        control.check(outcome)
    assert after.hits > 0
    check_clean(node, usual)
    assert len(os.listdir(f"/proc/{node.agent.child.pid}/fd")) < descriptors
