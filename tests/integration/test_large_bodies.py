# SPDX-License-Identifier: Apache-2.0
"""Bodies above 256 KiB are read by threads: same answers, bounded waiting, and an exchange that ends
while a thread has its body leaves nothing behind.

A body whose last byte is held back is complete the moment that byte comes: so several can be made
to arrive together, while the one thread is busy with the first for tens of milliseconds."""

import functools
from pathlib import Path

import pytest

from peers.http1 import request_bytes
from peers.openai_api import CHAT
from peers.process import is_sanitized, wait_until
from peers.router import error_of

LARGE = 300_000
HUGE = 24 << 20


@functools.cache
def body_of(api, size, has_model=True):
    """A request of about size bytes, whose words differ; with escapes, as text has."""
    text = "".join(f"word {number:07}\\n" for number in range(size // 14))
    model = '"model": "tiny", ' if has_model else ""
    prompt = '"messages": [{"role": "user", "content": "%s"}]' if api is CHAT else '"prompt": "%s"'
    return ("{" + model + prompt % text + "}").encode()


def hold_last_byte(router, api, body):
    """A client that has sent all of its request but the last byte."""
    client = router.connect()
    raw = request_bytes("POST", api.path, body)
    client.send(raw[:-1])
    return client, raw[-1:]


def wait_received(router, count):
    """Until the router has read that many bytes from its clients."""
    wait_until(lambda: router.metrics()["samovar_router_client_received_bytes_total"] >= count,
               "all bytes but the last")


def test_a_large_body_reaches_the_worker_byte_for_byte(router, worker, api):
    body = body_of(api, LARGE)
    client = router.connect()
    client.post(api, body)
    request = worker.expect()
    assert request.body() == body
    request.answer(b"{}")
    answer = client.answer()
    answer.read_all()
    assert answer.status == 200
    assert router.metrics()["samovar_router_parse_jobs_total"] == 1
    assert router.request_line(answer)["prompt_blocks"] > LARGE // 256 // 2


def test_a_small_body_is_read_at_once(router, worker, api):
    client = router.connect()
    client.post(api, body_of(api, 200_000))
    worker.expect().answer(b"{}")
    client.answer().read_all()
    assert router.metrics()["samovar_router_parse_jobs_total"] == 0


@pytest.mark.parametrize("body, status, code", [
    (b'{"model": "tiny", "prompt": 1 ' + b" " * LARGE, 400, "invalid_json"),
    (b'{"model": "tiny", "model": "tiny"}' + b" " * LARGE, 400, "duplicate_field"),
    (b'{"model": "nobody", "messages": [], "prompt": "x"}' + b" " * LARGE, 404, "model_not_found"),
    (b'{"model": "tiny"}' + b" " * LARGE, 400, "missing_field"),
])
def test_a_large_body_is_refused_as_a_small_one(router, worker, api, body, status, code):
    small = error_of(router.post(api, body.replace(b" " * LARGE, b"")))
    answer = router.post(api, body)
    assert answer.status == status
    error = error_of(answer)
    assert error["code"] == small["code"] == code
    worker.assert_no_request()


def test_the_only_model_stands_for_an_absent_one(router, worker):
    body = body_of(CHAT, LARGE, has_model=False)
    client = router.connect()
    client.post(CHAT, body)
    assert worker.expect().body() == body
    client.close()


def test_requests_on_one_connection_wait_for_each_other(router, worker):
    """A small one behind a large one is not answered first."""
    large, small = body_of(CHAT, LARGE), body_of(CHAT, 100)
    client = router.connect()
    client.send(request_bytes("POST", CHAT.path, large) + request_bytes("POST", CHAT.path, small))
    for body in (large, small):
        request = worker.expect()
        assert request.body() == body
        request.answer(b"{}")
        answer = client.answer()
        answer.read_all()
        assert answer.status == 200


def test_more_than_may_wait_is_refused_and_may_come_again(start_router, worker):
    router = start_router([worker], "--parse-thread-count", 1, "--parse-queue-max", 1)
    body = body_of(CHAT, HUGE)
    held = [hold_last_byte(router, CHAT, body) for _ in range(4)]
    wait_received(router, len(held) * (len(body) - 1))

    worker.handler = lambda request: request.answer(b"{}")
    for client, last in held:
        client.send(last)
    answers = [client.answer() for client, _ in held]

    refused = [answer for answer in answers if answer.status == 503]
    assert len(refused) >= 2  # one is read, one waits
    assert [answer.status for answer in answers].count(200) == len(held) - len(refused) > 0
    for answer in refused:
        assert answer.get("retry-after") == "1"
        assert error_of(answer)["code"] == "overloaded"
    assert router.metrics()["samovar_router_parse_jobs_refused_total"] == len(refused)
    wait_until(lambda: router.metrics()["samovar_router_parse_jobs"] == 0, "jobs left")
    assert router.post(CHAT, body).status == 200


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_client_that_leaves_while_its_body_is_read(start_router, worker, how):
    """One while a thread reads it, one while it waits for a thread."""
    router = start_router([worker], "--parse-thread-count", 1)
    body = body_of(CHAT, HUGE)
    held = [hold_last_byte(router, CHAT, body) for _ in range(4)]
    wait_received(router, len(held) * (len(body) - 1))

    for client, last in held:
        client.send(last)
    for client, _ in held:
        client.end_by(how)

    lines = router.log.wait_count("request", len(held), end="client_abort")
    assert "parse" in {line["phase"] for line in lines}
    wait_until(lambda: router.metrics()["samovar_router_parse_jobs"] == 0, "jobs left")
    assert router.metrics()['samovar_router_client_aborts_total{phase="parse"}'] >= 1


def test_a_stop_while_bodies_are_read(start_router, worker):
    """No drain time: what is being read is given up, and the process ends well."""
    router = start_router([worker], "--parse-thread-count", 1, "--drain-ms", 0)
    body = body_of(CHAT, HUGE)
    held = [hold_last_byte(router, CHAT, body) for _ in range(4)]
    wait_received(router, len(held) * (len(body) - 1))

    for client, last in held:
        client.send(last)
    wait_until(lambda: router.metrics()["samovar_router_parse_jobs"] > 0, "a body being read")
    router.stop()

    ends = {line["end"] for line in router.log.find("request")}
    assert ends <= {"drained", "client_abort"}, ends


def peak_kib(router):
    for line in Path(f"/proc/{router.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize("unit", [b"[", b'{"a":'], ids=["arrays", "objects"])
def test_brackets_by_the_million_cost_nothing_beyond_their_own_bytes(start_router, worker, unit):
    size = 64 << 20
    router = start_router([worker], "--body-bytes-max", size)
    before = peak_kib(router)

    answer = router.post(CHAT, unit * (size // len(unit)))

    error = error_of(answer)
    assert (answer.status, error["code"]) == (400, "invalid_json")
    assert f"at byte {256 * len(unit)}:" in error["message"]
    if not is_sanitized("samovar-router"):
        assert peak_kib(router) - before < (size >> 10) + 8192
    worker.assert_no_request()


def test_without_threads_the_loop_reads_everything(start_router, worker):
    router = start_router([worker], "--parse-thread-count", 0)
    body = body_of(CHAT, LARGE)
    client = router.connect()
    client.post(CHAT, body)
    request = worker.expect()
    assert request.body() == body
    request.answer(b"{}")
    client.answer().read_all()
    assert router.metrics()["samovar_router_parse_jobs_total"] == 0
