# SPDX-License-Identifier: Apache-2.0
"""A stored response is asked for, and gone on from, where it lies: at one worker, or nowhere."""

import json
import time

import pytest

from peers.api_families import RESPONSES, check_error, check_error_event
from peers.openai_api import CHAT
from peers.process import wait_until

IDLE_MS = 200

# What is asked about a response: method, and what follows its id.
ASKED = {
    "read": ("GET", ""),
    "read on": ("GET", "?stream=true&starting_after=3"),
    "delete": ("DELETE", ""),
    "cancel": ("POST", "/cancel"),
    "inputs": ("GET", "/input_items?limit=2"),
}
asked = pytest.mark.parametrize("what", ASKED)


def create(router, fleet, response_id, **fields):
    """Has a response made and answered; returns the worker that made it."""
    client = router.connect()
    client.post(RESPONSES, RESPONSES.request(**fields))
    request = fleet.expect()
    if fields.get("stream"):
        request.stream(RESPONSES.stream(response_id=response_id))
    else:
        request.answer(RESPONSES.answer(response_id=response_id))
    client.answer().read_all()
    client.close()
    return request.worker


def create_on_each(router, fleet):
    """One response on each worker, by two requests at once; {id: worker}."""
    clients = [router.connect() for _ in fleet]
    for number, client in enumerate(clients):
        client.post(RESPONSES, RESPONSES.request(f"{number} of them"))
    requests = [fleet.expect() for _ in fleet]
    made = {f"resp_{number}": request.worker for number, request in enumerate(requests)}
    assert len({worker.port for worker in made.values()}) == len(requests)
    for number, request in enumerate(requests):
        request.answer(RESPONSES.answer(response_id=f"resp_{number}"))
    for client in clients:
        client.answer().read_all()
        client.close()
    return made


def ask(router, what, response_id):
    """A client that has asked; what it expects back is still to come."""
    method, rest = ASKED[what]
    client = router.connect()
    client.request(method, f"/v1/responses/{response_id}{rest}",
                   b"" if method == "POST" else None)
    return client


def get(router, response_id):
    return router.get(f"/v1/responses/{response_id}")


def assert_unknown(router, response_id):
    answer = get(router, response_id)
    kind, message, code = check_error(RESPONSES, answer)
    assert (answer.status, code) == (404, "response_not_found")
    assert kind == "invalid_request_error"
    assert "--response-count-max" in message


@asked
def test_what_is_asked_goes_to_the_worker_that_stores_it(fleet_router, fleet, what):
    made = create_on_each(fleet_router, fleet)
    for response_id, worker in [*made.items()] * 2:
        method, rest = ASKED[what]
        client = ask(fleet_router, what, response_id)
        request = fleet.expect()

        assert request.worker is worker
        assert request.message.head.start == f"{method} /v1/responses/{response_id}{rest} HTTP/1.1"
        assert request.body() == b""
        assert request.get("content-length") == ("0" if method == "POST" else None)
        request.answer(b'{"id":"%s"}' % response_id.encode(), status=202, x_engine="passed")
        answer = client.answer(method)
        assert answer.status == 202
        assert answer.json() == {"id": response_id}
        assert answer.get("x-engine") == "passed"
        assert answer.get("x-samovar-worker") == worker.url
        line = fleet_router.request_line(answer)
        assert (line["api"], line["rung"], line["end"]) == ("response_by_id", "affinity", "ok")


def test_an_id_is_in_no_line_of_the_log(fleet_router, fleet):
    create(fleet_router, fleet, "resp_secret")
    client = ask(fleet_router, "cancel", "resp_secret")
    fleet.expect().answer(b"{}")
    line = fleet_router.request_line(client.answer())
    get(fleet_router, "resp_other_secret")

    assert line["path"] == "/v1/responses/{id}/cancel"
    fleet_router.log.wait_count("request", 3)
    assert "secret" not in json.dumps(fleet_router.log.find("request"))


def test_a_response_can_be_asked_for_while_it_is_streamed(fleet_router, fleet):
    client = fleet_router.connect()
    client.post(RESPONSES, RESPONSES.request(stream=True))
    making = fleet.expect()
    making.start_stream()
    first, *rest = RESPONSES.stream(response_id="resp_now")
    making.send_chunk(first)
    answer = client.answer()
    answer.read(len(first))

    asking = ask(fleet_router, "cancel", "resp_now")
    request = fleet.expect()
    assert request.worker is making.worker
    request.answer(b"{}")
    asking.answer().read_all()

    for event in rest:
        making.send_chunk(event)
    making.end_stream()
    answer.read_all()


