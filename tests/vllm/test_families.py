# SPDX-License-Identifier: Apache-2.0
"""Chat, responses and messages through the official clients, the router, and two real engines: that
each family is relayed as the engine speaks it, and that each finds its prefix again.

Nothing is killed here; what happens to streams of each family then is in test_vllm.py.
"""

import asyncio

import anthropic
import openai
import pytest

from engines import BLOCK_TOKENS, MODEL, wait_until
from prompts import user, words

ANSWER_TOKENS = 16
LONG_ANSWER_TOKENS = 6000
CANCEL_S = 1.0
SCHEMA = {"type": "object", "properties": {"cups": {"type": "integer", "enum": [2]}},
          "required": ["cups"]}


@pytest.fixture
def claude(fleet):
    """The anthropic client, without its own retries."""
    with anthropic.Anthropic(base_url=fleet.router.url, api_key="unused", max_retries=0,
                             timeout=60) as client:
        yield client


# --- one turn of a conversation, in each family: (text, headers, all prompt tokens, cached ones) ---

def chat_turn(clients, messages):
    raw = clients["openai"].chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, max_tokens=ANSWER_TOKENS, temperature=0)
    usage = raw.parse().usage
    return (raw.parse().choices[0].message.content, raw.headers, usage.prompt_tokens,
            usage.prompt_tokens_details.cached_tokens)


def response_turn(clients, messages):
    raw = clients["openai"].responses.with_raw_response.create(
        model=MODEL, input=messages, max_output_tokens=ANSWER_TOKENS, temperature=0)
    usage = raw.parse().usage
    return (raw.parse().output_text, raw.headers, usage.input_tokens,
            usage.input_tokens_details.cached_tokens)


def message_turn(clients, messages):
    raw = clients["anthropic"].messages.with_raw_response.create(
        model=MODEL, messages=messages, max_tokens=ANSWER_TOKENS, extra_body={"temperature": 0})
    usage = raw.parse().usage
    cached = usage.cache_read_input_tokens
    return (raw.parse().content[0].text, raw.headers,
            usage.input_tokens + cached + usage.cache_creation_input_tokens, cached)


@pytest.fixture
def clients(client, claude):
    return {"openai": client, "anthropic": claude}


@pytest.mark.smoke
@pytest.mark.parametrize("turn", [chat_turn, response_turn, message_turn],
                         ids=["chat", "responses", "messages"])
def test_a_second_turn_hits_the_cache_as_predicted_in_every_family(clients, fleet, turn):
    for topic in ("kettles", "ladles", "mugs"):
        messages = user(words(400, f"{topic}-{turn.__name__}"))
        text, first, prompt_tokens, _ = turn(clients, messages)
        messages += [{"role": "assistant", "content": text},
                     {"role": "user", "content": "And then?"}]

        _, second, _, cached = turn(clients, messages)

        assert second["x-samovar-worker"] == first["x-samovar-worker"]
        assert cached >= prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS - BLOCK_TOKENS
        line = fleet.router.request_line(second["x-request-id"])
        assert line["cached_tokens"] == cached
        assert abs(line["predicted_cached_tokens"] - cached) <= cached / 4


# --- responses ---

def respond(client, text="Tell me about rivers", **fields):
    return client.responses.create(**{"model": MODEL, "input": text, "temperature": 0,
                                      "max_output_tokens": ANSWER_TOKENS, **fields})


@pytest.mark.smoke
def test_a_response_is_the_engines_own(client, fleet):
    with openai.OpenAI(base_url=f"{fleet.engines[0].url}/v1", api_key="unused") as direct:
        expected = respond(direct).output_text

    answer = respond(client)

    assert answer.output_text == expected
    assert answer.status == "incomplete" and answer.usage.output_tokens == ANSWER_TOKENS


@pytest.mark.smoke
def test_a_streamed_response_says_the_same_and_comes_to_its_last_event(client):
    whole = respond(client).output_text

    events = list(respond(client, stream=True))

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert "".join(event.delta for event in events
                   if event.type == "response.output_text.delta") == whole
    assert events[-1].response.output_text == whole


@pytest.mark.smoke
def test_a_response_is_gone_on_from_where_it_is_stored(client):
    """Only one of the engines knows it: were the next turn sent to the other, it would be a 404."""
    for topic in ("ovens", "pans", "quinces", "racks", "spoons"):
        raw = client.responses.with_raw_response.create(
            model=MODEL, input=words(200, topic), max_output_tokens=ANSWER_TOKENS, temperature=0)
        first = raw.parse()

        stored = client.responses.retrieve(first.id)
        second = client.responses.with_raw_response.create(
            model=MODEL, input="And then?", previous_response_id=first.id,
            max_output_tokens=ANSWER_TOKENS, temperature=0)
        streamed = list(respond(client, "And then?", previous_response_id=first.id, stream=True))

        assert stored.output_text == first.output_text
        assert second.headers["x-samovar-worker"] == raw.headers["x-samovar-worker"]
        assert second.parse().usage.input_tokens_details.cached_tokens > 100
        assert streamed[-1].response.output_text == second.parse().output_text


