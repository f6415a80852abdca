# SPDX-License-Identifier: Apache-2.0
"""What operators and their tools ask: health, readiness, version, metrics, workers."""

import shutil
import subprocess

import pytest

from peers.http1 import head_bytes
from peers.openai_api import CHAT
from peers.process import wait_until
from peers.wire import Wire


def exercise(router, worker):
    """One request of each outcome that is cheap to have."""
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    worker.expect().stream(CHAT.stream(with_usage=True))
    client.answer().read_all()
    client.post(CHAT, b"{")
    client.answer().read_all()
    client.post(CHAT, CHAT.request())
    worker.expect().end_by("rst")  # the reused connection, and then the fresh one
    worker.expect().end_by("rst")
    client.answer().read_all()
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    client.close()
    request.wait_end()
    request.finish()
    router.log.wait_count("request", 4)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (package prometheus) is missing")
@pytest.mark.parametrize("is_used", [False, True], ids=["fresh", "used"])
def test_promtool_has_nothing_to_say_about_the_metrics(router, worker, is_used):
    if is_used:
        exercise(router, worker)
    text = router.admin("/metrics").read_all()

    verdict = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)

    assert verdict.returncode == 0, verdict.stderr.decode()
    assert verdict.stderr + verdict.stdout == b""


def test_the_metrics_are_ours_and_show_latency_and_lag(router, worker):
    exercise(router, worker)
    answer = router.admin("/metrics")
    assert answer.get("content-type").startswith("text/plain; version=0.0.4")
    names = {name.split("{")[0] for name in router.metrics()}
    assert all(name.startswith(("samovar_router_", "process_")) for name in names)
    assert any("overhead" in name for name in names), "own added latency"
    assert any("lag" in name for name in names), "loop lag"
    assert any(name.endswith("_bucket") for name in names)


def test_each_request_is_counted_once_under_its_end(router, worker):
    exercise(router, worker)
    wait_until(lambda: router.metric_sum("samovar_router_requests_total") == 4, "four requests")


def test_the_workers_are_shown_with_state_and_load(router, worker):
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()

    [row] = router.workers()

    assert row["url"] == worker.url
    assert row["state"] == "up"
    assert row["in_flight"] == 1
    request.answer(CHAT.answer())
    client.answer().read_all()
    router.wait_idle()


def test_the_admin_listener_serves_nothing_else(router):
    assert router.admin("/nope").status == 404
    assert router.admin("/metrics", "POST").status == 405
    assert router.admin("/v1/chat/completions").status == 404


def test_admin_answers_while_clients_hold_all_they_can(router, worker):
    held = []
    for _ in range(100):
        client = router.connect()
        client.post(CHAT, CHAT.request(stream=True))
        held.append((client, worker.expect()))
    assert router.worker(worker)["in_flight"] == 100
    assert router.get("/health").status == 200
    for client, request in held:
        client.close()
        request.wait_end()
        request.finish()


def test_health_is_about_the_process_and_readiness_about_its_workers(start_router, start_worker):
    worker = start_worker(health=503)
    router = start_router([worker], "--probe-interval-ms", 50, is_ready=False)
    assert router.get("/health").status == 200
    assert router.get("/readyz").status == 503

    worker.health = 200
    router.wait_ready()

    wait_until(lambda: router.get("/readyz").status == 200, "ready")
    worker.kill()
    wait_until(lambda: router.get("/readyz").status == 503, "no worker left")
    assert router.get("/health").status == 200


def test_a_worker_that_lists_no_models_yet_gets_nothing(start_router, start_worker):
    """Healthy but still loading."""
    worker = start_worker(models=[])
    router = start_router([worker], "--probe-interval-ms", 50, is_ready=False)
    worker.wait_probes("/v1/models", 2)
    assert router.get("/readyz").status == 503
    worker.models = ["tiny"]
    router.wait_ready()


def test_a_busy_worker_is_not_taken_down_by_its_probes(start_router, start_worker):
    """It makes progress on an answer; its health check is only late."""
    worker = start_worker()
    router = start_router([worker], "--probe-interval-ms", 50)
    client = router.connect()
    client.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    answer = None
    worker.health = 500
    for _ in range(8):
        request.send_chunk(CHAT.event("x"))
        answer = answer or client.answer()
        answer.read(len(CHAT.event("x")))
        worker.wait_probes("/health", 1)
    assert router.worker(worker)["state"] == "up"
    client.close()
    request.wait_end()
    request.finish()


def test_version_is_json(router):
    answer = router.get("/version")
    assert answer.status == 200
    assert answer.json()["version"]


@pytest.mark.parametrize("target", ["/health", "/readyz", "/version", "/v1/models"])
def test_head_is_get_without_the_body(router, target):
    client = router.connect()
    client.request("HEAD", target)
    head = client.answer("HEAD")
    client.request("GET", target)
    whole = client.answer("GET")
    body = whole.read_all()
    assert head.status == whole.status == 200
    assert head.get("content-length") in (None, str(len(body)))


def test_a_load_balancers_bare_probe_is_answered(router):
    wire = Wire.connect(router.address)
    wire.send(head_bytes("GET /health HTTP/1.0", {}))
    assert wire.read_to_end().startswith(b"HTTP/1.1 200 ")


def test_the_router_starts_with_all_workers_down(start_router, start_worker):
    worker = start_worker()
    worker.stop_listening()
    router = start_router([worker], "--probe-interval-ms", 50, is_ready=False)
    assert router.get("/readyz").status == 503
    assert router.get("/v1/models").status == 200

    worker.start_listening()

    router.wait_ready()
    router.wait_states("up", 1)
