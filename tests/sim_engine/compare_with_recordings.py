#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Sends the recorded requests of a real vLLM to samovar-sim and compares the shapes of the answers:
status, headers, the paths and types of JSON, the events of streams, the error's type, param and
code. Values (text, counts, ids) differ by nature: the model and its tokenizer are others.

usage: compare_with_recordings.py SAMOVAR_SIM RECORDINGS_DIR        exit 1 when a shape differs
"""

import json
import pathlib
import re
import socket
import subprocess
import sys

# The recorded server's geometry (fixtures README).
SIM_FLAGS = ["--port", "0", "--model", "tiny", "--blocks", "64", "--block-size", "32",
             "--max-model-len", "1024", "--speedup", "10"]

# What samovar-sim does otherwise on purpose: recording -> (reason, what is let pass).
#   answer: compare with this recording's answer instead
#   more / fewer: JSON paths that may be there in addition / may lack
#   param: the error may name another parameter
TOOLS_REASON = "it always has a tool parser: answers are those of vLLM with the parser flags"
CALL_PATHS = [".choices[].message.tool_calls" + rest for rest in (
    "", "[]", "[].id", "[].type", "[].function", "[].function.name", "[].function.arguments")]
LENGTH_REASON = "characters are not counted before tokens"
EXCEPTIONS = {
    "chat-tools-auto": (TOOLS_REASON, {"answer": "flags-chat-tools-auto",
                                       "more_type": {".choices[].token_ids": "null",
                                                     ".prompt_token_ids": "null"}}),
    "chat-tools-required": (TOOLS_REASON + "; the recorded call was cut by max_tokens",
                            {"answer": "flags-chat-tools-required", "more": CALL_PATHS}),
    "flags-chat-tools-required": ("the recorded call was cut by max_tokens",
                                  {"more": CALL_PATHS}),
    "err-context-too-long-chat": (LENGTH_REASON, {"param": True}),
    "err-detokenize-text": ("the place in the array is not told", {"param": True}),
    "err-responses-too-long": (LENGTH_REASON, {"param": True}),
}

# Recordings that say something samovar-sim does not do at all.
SKIPPED = {
    "flags-force-usage-stream": "there is no --enable-force-include-usage",
    "generate-embeddings": "it generates and embeds: both, where vLLM does what it was started for",
    "tokenize-prompt-strs": "its ids are digests: there are no token_strs",
}

# Only with --enable-request-id-headers, a flag of the recorded second server.
HEADERS_OF_FLAGS = {"x-request-id"}

# Headers whose values are compared too.
EXACT_HEADERS = {"server", "content-type", "vary", "connection", "transfer-encoding", "allow"}


def exchange(port, request):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


def dechunk(body):
    text = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        count = int(size, 16)
        if count == 0:
            assert body == b"\r\n", f"after the last chunk: {body!r}"
            return text
        assert body[count:count + 2] == b"\r\n", "a chunk without its end"
        text += body[:count]
        body = body[count + 2:]


class Answer:
    def __init__(self, raw):
        self.has_interim = raw.startswith(b"HTTP/1.1 100 ")
        if self.has_interim:
            raw = raw.partition(b"\r\n\r\n")[2]
        head, _, body = raw.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = lines[0]
        self.headers = [tuple(line.split(": ", 1)) for line in lines[1:]]
        values = dict(self.headers)
        self.type = values.get("content-type", "")
        if values.get("transfer-encoding") == "chunked":
            body = dechunk(body)
        else:
            assert int(values["content-length"]) == len(body), "content-length is not the length"
        self.body = body.decode()

    def header_shape(self):
        return [(name, value if name in EXACT_HEADERS else "*") for name, value in self.headers
                if name not in HEADERS_OF_FLAGS]


def type_name(value):
    return {dict: "object", list: "array", str: "string", bool: "bool", type(None): "null"}.get(
        type(value), "number")


def shape(value, path=""):
    """{path: types} of a JSON value; the elements of an array share a path."""
    paths = {path: {type_name(value)}}
    children = ([(path + "." + key, child) for key, child in value.items()]
                if isinstance(value, dict) else
                [(path + "[]", child) for child in value] if isinstance(value, list) else [])
    for child_path, child in children:
        for at, types in shape(child, child_path).items():
            paths.setdefault(at, set()).update(types)
    return paths


def event_shapes(body):
    """[(shape, how many events have it)], in order of first appearance. Of an event that has a name
    the name is part of the shape; deltas with a name are not counted: a slow engine tells two
    tokens in one."""
    counts = {}
    assert body.endswith("\n\n"), "the last event is not ended"
    for event in body.removesuffix("\n\n").split("\n\n"):
        name, _, data = event.rpartition("data: ")
        assert name == "" or re.fullmatch(r"event: [a-z_.]+\n", name), f"no event: {event!r}"
        key = name + (data if data == "[DONE]" else repr(sorted(
            (path, sorted(types)) for path, types in shape(json.loads(data)).items())))
        counts[key] = 0 if name.endswith("delta\n") else counts.get(key, 0) + 1
    return list(counts.items())


def assert_numbered(body):
    """The events of a response count from 0."""
    numbers = re.findall(r'"sequence_number":(\d+)', body)
    assert [int(number) for number in numbers] == list(range(len(numbers))), numbers


def metric_shapes(body):
    """{name: label names} and {name: kind}."""
    labels, kinds = {}, {}
    for line in body.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            kinds[name] = kind
        elif not line.startswith("#"):
            name, text = re.match(r"([^{]+)\{(.*)\} ", line).groups()
            labels.setdefault(name, set()).update(re.findall(r'(\w+)="', text))
    return labels, kinds


def compare_json(ours, theirs, allowed):
    ours, theirs = shape(json.loads(ours)), shape(json.loads(theirs))
    more_type = allowed.get("more_type", {})
    for path in sorted(ours.keys() | theirs.keys()):
        if path not in theirs and path not in allowed.get("more", []):
            yield f"{path} is not in the recording"
        elif path not in ours:
            if path.removesuffix("[]") not in more_type:
                yield f"{path} is missing"
        elif path in theirs and ours[path] != theirs[path] and ours[path] != {more_type.get(path)}:
            yield f"{path} is {sorted(ours[path])}, recorded {sorted(theirs[path])}"


def compare_errors(ours, theirs, allowed):
    ours, theirs = json.loads(ours).get("error"), json.loads(theirs).get("error")
    for key in ("type", "param", "code") if ours and theirs else ():
        if ours.get(key) != theirs.get(key) and not (key == "param" and "param" in allowed):
            yield f"error.{key} is {ours[key]!r}, recorded {theirs[key]!r}"


def compare_metrics(ours, theirs):
    """Each metric of ours must be one of theirs; they have many more."""
    (our_labels, our_kinds), (their_labels, their_kinds) = map(metric_shapes, (ours, theirs))
    for name, labels in our_labels.items():
        if name not in their_labels:
            yield f"metric {name} is not in the recording"
        elif not labels <= their_labels[name]:
            yield f"metric {name} has labels {sorted(labels - their_labels[name])} of its own"
        elif our_kinds[name] != their_kinds[name]:
            yield f"metric {name} is a {our_kinds[name]}"


def compare(ours, theirs, allowed):
    if ours.status != theirs.status:
        yield f"status {ours.status!r}, recorded {theirs.status!r}"
    if ours.has_interim != theirs.has_interim:
        yield "100 Continue"
    if ours.header_shape() != theirs.header_shape():
        yield f"headers {ours.header_shape()}, recorded {theirs.header_shape()}"
    if ours.type != theirs.type:
        return
    if ours.type.startswith("application/json"):
        yield from compare_json(ours.body, theirs.body, allowed)
        yield from compare_errors(ours.body, theirs.body, allowed)
    elif ours.type.startswith("text/event-stream"):
        assert_numbered(ours.body)
        if event_shapes(ours.body) != event_shapes(theirs.body):
            yield f"events {event_shapes(ours.body)}, recorded {event_shapes(theirs.body)}"
    elif ours.type.startswith("text/plain"):
        yield from compare_metrics(ours.body, theirs.body)
    elif ours.body != theirs.body:
        yield f"body {ours.body!r}, recorded {theirs.body!r}"


def asks_for_stored(request):
    """What reads a stored response comes behind those that store one."""
    return b" /v1/responses/" in request.read_bytes().partition(b"\r\n")[0]


def main(program, folder):
    folder = pathlib.Path(folder)
    sim = subprocess.Popen([program, *SIM_FLAGS], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True)
    failed = compared = 0
    try:
        port = int(sim.stdout.readline().rsplit(":", 1)[1])
        for request in sorted(folder.glob("*.req"), key=lambda file: (asks_for_stored(file), file.stem)):
            name = request.stem
            if name in SKIPPED:
                print(f"skipped {name}: {SKIPPED[name]}")
                continue
            reason, allowed = EXCEPTIONS.get(name, (None, {}))
            recorded = (folder / f"{allowed.get('answer', name)}.resp").read_bytes()
            ours = Answer(exchange(port, request.read_bytes()))
            differences = list(compare(ours, Answer(recorded), allowed))
            compared += 1
            failed += bool(differences)
            print(f"{'differs' if differences else 'ok'} {name}" +
                  (f" (but: {reason})" if reason else ""))
            for difference in differences:
                print(f"    {difference}")
    finally:
        sim.terminate()
        status = sim.wait(timeout=10)
    if status != 0:
        print(f"samovar-sim ended with {status}")
    print(f"{compared} answers compared, {failed} differ")
    return 1 if failed or status != 0 or compared < 40 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
