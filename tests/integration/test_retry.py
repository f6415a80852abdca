# SPDX-License-Identifier: Apache-2.0
"""A failed attempt is repeated elsewhere exactly where that is safe, and nowhere else."""

import itertools
import threading

import pytest

from peers.http1 import head_bytes
from peers.openai_api import CHAT, DONE, sse
from peers.process import wait_until
from peers.router import error_of

deaths = pytest.mark.parametrize("how", ["fin", "rst"])


def warm_up(router, fleet):
    """Leaves one idle connection to each worker, and no worker preferred."""
    clients = [router.connect() for _ in fleet]
    for number, client in enumerate(clients):
        client.post(CHAT, CHAT.request(f"{number} to warm up"))
    requests = [fleet.expect() for _ in fleet]
    assert len({request.worker.port for request in requests}) == len(fleet)
    for request in requests:
        request.answer(CHAT.answer())
    for client in clients:
        assert client.answer().read_all() == CHAT.answer()
        client.close()
    router.wait_idle()


@pytest.fixture
def round_robin(start_router, fleet):
    return start_router(fleet, "--policy", "round_robin")


def test_a_refused_connect_is_repeated_elsewhere(round_robin, fleet):
    fleet[0].stop_listening()
    client = round_robin.connect()
    for number in range(2):
        client.post(CHAT, CHAT.request(f"question {number}"))
        request = fleet.expect()
        assert request.worker is fleet[1]
        request.answer(CHAT.answer())
        answer = client.answer()
        assert answer.status == 200
        assert answer.get("x-samovar-worker") == fleet[1].url
        answer.read_all()

    assert 2 in [line["attempts"] for line in round_robin.log.wait_count("request", 2)]


def test_a_refused_connect_with_no_other_worker_is_502(router, worker):
    worker.stop_listening()
    answer = router.post(CHAT, CHAT.request())

    assert answer.status == 502
    assert error_of(answer)["code"] == "upstream_connect_failed"
    assert answer.get("x-should-retry") != "false"  # nothing was done: the client may try again
    assert router.request_line(answer)["end"] == "connect_failed"


@deaths
def test_death_before_any_byte_is_repeated_once_elsewhere(fleet_router, fleet, api, how):
    client = fleet_router.connect()
    client.post(api, api.request())
    first = fleet.expect()
    first.body()
    first.end_by(how)

    second = fleet.expect()
    second.answer(api.answer())

    assert second.worker is not first.worker
    answer = client.answer()
    assert answer.read_all() == api.answer()
    line = fleet_router.request_line(answer)
    assert (line["attempts"], line["end"], line["worker"]) == (2, "ok", second.worker.url)


@deaths
def test_death_on_two_workers_ends_it_and_says_not_to_retry(start_router, start_fleet, api, how):
    """A request that kills its engine must not walk through the fleet."""
    fleet = start_fleet(3)
    router = start_router(fleet)
    client = router.connect()
    client.post(api, api.request())
    killed = []
    for _ in range(2):
        request = fleet.expect()
        request.body()
        killed.append(request.worker)
        request.end_by(how)

    answer = client.answer()

    assert answer.status == 502
    assert error_of(answer)["code"] == "upstream_closed"
    assert answer.get("x-should-retry") == "false"
    assert killed[0] is not killed[1]
    fleet.assert_no_request()
    assert router.request_line(answer)["end"] == "upstream_closed"


@deaths
def test_death_behind_the_head_of_a_stream_is_death_before_any_byte(
        fleet_router, fleet, api, how):
    """Engines send it before they read the prompt: nothing of the answer has been made, and the
    client has seen nothing."""
    client = fleet_router.connect()
    client.post(api, api.request(stream=True))
    first = fleet.expect()
    first.start_stream(x_from="first")
    first.end_by(how)

    second = fleet.expect()
    second.stream(api.stream())

    answer = client.answer()
    assert answer.status == 200
    assert answer.get("x-from") is None
    assert answer.get("x-samovar-worker") == second.worker.url
    assert answer.read_all() == b"".join(api.stream())


@deaths
def test_two_deaths_behind_the_head_of_a_stream_are_a_plain_502(fleet_router, fleet, how):
    client = fleet_router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    for _ in range(2):
        request = fleet.expect()
        request.start_stream()
        request.end_by(how)

    answer = client.answer()

    assert answer.status == 502
    assert error_of(answer)["code"] == "upstream_closed"
    assert answer.get("x-should-retry") == "false"


