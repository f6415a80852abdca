# SPDX-License-Identifier: Apache-2.0
"""A worker that dies while it answers: the client is told, in its API's own form, and success is
never invented. Nothing is repeated: bytes have been given away."""

import gzip
import json

import pytest

from peers.api_families import MESSAGES, RESPONSES, check_error_event
from peers.http1 import chunk, head_bytes
from peers.openai_api import CHAT, DONE, events_of, sse

IDLE_MS = 200

deaths = pytest.mark.parametrize("how", ["fin", "rst", "hang"])


@pytest.fixture
def router(start_router, fleet):
    return start_router(fleet, "--upstream-idle-ms", IDLE_MS)


@pytest.fixture
def worker(fleet):
    return fleet


def die(request, how):
    """hang: the worker falls silent and the router's timer ends it."""
    if how == "hang":
        request.wait_end()
        request.finish()
    else:
        request.end_by(how)


def log_end(how):
    return "upstream_timeout" if how == "hang" else "upstream_truncated"


@deaths
@pytest.mark.parametrize("event_count", [1, 3])
def test_between_events_the_client_gets_an_error_event_and_no_done(
        router, worker, api, how, event_count):
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    sent = b"".join(api.stream()[:event_count])
    request.send_chunk(sent)
    answer = client.answer()
    answer.read(len(sent))
    die(request, how)

    body = answer.read_all()

    assert body.startswith(sent)
    last = events_of(body[len(sent):])
    assert len(last) == 1
    error = json.loads(last[0])["error"]
    assert set(error) >= {"message", "type", "code"}
    assert error["code"] == ("upstream_idle_timeout" if how == "hang" else "upstream_closed")
    assert b"[DONE]" not in body
    line = router.request_line(answer)
    assert (line["status"], line["end"]) == (200, log_end(how))
    worker.assert_no_request()


@deaths
def test_in_the_middle_of_an_event_the_connection_is_cut(router, worker, api, how):
    client = router.connect()
    client.post(api, api.request(stream=True, stream_options={}))  # nothing is held back
    request = worker.expect()
    request.start_stream()
    sent = api.event("whole") + api.event("half")[:30]
    request.send_chunk(sent)
    answer = client.answer()
    answer.read(len(sent))
    die(request, how)

    assert answer.read_until_cut() == sent
    assert router.request_line(answer)["end"] == log_end(how)


@deaths
def test_half_an_event_that_was_held_back_leaves_the_client_between_events(
        router, worker, api, how):
    """Where usage is taken out, an unfinished event waits in the router: it dies there, and the
    client can be told."""
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    whole = api.event("whole")
    request.send_chunk(whole + api.event("half")[:30])
    answer = client.answer()
    assert answer.read(len(whole)) == whole
    die(request, how)

    rest = events_of(answer.read_all()[len(whole):])

    assert len(rest) == 1 and "error" in json.loads(rest[0])
    assert router.request_line(answer)["end"] == log_end(how)


@deaths
def test_a_body_that_is_not_streamed_is_cut(router, worker, api, how):
    client = router.connect()
    client.post(api, api.request())
    request = worker.expect()
    request.body()
    request.send_head(200, content_type="application/json", content_length=1000)
    request.send(b'{"id":')
    answer = client.answer()
    answer.read(6)
    die(request, how)

    assert answer.read_until_cut() == b'{"id":'
    assert router.request_line(answer)["end"] == log_end(how)


@deaths
def test_a_chunked_body_that_is_not_a_stream_is_cut(router, worker, how):
    """An error event in the middle of JSON would only look like more of it."""
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.body()
    request.send_head(200, content_type="application/json", transfer_encoding="chunked")
    request.send_chunk(b'{"id":\n\n')
    answer = client.answer()
    answer.read(8)
    die(request, how)

    assert answer.read_until_cut() == b'{"id":\n\n'


def test_a_chunk_cut_at_an_event_border_is_a_death_too(router, worker):
    """The chunk said more would come, but all events of it are whole."""
    event = CHAT.event("whole")
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send(b"%x\r\n" % (len(event) + 100) + event)
    answer = client.answer()
    answer.read(len(event))
    request.end_by("fin")

    body = answer.read_all()

    assert "error" in json.loads(events_of(body)[-1])
    assert b"[DONE]" not in body


