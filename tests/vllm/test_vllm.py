# SPDX-License-Identifier: Apache-2.0
"""The real OpenAI client, the router, and two real engines.

Tests run in this order: the last ones kill engines. The answers are nonsense (random weights) but
the same at temperature 0, so a relayed answer can be compared with the engine's own.
"""

import concurrent.futures
import time

import anthropic
import httpx2
import openai
import pytest

from engines import BLOCK_TOKENS, MODEL, PREFILL_STEP_TOKENS, wait_until
from prompts import user, words

CANCEL_S = 1.0
# An error event in the stream is the client's own class; a cut connection is its transport's.
BROKEN_STREAM = (openai.APIError, anthropic.APIError, httpx2.TransportError)
LONG_ANSWER_TOKENS = 6000  # over ten seconds of decoding here
IN_FLIGHT = 50
WHOLE_TOKENS = 500
TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                       "required": ["city"]},
    },
}]


def engine_client(engine):
    return openai.OpenAI(base_url=f"{engine.url}/v1", api_key="unused", max_retries=0, timeout=60)


def chat(client, text="Hello", **fields):
    fields = {"model": MODEL, "max_tokens": 24, "temperature": 0, **fields}
    return client.chat.completions.create(messages=user(text), **fields)


def raw_chat(client, messages, **fields):
    """(answer, worker URL)"""
    raw = client.chat.completions.with_raw_response.create(
        messages=messages, **{"model": MODEL, "max_tokens": 24, "temperature": 0, **fields})
    return raw.parse(), raw.headers["x-samovar-worker"]


def text_of(chunks):
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def is_one_more_running(engines):
    return sum(engine.running() for engine in engines) == 1


def assert_all_idle_within(engines, timeout_s):
    started = time.monotonic()
    wait_until(lambda: not any(engine.running() for engine in engines), "engines idle", timeout_s)
    return time.monotonic() - started


# --- what an application does ---

@pytest.mark.smoke
def test_models_are_those_of_the_engines(client):
    listed = list(client.models.list())

    assert [model.id for model in listed] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.smoke
def test_a_chat_answer_is_the_engines_own(client, fleet):
    with engine_client(fleet.engines[0]) as direct:
        expected = chat(direct, "Tell me about rivers").choices[0].message.content

    answer = chat(client, "Tell me about rivers")

    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 24


@pytest.mark.smoke
def test_a_streamed_chat_says_the_same_in_pieces(client):
    whole = chat(client, "Tell me about lakes").choices[0].message.content

    chunks = list(chat(client, "Tell me about lakes", stream=True))

    assert text_of(chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.smoke
def test_usage_comes_on_a_stream_only_when_it_was_asked_for(client):
    silent = list(chat(client, stream=True))
    asked = list(chat(client, stream=True, stream_options={"include_usage": True}))

    assert all(chunk.choices and chunk.usage is None for chunk in silent)
    assert asked[-1].choices == [] and asked[-1].usage.completion_tokens == 24
    assert all(chunk.choices for chunk in asked[:-1])
    assert text_of(asked) == text_of(silent)  # not their number: a slow engine sends two in one


@pytest.mark.smoke
@pytest.mark.parametrize("prompt, choice_count", [
    ("Once upon a time", 1), (["Once upon", "a time"], 2), ([5, 6, 7, 8], 1),
    ([[5, 6, 7, 8], [9, 10, 11]], 2)], ids=["text", "texts", "ids", "lists-of-ids"])
def test_completions_take_every_form_of_prompt(client, prompt, choice_count):
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
    chunks = list(client.completions.create(model=MODEL, prompt=prompt, max_tokens=4,
                                            temperature=0, stream=True))

    texts = [""] * choice_count
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [choice.text for choice in answer.choices] == texts


@pytest.mark.smoke
def test_tools_are_offered_called_and_answered(client):
    answer = chat(client, "The weather?", tools=TOOLS, max_tokens=200,
                  tool_choice={"type": "function", "function": {"name": "get_weather"}})
    call = answer.choices[0].message.tool_calls[0]
    messages = user("The weather?") + [
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "rain"}]

    closing, _ = raw_chat(client, messages, tools=TOOLS)

    assert call.function.name == "get_weather"
    assert closing.choices[0].message.role == "assistant"


@pytest.mark.smoke
def test_a_streamed_tool_call_arrives_whole(client):
    chunks = list(chat(client, "The weather?", tools=TOOLS, max_tokens=200, stream=True,
                       tool_choice="required"))

    deltas = [c.choices[0].delta.tool_calls[0] for c in chunks
              if c.choices and c.choices[0].delta.tool_calls]
    # Random weights are free to fill in nonsense, but the grammar makes it a call of ours.
    assert deltas[0].function.name == "get_weather"
    assert chunks[-1].choices[0].finish_reason in ("tool_calls", "length")


