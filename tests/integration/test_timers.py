# SPDX-License-Identifier: Apache-2.0
"""Each wait of the router has a timer of its own; who is told of its end learns which it was, and by
which option it is set."""

import json
import time

import pytest

from peers.http1 import LAST_CHUNK, chunk, request_bytes
from peers.meanwhile import meanwhile
from peers.openai_api import CHAT, DONE, events_of
from peers.process import wait_until
from peers.router import error_of
from peers.wire import WAIT_S

SHORT_MS = 150
SLACK_S = 1.0  # a loaded machine is late, never early


@pytest.fixture
def start_timed(start_router, fleet):
    def start(flag):
        return start_router(fleet, flag, SHORT_MS)

    return start


class Timed:
    """Checks that what happens inside takes at least the timer and not much longer."""

    def __enter__(self):
        self.started = time.monotonic()

    def __exit__(self, kind, error, trace):
        took = time.monotonic() - self.started
        if error is None:
            assert SHORT_MS / 1000 * 0.9 <= took < SHORT_MS / 1000 + SLACK_S, f"took {took:.3f} s"


def test_client_header(start_timed, fleet):
    router = start_timed("--client-header-ms")
    client = router.connect()
    with Timed():
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n")
        answer = client.answer()

    assert answer.status == 408
    error = error_of(answer)
    assert error["code"] == "client_header_timeout" and "--client-header-ms" in error["message"]
    assert answer.get("connection") == "close"
    assert client.wait_end().kind == "fin"
    assert router.request_line(answer)["end"] == "client_timeout"


def test_client_header_is_not_renewed_by_drops(start_timed):
    """One byte now and then must not hold a connection for ever."""
    router = start_timed("--client-header-ms")
    client = router.connect()
    with Timed():
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nX-Long: ")
        while not client.wait_readable(SHORT_MS / 10000):
            client.send(b"x")
        answer = client.answer()
    assert answer.status == 408


def test_client_body(start_timed, fleet):
    router = start_timed("--client-body-ms")
    client = router.connect()
    with Timed():
        client.send(request_bytes("POST", CHAT.path, CHAT.request())[:-1])
        answer = client.answer()

    assert answer.status == 408
    error = error_of(answer)
    assert error["code"] == "client_body_timeout" and "--client-body-ms" in error["message"]
    assert answer.get("connection") == "close"
    assert client.wait_end()
    assert router.request_line(answer)["end"] == "client_timeout"
    fleet.assert_no_request()


def test_client_stall(start_timed, fleet):
    """A client that stops reading for good holds a worker: it is cut, and the worker is told."""
    router = start_timed("--client-stall-ms")
    client = router.connect(receive_bytes=65536)
    client.post(CHAT, CHAT.request(stream=True), {"X-Request-Id": "stalled"})
    request = fleet.expect()
    request.start_stream()
    try:
        request.send(chunk(CHAT.event("x" * 100_000)) * 1000)
    except OSError:
        pass  # closed while we were sending: what is wanted
    request.wait_end()

    assert router.log.wait("request", request_id="stalled")["end"] == "client_timeout"


@pytest.fixture
def many_models(start_worker):
    """A list of them is larger than a socket's buffers hold often."""
    return start_worker(models=[f"model-{n}-" + "x" * 90 for n in range(2000)])


def test_client_stall_before_answers_of_our_own(start_router, many_models):
    router = start_router([many_models], "--client-stall-ms", SHORT_MS)
    open_before = router.metrics()["samovar_router_client_connections"]
    client = router.connect(receive_bytes=65536)

    client.send(request_bytes("GET", "/v1/models") * 100)
    client.wait_readable(WAIT_S)

    wait_until(lambda: router.metrics()["samovar_router_client_connections"] == open_before,
               "the stalled client cut")


def test_a_stall_that_is_over_leaves_the_idle_wait(start_router, many_models):
    router = start_router([many_models], "--client-stall-ms", SHORT_MS)
    client = router.connect(receive_bytes=65536)
    client.send(request_bytes("GET", "/v1/models") * 100)
    for _ in range(100):
        client.answer("GET").read_all()

    assert not client.wait_readable(3 * SHORT_MS / 1000), "closed"

    client.request("GET", "/health")
    assert client.answer("GET").status == 200


def test_client_idle(start_timed):
    router = start_timed("--client-idle-ms")
    client = router.connect()
    client.request("GET", "/health")
    client.answer("GET").read_all()
    with Timed():
        assert client.read_to_end() == b""  # closed without a word: no request was there
    assert client.end.kind == "fin"


