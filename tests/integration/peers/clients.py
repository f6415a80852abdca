# SPDX-License-Identifier: Apache-2.0
"""
The official clients: every call that an application makes, in one form. A Call is one method of one client. Whether that client waits or awaits, and whether the answer
comes whole or in pieces, call.make() returns what was said and keeps what it has heard so far, so
that a test can ask the same of all of them.
"""

import inspect

import anthropic
import openai

from peers.openai_api import MODEL

QUESTION = "Where is the samovar of the house?"
ASK = [{"role": "user", "content": QUESTION}]
TOKENS = 8


def openai_options(url):
    return {"base_url": f"{url}/v1", "api_key": "unused"}


def anthropic_options(url):
    return {"base_url": url, "api_key": "unused"}


class Sdk:
    """A package: its two clients, and the classes of its errors."""

    def __init__(self, package, sync_client, async_client, sync_http, async_http, options):
        self.name, self.options = package.__name__, options
        self.api_error = package.APIError
        self.clients = {False: (sync_client, sync_http), True: (async_client, async_http)}

    def client(self, url, is_async, **options):
        """Without retries of its own unless told: what the router does is what is judged."""
        kind, http = self.clients[is_async]
        # Certificates are not read: they cost more than all the rest of a call here.
        return kind(http_client=http(verify=False),
                    **{"max_retries": 0, **self.options(url), **options})


OPENAI = Sdk(openai, openai.OpenAI, openai.AsyncOpenAI, openai.DefaultHttpxClient,
             openai.DefaultAsyncHttpxClient, openai_options)
ANTHROPIC = Sdk(anthropic, anthropic.Anthropic, anthropic.AsyncAnthropic,
                anthropic.DefaultHttpxClient, anthropic.DefaultAsyncHttpxClient,
                anthropic_options)


async def settled(value):
    """Of a client that awaits: what it promised. Of the other: what it gave."""
    return await value if inspect.isawaitable(value) else value


async def each(things):
    if hasattr(things, "__aiter__"):
        async for thing in things:
            yield thing
    else:
        for thing in things:
            yield thing


class Call:
    def __init__(self, sdk, name, is_stream, start, piece_of, is_local=False,
                 is_idempotent=False):
        """start(client, extra) makes the request; piece_of(answer or event): what it says.
        is_local: the router answers it itself. is_idempotent: no engine generates for it."""
        self.sdk, self.name, self.is_stream = sdk, name, is_stream
        self.start, self.piece_of = start, piece_of
        self.is_local, self.is_idempotent = is_local, is_idempotent

    async def make(self, client, heard, is_left_early=False, **extra):
        """Returns all that was heard. is_left_early: closes a stream behind its first word."""
        answer = await settled(self.start(client, extra))
        if not self.is_stream:
            heard.append(self.piece_of(answer))
            return heard
        async for event in each(answer):
            piece = self.piece_of(event)
            if piece:
                heard.append(piece)
            if piece and is_left_early:
                await settled(answer.close())
                break
        return heard


class HelperCall(Call):
    """A stream that is a context manager."""

    async def make(self, client, heard, is_left_early=False, **extra):
        manager = self.start(client, extra)
        if hasattr(manager, "__aenter__"):
            async with manager as stream:
                return await self._listen(stream, heard, is_left_early)
        with manager as stream:
            return await self._listen(stream, heard, is_left_early)

    async def _listen(self, stream, heard, is_left_early):
        async for event in each(stream):
            piece = self.piece_of(event)
            if piece:
                heard.append(piece)
            if piece and is_left_early:
                break
        return heard


def chat(client, extra):
    return client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=TOKENS, **extra)


def completions(client, extra):
    return client.completions.create(model=MODEL, prompt=QUESTION, max_tokens=TOKENS, **extra)


def responses(client, extra):
    return client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=TOKENS, **extra)


def embeddings(client, extra):
    return client.embeddings.create(model=MODEL, input=QUESTION, **extra)


def messages(client, extra):
    return client.messages.create(model=MODEL, messages=ASK, max_tokens=TOKENS, **extra)


def streamed(start):
    return lambda client, extra: start(client, {"stream": True, **extra})


def response_delta(event):
    return event.delta if event.type == "response.output_text.delta" else ""


def message_delta(event):
    is_text = event.type == "content_block_delta" and event.delta.type == "text_delta"
    return event.delta.text if is_text else ""


CALLS = [
    Call(OPENAI, "chat.completions.create", False, chat,
         lambda answer: answer.choices[0].message.content),
    Call(OPENAI, "chat.completions.create(stream)", True, streamed(chat),
         lambda chunk: chunk.choices[0].delta.content),
    Call(OPENAI, "completions.create", False, completions, lambda answer: answer.choices[0].text),
    Call(OPENAI, "completions.create(stream)", True, streamed(completions),
         lambda chunk: chunk.choices[0].text),
    Call(OPENAI, "responses.create", False, responses, lambda answer: answer.output_text),
    Call(OPENAI, "responses.create(stream)", True, streamed(responses), response_delta),
    HelperCall(OPENAI, "responses.stream", True, lambda client, extra: client.responses.stream(
        model=MODEL, input=QUESTION, max_output_tokens=TOKENS, **extra), response_delta),
    Call(OPENAI, "embeddings.create", False, embeddings,
         lambda answer: tuple(answer.data[0].embedding), is_idempotent=True),
    Call(OPENAI, "models.list", False, lambda client, extra: client.models.list(**extra),
         lambda page: tuple(model.id for model in page.data), is_local=True),
    Call(ANTHROPIC, "messages.create", False, messages, lambda answer: answer.content[0].text),
    Call(ANTHROPIC, "messages.create(stream)", True, streamed(messages), message_delta),
    HelperCall(ANTHROPIC, "messages.stream", True, lambda client, extra: client.messages.stream(
        model=MODEL, messages=ASK, max_tokens=TOKENS, **extra), message_delta),
    Call(ANTHROPIC, "messages.count_tokens", False,
         lambda client, extra: client.messages.count_tokens(model=MODEL, messages=ASK, **extra),
         lambda answer: answer.input_tokens, is_idempotent=True),
]