@deaths
def test_death_with_no_other_worker_says_not_to_retry(router, worker, how):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.body()
    request.end_by(how)

    answer = client.answer()

    assert answer.status == 502
    assert error_of(answer)["code"] == "upstream_closed"
    assert answer.get("x-should-retry") == "false"
    worker.assert_no_request()


@deaths
def test_a_reused_connection_that_dies_with_zero_bytes_is_repeated(fleet_router, fleet, how):
    warm_up(fleet_router, fleet)
    client = fleet_router.connect()
    client.post(CHAT, CHAT.request())
    first = fleet.expect()
    assert first.number > 1, "a connection of its own was opened"
    first.body()
    first.end_by(how)

    second = fleet.expect()
    assert second.number == 1, "what cut one idle connection may have cut them all"
    second.answer(CHAT.answer())

    answer = client.answer()
    assert answer.status == 200
    assert second.worker is not first.worker
    assert fleet_router.request_line(answer)["attempts"] == 2


@deaths
def test_the_only_worker_is_asked_again_over_a_new_connection(router, worker, how):
    """Most likely it had closed the old one while it lay idle: nothing says that it died."""
    client = router.connect()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(CHAT.answer())
    client.answer().read_all()

    client.post(CHAT, CHAT.request())
    first = worker.expect()
    assert first.number == 2
    first.body()
    first.end_by(how)
    second = worker.expect()
    assert second.number == 1
    second.answer(CHAT.answer())

    assert client.answer().status == 200


@deaths
def test_two_deaths_end_it_also_where_the_first_was_on_a_reused_connection(
        start_router, start_fleet, how):
    """A query of death takes down at most one worker more, however it met the first."""
    fleet = start_fleet(4)
    router = start_router(fleet)
    warm_up(router, fleet)
    client = router.connect()
    client.post(CHAT, CHAT.request("a query of death"))
    first = fleet.expect()
    assert first.number > 1
    first.worker.kill(how)  # as a process: its listener goes with it
    second = fleet.expect()
    second.worker.kill(how)

    answer = client.answer()

    assert answer.status == 502
    assert answer.get("x-should-retry") == "false"
    assert second.worker is not first.worker
    fleet.assert_no_request()


@deaths
def test_a_connection_that_died_while_idle_is_not_used(router, worker, how):
    client = router.connect()
    for number in range(10):
        client.post(CHAT, CHAT.request())
        request = worker.expect()
        assert request.number == 1
        request.body()
        request.send_head(200, content_type="application/json", content_length=2)
        request.send(b"{}")
        answer = client.answer()
        assert answer.status == 200, f"request {number}"
        answer.read_all()
        sockets = router.open_sockets()
        if how == "fin":
            request.wire.half_close()
            request.wait_end()
        else:
            request.wire.reset()
            wait_until(lambda: router.open_sockets() < sockets, "the dead connection is dropped")
        request.finish()
    assert {line["attempts"] for line in router.log.wait_count("request", 10)} == {1}


@pytest.mark.parametrize("status", [503, 429, 529])
def test_a_worker_that_is_busy_is_not_broken(router, worker, status):
    """Its only worker says no again and again: that is back pressure, and no reason to take it out."""
    worker.handler = lambda request: request.answer(b'{"error":{"message":"full"}}', status)
    answers = [router.post(CHAT, CHAT.request(f"{number}")) for number in range(6)]

    assert answers[0].status == status
    assert {answer.status for answer in answers} <= {503, status}
    assert router.worker(worker)["state"] == "up"
    assert router.worker(worker)["failures_total"] == 0


def test_a_worker_whose_engine_died_cannot_hide_behind_503(start_router, worker):
    """Its answers are no sign of life: the probes take it out while it still refuses requests."""
    router = start_router([worker], "--probe-interval-ms", 50)
    worker.handler = lambda request: request.answer(b'{"error":{"message":"dead"}}', 503)
    worker.health = 503

    def is_down():
        assert router.post(CHAT, CHAT.request()).status == 503
        return router.worker(worker)["state"] == "down"

    wait_until(is_down, "it is taken out")
    assert router.worker(worker)["reason"] == "probe"


@pytest.mark.parametrize("status", [503, 429, 529])
def test_a_worker_that_refuses_is_left_for_another(fleet_router, fleet, api, status):
    client = fleet_router.connect()
    client.post(api, api.request(stream=True))
    first = fleet.expect()
    first.answer(b'{"error":{"message":"queue full"}}', status, retry_after="1")

    second = fleet.expect()
    second.stream(api.stream())

    assert second.worker is not first.worker
    answer = client.answer()
    assert answer.status == 200
    assert answer.read_all() == b"".join(api.stream())
    assert fleet_router.worker(first.worker)["state"] == "up"


