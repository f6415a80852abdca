# SPDX-License-Identifier: Apache-2.0
"""SIGHUP reads the options again: all or nothing, without a request that notices."""

import signal
import threading
import time

import pytest

from peers.openai_api import CHAT
from peers.process import wait_until
from peers.router import Router


class Reloadable:
    """A router with a file of its own, and the fields of the file."""

    def __init__(self, start_router, path, workers, *flags, **fields):
        self.path = path
        self.fields = {"worker-urls": " ".join(worker.url for worker in workers), **fields}
        self.write()
        self.router = start_router([], "--config", path, *flags)
        self.router.wait_ready()
        self.count = 0

    def write(self, text=None):
        lines = [f"{name.replace('_', '-')}: {value}\n" for name, value in self.fields.items()]
        self.path.write_text("".join(lines) if text is None else text)

    def hang_up(self, event):
        """SIGHUP; the line that says how it went."""
        self.count += 1
        before = len(self.router.log.find(event))
        self.router.signal(signal.SIGHUP)
        return self.router.log.wait_count(event, before + 1)[-1]

    def reload(self, **fields):
        self.fields.update(fields)
        self.write()
        return self.hang_up("config_reloaded")


@pytest.fixture
def reloadable(start_router, tmp_path, worker):
    return Reloadable(start_router, tmp_path / "router.yaml", [worker], body_bytes_max=2000)


def limit_of(client):
    """The body limit as a 413 of this connection names it."""
    client.request("POST", CHAT.path, b"x" * 5000)
    answer = client.answer()
    assert answer.status == 413
    return answer.read_all().decode()


def test_a_change_is_applied_and_told(reloadable, worker):
    router = reloadable.router
    worker.handler = lambda request: request.answer(CHAT.answer())
    client = router.connect()  # that lives through the reload
    client.post(CHAT, CHAT.request())
    assert client.answer().read_all()

    line = reloadable.reload(body_bytes_max=1500, log_level="debug")

    assert line["changed"] == 2
    assert limit_of(client).count("1500") == 1
    change = router.log.find("option_changed", option="body-bytes-max")[0]
    assert (change["old"], change["new"]) == ("2000B", "1500B")
    assert change["origin"] == f"{reloadable.path}:2"
    assert router.metrics()['samovar_router_config_reload_total{result="applied"}'] == 1


@pytest.mark.parametrize("text", ["body-bytes-max: 1\nprt: 1\n", "body-bytes-max: [\n", "",
                                  "worker-urls: []\n"],
                         ids=["mistakes", "no yaml", "empty", "no worker"])
def test_a_mistake_changes_nothing(reloadable, text):
    router = reloadable.router
    reloadable.write(text)
    before = router.metrics()["samovar_router_config_last_success_timestamp_seconds"]

    line = reloadable.hang_up("config_refused")

    errors = router.log.find("config_error")
    assert len(errors) == line["errors"] >= 1
    assert all(error["level"] == "error" and error["what"] for error in errors)
    assert not router.log.find("option_changed")
    assert "2000" in limit_of(router.connect())
    metrics = router.metrics()
    assert metrics['samovar_router_config_reload_total{result="refused"}'] == 1
    assert metrics["samovar_router_config_last_success_timestamp_seconds"] == before


def test_a_file_that_is_gone_changes_nothing(reloadable):
    reloadable.path.unlink()
    assert reloadable.hang_up("config_refused")["errors"] == 1
    assert reloadable.router.log.find("config_error")[0]["where"] == str(reloadable.path)


def test_what_needs_a_restart_is_told_and_kept(reloadable):
    line = reloadable.reload(seed=7)
    assert line["changed"] == 0
    wanted = reloadable.router.log.find("option_needs_restart")[0]
    assert (wanted["option"], wanted["in_force"], wanted["wanted"]) == ("seed", "0", "7")
    assert wanted["level"] == "warn"


def test_another_policy_chooses_from_now_on(reloadable, worker):
    router = reloadable.router
    worker.handler = lambda request: request.answer(CHAT.answer())
    for policy in ("round_robin", "random", "ttft"):
        reloadable.reload(policy=policy)
        answer = router.post(CHAT, CHAT.request())
        assert router.request_line(answer)["policy"] == policy


def test_probes_follow_their_new_interval(tmp_path, worker):
    def start(workers, *flags):  # without the flag of the fixture's, which would win
        return Router(workers, flags)

    reloadable = Reloadable(start, tmp_path / "router.yaml", [worker], probe_interval_ms="50ms")
    with reloadable.router.killed_on_failure():
        reloadable.reload(probe_interval_ms="20ms")
        worker.wait_probes("/health", 20)
        reloadable.reload(probe_interval_ms="10m")
        worker.wait_probes("/health", 1)  # the one that was due: the last for long
        count = worker.probes["/health"]
        time.sleep(0.3)
        assert worker.probes["/health"] <= count + 1
        reloadable.router.stop()


def test_what_is_doubtful_is_told_at_each_reload(reloadable):
    reloadable.reload(worker_idle_ms="10s")
    [doubt] = reloadable.router.log.find("option_doubtful", option="worker-idle-ms")
    assert doubt["level"] == "warn" and "engines close" in doubt["why"]


@pytest.mark.parametrize("old, new", [("10m", "200ms"), ("200ms", "10m")],
                         ids=["shorter", "longer"])
def test_a_wait_that_runs_gets_its_new_length(start_router, tmp_path, worker, old, new):
    """A worker that keeps an exchange waiting, under a wait that changes meanwhile."""
    reloadable = Reloadable(start_router, tmp_path / "router.yaml", [worker],
                            upstream_header_ms="1h" if old == "10m" else old)
    router = reloadable.router
    client = router.connect()
    client.post(CHAT, CHAT.request())
    request = worker.expect()

    reloadable.reload(upstream_header_ms=new)

    if new == "200ms":
        assert client.answer().status == 504
    else:
        time.sleep(0.4)  # twice what it would have had
        request.answer(CHAT.answer())
        assert client.answer().status == 200


def test_twenty_reloads_under_load_lose_nothing(start_router, tmp_path, start_sim):
    sims = [start_sim(), start_sim()]
    reloadable = Reloadable(start_router, tmp_path / "router.yaml", sims, drain_ms="10s")
    router = reloadable.router
    statuses, is_over = [], threading.Event()

    def ask():
        client = router.connect()
        while not is_over.is_set():
            client.post(CHAT, CHAT.request(stream=True, max_tokens=20))
            answer = client.answer()
            statuses.append((answer.status, answer.read_all().endswith(b"data: [DONE]\n\n")))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(20):
        done = len(statuses)
        reloadable.reload(upstream_idle_ms=f"{60 + i}s", retry_count_max=i % 4,
                          client_idle_ms=f"{30 + i}s", worker_idle_ms=f"{3000 + i}ms")
        wait_until(lambda: len(statuses) > done, "an answer between two reloads")
    is_over.set()
    for thread in threads:
        thread.join()

    assert set(statuses) == {(200, True)}
    assert router.metrics()['samovar_router_config_reload_total{result="applied"}'] == 20
