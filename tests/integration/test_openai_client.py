# SPDX-License-Identifier: Apache-2.0
"""The official client in front, simulated engines behind: what its users see."""

import asyncio
import time

import pytest

from peers.openai_api import CHAT
from peers.process import wait_until

openai = pytest.importorskip("openai", reason="the openai package is missing: requirements.txt")

ASK = [{"role": "user", "content": "Where is the samovar?"}]


def client_of(router, kind=openai.OpenAI, **options):
    return kind(base_url=router.url + "/v1", api_key="key", **{"max_retries": 0, **options})


@pytest.fixture
def sims(start_sim):
    return [start_sim("--decode-ms", 2, "--seed", number) for number in range(2)]


@pytest.fixture
def router(start_router, sims):
    return start_router(sims)


@pytest.fixture
def client(router):
    with client_of(router) as client:
        yield client


def running(sims):
    return sum(sim.running() for sim in sims)


def test_chat(client):
    answer = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=8)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8
    assert answer._request_id


def test_chat_stream(client):
    chunks = list(client.chat.completions.create(model="tiny", messages=ASK, max_tokens=8,
                                                 stream=True))
    assert all(chunk.choices for chunk in chunks), "an event without choices nobody asked for"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_stream_with_usage(client):
    chunks = list(client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=8, stream=True,
        stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8


def test_completions(client):
    whole = client.completions.create(model="tiny", prompt="Where is", max_tokens=8)
    assert whole.choices[0].text
    streamed = list(client.completions.create(model="tiny", prompt="Where is", max_tokens=8,
                                              stream=True))
    assert all(chunk.choices for chunk in streamed)
    assert "".join(chunk.choices[0].text for chunk in streamed)


def test_a_second_turn_hits_the_cache_of_the_same_worker(client):
    messages = [{"role": "system", "content": "You are careful. " * 200}, *ASK]
    raw = client.chat.completions.with_raw_response
    first = raw.create(model="tiny", messages=messages, max_tokens=40)
    text = first.parse().choices[0].message.content
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And tea?"}]

    second = raw.create(model="tiny", messages=messages, max_tokens=8)

    assert second.headers["x-samovar-worker"] == first.headers["x-samovar-worker"]
    assert second.parse().usage.prompt_tokens_details.cached_tokens > 0


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("meta-llama/none")


def test_many_at_once(router):
    async def ask(client, number):
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": f"question {number}"}],
            max_tokens=8, stream=True)
        return [chunk async for chunk in stream]

    async def ask_all():
        async with client_of(router, openai.AsyncOpenAI) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(30)))

    answers = asyncio.run(ask_all())
    assert all(chunks[-1].choices[0].finish_reason == "length" for chunks in answers)


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="tinny", messages=ASK)
    assert raised.value.code == "model_not_found"
    assert raised.value.param == "model"
    assert "tiny" in raised.value.message
    assert raised.value.request_id


def test_a_bad_request_is_bad_request(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="tiny", messages="hello")
    assert raised.value.type == "invalid_request_error"


def test_no_worker_is_internal_server_error(start_router, worker):
    worker.stop_listening()
    router = start_router([worker], is_ready=False)
    with client_of(router) as client, pytest.raises(openai.InternalServerError) as raised:
        client.chat.completions.create(model="tiny", messages=ASK)
    assert raised.value.status_code == 503


@pytest.mark.parametrize("status, kind", [
    (400, openai.BadRequestError), (401, openai.AuthenticationError),
    (403, openai.PermissionDeniedError), (404, openai.NotFoundError),
    (422, openai.UnprocessableEntityError), (429, openai.RateLimitError),
    (500, openai.InternalServerError)])
def test_an_engines_errors_keep_their_class(start_router, worker, status, kind):
    router = start_router([worker])
    worker.handler = lambda request: request.answer(
        b'{"error":{"message":"as the engine says","type":"t","param":null,"code":null}}', status)
    with client_of(router) as client, pytest.raises(kind, match="as the engine says"):
        client.chat.completions.create(model="tiny", messages=ASK)


def test_a_worker_that_dies_in_a_stream_is_api_error(start_router, worker):
    router = start_router([worker])

    def die(request):
        request.start_stream()
        request.send_chunk(CHAT.event("Tea"))
        request.end_by("fin")

    worker.handler = die
    seen = []
    with client_of(router) as client, pytest.raises(openai.APIError) as raised:
        for chunk in client.chat.completions.create(model="tiny", messages=ASK, stream=True):
            seen.append(chunk.choices[0].delta.content)
    assert seen == ["Tea"]
    assert raised.value.code == "upstream_closed"


def test_a_request_that_kills_engines_is_not_sent_again_by_the_client(start_router, start_fleet):
    fleet = start_fleet(4)
    killed = []

    def die(request):
        killed.append(request.worker)
        request.end_by("rst")

    fleet.handle_with(die)
    router = start_router(fleet)
    with client_of(router, max_retries=2) as client, pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="tiny", messages=ASK)
    assert len(killed) == 2 and killed[0] is not killed[1]


def test_a_refusal_is_asked_again_by_the_client_after_the_time_it_was_told(start_router, worker):
    router = start_router([worker])
    answers = [(429, b'{"error":{"message":"busy"}}'), (200, CHAT.answer())]

    def refuse_once(request):
        status, body = answers.pop(0)
        request.answer(body, status, retry_after_ms="20")

    worker.handler = refuse_once
    with client_of(router, max_retries=2) as client:
        answer = client.chat.completions.create(model="tiny", messages=ASK)
    assert answer.choices[0].message.content == "In the kitchen."


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
def test_cancelling_stops_the_engine(router, sims, is_stream):
    async def cancel():
        async with client_of(router, openai.AsyncOpenAI) as client:
            asking = asyncio.ensure_future(client.chat.completions.create(
                model="tiny", messages=ASK, max_tokens=3000, stream=is_stream))
            if is_stream:
                stream = await asking
                await stream.__anext__()
                await stream.close()
            else:
                deadline = time.monotonic() + 5
                while not running(sims):
                    assert time.monotonic() < deadline, "the engine never began"
                    await asyncio.sleep(0.01)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking

    asyncio.run(cancel())
    wait_until(lambda: running(sims) == 0, "the engines stopped", timeout_s=1)
    router.log.wait("request", end="client_abort")


def test_closing_a_stream_stops_the_engine(router, client, sims):
    stream = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=3000,
                                            stream=True)
    next(iter(stream))
    assert running(sims) == 1
    stream.close()
    wait_until(lambda: running(sims) == 0, "the engines stopped", timeout_s=1)
