# SPDX-License-Identifier: Apache-2.0
"""Workers that fail, pause, come and go: who gets requests meanwhile, and how one comes back."""

import signal
import time

import pytest

from peers.openai_api import CHAT, DONE
from peers.process import wait_until
from peers.router import error_of


def good(request):
    request.answer(CHAT.answer())


def ask(router, text="hello", **fields):
    return router.post(CHAT, CHAT.request(text), fields)


def fail_until_ejected(router, bad):
    """bad answers 500; round robin brings it enough requests."""
    bad.handler = lambda request: request.answer(b'{"error":{"message":"dead"}}', 500)

    def is_out():
        ask(router)
        return router.worker(bad)["state"] == "ejected"
    wait_until(is_out, "it is taken out by its failures")


@pytest.fixture
def round_robin(start_router, fleet):
    fleet.handle_with(good)
    return start_router(fleet, "--policy", "round_robin")


# --- failures, and one request that decides ---


def test_health_that_passes_does_not_bring_back_a_worker_whose_requests_fail(
        start_router, fleet):
    """Its /health is well all the time: what brings it back is one request that it serves."""
    fleet.handle_with(good)
    router = start_router(fleet, "--policy", "round_robin", "--probe-interval-ms", 50)
    bad = fleet[0]
    fail_until_ejected(router, bad)
    bad.wait_probes("/health", 3)
    failures = router.worker(bad)["failures_total"]

    wait_until(lambda: router.worker(bad)["state"] == "trial", "its back-off is over")
    answers = [ask(router).status for _ in range(4)]

    row = router.worker(bad)
    assert answers.count(500) == 1, "one request pays for the trial"
    assert row["failures_total"] == failures + 1
    assert row["state"] == "ejected"
    assert row["ejections_total"] == 2


def test_a_trial_that_succeeds_brings_it_back(round_robin, fleet):
    router, bad = round_robin, fleet[0]
    fail_until_ejected(router, bad)
    bad.handler = good

    def is_back():
        assert ask(router).status == 200
        return router.worker(bad)["state"] == "up"
    wait_until(is_back, "it serves its trial")

    lines = router.log.wait_count("worker_state", 5)  # one of them the other worker's
    changes = [(line["state"], line["reason"]) for line in lines if line["worker"] == bad.url]
    assert changes == [("up", "probe"), ("ejected", "traffic"), ("trial", "probe"),
                       ("up", "traffic")], "each change is told once"


def test_only_one_request_is_on_trial_at_a_time(start_router, fleet):
    router = start_router(fleet, "--policy", "round_robin")
    bad, well = fleet
    well.handler = good
    fail_until_ejected(router, bad)
    bad.handler = None  # from here on the test holds what reaches it

    def is_tried():
        client = router.connect()
        client.post(CHAT, CHAT.request())
        wait_until(lambda: client.wait_readable(0) or not fleet.requests.empty(), "somebody has it")
        return not fleet.requests.empty()
    wait_until(is_tried, "a trial")
    trial = fleet.expect()
    for _ in range(6):
        assert ask(router).get("x-samovar-worker") == well.url
    fleet.assert_no_request()

    trial.answer(CHAT.answer())

    wait_until(lambda: router.worker(bad)["state"] == "up", "the trial decides")


def test_a_trial_that_its_client_leaves_is_given_to_another(start_router, fleet):
    router = start_router(fleet, "--policy", "round_robin")
    bad, well = fleet
    well.handler = good
    fail_until_ejected(router, bad)
    bad.handler = None
    clients = []

    def is_tried():
        clients.append(router.connect())
        clients[-1].post(CHAT, CHAT.request())
        wait_until(lambda: clients[-1].wait_readable(0) or not fleet.requests.empty(), "taken")
        return not fleet.requests.empty()
    wait_until(is_tried, "a trial")
    trial = fleet.expect()
    clients[-1].close()
    trial.wait_end()
    trial.finish()
    assert router.worker(bad)["state"] == "trial"

    bad.handler = good

    def is_back():
        assert ask(router).status == 200
        return router.worker(bad)["state"] == "up"
    wait_until(is_back, "the next request")


