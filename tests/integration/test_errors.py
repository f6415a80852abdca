# SPDX-License-Identifier: Apache-2.0
"""What the router refuses itself: the right status, a reason to act on, never a worker asked."""

import json
import resource
import time

import pytest

from peers.http1 import LAST_CHUNK, chunk, request_bytes
from peers.openai_api import CHAT, COMPLETIONS
from peers.process import wait_until
from peers.router import Router, error_of
from peers.worker import ScriptedWorker

LIMIT = 100_000


@pytest.fixture(scope="module")
def peers():
    """One router for all: each test leaves it as it was."""
    worker = ScriptedWorker()
    router = Router([worker], ["--probe-interval-ms", 60000, "--body-bytes-max", LIMIT])
    router.wait_ready()
    yield router, worker
    try:
        router.stop()
    finally:
        router.kill()
        worker.stop()


@pytest.fixture
def router(peers):
    return peers[0]


@pytest.fixture(autouse=True)
def nothing_reaches_a_worker(peers):
    yield
    peers[1].assert_no_request()


def send_raw(router, raw):
    """The answer to raw bytes, on a connection that the router then closes."""
    client = router.connect()
    client.send(raw)
    answer = client.answer()
    answer.read_all()
    assert answer.get("connection") == "close"
    assert client.read_to_end() == b"", "bytes behind an answer that ends the connection"
    return answer


bad_bodies = {
    "empty": (CHAT, b"", "invalid_json"),
    "not json": (CHAT, b"hello", "invalid_json"),
    "cut": (CHAT, CHAT.request()[:-1], "invalid_json"),
    "trailing bytes": (CHAT, CHAT.request() + b"{}", "invalid_json"),
    "not utf-8": (CHAT, b'{"model":"tiny","messages":[{"role":"user","content":"\xff\xfe"}]}',
                  "invalid_json"),
    "a list": (CHAT, b"[]", None),
    "a number": (CHAT, b"1", None),
    "deeply nested": (CHAT, b'{"messages":' + b"[" * 40_000, "invalid_json"),
    "no messages": (CHAT, b'{"model":"tiny"}', None),
    "messages not a list": (CHAT, b'{"model":"tiny","messages":"x"}', None),
    "a message that is no object": (CHAT, b'{"model":"tiny","messages":[1]}', None),
    "stream not a bool": (CHAT, CHAT.request(stream="yes"), None),
    "model not a text": (CHAT, b'{"model":1,"messages":[{"role":"user","content":"x"}]}', None),
    "no prompt": (COMPLETIONS, b'{"model":"tiny"}', None),
    "prompt an object": (COMPLETIONS, b'{"model":"tiny","prompt":{}}', None),
}


@pytest.mark.parametrize("case", bad_bodies)
def test_a_bad_body_is_400_with_a_reason(router, case):
    api, body, code = bad_bodies[case]

    answer = router.post(api, body, {"X-Request-Id": "mine-" + case.replace(" ", "-")})

    error = error_of(answer)
    assert answer.status == 400
    assert error["type"] == "invalid_request_error"
    assert error["code"] if code is None else error["code"] == code
    assert answer.get("x-request-id").startswith("mine-")
    assert router.request_line(answer)["status"] == 400


def test_the_missing_field_is_named(router):
    assert error_of(router.post(CHAT, b'{"model":"tiny"}'))["param"] == "messages"
    assert error_of(router.post(COMPLETIONS, b'{"model":"tiny"}'))["param"] == "prompt"


def test_a_connection_goes_on_after_a_bad_body(router):
    client = router.connect()
    for _ in range(3):
        client.post(CHAT, b"{")
        answer = client.answer()
        assert answer.status == 400
        answer.read_all()
    client.close()


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_too_large_a_body_is_413_that_names_the_limit(router, framing):
    body = CHAT.request("x" * LIMIT)
    client = router.connect()
    try:
        client.post(CHAT, body, framing=framing)
    except OSError:
        pass  # refused before we were done
    answer = client.answer()

    error = error_of(answer)
    assert answer.status == 413
    assert error["code"] == "request_too_large"
    assert str(LIMIT) in error["message"] and "body" in error["message"]
    assert "bytes-max" in error["message"] or "bytes_max" in error["message"]
    assert answer.get("connection") == "close"


def test_a_length_beyond_the_limit_is_refused_before_the_body_comes(router):
    client = router.connect()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
                b"\r\nContent-Length: 100001\r\n\r\n")
    assert client.answer().status == 413


def test_who_waits_for_100_is_refused_without_it(router):
    client = router.connect()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
                b"\r\nContent-Length: 100001\r\nExpect: 100-continue\r\n\r\n")
    assert client.read_until(b"\r\n").startswith(b"HTTP/1.1 413 ")