def test_a_streamed_response_is_stored_too(client):
    for topic in ("towels", "urns"):
        first = list(respond(client, words(100, topic), stream=True))[-1].response

        second = respond(client, "And then?", previous_response_id=first.id)

        assert client.responses.retrieve(first.id).output_text == first.output_text
        assert second.usage.input_tokens > first.usage.input_tokens


@pytest.mark.smoke
def test_a_response_that_nobody_has_is_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_nobody")
    with pytest.raises(openai.NotFoundError):
        respond(client, previous_response_id="resp_nobody")


def test_a_response_calls_a_function(client):
    answer = respond(client, "Two cups.", max_output_tokens=120,
                     tools=[{"type": "function", "name": "get_tea", "parameters": SCHEMA,
                             "strict": True}],
                     tool_choice={"type": "function", "name": "get_tea"})

    assert answer.output[0].type == "function_call" and answer.output[0].name == "get_tea"


# --- messages ---

def say(client, text="Tell me about rivers", **fields):
    return client.messages.create(**{"model": MODEL, "messages": user(text),
                                     "max_tokens": ANSWER_TOKENS,
                                     "extra_body": {"temperature": 0}, **fields})


@pytest.mark.smoke
def test_a_message_is_the_engines_own(claude, fleet):
    with anthropic.Anthropic(base_url=fleet.engines[0].url, api_key="unused") as direct:
        expected = say(direct).content[0].text

    answer = say(claude)

    assert answer.content[0].text == expected
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == ANSWER_TOKENS


@pytest.mark.smoke
def test_a_streamed_message_says_the_same(claude):
    whole = say(claude).content[0].text

    with claude.messages.stream(model=MODEL, messages=user("Tell me about rivers"),
                                max_tokens=ANSWER_TOKENS,
                                extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()

    assert text == whole
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == ANSWER_TOKENS


@pytest.mark.smoke
def test_tokens_are_counted_as_they_are_used(claude):
    counted = claude.messages.count_tokens(model=MODEL, system="Be brief.",
                                           messages=user(words(50, "counting")))

    used = say(claude, words(50, "counting"), system="Be brief.").usage

    assert counted.input_tokens == (used.input_tokens + used.cache_read_input_tokens +
                                    used.cache_creation_input_tokens)


def test_a_message_uses_a_tool(claude):
    answer = say(claude, "Two cups.", max_tokens=120,
                 tools=[{"name": "get_tea", "input_schema": SCHEMA, "strict": True}],
                 tool_choice={"type": "tool", "name": "get_tea"})

    assert answer.stop_reason == "tool_use"
    assert answer.content[0].name == "get_tea" and answer.content[0].input == {"cups": 2}


@pytest.mark.smoke
@pytest.mark.parametrize("fields, error", [
    ({"model": "no-such-model"}, anthropic.NotFoundError),
    ({"messages": []}, anthropic.BadRequestError),
    ({"max_tokens": 100000}, anthropic.BadRequestError),
], ids=["model", "messages", "max-tokens"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_errors_of_messages_are_the_clients_own_classes(claude, fields, error, stream):
    with pytest.raises(error) as caught:
        say(claude, **fields, stream=stream)

    assert caught.value.request_id and caught.value.message


# --- all of them ---

def test_clients_that_await_get_whole_streams_side_by_side(fleet):
    async def responses(client, number):
        stream = await client.responses.create(
            model=MODEL, input=words(40, f"await{number}"), max_output_tokens=ANSWER_TOKENS,
            temperature=0, stream=True)
        return [event async for event in stream][-1].response.usage.output_tokens

    async def messages(client, number):
        async with client.messages.stream(
                model=MODEL, messages=user(words(40, f"await{number}")),
                max_tokens=ANSWER_TOKENS) as stream:
            return (await stream.get_final_message()).usage.output_tokens

    async def chats(client, number):
        stream = await client.chat.completions.create(
            model=MODEL, messages=user(words(40, f"await{number}")), max_tokens=ANSWER_TOKENS,
            stream=True, stream_options={"include_usage": True})
        return [chunk async for chunk in stream][-1].usage.completion_tokens

    async def ask_all():
        url = fleet.router.url
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused") as gpt, \
                anthropic.AsyncAnthropic(base_url=url, api_key="unused") as claude:
            return await asyncio.gather(
                *(responses(gpt, number) for number in range(4)),
                *(messages(claude, number) for number in range(4)),
                *(chats(gpt, number) for number in range(4)))

    assert asyncio.run(ask_all()) == [ANSWER_TOKENS] * 12


@pytest.mark.parametrize("begin", [
    lambda clients: respond(clients["openai"], "Talk on", stream=True,
                            max_output_tokens=LONG_ANSWER_TOKENS),
    lambda clients: say(clients["anthropic"], "Talk on", stream=True,
                        max_tokens=LONG_ANSWER_TOKENS),
], ids=["responses", "messages"])
def test_leaving_a_stream_stops_the_engine_in_every_family(clients, fleet, begin):
    stream = begin(clients)
    for _ in range(6):
        next(stream)
    assert sum(engine.running() for engine in fleet.engines) == 1

    stream.close()

    wait_until(lambda: not any(engine.running() for engine in fleet.engines), "engines idle",
               CANCEL_S)
