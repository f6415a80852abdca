# SPDX-License-Identifier: Apache-2.0
"""
Raw requests of clients and raw answers of workers through the real router: whole, byte by byte, and
cut in two at each byte. What is refused never reaches a worker, and ends the connection.
"""

import asyncio
import functools
import threading
from collections import Counter

import pytest

from peers.openai_api import COMPLETIONS
from peers.raw_inputs import dress, load, number_of, run_all, run_one
from peers.router import error_of

REQUESTS = load("requests.jsonl")
ANSWERS = load("responses.jsonl")
# Refusals for which nobody waits: the client has left.
SILENT = {"P10"}


class Recorder:
    """Answers a worker's requests at once, and counts them by their number."""

    def __init__(self, worker):
        self.seen = Counter()
        self.bodies = {}
        self.strangers = []
        self._lock = threading.Lock()
        worker.handler = self.handle

    def handle(self, request):
        number, body = number_of(request.target), request.body()
        with self._lock:
            if number is None:
                self.strangers.append(request.target)
            self.seen[number] += 1
            self.bodies[number] = body
        request.answer(COMPLETIONS.answer())


def way_count(raw):
    return 2 + len(raw.cuts())


def way(raw, index):
    """One way to send it, as a list of pieces."""
    if index == 0:
        return [raw.bytes]
    if index == 1:
        return [raw.bytes[at : at + 1] for at in range(len(raw.bytes))]
    cut = raw.cuts()[index - 2]
    return [raw.bytes[:cut], raw.bytes[cut:]]


def check(raw, outcome, is_served):
    where = f"{raw.id} {raw.case}: {outcome}"
    statuses = outcome.statuses
    is_refusal = statuses[-1:] != [] and statuses[-1] in raw.statuses and outcome.ended
    assert not outcome.garbage, where
    assert outcome.ended == outcome.said_close or raw.id in SILENT, where
    if not is_served and statuses == [404]:
        # Nobody is there, and what follows the head was not read: no fault in it is found.
        assert outcome.ended or raw.messages == 1, where
    elif raw.id in SILENT:
        assert outcome.ended and set(statuses) <= set(raw.statuses), where
    elif raw.outcome == "reject" or (raw.outcome == "either" and is_refusal):
        assert is_refusal and len(statuses) == 1 and outcome.interim == 0, where
    elif raw.outcome == "accept_then_close":
        assert outcome.ended and statuses == [200, 400], where
    elif raw.id == "P05":  # its body is withheld, so it is asked for it
        assert outcome.interim == 1, where
    else:
        assert len(statuses) == raw.messages and statuses[0] in (200, 204, 404), where


def run_ways(router, inputs, is_served):
    """inputs: (raw, pieces) pairs."""
    def task(raw, pieces):
        want = max(raw.messages, 1) + (raw.outcome == "accept_then_close")
        return functools.partial(run_one, router.address, pieces, want,
                                 half_close=raw.id in SILENT, wants_interim=raw.id == "P05")

    outcomes = asyncio.run(run_all([task(raw, pieces) for raw, pieces in inputs]))
    for (raw, _), outcome in zip(inputs, outcomes):
        check(raw, outcome, is_served)


@pytest.mark.parametrize("raw", REQUESTS, ids=lambda raw: raw.id)
def test_a_raw_request_has_its_outcome_however_it_is_cut(start_router, worker, raw):
    recorder = Recorder(worker)
    router = start_router([worker])

    run_ways(router, [(raw, way(raw, index)) for index in range(way_count(raw))], False)

    assert not recorder.seen


# Those that, dressed, are whole requests for a completion.
COMPLETE = {"F14", "F19", "T12", "T17", "K14", "K15", "K19", "K20", "K21", "K23", "N05", "N15", "L21",
            "P04", "P07", "P08"}
FIRST = 100_000  # of the numbers: all as long as each other


@pytest.mark.parametrize("raw", [raw for raw in REQUESTS if dress(raw, 0).bytes != raw.bytes],
                         ids=lambda raw: raw.id)
def test_no_worker_sees_more_than_was_asked(start_router, worker, raw):
    recorder = Recorder(worker)
    router = start_router([worker])
    dressed = [dress(raw, FIRST + index) for index in range(way_count(dress(raw, FIRST)))]

    run_ways(router, [(one, way(one, index)) for index, one in enumerate(dressed)], True)

    router.wait_idle()
    wanted = 1 if raw.id in COMPLETE else 0
    assert not recorder.strangers
    for index in range(len(dressed)):
        assert recorder.seen[FIRST + index] == wanted, way(dressed[index], index)
    assert all(b'"prompt"' in body for body in recorder.bodies.values())


# --- what a worker may answer ---

UNTIL_CLOSE = {"R03", "R15"}  # only the connection's end says where they end

def send_raw(request, pieces):
    """A router that has seen enough closes: what is left has nowhere to go."""
    request.body()
    try:
        for piece in pieces:
            request.send(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass


def check_answer(raw, client, request):
    answer = client.answer()
    assert answer.status in raw.statuses, raw
    if raw.outcome == "reject":
        error = error_of(answer)
        assert error["code"] == "upstream_protocol_error"
        assert raw.id != "R18" or "does not speak HTTP" in error["message"]
    elif raw.outcome == "cut":
        assert answer.status == 502 or raw.body.startswith(answer.read_until_cut())
    else:
        assert answer.read_all() == raw.body
    if raw.outcome != "accept":
        request.wait_end()
    assert not client.pending


def ask(router, worker):
    client = router.connect()
    client.post(COMPLETIONS, COMPLETIONS.request())
    return client, worker.expect()


@pytest.mark.parametrize("raw", ANSWERS, ids=lambda raw: raw.id)
def test_a_raw_answer_has_its_outcome_and_its_connection_no_other_client(router, worker, raw):
    for index in range(way_count(raw)):
        client, request = ask(router, worker)
        send_raw(request, way(raw, index))
        if raw.outcome == "cut" or raw.id in UNTIL_CLOSE:
            request.wire.half_close()
        check_answer(raw, client, request)
        request.finish()
        client.close()

        next_client, good = ask(router, worker)
        assert raw.outcome == "accept" or good.wire is not request.wire
        good.answer(COMPLETIONS.answer())
        assert next_client.answer().read_all() == COMPLETIONS.answer()
        next_client.close()


@pytest.mark.parametrize("behind", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"\r\n", b"x"])
def test_bytes_that_come_after_an_answer_close_the_idle_connection(router, worker, behind):
    client, request = ask(router, worker)
    request.body()
    request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert client.answer().read_all() == b"ok"

    request.send(behind)

    request.wait_end()
    request.finish()
    next_client, good = ask(router, worker)
    good.answer(COMPLETIONS.answer())
    assert next_client.answer().read_all() == COMPLETIONS.answer()


@pytest.mark.parametrize("count, status", [(16, 200), (17, 502)])
def test_interim_answers_are_swallowed_up_to_a_limit(router, worker, count, status):
    client, request = ask(router, worker)
    send_raw(request, [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"] * count)
    send_raw(request, [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"])
    first = client.read_until(b"\r\n")
    assert first.startswith(b"HTTP/1.1 %d" % status)
    request.finish()


def test_a_head_of_an_answer_has_a_limit(router, worker):
    client, request = ask(router, worker)
    send_raw(request, [b"HTTP/1.1 200 OK\r\n", b"X: " + b"a" * 70_000])
    answer = client.answer()
    assert answer.status == 502
    assert "larger than the limit" in error_of(answer)["message"]
    request.finish()
