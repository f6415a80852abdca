# SPDX-License-Identifier: Apache-2.0
"""A stream of events on its way: what is read of it however it is spelled and cut, and that nothing
gathers it."""

import ctypes
import hashlib
import os
import socket
import statistics
import struct
import time
from pathlib import Path

import pytest

from peers.meanwhile import meanwhile
from peers.openai_api import CHAT, DONE, USAGE
from peers.process import is_sanitized
from peers.router import error_of

USAGE_JSON = (b'{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":4,"total_tokens":24,'
              b'"prompt_tokens_details":{"cached_tokens":16}}}')
FINISH = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
TEA = '{"choices":[{"index":0,"delta":{"content":"чай 🫖"}}]}'.encode()

# How else the same events may be written: (before, of usage, behind).
SPELLINGS = {
    "plain": (b"data: " + TEA + b"\n\n", b"data: " + USAGE_JSON + b"\n\n"),
    "no blank": (b"data:" + TEA + b"\n\n", b"data:" + USAGE_JSON + b"\n\n"),
    "byte order mark": (b"\xef\xbb\xbfdata: " + TEA + b"\n\n", b"data: " + USAGE_JSON + b"\n\n"),
    "event before data": (b"event: message\ndata: " + TEA + b"\n\n",
                          b"event: message\ndata: " + USAGE_JSON + b"\n\n"),
    "event behind data": (b"data: " + TEA + b"\nevent: message\n\n",
                          b"data: " + USAGE_JSON + b"\nid: 3\nretry: 10\n\n"),
    "several data lines": (b"data: " + TEA.replace(b",", b",\ndata: ") + b"\n\n",
                           b"data: " + USAGE_JSON.replace(b",", b",\ndata: ") + b"\n\n"),
    "comments within": (b": a\ndata: " + TEA + b"\n: b\n\n", b"data: " + USAGE_JSON + b"\n:\n\n"),
}


def send_pieces(request, body, size):
    request.start_stream()
    for at in range(0, len(body), size):
        request.send_chunk(body[at : at + size])
    request.end_stream()


