# SPDX-License-Identifier: Apache-2.0
"""Every call of every API family is relayed as it is, and fails in the form its clients read."""

import json
import re
import signal
import time

import pytest

from peers.api_families import (ANTHROPIC, COMPUTE, COUNT_TOKENS, EMBEDDINGS, EVERY, MESSAGES,
                                RESPONSES, STREAMED, api_id, check_error, check_error_event)
from peers.http1 import request_bytes
from peers.openai_api import CHAT
from peers.process import wait_until

IDLE_MS = 200
PROMPT_S = 1.0  # by when a client that left has been noticed, on a busy machine

every = pytest.mark.parametrize("api", EVERY, ids=api_id)
streamed = pytest.mark.parametrize("api", STREAMED, ids=api_id)
compute = pytest.mark.parametrize("api", COMPUTE, ids=api_id)
ways = pytest.mark.parametrize("how", ["fin", "rst"])
# every call, and once more as a stream where it has one
every_form = pytest.mark.parametrize(
    "api, is_stream", [*((api, False) for api in EVERY), *((api, True) for api in STREAMED)],
    ids=lambda value: api_id(value) if hasattr(value, "path") else "stream" if value else "whole")
# of each family one, and of what only computes one that has OpenAI's errors and one that has not
one_each = pytest.mark.parametrize("api", [*STREAMED, EMBEDDINGS, COUNT_TOKENS], ids=api_id)


def ids_of(api, answer):
    """What names the request to its client, in the head of any answer."""
    assert answer.get("x-request-id")
    if api.name in ANTHROPIC:
        assert answer.get("request-id") == answer.get("x-request-id")
    else:
        assert answer.get("request-id") is None


# --- what is relayed ---


@every
def test_a_whole_answer_passes_as_it_is(router, worker, api):
    body = api.request(unknown_field={"a": [1.50, "é"]})
    client = router.connect()
    client.request("POST", api.path + "?beta=true&x=%2F", body, {"X-Anything": "kept"})
    request = worker.expect()

    assert request.message.head.start == f"POST {api.path}?beta=true&x=%2F HTTP/1.1"
    assert request.body() == body
    assert request.get("x-anything") == "kept"
    assert request.get("x-request-id")
    request.answer(api.answer(), x_engine="passed")

    answer = client.answer()
    assert answer.status == 200
    assert answer.read_all() == api.answer()
    assert answer.get("x-engine") == "passed"
    assert answer.get("x-samovar-worker") == worker.url
    ids_of(api, answer)
    line = router.request_line(answer)
    assert (line["api"], line["path"], line["end"]) == (api.name, api.path, "ok")
    wait_until(lambda: any(f'api="{api.name}"' in key for key in router.metrics()),
               lambda: f"no series of {api.name}")


@streamed
def test_a_stream_passes_as_it_is(router, worker, api):
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.stream(api.stream())

    answer = client.answer()
    assert answer.status == 200
    assert answer.get("content-type").startswith("text/event-stream")
    assert answer.read_all() == b"".join(api.stream())
    assert answer.get("x-accel-buffering") == "no"
    ids_of(api, answer)
    line = router.request_line(answer)
    assert (line["api"], line["end"]) == (api.name, "ok")
    if api in (RESPONSES, MESSAGES):  # they carry usage unasked
        assert (line["prompt_tokens"], line["cached_tokens"]) == (20, 16)


@pytest.mark.parametrize("api", [RESPONSES, MESSAGES], ids=api_id)
def test_usage_is_asked_of_no_api_that_gives_it_unasked(router, worker, api):
    body = api.request(stream=True)
    client = router.connect()
    client.post(api, body)
    request = worker.expect()

    assert request.body() == body

    request.stream(api.stream())
    client.answer().read_all()


@every
def test_an_answer_larger_than_what_is_read_of_it_passes(router, worker, api):
    big = json.dumps({"filler": "x" * 3_000_000}).encode()
    client = router.connect()
    client.post(api, api.request())
    request = worker.expect()
    request.answer(big)

    assert client.answer().read_all() == big