# --- errors ---

@pytest.mark.smoke
@pytest.mark.parametrize("fields, error", [
    ({"model": "no-such-model"}, openai.NotFoundError),
    ({"temperature": -1}, openai.BadRequestError),
    ({"max_tokens": -5}, openai.BadRequestError),
    ({"tool_choice": "required"}, openai.BadRequestError),
    ({"extra_body": {"messages": "not a list"}}, openai.BadRequestError),
    ({"extra_body": {"messages": user(words(12000, "overlong"))}}, openai.BadRequestError),
], ids=["model", "temperature", "max-tokens", "tool-choice", "messages", "too-long"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_errors_are_the_clients_own_classes(client, fields, error, stream):
    with pytest.raises(error) as caught:
        chat(client, **fields, stream=stream)

    assert caught.value.message
    assert caught.value.response.headers["x-request-id"]


@pytest.mark.smoke
def test_an_endpoint_that_is_not_there_is_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="x")


# --- reuse: the point of it all ---

@pytest.mark.smoke
def test_a_second_turn_lands_where_the_first_one_left_its_prefix(client):
    for topic in ("apples", "boats", "clouds", "doors", "engines", "forests"):
        messages = user(words(400, topic))
        first, first_worker = raw_chat(client, messages)
        messages += [{"role": "assistant", "content": first.choices[0].message.content},
                     {"role": "user", "content": "And then?"}]

        second, second_worker = raw_chat(client, messages)

        assert second_worker == first_worker
        cached = second.usage.prompt_tokens_details.cached_tokens
        assert cached >= first.usage.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS - BLOCK_TOKENS


def test_many_conversations_stay_where_they_began_and_use_both_engines(new_router_client):
    conversations = [user(words(300 + 40 * i, f"topic{i}")) for i in range(12)]
    homes = [set() for _ in conversations]

    for _ in range(4):
        for messages, home in zip(conversations, homes):
            answer, worker = raw_chat(new_router_client, messages)
            home.add(worker)
            messages += [{"role": "assistant", "content": answer.choices[0].message.content},
                         {"role": "user", "content": "Go on."}]

    assert all(len(home) == 1 for home in homes)
    assert len(set().union(*homes)) == 2


def test_the_routers_prediction_agrees_with_the_engine(client, fleet):
    """Text blocks against token blocks: by the end of a conversation what the log line predicted
    is within two engine blocks of what the engine says it reused."""
    messages = user(words(900, "prediction"))
    for _ in range(5):
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=8, temperature=0)
        answer = raw.parse()
        messages += [{"role": "assistant", "content": answer.choices[0].message.content},
                     {"role": "user", "content": words(60, "next")}]

    line = fleet.router.request_line(raw.headers["x-request-id"])

    cached = answer.usage.prompt_tokens_details.cached_tokens
    assert line["cached_tokens"] == cached > 900
    assert abs(line["predicted_cached_tokens"] - cached) <= 2 * BLOCK_TOKENS


# --- clients that leave ---

@pytest.mark.smoke
def test_leaving_a_stream_stops_the_engine_within_a_second(client, fleet):
    assert_all_idle_within(fleet.engines, 10)
    stream = chat(client, "Talk on", max_tokens=LONG_ANSWER_TOKENS, stream=True)
    for _ in range(5):
        next(stream)
    assert is_one_more_running(fleet.engines)

    stream.close()

    assert_all_idle_within(fleet.engines, CANCEL_S)


@pytest.mark.smoke
def test_leaving_before_a_whole_answer_stops_the_engine_within_a_second(client, fleet):
    assert_all_idle_within(fleet.engines, 10)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(chat, client.with_options(timeout=4), "Talk on",
                            max_tokens=LONG_ANSWER_TOKENS)
        wait_until(lambda: is_one_more_running(fleet.engines), "the request runs", 4)
        with pytest.raises(openai.APITimeoutError):
            asked.result()

    assert_all_idle_within(fleet.engines, CANCEL_S)


def test_fifty_streams_left_at_all_stages_leave_nothing_running(client, fleet):
    def leave_after(count):
        with chat(client, words(100, f"leaver{count}"), max_tokens=400, stream=True) as stream:
            for _ in zip(range(count), stream):
                pass

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        list(pool.map(leave_after, range(50)))

    assert_all_idle_within(fleet.engines, CANCEL_S)


# --- engines that die: each test finds a whole fleet, and leaves it with dead ---

def begin_on(victim, begin):
    """A stream on that engine, its first event heard. Those that come to the other one go on until
    then, so that it is no better to be chosen."""
    others = []
    try:
        for i in range(20):
            stream = begin(words(20, f"begin{i}"))
            if stream.response.headers["x-samovar-worker"].rstrip("/") == victim.url:
                next(stream)
                return stream
            others.append(stream)
    finally:
        for other in others:
            other.close()
    raise AssertionError("no stream of twenty came to the victim")


