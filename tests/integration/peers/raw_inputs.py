# SPDX-License-Identifier: Apache-2.0
"""
The raw inputs of tests/fixtures/http, and clients that send them in pieces, many at once.

Nearly all of them ask for "/", which the router does not serve: what is refused and what is merely
unknown never reaches a worker there. So each is also run dressed: the same defect in the same
place, but of a POST to /v1/completions whose body is a prompt. Its query holds a number, by which
the worker's side tells who it was.
"""

import asyncio
import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path

from peers.openai_api import MODEL
from peers.wire import WAIT_S

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "http"

PROMPT = json.dumps({"model": MODEL, "prompt": "hi"}).encode()
BODIES = (b"abc", b"0123456789", b"1234567890")  # of the inputs, with their lengths before them
EVERY_CUT_BYTES_MAX = 2048  # of larger inputs not every cut is made


@dataclass(frozen=True)
class RawInput:
    id: str
    case: str
    bytes: bytes
    outcome: str  # see the README of the fixtures
    statuses: tuple
    messages: int
    body: bytes  # of an answer

    @property
    def most(self):
        """How many requests a strict reader counts."""
        return 0 if self.outcome == "reject" else self.messages or 1

    def cuts(self):
        """Where to cut it in two: everywhere, or where it may matter."""
        size = len(self.bytes)
        if size <= EVERY_CUT_BYTES_MAX:
            return range(1, size)
        return sorted({*range(1, 64), *range(509, size, 509), *range(size - 64, size)})


def load(name):
    rows = [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()]
    return [RawInput(row["id"], row["case"], base64.b64decode(row["bytes_base64"]), row["outcome"],
                     tuple(row.get("status") or ()), row.get("messages") or 0,
                     row.get("body", "").encode()) for row in rows]


# --- dressing ---

def _with_prompt(raw):
    """The bodies that say nothing become a prompt, and the lengths before them its length."""
    empty = raw[: len(raw) - len(raw.lstrip(b"\r\n"))]  # lines before the first
    head, end, rest = raw[len(empty) :].partition(b"\r\n\r\n")
    head = empty + head
    single = b"1\r\na\r\n" * 1000
    if rest.startswith(single):
        padded = PROMPT + b" " * (1000 - len(PROMPT))
        return head + end + b"".join(b"1\r\n%c\r\n" % byte for byte in padded) + rest[len(single):]
    for body in BODIES:
        if body not in rest:
            continue
        size = b"%d" % len(body)
        head = re.sub(rb"(?i)(content.length:?[^\r]*)", lambda m: m[1].replace(size, b"%d" % len(PROMPT)),
                      head)
        return head + end + re.sub(rb"%x((?:;a=b)?[^\da-f]{0,8}?)%b" % (len(body), body),
                                   lambda m: b"%x%b%b" % (len(PROMPT), m[1], PROMPT),
                                   rest, count=1).replace(body, PROMPT)
    if b"chunked" in head.lower() and rest.startswith(b"0\r\n"):
        return head + end + b"%x\r\n%b\r\n" % (len(PROMPT), PROMPT) + rest
    if not rest and end and b"content-length" not in head.lower():
        return head + b"\r\nContent-Length: %d" % len(PROMPT) + end + PROMPT
    return raw


def dress(raw_input, number):
    raw = raw_input.bytes.replace(b"GET / ", b"POST / ", 1)
    raw = _with_prompt(raw).replace(b" / ", b" /v1/completions?n=%d " % number, 1)
    return RawInput(raw_input.id, raw_input.case, raw, raw_input.outcome, raw_input.statuses,
                    raw_input.messages, b"")


def number_of(target):
    """Whose dressed request it was; None: nobody's."""
    found = re.fullmatch(r"/v1/completions\?n=(\d+)", target)
    return int(found[1]) if found else None


# --- clients ---

@dataclass
class Outcome:
    """What a client saw on its connection."""
    statuses: list  # of final answers
    interim: int  # how many were 1xx
    said_close: bool  # the last answer had "connection: close"
    ended: bool  # the other side ended the connection
    garbage: bytes  # what came behind the last whole answer


async def _read_answer(reader):
    """(status, says close)"""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = int(head.split(" ", 2)[1])
    length = re.search(r"\r\ncontent-length: *(\d+)", head)
    if "\r\ntransfer-encoding: chunked" in head:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")
    elif length and status >= 200:
        await reader.readexactly(int(length[1]))
    return status, "\r\nconnection: close" in head


async def _read_outcome(reader, want, wants_interim):
    seen = Outcome([], 0, False, False, b"")
    try:
        while seen.said_close or len(seen.statuses) < want:
            status, closes = await _read_answer(reader)
            if status >= 200:
                seen.statuses.append(status)
                seen.said_close = closes
            else:
                seen.interim += 1
                if wants_interim:
                    break
    except asyncio.IncompleteReadError as cut:
        seen.ended, seen.garbage = True, cut.partial
    except ConnectionError:
        seen.ended = True
    return seen


async def run_one(address, pieces, want, *, half_close=False, wants_interim=False, wait_s=WAIT_S):
    """Sends pieces on a connection of its own, each in a turn of the loop, and reads want answers,
    or to the end where an answer says so. Raises TimeoutError."""
    reader, writer = await asyncio.open_connection(*address)
    # Read from the start: an answer must not be lost to the reset that meets what is sent behind it.
    outcome = asyncio.ensure_future(_read_outcome(reader, want, wants_interim))
    try:
        for piece in pieces:
            if outcome.done():
                break
            writer.write(piece)
            await asyncio.sleep(0)
        if half_close:
            writer.write_eof()
        return await asyncio.wait_for(outcome, wait_s)
    finally:
        outcome.cancel()
        writer.transport.abort()


async def run_all(tasks, at_once=48):
    """Runs awaitables, some at once; their results in order."""
    gate = asyncio.Semaphore(at_once)

    async def run(task):
        async with gate:
            return await task()

    return await asyncio.gather(*(run(task) for task in tasks))
