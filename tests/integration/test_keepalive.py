# SPDX-License-Identifier: Apache-2.0
"""A worker that is silent in prefill or between two events: what its client gets meanwhile, where the
operator asked for it. Nothing does by itself."""

import json
import time

import pytest

from peers.api_families import MESSAGES, RESPONSES
from peers.http1 import LAST_CHUNK
from peers.openai_api import CHAT, DONE, events_of
from peers.wire import WAIT_S

openai = pytest.importorskip("openai", reason="the openai package is missing: requirements.txt")

SHORT_MS = 100
COMMENT = b": keepalive\n"


@pytest.fixture
def keeping(start_router, worker):
    return start_router([worker], "--keepalive-ms", SHORT_MS)


@pytest.fixture
def early(start_router, worker):
    return start_router([worker], "--early-head-ms", SHORT_MS, "--keepalive-ms", SHORT_MS)


def begin(router, worker, sent, **fields):
    """A stream of which sent is with the client."""
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True, **fields))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(sent)
    answer = client.answer()
    assert answer.read(len(sent)) == sent
    return request, answer


def assert_nothing_comes(answer):
    """For the time of several keepalives."""
    assert not answer.wire.wait_readable(4 * SHORT_MS / 1000)


def test_a_silent_worker_is_covered_by_comments_between_events(keeping, worker, api):
    client = keeping.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    events = api.stream()
    request.send_chunk(events[0])
    answer = client.answer()
    answer.read(len(events[0]))

    started = time.monotonic()
    assert answer.read(3 * len(COMMENT)) == COMMENT * 3
    assert time.monotonic() - started >= 3 * SHORT_MS / 1000 * 0.7
    for event in events[1:]:
        request.send_chunk(event)
    request.end_stream()

    body = answer.read_all()
    assert body.replace(COMMENT, b"") == b"".join(events)
    assert keeping.metric_sum("samovar_router_keepalives_total") == body.count(COMMENT)


PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def test_a_client_of_messages_gets_pings(keeping, worker):
    events = MESSAGES.stream()
    client = keeping.connect()
    client.post(MESSAGES, MESSAGES.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(events[0])
    answer = client.answer()
    assert answer.read(len(events[0] + 2 * PING)) == events[0] + 2 * PING
    for event in events[1:]:
        request.send_chunk(event)
    request.end_stream()
    assert answer.read_all().replace(PING, b"") == b"".join(events)


def test_an_engine_that_pings_itself_is_left_to_it(keeping, worker):
    events = MESSAGES.stream()
    client = keeping.connect()
    client.post(MESSAGES, MESSAGES.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(events[0] + PING)
    answer = client.answer()
    assert answer.read(len(events[0] + PING)) == events[0] + PING
    assert_nothing_comes(answer)
    for event in events[1:]:
        request.send_chunk(event)
    request.end_stream()
    answer.read_all()


def test_nothing_is_put_into_a_stream_of_responses(keeping, worker):
    """Its events are numbered, and none of them says nothing."""
    events = RESPONSES.stream()
    client = keeping.connect()
    client.post(RESPONSES, RESPONSES.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(events[0])
    answer = client.answer()
    answer.read(len(events[0]))
    assert_nothing_comes(answer)
    for event in events[1:]:
        request.send_chunk(event)
    request.end_stream()
    assert answer.read_all() == b"".join(events)


def test_none_comes_where_nobody_asked_for_it(router, worker):
    request, answer = begin(router, worker, CHAT.event("Tea"))
    assert_nothing_comes(answer)
    request.send_chunk(DONE)
    request.end_stream()
    answer.read_all()


def test_a_worker_that_is_not_silent_needs_none(keeping, worker):
    request, answer = begin(keeping, worker, CHAT.event("Tea"))
    for _ in range(20):
        request.send_chunk(CHAT.event("more"))
        assert answer.read(len(CHAT.event("more"))) == CHAT.event("more")
        time.sleep(SHORT_MS / 10000)
    request.send_chunk(DONE)
    request.end_stream()
    assert COMMENT not in answer.read_all()


def test_a_worker_that_sends_comments_itself_is_left_to_it(keeping, worker):
    request, answer = begin(keeping, worker, b": ping\n\n" + CHAT.event("Tea"))
    assert_nothing_comes(answer)
    request.send_chunk(DONE)
    request.end_stream()
    answer.read_all()


@pytest.mark.parametrize("sent", [
    CHAT.event("half")[:-1],  # the empty line lacks
    CHAT.event("half")[:30],
    CHAT.event("whole").replace(b"\n", b"\r\n")[:-1],  # its LF is still to come
    CHAT.event("whole").replace(b"\n", b"\r"),  # as it might be here
], ids=["before the empty line", "in a line", "in a CRLF", "behind a CR"])
def test_none_comes_within_an_event(keeping, worker, sent):
    request, answer = begin(keeping, worker, sent, stream_options={})  # nothing is held back
    assert_nothing_comes(answer)
    request.send_chunk(b"\n\n" + DONE)
    request.end_stream()
    assert answer.read_all() == sent + b"\n\n" + DONE


def test_half_an_event_that_is_held_back_does_not_keep_comments_away(keeping, worker):
    whole, half = CHAT.event("whole"), CHAT.event("half")
    client = keeping.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(whole + half[:30])
    answer = client.answer()
    assert answer.read(len(whole) + len(COMMENT)) == whole + COMMENT
    request.send_chunk(half[30:] + DONE)
    request.end_stream()
    assert answer.read_all().replace(COMMENT, b"") == whole + half + DONE


def test_none_comes_behind_done(keeping, worker):
    request, answer = begin(keeping, worker, b"".join(CHAT.stream()))
    assert_nothing_comes(answer)
    request.send(LAST_CHUNK)
    request.finish()
    assert answer.read_all().endswith(DONE)


@pytest.mark.parametrize("head", [
    {"content_type": "application/json", "transfer_encoding": "chunked"},
    {"content_type": "text/event-stream", "content_length": 1000},
    {"content_type": "text/event-stream", "transfer_encoding": "chunked",
     "content_encoding": "gzip"},
], ids=["no stream", "a promised length", "compressed"])
def test_none_comes_where_there_is_no_room_for_it(keeping, worker, head):
    client = keeping.connect()
    client.post(CHAT, CHAT.request(stream=True, stream_options={}))
    request = worker.expect()
    request.body()
    request.send_head(200, **head)
    piece = CHAT.event("Tea")
    request.send(piece if "content_length" in head else b"%x\r\n%b\r\n" % (len(piece), piece))
    answer = client.answer()
    answer.read(len(piece))
    assert_nothing_comes(answer)
    client.reset()
    request.wait_end()
    request.finish()


def test_a_client_of_http_1_0_gets_them_too(keeping, worker):
    client = keeping.connect()
    client.post(CHAT, CHAT.request(stream=True), version="1.0")
    request = worker.expect()
    request.start_stream()
    request.send_chunk(CHAT.event("Tea"))
    answer = client.answer()
    assert answer.read(len(CHAT.event("Tea") + COMMENT)) == CHAT.event("Tea") + COMMENT
    request.send_chunk(DONE)
    request.end_stream()
    assert answer.read_all().replace(COMMENT, b"") == CHAT.event("Tea") + DONE


def test_a_client_that_does_not_read_gets_none(keeping, worker):
    """They would wait behind what it has not read yet, and never end."""
    events = [CHAT.event("x" * 1_000_000)] * 8 + [DONE]
    # In its own thread: how much of it fits into all the sockets on the way is the kernel's affair.
    worker.handler = lambda request: request.stream(events)
    client = keeping.connect(receive_bytes=65536)
    client.post(CHAT, CHAT.request(stream=True))
    answer = client.answer()
    time.sleep(4 * SHORT_MS / 1000)  # several keepalives long: none may be counted
    assert keeping.metric_sum("samovar_router_keepalives_total") == 0
    assert answer.read_all().replace(COMMENT, b"") == b"".join(events)


def test_an_error_event_behind_comments_is_one(keeping, worker):
    request, answer = begin(keeping, worker, CHAT.event("Tea"))
    assert answer.read(len(COMMENT)) == COMMENT
    request.end_by("rst")
    body = answer.read_all()[len(CHAT.event("Tea")):].replace(COMMENT, b"")
    assert "error" in json.loads(events_of(body)[0])


def test_they_are_no_life_of_the_worker(start_router, worker):
    router = start_router([worker], "--keepalive-ms", 50, "--upstream-idle-ms", 400)
    request, answer = begin(router, worker, CHAT.event("Tea"))
    body = answer.read_all().replace(COMMENT, b"")
    assert b"upstream_idle_timeout" in body
    request.wait_end()
    request.finish()


def test_the_official_client_reads_over_them(keeping, worker):
    client = openai.OpenAI(base_url=keeping.url + "/v1", api_key="none", max_retries=0)

    def silent_between(request):
        request.start_stream()
        for event in CHAT.stream(["In", " the"]):
            # an id makes a decoder give out an event at each empty line
            request.send_chunk(b"id: 1\n" + event)
            time.sleep(3 * SHORT_MS / 1000)
        request.end_stream()

    worker.handler = silent_between
    stream = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "x"}], stream=True)

    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "In the"
    assert keeping.metric_sum("samovar_router_keepalives_total") >= 3


