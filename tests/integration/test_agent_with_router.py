# SPDX-License-Identifier: Apache-2.0
"""
Routers, agents, Redis and simulated engines, nobody played: what is predicted is what the engine
finds in its cache, whatever happened before.
"""

import json

import pytest

from peers.openai_api import MODEL
from peers.process import REPO, wait_until
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
        self.sims, self.agents, self.routers = [], [], []
        self.told = 0

    def add_engine(self, *agent_flags):
        sim = self.start_sim(*KV_FLAGS)
        self.sims.append(sim)
        self.agents.append(self.start_agent(sim, self.redis, *agent_flags, kv_events=sim.kv_events,
                                            kv_replay=sim.kv_replay).wait_ready())
        return sim

    def start_router(self, *flags):
        router = self._start_router((), "--redis", self.redis.url, "--secret-file",
                                    self.secret_file, *flags)
        self.routers.append(router)
        router.wait_ready()
        router.wait_states("up", len(self.sims))
        router.wait_believed(len(self.sims), BLOCK_TOKENS)
        return router

    def tell(self, router, name):
        """The first turn of a conversation that its agent was told of. A router that is busy leaves
        that out; then it is another one."""
        for i in range(20):
            talk = Conversation(f"{name} {i}")
            posted, total = self._anchors(router)
            line = talk.turn(router)
            wait_until(lambda: self._anchors(router)[1] > total, "it is told, or why not")
            if self._anchors(router)[0] > posted:
                self.told += 2  # prompt and answer
                self.wait_joined(self.told)
                return talk, line
        raise AssertionError(f"nothing is told: {self._notes()}")

    @staticmethod
    def _anchors(router):
        """(those that were told, all)"""
        found = {key: value for key, value in router.metrics().items() if "anchors_total" in key}
        return found['samovar_router_anchors_total{outcome="posted"}'], sum(found.values())

    def wait_joined(self, count):
        """Until so many prompts and answers have been joined with their tokens, and are said."""
        def joined():
            return sum(agent.metric_sum("samovar_agent_joins_total") for agent in self.agents)
        wait_until(lambda: joined() >= count, lambda: f"{count} joins: {self._notes()}")
        wait_until(lambda: not any(agent.metric_sum("samovar_agent_report_unsaid")
                                   for agent in self.agents), "all is said")

    def _notes(self):
        """What was told of attempts, for who waited in vain."""
        return [{key: value for key, value in program.metrics().items()
                 if value and any(word in key for word in ("joins", "notes", "anchors", "refused"))}
                for program in (*self.agents, *self.routers) if program.is_running()]

    def map_of(self, sim):
        return ResidencyMap(self.redis, sim.url)


@pytest.fixture
def stack(start_sim, start_agent, start_router, redis, secret_file):
    return Stack(start_sim, start_agent, start_router, redis, secret_file)


def test_the_next_turn_is_predicted_to_the_block(stack):
    stack.add_engine()
    router = stack.start_router()
    talk, _ = stack.tell(router, "Anna")

    line = talk.turn(router)

    assert_exact(line)
    assert line["cached_tokens"] > 1000


def test_a_router_that_has_seen_nothing_finds_what_another_sent(stack):
    stack.add_engine()
    stack.add_engine()
    first, second = stack.start_router(), stack.start_router()
    before = [stack.tell(first, name) for name in ("Anna", "Ben", "Cleo", "Dan")]

    after = [talk.turn(second) for talk, _ in before]

    assert {line["worker"] for _, line in before} == {sim.url for sim in stack.sims}
    for (_, one), other in zip(before, after):
        assert other["worker"] == one["worker"]
        assert_exact(other)


def test_a_router_that_is_restarted_knows_all_again(stack):
    stack.add_engine()
    router = stack.start_router()
    talk, _ = stack.tell(router, "Anna")
    router.kill()

    assert_exact(talk.turn(stack.start_router()))


def test_an_engine_that_is_killed_and_restarted_leaves_no_phantom(stack):
    sim = stack.add_engine()
    router = stack.start_router("--probe-interval-ms", 50)
    talk, _ = stack.tell(router, "Anna")
    events, replay = sim.kv_events, sim.kv_replay

    sim.restart("--kv-events", events, "--kv-replay", replay)
    wait_until(lambda: stack.map_of(sim).records() == {},
               lambda: f"nothing is claimed: {stack.map_of(sim).records()}")
    stack.agents[0].wait_ready()
    router.wait_states("up", 1)
    line = talk.turn(router)

    assert (line["predicted_cached_tokens"], line["cached_tokens"]) == (0, 0), line
    stack.wait_joined(stack.told + 1)
    assert_exact(talk.turn(router))


def test_an_agent_that_dies_costs_a_rung_and_no_request(stack):
    stack.add_engine()
    router = stack.start_router()
    talk, _ = stack.tell(router, "Anna")

    stack.agents[0].kill()
    wait_until(lambda: not stack.map_of(stack.sims[0]).lease(), "its lease is over")
    wait_until(lambda: talk.turn(router)["rung"] == "guess", "a guess, and served")


@pytest.mark.parametrize("name", ["users.acl", "users-6.2.acl"])
def test_users_that_may_only_do_what_they_need_lack_nothing(stack, start_redis, tmp_path, name):
    """docker/users.acl names the engines of the compose file: here they have this test's address."""
    users = tmp_path / name
    users.write_text((REPO / "docker" / name).read_text().replace("http://sim-1:", f"http://{HOST}:"))
    redis = start_redis(users_acl=users, password="")
    password = tmp_path / "password"
    stack.redis = Redis(redis, "admin", "change-me-admin")

    sim = stack.start_sim(*KV_FLAGS)
    password.write_text("change-me-agent-1\n")
    agent = stack.start_agent(sim, redis.url_of("agent-1"), "--redis-password-file", password,
                              kv_events=sim.kv_events, kv_replay=sim.kv_replay).wait_ready()
    stack.sims.append(sim)
    stack.agents.append(agent)
    password.write_text("change-me-router\n")
    router = stack._start_router((), "--redis", redis.url_of("router"), "--redis-password-file",
                                 password, "--secret-file", stack.secret_file)
    stack.routers.append(router)
    router.wait_ready()
    router.wait_believed(len(stack.sims), BLOCK_TOKENS)
    talk, _ = stack.tell(router, "Anna")

    assert_exact(talk.turn(router))
    assert agent.metric_sum("samovar_agent_redis_errors_total") == 0
    assert not [line for line in router.log.events if "NOPERM" in json.dumps(line)]


class Redis:
    """A server as one of its users sees it."""

    def __init__(self, server, user, password):
        self.server, self.user, self.password = server, user, password

    def call(self, *words):
        return self.server.call(*words, user=self.user, password=self.password)
