# SPDX-License-Identifier: Apache-2.0
"""What one client saw of one request, and whether that may be: the rule of what may be lost."""

import json
import time
from dataclasses import dataclass, field

from peers.http1 import Truncated
from peers.wire import WireEnded


@dataclass
class Outcome:
    request_id: str
    kind: str
    begun: float = field(default_factory=time.time)
    ended: float = 0.0
    left: bool = False  # the client gave up, or never sent all of it
    status: int = 0  # 0: no head of an answer came
    body: int = 0  # bytes of it that came
    end: str = "open"  # clean, error_event, no_done, cut, none, left
    code: str = ""  # of an error answered by the router or a worker
    message: str = ""
    faults: list = field(default_factory=list)  # that the request itself asked of its engine

    def finish(self, end):
        self.end = end
        self.ended = time.time()


def error_of(body):
    """(code, message) of an error's body, whichever family it is of."""
    try:
        error = json.loads(body)["error"]
        return error.get("code") or error.get("type") or "", error.get("message") or ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def end_of_stream(body):
    if body.endswith(b"data: [DONE]\n\n"):
        return "clean"
    return "error_event" if b'"error"' in body[-2000:] else "no_done"


def read_outcome(client, outcome, method="POST", timeout_s=60):
    """Reads one answer into outcome. True: the connection may carry another request."""
    try:
        answer = client.answer(method, timeout_s)
    except (WireEnded, OSError):
        outcome.finish("none")
        return False
    outcome.status = answer.status
    try:
        body = answer.read_all()
    except (Truncated, WireEnded, OSError) as cut:
        outcome.body = len(getattr(cut, "partial", answer.body))
        outcome.finish("cut")
        return False
    outcome.body = len(body)
    is_stream = (answer.get("content-type") or "").startswith("text/event-stream")
    outcome.finish(end_of_stream(body) if is_stream else "clean")
    if outcome.status >= 400:
        outcome.code, outcome.message = error_of(body)
    return (answer.get("connection") or "").lower() != "close"


class History:
    """How many workers could get a request, and when: up by the router's own log, and not pausing.
    pauses: (from, to) of each worker that asked for one."""

    def __init__(self, state_lines, names, pauses=()):
        self.pauses = pauses
        states = dict.fromkeys(names, "starting")
        self.steps = [(0.0, 0)]
        for line in state_lines:
            states[line["worker"]] = line["state"]
            self.steps.append((line["at"], sum(state == "up" for state in states.values())))

    def least_up(self, begun, ended):
        before = [up for at, up in self.steps if at <= begun]
        within = [up for at, up in self.steps if begun < at <= ended]
        pausing = sum(start <= ended and end >= begun for start, end in self.pauses)
        return min(before[-1:] + within) - pausing


# As the router says it of a worker that died with part of an answer, or behind the head of a stream.
HALF_ANSWERED = "The worker died while it began to answer."

# Each of them has answered 429 or 503 with a Retry-After that is not over.
ALL_PAUSED = "asked for a pause"

# Statuses that say: a worker, or the router, refused the request, or lost it before its answer.
LOST = {429, 500, 502, 503, 504}


def explain_loss(outcome, line, scripted, history):
    """
    Why a request may have been lost although nothing had been streamed; None: it may not.

    line is the router's own about it, scripted what was done to its attempts: by the scripted workers,
    or by whoever killed a worker that had it.
    """
    attempts = line.get("attempts", 0)
    if ALL_PAUSED in outcome.message:
        return "all workers had asked for a pause"
    done = scripted + outcome.faults
    if outcome.status == 500 and "status_500" in done:
        return "the worker's own 500"
    if line["end"] == "upstream_timeout":
        return "silent worker: a timeout is not retried"
    if line["end"] == "upstream_protocol":
        return "no HTTP: half an answer is not retried" if "bad_head" in done else None
    if line["end"] == "upstream_closed" and attempts >= 2:
        return "lost on two workers"
    if outcome.message == HALF_ANSWERED and "half" in done:
        return "half an answer is not retried"
    if attempts >= line["tries"]:
        return "all tries used"
    if history.least_up(outcome.begun - 0.5, outcome.ended) <= max(attempts, 1):
        return "no other worker was up"
    return None


def is_lost(outcome):
    return not outcome.left and (outcome.status in LOST or outcome.status == 0
                                 or (outcome.end == "cut" and outcome.body == 0))


def judge(outcome, line, scripted, history):
    """("ok" | "begun" | "excused" | "left" | "wrong", why) of a request that has ended."""
    if outcome.left:
        return "left", outcome.kind
    if is_lost(outcome):
        if line is None:
            return "wrong", "lost without a line in the log"
        why = explain_loss(outcome, line, scripted, history)
        if why is None:
            return "wrong", f"{outcome.status} {outcome.code} {line['end']} {line.get('attempts')}"
        return "excused", why
    if outcome.end == "no_done":
        return "wrong", "a stream that ended without [DONE] and without an error"
    if outcome.end in ("cut", "error_event"):
        return "begun", f"{outcome.end} after the first byte"
    return "ok", str(outcome.status)
