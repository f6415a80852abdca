# SPDX-License-Identifier: Apache-2.0
"""What the client sends reaches the worker, and what the worker sends reaches the client: byte for
byte, as it comes, however it is framed and cut."""

import gzip
import hashlib
import json

import pytest

from peers.http1 import LAST_CHUNK, chunk, head_bytes, request_bytes
from peers.meanwhile import meanwhile
from peers.openai_api import CHAT, COMPLETIONS, DONE, USAGE_ASK, sse
from peers.process import is_sanitized
from peers.wire import WAIT_S

# Legal JSON that no encoder writes: who re-encodes it is found out.
ODD_SPELLING = (
    b'\n{ "messages":\t[ {"content" :"\\u0041\\/caf\xc3\xa9 \xf0\x9f\xab\x96","role":"user"}],'
    b'"temperature":1.0e+0, "x_unknown":[null,-0,12345678901234567890],"model":"tiny" }\r\n'
)


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_request_body_reaches_the_worker_unchanged(router, worker, framing):
    client = router.connect()
    client.post(CHAT, ODD_SPELLING, framing=framing)

    request = worker.expect()

    assert request.body() == ODD_SPELLING
    # The whole body is known when it is sent, so its length always is: some engines refuse chunks.
    assert request.get("content-length") == str(len(ODD_SPELLING))
    request.answer(CHAT.answer())
    assert client.answer().status == 200


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_answer_body_reaches_the_client_unchanged(router, worker, framing):
    # Not JSON at all: whether the router understands it must not matter.
    body = bytes(range(256)) * 40
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.body()

    if framing == "length":
        request.send_head(200, content_type="application/json", content_length=len(body))
        request.send(body)
    elif framing == "chunked":
        request.send_head(200, content_type="application/json", transfer_encoding="chunked")
        request.send(chunk(body[:1]) + chunk(body[1:]) + LAST_CHUNK)
    else:
        request.send_head(200, content_type="application/json", connection="close")
        request.send(body)
        request.wire.half_close()

    answer = client.answer()
    assert answer.read_all() == body
    assert answer.framing == "length" if framing == "length" else answer.framing == "chunked"
    assert router.request_line(answer)["end"] == "ok"


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_five_megabytes_pass_both_ways(router, worker, framing):
    body = CHAT.request("Лимон и чай. 🫖 " * 200_000)
    assert len(body) > 5_000_000
    client = router.connect()
    client.post(CHAT, body, framing=framing)

    request = worker.expect()
    assert hashlib.sha256(request.body()).digest() == hashlib.sha256(body).digest()
    with meanwhile(request.answer, body):
        got = client.answer().read_all()
    assert hashlib.sha256(got).digest() == hashlib.sha256(body).digest()


def test_each_event_arrives_before_the_next_is_sent(router, worker, api):
    client = router.connect()
    client.post(api, api.request(stream=True, stream_options={"include_usage": True}))
    request = worker.expect()
    request.start_stream()

    answer = None
    for event in api.stream(["Tea", " is", " ready"] * 10, with_usage=True):
        request.send_chunk(event)
        answer = answer or client.answer()
        assert answer.read(len(event)) == event
    request.end_stream()

    answer.read_all()
    assert answer.get("content-length") is None


def test_events_are_not_held_back_when_usage_is_taken_out(router, worker, api):
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()

    answer = None
    for event in api.stream(["Tea", " is", " ready"]):
        request.send_chunk(event)
        answer = answer or client.answer()
        assert answer.read(len(event)) == event
    request.end_stream()
    answer.read_all()


