# SPDX-License-Identifier: Apache-2.0
"""What engines hold is known, not guessed: simulated engines with KV events, an agent beside each, a
Redis and the router."""

import json
import random
import threading

import pytest

from peers.openai_api import CHAT, COMPLETIONS
from peers.process import wait_until

BLOCK_TOKENS = 16
PUBLISHES = ("--kv-events", "tcp://127.0.0.1:*", "--kv-replay", "tcp://127.0.0.1:*",
             "--block-size", BLOCK_TOKENS)
CLAIMS = "samovar_agent_claimed_blocks"


def prose(seed, byte_count):
    """Text that no other seed begins with."""
    chance = random.Random(seed)
    words = []
    while sum(map(len, words)) + len(words) < byte_count:
        words.append("".join(chance.choice("abcdefghiklmnoprstuw") for _ in range(6)))
    return " ".join(words)[:byte_count]


class Cluster:
    """Engines that publish, an agent each, one router that knows them through Redis alone."""

    def __init__(self, start_sim, start_agent, start_router, redis, secret_file):
        self.start_sim, self.start_agent = start_sim, start_agent
        self.start_router = start_router
        self.redis, self.secret_file = redis, secret_file
        self.sims, self.agents, self.router = [], [], None

    def begin(self, count, *sim_flags):
        self.sims = [self.start_sim(*PUBLISHES, *sim_flags) for _ in range(count)]
        self.agents = [self.start_agent(sim, self.redis, "--probe-interval-ms", 50,
                                        kv_events=sim.kv_events, kv_replay=sim.kv_replay)
                       for sim in self.sims]
        for agent in self.agents:
            agent.wait_ready()
        self.router = self.start_router((), "--redis", self.redis.url,
                                        "--secret-file", self.secret_file, is_ready=False)
        self.wait_heard(count)
        return self

    def wait_heard(self, count):
        """Until the router believes each agent, and can name blocks to it: what is asked before
        stays a guess."""
        self.router.wait_ready()
        self.router.wait_states("up", count)
        wait_until(lambda: self.router.metric_sum("samovar_router_map_exact_workers") == count,
                   "every agent is believed")
        heard = set()

        def is_heard():
            _, line = self.ask([{"role": "user", "content": "Is anybody there?"}])
            if line["anchor"] != "no_agent":
                heard.add(line["worker"])
            return len(heard) == count
        wait_until(is_heard, lambda: f"{count} agents can be told of prompts: {heard}")

    def ask(self, messages, **fields):
        """(the answer's text, the router's log line of it)"""
        body = json.dumps({"model": "tiny", "messages": messages, "max_tokens": 24, **fields})
        answer = self.router.post(CHAT, body.encode())
        assert answer.status == 200, answer.read_all()
        return answer.json()["choices"][0]["message"]["content"], self.router.request_line(answer)

    def ask_until_known(self, messages, **fields):
        """As ask(), and all of it is claimed then. A router whose loop is late tells agents nothing
        of a prompt, which is how it should be, and not what is looked at here: it is asked again,
        and the first answer counts."""
        claimed = self.claimed_blocks()
        first = self.ask(messages, **fields)
        line = first[1]
        while line["anchor"] == "busy":
            line = self.ask(messages, **fields)[1]
        self.wait_known(more_than=claimed)
        return first

    def claimed_blocks(self):
        return sum(agent.metric_sum(CLAIMS) for agent in self.agents)

    def known_blocks(self):
        """Of the router's replica."""
        return self.router.metric_sum("samovar_router_map_records")

    def wait_known(self, more_than=0):
        """Until agents claim something more, and the router knows all that they claim."""
        def is_known():
            claimed = self.claimed_blocks()
            return claimed > more_than and self.known_blocks() == claimed
        wait_until(is_known, lambda: f"claimed {self.claimed_blocks()} > {more_than}, the router "
                                     f"knows {self.known_blocks()}")


@pytest.fixture
def cluster(start_sim, start_agent, start_router, redis, secret_file):
    return Cluster(start_sim, start_agent, start_router, redis, secret_file)


def assert_exact(line):
    assert line["rung"] == "exact", line
    assert abs(line["predicted_cached_tokens"] - line["cached_tokens"]) <= BLOCK_TOKENS, line


