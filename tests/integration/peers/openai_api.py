# SPDX-License-Identifier: Apache-2.0
"""The two OpenAI calls, as bytes: requests clients send, and answers engines give."""

import json
from dataclasses import dataclass

MODEL = "tiny"
DONE = b"data: [DONE]\n\n"
USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 4,
    "total_tokens": 24,
    "prompt_tokens_details": {"cached_tokens": 16},
}
# What the router writes behind the first "{" of a stream's body to learn its usage.
USAGE_ASK = b'"stream_options":{"include_usage":true},'


def sse(value):
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


@dataclass(frozen=True)
class Api:
    name: str  # as in the log's field "api"
    path: str
    kind: str  # of an event's "object"

    def request(self, text="Where is the samovar?", **fields):
        """A body as a client would send it."""
        if self.name == "chat":
            prompt = {"messages": [{"role": "user", "content": text}]}
        else:
            prompt = {"prompt": text}
        return json.dumps({"model": MODEL, **prompt, **fields}, ensure_ascii=False).encode()

    def _choice(self, text, finish):
        if self.name == "chat":
            delta = {"content": text} if text is not None else {}
            return {"index": 0, "delta": delta, "finish_reason": finish}
        return {"index": 0, "text": text or "", "finish_reason": finish}

    def _chunk(self, choices, **fields):
        return sse({"id": "c-1", "object": self.kind, "created": 1, "model": MODEL,
                    "choices": choices, **fields})

    def event(self, text):
        return self._chunk([self._choice(text, None)])

    def finish(self):
        return self._chunk([self._choice(None, "stop")])

    def usage_event(self, usage=None):
        return self._chunk([], usage=usage or USAGE)

    def stream(self, texts=("In", " the", " kitchen", "."), with_usage=False):
        """The events of a whole answer, [DONE] last."""
        events = [self.event(text) for text in texts] + [self.finish()]
        if with_usage:
            events.append(self.usage_event())
        return events + [DONE]

    def answer(self, text="In the kitchen.", usage=None):
        """A whole answer that is not streamed."""
        if self.name == "chat":
            choice = {"index": 0, "message": {"role": "assistant", "content": text},
                      "finish_reason": "stop"}
        else:
            choice = {"index": 0, "text": text, "finish_reason": "stop"}
        return json.dumps({"id": "c-1", "object": self.kind.removesuffix(".chunk"), "created": 1,
                           "model": MODEL, "choices": [choice], "usage": usage or USAGE},
                          ensure_ascii=False).encode()


CHAT = Api("chat", "/v1/chat/completions", "chat.completion.chunk")
COMPLETIONS = Api("completions", "/v1/completions", "text_completion")


def events_of(body):
    """The data of each event; fails where the stream is not made of whole events."""
    assert body.endswith(b"\n\n"), f"does not end between events: {body[-120:]!r}"
    return [event.removeprefix(b"data: ") for event in body.split(b"\n\n")[:-1]]
