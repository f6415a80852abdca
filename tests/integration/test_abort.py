# SPDX-License-Identifier: Apache-2.0
"""A client that leaves is noticed in every phase, and its worker is told within 100 ms: that is
what stops the engine."""

import statistics
import time

import pytest

from peers.http1 import chunk, request_bytes
from peers.openai_api import CHAT
from peers.process import TCP_SYN_SENT, count_tcp, wait_until

# On a busy machine a single notice may come late without being slow: the 100 ms are asked of the
# median, in the last test of this file, and of a single one only that it comes promptly.
NOTICED_S = 0.1
PROMPT_S = 1.0

ways = pytest.mark.parametrize("how", ["fin", "rst"])
both_forms = pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])


def assert_worker_is_told(request, leave):
    """leave() makes the client leave; request is what the worker holds."""
    left_at = time.monotonic()
    leave()
    end = request.wait_end()
    assert end.at - left_at < PROMPT_S
    request.finish()
    return end.at - left_at


def assert_logged_as_abort(router, count=1):
    lines = router.log.wait_count("request", count, end="client_abort")
    assert len(router.log.find("request")) == count
    router.wait_idle()
    return lines[0]


@ways
@both_forms
def test_before_the_head_of_the_answer(router, worker, api, is_stream, how):
    client = router.connect()
    client.post(api, api.request(stream=is_stream))
    request = worker.expect()
    request.body()

    assert_worker_is_told(request, lambda: client.end_by(how))

    line = assert_logged_as_abort(router)
    assert line["api"] == api.name
    assert line["worker"] == worker.url


@ways
@both_forms
def test_between_the_head_and_the_first_byte_of_the_body(router, worker, api, is_stream, how):
    """Of a stream the client has not seen the head either: it waits for the first byte."""
    client = router.connect()
    client.post(api, api.request(stream=is_stream))
    request = worker.expect()
    if is_stream:
        request.start_stream()
    else:
        request.body()
        request.send_head(200, content_length=100)
        client.answer()

    assert_worker_is_told(request, lambda: client.end_by(how))

    assert_logged_as_abort(router)


@ways
def test_between_two_events(router, worker, api, how):
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    answer = None
    for event in api.stream()[:2]:
        request.send_chunk(event)
        answer = answer or client.answer()
        answer.read(len(event))

    assert_worker_is_told(request, lambda: client.end_by(how))

    assert_logged_as_abort(router)


@ways
def test_in_the_middle_of_an_event(router, worker, api, how):
    client = router.connect()
    client.post(api, api.request(stream=True, stream_options={}))
    request = worker.expect()
    request.start_stream()
    half = api.event("Tea")[:40]
    request.send_chunk(half)
    client.answer().read(len(half))

    assert_worker_is_told(request, lambda: client.end_by(how))

    assert_logged_as_abort(router)


@ways
def test_in_the_middle_of_a_body_that_is_not_streamed(router, worker, api, how):
    client = router.connect()
    client.post(api, api.request())
    request = worker.expect()
    request.send_head(200, content_type="application/json", content_length=1000)
    request.send(b"{")
    client.answer().read(1)

    assert_worker_is_told(request, lambda: client.end_by(how))

    assert_logged_as_abort(router)


def test_while_events_flow(router, worker, api):
    """The worker sends without a pause: the end of the client must not wait for silence."""
    client = router.connect(receive_bytes=65536)
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.wire.send_until_blocked(chunk(api.event("x" * 10_000)) * 3000)
    client.answer()

    assert_worker_is_told(request, lambda: client.end_by("rst"))

    assert_logged_as_abort(router)


@both_forms
def test_the_end_of_the_clients_side_alone_counts_as_leaving(router, worker, api, is_stream):
    """FIN behind a whole request cannot be told from a client that is gone."""
    client = router.connect()
    client.post(api, api.request(stream=is_stream))
    request = worker.expect()
    request.body()

    assert_worker_is_told(request, client.half_close)

    assert_logged_as_abort(router)


@pytest.fixture
def half_closing(start_router, worker):
    return start_router([worker], "--client-half-close")


@both_forms
def test_a_client_may_end_its_side_where_that_is_allowed(half_closing, worker, api, is_stream):
    client = half_closing.connect()
    client.post(api, api.request(stream=is_stream))
    client.half_close()
    request = worker.expect()
    if is_stream:
        request.start_stream()
        for event in api.stream():
            request.send_chunk(event)
            assert not request.wire.wait_readable(0.03)  # the router looks each 40 ms
        request.end_stream()
    else:
        request.answer(api.answer())

    answer = client.answer()

    assert answer.read_all() == (b"".join(api.stream()) if is_stream else api.answer())
    assert client.wait_end().kind == "fin"
    assert half_closing.request_line(answer)["end"] == "ok"