@pytest.mark.parametrize("size", [1, 7, 1 << 20], ids=["byte by byte", "by seven", "whole"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_usage_is_read_and_its_event_taken_out_in_any_spelling(router, worker, spelling, end, size):
    before, usage = (part.replace(b"\n", end) for part in SPELLINGS[spelling])
    behind = (b"data: " + FINISH + b"\n\ndata: [DONE]\n\n").replace(b"\n", end)
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    with meanwhile(send_pieces, worker.expect(), before + usage + behind, size):
        answer = client.answer()
        body = answer.read_all()

    assert body == before + behind
    line = router.request_line(answer)
    assert (line["end"], line["prompt_tokens"], line["cached_tokens"]) == ("ok", 20, 16)
    assert "done_missing" not in line and line["ttft_ms"] > 0


@pytest.mark.parametrize("size", [1, 7, 1 << 20], ids=["byte by byte", "by seven", "whole"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_the_client_asked_for_passes_byte_by_byte(router, worker, spelling, end, size):
    sent = b"".join([*SPELLINGS[spelling], b"data: " + FINISH + b"\n\n" + DONE]).replace(b"\n", end)
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True, stream_options={"include_usage": True}))
    with meanwhile(send_pieces, worker.expect(), sent, size):
        body = client.answer().read_all()

    assert hashlib.sha256(body).digest() == hashlib.sha256(sent).digest()


# --- usage anywhere ---


def test_usage_in_the_middle_is_taken_out_and_learned(router, worker, api):
    events = api.stream()
    client = router.connect()
    client.post(api, api.request(stream=True))
    worker.expect().stream([*events[:2], api.usage_event(), *events[2:]])

    answer = client.answer()

    assert answer.read_all() == b"".join(events)
    assert router.request_line(answer)["cached_tokens"] == 16


def test_usage_in_every_chunk_passes_and_the_newest_counts(router, worker):
    """continuous_usage_stats of vLLM: beside choices it is part of what the client reads."""
    counts = [dict(USAGE, completion_tokens=count) for count in range(1, 5)]
    events = [CHAT._chunk([CHAT._choice("x", None)], usage=usage) for usage in counts]
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    worker.expect().stream([*events, CHAT.finish(), DONE])

    answer = client.answer()

    assert answer.read_all() == b"".join([*events, CHAT.finish(), DONE])
    assert router.request_line(answer)["completion_tokens"] == 4


def test_usage_that_nobody_asked_for_passes_where_we_did_not(start_router, worker, api):
    router = start_router([worker], "--no-usage-ask")
    client = router.connect()
    client.post(api, api.request(stream=True))
    worker.expect().stream(api.stream(with_usage=True))

    answer = client.answer()

    assert answer.read_all() == b"".join(api.stream(with_usage=True))
    assert router.request_line(answer)["cached_tokens"] == 16


# --- large events ---


@pytest.mark.parametrize("piece", [1000, 100_000], ids=["small pieces", "large pieces"])
@pytest.mark.parametrize("lines", [1, 1000], ids=["one line", "a thousand lines"])
def test_an_event_of_eight_megabytes_costs_work_in_proportion(router, worker, piece, lines):
    text = "x" * ((8 << 20) // lines)
    event = b"data: " + b"\ndata: ".join([text.encode()] * lines) + b"\n\n"
    sent = CHAT.event("before") + event + CHAT.usage_event() + CHAT.finish() + DONE
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    before_s, before_kib = router.cpu_seconds(), router.rss_kib()
    with meanwhile(send_pieces, request, sent, piece):
        answer = client.answer()
        body = answer.read_all()

    assert body == sent.replace(CHAT.usage_event(), b"")
    assert router.request_line(answer)["cached_tokens"] == 16, "it goes on reading behind it"
    if not is_sanitized("samovar-router"):
        assert router.cpu_seconds() - before_s < 0.5
        assert router.rss_kib() - before_kib < 6 * 1024


# --- nothing gathers it ---


@pytest.mark.parametrize("own", [None, "private, max-age=5"])
@pytest.mark.parametrize("buffering", [None, "yes"])
def test_proxies_are_told_not_to_gather_a_stream(router, worker, own, buffering):
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream(cache_control=own, x_accel_buffering=buffering)
    for event in CHAT.stream():
        request.send_chunk(event)
    request.end_stream()

    answer = client.answer()

    assert answer.get("cache-control") == (own or "no-cache")
    assert answer.get("x-accel-buffering") == (buffering or "no")
    assert answer.get("content-length") is None
    answer.read_all()


def test_what_is_no_stream_says_nothing_of_gathering(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(CHAT.answer())
    answer = client.answer()
    assert answer.get("x-accel-buffering") is None and answer.get("cache-control") is None
    answer.read_all()


def test_events_arrive_as_they_are_sent(router, worker, api):
    """One each 5 ms: who waits for an acknowledgement (Nagle) would send them in steps of 40."""
    request_count = 200
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    sent = []

    def send_all():
        for number in range(request_count):
            time.sleep(0.005)
            sent.append(time.monotonic())
            request.send_chunk(api.event(f"{number:04}"))
        request.send_chunk(api.finish() + DONE)
        request.end_stream()

    with meanwhile(send_all):
        answer = client.answer()
        late = []
        for number in range(request_count):
            answer.read(len(api.event(f"{number:04}")))
            late.append(time.monotonic() - sent[number])
        answer.read_all()

    assert statistics.median(late) < 0.005
    assert statistics.quantiles(late, n=20)[-1] < 0.03, sorted(late)[-20:]


def data_segments(sock):
    """How many segments with data have come: tcpi_data_segs_in."""
    return struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 152)[0]


def test_head_and_first_bytes_are_one_segment_and_each_event_one_more(router, worker, api):
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    assert data_segments(request.wire.sock) == 1, "head and body of the request"
    request.start_stream()
    event = api.event("Tea")
    request.send_chunk(event)
    answer = client.answer()
    answer.read(len(event))
    assert data_segments(client.sock) == 1
    for number in range(2, 6):
        request.send_chunk(event)
        answer.read(len(event))
        assert data_segments(client.sock) == number
    request.send_chunk(DONE)
    request.end_stream()
    answer.read_all()


def test_a_whole_answer_is_one_segment(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(CHAT.answer())
    client.answer().read_all()
    assert data_segments(client.sock) == 1


def sockets_of(process):
    """Copies of the TCP sockets of a child (pidfd_getfd)."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(process.pid)
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        if not os.readlink(entry).startswith("socket:"):
            continue
        number = libc.syscall(438, pidfd, int(entry.name), 0)
        if number < 0:
            pytest.skip(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
        with socket.socket(fileno=number) as copy:
            if copy.type == socket.SOCK_STREAM and copy.family == socket.AF_INET:
                yield copy
    os.close(pidfd)


def test_no_socket_waits_for_acknowledgements(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(CHAT.event("Tea"))
    client.answer().read(1)

    peers = {request.wire.sock.getsockname(): "worker", client.sock.getsockname(): "client"}
    seen = {}
    for copy in sockets_of(router):
        try:
            side = peers.get(copy.getpeername())
        except OSError:
            continue  # a listener
        if side:
            seen[side] = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert seen == {"worker": 1, "client": 1}
    request.send_chunk(DONE)
    request.end_stream()


# --- what fails before the first byte ---



FAILURES = {
    "unknown model": (404, b'{"model":"none","stream":true,"messages":[{"role":"user","content":"x"}]}',
                      None),
    "bad body": (400, b'{"model":"tiny","stream":true}', None),
    "dies before a byte": (502, None, lambda request: request.end_by("rst")),
    "dies behind its head": (502, None, lambda request: (request.start_stream(),
                                                         request.end_by("fin"))),
    "is silent": (504, None, lambda request: (request.wait_end(), request.finish())),
    "is no http": (502, None, lambda request: (request.send(b"hello\r\n\r\n"),
                                               request.end_by("fin"))),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_stream_that_fails_before_its_first_byte_is_an_error_in_json(
        start_router, worker, failure):
    """Clients read an error object of a status, not an event."""
    status, body, act = FAILURES[failure]
    router = start_router([worker], "--upstream-header-ms", 150)
    client = router.connect()
    client.post(CHAT, body or CHAT.request(stream=True), {"X-Request-Id": "my-id"})
    if act is not None:
        act(worker.expect())

    answer = client.answer()

    assert answer.status == status
    assert answer.get("x-request-id") == "my-id"
    assert answer.get("content-length") is not None
    error_of(answer)  # JSON, and all its keys
    assert len(answer.head.all("date")) <= 1 and len(answer.head.all("server")) <= 1
    assert router.log.wait("request", request_id="my-id")["status"] == status


def test_a_stream_that_broke_off_has_no_usage_but_a_count_of_events(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(b"".join(CHAT.stream()[:3]))
    answer = client.answer()
    answer.read(len(b"".join(CHAT.stream()[:3])))
    request.end_by("rst")
    answer.read_all()

    line = router.request_line(answer)

    assert line["events"] == 3 and line["bytes_out"] > 0
    assert "prompt_tokens" not in line and "completion_tokens" not in line