def converse(cluster, seed, turns, **fields):
    """The messages so far, and the line of each turn. What a turn left is known before the next."""
    messages = [{"role": "system", "content": prose(seed, 3000)}]
    lines = []
    for turn in range(turns):
        messages.append({"role": "user", "content": prose(f"{seed}-{turn}", 500)})
        text, line = cluster.ask_until_known(messages, **fields)
        messages.append({"role": "assistant", "content": text})
        lines.append(line)
    return messages, lines


@pytest.mark.parametrize("flags", [(), ("--kv-hashes", "bytes"), ("--kv-dialect", "array"),
                                   ("--kv-topic", "kv@w1@tiny")],
                         ids=["as-vllm", "bytes", "arrays", "topic"])
def test_the_second_turn_is_chosen_exactly(cluster, flags):
    cluster.begin(2, *flags)

    _, lines = converse(cluster, "talk", 4)

    assert lines[0]["cached_tokens"] == 0
    assert len({line["worker"] for line in lines}) == 1
    for line in lines[1:]:
        assert_exact(line)
        assert line["cached_tokens"] > 700, line


def test_prompts_of_completions_are_known_exactly_too(cluster):
    cluster.begin(2)
    body = json.dumps({"model": "tiny", "prompt": prose("p", 4000), "max_tokens": 1}).encode()
    cluster.router.post(COMPLETIONS, body)
    cluster.wait_known()

    line = cluster.router.request_line(cluster.router.post(COMPLETIONS, body))

    assert_exact(line)
    assert line["cached_tokens"] > 900


def test_a_new_router_knows_what_others_have_learned(cluster, start_router):
    cluster.begin(2)
    messages, lines = converse(cluster, "talk", 2)
    cluster.router = start_router((), "--redis", cluster.redis.url,
                                  "--secret-file", cluster.secret_file, is_ready=False)
    cluster.wait_heard(2)
    cluster.wait_known()

    _, line = cluster.ask([*messages, {"role": "user", "content": "And then?"}])

    assert_exact(line)
    assert line["worker"] == lines[0]["worker"]
    assert line["cached_tokens"] > 700


def test_what_the_engine_evicts_leaves_the_map(cluster):
    """The others' prompts go to the engine behind the router's back."""
    cluster.begin(1, "--blocks", 256)
    messages, _ = converse(cluster, "talk", 2)
    claimed = cluster.claimed_blocks()
    assert claimed > 10
    for i in range(3):
        cluster.sims[0].post("/v1/completions", {"prompt": [1000 * i + n for n in range(2000)],
                                                 "max_tokens": 1})

    wait_until(lambda: cluster.claimed_blocks() == 0, "nothing is claimed any more")
    wait_until(lambda: cluster.known_blocks() == 0, "nothing is in the map any more")
    _, line = cluster.ask([*messages, {"role": "user", "content": "And then?"}])

    assert line["cached_tokens"] == 0
    assert line["predicted_cached_tokens"] == 0, line


def test_an_engine_that_restarts_is_believed_nothing(cluster):
    cluster.begin(1)
    messages, _ = converse(cluster, "talk", 2)
    sim = cluster.sims[0]
    flags = ("--block-size", BLOCK_TOKENS, "--kv-events", sim.kv_events, "--kv-replay", sim.kv_replay)

    sim.restart(*flags)

    wait_until(lambda: cluster.claimed_blocks() == 0 and cluster.known_blocks() == 0,
               "nothing is claimed any more")
    cluster.router.wait_states("up", 1)
    for _ in range(2):
        _, line = cluster.ask([*messages, {"role": "user", "content": "And then?"}])
        assert line["predicted_cached_tokens"] <= line["cached_tokens"] + BLOCK_TOKENS, line
        cluster.wait_known()


def test_fifty_requests_with_one_new_long_prefix_do_not_scatter(cluster):
    """Eight thousand tokens: a second of prefill, in which the other 49 arrive."""
    cluster.begin(4)
    system = {"role": "system", "content": prose("long", 40000)}
    lines = []

    def ask(number):
        question = {"role": "user", "content": f"Question {number}, please."}
        lines.append(cluster.ask([system, question], max_tokens=4)[1])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(lines) == 50
    prefix = min(line["prompt_tokens"] for line in lines)
    assert prefix > 8000
    read = sum(line["prompt_tokens"] - line["cached_tokens"] for line in lines)
    assert read < 2.5 * prefix, {line["worker"]: line["rung"] for line in lines}
    assert len({line["worker"] for line in lines}) <= 2