def test_a_worker_that_resets_every_request_is_left_alone(start_router, fleet):
    """Affinity does not override it: the prompt that it holds goes elsewhere."""
    fleet.handle_with(good)
    router = start_router(fleet)
    text = "a long prompt " * 500
    home = next(worker for worker in fleet
                if worker.url == ask(router, text).get("x-samovar-worker"))
    home.handler = lambda request: request.end_by("rst")

    def is_ejected():
        assert ask(router, text).status == 200
        return router.worker(home)["state"] == "ejected"
    wait_until(is_ejected, "its failures add up over the requests")
    tried = router.worker(home)["chosen_total"]
    begun = time.monotonic()

    for _ in range(5):
        assert ask(router, text).status == 200

    if time.monotonic() - begun < 0.7:  # else its first back-off may be over
        assert router.worker(home)["chosen_total"] == tried


def test_bad_requests_neither_eject_nor_excuse(start_router, worker):
    router = start_router([worker], "--panic-percent", 100)

    def handler(request):
        status = 400 if b"bad" in request.body() else 500
        request.answer(b'{"error":{"message":"no"}}', status)
    worker.handler = handler
    for _ in range(100):
        assert ask(router, "bad").status == 400
    assert router.worker(worker)["state"] == "up"

    for text in ("well", "bad", "well", "bad", "well"):
        ask(router, text)

    assert router.worker(worker)["state"] == "ejected"


# --- the floor ---


def test_failures_take_out_no_more_than_half_of_a_models_workers(start_router, start_fleet):
    """Every engine fails: all of them ejected would be an outage of our own making."""
    fleet = start_fleet(4)
    fleet.handle_with(lambda request: request.answer(b'{"error":{"message":"no"}}', 500))
    router = start_router(fleet, "--policy", "round_robin")

    def is_at_the_floor():
        assert ask(router).status == 500
        return router.metric_sum("samovar_router_ejections_withheld_total") >= 3
    wait_until(is_at_the_floor, "more would be ejected")

    states = [row["state"] for row in router.workers()]
    assert states.count("up") >= 2, states
    assert ask(router).status == 500, "an answer of an engine, not a refusal of ours"


def test_the_ejected_come_back_when_probes_take_the_others(start_router, fleet):
    router = start_router(fleet, "--policy", "round_robin", "--probe-interval-ms", 50)
    bad, well = fleet
    well.handler = good
    fail_until_ejected(router, bad)
    bad.handler = good
    well.kill()

    wait_until(lambda: ask(router).status == 200, "the only one that answers its probes is asked")

    assert router.worker(well)["state"] != "ejected"


# --- back pressure ---


@pytest.mark.parametrize("status", [503, 429, 529])
def test_a_worker_that_asks_for_a_pause_gets_it_and_no_more(start_router, fleet, status):
    router = start_router(fleet, "--policy", "round_robin")
    busy, free = fleet
    free.handler = good
    busy.handler = lambda request: request.answer(b'{"error":{"message":"full"}}', status,
                                                  retry_after="2")
    wait_until(lambda: ask(router) and router.worker(busy)["busy_total"] == 1, "it was asked")
    said = time.monotonic()
    busy.handler = good

    for _ in range(6):
        assert ask(router).get("x-samovar-worker") == free.url
    assert router.worker(busy)["state"] == "up"
    assert 0 < router.worker(busy)["busy_ms"] <= 2000
    wait_until(lambda: router.worker(busy)["busy_ms"] == 0, "its pause is over")
    assert time.monotonic() - said > 1.9

    assert busy.url in [ask(router).get("x-samovar-worker") for _ in range(2)], "at once"
    assert router.worker(busy)["failures_total"] == 0


def test_when_all_pause_the_client_is_told_the_shortest(start_router, fleet):
    router = start_router(fleet)
    for worker, seconds in zip(fleet, ("30", "9")):
        worker.handler = lambda request, seconds=seconds: request.answer(
            b'{"error":{"message":"full"}}', 503, retry_after=seconds)
    ask(router)
    ask(router)
    wait_until(lambda: sum(row["busy_total"] for row in router.workers()) >= 2, "both refused")

    answer = ask(router)

    assert answer.status == 503
    assert error_of(answer)["code"] == "overloaded"
    assert 0 < int(answer.get("retry-after")) <= 9
    assert router.get("/readyz").status == 200, "they are well"