# --- before the first byte ---


def test_the_head_of_a_silent_stream_goes_out_early(early, worker):
    client = early.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()

    answer = client.answer(timeout_s=2)

    assert answer.status == 200
    assert answer.read(2 * len(COMMENT)) == COMMENT * 2
    assert early.worker(worker)["decoding"] == 0, "it is still in prefill"
    for event in CHAT.stream():
        request.send_chunk(event)
    request.end_stream()
    assert answer.read_all().replace(COMMENT, b"") == b"".join(CHAT.stream())
    assert early.request_line(answer)["end"] == "ok"


def test_a_death_behind_an_early_head_is_an_error_event(start_router, fleet):
    router = start_router(fleet, "--early-head-ms", SHORT_MS)
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = fleet.expect()
    request.start_stream()
    answer = client.answer(timeout_s=2)
    request.end_by("rst")

    body = answer.read_all()

    assert "error" in json.loads(events_of(body)[0])
    assert router.request_line(answer)["end"] == "upstream_truncated"
    fleet.assert_no_request()


def test_a_stream_that_began_in_time_is_longer_than_the_wait_for_its_head(start_router, worker):
    """Without keepalives nothing is waited for any more: the wait ended with the first event."""
    router = start_router([worker], "--early-head-ms", 4 * SHORT_MS)
    events = CHAT.stream()
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    time.sleep(SHORT_MS / 1000)  # it prefills
    request.send_chunk(events[0])
    answer = client.answer()
    assert answer.read(len(events[0])) == events[0]
    assert not answer.wire.wait_readable(8 * SHORT_MS / 1000)
    request.send_chunk(b"".join(events[1:]))
    request.send(LAST_CHUNK)
    request.finish()

    assert answer.read_all() == b"".join(events)
    assert router.request_line(answer)["end"] == "ok"


def test_the_wait_for_the_first_byte_goes_on_behind_an_early_head(start_router, worker):
    router = start_router([worker], "--early-head-ms", SHORT_MS, "--upstream-header-ms", 600,
                          "--upstream-idle-ms", 200)
    client = router.connect()
    started = time.monotonic()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()

    body = client.answer(timeout_s=2).read_all()

    assert time.monotonic() - started >= 0.5
    error = json.loads(events_of(body)[0])["error"]
    assert error["code"] == "upstream_header_timeout" and "--upstream-header-ms" in error["message"]
    request.wait_end(WAIT_S)
    request.finish()


def test_a_worker_without_a_head_gives_none_to_pass_on(early, worker):
    """Its status is not known: nothing is invented."""
    client = early.connect()
    client.post(CHAT, CHAT.request(stream=True, stream_options={}))
    request = worker.expect()
    assert not client.wait_readable(4 * SHORT_MS / 1000)
    request.answer(b'{"error":{"message":"no"}}', 400)
    assert client.answer().status == 400
