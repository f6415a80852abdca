# SPDX-License-Identifier: Apache-2.0
"""The corners of HTTP that clients, browsers, probes and other proxies use."""

import time

import pytest

from peers.http1 import LAST_CHUNK, chunk
from peers.meanwhile import meanwhile
from peers.openai_api import CHAT
from peers.router import error_of
from peers.wire import WireEnded

PAGE = "https://chat.example"
PREFLIGHT = {"Origin": PAGE, "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,content-type"}


def cors_of(answer):
    return {name.lower(): value for name, value in answer.head.fields
            if name.lower().startswith("access-control-")}


def ask(router, worker, fields=()):
    """A client whose request is with the worker."""
    client = router.connect()
    client.post(CHAT, CHAT.request(), fields)
    return client, worker.expect()


# --- methods ---

@pytest.mark.parametrize("target, allow", [
    ("*", "GET, HEAD, POST, DELETE, OPTIONS"), ("/v1/chat/completions", "POST, OPTIONS"),
    ("/v1/models", "GET, HEAD, OPTIONS"), ("/v1/models/a/b?c", "GET, HEAD, OPTIONS"),
])
def test_options_says_what_may_be_asked_and_reaches_no_worker(router, worker, target, allow):
    answer = router.call("OPTIONS", target)
    assert answer.status == 204
    assert answer.get("allow") == allow
    assert answer.get("content-length") is None and answer.get("x-request-id")
    worker.assert_no_request()


def test_options_of_nothing_is_404(router):
    assert router.call("OPTIONS", "/nothing").status == 404


@pytest.mark.parametrize("method", ["PUT", "TRACE", "PATCH", "PROPFIND"])
def test_a_405_lists_every_method_of_the_path(router, method):
    answer = router.call(method, "/v1/models")
    assert answer.status == 405
    assert answer.get("allow") == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("target", ["/health", "/readyz", "/version", "/v1/models", "/v1/models/tiny",
                                    "/", "/v1/nothing"])
def test_head_is_get_without_the_body(router, target):
    client = router.connect()
    client.request("HEAD", target)
    head = client.answer("HEAD")
    client.request("GET", target)  # the next answer begins where the body would
    get = client.answer("GET")
    assert head.status == get.status
    assert head.get("content-length") == get.get("content-length") == str(len(get.read_all()))


def test_an_operators_paths_take_head_and_options_too(router):
    assert router.admin("/metrics", "HEAD").status == 200
    assert router.admin("/metrics", "OPTIONS").get("allow") == "GET, HEAD, OPTIONS"


# --- pages in browsers ---

def test_no_page_may_read_answers_unless_it_is_named(router, worker):
    answer = router.call("OPTIONS", "/v1/chat/completions", None, PREFLIGHT)
    assert answer.status == 204 and not cors_of(answer)
    client, request = ask(router, worker, {"Origin": PAGE})
    request.answer(CHAT.answer(), access_control_allow_origin="*", access_control_max_age="9")
    assert not cors_of(client.answer()), "the worker's own policy went through"


@pytest.mark.parametrize("origins", [PAGE, f"http://a.test,{PAGE}", "*"])
def test_a_page_that_is_named_gets_its_preflight_and_reads_answers(start_router, worker, origins):
    router = start_router([worker], "--cors-origins", origins)
    preflight = router.call("OPTIONS", "/v1/chat/completions", None, PREFLIGHT)
    assert preflight.status == 204
    assert cors_of(preflight) == {
        "access-control-allow-origin": PAGE,
        "access-control-expose-headers": "x-request-id, retry-after",
        "access-control-allow-methods": "POST, OPTIONS",
        "access-control-allow-headers": "authorization,content-type",
        "access-control-max-age": "600",
    }
    worker.assert_no_request()

    client, request = ask(router, worker, {"Origin": PAGE})
    request.answer(CHAT.answer(), access_control_allow_origin="http://not.mine")
    relayed = client.answer()
    assert cors_of(relayed)["access-control-allow-origin"] == PAGE
    assert "Origin" in relayed.head.all("vary")
    refused = router.post(CHAT, b"{", {"Origin": PAGE})
    assert refused.status == 400 and cors_of(refused)["access-control-allow-origin"] == PAGE