@pytest.mark.parametrize("fields", [{"stream": True}, {"background": True}, {"store": True}],
                         ids=lambda fields: next(iter(fields)))
def test_a_response_is_remembered_however_it_was_made(fleet_router, fleet, fields):
    worker = create(fleet_router, fleet, "resp_1", **fields)

    client = ask(fleet_router, "read", "resp_1")
    request = fleet.expect()
    assert request.worker is worker
    request.answer(b"{}")
    client.answer().read_all()


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_what_the_client_wants_not_stored_is_not_remembered(fleet_router, fleet, is_stream):
    create(fleet_router, fleet, "resp_1", store=False, stream=is_stream)

    assert_unknown(fleet_router, "resp_1")
    assert fleet_router.metrics()["samovar_router_responses_stored"] == 0


unknown_ids = ["resp_2", "resp_", "resp_1x", "..", "%2e%2e", "%", "resp_1%00", "resp_1%0d%0aX:y",
               "x" * 129, "x" * 4000, "%2Fv1%2Fmodels"]


@pytest.mark.parametrize("response_id", unknown_ids, ids=lambda text: text[:12])
def test_an_unknown_id_is_404_and_reaches_nobody(fleet_router, fleet, response_id):
    create(fleet_router, fleet, "resp_1")

    assert_unknown(fleet_router, response_id)
    for what in ("delete", "cancel"):
        answer = ask(fleet_router, what, response_id).answer()
        assert answer.status == 404
        check_error(RESPONSES, answer)
    fleet.assert_no_request()


def test_an_id_in_another_spelling_is_the_same_and_passes_as_written(fleet_router, fleet):
    worker = create(fleet_router, fleet, "resp_1")
    client = fleet_router.connect()
    client.request("GET", "/v1/responses/%72esp%5F1?x=1")
    request = fleet.expect()

    assert request.worker is worker
    assert request.target == "/v1/responses/%72esp%5F1?x=1"
    request.answer(b"{}")
    client.answer().read_all()


def test_a_deleted_response_is_forgotten_and_one_that_was_not_is_kept(fleet_router, fleet):
    create(fleet_router, fleet, "resp_1")
    client = ask(fleet_router, "delete", "resp_1")
    fleet.expect().answer(b'{"error":{}}', status=404)  # an engine without that call
    assert client.answer().status == 404

    client = ask(fleet_router, "delete", "resp_1")
    fleet.expect().answer(b'{"deleted":true}')
    assert client.answer().json() == {"deleted": True}

    assert_unknown(fleet_router, "resp_1")
    fleet.assert_no_request()


def test_of_two_workers_that_made_one_id_the_newest_is_asked(fleet_router, fleet):
    clients = [fleet_router.connect() for _ in fleet]
    for number, client in enumerate(clients):
        client.post(RESPONSES, RESPONSES.request(f"{number} of them"))
    first, second = fleet.expect(), fleet.expect()
    assert first.worker is not second.worker
    for request in (first, second):
        client = clients[int(request.json()["input"].split()[0])]
        request.answer(RESPONSES.answer(response_id="resp_same"))
        client.answer().read_all()

    client = ask(fleet_router, "read", "resp_same")
    request = fleet.expect()
    assert request.worker is second.worker
    request.answer(b"{}")
    client.answer().read_all()


def test_the_least_recently_used_response_is_forgotten_first(start_router, fleet):
    router = start_router(fleet, "--response-count-max", 2)
    create(router, fleet, "resp_1")
    create(router, fleet, "resp_2")
    client = ask(router, "read", "resp_1")
    fleet.expect().answer(b"{}")
    client.answer().read_all()
    create(router, fleet, "resp_3")

    assert_unknown(router, "resp_2")
    metrics = router.metrics()
    assert metrics["samovar_router_responses_stored"] == 2
    assert metrics["samovar_router_responses_evicted_total"] == 1
    assert metrics['samovar_router_rejected_total{reason="unknown_response"}'] == 1


def test_a_worker_that_restarted_has_forgotten_and_so_has_the_router(start_router, start_worker):
    worker = start_worker()
    router = start_router([worker], "--probe-interval-ms", 50)
    create(router, worker, "resp_1")
    worker.kill()
    router.wait_states("down", 1)

    answer = get(router, "resp_1")
    _, message, code = check_error(RESPONSES, answer)
    assert (answer.status, code, answer.get("retry-after")) == (503, "no_worker_available", "1")
    assert "stores this response" in message

    worker.start_listening()
    router.wait_states("up", 1)
    assert_unknown(router, "resp_1")
    worker.assert_no_request()


