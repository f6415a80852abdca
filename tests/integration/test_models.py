# SPDX-License-Identifier: Apache-2.0
"""The models are the workers': one list merged from theirs, and requests go where theirs is."""

import json

import pytest

from peers.openai_api import CHAT
from peers.router import error_of

LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.fixture
def two_kinds(start_worker):
    return start_worker(models=[LLAMA, "shared"]), start_worker(models=["qwen", "shared"])


def chat(model):
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}]}).encode()


def answer_all(*workers):
    for worker in workers:
        worker.handler = lambda request: request.answer(CHAT.answer())


def test_the_list_is_the_union_of_the_workers_lists(start_router, two_kinds):
    router = start_router(two_kinds)

    listing = router.get("/v1/models").json()

    assert listing["object"] == "list"
    assert sorted(row["id"] for row in listing["data"]) == sorted([LLAMA, "qwen", "shared"])
    for row in listing["data"]:
        assert row["object"] == "model"
        assert isinstance(row["created"], int)
        assert isinstance(row["owned_by"], str)


def test_the_list_is_served_while_some_workers_are_down(start_router, two_kinds):
    router = start_router(two_kinds, "--probe-interval-ms", 50)
    two_kinds[1].kill()
    router.wait_states("down", 1)

    ids = [row["id"] for row in router.get("/v1/models").json()["data"]]

    assert LLAMA in ids and "shared" in ids


def test_requests_go_to_a_worker_that_has_the_model(start_router, two_kinds):
    router = start_router(two_kinds)
    answer_all(*two_kinds)
    for _ in range(4):
        assert router.post(CHAT, chat("qwen")).get("x-samovar-worker") == two_kinds[1].url
        assert router.post(CHAT, chat(LLAMA)).get("x-samovar-worker") == two_kinds[0].url
    used = {router.post(CHAT, chat("shared")).get("x-samovar-worker") for _ in range(8)}
    assert used <= {worker.url for worker in two_kinds}


def test_a_retry_stays_among_those_that_have_the_model(start_router, two_kinds):
    router = start_router(two_kinds)
    two_kinds[1].stop_listening()
    assert router.post(CHAT, chat("qwen")).status == 502
    two_kinds[0].assert_no_request()


def test_an_unknown_model_is_404_and_names_near_ones(start_router, two_kinds):
    router = start_router(two_kinds)

    answer = router.post(CHAT, chat("qwem"))

    error = error_of(answer)
    assert answer.status == 404
    assert (error["type"], error["code"]) == ("invalid_request_error", "model_not_found")
    assert error["param"] == "model"
    assert "qwen" in error["message"]
    for worker in two_kinds:
        worker.assert_no_request()


@pytest.mark.parametrize("spelling", ["meta-llama%2FLlama-3.1-8B", "meta-llama/Llama-3.1-8B",
                                      "meta-llama%2fLlama-3%2E1-8B"])
def test_one_model_is_found_with_its_slash_encoded_or_not(start_router, two_kinds, spelling):
    router = start_router(two_kinds)
    answer = router.get(f"/v1/models/{spelling}")
    assert answer.status == 200
    assert answer.json()["id"] == LLAMA


@pytest.mark.parametrize("target", ["/v1/models/nope", "/v1/models/%2F", "/v1/models/%zz",
                                    "/v1/models/%00", "/v1/models/shared/x"])
def test_one_unknown_model_is_404(start_router, two_kinds, target):
    router = start_router(two_kinds)
    answer = router.get(target)
    assert answer.status in ((400, 404) if "%zz" in target or "%00" in target else (404,))
    assert error_of(answer)


def test_a_worker_that_is_down_keeps_its_models_known(start_router, two_kinds):
    """503, not 404: the model exists, nobody can serve it now."""
    router = start_router(two_kinds, "--probe-interval-ms", 50)
    two_kinds[1].kill()
    router.wait_states("down", 1)

    answer = router.post(CHAT, chat("qwen"))

    assert answer.status == 503
    assert error_of(answer)["code"] == "no_worker_available"
    assert 1 <= float(answer.get("retry-after")) <= 60


@pytest.mark.parametrize("body", [b'{"messages":[{"role":"user","content":"x"}]}',
                                  b'{"model":null,"messages":[{"role":"user","content":"x"}]}'],
                         ids=["absent", "null"])
def test_without_a_model_the_only_one_is_meant(router, worker, body):
    client = router.connect()
    client.post(CHAT, body)
    request = worker.expect()
    assert request.body() == body
    request.answer(CHAT.answer())
    answer = client.answer()
    assert answer.status == 200
    assert router.request_line(answer)["model"] == "tiny"


def test_without_a_model_where_there_are_several_is_400_that_names_them(start_router, two_kinds):
    router = start_router(two_kinds)

    answer = router.post(CHAT, b'{"messages":[{"role":"user","content":"x"}]}')

    error = error_of(answer)
    assert answer.status == 400
    assert error["param"] == "model"
    for name in (LLAMA, "qwen", "shared"):
        assert name in error["message"]


def test_an_unknown_model_does_not_reach_the_log_in_full(start_router, two_kinds):
    """It is a client's text of any length, perhaps with line ends."""
    router = start_router(two_kinds)
    answer = router.post(CHAT, chat("x" * 5000 + "\n{"))
    assert answer.status == 404
    line = router.request_line(answer)
    assert len(line.get("model") or "") <= 256
    assert len(answer.read_all()) < 4000


@pytest.mark.parametrize("target", ["%ff%c3", "a%00b", "\u20ac" * 100, "%22%0d%0a%5c"],
                         ids=["no UTF-8", "NUL", "cut in a character", "escapes"])
def test_whatever_a_model_is_called_its_refusal_is_json(router, target):
    answer = router.get("/v1/models/" + "".join(
        c if c < "\x80" else "".join(f"%{byte:02x}" for byte in c.encode()) for c in target))

    assert answer.status == 404
    assert error_of(answer)["code"] == "model_not_found"