@pytest.mark.parametrize("status", [503, 429, 529])
def test_when_all_refuse_the_client_learns_it_with_their_status(fleet_router, fleet, status):
    client = fleet_router.connect()
    client.post(CHAT, CHAT.request())
    asked = []
    for _ in fleet:
        request = fleet.expect()
        asked.append(request.worker)
        request.answer(b'{"error":{"message":"queue full"}}', status, retry_after="7")

    answer = client.answer()

    assert answer.status == status
    assert answer.get("retry-after")
    assert "error" in answer.json()
    assert len(set(asked)) == len(fleet)
    fleet.assert_no_request()


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 413, 422, 500, 504])
def test_other_statuses_are_the_clients_and_are_not_repeated(fleet_router, fleet, status):
    client = fleet_router.connect()
    client.post(CHAT, CHAT.request())
    fleet.expect().answer(b'{"error":{"message":"no"}}', status)

    answer = client.answer()

    assert answer.status == status
    assert answer.read_all() == b'{"error":{"message":"no"}}'
    assert fleet_router.request_line(answer)["attempts"] == 1
    fleet.assert_no_request()


@pytest.mark.parametrize("status, told", [
    (500, "false"), (502, "false"), (504, "false"), (503, None), (429, None), (400, None)])
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_an_engine_that_fails_may_be_dying_of_the_request(
        router, worker, status, told, connection):
    """The client would repeat a 5xx by itself, and the next engine would die of it. A refusal is no
    such sign."""
    client = router.connect()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(b'{"error":{"message":"no"}}', status, connection=connection)
    answer = client.answer()
    assert answer.status == status
    assert answer.get("x-should-retry") == told
    assert answer.json()["error"]["message"] == "no"