def test_broken_chunks_are_a_death(router, worker):
    event = CHAT.event("whole")
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(event)
    answer = client.answer()
    answer.read(len(event))
    request.send(b"not a chunk size\r\n")

    body = answer.read_all()

    assert "error" in json.loads(events_of(body)[-1])
    assert router.request_line(answer)["end"] in ("upstream_protocol", "upstream_truncated")
    request.wait_end()


def end_stream_as(request, framing, events):
    """A stream that its worker ends: by the last chunk, or by the connection's end."""
    if framing == "chunked":
        request.stream(events)
        return
    request.body()
    request.send_head(content_type="text/event-stream", connection="close")
    request.send(b"".join(events))
    request.end_by("fin")


framings = pytest.mark.parametrize("framing", ["chunked", "close"])


@framings
def test_a_stream_that_ends_well_without_done_is_passed_as_it_is(router, worker, api, framing):
    events = api.stream()[:-1]
    client = router.connect()
    client.post(api, api.request(stream=True))
    end_stream_as(worker.expect(), framing, events)

    answer = client.answer()

    assert answer.read_all() == b"".join(events)
    line = router.request_line(answer)
    assert (line["end"], line["done_missing"]) == ("ok", True)
    assert router.metric_sum("samovar_router_streams_without_done_total") == 1


def test_a_stream_that_has_its_done_misses_nothing(router, worker, api):
    client = router.connect()
    client.post(api, api.request(stream=True))
    worker.expect().stream(api.stream())

    answer = client.answer()

    answer.read_all()
    assert "done_missing" not in router.request_line(answer)
    assert router.metric_sum("samovar_router_streams_without_done_total") == 0


HALF_STREAMS = {
    "comments only": [b": ping\n\n"] * 3,
    "empty events only": [b"event: ping\ndata:\n\n"] * 3,
    "a role and no content": [CHAT._chunk([{"index": 0, "delta": {"role": "assistant"}}])],
    "content and no finish": CHAT.stream()[:3],
}


@framings
@pytest.mark.parametrize("kind", HALF_STREAMS)
def test_a_stream_that_ends_without_an_end_is_an_error(router, worker, framing, kind):
    """Its worker, or a proxy before it, calls it whole; the engine never said why it stopped. A
    client that is told nothing would take it for a short answer."""
    sent = b"".join(HALF_STREAMS[kind])
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    end_stream_as(worker.expect(), framing, [sent])

    answer = client.answer()

    body = answer.read_all()
    assert body.startswith(sent) and b"[DONE]" not in body
    last = events_of(body[len(sent):])
    assert len(last) == 1
    assert json.loads(last[0])["error"]["code"] == "upstream_closed"
    line = router.request_line(answer)
    assert line["end"] == "upstream_truncated" and "done_missing" not in line
    assert sum(row["failures_total"] for row in router.workers()) == 1


# Without their last event: with the reason why the engine stopped, and without it.
FAMILIES = {
    "messages, with a reason": (MESSAGES, MESSAGES.stream()[:-1], True),
    "messages, without": (MESSAGES, MESSAGES.stream()[:-2], False),
    "responses, without": (RESPONSES, RESPONSES.stream()[:-1], False),
}


@framings
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_has_an_end_of_its_own(router, worker, framing, kind):
    api, events, is_whole = FAMILIES[kind]
    sent = b"".join(events)
    client = router.connect()
    client.post(api, api.request(stream=True))
    end_stream_as(worker.expect(), framing, events)

    answer = client.answer()

    body = answer.read_all()
    line = router.request_line(answer)
    if is_whole:
        assert body == sent
        assert (line["end"], line["done_missing"]) == ("ok", True)
    else:
        assert body.startswith(sent)
        check_error_event(api, body[len(sent):], sequence_number=len(events))
        assert line["end"] == "upstream_truncated"


@framings
def test_a_stream_that_ends_within_an_event_is_an_error(router, worker, framing):
    """Where the unfinished event is held back the client stands between two and is told."""
    whole = CHAT.event("whole")
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    end_stream_as(worker.expect(), framing, [whole, CHAT.event("half")[:30]])

    body = client.answer().read_all()

    assert body.startswith(whole) and b"half" not in body
    assert "error" in json.loads(events_of(body[len(whole):])[0])


