# SPDX-License-Identifier: Apache-2.0
"""
--anchor-echo: where a vLLM worker has no endpoint that counts a prompt's tokens, its answer says
them, and the client gets the answer that it would have got.
"""

import json

import pytest

from peers.openai_api import CHAT, COMPLETIONS, DONE
from peers.process import wait_until
from peers.residency_wire import ANCHOR
from peers.scripted_agent import ScriptedAgent
from test_join import (  # noqa: F401 (a fixture)
    TEXT_4K, Engine, anchors, seen_agent, start_telling_router, wait_notes, wait_outcome)

SPLICE = b'"return_token_ids":true,'
VLLM_METRICS = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


class EchoEngine(Engine):
    """Says token ids in its answers, as vLLM does: null, where nobody asks."""

    def __init__(self):
        self.bodies = []
        self.refuses = self.passes_over = False
        super().__init__()
        self.metrics = VLLM_METRICS
        self.tokenize_reply = (404, b"{}")

    def answer_of(self, body, is_asked):
        """What it would send, in pieces."""
        api = CHAT if "messages" in body else COMPLETIONS
        ids = self.ids_of(body) if is_asked else None
        if not body.get("stream"):
            answer = json.loads(api.answer(self.answer_text, self.usage_of(body)))
            answer["choices"][0]["token_ids"] = [7, 8, 9] if is_asked else None
            (answer if api is CHAT else answer["choices"][0])["prompt_token_ids"] = ids
            return [json.dumps(answer).encode()]
        events = [json.loads(event[len(b"data: "):]) for event in
                  api.stream([self.answer_text] * 3)[:-1]]
        for at, event in enumerate(events):
            event["choices"][0]["token_ids"] = [7 + at] if is_asked else None
            where = event if api is CHAT else event["choices"][0]
            where["prompt_token_ids"] = ids if at == 0 else None
        return ([b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
                + [api.usage_event(self.usage_of(body)), DONE])

    def serve(self, request):
        if request.target not in (CHAT.path, COMPLETIONS.path):
            super().serve(request)
            return
        raw = request.body()
        body = json.loads(raw)
        self.bodies.append(raw)
        is_asked = body.get("return_token_ids") is True
        if is_asked and self.refuses:
            request.answer(b'{"error":{"message":"no such field"}}', 400)
            return
        pieces = self.answer_of(body, is_asked and not self.passes_over)
        if body.get("stream"):
            request.stream(pieces)
        else:
            request.answer(pieces[0])


@pytest.fixture
def engine():
    engine = EchoEngine()
    yield engine
    engine.stop()


class World:
    def __init__(self, router, engine, agent):
        self.router, self.engine, self.agent = router, engine, agent
        wait_until(lambda: router.admin("/workers").json()["workers"][0]["engine"] == "vllm",
                   "the router knows what engine it is")

    def learn_unable(self, api):
        """The first prompt: the side call shows that there is no such endpoint."""
        count = anchors(self.router, "unable")
        assert self.router.post(api, api.request("learn " + TEXT_4K)).status == 200
        wait_outcome(self.router, "unable", count + 1)


@pytest.fixture
def start_world(start_telling_router, engine, redis):  # noqa: F811
    def start(*flags):
        router = start_telling_router([engine], *flags)
        return World(router, engine,
                     seen_agent(ScriptedAgent(redis, engine, router), router))
    return start


@pytest.fixture
def world(start_world):
    return start_world("--anchor-echo=true")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_answer_says_the_anchor_and_the_client_sees_none_of_it(world, api, stream):
    world.learn_unable(api)
    body = api.request(TEXT_4K, stream=stream, stream_options={"include_usage": True})

    answer = world.router.post(api, body)

    assert answer.read_all() == b"".join(world.engine.answer_of(json.loads(body), False))
    at = body.index(b"{") + 1
    assert world.engine.bodies[-1] == body[:at] + SPLICE + body[at:]
    wait_outcome(world.router, "posted")
    told = [note for note in wait_notes(world.agent, 2) if note.kind == ANCHOR]
    assert [note.token_count for note in told] == [len(world.engine.ids_of(json.loads(body)))]
    assert told[0].last_block != 0


def test_it_is_the_anchor_that_tokenize_gives(world):
    """The same prompt, named by a side call and by an answer."""
    world.learn_unable(COMPLETIONS)
    world.router.post(COMPLETIONS, COMPLETIONS.request(TEXT_4K))
    wait_outcome(world.router, "posted")
    ids = world.engine.ids_of({"prompt": TEXT_4K})
    world.router.post(COMPLETIONS, COMPLETIONS.request(ids))
    wait_outcome(world.router, "posted", 2)

    echoed, given = [note for note in wait_notes(world.agent, 4) if note.kind == ANCHOR]

    assert (echoed.token_count, echoed.last_block) == (given.token_count, given.last_block)


@pytest.mark.parametrize("value", [True, False, None])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_speaks_of_it_gets_what_it_wrote(world, api, stream, value):
    world.learn_unable(api)
    body = api.request(TEXT_4K, stream=stream, return_token_ids=value,
                       stream_options={"include_usage": True})

    answer = world.router.post(api, body)

    assert answer.read_all() == b"".join(world.engine.answer_of(json.loads(body), value is True))
    assert world.engine.bodies[-1] == body


def test_with_the_usage_that_nobody_asked_for(world):
    """Both splices at once, and both taken out again."""
    world.learn_unable(CHAT)
    body = CHAT.request(TEXT_4K, stream=True)

    answer = world.router.post(CHAT, body)

    expected = world.engine.answer_of(json.loads(body), False)
    assert answer.read_all() == b"".join(expected[:-2] + expected[-1:])
    assert world.engine.bodies[-1].count(SPLICE) == 1
    assert world.router.request_line(answer)["prompt_tokens"] > 0


def test_an_engine_that_refuses_it_is_asked_once(world):
    world.learn_unable(CHAT)
    world.engine.refuses = True

    first = world.router.post(CHAT, CHAT.request(TEXT_4K + "1"))
    asked = [SPLICE in body for body in world.engine.bodies]
    second = world.router.post(CHAT, CHAT.request(TEXT_4K + "2"))

    assert (first.status, second.status) == (200, 200)
    assert asked[-2:] == [True, False]
    assert SPLICE not in world.engine.bodies[-1]
    assert world.router.metric_sum("samovar_router_retries_total") == 1


def test_an_engine_that_passes_over_it_is_asked_once(world):
    world.learn_unable(CHAT)
    world.engine.passes_over = True

    world.router.post(CHAT, CHAT.request(TEXT_4K + "1"))
    wait_outcome(world.router, "failed")
    world.router.post(CHAT, CHAT.request(TEXT_4K + "2"))

    assert [SPLICE in body for body in world.engine.bodies[-2:]] == [True, False]


def test_where_a_side_call_works_no_answer_is_asked(world):
    world.engine.tokenize_reply = None

    world.router.post(CHAT, CHAT.request(TEXT_4K))
    wait_outcome(world.router, "posted")
    world.router.post(CHAT, CHAT.request(TEXT_4K + "more"))
    wait_outcome(world.router, "posted", 2)

    assert all(SPLICE not in body for body in world.engine.bodies)


def test_without_the_option_nothing_is_asked(start_world):
    world = start_world()
    world.learn_unable(CHAT)

    world.router.post(CHAT, CHAT.request(TEXT_4K))

    assert all(SPLICE not in body for body in world.engine.bodies)


def test_no_token_id_is_in_redis_or_the_log(world):
    world.learn_unable(COMPLETIONS)
    canary = "canary " * 400

    answer = world.router.post(COMPLETIONS, COMPLETIONS.request(canary, stream=True))
    answer.read_all()
    wait_outcome(world.router, "posted")

    ids = ", ".join(str(id_) for id_ in world.engine.ids_of({"prompt": canary})[:3])
    for text in (str(world.agent.entries()), str(world.router.request_line(answer))):
        assert ids not in text
