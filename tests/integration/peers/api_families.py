# SPDX-License-Identifier: Apache-2.0
"""The calls beside chat and completions, as bytes: requests, answers, streams and errors of each."""

import json
from dataclasses import dataclass

from peers.openai_api import CHAT, COMPLETIONS, MODEL


def named(kind, **fields):
    """An event with its name, as responses and messages have them."""
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def parse_event(event):
    """(name, data) of one event's bytes; the name is None where it has none."""
    lines = event.decode().strip("\n").split("\n")
    fields = dict(line.split(": ", 1) for line in lines)
    assert len(fields) == len(lines), f"a field twice: {event!r}"
    return fields.get("event"), json.loads(fields["data"])


@dataclass(frozen=True)
class Responses:
    name: str = "responses"
    path: str = "/v1/responses"

    def request(self, text="Where is the samovar?", **fields):
        return json.dumps({"model": MODEL, "input": text, **fields}, ensure_ascii=False).encode()

    def response(self, status, text="In the kitchen.", response_id="resp_1"):
        output = [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                   "content": [{"type": "output_text", "text": text, "annotations": []}]}]
        is_done = status == "completed"
        return {"id": response_id, "object": "response", "created_at": 1, "model": MODEL,
                "status": status, "output": output if is_done else [], "parallel_tool_calls": True,
                "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None,
                "instructions": None, "metadata": None, "temperature": 1, "top_p": 1,
                "usage": {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 16},
                          "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 0},
                          "total_tokens": 24} if is_done else None}

    def answer(self, text="In the kitchen.", response_id="resp_1"):
        return json.dumps(self.response("completed", text, response_id)).encode()

    def stream(self, texts=("In", " the", " kitchen."), response_id="resp_1"):
        """The events of a whole answer; the number of each is its place."""
        created = self.response("in_progress", response_id=response_id)
        events = [("response.created", {"response": created})]
        events += [("response.output_text.delta",
                    {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": text,
                     "logprobs": []}) for text in texts]
        whole = self.response("completed", "".join(texts), response_id)
        events.append(("response.completed", {"response": whole}))
        return [named(kind, sequence_number=number, **fields)
                for number, (kind, fields) in enumerate(events)]


@dataclass(frozen=True)
class Messages:
    name: str = "messages"
    path: str = "/v1/messages"

    def request(self, text="Where is the samovar?", **fields):
        return json.dumps({"model": MODEL, "max_tokens": 64,
                           "messages": [{"role": "user", "content": text}], **fields},
                          ensure_ascii=False).encode()

    def _message(self, content, **fields):
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL,
                "content": content, "stop_reason": None, "stop_sequence": None,
                "usage": {"input_tokens": 4, "cache_read_input_tokens": 16,
                          "cache_creation_input_tokens": 0, "output_tokens": 1}, **fields}

    def answer(self, text="In the kitchen."):
        message = self._message([{"type": "text", "text": text}], stop_reason="end_turn")
        return json.dumps(message).encode()

    def stream(self, texts=("In", " the", " kitchen.")):
        events = [named("message_start", message=self._message([])),
                  named("content_block_start", index=0, content_block={"type": "text", "text": ""})]
        events += [named("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
                   for text in texts]
        return events + [named("content_block_stop", index=0),
                         named("message_delta", delta={"stop_reason": "end_turn",
                                                       "stop_sequence": None},
                               usage={"output_tokens": 4}),
                         named("message_stop")]


@dataclass(frozen=True)
class Compute:
    """A call that gives one answer from its whole input."""
    name: str
    path: str
    input: str  # its request, beside the model
    output: str

    def request(self, **fields):
        return json.dumps({"model": MODEL, **json.loads(self.input), **fields}).encode()

    def answer(self):
        return self.output.encode()


RESPONSES = Responses()
MESSAGES = Messages()
STREAMED = [CHAT, COMPLETIONS, RESPONSES, MESSAGES]

_RANK = ('{"query":"tea","documents":["a","b"]}', '{"id":"r","results":[{"index":0}]}')
_SCORE = ('{"text_1":"tea","text_2":["a","b"]}', '{"id":"s","data":[{"index":0,"score":0.5}]}')
_TOKENIZE = ('{"prompt":"tea"}', '{"count":1,"max_model_len":4096,"tokens":[7]}')
_DETOKENIZE = ('{"tokens":[7]}', '{"prompt":"tea"}')
EMBEDDINGS = Compute("embeddings", "/v1/embeddings", '{"input":["a","b"]}',
                     '{"object":"list","data":[{"embedding":[0.5],"index":0}]}')
COUNT_TOKENS = Compute("count_tokens", "/v1/messages/count_tokens",
                       '{"messages":[{"role":"user","content":"tea"}]}', '{"input_tokens":3}')
COMPUTE = [
    EMBEDDINGS,
    COUNT_TOKENS,
    *(Compute("rerank", path, *_RANK) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    *(Compute("score", path, *_SCORE) for path in ("/score", "/v1/score")),
    *(Compute("tokenize", path, *_TOKENIZE) for path in ("/tokenize", "/v1/tokenize")),
    *(Compute("detokenize", path, *_DETOKENIZE) for path in ("/detokenize", "/v1/detokenize")),
]
EVERY = STREAMED + COMPUTE

ANTHROPIC = ("messages", "count_tokens")


def api_id(api):
    return api.path.strip("/").replace("/", "-")


def check_error(api, answer):
    """An error as the API's own clients read it, whole: JSON, all keys, ids. Returns (type,
    message, code); code is None where the family has no place for one."""
    assert answer.get("content-type") == "application/json", answer.head.fields
    request_id = answer.get("x-request-id")
    assert request_id
    body = json.loads(answer.read_all())
    if api.name not in ANTHROPIC:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return body["error"]["type"], body["error"]["message"], body["error"]["code"]
    assert answer.get("request-id") == request_id
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error" and body["request_id"] == request_id
    assert set(body["error"]) == {"type", "message"}
    return body["error"]["type"], body["error"]["message"], None


def check_error_event(api, event, sequence_number=0):
    """The last event of a stream that failed, in the API's own form. Returns its error's type."""
    name, data = parse_event(event)
    if api.name in ANTHROPIC:
        assert name == "error"
        assert set(data) == {"type", "error", "request_id"} and data["type"] == "error"
        assert set(data["error"]) == {"type", "message"}
        return data["error"]["type"]
    assert set(data["error"]) == {"message", "type", "param", "code"}
    if api.name == "responses":
        assert name == "error"
        assert data["type"] == "error"
        assert data["sequence_number"] == sequence_number
        assert (data["code"], data["message"]) == (data["error"]["code"], data["error"]["message"])
    else:
        assert name is None
        assert set(data) == {"error"}
    return data["error"]["type"]