@every
@pytest.mark.parametrize("status", [400, 404, 405, 422, 501])
def test_what_an_engine_refuses_passes_and_speaks_not_against_it(
        start_router, start_fleet, api, status):
    fleet = start_fleet(2)
    router = start_router(fleet)
    client = router.connect()
    for _ in range(4):
        client.post(api, api.request())
        fleet.expect().answer(b'{"detail":"No such thing"}', status=status)
        answer = client.answer()
        assert answer.status == status
        assert answer.read_all() == b'{"detail":"No such thing"}'
        assert answer.get("x-should-retry") is None
        ids_of(api, answer)
    fleet.assert_no_request()

    assert sum(row["failures_total"] for row in router.workers()) == 0
    assert all(row["state"] == "up" for row in router.workers())
    assert all(line["attempts"] == 1 for line in router.log.wait_count("request", 4))


@compute
def test_what_only_computes_leaves_nothing_behind_and_goes_by_load(fleet_router, fleet, api):
    """Two at once go to two workers, and so does the same input again."""
    clients = [fleet_router.connect() for _ in range(2)]
    for client in clients:
        client.post(api, api.request())
    requests = [fleet.expect() for _ in clients]
    assert requests[0].worker is not requests[1].worker
    for request in requests:
        request.answer(api.answer())
    for client in clients:
        answer = client.answer()
        answer.read_all()
        line = fleet_router.request_line(answer)
        assert (line["rung"], line["prompt_blocks"], line["matched_blocks"]) == ("load", 0, 0)

    assert fleet_router.metrics()["samovar_router_residency_blocks"] == 0


@pytest.mark.parametrize("api", [RESPONSES, MESSAGES], ids=api_id)
def test_a_prompt_goes_where_its_prefix_is(fleet_router, fleet, api):
    text = "The samovar stands in the kitchen. " * 40
    for _ in range(3):
        client = fleet_router.connect()
        client.post(api, api.request(text))
        request = fleet.expect()
        first = request.worker if _ == 0 else first
        assert request.worker is first
        request.answer(api.answer())
        answer = client.answer()
        answer.read_all()

    line = fleet_router.request_line(answer)
    assert line["rung"] == "guess" and line["matched_blocks"] > 4


# --- what the router answers itself ---


@every
def test_a_bad_body_is_400_in_the_form_of_its_api(router, worker, api):
    for number, body in enumerate((b"", b"{", b"[]", b'{"model":1}')):
        answer = router.post(api, body, {"X-Request-Id": f"mine-{number}"})
        kind, message, _ = check_error(api, answer)
        assert answer.status == 400
        assert answer.get("x-request-id") == f"mine-{number}"
        assert kind == "invalid_request_error" and message
    worker.assert_no_request()


@every
def test_an_unknown_model_is_404_in_the_form_of_its_api(router, worker, api):
    answer = router.post(api, api.request(model="tinny"))

    kind, message, code = check_error(api, answer)
    assert answer.status == 404
    assert kind == ("not_found_error" if api.name in ANTHROPIC else "invalid_request_error")
    assert code in (None, "model_not_found")
    assert "'tiny'" in message
    worker.assert_no_request()


@every
def test_no_worker_is_503_in_the_form_of_its_api(start_router, worker, api):
    worker.stop_listening()
    router = start_router([worker], is_ready=False)

    answer = router.post(api, api.request())

    kind, _, _ = check_error(api, answer)
    assert answer.status == 503
    assert answer.get("retry-after") == "1"
    assert kind == ("overloaded_error" if api.name in ANTHROPIC else "service_unavailable_error")


@every
def test_a_body_too_large_is_413_in_the_form_of_its_api(start_router, worker, api):
    router = start_router([worker], "--body-bytes-max", 2000)
    client = router.connect()
    client.send(request_bytes("POST", api.path, b"x" * 2001))

    answer = client.answer()

    kind, message, _ = check_error(api, answer)
    assert answer.status == 413
    assert "2000" in message and "--body-bytes-max" in message
    assert kind == ("request_too_large" if api.name in ANTHROPIC else "invalid_request_error")


@every
def test_a_method_that_is_not_taken_is_405_in_the_form_of_its_api(router, worker, api):
    answer = router.call("DELETE", api.path)

    check_error(api, answer)
    assert answer.status == 405
    assert "POST" in answer.get("allow")
    worker.assert_no_request()