def test_another_worker_s_responses_outlive_the_restart_of_one(start_router, start_fleet):
    fleet = start_fleet(2)
    router = start_router(fleet, "--probe-interval-ms", 50)
    made = create_on_each(router, fleet)
    lost, kept = ("resp_0", "resp_1") if made["resp_0"] is fleet[0] else ("resp_1", "resp_0")
    fleet[0].kill()
    router.wait_states("down", 1)
    fleet[0].start_listening()
    router.wait_states("up", 2)

    assert_unknown(router, lost)
    client = ask(router, "read", kept)
    request = fleet.expect()
    assert request.worker is fleet[1]
    request.answer(b"{}")
    client.answer().read_all()


# --- going on from a response ---


def test_what_goes_on_from_a_response_goes_where_that_is(fleet_router, fleet):
    """Although that worker has much to do, and the other one nothing."""
    made = create_on_each(fleet_router, fleet)
    busy = [fleet_router.connect() for _ in range(4)]
    for client in busy:
        client.post(RESPONSES, RESPONSES.request("go on", previous_response_id="resp_0"))
    requests = [fleet.expect() for _ in busy]

    assert {request.worker.port for request in requests} == {made["resp_0"].port}
    for number, request in enumerate(requests):
        assert request.json()["previous_response_id"] == "resp_0"
        request.answer(RESPONSES.answer(response_id=f"next_{number}"))
    for client in busy:
        answer = client.answer()
        answer.read_all()
        line = fleet_router.request_line(answer)
        assert (line["rung"], line["prompt_blocks"], line["attempts"]) == ("affinity", 0, 1)

    client = ask(fleet_router, "read", "next_3")  # and the chain goes on
    request = fleet.expect()
    assert request.worker is made["resp_0"]
    request.answer(b"{}")
    client.answer().read_all()


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_an_unknown_previous_response_is_404_that_says_what_to_do(
        fleet_router, fleet, is_stream):
    answer = fleet_router.post(
        RESPONSES, RESPONSES.request(previous_response_id="resp_x", stream=is_stream))

    assert answer.status == 404
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("previous_response_not_found",
                                               "previous_response_id")
    assert "as input instead" in error["message"]
    check_error(RESPONSES, answer)
    fleet.assert_no_request()


def test_null_goes_on_from_nothing(fleet_router, fleet):
    client = fleet_router.connect()
    client.post(RESPONSES, RESPONSES.request(previous_response_id=None))
    fleet.expect().answer(RESPONSES.answer())

    assert client.answer().status == 200


def test_a_previous_response_of_another_model_is_refused(start_router, start_fleet, start_worker):
    tiny, other = start_worker(), start_worker(models=("other",))
    router = start_router([tiny, other])
    create(router, tiny, "resp_1")

    answer = router.post(RESPONSES, RESPONSES.request(model="other",
                                                      previous_response_id="resp_1"))

    _, _, code = check_error(RESPONSES, answer)
    assert (answer.status, code) == (400, "model_mismatch")
    tiny.assert_no_request()
    other.assert_no_request()


# --- failures ---


ways_to_ask = pytest.mark.parametrize("is_follow_up", [False, True], ids=["by id", "previous"])


def send_pinned(router, is_follow_up, response_id="resp_1"):
    client = router.connect()
    if is_follow_up:
        client.post(RESPONSES, RESPONSES.request(previous_response_id=response_id))
    else:
        client.request("GET", f"/v1/responses/{response_id}")
    return client


@ways_to_ask
def test_what_belongs_to_one_worker_is_never_asked_of_another(fleet_router, fleet, is_follow_up):
    worker = create(fleet_router, fleet, "resp_1")
    worker.close_connections()  # the next connection is a fresh one
    client = send_pinned(fleet_router, is_follow_up)
    request = fleet.expect()
    request.body()
    request.end_by("rst")

    answer = client.answer()

    assert answer.status == 502
    check_error(RESPONSES, answer)
    fleet.assert_no_request()


@ways_to_ask
def test_a_stale_connection_is_tried_again_at_the_same_worker(fleet_router, fleet, is_follow_up):
    worker = create(fleet_router, fleet, "resp_1")
    client = send_pinned(fleet_router, is_follow_up)
    request = fleet.expect()
    assert request.number > 1, "the connection was to be a used one"
    request.body()
    request.end_by("rst")

    again = fleet.expect()
    assert again.worker is worker and again.number == 1
    again.answer(RESPONSES.answer())
    answer = client.answer()
    assert answer.status == 200
    assert fleet_router.request_line(answer)["attempts"] == 2