def test_any_other_page_gets_nothing(start_router, worker):
    router = start_router([worker], "--cors-origins", PAGE)
    for origin in ("https://evil.example", "null", PAGE + ".evil"):
        answer = router.call("OPTIONS", "/v1/models", None, {**PREFLIGHT, "Origin": origin})
        assert answer.status == 204 and not cors_of(answer)
        assert answer.get("vary") == "Origin"


# --- 100-continue ---

def expect_head(target, length, version="1.1"):
    return (f"POST {target} HTTP/{version}\r\nHost: a\r\nContent-Type: application/json\r\n"
            f"Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n").encode()


def test_a_client_that_waits_for_100_gets_it_at_once(router, worker):
    body = CHAT.request()
    client = router.connect()
    begun = time.monotonic()
    client.send(expect_head(CHAT.path, len(body)))
    assert client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert time.monotonic() - begun < 1  # curl sends the body unasked after a second
    client.send(body)
    request = worker.expect()
    assert request.get("expect") is None
    request.answer(CHAT.answer())
    assert client.answer().read_all() == CHAT.answer()


@pytest.mark.parametrize("target, length, fields, status", [
    ("/nothing", 3, b"", 404), ("/v1/models", 3, b"", 405),
    (CHAT.path, 1 << 40, b"", 413), (CHAT.path, 3, b"Expect: banana\r\n", 417),
])
def test_a_refusal_comes_instead_of_100_and_ends_the_connection(router, worker, target, length, fields,
                                                                status):
    client = router.connect()
    client.send(expect_head(target, length)[:-2] + fields + b"\r\n")
    first = client.read_until(b"\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nconnection: close\r\n" in client.read_to_end()
    worker.assert_no_request()


def test_http_1_0_knows_no_100(router, worker):
    body = CHAT.request()
    client = router.connect()
    client.send(expect_head(CHAT.path, len(body), "1.0") + body)
    worker.expect().answer(CHAT.answer())
    assert client.read_until(b"\r\n").startswith(b"HTTP/1.1 200 ")


# --- limits ---

@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("excess, status", [(0, 200), (1, 413)])
def test_a_body_may_have_its_limit_and_not_one_byte_more(start_router, worker, framing, excess, status):
    router = start_router([worker], "--body-bytes-max", 4096)
    worker.handler = lambda request: request.answer(CHAT.answer())
    body = CHAT.request("x" * (4096 + excess - len(CHAT.request(""))))
    assert len(body) == 4096 + excess
    answer = router.post(CHAT, body, framing=framing)
    assert answer.status == status
    if status == 413:
        message = error_of(answer)["message"]
        assert "4097" in message and "4096" in message and "--body-bytes-max" in message
        line = router.request_line(answer)
        assert line["error"] == "request_too_large" and line["path"] == CHAT.path


def test_the_default_limit_is_32_mib(router):
    client = router.connect()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 33554433\r\n\r\n")
    message = error_of(client.answer())["message"]
    assert "33554433" in message and "33554432" in message


def test_a_413_of_messages_is_in_anthropics_form(start_router, worker):
    router = start_router([worker], "--body-bytes-max", 1024)
    answer = router.call("POST", "/v1/messages", b"{" + b" " * 2000)
    assert answer.status == 413
    assert answer.json()["type"] == "error"


@pytest.mark.parametrize("extension_bytes, status", [(4096, 200), (4097, 400)])
def test_chunk_extensions_are_limited_and_dropped(router, worker, extension_bytes, status):
    worker.handler = lambda request: request.answer(CHAT.answer())
    body = CHAT.request()
    client = router.connect()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"%x;%b\r\n%b\r\n" % (len(body), b"e" * extension_bytes, body) + LAST_CHUNK)
    assert client.answer().status == status


