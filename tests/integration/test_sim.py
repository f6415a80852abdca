# SPDX-License-Identifier: Apache-2.0
"""samovar-sim on its own sockets: the faults it shows on demand, and the manners of uvicorn. What
it says is compared with recordings in tests/sim_engine; what it decides, in the unit tests."""

import json
import re
import signal
import time

import pytest

from peers.http1 import Truncated, read_answer, request_bytes
from peers.openai_api import CHAT, MODEL
from peers.process import wait_until
from peers.wire import Wire

ways = pytest.mark.parametrize("how", ["fin", "rst"])


@pytest.fixture
def sim(start_sim):
    return start_sim("--speedup", 10)


def ask(sim, body, fault=None, wire=None, path=CHAT.path):
    """Sends a request; the connection."""
    wire = wire or Wire.connect(sim.address)
    wire.send(request_bytes("POST", path, body, {"x-sim-fault": fault} if fault else {}))
    return wire


def get(sim, path):
    wire = Wire.connect(sim.address)
    wire.send(request_bytes("GET", path, None, {"Connection": "close"}))
    answer = read_answer(wire, "GET")
    body = answer.read_all()
    wire.close()
    return answer.status, body


def gauge(sim, name):
    return float(re.search(rb"^vllm:%s\{[^}]*\} (\S+)$" % name.encode(), get(sim, "/metrics")[1],
                           re.MULTILINE)[1])


def stream(**fields):
    return CHAT.request(**{"stream": True, "max_tokens": 5, **fields})


def whole(**fields):
    return CHAT.request(**{"max_tokens": 5, **fields})


# --- faults ---------------------------------------------------------------------------------------

@ways
@pytest.mark.parametrize("count", [0, 3])
def test_a_stream_dies_after_that_many_events(sim, count, how):
    wire = ask(sim, stream(), f"die_at_event={count},how={how}")
    answer = read_answer(wire)

    with pytest.raises(Truncated) as cut:
        answer.read_all()

    assert answer.status == 200
    assert cut.value.partial.count(b"data: ") == count
    assert wire.end.kind == how


@ways
@pytest.mark.parametrize("count", [0, 1, 40, 400])
def test_an_answer_dies_after_that_many_bytes(sim, count, how):
    wire = ask(sim, whole(), f"die_at_byte={count},how={how}")

    assert len(wire.read_to_end()) == count
    assert wire.end.kind == how


def test_an_answer_shorter_than_that_lives_and_so_does_the_next(sim):
    wire = ask(sim, whole(), "die_at_byte=1500")
    first = len(read_answer(wire).read_all())
    assert first < 1500

    for _ in range(1500 // first + 1):
        ask(sim, whole(), wire=wire)
        assert len(read_answer(wire).read_all()) == first


@ways
def test_a_whole_answer_is_cut_in_its_body(sim, how):
    wire = ask(sim, whole(), f"die_at_event=1,how={how}")
    answer = read_answer(wire)

    with pytest.raises(Truncated) as cut:
        answer.read_all()

    assert 0 < len(cut.value.partial) < int(answer.get("content-length"))


@ways
def test_it_closes_after_the_request_without_a_byte(sim, how):
    wire = ask(sim, whole(), f"close_after_request,how={how}")

    assert wire.read_to_end() == b""
    assert wire.end.kind == how


def test_it_resets_as_soon_as_the_head_is_there(sim):
    wire = Wire.connect(sim.address)
    wire.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
              b"x-sim-fault: reset\r\n\r\n")

    assert wire.wait_end().kind == "rst"