@ways_to_ask
@pytest.mark.parametrize("status", [429, 503, 500])
def test_a_refusal_of_the_one_worker_passes(fleet_router, fleet, is_follow_up, status):
    create(fleet_router, fleet, "resp_1")
    client = send_pinned(fleet_router, is_follow_up)
    fleet.expect().answer(b'{"error":{"message":"busy"}}', status=status, retry_after="7")

    answer = client.answer()

    assert (answer.status, answer.get("retry-after")) == (status, "7")
    fleet.assert_no_request()


def test_a_pause_is_for_new_work_and_not_for_what_is_stored(router, worker):
    create(router, worker, "resp_1")
    client = send_pinned(router, is_follow_up=True)
    worker.expect().answer(b"{}", status=503, retry_after="60")
    assert client.answer().status == 503

    refused = send_pinned(router, is_follow_up=True).answer()
    assert (refused.status, int(refused.get("retry-after")) > 50) == (503, True)
    check_error(RESPONSES, refused)
    worker.assert_no_request()

    for what in ("read", "cancel", "delete"):
        client = ask(router, what, "resp_1")
        worker.expect().answer(b"{}")
        assert client.answer().status == 200


@ways_to_ask
def test_a_worker_that_takes_no_connection_is_502(fleet_router, fleet, is_follow_up):
    worker = create(fleet_router, fleet, "resp_1")
    worker.kill("fin")
    client = send_pinned(fleet_router, is_follow_up)

    answer = client.answer()

    assert answer.status == 502
    check_error(RESPONSES, answer)
    fleet.assert_no_request()


@pytest.mark.parametrize("how", ["fin", "hang"])
def test_a_stored_stream_that_breaks_ends_with_the_next_number(start_router, fleet, how):
    router = start_router(fleet, "--upstream-idle-ms", IDLE_MS)
    create(router, fleet, "resp_1")
    client = ask(router, "read on", "resp_1")
    request = fleet.expect()
    request.start_stream()
    sent = b"".join(RESPONSES.stream()[1:3])
    request.send_chunk(sent)
    answer = client.answer()
    answer.read(len(sent))
    if how == "hang":
        request.wait_end()
        request.finish()
    else:
        request.end_by(how)

    check_error_event(RESPONSES, answer.read_all()[len(sent):], sequence_number=3)


@asked
@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_client_that_leaves_is_noticed(fleet_router, fleet, what, how):
    create(fleet_router, fleet, "resp_1")
    client = ask(fleet_router, what, "resp_1")
    request = fleet.expect()
    request.body()
    left_at = time.monotonic()
    client.end_by(how)

    assert request.wait_end().at - left_at < 1.0

    request.finish()
    line = fleet_router.log.wait("request", end="client_abort")
    assert line["api"] == "response_by_id"
    fleet_router.wait_idle()


def test_what_a_path_takes_is_said(fleet_router):
    for target, allow in (("/v1/responses/resp_1", {"GET", "DELETE", "OPTIONS"}),
                          ("/v1/responses/resp_1/cancel", {"POST", "OPTIONS"}),
                          ("/v1/responses/resp_1/input_items", {"GET", "OPTIONS"}),
                          ("/v1/responses", {"POST", "OPTIONS"})):
        for method in ("HEAD", "PUT"):
            answer = fleet_router.call(method, target)
            assert answer.status == 405, (method, target)
            assert set(answer.get("allow").split(", ")) == allow


def test_usage_of_what_was_read_again_counts_once(fleet_router, fleet):
    create(fleet_router, fleet, "resp_1")
    before = fleet_router.metrics()["samovar_router_prompt_tokens_total"]
    client = ask(fleet_router, "read", "resp_1")
    fleet.expect().answer(RESPONSES.answer())
    client.answer().read_all()
    client = ask(fleet_router, "read on", "resp_1")
    fleet.expect().stream(RESPONSES.stream())
    client.answer().read_all()
    fleet_router.log.wait_count("request", 3)

    assert before == 20
    assert fleet_router.metrics()["samovar_router_prompt_tokens_total"] == before


def test_other_answers_are_no_responses(fleet_router, fleet):
    client = fleet_router.connect()
    client.post(CHAT, CHAT.request())
    fleet.expect().answer(CHAT.answer())
    client.answer().read_all()
    wait_until(lambda: fleet_router.log.find("request"), lambda: "no line")

    assert fleet_router.metrics()["samovar_router_responses_stored"] == 0
    assert_unknown(fleet_router, "c-1")