def test_connect(start_router, worker):
    router = start_router([worker], "--connect-ms", SHORT_MS)
    worker.hang_connects()
    with Timed():
        answer = router.post(CHAT, CHAT.request())

    assert answer.status in (502, 504)
    assert error_of(answer)["code"] == "upstream_connect_failed"
    assert router.request_line(answer)["end"] == "connect_failed"


def test_a_connect_that_hangs_is_repeated_elsewhere(start_router, fleet):
    """No byte of the request has left: it is as safe as a refused connect."""
    router = start_router(fleet, "--connect-ms", SHORT_MS, "--policy", "round_robin")
    fleet[0].hang_connects()
    fleet[1].handler = lambda request: request.answer(CHAT.answer())
    assert [router.post(CHAT, CHAT.request()).status for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
def test_upstream_header(start_timed, fleet, api, is_stream):
    router = start_timed("--upstream-header-ms")
    client = router.connect()
    with Timed():
        client.post(api, api.request(stream=is_stream))
        request = fleet.expect()
        request.body()
        answer = client.answer()

    assert answer.status == 504
    error = error_of(answer)
    assert error["code"] == "upstream_header_timeout" and "--upstream-header-ms" in error["message"]
    request.wait_end()
    assert router.request_line(answer)["end"] == "upstream_timeout"


def test_upstream_header_of_a_stream_waits_for_its_first_byte(start_timed, fleet):
    """Engines send the head of a stream at once, and then read the prompt."""
    router = start_timed("--upstream-header-ms")
    client = router.connect()
    with Timed():
        client.post(CHAT, CHAT.request(stream=True))
        request = fleet.expect()
        request.start_stream()
        answer = client.answer()

    assert answer.status == 504
    error = error_of(answer)
    assert error["code"] == "upstream_header_timeout" and "--upstream-header-ms" in error["message"]
    request.wait_end()


def test_upstream_idle(start_timed, fleet):
    router = start_timed("--upstream-idle-ms")
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = fleet.expect()
    request.start_stream()
    request.send_chunk(CHAT.event("x"))
    answer = client.answer()
    answer.read(len(CHAT.event("x")))
    with Timed():
        body = answer.read_all()

    error = json.loads(events_of(body)[-1])["error"]
    assert error["code"] == "upstream_idle_timeout" and "--upstream-idle-ms" in error["message"]
    request.wait_end()
    assert router.request_line(answer)["end"] == "upstream_timeout"


def test_upstream_idle_is_renewed_by_each_byte(start_router, fleet):
    idle_ms = 600  # long beside what a busy machine may take from this process between two bytes
    router = start_router(fleet, "--upstream-idle-ms", idle_ms)
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = fleet.expect()
    request.start_stream()
    request.send_chunk(b": here\n\n")
    answer = client.answer()
    answer.read(len(b": here\n\n"))
    started = time.monotonic()
    while time.monotonic() - started < 2 * idle_ms / 1000:
        request.send_chunk(b": still here\n\n")
        answer.read(len(b": still here\n\n"))
        time.sleep(idle_ms / 20000)
    for event in CHAT.stream():
        request.send_chunk(event)
    request.end_stream()
    assert answer.read_all().endswith(b"data: [DONE]\n\n")


def test_a_client_that_reads_slowly_is_not_the_workers_silence(start_router, fleet):
    """While the router itself has stopped reading the worker, the worker's timer must not run."""
    router = start_router(fleet, "--upstream-idle-ms", SHORT_MS)
    client = router.connect(receive_bytes=65536)
    client.post(CHAT, CHAT.request(stream=True))
    request = fleet.expect()
    request.start_stream()
    event = CHAT.event("x" * 100_000)
    stream = chunk(event) * 200 + chunk(DONE) + LAST_CHUNK
    sent = request.wire.send_until_blocked(stream, quiet_s=3 * SHORT_MS / 1000)
    assert sent < len(stream)

    with meanwhile(request.send, stream[sent:]):
        assert client.answer().read_all() == event * 200 + DONE
    request.finish()


def test_idle_connections_to_workers_are_closed(start_timed, fleet):
    router = start_timed("--worker-idle-ms")
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = fleet.expect()
    request.body()
    with Timed():
        request.send_head(200, content_type="application/json", content_length=2)
        request.send(b"{}")
        client.answer().read_all()
        assert request.wait_end().kind == "fin"
    request.finish()