@pytest.mark.parametrize("status", [503, 429, 529])
def test_a_request_that_everybody_refuses_pauses_one_worker_not_all(start_router, fleet, status):
    router = start_router(fleet)
    for worker in fleet:
        worker.handler = lambda request: request.answer(
            b'{"error":{"message":"not you"}}', status, retry_after="30")
    assert ask(router).status == status
    for worker in fleet:
        worker.handler = good

    assert [ask(router).status for _ in range(4)] == [200] * 4
    assert sorted(row["busy_total"] for row in router.workers()) == [0, 1]


@pytest.mark.parametrize("said", ["0", "soon", "Wed, 21 Oct 2065 07:28:00 GMT", "-5", "99999999"])
def test_whatever_retry_after_says_the_pause_is_short_and_ends(start_router, worker, said):
    router = start_router([worker])
    worker.handler = lambda request: request.answer(b"{}", 503, retry_after=said)
    assert ask(router).status == 503

    assert router.worker(worker)["busy_total"] == 1
    if said == "99999999":
        assert 0 < router.worker(worker)["busy_ms"] <= 60000
    else:
        assert router.worker(worker)["busy_ms"] <= 1000
        wait_until(lambda: router.worker(worker)["busy_ms"] == 0, "a second at most")


# --- names and ranks ---


def test_a_name_is_resolved_and_its_worker_shown_by_its_address(start_router, start_worker):
    worker = start_worker(host="127.0.0.1")
    worker.handler = good
    router = start_router([], "--worker-urls", f"dns://localhost:{worker.port}")
    router.wait_states("up", 1)

    assert ask(router).get("x-samovar-worker") == f"http://127.0.0.1:{worker.port}"
    line = router.log.wait("worker_added")
    assert line["source"] == f"dns://localhost:{worker.port}"


def test_a_name_that_nobody_has_holds_up_nobody_and_is_told_once(start_router, worker):
    worker.handler = good
    router = start_router([worker], "--worker-urls", "dns://nobody.invalid:1",
                          "--dns-interval-ms", 100)

    assert ask(router).status == 200
    wait_until(lambda: router.metric_sum("samovar_router_dns_lookups_failed_total") >= 3,
               "it is looked up again")
    assert len(router.log.find("lookup_failed")) == 1
    assert router.metric_sum("samovar_router_dns_names_failing") == 1


def test_ranks_are_workers_of_their_own_and_told_apart_by_a_header(start_router, start_worker):
    worker = start_worker()
    seen = []

    def handler(request):
        seen.append(request.message.head.all("x-data-parallel-rank"))
        request.answer(CHAT.answer())
    worker.handler = handler
    worker.metrics = "".join(
        f'vllm:num_requests_running{{engine="{rank}"}} {rank}.0\n'
        f'vllm:num_requests_waiting{{engine="{rank}"}} 0.0\n' for rank in range(3))
    router = start_router([], "--worker-urls", worker.url + "#dp=3", "--policy", "round_robin")
    router.wait_states("up", 3)

    answers = [ask(router, **{"X-Data-Parallel-Rank": "7"}) for _ in range(3)]

    assert sorted(seen) == [["0"], ["1"], ["2"]], "the client does not choose"
    assert sorted(answer.get("x-samovar-worker") for answer in answers) == \
        [f"{worker.url}#{rank}" for rank in range(3)]
    assert worker.probes["/health"] == 1, "one probe for all"
    wait_until(lambda: all(row["report"] for row in router.workers()), "each has its report")
    assert [row["report"]["running"] for row in router.workers()] == [0, 1, 2]


def test_without_ranks_the_clients_header_passes(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(), {"X-Data-Parallel-Rank": "7"})
    request = worker.expect()

    assert request.get("x-data-parallel-rank") == "7"
    request.answer(CHAT.answer())


