# SPDX-License-Identifier: Apache-2.0
"""Prompts go where their beginning already is, and spread where that buys nothing."""

import json
import threading
from collections import Counter

import pytest

from peers.http1 import read_answer
from peers.openai_api import CHAT, COMPLETIONS
from peers.process import wait_until

PREFIX = "You are a careful assistant who knows everything about samovars. " * 60
BLOCK_BYTES = 256


def turn(*texts, **fields):
    """A chat body: user and assistant by turns."""
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return json.dumps({"model": "tiny", "messages": messages, **fields}).encode()


def worker_of(router, body, api=CHAT):
    answer = router.post(api, body)
    assert answer.status == 200, answer.read_all()
    return answer.get("x-samovar-worker")


@pytest.fixture
def answering(start_fleet):
    """count workers that answer at once."""
    def start(count):
        fleet = start_fleet(count)
        fleet.handle_with(lambda request: request.answer(CHAT.answer()))
        return fleet

    return start


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS], ids=lambda api: api.name)
def test_a_known_beginning_goes_to_its_worker(start_router, answering, api):
    router = start_router(answering(4))
    home = worker_of(router, api.request(PREFIX + "first question"), api)

    again = [worker_of(router, api.request(PREFIX + f"question {n}"), api) for n in range(5)]

    assert set(again) == {home}
    lines = router.log.wait_count("request", 6)
    assert lines[0]["matched_blocks"] == 0
    for line in lines[1:]:
        assert line["rung"] == "guess"
        assert line["matched_blocks"] >= len(PREFIX) // BLOCK_BYTES - 1
        assert line["predicted_cached_tokens"] > 0


@pytest.mark.parametrize("ids", [[7] * 3000, [[7] * 3000], ["x" * 9000]],
                         ids=["token ids", "token id lists", "list of texts"])
def test_each_form_of_a_completions_prompt_has_a_beginning(start_router, answering, ids):
    router = start_router(answering(4))
    body = json.dumps({"model": "tiny", "prompt": ids}).encode()
    homes = {worker_of(router, body, COMPLETIONS) for _ in range(4)}
    assert len(homes) == 1
    assert router.log.wait_count("request", 4)[-1]["matched_blocks"] > 0


def test_another_spelling_of_the_same_request_has_the_same_beginning(start_router, answering):
    router = start_router(answering(4))
    home = worker_of(router, turn(PREFIX))
    other = ('{"messages" : [{"content":"' + "".join(f"\\u{ord(c):04x}" for c in PREFIX)
             + '", "role":"user"}], "temperature":0.5, "model":"tiny"}').encode()

    assert worker_of(router, other) == home
    lines = router.log.wait_count("request", 2)
    assert lines[1]["matched_blocks"] == lines[1]["prompt_blocks"] == lines[0]["prompt_blocks"]


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
def test_the_answer_is_part_of_the_next_turns_beginning(start_router, start_fleet, is_stream):
    fleet = start_fleet(2)
    router = start_router(fleet)
    words = [f"word{number} " for number in range(500)]
    question, answer_text = "Where is the samovar? " * 50, "".join(words)
    client = router.connect()
    client.post(CHAT, turn(question, stream=is_stream))
    first = fleet.expect()
    first.stream(CHAT.stream(words)) if is_stream else first.answer(CHAT.answer(answer_text))
    client.answer().read_all()
    router.log.wait("request")

    client.post(CHAT, turn(question, answer_text, "And the tea?"))
    second = fleet.expect()
    second.answer(CHAT.answer())
    answer = client.answer()
    answer.read_all()

    assert second.worker is first.worker
    known = (len(question) + len(answer_text)) // BLOCK_BYTES
    assert router.request_line(answer)["matched_blocks"] >= known - 1


