# SPDX-License-Identifier: Apache-2.0
"""One table of options: flags, environment and file say the same, in that order of strength."""

import subprocess

import pytest

from peers.openai_api import CHAT
from peers.process import Process, program, wait_until
from peers.wire import HOST

NOWHERE = "http://127.0.0.1:9"  # a worker that is never there


def run(*words):
    return subprocess.run([program("samovar-router"), *words], capture_output=True, text=True,
                          timeout=10)


def limit_of(router):
    """body_bytes_max as it is in force: its number is in the 413."""
    client = router.connect()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
                b"\r\nContent-Length: 900000000\r\n\r\n")
    return client.answer().read_all().decode()


def test_help_names_every_option_and_exits_with_zero():
    shown = run("--help")
    assert shown.returncode == 0
    for option in ("--host", "--port", "--admin-host", "--admin-port", "--worker-urls", "--config",
                   "--policy", "--probe-interval-ms", "--log-level", "--log-format", "--help",
                   "--version", "--drain-ms", "--body-bytes-max"):
        assert option in shown.stdout
    assert "SAMOVAR_" in shown.stdout


def test_version_exits_with_zero():
    shown = run("--version")
    assert shown.returncode == 0
    assert shown.stdout.strip()


@pytest.mark.parametrize("words, named", [
    (["--polcy", "ttft"], "--policy"), (["--policy", "tfft"], "ttft"),
    (["--port", "99999999"], "port"), (["--port", "x"], "port"),
    (["--worker-urls", "ftp://x"], "ftp"), (["--config", "/nonexistent.yaml"], "nonexistent"),
])
def test_a_wrong_option_is_told_with_what_was_meant(words, named):
    shown = run(*words)
    assert shown.returncode not in (0, -6, -11)
    assert named in shown.stderr + shown.stdout


def test_environment_and_file_say_the_same_as_flags(start_router, worker, tmp_path):
    config = tmp_path / "router.yaml"
    config.write_text("body_bytes_max: 1111\nworker_urls:\n  - " + worker.url + "\n")
    by_file = start_router([], "--config", config)
    by_environment = start_router([], "--config", config, env={"SAMOVAR_BODY_BYTES_MAX": "2222"})
    by_flag = start_router([], "--config", config, "--body-bytes-max", 3333,
                           env={"SAMOVAR_BODY_BYTES_MAX": "2222"})

    assert "1111" in limit_of(by_file)
    assert "2222" in limit_of(by_environment)
    assert "3333" in limit_of(by_flag)
    by_file.wait_ready()
    assert [row["url"] for row in by_file.workers()] == [worker.url]


@pytest.mark.parametrize("text", ["body_bytes_max: x\n", "no_such_option: 1\n", "{", "- 1\n"],
                         ids=["type", "unknown", "broken", "a list"])
def test_a_wrong_file_is_told_with_its_line(tmp_path, text):
    config = tmp_path / "router.yaml"
    config.write_text(text)
    shown = run("--config", str(config))
    assert shown.returncode not in (0, -6, -11)
    assert "router.yaml" in shown.stderr


def test_the_admin_listener_is_on_loopback_unless_told_otherwise():
    router = Process([program("samovar-router"), "--port", 0, "--admin-port", 0,
                      "--worker-urls", NOWHERE, "--log-format", "json"])
    try:
        assert router.log.wait("admin_listening")["address"] == "127.0.0.1"
    finally:
        router.kill()


def test_a_port_that_is_taken_is_told(router):
    shown = run("--host", HOST, "--port", str(router.address[1]), "--admin-port", "0",
                "--worker-urls", NOWHERE)
    assert shown.returncode not in (0, -6, -11)
    assert str(router.address[1]) in shown.stderr


def test_a_request_is_one_json_line_with_its_fields(router, worker):
    worker.handler = lambda request: request.answer(CHAT.answer())
    assert router.post(CHAT, CHAT.request()).status == 200
    line = router.log.wait("request")
    assert line["level"] == "info" and line["time"].endswith("Z")
    for key in ("request_id", "attempt_id", "api", "method", "path", "status", "end", "worker",
                "model", "rung", "policy", "attempts", "prompt_blocks", "matched_blocks",
                "predicted_cached_tokens", "cached_tokens", "prompt_tokens", "completion_tokens",
                "queue_ms", "connect_ms", "ttft_ms", "total_ms", "overhead_us", "bytes_in",
                "bytes_out"):
        assert key in line, key


def test_logfmt_is_for_people():
    router = Process([program("samovar-router"), "--port", 0, "--admin-port", 0,
                      "--worker-urls", NOWHERE, "--log-format", "logfmt"])
    try:
        wait_until(lambda: any("listening" in line for line in router.log.text), "a line")
        assert not router.log.events
        assert all("level=info" in line or "level=warn" in line for line in router.log.text)
    finally:
        router.kill()