def test_it_hangs_before_the_head_and_in_the_stream_until_the_client_leaves(sim):
    before = ask(sim, stream(), "hang")
    within = ask(sim, stream(), "hang_at_event=2")
    read_answer(within)
    within.read_until(b'"content":" ')  # of the first token; the event before it has no word
    within.read_until(b"\n\n\r\n")

    # Another request's whole answer comes meanwhile; so what hangs was given its time.
    assert read_answer(ask(sim, whole())).read_all()
    assert not before.wait_readable(0.05)
    assert not within.wait_readable(0.05)
    before.close()
    within.close()
    wait_until(lambda: gauge(sim, "num_requests_running") == 0, "nothing runs")


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_a_status_comes_with_an_error_body(sim, status):
    wire = ask(sim, stream(), f"status={status}")
    answer = read_answer(wire)

    error = answer.json()["error"]

    assert answer.status == status
    assert error["code"] == status
    assert answer.get("retry-after") == ("1" if status in (429, 503) else None)
    assert read_answer(ask(sim, whole(), wire=wire)).status == 200  # the connection is fine


TEXT = {"model": MODEL, "input": "hello"}
PAIRS = {"model": MODEL, "query": "a", "documents": ["b"]}
SCORES = {"model": MODEL, "text_1": "a", "text_2": "b"}
TALK = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
BODIES = [
    (CHAT.path, TALK), (CHAT.path, {**TALK, "stream": True}),
    ("/v1/completions", {"model": MODEL, "prompt": "hello"}),
    ("/v1/completions", {"model": MODEL, "prompt": "hello", "stream": True}),
    ("/v1/responses", TEXT), ("/v1/responses", {**TEXT, "stream": True}),
    ("/v1/messages", TALK), ("/v1/messages", {**TALK, "stream": True}),
    ("/v1/messages/count_tokens", TALK), ("/v1/embeddings", TEXT), ("/rerank", PAIRS),
    ("/v1/rerank", PAIRS), ("/v2/rerank", PAIRS), ("/score", SCORES), ("/v1/score", SCORES),
    ("/tokenize", {"prompt": "hello"}), ("/detokenize", {"tokens": [1, 2]}),
]


@pytest.mark.parametrize("path, body", BODIES, ids=lambda part: part if isinstance(part, str)
                         else "stream" if "stream" in part else "whole")
def test_every_endpoint_can_fail_in_every_way(sim, path, body):
    def fails(fault):
        return ask(sim, json.dumps(body).encode(), fault, path=path)

    assert fails("die_at_byte=0").read_to_end() == b""
    assert fails("reset").wait_end().kind == "rst"
    cut = fails("die_at_event=1,how=rst")
    with pytest.raises(Truncated):
        read_answer(cut).read_all()
    assert cut.end.kind == "rst"
    for status in (429, 500):
        answer = read_answer(fails(f"status={status}"))
        assert (answer.status, set(answer.json()) >= {"error"}) == (status, True)
    hanging = fails("hang")
    assert read_answer(fails("")).read_all()
    assert not hanging.wait_readable(0.02)


def test_a_stored_response_can_fail_too_and_is_else_as_it_was(sim):
    def get_stored(fault):
        wire = Wire.connect(sim.address)
        wire.send(request_bytes("GET", f"/v1/responses/{stored['id']}", None,
                                {"x-sim-fault": fault} if fault else {}))
        return wire

    stored = read_answer(ask(sim, json.dumps(TEXT).encode(), path="/v1/responses")).json()

    assert get_stored("die_at_byte=0").read_to_end() == b""
    assert read_answer(get_stored("status=500"), "GET").status == 500
    assert read_answer(get_stored(""), "GET").json() == stored


def test_slow_spaces_the_events(sim):
    begin = time.monotonic()
    answer = read_answer(ask(sim, stream(), "slow=20"))

    body = answer.read_all()

    assert body.endswith(b"data: [DONE]\n\n")
    assert time.monotonic() - begin >= 7 * 0.020  # role, five tokens, [DONE]


def test_a_bad_head_is_no_http(sim):
    assert b"2OO" in ask(sim, whole(), "bad_head").read_to_end()


def test_done_and_usage_can_lack(sim):
    asked = stream(stream_options={"include_usage": True})
    no_done = read_answer(ask(sim, asked, "no_done")).read_all()
    no_usage = read_answer(ask(sim, asked, "no_usage")).read_all()

    assert b"[DONE]" not in no_done and b'"usage"' in no_done
    assert b"[DONE]" in no_usage and b'"usage"' not in no_usage
    assert read_answer(ask(sim, whole(), "no_usage")).json()["usage"] is None