@framings
def test_a_stream_that_ends_within_an_event_that_was_passed_is_cut(router, worker, framing):
    sent = CHAT.event("whole") + CHAT.event("half")[:30]
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True, stream_options={}))
    end_stream_as(worker.expect(), framing, [sent])

    assert client.answer().read_until_cut() == sent


@framings
def test_a_stream_of_nothing_is_asked_for_elsewhere(start_router, fleet, framing):
    """The client has not got a byte of it."""
    router = start_router(fleet)
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    end_stream_as(fleet.expect(), framing, [])
    fleet.expect().stream(CHAT.stream())

    assert client.answer().read_all() == b"".join(CHAT.stream())


def test_an_error_event_of_the_engine_is_an_end(router, worker):
    events = [CHAT.event("Tea"), sse({"error": {"message": "out of memory", "code": 500}})]
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    worker.expect().stream(events)

    answer = client.answer()

    assert answer.read_all() == b"".join(events)
    line = router.request_line(answer)
    assert line["end"] == "ok" and "done_missing" not in line


def test_a_stream_that_cannot_be_read_is_not_judged(router, worker):
    packed = gzip.compress(CHAT.event("no end"))
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream(content_encoding="gzip")
    request.send_chunk(packed)
    request.end_stream()

    assert client.answer().read_all() == packed


def test_a_worker_that_dies_behind_done_took_nothing_away(router, worker, api):
    """[DONE] was delivered; only the end of the chunks is missing. An error event behind it would
    be read by nobody, so the answer ends as it would have."""
    body = b"".join(api.stream())
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(body)
    answer = client.answer()
    assert answer.read(len(body)) == body
    request.end_by("fin")

    assert answer.read_all() == body
    assert body.endswith(DONE)


def test_a_stream_that_ends_with_the_connection_is_whole(router, worker):
    """No length and no chunks: the end of the connection is the end of the answer."""
    body = b"".join(CHAT.stream())
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.body()
    request.send(head_bytes("HTTP/1.1 200 OK", {"Content-Type": "text/event-stream",
                                                "Connection": "close"}) + body)
    request.end_by("fin")

    answer = client.answer()

    assert answer.read_all() == body
    assert router.request_line(answer)["end"] == "ok"


def test_a_client_of_http_1_0_gets_the_error_event_too(router, worker):
    event = CHAT.event("whole")
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True), version="1.0")
    request = worker.expect()
    request.start_stream()
    request.send_chunk(event)
    answer = client.answer()
    answer.read(len(event))
    request.end_by("rst")

    assert "error" in json.loads(events_of(answer.read_all())[-1])


def test_the_connection_goes_on_after_an_error_event(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send(chunk(CHAT.event("whole")))
    answer = client.answer()
    answer.read(len(CHAT.event("whole")))
    request.end_by("rst")
    answer.read_all()

    client.post(CHAT, CHAT.request("next"))
    worker.expect().answer(CHAT.answer())

    assert client.answer().read_all() == CHAT.answer()


def test_the_death_counts_against_the_worker(start_router, start_worker):
    worker = start_worker()
    router = start_router([worker], "--panic-percent", 100)  # else the only one is kept
    for _ in range(3):
        client = router.connect()
        client.post(CHAT, CHAT.request(stream=True))
        request = worker.expect()
        request.start_stream()
        request.send_chunk(CHAT.event("Tea"))
        answer = client.answer()
        answer.read(len(CHAT.event("Tea")))
        request.end_by("rst")
        answer.read_all()

    router.wait_states("ejected", 1)


@deaths
@pytest.mark.parametrize("events", [CHAT.stream()[:2], CHAT.stream()],
                         ids=["between events", "behind DONE"])
def test_a_stream_of_a_promised_length_is_cut_where_it_falls_short(router, worker, how, events):
    """There is no room for an event of ours, and what came is less than the client was told."""
    sent = b"".join(events)
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True, stream_options={}))
    request = worker.expect()
    request.body()
    request.send_head(content_type="text/event-stream", content_length=len(sent) + 100)
    request.send(sent)
    answer = client.answer()
    answer.read(len(sent))
    die(request, how)

    assert answer.read_until_cut() == sent
    assert router.request_line(answer)["end"] == log_end(how)
