# SPDX-License-Identifier: Apache-2.0
"""Two nodes, each an engine and an agent with tiers, behind a router: a conversation whose blocks left
its engine still goes where they are, unless to compute them elsewhere is faster."""

import concurrent.futures
import dataclasses
import json
import time
import urllib.request

import pytest

from cluster import has_redis, reset_cache
from engines import BIN, MODEL, Cache, Router, get, make_model, wait_until
from prompts import user, words
from tiers import Node, complete, prompts_of

CACHE = Cache(block_tokens=32, block_count=300, context_tokens=8192, dtype="float32",
              publishes=True)
CPU_MIB, SSD_MIB = 16, 256
TALKS = 8
CROWD = 24

pytestmark = pytest.mark.skipif(not has_redis() or not (BIN / "samovar-agent").exists(),
                                reason="redis-server or samovar-agent is missing")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    model_folder = make_model(tmp_path_factory.mktemp("routed-model") / "tiny")
    nodes = []
    try:
        for i in range(2):
            nodes.append(Node(tmp_path_factory.mktemp(f"routed-{i}"), model_folder, CACHE,
                              beside=nodes[0] if nodes else None))
            nodes[-1].start_engine()
        for node in nodes:
            node.engines[0].wait_ready()
            node.start_agent(CPU_MIB, SSD_MIB)
        yield nodes
    finally:
        for node in reversed(nodes):
            node.close()


@pytest.fixture
def router(nodes, tmp_path):
    router = Router("router", [], tmp_path, "--redis", nodes[0].redis.url, "--secret-file",
                    nodes[0].secret_file)
    try:
        router.wait_up(2)
        yield router
    finally:
        status = router.stop()
    assert status == 0, router.log_tail()


@dataclasses.dataclass
class Turn:
    """A question, and how the router's log line tells of it."""
    answer: str
    line: dict


def ask(router, messages, name, max_tokens=8):
    body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": max_tokens,
                       "temperature": 0})
    request = urllib.request.Request(f"{router.url}/v1/chat/completions", body.encode(),
                                     {"Content-Type": "application/json", "X-Request-Id": name})
    with urllib.request.urlopen(request, timeout=120) as answer:
        content = json.loads(answer.read())["choices"][0]["message"]["content"]
    return Turn(content, router.request_line(name))


def node_of(nodes, turn):
    return next(node for node in nodes if node.engines[0].url == turn.line["worker"].rstrip("/"))


def rows(router):
    """What the router knows of the agents' reports, by worker."""
    text = get(f"http://127.0.0.1:{router.admin_port}/residency")[1]
    return {row["url"].rstrip("/"): row for row in json.loads(text)["workers"]} if text else {}


def push_down(node, router):
    """What its engine holds is in the tiers alone; the router knows."""
    engine = node.engines[0]
    reset_cache(engine)
    complete(engine, list(range(10, 20)), 1)  # an idle engine says nothing of what it forgot

    def is_down():
        row = rows(router)[engine.url]
        return row["hbm"] == 0 and row["cpu"] > 0
    wait_until(is_down, "the map has it in CPU memory alone", 10)


def test_a_prefix_in_cpu_memory_attracts_its_next_turn(nodes, router):
    turns = []
    for i in range(TALKS):
        messages = user(words(1500, f"talk {i}"))
        first = ask(router, messages, f"talk-{i}-1")
        node = node_of(nodes, first)
        push_down(node, router)
        messages += [{"role": "assistant", "content": first.answer}, *user("And then?")]
        turns.append((node, ask(router, messages, f"talk-{i}-2")))

    for node, turn in turns:
        print({key: turn.line.get(key) for key in (
            "worker", "rung", "prompt_tokens", "cached_tokens", "matched_hbm_tokens",
            "matched_cpu_tokens", "move_ms", "predicted_ttft_ms", "ttft_ms", "total_ms")})
    assert [node_of(nodes, turn) for _, turn in turns] == [node for node, _ in turns]
    assert all(turn.line["rung"] == "exact" for _, turn in turns)
    assert all(turn.line["matched_cpu_tokens"] > 1000 for _, turn in turns)
    assert sum(node.loaded("cpu") for node in nodes) > 0


def test_a_crowd_at_one_prefix_is_computed_elsewhere_too(nodes, router):
    """Whoever comes when enough wait before the prefix is faster where it has to be computed."""
    messages = user(words(1500, "crowd"))
    first = ask(router, messages, "crowd")
    node = node_of(nodes, first)
    push_down(node, router)
    messages += [{"role": "assistant", "content": first.answer}]

    with concurrent.futures.ThreadPoolExecutor(CROWD) as pool:
        turns = list(pool.map(lambda i: ask(router, messages + user(words(400, f"{i}")),
                                            f"crowd-{i}", 64), range(CROWD)))

    here = [turn for turn in turns if node_of(nodes, turn) is node]
    there = [turn for turn in turns if node_of(nodes, turn) is not node]
    for turn in here[:2] + there[:2]:
        print({key: turn.line.get(key) for key in (
            "worker", "matched_cpu_tokens", "move_ms", "predicted_ttft_ms", "total_ms")})
    assert here and there
    assert any(turn.line.get("matched_cpu_tokens", 0) > 1000 for turn in here)
    assert any(turn.line.get("matched_cpu_tokens", 0) == 0 for turn in there)


def is_believed_again(row, former_life):
    return row["believed"] and row["life"] != former_life and row["ssd"] > 0


def test_after_an_agent_restart_the_map_is_exact_before_anybody_asks(nodes, router):
    """What is on the SSD outlives the agent, and so does how text and tokens are joined."""
    talk = user(words(1500, "kept"))
    node = node_of(nodes, ask(router, talk, "kept-1"))
    push_down(node, router)
    assert node_of(nodes, ask(router, talk, "kept-2")) is node  # used once: worth a write
    for prompt in prompts_of(40, seed=9):
        complete(node.engines[0], prompt, 1)
    wait_until(lambda: node.agent.metric("samovar_agent_claimed_blocks", tier="ssd") > 0,
               "something is on the SSD", 10)

    life = rows(router)[node.engines[0].url]["life"]
    node.stop_agent()
    reset_cache(node.engines[0])
    began = time.monotonic()
    node.start_agent(CPU_MIB, SSD_MIB)
    wait_until(lambda: is_believed_again(rows(router)[node.engines[0].url], life),
               "what its SSD holds is believed", 10)
    exact_s = time.monotonic() - began
    again = ask(router, talk + user("Still there?"), "kept-3")

    print(f"believed after {exact_s:.2f} s: {again.line}")
    assert exact_s < 2
    assert node_of(nodes, again) is node and again.line["rung"] == "exact"
    assert again.line["matched_ssd_tokens"] > 1000
