# SPDX-License-Identifier: Apache-2.0
"""No text of a prompt or an answer and no key is in any output, at any log level, on any path."""

import json

import pytest

from peers.openai_api import CHAT, COMPLETIONS

# Each canary in a place of its own, so that a find says which place leaks.
PROMPT = "CANARYprompt7f3a"
ANSWER = "CANARYanswer7f3a"
BEARER = "CANARYbearer7f3a"
API_KEY = "CANARYapikey7f3a"
QUERY = "CANARYquery7f3a"
HEADER = "CANARYheader7f3a"
SALT = "CANARYsalt7f3a"
USER = "CANARYuser7f3a"
TOOL = "CANARYtool7f3a"
ENGINE = "CANARYengine7f3a"
SESSION = "CANARYsession7f3a"
WORKER_KEY = "CANARYworkerkey7f3a"
MARK = "CANARY"

HEADERS = {"Authorization": f"Bearer {BEARER}", "x-api-key": API_KEY, "X-Custom": HEADER,
           "Cookie": f"session={HEADER}", "X-Session-ID": SESSION}


def secret_request(**fields):
    return CHAT.request(PROMPT, cache_salt=SALT, user=USER, prompt_cache_key=USER,
                        tools=[{"type": "function", "function": {"name": TOOL}}], **fields)


@pytest.fixture
def router(start_router, fleet, tmp_path):
    (tmp_path / "key").write_text(WORKER_KEY)
    # Workers fail here one after the other, and all requests must reach one.
    return start_router(fleet, "--log-level", "debug", "--upstream-idle-ms", 200,
                        "--panic-percent", 0, "--worker-api-key-file", tmp_path / "key")


def send(router, body, api=CHAT, target=None):
    client = router.connect()
    client.request("POST", target or f"{api.path}?api_key={QUERY}", body, HEADERS)
    return client


def test_no_secret_comes_out(router, fleet):
    # well, streamed and whole, both calls
    client = send(router, secret_request(stream=True))
    fleet.expect().stream([CHAT.event(ANSWER), *CHAT.stream(with_usage=True)])
    client.answer().read_all()
    client = send(router, COMPLETIONS.request(PROMPT), COMPLETIONS)
    fleet.expect().answer(COMPLETIONS.answer(ANSWER))
    client.answer().read_all()

    # refused by an engine, with and without a repetition
    client = send(router, secret_request())
    fleet.expect().answer(json.dumps({"error": {"message": ENGINE + PROMPT}}).encode(), 422)
    client.answer().read_all()
    client = send(router, secret_request())
    fleet.expect().answer(ENGINE.encode(), 503)
    fleet.expect().answer(CHAT.answer(ANSWER))
    client.answer().read_all()

    # engines that talk nonsense, die in the middle, hang in the middle
    client = send(router, secret_request())
    request = fleet.expect()
    request.send(b"HTTP/1.1 " + ENGINE.encode() + b"\r\n\r\n")
    client.answer().read_all()
    for is_hanging in (False, True):
        client = send(router, secret_request(stream=True))
        request = fleet.expect()
        request.start_stream(x_engine=ENGINE)
        request.send_chunk(CHAT.event(ANSWER))
        answer = client.answer()
        answer.read(len(CHAT.event(ANSWER)))
        if not is_hanging:
            request.end_by("rst")
        answer.read_all()
        request.finish()

    # clients at fault: bodies, models, targets, headers, framing
    errors = []
    for body in (secret_request()[:-1], b'{"messages":"' + PROMPT.encode() + b'"}',
                 PROMPT.encode(), b'{"messages":[{"role":"user","content":{"' + PROMPT.encode()
                 + b'":1}}]}', secret_request(stream=PROMPT)):
        client = send(router, body)
        errors.append(client.answer().read_all())
    for target in (f"/v1/nope?key={QUERY}", f"/v1/models?key={QUERY}"):
        client = send(router, secret_request(), target=target)
        errors.append(client.answer().read_all())
    client = router.connect()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "
                + BEARER.encode() + b"\r\n: " + HEADER.encode() + b"\r\n\r\n")
    errors.append(client.answer().read_all())

    # a client that leaves
    client = send(router, secret_request(stream=True))
    request = fleet.expect()
    client.close()
    request.wait_end()
    request.finish()

    router.log.wait("request", end="client_abort")
    shown = {
        "log": "\n".join(router.log.text),
        "metrics": router.admin("/metrics").read_all().decode(),
        "workers": router.admin("/workers").read_all().decode(),
        "models": router.get("/v1/models").read_all().decode(),
        "errors": b"\n".join(errors).decode(),
    }
    for place, text in shown.items():
        for line in text.splitlines():
            assert MARK not in line, f"in {place}: {line}"
    assert len(router.log.find("request")) >= 14


def test_hashes_of_prompts_are_keyed(start_router, start_worker):
    """Two routers without a common secret must not name the same prompt alike in what they show."""
    lines = []
    for _ in range(2):
        worker = start_worker()
        worker.handler = lambda request: request.answer(CHAT.answer())
        router = start_router([worker], "--log-level", "debug")
        router.post(CHAT, CHAT.request("the same words " * 100), {"X-Request-Id": "same"})
        lines.append(router.log.wait("request"))
    hashes = [{value for key, value in line.items() if "hash" in key} for line in lines]
    assert not hashes[0] & hashes[1]
