# SPDX-License-Identifier: Apache-2.0
"""A request that kills engines. Its client sends it again and again, whatever it is told: it must not
take down one worker after the other."""

import pytest

from peers.openai_api import CHAT
from peers.process import wait_until
from peers.router import error_of


@pytest.fixture
def fleet(start_fleet):
    return start_fleet(4)


@pytest.fixture
def router(start_router, fleet):
    return start_router(fleet)


def send(router, body=None):
    client = router.connect()
    client.post(CHAT, body or CHAT.request("kill", stream=True))
    return client


def die_in_prefill(request):
    """On a fresh connection, behind the head of a stream."""
    request.start_stream()
    request.end_by("rst")


def die_in_answer(request):
    request.start_stream()
    request.send_chunk(CHAT.event("Tea"))
    request.end_by("rst")


def assert_refused(router, fleet, body=None):
    answer = send(router, body).answer()
    assert answer.status == 502
    assert error_of(answer)["code"] == "query_of_death"
    assert answer.get("x-should-retry") == "false"
    line = router.request_line(answer)
    assert (line["end"], line["attempts"]) == ("refused", 0)
    fleet.assert_no_request()


def assert_served(router, fleet, body=None):
    client = send(router, body)
    fleet.expect().stream(CHAT.stream())
    assert client.answer().read_all() == b"".join(CHAT.stream())


def kill_in_answer(router, fleet):
    """Returns the log line of it."""
    client = send(router)
    die_in_answer(fleet.expect())
    answer = client.answer()
    answer.read_all()
    return router.request_line(answer)


def test_what_two_workers_died_of_is_given_to_no_third(router, fleet):
    client = send(router)
    die_in_prefill(fleet.expect())
    die_in_prefill(fleet.expect())
    assert client.answer().status == 502

    for _ in range(5):
        assert_refused(router, fleet)

    assert len(router.log.find("query_of_death")) == 1
    assert router.metrics()['samovar_router_rejected_total{reason="query_of_death"}'] == 5


def test_deaths_in_mid_answer_count_too(router, fleet):
    victims = set()
    while len(victims) < 2:  # one that died of it may have died of something else
        assert not router.log.find("query_of_death")
        victims.add(kill_in_answer(router, fleet)["worker"])

    assert_refused(router, fleet)


def test_its_second_death_is_not_repeated_elsewhere(router, fleet):
    """Within the request that meets it, it would be the first."""
    victim = kill_in_answer(router, fleet)["worker"]
    client = send(router)
    request = fleet.expect()
    if request.worker.url == victim:  # and once more where it was: one victim still
        die_in_prefill(request)
        request = fleet.expect()
    die_in_prefill(request)

    assert client.answer().status == 502
    fleet.assert_no_request()


def test_another_body_is_served(router, fleet):
    client = send(router)
    die_in_prefill(fleet.expect())
    die_in_prefill(fleet.expect())
    client.answer()

    assert_refused(router, fleet)
    assert_served(router, fleet, CHAT.request("kill", stream=True, temperature=0.5))
    assert_served(router, fleet, CHAT.request("kill not", stream=True))


def test_a_good_answer_acquits(router, fleet):
    """A body that many send may be there when two workers die of something else."""
    kill_in_answer(router, fleet)
    assert_served(router, fleet)
    kill_in_answer(router, fleet)
    assert_served(router, fleet)


def test_a_stale_connection_is_no_victim(start_router, fleet):
    """It may have been closed while it lay idle: all of a fleet's may be, by a firewall."""
    router = start_router(fleet, "--policy", "round_robin")
    for _ in fleet:
        assert_served(router, fleet, CHAT.request("warm", stream=True))
    for _ in range(2):
        client = send(router)
        request = fleet.expect()
        assert request.number > 1, "not a reused connection"
        request.end_by("rst")
        fleet.expect().stream(CHAT.stream())
        client.answer().read_all()

    assert_served(router, fleet)
    assert not router.log.find("query_of_death")


def test_a_stale_connection_and_a_death_behind_it_are_two(start_router, fleet):
    router = start_router(fleet, "--policy", "round_robin")
    for _ in fleet:
        assert_served(router, fleet, CHAT.request("warm", stream=True))
    client = send(router)
    fleet.expect().end_by("rst")
    fleet.expect().end_by("rst")
    assert client.answer().status == 502

    assert_refused(router, fleet)


def test_refusals_timeouts_and_broken_answers_are_no_deaths(start_router, fleet):
    router = start_router(fleet, "--upstream-header-ms", 150, "--policy", "round_robin")
    body = CHAT.request("kill", stream=True, stream_options={})

    for act in [lambda request: request.answer(b"{}", 400),
                lambda request: request.answer(b"{}", 500),
                lambda request: (request.body(), request.wait_end(), request.finish()),
                lambda request: (request.body(), request.send(b"no http\r\n\r\n"),
                                 request.end_by("fin")),
                lambda request: (request.start_stream(), request.send_chunk(CHAT.event("x")),
                                 request.end_stream())] * 2:
        client = send(router, body)
        act(fleet.expect())
        client.answer().read_all()

    assert_served(router, fleet, body)


def test_it_is_forgotten_in_time(start_router, fleet):
    router = start_router(fleet, "--poison-memory-ms", 400)
    client = send(router)
    die_in_prefill(fleet.expect())
    die_in_prefill(fleet.expect())
    client.answer()

    def is_served():
        answer = send(router)
        if not fleet.requests.empty() or answer.wait_readable(0.1) is False:
            fleet.expect().stream(CHAT.stream())
        return answer.answer().status == 200

    wait_until(is_served, "served again", 5)


def test_on_trial_it_is_given_to_one_worker_and_no_second(start_router, fleet):
    router = start_router(fleet, "--poison-memory-ms", 500)
    client = send(router)
    die_in_prefill(fleet.expect())
    die_in_prefill(fleet.expect())
    client.answer()
    trials = []

    def is_on_trial():
        trials.append(send(router))
        return not fleet.requests.empty() or trials[-1].wait_readable(0.1) is False

    wait_until(is_on_trial, "let through", 5)
    die_in_prefill(fleet.expect())

    answer = trials[-1].answer()
    assert answer.status == 502
    assert answer.get("x-should-retry") == "false"
    assert_refused(router, fleet)


def test_it_can_be_switched_off(start_router, fleet):
    router = start_router(fleet, "--poison-memory-ms", 0)
    client = send(router)
    die_in_prefill(fleet.expect())
    die_in_prefill(fleet.expect())
    client.answer()

    assert_served(router, fleet)