@pytest.mark.smoke
def test_kill_9_of_an_engine_loses_nothing_that_had_not_begun_to_stream(client, fleet):
    with concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
        # One stream that has begun tells us whom to kill; the others have no byte yet. On a slow
        # machine not all of them have arrived by then: those meet a dying worker.
        stream = chat(client, "Talk on", max_tokens=LONG_ANSWER_TOKENS, stream=True)
        next(stream)
        victim = fleet.by_url(stream.response.headers["x-samovar-worker"])
        # Of every family one: each client must say that its stream broke.
        claude = anthropic.Anthropic(base_url=fleet.router.url, api_key="unused", max_retries=0)
        begun = [
            stream,
            begin_on(victim, lambda text: client.responses.create(
                model=MODEL, input=text, max_output_tokens=LONG_ANSWER_TOKENS, stream=True)),
            begin_on(victim, lambda text: claude.messages.create(
                model=MODEL, messages=user(text), max_tokens=LONG_ANSWER_TOKENS, stream=True)),
        ]
        asked = [pool.submit(chat, client, words(60, f"whole{i}"), max_tokens=WHOLE_TOKENS)
                 for i in range(IN_FLIGHT)]
        wait_until(lambda: victim.running() > IN_FLIGHT / 5, "the victim has its share", 20)

        victim.kill()

        for stream in begun:
            with pytest.raises(BROKEN_STREAM):
                for _ in stream:
                    pass
        claude.close()
        answers = [future.result() for future in asked]
    assert [answer.usage.completion_tokens for answer in answers] == [WHOLE_TOKENS] * IN_FLIGHT
    assert sum(line.get("attempts") == 2 for line in fleet.router.request_lines()) > IN_FLIGHT / 10
    fleet.router.wait_up(1)
    assert chat(client).usage.completion_tokens == 24


def test_a_dead_engines_stream_begun_by_nobody_begins_elsewhere(client, fleet):
    """The same for streams: those without a first byte are begun again on the living engine."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        busy = chat(client, "Talk on", max_tokens=LONG_ANSWER_TOKENS, stream=True)
        next(busy)
        victim = fleet.by_url(busy.response.headers["x-samovar-worker"])

        def read_stream(i):
            """(chunks that came, the error that ended it)"""
            count = 0
            try:
                for _ in chat(client, words(1500, f"stream{i}"), max_tokens=20, stream=True):
                    count += 1
            except BROKEN_STREAM as error:
                return count, error
            return count, None

        asked = [pool.submit(read_stream, i) for i in range(12)]
        wait_until(lambda: victim.running() >= 2, "the victim has work", 20)
        victim.kill()
        outcomes = [future.result() for future in asked]

    assert [count for count, error in outcomes if error is not None and count == 0] == []
    assert any(error is None for _, error in outcomes)


POISON = {"extra_body": {"seed": 1}, "temperature": 1}


def poison_text():
    """A seeded prompt of more than one prefill step ends vLLM 0.32 on a CPU ("CPU Generator does
    not use offset")."""
    return words(2 * PREFILL_STEP_TOKENS, "poison")


def dead_engines(fleet):
    time.sleep(1)  # a second death would take this long to show in its health
    return [engine for engine in fleet.engines if not engine.is_alive()]


@pytest.mark.smoke
def test_a_request_that_kills_its_engine_does_not_walk_through_the_fleet(client, fleet):
    """The client here retries as the real one does by itself: it must be told not to. An engine
    that still answers 500 with its last breath is one death; one that just dies may cost one more,
    and is then 502."""
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client.with_options(max_retries=2), poison_text(), **POISON)

    assert caught.value.response.headers.get("x-should-retry") == "false"
    assert caught.value.status_code in (500, 502)
    assert 1 <= len(dead_engines(fleet)) <= (1 if caught.value.status_code == 500 else 2)


def test_a_stream_that_kills_its_engine_is_told_so_and_not_begun_again(client, fleet):
    """Here the engine's last breath is an event of a stream that began with 200. Its server lives
    on for some seconds, free as no other, and tells everybody so: three may hear it until the
    router has understood."""
    with pytest.raises(BROKEN_STREAM):
        list(chat(client.with_options(max_retries=2), poison_text(), stream=True, **POISON))

    lost = []
    for i in range(20):
        try:
            assert list(chat(client, words(30, f"behind{i}"), stream=True))
        except BROKEN_STREAM as error:
            lost.append(error)
    assert len(lost) <= 3
    assert len(dead_engines(fleet)) == 1