def test_an_engine_that_says_itself_whether_to_retry_is_not_corrected(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    worker.expect().answer(b"{}", 500, x_should_retry="true")

    assert client.answer().head.all("x-should-retry") == ["true"]


@pytest.mark.parametrize("status", [503, 429, 400])
def test_what_came_behind_a_death_does_not_make_it_safe(start_router, fleet, status):
    """One worker died of it, the next one refused: another try could meet a third."""
    router = start_router(fleet)
    client = router.connect()
    client.post(CHAT, CHAT.request())
    fleet.expect().end_by("rst")
    fleet.expect().answer(b'{"error":{"message":"no"}}', status)

    answer = client.answer()

    assert answer.status == status
    assert answer.get("x-should-retry") == "false"


def test_a_death_behind_which_nobody_is_left_does_not_make_it_safe(start_router, fleet):
    router = start_router(fleet)
    client = router.connect()
    client.post(CHAT, CHAT.request())
    first = fleet.expect()
    other = next(worker for worker in fleet if worker is not first.worker)
    other.stop_listening()
    first.end_by("rst")

    answer = client.answer()

    assert answer.status == 502
    assert error_of(answer)["code"] == "upstream_connect_failed"
    assert answer.get("x-should-retry") == "false"


@pytest.mark.parametrize("code, state", [(500, "ejected"), (400, "up")])
def test_a_dead_engine_that_still_begins_streams_gets_no_more_of_them(
        start_router, worker, code, state):
    """Some servers outlive their engine: each stream is 200 and one error event, and such a worker
    is always free. What the client did wrong says nothing about it."""
    router = start_router([worker], "--panic-percent", 100)  # else the only one is kept
    error = sse({"error": {"message": "no", "type": "x", "code": code}})
    worker.handler = lambda request: request.stream([error, DONE])
    worker.health = 503
    for _ in range(3):
        answer = router.post(CHAT, CHAT.request(stream=True))
        assert answer.status == 200
        assert answer.read_all() == error + DONE

    assert router.worker(worker)["state"] == state


def test_bad_requests_do_not_take_a_worker_down(router, worker):
    worker.handler = lambda request: request.answer(b'{"error":{"message":"no"}}', 400)
    for _ in range(20):
        assert router.post(CHAT, CHAT.request()).status == 400
    assert router.worker(worker)["state"] == "up"


def test_a_timeout_is_not_repeated(start_router, fleet):
    router = start_router(fleet, "--upstream-header-ms", 200)
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = fleet.expect()

    answer = client.answer()

    assert answer.status == 504
    request.wait_end()
    assert router.request_line(answer)["attempts"] == 1
    fleet.assert_no_request()


def test_half_a_head_is_not_repeated(fleet_router, fleet):
    """A byte came: the worker had begun, and its death is not the request's first."""
    client = fleet_router.connect()
    client.post(CHAT, CHAT.request())
    request = fleet.expect()
    request.body()
    request.send(b"HTTP/1.1 200 OK\r\nConte")
    request.end_by("fin")

    answer = client.answer()

    assert answer.status == 502
    assert answer.get("x-should-retry") == "false"
    fleet.assert_no_request()


@pytest.mark.parametrize("raw", [
    b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    b"HTTP/1.1 99 Low\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 000 Zero\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 1000 High\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
], ids=["not http", "two lengths", "length and chunks", "unknown coding", "negative length",
        "status 99", "status 0", "status 1000", "upgrade", "http 2"])
def test_an_answer_that_is_not_http_is_502_and_not_repeated(fleet_router, fleet, raw):
    client = fleet_router.connect()
    client.post(CHAT, CHAT.request())
    request = fleet.expect()
    request.body()
    request.send(raw)

    answer = client.answer()

    assert answer.status == 502
    assert error_of(answer)["code"] == "upstream_protocol_error"
    assert fleet_router.request_line(answer)["end"] == "upstream_protocol"
    request.wait_end()
    fleet.assert_no_request()


def test_no_retry_is_made_where_none_is_allowed(start_router, fleet):
    router = start_router(fleet, "--retry-count-max", 0)
    client = router.connect()
    client.post(CHAT, CHAT.request())
    fleet.expect().end_by("rst")

    assert client.answer().status == 502
    fleet.assert_no_request()


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_the_body_is_sent_again_byte_for_byte(fleet_router, fleet, framing):
    body = CHAT.request("Лимон 🫖 " * 100_000)
    client = fleet_router.connect()
    client.post(CHAT, body, framing=framing)
    first = fleet.expect()
    assert first.body() == body
    first.end_by("rst")

    second = fleet.expect()

    assert second.body() == body
    assert second.get("x-request-id") != first.get("x-request-id")  # an attempt of its own
    second.answer(CHAT.answer())
    assert client.answer().status == 200


def test_death_while_the_body_is_being_sent_is_repeated(fleet_router, fleet):
    body = CHAT.request("x" * 10_000_000)  # more than the sockets hold
    client = fleet_router.connect()
    client.post(CHAT, body)
    fleet.expect().end_by("rst")

    second = fleet.expect()

    assert second.body() == body
    second.answer(CHAT.answer())
    assert client.answer().status == 200


def test_a_worker_that_keeps_failing_gets_nothing_until_its_probes_pass(start_router, fleet):
    router = start_router(fleet, "--policy", "round_robin", "--probe-interval-ms", 100)
    bad, good = fleet
    bad.health = 500  # probes will not bring it back
    bad.handler = lambda request: request.end_by("rst")
    good.handler = lambda request: request.answer(CHAT.answer())
    for _ in range(8):
        assert router.post(CHAT, CHAT.request()).status == 200
    router.wait_states("down", 1)
    tried = bad.connections_total
    for _ in range(8):
        assert router.post(CHAT, CHAT.request()).status == 200
    assert bad.connections_total == tried

    bad.health = 200
    bad.handler = good.handler

    def is_back():
        assert router.post(CHAT, CHAT.request()).status == 200
        return router.worker(bad)["state"] == "up"

    wait_until(is_back, "one request is tried there, and brings it up")
    assert bad.connections_total > tried


def test_both_attempts_of_a_request_carry_one_id_of_the_client(fleet_router, fleet):
    client = fleet_router.connect()
    client.post(CHAT, CHAT.request(), {"X-Request-Id": "mine"})
    first = fleet.expect()
    first.end_by("rst")
    second = fleet.expect()
    second.answer(CHAT.answer())

    assert client.answer().get("x-request-id") == "mine"
    ids = [first.get("x-request-id"), second.get("x-request-id")]
    assert all(one.startswith("mine-") for one in ids) and ids[0] != ids[1]


def test_workers_that_close_now_and_then_cost_no_request_under_load(fleet_router, fleet):
    """As engines do that end a connection after so many answers, without a word."""
    counts = itertools.count(1)

    def answer(request):
        number = next(counts)
        request.body()
        request.send(head_bytes("HTTP/1.1 200 OK", {"Content-Length": 2}) + b"{}")
        if number % 10 == 0:
            request.end_by("fin" if number % 20 else "rst")
        request.finish()

    fleet.handle_with(answer)
    statuses = []

    def ask():
        client = fleet_router.connect()
        for _ in range(25):
            client.post(CHAT, CHAT.request())
            reply = client.answer()
            reply.read_all()
            statuses.append(reply.status)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert statuses == [200] * 500
    assert fleet_router.metric_sum("samovar_router_retries_total") <= 50