def test_it_starts_with_all_workers_down_and_serves_when_one_comes(start_router, start_fleet):
    fleet = start_fleet(2)
    for worker in fleet:
        worker.stop_listening()
    router = start_router(fleet, "--probe-interval-ms", 50, is_ready=False)
    assert router.get("/health").status == 200
    assert router.get("/readyz").status == 503
    assert ask(router).status == 503

    fleet[1].handler = good
    fleet[1].start_listening()

    wait_until(lambda: router.get("/readyz").status == 200, "one is enough")
    assert ask(router).status == 200


def streaming(router, fleet, worker):
    """A stream that worker is in the middle of."""
    while True:
        client = router.connect()
        client.post(CHAT, CHAT.request(stream=True))
        request = fleet.expect()
        request.start_stream()
        request.send_chunk(CHAT.event("Tea"))
        answer = client.answer()
        answer.read(len(CHAT.event("Tea")))
        if request.worker is worker:
            return client, request, answer
        request.send_chunk(DONE)
        request.end_stream()
        answer.read_all()


def test_workers_come_and_go_at_a_reload_and_finish_what_they_have(
        start_router, start_fleet, tmp_path):
    fleet = start_fleet(3)
    config = tmp_path / "router.yaml"

    def write(workers):
        config.write_text("worker-urls: " + " ".join(worker.url for worker in workers) + "\n")
    write(fleet[:2])
    router = start_router([], "--config", config, "--policy", "round_robin")
    router.wait_states("up", 2)
    stayed, leaving, new = fleet
    _, request, answer = streaming(router, fleet, leaving)

    write([stayed, new])
    router.signal(signal.SIGHUP)
    router.log.wait("config_reloaded")
    assert router.worker(leaving)["state"] == "draining"
    router.log.wait("worker_added", worker=new.url)
    wait_until(lambda: router.worker(new)["state"] == "up", "the new one is probed")
    for worker in fleet:
        worker.handler = good
    used = {ask(router).get("x-samovar-worker") for _ in range(6)}
    assert used == {stayed.url, new.url}, "what leaves gets nothing new"

    request.send_chunk(DONE)
    request.end_stream()
    assert answer.read_all().endswith(DONE), "its stream was finished"
    wait_until(lambda: len(router.workers()) == 2, "then it is gone")
    assert router.log.wait("worker_state", worker=leaving.url, state="gone")["reason"] == "discovery"
    assert len(router.log.find("worker_state", worker=stayed.url)) == 1, "nothing happened to it"


def test_a_worker_that_comes_back_while_it_leaves_is_taken_back(
        start_router, start_fleet, tmp_path):
    fleet = start_fleet(2)
    config = tmp_path / "router.yaml"

    def reload(workers, count):
        config.write_text("worker-urls: " + " ".join(worker.url for worker in workers) + "\n")
        router.signal(signal.SIGHUP)
        router.log.wait_count("config_reloaded", count)
    config.write_text("worker-urls: " + " ".join(worker.url for worker in fleet) + "\n")
    router = start_router([], "--config", config, "--probe-interval-ms", 50)
    router.wait_states("up", 2)
    _, request, answer = streaming(router, fleet, fleet[0])
    reload(fleet[1:], 1)
    assert router.worker(fleet[0])["state"] == "draining"

    reload(fleet, 2)

    router.wait_states("up", 2)
    request.send_chunk(DONE)
    request.end_stream()
    assert answer.read_all().endswith(DONE)


def test_reloads_that_swap_all_workers_leave_no_trace(start_router, start_fleet, tmp_path):
    """Places in tables are used again: what is shown and chosen is always the worker of now."""
    fleet = start_fleet(4)
    fleet.handle_with(good)
    config = tmp_path / "router.yaml"
    config.write_text(f"worker-urls: {fleet[0].url}\n")
    router = start_router([], "--config", config, "--probe-interval-ms", 50)
    router.wait_states("up", 1)
    sockets = router.open_sockets()
    for number in range(1, 13):
        worker = fleet[number % 4]
        config.write_text(f"worker-urls: {worker.url}\n")
        router.signal(signal.SIGHUP)
        wait_until(lambda: [(row["url"], row["state"]) for row in router.workers()]
                   == [(worker.url, "up")], "only the new one is there")
        assert ask(router, "the same long prompt " * 200).get("x-samovar-worker") == worker.url

    lines = router.log.find("request")
    assert {line["matched_blocks"] for line in lines} == {0}, "knowledge does not pass to another"
    wait_until(lambda: router.open_sockets() <= sockets + 1, "connections are closed")