def test_a_body_of_exactly_the_limit_is_taken(peers):
    router, worker = peers
    body = CHAT.request("")
    body = CHAT.request("x" * (LIMIT - len(body)))
    assert len(body) == LIMIT
    client = router.connect()
    for framing in ("length", "chunked"):
        client.post(CHAT, body, framing=framing)
        request = worker.expect()
        assert request.body() == body
        request.answer(CHAT.answer())
        assert client.answer().read_all() == CHAT.answer()
    client.close()


@pytest.mark.parametrize("fields", [
    {"X-Long": "x" * 65536},
    {f"X-{n}": "1" for n in range(200)},
], ids=["one long", "too many"])
def test_too_many_bytes_of_headers_are_431(router, fields):
    answer = send_raw(router, request_bytes("GET", "/v1/models", None, fields))
    assert answer.status == 431
    assert error_of(answer)["code"] == "headers_too_large"


def test_headers_that_never_end_are_431(router):
    client = router.connect()
    client.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n")
    try:
        for _ in range(100):
            client.send(b"X-More: " + b"x" * 1000 + b"\r\n")
    except OSError:
        pass
    assert client.answer().status == 431


def test_too_long_a_target_is_414(router):
    answer = send_raw(router, request_bytes("GET", "/v1/models?" + "x" * 9000))
    assert answer.status == 414
    assert error_of(answer)["code"] == "uri_too_long"