def test_a_fault_of_the_framing_has_openai_s_form_as_no_api_is_known_yet(router, worker):
    client = router.connect()
    client.send(b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n")

    answer = client.answer()

    assert answer.status == 400
    check_error(CHAT, answer)


# --- workers that fail before the first byte ---


@every_form
def test_an_error_before_the_first_byte_is_json_in_the_form_of_its_api(
        start_router, worker, api, is_stream):
    router = start_router([worker], "--upstream-header-ms", IDLE_MS)
    fields = {"stream": True} if is_stream else {}

    for act, status, kinds in (
            (lambda request: request.end_by("rst"), 502, ("server_error", "api_error")),
            (lambda request: (request.wait_end(), request.finish()), 504,
             ("server_error", "timeout_error"))):
        client = router.connect()
        client.post(api, api.request(**fields))
        request = worker.expect()
        request.body()
        act(request)
        answer = client.answer()
        kind, _, _ = check_error(api, answer)
        assert answer.status == status
        assert kind == kinds[api.name in ANTHROPIC]
        assert answer.get("x-should-retry") == "false"


@streamed
def test_a_stream_whose_head_alone_came_still_fails_in_json(router, worker, api):
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.end_by("rst")

    answer = client.answer()

    check_error(api, answer)
    assert answer.status == 502


@compute
@pytest.mark.parametrize("how", ["half a head", "hang", "not http", "death"])
def test_what_only_computes_is_asked_again_elsewhere_however_it_was_lost(
        start_router, start_fleet, api, how):
    fleet = start_fleet(2)
    router = start_router(fleet, "--upstream-header-ms", IDLE_MS)
    client = router.connect()
    client.post(api, api.request())
    first = fleet.expect()
    first.body()
    if how == "half a head":
        first.send(b"HTTP/1.1 200 OK\r\nContent-Type: app")
        first.end_by("fin")
    elif how == "hang":
        first.wait_end()
        first.finish()
    elif how == "not http":
        first.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        first.finish()
    else:
        first.end_by("rst")

    second = fleet.expect()
    assert second.worker is not first.worker
    assert second.body() == api.request()
    second.answer(api.answer())

    answer = client.answer()
    assert answer.read_all() == api.answer()
    assert router.request_line(answer)["attempts"] == 2


@compute
def test_what_only_computes_is_lost_twice_at_most(start_router, start_fleet, api):
    fleet = start_fleet(3)
    router = start_router(fleet, "--upstream-header-ms", IDLE_MS)
    client = router.connect()
    client.post(api, api.request())
    for _ in range(2):
        request = fleet.expect()
        request.body()
        request.wait_end()
        request.finish()

    answer = client.answer()

    assert answer.status == 504
    fleet.assert_no_request()


@pytest.mark.parametrize("api", [RESPONSES, MESSAGES], ids=api_id)
@pytest.mark.parametrize("how", ["half a head", "hang"])
def test_what_generates_is_not_asked_again_once_an_engine_was_at_work(
        start_router, start_fleet, api, how):
    fleet = start_fleet(2)
    router = start_router(fleet, "--upstream-header-ms", IDLE_MS)
    client = router.connect()
    client.post(api, api.request())
    request = fleet.expect()
    request.body()
    if how == "hang":
        request.wait_end()
        request.finish()
    else:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: app")
        request.end_by("fin")

    answer = client.answer()

    assert answer.status == (504 if how == "hang" else 502)
    check_error(api, answer)
    fleet.assert_no_request()


# --- workers that fail in the middle ---


@streamed
@pytest.mark.parametrize("how", ["fin", "rst", "hang"])
def test_a_stream_that_breaks_between_events_ends_with_its_api_s_error_event(
        start_router, worker, api, how):
    router = start_router([worker], "--upstream-idle-ms", IDLE_MS)
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    sent = api.stream()[:3]
    for event in sent:
        request.send_chunk(event)
    answer = client.answer()
    answer.read(len(b"".join(sent)))
    if how == "hang":
        request.wait_end()
        request.finish()
    else:
        request.end_by(how)

    rest = answer.read_all()[len(b"".join(sent)):]

    assert rest.endswith(b"\n\n") and rest.count(b"\n\n") == 1
    kind = check_error_event(api, rest, sequence_number=3)
    if api.name in ANTHROPIC:
        assert kind == ("timeout_error" if how == "hang" else "api_error")
    else:
        assert kind == "server_error"
    line = router.request_line(answer)
    assert line["end"] == ("upstream_timeout" if how == "hang" else "upstream_truncated")


golden = {
    "chat": b'data: {"error":{"message":"%m","type":"server_error","param":null,'
            b'"code":"upstream_closed"}}\n\n',
    "completions": b'data: {"error":{"message":"%m","type":"server_error","param":null,'
                   b'"code":"upstream_closed"}}\n\n',
    "responses": b'event: error\ndata: {"type":"error","sequence_number":2,'
                 b'"code":"upstream_closed","message":"%m","param":null,"error":{"message":"%m",'
                 b'"type":"server_error","param":null,"code":"upstream_closed"}}\n\n',
    "messages": b'event: error\ndata: {"type":"error","error":{"type":"api_error",'
                b'"message":"%m"},"request_id":"my-id"}\n\n',
}


@streamed
def test_the_error_event_of_each_family_byte_by_byte(router, worker, api):
    client = router.connect()
    client.post(api, api.request(stream=True), {"X-Request-Id": "my-id"})
    request = worker.expect()
    request.start_stream()
    sent = b"".join(api.stream()[:2])
    request.send_chunk(sent)
    answer = client.answer()
    answer.read(len(sent))
    request.end_by("rst")

    rest = answer.read_all()[len(sent):]

    message = re.search(rb'"message":"([^"]+)"', rest)[1]
    assert rest == golden[api.name].replace(b"%m", message)


@streamed
def test_a_stream_that_breaks_inside_an_event_is_cut(router, worker, api):
    client = router.connect()
    client.post(api, api.request(stream=True, stream_options={}))
    request = worker.expect()
    request.start_stream()
    first, second = api.stream()[:2]
    sent = first + second[:20]
    request.send_chunk(sent)
    answer = client.answer()
    answer.read(len(sent))
    request.end_by("rst")

    assert answer.read_until_cut() == sent


@streamed
def test_a_worker_that_dies_behind_the_last_event_has_taken_nothing_away(router, worker, api):
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    whole = b"".join(api.stream())
    request.send_chunk(whole)
    request.end_by("fin")

    answer = client.answer()

    assert answer.read_all() == whole
    assert router.request_line(answer)["end"] == "ok"


@one_each
def test_a_whole_answer_that_breaks_is_cut(router, worker, api):
    client = router.connect()
    client.post(api, api.request())
    request = worker.expect()
    request.body()
    request.send_head(200, content_type="application/json", content_length=100)
    request.send(b'{"id":')
    answer = client.answer()
    answer.read(6)
    request.end_by("fin")

    assert answer.read_until_cut() == b'{"id":'


@streamed
def test_a_stream_that_the_drain_cuts_ends_with_its_api_s_error_event(start_router, worker, api):
    router = start_router([worker], "--drain-ms", 100)
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    sent = b"".join(api.stream()[:2])
    request.send_chunk(sent)
    answer = client.answer()
    answer.read(len(sent))
    router.signal(signal.SIGTERM)

    rest = answer.read_all()[len(sent):]

    kind = check_error_event(api, rest, sequence_number=2)
    assert kind == ("overloaded_error" if api.name in ANTHROPIC else "service_unavailable_error")
    assert router.wait_exit() == 0


@one_each
def test_a_request_behind_the_drain_s_begin_is_503_in_the_form_of_its_api(
        start_router, worker, api):
    router = start_router([worker])
    client = router.connect()
    raw = request_bytes("POST", api.path, api.request())
    client.send(raw[:-1])  # it is not complete when the drain begins
    wait_until(lambda: router.in_flight(), lambda: "the request has not come")
    router.signal(signal.SIGTERM)
    router.log.wait("draining")
    client.send(raw[-1:])

    answer = client.answer()

    check_error(api, answer)
    assert (answer.status, answer.get("retry-after")) == (503, "1")
    assert answer.get("connection") == "close"
    worker.assert_no_request()
    assert router.wait_exit() == 0


# --- clients that leave ---


def leave(client, request, how):
    left_at = time.monotonic()
    client.end_by(how)
    end = request.wait_end()
    assert end.at - left_at < PROMPT_S
    request.finish()


def assert_logged_as_abort(router, api, phase):
    line = router.log.wait("request", end="client_abort")
    assert (line["api"], line["phase"]) == (api.name, phase)
    assert len(router.log.find("request")) == 1
    router.wait_idle()


@every_form
@ways
def test_a_client_that_leaves_before_the_first_byte_is_noticed(router, worker, api, how, is_stream):
    client = router.connect()
    client.post(api, api.request(**({"stream": True} if is_stream else {})))
    request = worker.expect()
    request.body()

    leave(client, request, how)

    assert_logged_as_abort(router, api, "send")


@streamed
@ways
def test_a_client_that_leaves_in_the_first_event_is_noticed(router, worker, api, how):
    client = router.connect()
    client.post(api, api.request(stream=True, stream_options={}))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(api.stream()[0][:12])
    client.answer().read(12)

    leave(client, request, how)

    assert_logged_as_abort(router, api, "relay")


@streamed
@ways
def test_a_client_that_leaves_between_events_is_noticed(router, worker, api, how):
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    sent = b"".join(api.stream()[:3])
    request.send_chunk(sent)
    client.answer().read(len(sent))

    leave(client, request, how)

    assert_logged_as_abort(router, api, "relay")


@compute
@ways
def test_a_client_that_leaves_in_a_whole_answer_is_noticed(router, worker, api, how):
    client = router.connect()
    client.post(api, api.request())
    request = worker.expect()
    request.body()
    request.send_head(200, content_type="application/json", content_length=100)
    request.send(b'{"id":')
    client.answer().read(6)

    leave(client, request, how)

    assert_logged_as_abort(router, api, "relay")


@streamed
def test_a_client_that_leaves_behind_the_last_event_had_it_all(router, worker, api):
    """The worker's end of the answer is still to come; nothing was lost."""
    client = router.connect()
    client.post(api, api.request(stream=True))
    request = worker.expect()
    request.start_stream()
    whole = b"".join(api.stream())
    request.send_chunk(whole)
    client.answer().read(len(whole))
    client.close()
    request.wait_end()
    request.finish()

    assert router.log.wait("request")["end"] == "ok"
    router.wait_idle()


# --- paths ---


near = {
    "/chat/completions": "/v1/chat/completions",
    "/v1/v1/messages": "/v1/messages",
    "/v1/embedding": "/v1/embeddings",
    "/v1/chat/completions/": "/v1/chat/completions",
}


@pytest.mark.parametrize("path", near)
def test_a_path_that_nobody_serves_names_the_one_that_was_meant(router, worker, path):
    answer = router.call("POST", path + "?key=secret", b"{}")

    _, message, code = check_error(CHAT, answer)
    assert (answer.status, code) == (404, "not_found")
    assert f"Did you mean {near[path]}?" in message
    assert "secret" not in message
    worker.assert_no_request()


def test_a_path_like_none_names_what_is_served(router):
    _, message, _ = check_error(CHAT, router.get("/favicon.ico"))

    assert "/v1/chat/completions" in message and "/v1/responses" in message


@pytest.mark.parametrize("path", ["/health", "/healthz", "/live", "/livez", "/liveness", "/ping"])
def test_the_process_lives_without_workers(start_router, worker, path):
    worker.stop_listening()
    router = start_router([worker], is_ready=False)

    assert router.get(path).status == 200
    assert router.call("HEAD", path).status == 200


@pytest.mark.parametrize("path", ["/ready", "/readyz", "/readiness"])
def test_readiness_is_about_workers(start_router, start_worker, path):
    gone = start_worker()
    gone.stop_listening()

    assert start_router([gone], is_ready=False).get(path).status == 503
    assert start_router([start_worker()]).get(path).status == 200
