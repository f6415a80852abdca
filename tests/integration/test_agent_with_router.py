# SPDX-License-Identifier: Apache-2.0
"""
Routers, agents, Redis and simulated engines, nobody played: what is predicted is what the engine
finds in its cache, whatever happened before.
"""

import json

import pytest

from peers.openai_api import MODEL
from peers.process import wait_until
from peers.residency_map import ResidencyMap
from peers.wire import HOST

BLOCK_TOKENS = 16
KV_FLAGS = ("--kv-events", f"tcp://{HOST}:*", "--kv-replay", f"tcp://{HOST}:*")


class Conversation:
    def __init__(self, name):
        self.messages = [{"role": "user", "content": " ".join(
            f"{name} tells of part {i}." for i in range(300))}]

    def turn(self, router, text="And then?"):
        """Sends all of it, keeps the answer, and says the next thing. The request's log line."""
        body = json.dumps({"model": MODEL, "messages": self.messages, "max_tokens": 8}).encode()
        answer = router.call("POST", "/v1/chat/completions", body,
                             {"Content-Type": "application/json"})
        assert answer.status == 200, answer.read_all()
        message = answer.json()["choices"][0]["message"]
        self.messages += [{"role": "assistant", "content": message["content"]},
                          {"role": "user", "content": text}]
        return router.request_line(answer)


def assert_exact(line):
    assert line["rung"] == "exact", line
    assert abs(line["predicted_cached_tokens"] - line["cached_tokens"]) <= BLOCK_TOKENS, line


class Stack:
    """As many engines with an agent each, and a Redis; routers are told of nothing else."""

    def __init__(self, start_sim, start_agent, start_router, redis, secret_file):
        self.start_sim, self.start_agent, self._start_router = start_sim, start_agent, start_router
        self.redis, self.secret_file = redis, secret_file
        self.sims, self.agents = [], []

    def add_engine(self, *agent_flags):
        sim = self.start_sim(*KV_FLAGS)
        self.sims.append(sim)
        self.agents.append(self.start_agent(sim, self.redis, *agent_flags, kv_events=sim.kv_events,
                                            kv_replay=sim.kv_replay).wait_ready())
        return sim

    def start_router(self, *flags):
        router = self._start_router((), "--redis", self.redis.url, "--secret-file",
                                    self.secret_file, *flags)
        router.wait_ready()
        router.wait_states("up", len(self.sims))
        self.wait_believed(router)
        return router

    def wait_believed(self, router):
        """Until the router has read what each agent says."""
        def rows():
            return router.admin("/residency").json()["workers"]
        wait_until(lambda: [row["believed"] for row in rows()] == [True] * len(self.sims),
                   lambda: f"all believed: {rows()}")

    def wait_joined(self, count):
        """Until so many prompts and answers have been joined with their tokens, and are said."""
        def joined():
            return sum(agent.metric_sum("samovar_agent_joins_total") for agent in self.agents)
        wait_until(lambda: joined() >= count, lambda: f"{count} joins: {joined()}")
        wait_until(lambda: not any(agent.metric_sum("samovar_agent_report_unsaid")
                                   for agent in self.agents), "all is said")

    def map_of(self, sim):
        return ResidencyMap(self.redis, sim.url)


@pytest.fixture
def stack(start_sim, start_agent, start_router, redis, secret_file):
    return Stack(start_sim, start_agent, start_router, redis, secret_file)


def test_the_next_turn_is_predicted_to_the_block(stack):
    stack.add_engine()
    router = stack.start_router()
    talk = Conversation("Anna")

    talk.turn(router)
    stack.wait_joined(2)
    line = talk.turn(router)

    assert_exact(line)
    assert line["cached_tokens"] > 1000


def test_a_router_that_has_seen_nothing_finds_what_another_sent(stack):
    stack.add_engine()
    stack.add_engine()
    first, second = stack.start_router(), stack.start_router()
    talks = [Conversation(name) for name in ("Anna", "Ben", "Cleo", "Dan")]

    before = [talk.turn(first) for talk in talks]
    stack.wait_joined(2 * len(talks))
    after = [talk.turn(second) for talk in talks]

    assert {line["worker"] for line in before} == {sim.url for sim in stack.sims}
    for one, other in zip(before, after):
        assert other["worker"] == one["worker"]
        assert_exact(other)


def test_a_router_that_is_restarted_knows_all_again(stack):
    stack.add_engine()
    talk = Conversation("Anna")
    router = stack.start_router()
    talk.turn(router)
    stack.wait_joined(2)
    router.kill()

    assert_exact(talk.turn(stack.start_router()))


def test_an_engine_that_is_killed_and_restarted_leaves_no_phantom(stack):
    sim = stack.add_engine()
    router = stack.start_router("--probe-interval-ms", 50)
    talk = Conversation("Anna")
    talk.turn(router)
    stack.wait_joined(2)
    events, replay = sim.kv_events, sim.kv_replay

    sim.restart("--kv-events", events, "--kv-replay", replay)
    wait_until(lambda: stack.map_of(sim).records() == {},
               lambda: f"nothing is claimed: {stack.map_of(sim).records()}")
    stack.agents[0].wait_ready()
    router.wait_states("up", 1)
    line = talk.turn(router)

    assert (line["predicted_cached_tokens"], line["cached_tokens"]) == (0, 0), line
    stack.wait_joined(4)
    assert_exact(talk.turn(router))


def test_an_agent_that_dies_costs_a_rung_and_no_request(stack):
    stack.add_engine()
    router = stack.start_router()
    talk = Conversation("Anna")
    talk.turn(router)
    stack.wait_joined(2)

    stack.agents[0].kill()
    wait_until(lambda: not stack.map_of(stack.sims[0]).lease(), "its lease is over")
    wait_until(lambda: talk.turn(router)["rung"] == "guess", "a guess, and served")