def test_an_aborted_answer_is_not_part_of_it(start_router, start_fleet):
    """What the engine did not finish, the next turn will not hold."""
    fleet = start_fleet(1)
    router = start_router(fleet)
    question, half = "Where is the samovar? " * 50, "no answer at all " * 200
    client = router.connect()
    client.post(CHAT, turn(question, stream=True))
    request = fleet.expect()
    request.start_stream()
    request.send_chunk(CHAT.event(half))
    client.answer().read(len(CHAT.event(half)))
    client.close()
    request.wait_end()
    request.finish()

    again = router.connect()
    again.post(CHAT, turn(question, half, "And the tea?"))
    fleet.expect().answer(CHAT.answer())
    answer = again.answer()
    answer.read_all()

    assert router.request_line(answer)["matched_blocks"] <= len(question) // BLOCK_BYTES + 2


def test_unique_prompts_one_after_another_spread(start_router, answering):
    router = start_router(answering(4))
    used = Counter(worker_of(router, turn(f"{n} has its own beginning")) for n in range(40))
    assert len(used) == 4
    assert all(6 <= count <= 14 for count in used.values()), used


def test_unique_long_prompts_spread_too(start_router, answering):
    router = start_router(answering(4))
    used = Counter(worker_of(router, turn(f"{n} " + f"{n} long and its own " * 500))
                   for n in range(40))
    assert len(used) == 4
    assert all(6 <= count <= 14 for count in used.values()), used


def hold_open(router, fleet, bodies):
    """Sends all, answers none; the requests the workers hold, once all have come."""
    clients = []
    for body in bodies:
        client = router.connect()
        client.post(CHAT, body)
        clients.append(client)
    return clients, [fleet.expect() for _ in bodies]


def answer_held(clients, requests):
    for request in requests:
        request.answer(CHAT.answer())
    for client in clients:
        assert read_answer(client).status == 200


@pytest.mark.parametrize("policy", ["ttft", "least_load"])
def test_load_counts_from_the_choice_on(start_router, start_fleet, policy):
    """No answer has come, no report either: what was sent a moment ago must count already."""
    fleet = start_fleet(4)
    router = start_router(fleet, "--policy", policy)
    bodies = [turn(f"{n} unique " + "filling words " * 200) for n in range(16)]

    clients, requests = hold_open(router, fleet, bodies)

    used = Counter(request.worker.port for request in requests)
    assert sorted(used.values()) == [4, 4, 4, 4]
    assert sorted(row["in_flight"] for row in router.workers()) == [4, 4, 4, 4]
    answer_held(clients, requests)


def test_fifty_requests_with_one_new_beginning_do_not_scatter_at_once(start_router, start_fleet):
    """A prompt being read counts as a hit behind its maker: few copies of it are made."""
    fleet = start_fleet(8)
    router = start_router(fleet)
    bodies = [turn(PREFIX * 8 + f"question {n}") for n in range(8)]

    clients, requests = hold_open(router, fleet, bodies)

    assert len({request.worker.port for request in requests}) < 8
    answer_held(clients, requests)


def test_a_hot_shared_beginning_spreads_under_load(start_router, start_sim):
    sims = [start_sim("--prefill-tps", 8000, "--decode-ms", 6, "--seed", n) for n in range(4)]
    router = start_router(sims)
    worker_of(router, turn(PREFIX * 2 + "warm", max_tokens=1))
    used = Counter()
    lock = threading.Lock()

    def ask(number):
        body = turn(PREFIX * 2 + f"question {number}", max_tokens=60, stream=True)
        answer = router.post(CHAT, body)
        with lock:
            used[answer.get("x-samovar-worker")] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(used) >= 2, used
    assert sum(used.values()) == 48


def test_predicted_cached_tokens_are_the_engines(start_router, start_sim):
    """A guess, but a good one: the second turn of a conversation on an engine with a real cache."""
    sims = [start_sim("--seed", n) for n in range(2)]
    router = start_router(sims)
    texts = [PREFIX + "Where is the samovar?"]
    for _ in range(3):
        body = turn(*texts, max_tokens=50)
        answer = router.post(CHAT, body)
        texts += [answer.json()["choices"][0]["message"]["content"], "And then?"]

    lines = router.log.wait_count("request", 3)
    assert len({line["worker"] for line in lines}) == 1
    for line in lines[1:]:
        assert line["cached_tokens"] > 0
        error = abs(line["predicted_cached_tokens"] - line["cached_tokens"])
        assert error <= 0.1 * line["prompt_tokens"], line