def test_a_reset_behind_the_end_of_its_side_is_leaving_all_the_same(half_closing, worker, api):
    client = half_closing.connect()
    client.post(api, api.request())
    client.half_close()
    request = worker.expect()
    request.body()

    assert_worker_is_told(request, client.reset)

    assert_logged_as_abort(half_closing)


@ways
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_while_it_sends_its_body(router, worker, api, framing, how):
    client = router.connect()
    whole = request_bytes("POST", api.path, api.request("x" * 1000), framing=framing)
    client.send(whole[:-500])
    wait_until(lambda: router.in_flight(), "the router has begun to read the request")

    client.end_by(how)

    line = assert_logged_as_abort(router)
    assert not line.get("worker")
    worker.assert_no_request()


@ways
def test_while_the_worker_is_being_connected(start_router, worker, how):
    router = start_router([worker], "--connect-ms", 30000)
    worker.hang_connects()
    client = router.connect()
    before = count_tcp(worker.port, TCP_SYN_SENT)
    client.post(CHAT, CHAT.request(stream=True))
    wait_until(lambda: count_tcp(worker.port, TCP_SYN_SENT) > before, "the connect hangs")

    left_at = time.monotonic()
    client.end_by(how)
    wait_until(lambda: count_tcp(worker.port, TCP_SYN_SENT) == before, "the connect is given up")

    assert time.monotonic() - left_at < PROMPT_S
    assert_logged_as_abort(router)


def test_the_workers_connection_is_not_used_again(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    first = worker.expect()
    first.start_stream()
    first.send_chunk(CHAT.event("Tea"))
    client.answer()
    client.close()
    first.wait_end()

    again = router.connect()
    again.post(CHAT, CHAT.request())
    second = worker.expect()

    assert second.wire is not first.wire
    second.answer(CHAT.answer())
    assert again.answer().read_all() == CHAT.answer()


def test_a_client_that_leaves_is_no_failure_of_the_worker(router, worker):
    for _ in range(5):
        client = router.connect()
        client.post(CHAT, CHAT.request())
        request = worker.expect()
        client.close()
        request.wait_end()
        request.finish()
    assert_logged_as_abort(router, 5)

    assert router.worker(worker)["state"] == "up"


@ways
@both_forms
def test_leaving_after_the_whole_answer_is_success(router, worker, api, is_stream, how):
    client = router.connect()
    client.post(api, api.request(stream=is_stream))
    request = worker.expect()
    request.stream(api.stream()) if is_stream else request.answer(api.answer())
    answer = client.answer()
    answer.read_all()
    client.end_by(how)

    line = router.request_line(answer)

    assert (line["status"], line["end"]) == (200, "ok")
    router.wait_idle()


def test_leaving_with_the_answer_unread_but_complete_is_success(router, worker, api):
    """The worker has done its part and the bytes are on their way: nothing was aborted."""
    client = router.connect()
    client.post(api, api.request())
    worker.expect().answer(api.answer())
    line = router.log.wait("request")
    client.reset()
    assert line["end"] == "ok"


@ways
def test_with_more_pipelined_behind_it_than_the_router_reads(router, worker, how):
    """The end of the connection stands behind bytes that nobody reads before the answer's end."""
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    client.send(request_bytes("POST", CHAT.path, CHAT.request("x" * 300_000)))

    assert_worker_is_told(request, lambda: client.end_by(how))

    assert_logged_as_abort(router)


def test_a_pipelined_request_of_a_client_that_left_is_not_run(router, worker):
    client = router.connect()
    client.send(request_bytes("POST", CHAT.path, CHAT.request("first"))
                + request_bytes("POST", CHAT.path, CHAT.request("second")))
    first = worker.expect()

    assert_worker_is_told(first, client.reset)

    router.wait_idle()
    other = router.connect()
    other.post(CHAT, CHAT.request("third"))
    third = worker.expect()
    assert third.json()["messages"][0]["content"] == "third"
    third.answer(CHAT.answer())
    assert other.answer().status == 200


def test_leaving_behind_done_is_success(router, worker, api):
    """The client has its answer; only the worker's own end of it has not come yet."""
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(api.event("whole"))
    request.send_chunk(b"data: [DONE]\n\n")
    client.answer().read(len(api.event("whole") + b"data: [DONE]\n\n"))

    client.reset()

    request.wait_end()
    line = router.log.wait("request")
    assert line["end"] == "ok"
    router.wait_idle()


@ways
def test_half_of_all_workers_are_told_within_100_ms(router, worker, how):
    took = []
    for _ in range(9):
        client = router.connect()
        client.post(CHAT, CHAT.request(stream=True))
        request = worker.expect()
        request.start_stream()
        request.send_chunk(CHAT.event("x"))
        client.answer()
        took.append(assert_worker_is_told(request, lambda: client.end_by(how)))

    assert statistics.median(took) < NOTICED_S
