# SPDX-License-Identifier: Apache-2.0
"""Streams killed and aborted at random stages: nothing is left over, and each is told of once."""

import contextlib
import queue
import random
import signal
import threading

import pytest

from peers.api_families import COUNT_TOKENS, EMBEDDINGS, STREAMED
from peers.http1 import Truncated, request_bytes
from peers.openai_api import CHAT, COMPLETIONS
from peers.process import wait_until

ENDS = {"ok", "client_abort", "client_timeout", "client_error", "connect_failed", "upstream_closed",
        "upstream_truncated", "upstream_timeout", "upstream_protocol", "refused", "overloaded",
        "drained", "internal"}
STREAMS = 50


APIS = {api.path: api for api in [*STREAMED, EMBEDDINGS, COUNT_TOKENS]}


def ask_of(api, text, is_stream):
    """A body of any API."""
    if api in STREAMED:
        return api.request(text, stream=is_stream)
    return api.request(input=text) if api is EMBEDDINGS else api.request(system=text)


def events_of(api):
    if api in (CHAT, COMPLETIONS):
        return api.stream(["word "] * 20, with_usage=True)
    return api.stream(["word "] * 20)


class RandomWorker:
    """A handler that answers well, badly, in part or never."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def _choose(self, count):
        with self._lock:
            return self._random.randrange(count)

    def __call__(self, request):
        api = APIS[request.target]
        stage = self._choose(12)
        how = ("fin", "rst")[self._choose(2)]
        if stage == 0:
            request.end_by(how)  # before the body was read
            return
        asked = request.json()
        if stage == 1:
            request.end_by(how)
        elif stage == 2:
            request.answer(b'{"error":{"message":"busy"}}', 503)
        elif stage == 3:
            request.wait_end()  # silent until the router has had enough
            request.finish()
        elif stage == 4:
            request.send(b"HTTP/1.1 200 O")
            request.end_by(how)
        elif not asked.get("stream"):
            self._answer_whole(request, api, stage, how)
        else:
            self._stream(request, api, stage, how)

    def _answer_whole(self, request, api, stage, how):
        if stage < 8:
            request.send_head(200, content_length=100)
            request.send(b"{")
            request.end_by(how)
        else:
            request.answer(api.answer())

    def _stream(self, request, api, stage, how):
        events = events_of(api)
        if stage >= 8:
            request.stream(events)
            return
        request.start_stream()
        for event in events[: self._choose(len(events))]:
            request.send_chunk(event)
        if stage == 5:
            request.send_chunk(events[0][: self._choose(40) + 1])
        if stage == 6:
            request.wait_end()
            request.finish()
        else:
            request.end_by(how)


def misbehave(router, seed, number):
    """One request of a client that may leave at any stage. Returns what it was told, or None."""
    choose = random.Random(f"{seed}/{number}")
    api = choose.choice(list(APIS.values()))
    body = ask_of(api, f"question {number} " * choose.choice([1, 50, 5000]), choose.random() < 0.8)
    raw = request_bytes("POST", api.path, body, {"X-Request-Id": f"chaos-{number}"},
                        framing=choose.choice(["length", "chunked"]))
    stage = choose.randrange(6)
    how = choose.choice(["fin", "rst"])
    try:
        client = router.connect()
    except OSError:
        return  # the router has stopped listening
    try:
        if stage == 0:
            client.send(raw[: choose.randrange(raw.index(b"\r\n\r\n") + 4, len(raw))])
            client.end_by(how)
            return
        client.send(raw)
        if choose.random() < 0.1:
            client.half_close()
        if stage == 1:
            client.end_by(how)
            return
        answer = client.answer()
        if stage == 2:
            client.end_by(how)
            return
        if stage == 3:
            client.read_some(timeout_s=0.5)
            client.end_by(how)
            return
        answer.read_all()
        client.end_by(how)
    except (Truncated, OSError, AssertionError):
        client.end_by("fin")


def misbehave_all(router, seed, count):
    """count requests, STREAMS of them at a time."""
    numbers = queue.SimpleQueue()
    for number in range(count):
        numbers.put(number)

    def run():
        with contextlib.suppress(queue.Empty):
            while True:
                misbehave(router, seed, numbers.get_nowait())

    threads = [threading.Thread(target=run) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    return threads


KEPT_ALIVE = ["--keepalive-ms", 40, "--early-head-ms", 40]


@pytest.mark.parametrize("seed, count, flags", [
    (1, STREAMS, []), (2, STREAMS, KEPT_ALIVE), (3, STREAMS, ["--client-half-close"]),
    (4, 1000, [])], ids=["1", "2 kept alive", "3 half closed", "4 many"])
def test_streams_killed_and_aborted_leave_nothing(start_router, start_fleet, seed, count, flags):
    fleet = start_fleet(3)
    router = start_router(fleet, "--upstream-idle-ms", 300, "--upstream-header-ms", 300,
                          "--probe-interval-ms", 50, *flags)
    sockets = router.open_sockets()
    fleet.handle_with(RandomWorker(seed))

    for thread in misbehave_all(router, seed, count):
        thread.join()

    lines = router.log.wait_count("request", count)
    router.wait_idle()
    assert sorted(line["request_id"] for line in lines) == sorted(
        f"chaos-{number}" for number in range(count))
    assert {line["end"] for line in lines} <= ENDS
    assert "internal" not in {line["end"] for line in lines}

    # what is open is what the pool keeps to the workers, and no more than probes besides
    for worker in fleet:
        worker.handler = lambda request: request.answer(CHAT.answer())
        worker.close_connections()
    wait_until(lambda: router.open_sockets() <= sockets + len(fleet),
               lambda: f"{router.open_sockets()} sockets, {sockets} at first")
    # whoever was ejected waits for a request, which one with less to do may get
    wait_until(lambda: {row["state"] for row in router.workers()} <= {"up", "trial"},
               lambda: f"not all may be asked: {router.workers()}")
    wait_until(lambda: not any(row["busy_ms"] for row in router.workers()), "no pause is left")
    assert router.post(CHAT, CHAT.request()).status == 200


def test_workers_killed_and_started_again_under_load(start_router, start_fleet):
    """What had not begun to stream is not lost."""
    fleet = start_fleet(3)
    router = start_router(fleet, "--probe-interval-ms", 50)
    fleet.handle_with(lambda request: request.answer(CHAT.answer()))
    statuses = []
    stop = threading.Event()

    def ask(number):
        count = 0
        while not stop.is_set():
            statuses.append(router.post(CHAT, CHAT.request(f"{number} {count}")).status)
            count += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for worker in fleet:
        worker.kill()
        router.wait_states("down", 1)
        worker.start_listening()
        router.wait_states("up", 3)
    stop.set()
    for thread in threads:
        thread.join()

    assert len(statuses) > 20
    assert set(statuses) == {200}


def test_a_drain_in_the_middle_of_it_ends_well(start_router, start_fleet):
    fleet = start_fleet(3)
    router = start_router(fleet, "--upstream-idle-ms", 300, "--drain-ms", 200)
    fleet.handle_with(RandomWorker(5))
    threads = misbehave_all(router, 5, STREAMS)
    router.log.wait_count("request", STREAMS // 5)

    router.signal(signal.SIGTERM)

    assert router.wait_exit() == 0
    for thread in threads:
        thread.join()
    assert "internal" not in {line["end"] for line in router.log.find("request")}