@pytest.mark.parametrize("prompt_tokens", [300, 9000])
def test_the_prediction_is_a_share_of_the_prompt_in_the_engines_own_tokens(
        router, worker, prompt_tokens):
    """How many tokens a text has is the engine's secret until it answers: what is compared with its
    cached tokens is where the prefix ends, not how well tokens were guessed."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 4,
             "prompt_tokens_details": {"cached_tokens": prompt_tokens - 1}}
    worker.handler = lambda request: request.answer(CHAT.answer(usage=usage))
    for _ in range(2):
        router.post(CHAT, turn(PREFIX))

    first, second = router.log.wait_count("request", 2)

    assert first["predicted_cached_tokens"] == 0
    assert 0.9 * prompt_tokens <= second["predicted_cached_tokens"] <= prompt_tokens


def test_a_prompt_that_was_refused_is_not_believed_there(router, worker):
    worker.handler = lambda request: request.answer(b'{"error":{"message":"too long"}}', 400)
    for _ in range(2):
        assert router.post(CHAT, turn(PREFIX)).status == 400

    assert [line["matched_blocks"] for line in router.log.wait_count("request", 2)] == [0, 0]


def test_round_robin_takes_turns(start_router, answering):
    router = start_router(answering(3), "--policy", "round_robin")
    used = [worker_of(router, turn(PREFIX)) for _ in range(9)]
    assert used[:3] == used[3:6] == used[6:]
    assert len(set(used)) == 3


def test_random_uses_all(start_router, answering):
    router = start_router(answering(3), "--policy", "random", "--seed", 1)
    used = Counter(worker_of(router, turn(PREFIX)) for _ in range(60))
    assert len(used) == 3
    assert min(used.values()) >= 5


def test_a_worker_that_is_down_is_not_chosen_for_its_cache(start_router, answering):
    fleet = answering(2)
    router = start_router(fleet, "--probe-interval-ms", 50)
    home = worker_of(router, turn(PREFIX))
    dead = next(worker for worker in fleet if worker.url == home)
    dead.kill()
    router.wait_states("down", 1)

    away = worker_of(router, turn(PREFIX))

    assert away != home
    assert router.log.wait_count("request", 2)[-1]["attempts"] == 1


def test_a_worker_that_reports_load_gets_less(start_router, start_fleet):
    """The engine is busy with what others sent: its own word corrects what we count."""
    fleet = start_fleet(2)
    busy, idle = fleet
    for worker, running in ((busy, 200), (idle, 0)):
        worker.metrics = (
            "# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{model_name="tiny"}} {running}\n'
            "# TYPE vllm:num_requests_waiting gauge\n"
            f'vllm:num_requests_waiting{{model_name="tiny"}} {running}\n'
            "# TYPE vllm:kv_cache_usage_perc gauge\n"
            'vllm:kv_cache_usage_perc{model_name="tiny"} 0.5\n')
    router = start_router(fleet, "--policy", "least_load", "--probe-interval-ms", 50)
    busy.wait_probes("/metrics", 1)
    wait_until(lambda: all(row["engine"] == "vllm" for row in router.workers()), "reports are read")
    fleet.handle_with(lambda request: request.answer(CHAT.answer()))

    used = Counter(worker_of(router, turn(f"{n} unique")) for n in range(10))

    assert used[idle.url] > used[busy.url]


def test_a_prompt_given_up_before_its_first_byte_is_not_believed_there(start_router, start_fleet):
    """Whoever left did so while the engine prefilled: it holds what it held before."""
    fleet = start_fleet(2)
    router = start_router(fleet)
    body = CHAT.request("a prompt that nobody waits for " * 200)
    client = router.connect()
    client.post(CHAT, body)
    held = fleet.expect()
    client.reset()
    held.wait_end()
    router.wait_idle()

    again = router.connect()
    again.post(CHAT, body)
    fleet.expect().answer(CHAT.answer())
    assert again.answer().status == 200

    lines = router.log.wait_count("request", 2)
    assert lines[1]["matched_blocks"] == 0