def test_exit_ends_the_process_once_the_request_is_there(sim):
    wire = ask(sim, whole(), "exit")

    assert wire.read_to_end() == b""
    assert sim.wait_exit() == 1


def test_a_rule_of_the_command_line_hits_what_it_names(start_sim):
    sim = start_sim("--fault", "status=503,path=/v1/chat,every=2,when=plain")

    answers = [read_answer(ask(sim, body)).status for body in
               [whole(), whole(), stream(), whole(), whole()]]

    assert answers == [200, 503, 200, 200, 503]
    assert get(sim, "/health")[0] == 200


def test_a_wrong_header_is_said_and_does_nothing(sim):
    answer = read_answer(ask(sim, whole(), "hang,every=0"))

    error = answer.json()["error"]

    assert answer.status == 400
    assert error["param"] == "x-sim-fault"
    assert "whole number from 1" in error["message"]


# --- manners --------------------------------------------------------------------------------------

@ways
@pytest.mark.parametrize("body", [stream(n=2, max_tokens=5000), whole(max_tokens=5000)],
                         ids=["stream", "whole"])
def test_a_client_that_leaves_stops_the_engine(start_sim, body, how):
    sim = start_sim()
    wire = ask(sim, body)
    wait_until(lambda: gauge(sim, "num_requests_running") >= 1, "it runs")

    wire.end_by(how)

    wait_until(lambda: gauge(sim, "num_requests_running") == 0, "nothing runs", 1)
    assert gauge(sim, "kv_cache_usage_perc") == 0
    assert sim.log.wait("abort")["end"] == "client_left"
    assert json.loads(get(sim, "/load")[1]) == {"server_load": 0}


def test_idle_connections_are_closed_but_only_after_an_answer(start_sim):
    sim = start_sim("--keep-alive-ms", 100)
    fresh = Wire.connect(sim.address)
    asked = time.monotonic()  # before its answer ended, however late this process looks
    used = ask(sim, whole())
    read_answer(used).read_all()

    assert used.wait_end().kind == "fin"
    assert time.monotonic() - asked >= 0.09
    assert read_answer(ask(sim, whole(), wire=fresh)).status == 200


def test_pipelined_requests_are_answered_in_order(sim):
    wire = Wire.connect(sim.address)
    wire.send(request_bytes("POST", CHAT.path, stream()) +
              request_bytes("GET", "/version") +
              request_bytes("POST", CHAT.path, whole()))

    first = read_answer(wire)
    assert first.read_all().endswith(b"[DONE]\n\n")
    assert read_answer(wire, "GET").json() == {"version": "0.32.0"}
    assert read_answer(wire).json()["object"] == "chat.completion"


def test_the_head_of_a_stream_comes_before_the_prompt_is_read(start_sim):
    sim = start_sim("--prefill-tps", 1)  # many seconds
    wire = ask(sim, stream())

    assert read_answer(wire, timeout_s=1).status == 200


def test_sigterm_ends_it_with_streams_open(start_sim):
    sim = start_sim()
    answer = read_answer(ask(sim, stream(max_tokens=5000)))

    sim.signal(signal.SIGTERM)

    with pytest.raises(Truncated):
        answer.read_all()
    assert sim.wait_exit() == 0


def test_a_request_id_names_the_answer(sim):
    wire = Wire.connect(sim.address)
    wire.send(request_bytes("POST", CHAT.path, whole(), {"X-Request-Id": "abc-1"}))

    assert read_answer(wire).json()["id"] == "chatcmpl-abc-1"


def test_what_is_no_http_is_refused(sim):
    wire = Wire.connect(sim.address)
    wire.send(b"HELLO\r\n\r\n")

    assert wire.read_to_end().startswith(b"HTTP/1.1 400 Bad Request\r\n")