def test_tls_on_the_plain_port_is_told_and_logged(router):
    client = router.connect()
    client.send(b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03")
    answer = client.answer()
    assert answer.status == 400
    assert error_of(answer)["code"] == "tls_on_plain_port"
    assert router.request_line(answer)["error"] == "tls_on_plain_port"


# --- pipelining ---

def test_a_good_request_is_answered_before_the_bad_one_behind_it(router, worker):
    body = CHAT.request()
    client = router.connect()
    client.post(CHAT, body)
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
    worker.expect().answer(CHAT.answer())
    good = client.answer()
    assert good.read_all() == CHAT.answer()
    bad = client.answer("GET")
    assert bad.status == 400 and bad.get("connection") == "close"
    bad.read_all()
    assert client.read_to_end() == b""


def test_what_follows_connection_close_is_never_run(router, worker):
    client = router.connect()
    client.request("GET", "/health", None, {"Connection": "close"})
    client.post(CHAT, CHAT.request())
    first = client.answer("GET")
    assert first.read_all() and first.get("connection") == "close"
    assert client.read_to_end() == b""
    worker.assert_no_request()


# --- what is passed on, and what is not ---

def test_a_client_cannot_take_away_what_a_message_means(router, worker):
    client, request = ask(router, worker, {
        "Connection": "authorization, host, content-length, x-request-id, x-forwarded-for, x-mine",
        "Authorization": "Bearer k", "X-Forwarded-For": "10.0.0.1", "X-Mine": "1",
        "X-Request-Id": "kept-1", "TE": "trailers", "Keep-Alive": "timeout=5", "Upgrade": "websocket",
        "Proxy-Connection": "keep-alive"})
    assert request.get("authorization") == "Bearer k"
    assert request.get("host") == worker.authority
    assert request.get("x-forwarded-for") == "10.0.0.1"
    assert request.get("x-request-id").startswith("kept-1-")
    assert int(request.get("content-length")) == len(request.body())
    for name in ("x-mine", "te", "keep-alive", "upgrade", "proxy-connection", "connection"):
        assert request.get(name) is None, name
    request.answer(CHAT.answer())
    assert client.answer().status == 200


def test_an_absolute_target_reaches_the_worker_as_a_path(router, worker):
    body = CHAT.request()
    client = router.connect()
    client.send(b"POST http://Samovar.Test:80/v1/chat/completions?q HTTP/1.1\r\n"
                b"Host: samovar.test:80\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    request = worker.expect()
    assert request.target == "/v1/chat/completions?q"
    assert request.get("host") == worker.authority
    request.answer(CHAT.answer())
    assert client.answer().status == 200


def test_a_length_is_written_anew(router, worker):
    body = CHAT.request()
    client = router.connect()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 000%d\r\n\r\n" % len(body)
                + body)
    assert worker.expect().get("content-length") == str(len(body))


def test_a_chunked_body_of_known_end_has_a_length_upstream(router, worker):
    body = CHAT.request()
    client = router.connect()
    client.post(CHAT, body, framing="chunked")
    request = worker.expect()
    assert request.get("transfer-encoding") is None
    assert request.get("content-length") == str(len(body)) and request.body() == body


# --- early answers ---

@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_worker_that_refuses_before_it_has_read_is_heard(router, worker, how):
    body = CHAT.request("x" * (8 << 20))
    client = router.connect()
    with meanwhile(lambda: client.post(CHAT, body)):
        request = worker.expect()
        request.message.read(1024)
        refusal = b'{"error":{"message":"too long"}}'
        request.send(b"HTTP/1.1 413 Too Large\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(refusal) + refusal)
        if how == "rst":
            answer = client.answer()  # before the reset, which may take away what was not read
            assert answer.read_all() == refusal
        request.end_by(how)
    if how == "fin":
        answer = client.answer()
        assert answer.read_all() == refusal
    assert answer.status == 413


def test_a_client_that_still_sends_gets_the_refusal(router):
    """Its bytes are taken and dropped, so that no reset takes the answer from it."""
    client = router.connect()
    client.send(b"POST /nothing HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        for _ in range(64):
            client.send(chunk(b"x" * 16384))
    except OSError:
        pass
    assert client.answer().status == 404


def test_who_leaves_in_mid_request_leaves_nothing_behind(router, worker):
    client = router.connect()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
    client.half_close()
    with pytest.raises(WireEnded):
        client.answer()
    router.wait_idle()
    worker.assert_no_request()
