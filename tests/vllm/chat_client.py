# SPDX-License-Identifier: Apache-2.0
"""A chat client in the standard library: what a turn says, as its client would send it back. The
official clients cost more per request than the engines of some experiments."""

import http.client
import json
import time


class ChatClient:
    """One thread's connection to each router it asks."""

    def __init__(self, routers, model, timeout_s=120):
        self.routers, self.model, self.timeout_s = routers, model, timeout_s
        self.connections = {}

    def close(self):
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()

    def ask(self, router, body, request_id):
        """(the assistant's message, seconds to its first byte of content); the message is None
        where the answer is no answer."""
        connection = self.connections.get(router.port)
        if connection is None:
            connection = self.connections[router.port] = http.client.HTTPConnection(
                "127.0.0.1", router.port, timeout=self.timeout_s)
        began = time.monotonic()
        try:
            connection.request("POST", "/v1/chat/completions",
                               json.dumps({"model": self.model, **body}),
                               {"Content-Type": "application/json", "X-Request-Id": request_id})
            answer = connection.getresponse()
            if answer.status != 200:
                return None, answer.read()[:500].decode(errors="replace")
            if not body.get("stream"):
                message = json.loads(answer.read())["choices"][0]["message"]
                return sent_back(message), time.monotonic() - began
            return read_stream(answer, began)
        except (OSError, http.client.HTTPException) as error:
            self.connections.pop(router.port).close()
            return None, repr(error)


def sent_back(message):
    """What clients keep of an answer: its content and its calls, not its reasoning."""
    kept = {"role": "assistant", "content": message.get("content") or ""}
    if message.get("tool_calls"):
        kept["tool_calls"] = message["tool_calls"]
    return kept


def read_stream(answer, began):
    content, calls, first_s = "", {}, None
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            return None, line[:500].decode(errors="replace")
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            if first_s is None and any(delta.get(key) for key in ("content", "reasoning",
                                                                  "reasoning_content", "tool_calls")):
                first_s = time.monotonic() - began
            content += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                kept = calls.setdefault(call["index"], {
                    "id": "", "type": "function", "function": {"name": "", "arguments": ""}})
                kept["id"] = call.get("id") or kept["id"]
                for key, text in (call.get("function") or {}).items():
                    kept["function"][key] += text or ""
    message = {"role": "assistant", "content": content, "tool_calls": list(calls.values())}
    return sent_back(message), first_s or time.monotonic() - began