SMUGGLED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n"
bad_framing = {
    "length and chunks": POST
                         + b"Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "two lengths": POST + b"Host: a\r\nContent-Length: 0\r\nContent-Length: 31\r\n\r\n",
    "equal lengths": POST + b"Host: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "signed length": POST + b"Host: a\r\nContent-Length: +3\r\n\r\n",
    "negative length": POST + b"Host: a\r\nContent-Length: -1\r\n\r\n",
    "chunked twice": POST + b"Host: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "unknown coding": POST + b"Host: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "empty coding": POST + b"Host: a\r\nContent-Length: 2\r\nTransfer-Encoding:\r\n\r\n{}",
    "chunks in 1.0": POST.replace(b"1.1", b"1.0")
                     + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bad chunk size": CHUNKED + b"0x3\r\nabc\r\n",
    "chunk without its end": CHUNKED + b"2\r\n{}XX0\r\n\r\n",
    "bare return behind a size": CHUNKED + b"2\r\r{}\r\n0\r\n\r\n",
    "bare return in an extension": CHUNKED + b"2;a=b\r\r{}\r\n0\r\n\r\n",
    "bare line feed behind a size": CHUNKED + b"2\n{}\r\n0\r\n\r\n",
    "bad end of the last chunk": CHUNKED + b"2\r\n{}\r\n0\r\n\rX",
    "no host": POST + b"Content-Length: 0\r\n\r\n",
    "two hosts": POST + b"Host: a\r\nHost: b\r\nContent-Length: 0\r\n\r\n",
    "bare line feeds": b"GET /v1/models HTTP/1.1\nHost: a\n\n",
    "folded header": POST + b"Host: a\r\nX: 1\r\n folded\r\nContent-Length: 0\r\n\r\n",
    "blank before colon": POST + b"Host: a\r\nContent-Length : 0\r\n\r\n",
    "null in a value": POST + b"Host: a\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
    "not http": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"\r\n\r\n",
    "http 0.9": b"GET /v1/models\r\n\r\n",
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "connect": b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
    "absolute elsewhere": b"GET http://b/v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    "fragment": b"GET /v1/models#x HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("case", bad_framing)
def test_doubtful_framing_ends_the_connection_and_what_follows_is_never_run(router, case):
    answer = send_raw(router, bad_framing[case] + SMUGGLED)
    assert answer.status in (400, 405, 501, 505)
    assert error_of(answer)


def test_trailers_are_dropped(peers):
    router, worker = peers
    body = CHAT.request()
    client = router.connect()
    client.send(POST + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(body)
                + LAST_CHUNK[:-2] + b"Authorization: Bearer smuggled\r\n\r\n")
    request = worker.expect()
    assert request.body() == body
    assert request.get("authorization") is None
    request.answer(CHAT.answer())
    assert client.answer().status == 200


@pytest.mark.parametrize("fields", [
    {"Content-Type": "text/plain"},
    {"Content-Type": "multipart/form-data; boundary=x"},
    {"Content-Encoding": "gzip"},
], ids=["text", "form", "gzip"])
def test_what_is_not_json_is_415(router, fields):
    answer = router.post(CHAT, CHAT.request(), fields)
    assert answer.status == 415
    assert error_of(answer)["code"] == "unsupported_media_type"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_may_be_said_in_other_ways(peers, kind):
    router, worker = peers
    client = router.connect()
    client.post(CHAT, CHAT.request(), {"Content-Type": kind})
    worker.expect().answer(CHAT.answer())
    assert client.answer().read_all() == CHAT.answer()
    client.close()


@pytest.mark.parametrize("target", ["/", "/v1/nope", "/v1/chat/completions/", "/metrics",
                                    "/workers", "/v1/../workers"])
def test_an_unknown_path_is_404_in_json(router, target):
    answer = router.get(target)
    assert answer.status == 404
    assert error_of(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize("method, target, allowed", [
    ("GET", "/v1/chat/completions", "POST"), ("DELETE", "/v1/completions", "POST"),
    ("POST", "/v1/models", "GET"), ("POST", "/health", "GET"), ("PUT", "/v1/models/tiny", "GET"),
])
def test_a_wrong_method_is_405_that_names_the_right_one(router, method, target, allowed):
    answer = router.call(method, target, b"{}" if method in ("POST", "PUT") else None)
    assert answer.status == 405
    assert allowed in answer.get("allow").replace(" ", "").split(",")
    assert error_of(answer)["code"] == "method_not_allowed"


def test_no_worker_is_503_that_says_when_to_ask_again(start_router, start_worker):
    worker = start_worker()
    worker.stop_listening()
    router = start_router([worker], is_ready=False)
    answer = router.post(CHAT, CHAT.request())
    assert answer.status == 503
    assert error_of(answer)["code"] == "no_worker_available"
    assert 1 <= float(answer.get("retry-after")) <= 60


def test_a_worker_that_never_came_up_is_no_worker(start_router, start_worker):
    worker = start_worker(health=500)
    router = start_router([worker], is_ready=False)
    assert router.post(CHAT, CHAT.request()).status == 503
    worker.assert_no_request()


def test_an_error_has_the_clients_request_id_or_a_new_one(router):
    mine = router.post(CHAT, b"{", {"X-Request-Id": "mine-1"})
    other = router.post(CHAT, b"{")
    third = router.post(CHAT, b"{")
    assert mine.get("x-request-id") == "mine-1"
    assert other.get("x-request-id") != third.get("x-request-id")


def test_an_error_does_not_repeat_what_the_client_wrote(router):
    answer = router.post(CHAT, b'{"messages":"secret words"}')
    assert b"secret" not in answer.read_all()
    assert json.loads(answer.read_all())


def test_more_at_once_than_a_worker_may_have_is_503(start_router, start_worker):
    worker = start_worker()
    router = start_router([worker], "--worker-conn-count-max", 1)
    first = router.connect()
    first.post(CHAT, CHAT.request())
    held = worker.expect()

    answer = router.post(CHAT, CHAT.request())

    assert answer.status == 503
    assert error_of(answer)["code"] == "overloaded"
    assert 1 <= float(answer.get("retry-after")) <= 60
    assert router.request_line(answer)["end"] == "overloaded"
    held.answer(CHAT.answer())
    assert first.answer().read_all() == CHAT.answer()
    worker.handler = lambda request: request.answer(CHAT.answer())
    assert router.post(CHAT, CHAT.request()).status == 200


def test_more_clients_than_allowed_are_turned_away_and_counted(start_router, start_worker):
    router = start_router([start_worker()], "--client-count-max", 3)
    kept = [router.connect() for _ in range(3)]
    for client in kept:
        client.request("GET", "/health")
        assert client.answer("GET").read_all()

    router.connect().wait_end()

    assert router.metric_sum("samovar_router_client_connections_refused_total") >= 1
    full = router.metric_sum("samovar_router_client_connections")
    kept[0].close()
    wait_until(lambda: router.metric_sum("samovar_router_client_connections") < full, "room")
    assert router.get("/health").status == 200


def test_without_descriptors_it_neither_spins_nor_blames_its_workers(start_router, start_worker):
    worker = start_worker()
    worker.handler = lambda request: request.answer(CHAT.answer())
    router = start_router([worker], "--probe-interval-ms", 20)
    soft, hard = resource.prlimit(router.pid, resource.RLIMIT_NOFILE)
    room = router.open_descriptors() + 3
    resource.prlimit(router.pid, resource.RLIMIT_NOFILE, (room, hard))
    clients = [router.connect() for _ in range(20)]  # most of them are turned away
    while router.open_descriptors() < room:  # the place that a probe had
        clients.append(router.connect())
    before_s = router.cpu_seconds()
    time.sleep(0.3)  # ten probes long: what must not happen has no event to wait for

    assert router.cpu_seconds() - before_s < 0.15
    assert not router.log.find("worker_state", state="down")
    for client in clients:
        client.close()
    resource.prlimit(router.pid, resource.RLIMIT_NOFILE, (soft, hard))
    wait_until(lambda: router.open_descriptors() < room, "descriptors are free again")
    assert router.post(CHAT, CHAT.request()).status == 200
