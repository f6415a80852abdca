# SPDX-License-Identifier: Apache-2.0
"""The connector in the processes of an engine of several ranks, and a real agent: every rank has the
right bytes of a block or none is believed to, whichever of them loses the agent when."""

import random
import types

import pytest

from cluster import Agent, Redis, make_secret
from half_engine import BLOCK_TOKENS, HalfEngine
from peers.process import wait_until

pytestmark = pytest.mark.smoke

PROMPT = list(range(100, 100 + 10 * BLOCK_TOKENS + 5))
WHOLE = 10 * BLOCK_TOKENS
KINDS = {"tensor": {"rank_count": 2}, "pipeline": {"rank_count": 3, "is_pipelined": True}}


class Node:
    def __init__(self, folder):
        self.folder = folder
        self.redis = Redis("redis", folder)
        self.secret_file = make_secret(folder)
        self.started = 0
        (folder / "ipc").mkdir(mode=0o700)
        self.socket = folder / "ipc" / "agent.sock"
        self.start_agent()

    def start_agent(self):
        self.started += 1
        nobody = types.SimpleNamespace(url="http://127.0.0.1:9", kv_events=f"ipc://{self.folder}/e",
                                       kv_replay=f"ipc://{self.folder}/r")
        self.agent = Agent(f"agent-{self.started}", [nobody], self.redis, self.secret_file,
                           self.folder, "--ipc-socket", self.socket, "--cpu-bytes", "16MiB",
                           "--layouts-max", "2")

    def wait_engine(self, engine):
        engine.wait_registered()
        wait_until(lambda: self.agent.metric("samovar_agent_engines") == 1, "all ranks are there")

    def close(self):
        self.agent.kill()
        self.redis.kill()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    node = Node(tmp_path_factory.mktemp("ranks"))
    yield node
    node.close()


@pytest.fixture(params=KINDS)
def engine(request, node):
    engine = HalfEngine(node.socket, name=request.node.name, **KINDS[request.param])
    node.wait_engine(engine)
    yield engine
    engine.scheduler.reset()
    engine.close()
    wait_until(lambda: node.agent.metric("samovar_agent_engine_connections") == 0, "it has gone")


def run_until_found(engine):
    """An answer that takes longer than 2 ms is a miss: on a machine that others use, too."""
    def is_found():
        external, is_right = engine.run("again", PROMPT)
        assert is_right and external in (0, WHOLE)
        return external == WHOLE
    wait_until(is_found, "all of it is found")


def test_what_was_saved_is_loaded_again_in_every_rank_byte_by_byte(engine):
    assert engine.run("fresh", PROMPT) == (0, True)

    run_until_found(engine)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_loses_the_agent_costs_only_what_it_would_have_loaded(node, engine, lost):
    engine.run("fresh", PROMPT)
    request = engine.add("again", PROMPT)
    wait_until(lambda: engine.scheduler.match(request, 0) == WHOLE, "all of it is found")
    engine.admit(request, WHOLE)

    engine.worker.workers[lost]._link.give_up("the test says so")
    engine.step()
    engine.wait_loaded(request)

    # Whatever the others have: one rank's blocks are wrong, so they are computed anew in all.
    assert engine.worker.failed() == set(engine.blocks["again"][:10])
    engine.end(request)
    node.wait_engine(engine)
    run_until_found(engine)


def test_ranks_and_agents_that_come_and_go_never_leave_a_wrong_byte(node, engine):
    rng = random.Random(3)
    stems = [[rng.randrange(9999) for _ in range(4 * BLOCK_TOKENS)] for _ in range(4)]
    loaded = 0
    for number in range(40):
        chance = rng.random()
        if chance < 0.15:
            rng.choice(engine.worker.workers)._link.give_up("the test says so")
        elif chance < 0.2:
            engine.scheduler._link.give_up("the test says so")
        elif chance < 0.23:
            node.agent.kill()
            node.start_agent()
        elif chance < 0.6:
            node.wait_engine(engine)
        tokens = rng.choice(stems) + [rng.randrange(3) for _ in range(2 * BLOCK_TOKENS + 1)]
        external, is_right = engine.run(f"{number}", tokens)
        loaded += external if is_right else 0

    assert loaded > 0
