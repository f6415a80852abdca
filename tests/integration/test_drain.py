# SPDX-License-Identifier: Apache-2.0
"""SIGTERM: what runs may finish, nothing new begins, and the process is gone in bounded time."""

import json
import signal
import time

import pytest

from peers.http1 import Truncated, chunk, request_bytes
from peers.openai_api import CHAT, events_of
from peers.process import wait_until
from peers.router import error_of
from peers.wire import WAIT_S, Wire


def start_streams(router, worker, count):
    """count streams that have each delivered one event."""
    streams = []
    for _ in range(count):
        client = router.connect()
        client.post(CHAT, CHAT.request(stream=True))
        request = worker.expect()
        request.start_stream()
        request.send_chunk(CHAT.stream()[0])
        answer = client.answer()
        answer.read(len(CHAT.stream()[0]))
        streams.append((client, request, answer))
    return streams


def terminate(router):
    router.signal(signal.SIGTERM)
    router.log.wait("draining")


def test_an_idle_router_ends_at_once(router):
    idle = router.connect()
    started = time.monotonic()
    router.signal(signal.SIGTERM)
    assert router.wait_exit() == 0
    assert time.monotonic() - started < 1
    assert idle.read_to_end() == b""


def test_streams_finish_and_then_it_exits_with_zero(router, worker):
    streams = start_streams(router, worker, 10)
    terminate(router)

    for _, request, _ in streams:
        for event in CHAT.stream()[1:]:
            request.send_chunk(event)
        request.end_stream()

    for client, _, answer in streams:
        assert answer.read_all() == b"".join(CHAT.stream())
        assert client.wait_end().kind == "fin"  # and the connection is not kept
    assert router.wait_exit() == 0
    assert [line["end"] for line in router.log.find("request")] == ["ok"] * 10


def test_an_answer_that_has_not_begun_says_that_the_connection_closes(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    terminate(router)

    request.answer(CHAT.answer())

    answer = client.answer()
    assert answer.status == 200
    assert answer.get("connection") == "close"
    assert answer.read_all() == CHAT.answer()
    assert router.wait_exit() == 0


def test_nothing_new_begins(router, worker):
    kept = router.connect()
    kept.request("GET", "/health")
    kept.answer("GET").read_all()
    [(client, request, _)] = start_streams(router, worker, 1)
    terminate(router)

    # a new connection is refused, or told 503
    try:
        fresh = Wire.connect(router.address)
        fresh.send(request_bytes("POST", CHAT.path, CHAT.request()))
        head = fresh.read_to_end()
        assert head == b"" or head.startswith(b"HTTP/1.1 503 "), head
    except OSError:
        pass
    # so is an old one that was idle
    try:
        kept.post(CHAT, CHAT.request())
        answer = kept.answer()
        assert answer.status == 503
        assert error_of(answer)["code"] == "draining"
        assert answer.get("retry-after")
    except (OSError, AssertionError) as ended:
        assert isinstance(ended, OSError) or "fin" in str(ended) or "rst" in str(ended), ended

    worker.assert_no_request()
    client.close()
    request.wait_end()
    assert router.wait_exit() == 0


def test_readiness_ends_before_the_streams_do(router, worker):
    assert router.get("/readyz").status == 200
    asking = router.connect()  # connected before: a load balancer's kept connection
    [(client, _, _)] = start_streams(router, worker, 1)
    router.signal(signal.SIGTERM)
    router.log.wait("draining")
    try:
        asking.request("GET", "/readyz")
        assert asking.answer("GET").status == 503
    except (OSError, AssertionError) as ended:
        assert isinstance(ended, OSError) or "fin" in str(ended) or "rst" in str(ended), ended
    client.close()
    assert router.wait_exit() == 0


def test_what_outlives_the_timeout_gets_an_error_event(start_router, worker):
    router = start_router([worker], "--drain-ms", 200)
    [(_, request, answer)] = start_streams(router, worker, 1)
    started = time.monotonic()
    terminate(router)

    body = answer.read_all()

    assert "error" in json.loads(events_of(body)[-1])
    assert b"[DONE]" not in body
    request.wait_end()
    assert router.wait_exit() == 0
    assert 0.18 < time.monotonic() - started < 2
    assert [line["end"] for line in router.log.find("request")] == ["drained"]


def test_a_client_that_does_not_read_cannot_hold_the_process(start_router, worker):
    router = start_router([worker], "--drain-ms", 200)
    client = router.connect(receive_bytes=65536)
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.wire.send_until_blocked(chunk(CHAT.event("x" * 100_000)) * 300)
    terminate(router)
    assert router.wait_exit(3) == 0


def test_what_was_answered_still_reaches_a_client_that_reads_slowly(start_router, start_worker):
    """No request runs any more, but the kernel has not taken all of the answers yet."""
    router = start_router([start_worker(models=[f"model-{number}" for number in range(200)])])
    client = router.connect(receive_bytes=65536)
    client.send_until_blocked(
        request_bytes("GET", "/v1/models", fields={"X-Padding": "x" * 8000}) * 5000)
    terminate(router)

    got = b""
    while piece := (b"" if router.log.find("drained") else client.read_some()):
        got += piece
    assert router.wait_exit() == 0
    got += client.read_to_end()

    assert client.end.kind == "fin"
    answers = [answer.partition(b"\r\n\r\n") for answer in got.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert len(answers) == len(router.log.find("request"))
    assert {body for _, _, body in answers} == {answers[0][2]}, "the last one is cut"


def test_a_second_signal_ends_it_now(router, worker):
    [(_, request, answer)] = start_streams(router, worker, 1)
    terminate(router)
    started = time.monotonic()
    router.signal(signal.SIGTERM)

    router.wait_exit()

    assert time.monotonic() - started < 1
    request.wait_end()
    try:
        assert b"[DONE]" not in answer.read_all()
    except Truncated:
        pass


def test_sigint_drains_too(router, worker):
    [(client, _, _)] = start_streams(router, worker, 1)
    router.signal(signal.SIGINT)
    router.log.wait("draining")
    assert router.is_running()
    client.close()
    assert router.wait_exit() == 0


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1],
                         ids=["PIPE", "HUP", "USR1"])
def test_other_signals_do_not_end_it(router, number):
    router.signal(number)
    assert router.get("/health").status == 200
    assert router.is_running()


def test_a_worker_that_is_down_does_not_delay_the_end(start_router, worker):
    router = start_router([worker], "--probe-interval-ms", 50)
    worker.hang_connects()
    wait_until(lambda: router.get("/health").status == 200, "it answers")
    started = time.monotonic()
    router.signal(signal.SIGTERM)
    assert router.wait_exit() == 0
    assert time.monotonic() - started < 1


def test_answers_that_slow_clients_have_not_read_yet_are_delivered(start_router, start_worker):
    """Complete here is not complete there: what the sockets did not take yet is still sent."""
    router = start_router([start_worker(models=[f"model-{n}-" + "x" * 90 for n in range(2000)])])
    body = router.get("/v1/models").read_all()
    client = router.connect(receive_bytes=65536)
    client.send(request_bytes("GET", "/v1/models") * 100)
    client.wait_readable(WAIT_S)

    terminate(router)

    answers = client.read_to_end()
    assert client.end.kind == "fin"
    count = answers.count(b"HTTP/1.1 200 OK\r\n")
    assert answers.count(body) == count > 1
    assert router.wait_exit() == 0