def test_a_reload_with_a_worker_twice_changes_nothing(start_router, fleet, tmp_path):
    config = tmp_path / "router.yaml"
    config.write_text(f"worker-urls: {fleet[0].url}\n")
    router = start_router([], "--config", config)
    router.wait_states("up", 1)

    config.write_text(f"worker-urls: {fleet[0].url} {fleet[1].url} {fleet[1].url}/\n")
    router.signal(signal.SIGHUP)

    assert "twice" in router.log.wait("config_error")["what"]
    assert [row["url"] for row in router.workers()] == [fleet[0].url]


# --- sessions ---


def session_homes(router, headers_of, count=16):
    """Where each of count sessions goes: new prompts all the time, so that nobody holds any."""
    homes = {}
    for number in range(count):
        answer = ask(router, f"{number} unlike any other {time.monotonic_ns()}",
                     **headers_of(number))
        homes[number] = answer.get("x-samovar-worker")
        assert router.request_line(answer)["rung"] in ("affinity", "load", "guess")
    return homes


@pytest.mark.parametrize("header", ["X-Session-ID", "x-smg-routing-key", "session-id"])
def test_a_session_has_its_worker_on_every_router(start_router, start_fleet, header):
    fleet = start_fleet(4)
    fleet.handle_with(good)
    routers = [start_router(fleet) for _ in range(2)]

    first, second = (session_homes(router, lambda number: {header: f"user {number}"})
                     for router in routers)

    assert first == second, "routers that never spoke agree"
    assert len(set(first.values())) >= 3, "and the sessions spread"


def test_the_first_header_of_the_list_wins_and_the_body_comes_last(start_router, start_fleet):
    fleet = start_fleet(4)
    fleet.handle_with(good)
    router = start_router(fleet, "--session-headers", "x-first,x-second")

    def home(body_session=None, **headers):
        extra = {"prompt_cache_key": body_session} if body_session else {}
        body = CHAT.request(f"new {time.monotonic_ns()}", **extra)
        return router.post(CHAT, body, headers).get("x-samovar-worker")

    homes = {key: home(**{"x-first": key}) for key in "abcdefgh"}
    for key, there in homes.items():
        assert home(**{"x-first": key, "x-second": "other"}) == there
        assert home(**{"x-second": key}) == there
        assert home("other", **{"x-second": key}) == there
        assert home(key) == there
    assert len(set(homes.values())) > 1


def test_a_session_header_reaches_the_engine_unchanged(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request(), {"X-Session-ID": "abc def"})
    request = worker.expect()

    assert request.get("x-session-id") == "abc def"
    request.answer(CHAT.answer())


def test_affinity_yields_to_health(start_router, fleet):
    fleet.handle_with(good)
    router = start_router(fleet, "--probe-interval-ms", 50)
    home = ask(router, "one", **{"X-Session-ID": "s"}).get("x-samovar-worker")
    dead = next(worker for worker in fleet if worker.url == home)
    dead.kill()

    for number in range(4):
        answer = ask(router, f"two {number}", **{"X-Session-ID": "s"})
        assert answer.status == 200
        assert answer.get("x-samovar-worker") != home


# --- the workers' key ---


def test_the_workers_key_is_for_our_own_requests_only(start_router, start_worker, tmp_path):
    worker = start_worker()
    seen = {}
    worker.on_probe = lambda message: seen.__setitem__(message.target, message.get("authorization"))
    (tmp_path / "key").write_text("s3cret\n")
    router = start_router([worker], "--worker-api-key-file", tmp_path / "key")
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()

    assert request.get("authorization") is None
    request.answer(CHAT.answer())
    wait_until(lambda: "/metrics" in seen, "a whole round of probes")
    assert set(seen.values()) == {"Bearer s3cret"}