def test_the_head_of_a_whole_answer_arrives_before_its_body(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.body()
    request.send_head(200, content_type="application/json", content_length=5)

    answer = client.answer()

    request.send(b"hello")
    assert answer.read_all() == b"hello"
    request.finish()


def test_characters_may_be_cut_anywhere(router, worker):
    """Each byte in a chunk and a segment of its own."""
    body = b"".join(CHAT.stream(["чай", "🫖", "茶"]))
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    for at in range(len(body)):
        request.send_chunk(body[at : at + 1])
    request.end_stream()

    assert client.answer().read_all() == body


def test_a_stream_may_be_cut_at_each_position(router, worker):
    body = sse({"choices": [{"index": 0, "delta": {"content": "é🫖"}}]}) + DONE
    client = router.connect()
    for at in range(1, len(body)):
        client.post(CHAT, CHAT.request(stream=True))
        request = worker.expect()
        request.start_stream()
        request.send_chunk(body[:at])
        request.send_chunk(body[at:])
        request.end_stream()
        assert client.answer().read_all() == body, f"cut at {at}"


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_unusual_event_streams_pass_unchanged(router, worker, line_end):
    lines = [b"\xef\xbb\xbf: a comment behind a byte order mark", b"", b"id: 7", b"event: message",
             b'data: {"choices":[', b'data: {"index":0,"delta":{"content":"x"}}]}', b"",
             b": ping", b"", b"data", b"", b"data: [DONE]", b"", b""]
    body = line_end.join(lines)
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    worker.expect().stream([body])

    assert client.answer().read_all() == body


def test_an_event_of_eight_megabytes_passes_unchanged(router, worker):
    event = sse({"choices": [{"index": 0, "delta": {"content": "x" * (8 << 20)}}]})
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    with meanwhile(worker.expect().stream, [event, CHAT.event("after"), DONE]):
        body = client.answer().read_all()

    assert hashlib.sha256(body).digest() == hashlib.sha256(
        event + CHAT.event("after") + DONE).digest()


def test_connections_are_kept_and_used_again_on_both_sides(router, worker):
    client = router.connect()
    for number in range(20):
        client.post(CHAT, CHAT.request(f"question {number}"))
        worker.expect().answer(CHAT.answer(f"answer {number}"))
        answer = client.answer()
        assert answer.read_all() == CHAT.answer(f"answer {number}")
        assert answer.get("connection") in (None, "keep-alive")
    assert worker.connections_total == 1


def test_pipelined_requests_are_answered_in_order(router, worker):
    client = router.connect()
    client.send(b"".join(request_bytes("POST", CHAT.path, CHAT.request(f"q{number}"))
                         for number in range(3)))
    for number in range(3):
        request = worker.expect()
        assert request.json()["messages"][0]["content"] == f"q{number}"
        request.answer(CHAT.answer(f"a{number}"))
    for number in range(3):
        assert client.answer().read_all() == CHAT.answer(f"a{number}")


def test_a_client_that_asks_on_without_reading_costs_no_memory(start_router, start_worker):
    router = start_router([start_worker(models=[f"model-{number}" for number in range(200)])])
    client = router.connect(receive_bytes=65536)
    before_kib = router.rss_kib()

    asked = request_bytes("GET", "/v1/models", fields={"X-Padding": "x" * 8000})
    sent = client.send_until_blocked(asked * 5000)

    assert sent < 5000 * len(asked), "the client was never stopped"
    assert is_sanitized("samovar-router") or router.rss_kib() - before_kib < 2048
    # and once it reads, it gets all that it asked for
    with meanwhile(client.send, asked[sent % len(asked):] if sent % len(asked) else b""):
        for _ in range(-(-sent // len(asked))):
            assert len(client.answer("GET").json()["data"]) == 200


def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_the_connection(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True), version="1.0")
    events = CHAT.stream()
    worker.expect().stream(events)

    answer = client.answer()

    assert answer.framing == "close"
    assert answer.read_all() == b"".join(events)


def test_connection_close_of_the_client_is_honoured(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(), {"Connection": "close"})
    worker.expect().answer(CHAT.answer())

    answer = client.answer()

    assert answer.read_all() == CHAT.answer()
    assert answer.get("connection") == "close"
    assert client.wait_end().kind == "fin"


def test_connection_close_of_the_worker_ends_only_its_own_connection(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    first = worker.expect()
    first.body()
    first.send_head(200, content_type="application/json", content_length=2, connection="close")
    first.send(b"{}")
    answer = client.answer()
    assert answer.read_all() == b"{}"
    assert answer.get("connection") in (None, "keep-alive")
    first.wait_end()

    client.post(CHAT, CHAT.request())
    second = worker.expect()
    assert second.wire is not first.wire
    second.answer(b"{}")
    assert client.answer().status == 200


def test_the_workers_head_of_the_request_is_written_anew(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(), {
        "Host": "front.example:1234", "Authorization": "Bearer abc", "X-Stainless-Lang": "python",
        "Connection": "keep-alive, X-Hop", "X-Hop": "1", "Keep-Alive": "timeout=5",
        "TE": "trailers",
        "X-Request-Id": "mine.1_2-3", "Idempotency-Key": "k"})

    request = worker.expect()

    assert request.message.head.start == "POST /v1/chat/completions HTTP/1.1"
    assert request.get("host") == worker.authority
    assert request.get("authorization") == "Bearer abc"
    assert request.get("x-stainless-lang") == "python"
    assert request.get("idempotency-key") == "k"
    for hop in ("x-hop", "keep-alive", "te"):
        assert request.get(hop) is None
    assert (request.get("connection") or "keep-alive").lower() == "keep-alive"
    attempt = request.get("x-request-id")
    assert attempt.startswith("mine.1_2-3-") and len(attempt) == len("mine.1_2-3-") + 6
    request.answer(CHAT.answer())
    answer = client.answer()
    assert answer.get("x-request-id") == "mine.1_2-3"
    assert router.request_line(answer)["attempt_id"] == attempt


def test_the_query_of_the_target_passes(router, worker):
    client = router.connect()
    client.request("POST", "/v1/chat/completions?api-version=2&x=%2f", CHAT.request())
    request = worker.expect()
    assert request.target == "/v1/chat/completions?api-version=2&x=%2f"
    request.answer(CHAT.answer())
    assert client.answer().status == 200


def test_the_clients_head_of_the_answer_is_written_anew(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(CHAT.answer(), x_engine="e", x_request_id="the-engines",
                           connection="keep-alive, X-Hop", x_hop="1", keep_alive="timeout=5",
                           server="uvicorn")

    answer = client.answer()

    assert answer.get("x-engine") == "e"
    assert answer.get("x-hop") is None and answer.get("keep-alive") is None
    assert answer.get("x-samovar-worker") == worker.url
    assert answer.get("x-request-id") not in (None, "the-engines")
    assert len(answer.head.all("server")) <= 1 and len(answer.head.all("date")) <= 1
    answer.read_all()


@pytest.mark.parametrize("bad", ["", "has space", "a/b", "é", "x" * 129, 'quote"'])
def test_an_unfit_request_id_of_a_client_is_replaced(router, worker, bad):
    client = router.connect()
    client.post(CHAT, CHAT.request(), {"X-Request-Id": bad})
    request = worker.expect()
    request.answer(CHAT.answer())

    own = client.answer().get("x-request-id")

    assert own and own != bad
    assert request.get("x-request-id").startswith(own + "-")


def test_interim_answers_of_the_worker_are_not_the_answer(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.body()
    request.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
    request.answer(CHAT.answer())

    raw = client.read_until(b"\r\n\r\n")

    assert raw.startswith(b"HTTP/1.1 200 ")


def test_a_client_that_waits_for_100_continue_gets_it_at_once(router, worker):
    body = CHAT.request()
    client = router.connect()
    client.send(request_bytes("POST", CHAT.path, body, {"Expect": "100-continue"})[: -len(body)])

    assert client.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")

    client.send(body)
    request = worker.expect()
    assert request.get("expect") is None
    assert request.body() == body
    request.answer(CHAT.answer())
    assert client.answer().status == 200


@pytest.mark.parametrize("status", [201, 400, 401, 404, 422, 500])
def test_a_workers_own_status_and_body_pass(router, worker, status):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(b'{"detail":"as the engine says it"}', status)

    answer = client.answer()

    assert answer.status == status
    assert answer.read_all() == b'{"detail":"as the engine says it"}'


def test_an_answer_without_a_body_passes(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(b"")
    answer = client.answer()
    assert answer.status == 200 and answer.read_all() == b""

    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.body()
    request.send(b"HTTP/1.1 204 No Content\r\n\r\n")
    request.finish()
    assert client.answer().status == 204


def test_an_answer_that_comes_before_the_body_was_read_is_relayed(router, worker):
    """An engine refuses a large upload early and closes: the reason must arrive, not a 502."""
    client = router.connect()
    client.post(CHAT, CHAT.request("x" * 10_000_000))
    request = worker.expect()
    request.send_head(413, content_type="application/json", content_length=17, connection="close")
    request.send(b'{"error":"large"}')
    request.wire.half_close()

    answer = client.answer()

    assert answer.status == 413
    assert answer.read_all() == b'{"error":"large"}'


def test_a_client_that_does_not_read_stops_the_worker_and_costs_no_memory(router, worker):
    events = [CHAT.event(f"{number:03}" + "x" * 100_000) for number in range(400)] + [DONE]
    client = router.connect(receive_bytes=65536)
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(events[0])
    answer = client.answer()
    before_kib = router.rss_kib()

    stream = b"".join(chunk(event) for event in events[1:]) + LAST_CHUNK
    sent = request.wire.send_until_blocked(stream)

    assert sent < len(stream), "the worker was never stopped"
    assert is_sanitized("samovar-router") or router.rss_kib() - before_kib < 1024

    # and nothing is lost when the client reads on
    with meanwhile(request.send, stream[sent:]):
        got = answer.read_all()
    request.finish()
    assert hashlib.sha256(got).digest() == hashlib.sha256(b"".join(events)).digest()


def test_one_stalled_client_does_not_delay_another(router, worker):
    stalled = router.connect(receive_bytes=65536)
    stalled.post(CHAT, CHAT.request(stream=True))
    first = worker.expect()
    first.start_stream()
    first.wire.send_until_blocked(chunk(CHAT.event("x" * 1_000_000)) * 30)

    other = router.connect()
    other.post(CHAT, CHAT.request())
    worker.expect().answer(CHAT.answer())

    assert other.answer(timeout_s=1).read_all() == CHAT.answer()


def test_the_body_is_spliced_and_not_encoded_anew_to_ask_for_usage(router, worker):
    body = ODD_SPELLING.replace(b'"temperature"', b'"stream":true,"temperature"')
    client = router.connect()
    client.post(CHAT, body)
    request = worker.expect()

    at = body.index(b"{") + 1
    assert request.body() == body[:at] + USAGE_ASK + body[at:]

    assert json.loads(request.body())["stream_options"] == {"include_usage": True}
    request.stream(CHAT.stream(with_usage=True))
    client.answer().read_all()


def test_a_request_may_come_one_byte_at_a_time(router, worker):
    body = CHAT.request("чай")
    client = router.connect()
    for framing in ("length", "chunked"):
        raw = request_bytes("POST", CHAT.path, body, framing=framing)
        for at in range(len(raw)):
            client.send(raw[at : at + 1])
        request = worker.expect()
        assert request.body() == body
        request.answer(CHAT.answer())
        assert client.answer().read_all() == CHAT.answer()


def test_an_answer_may_come_one_byte_at_a_time(router, worker):
    body = b"".join(CHAT.stream(["чай"], with_usage=True))
    raw = (head_bytes("HTTP/1.1 200 OK", {"Content-Type": "text/event-stream",
                                          "Transfer-Encoding": "chunked"})
           + chunk(body[:100]) + chunk(body[100:]) + LAST_CHUNK)
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.body()
    for at in range(len(raw)):
        request.send(raw[at : at + 1])
    request.finish()

    assert client.answer().read_all() == b"".join(CHAT.stream(["чай"]))


def test_bytes_behind_an_answer_are_not_the_next_answer(router, worker):
    """A worker that sends more than it was asked for has lost the count: its connection goes."""
    client = router.connect()
    client.post(CHAT, CHAT.request())
    first = worker.expect()
    first.body()
    head = head_bytes("HTTP/1.1 200 OK", {"Content-Length": 5, "Content-Type": "text/plain"})
    first.send(head + b"first" + head + b"wrong")
    assert client.answer().read_all() == b"first"
    first.wait_end()
    first.finish()

    client.post(CHAT, CHAT.request())
    worker.expect().answer(b"second")
    assert client.answer().read_all() == b"second"


def test_bytes_on_an_idle_connection_are_not_an_answer(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    first = worker.expect()
    first.body()
    first.send_head(200, content_length=5)
    first.send(b"first")
    assert client.answer().read_all() == b"first"

    first.send(head_bytes("HTTP/1.1 200 OK", {"Content-Length": 5}) + b"wrong")
    first.wait_end()
    first.finish()

    client.post(CHAT, CHAT.request())
    worker.expect().answer(b"second")
    assert client.answer().read_all() == b"second"


def test_a_connection_with_half_a_request_on_it_is_not_used_again(router, worker):
    """The answer came before the body was taken: what the worker reads next would be that body."""
    client = router.connect()
    client.post(CHAT, CHAT.request("x" * 20_000_000))
    request = worker.expect()
    request.send_head(400, content_type="application/json", content_length=2)
    request.send(b"{}")

    answer = client.answer()

    assert answer.status == 400 and answer.read_all() == b"{}"
    request.wait_end()
    request.finish()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(CHAT.answer())
    assert client.answer().status == 200


def test_a_large_whole_answer_is_passed_and_not_gathered(router, worker):
    size = 64 << 20
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.body()
    before_kib = router.rss_kib()
    request.send_head(200, content_type="application/json", content_length=size)
    with meanwhile(request.send, b"x" * size):
        assert client.answer().read_all() == b"x" * size
    request.finish()
    assert is_sanitized("samovar-router") or router.rss_kib() - before_kib < 12 * 1024


def test_what_a_client_pipelines_behind_a_running_stream_waits_with_the_client(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(CHAT.event("Tea"))
    client.answer()
    before_kib = router.rss_kib()

    more = request_bytes("POST", CHAT.path, CHAT.request("x" * 10_000_000)) * 4
    sent = client.send_until_blocked(more)

    assert sent < len(more)
    assert is_sanitized("samovar-router") or router.rss_kib() - before_kib < 2048
    client.reset()
    request.send_chunk(CHAT.event("to nobody"))
    request.wait_end()
    request.finish()


def test_a_worker_that_closes_behind_each_answer_costs_no_request(router, worker):
    """It does not say so: the end of the connection and the next request may cross."""
    def answer_and_close(request):
        request.body()
        request.send(head_bytes("HTTP/1.1 200 OK", {"Content-Length": 2}) + b"{}")
        request.end_by("fin")

    worker.handler = answer_and_close
    client = router.connect()
    for _ in range(300):
        client.post(CHAT, CHAT.request())
        answer = client.answer()
        assert answer.status == 200
        answer.read_all()


def test_answers_are_asked_for_uncompressed(router, worker):
    """A compressed stream could be neither read for usage nor cut between events."""
    client = router.connect()
    client.post(CHAT, CHAT.request(), {"Accept-Encoding": "gzip, br"})
    request = worker.expect()
    assert request.get("accept-encoding") in (None, "identity")
    request.answer(CHAT.answer())
    assert client.answer().status == 200


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_an_answer_that_is_compressed_all_the_same_passes_unchanged(router, worker, kind):
    body = gzip.compress(b"".join(CHAT.stream(with_usage=True)))
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.body()
    request.send_head(200, content_type=kind, content_encoding="gzip", transfer_encoding="chunked")
    request.send_chunk(body)
    request.end_stream()

    answer = client.answer()

    assert answer.get("content-encoding") == "gzip"
    assert answer.read_all() == body


def test_a_stream_that_is_compressed_all_the_same_is_not_held_back(router, worker):
    """No event can be seen in it, so none can be taken out, and nothing is waited for."""
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    packed = gzip.compress(b"".join(CHAT.stream(with_usage=True)))
    request.start_stream(content_encoding="gzip")
    answer = None
    for at in range(0, len(packed), 40):
        request.send_chunk(packed[at : at + 40])
        answer = answer or client.answer()
        assert answer.read(len(packed[at : at + 40])) == packed[at : at + 40]
    request.end_stream()

    assert answer.read_all() == packed


def test_trailers_of_an_answer_are_dropped(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.body()
    request.send_head(200, content_type="application/json", transfer_encoding="chunked")
    request.send(chunk(b"{}") + LAST_CHUNK[:-2] + b"Set-Cookie: a=1\r\nX-Trail: 1\r\n\r\n")
    request.finish()
    assert client.answer().read_all() == b"{}"

    client.post(CHAT, CHAT.request())
    worker.expect().answer(CHAT.answer())
    assert client.answer().read_all() == CHAT.answer()


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], ["", ""]], ids=json.dumps)
def test_a_prompt_of_nothing_is_the_engines_to_judge(router, worker, prompt):
    client = router.connect()
    body = json.dumps({"model": "tiny", "prompt": prompt}).encode()
    client.post(COMPLETIONS, body)

    if prompt == []:
        assert client.answer().status == 400  # no prompt at all
        return
    request = worker.expect()
    assert request.body() == body
    request.answer(COMPLETIONS.answer())
    assert client.answer().read_all() == COMPLETIONS.answer()


def test_an_error_event_of_the_engine_passes_as_it_is(router, worker):
    events = [CHAT.event("Tea"), sse({"error": {"message": "the engine's own", "code": 500}}), DONE]
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    worker.expect().stream(events)

    assert client.answer().read_all() == b"".join(events)


def test_who_reads_no_answers_is_not_answered_without_end(start_router, start_worker):
    """Answers of ours have backpressure too: the requests behind them wait with the client."""
    router = start_router([start_worker(models=[f"model-{n}-" + "x" * 90 for n in range(2000)])])
    whole = router.get("/v1/models").read_all()
    client = router.connect(receive_bytes=65536)

    client.send(request_bytes("GET", "/v1/models") * 150)  # 30 MB of answers to one read
    client.wait_readable(WAIT_S)

    answered = router.metric_sum("samovar_router_requests_total")
    assert answered < 75, "what the sockets hold, and little more"
    for _ in range(150):
        assert client.answer("GET").read_all() == whole
    client.request("GET", "/health")
    assert client.answer("GET").status == 200
