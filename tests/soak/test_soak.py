# SPDX-License-Identifier: Apache-2.0
"""A short soak, and the rule by which soaks are judged."""

import os

import pytest
import soak  # first: it makes the integration tests' peers importable

from outcome import HALF_ANSWERED, History, Outcome, end_of_stream, judge

UP_AND_DOWN = History([{"worker": "a", "state": "up", "at": 1}, {"worker": "b", "state": "up", "at": 2},
                       {"worker": "a", "state": "down", "at": 10}], ["a", "b"])


def lost(status=502, begun=3.0, ended=4.0, **fields):
    return Outcome("soak-1", "plain", begun=begun, ended=ended, status=status, end="clean", **fields)


def line(end, attempts, tries=4):
    return {"end": end, "attempts": attempts, "tries": tries}


@pytest.mark.parametrize("outcome, logged, scripted, verdict", [
    (lost(), line("upstream_closed", 2), ["died", "died"], "excused"),
    (lost(), line("upstream_closed", 1), ["died"], "wrong"),
    (lost(), line("upstream_closed", 1), ["half"], "wrong"),
    (lost(message=HALF_ANSWERED), line("upstream_closed", 1), ["half"], "excused"),
    (lost(message=HALF_ANSWERED), line("upstream_closed", 1), [], "wrong"),
    (lost(504), line("upstream_timeout", 1), ["hung"], "excused"),
    (lost(502), line("upstream_protocol", 1), [], "wrong"),
    (lost(502, faults=["bad_head"]), line("upstream_protocol", 1), [], "excused"),
    (lost(500), line("ok", 1), [], "wrong"),
    (lost(500, faults=["status_500"]), line("ok", 1), [], "excused"),
    (lost(503), line("overloaded", 1), ["busy"], "wrong"),
    (lost(503), line("overloaded", 4), ["busy"], "excused"),
    (lost(503, begun=11, ended=12), line("overloaded", 1), ["busy"], "excused"),
    (lost(503, begun=9, ended=12), line("connect_failed", 1), [], "excused"),
    (lost(0), None, [], "wrong"),
    (Outcome("soak-1", "stream", status=200, body=9, end="cut"), line("upstream_truncated", 1), [],
     "begun"),
    (Outcome("soak-1", "stream", status=200, body=9, end="no_done"), line("ok", 1), [], "wrong"),
    (Outcome("soak-1", "leaving", left=True), None, [], "left"),
    (Outcome("soak-1", "plain", status=200, body=9, end="clean"), line("ok", 1), [], "ok"),
])
def test_the_rule_knows_what_may_be_lost(outcome, logged, scripted, verdict):
    assert judge(outcome, logged, scripted, UP_AND_DOWN)[0] == verdict


@pytest.mark.parametrize("body, end", [
    (b'data: {}\n\ndata: [DONE]\n\n', "clean"), (b'data: {"error":{}}\n\n', "error_event"),
    (b"data: {}\n\n", "no_done"), (b"", "no_done"),
])
def test_a_stream_ends_in_one_of_three_ways(body, end):
    assert end_of_stream(body) == end


@pytest.mark.parametrize("slope, is_flat", [(0, True), (1, True), (100, False)])
def test_memory_that_grows_is_seen(slope, is_flat):
    samples = [(second, 20_000 + slope * second + second % 7 * 50) for second in range(480)]
    verdict = soak.Verdict()
    soak.judge_memory(verdict, samples)
    assert (not verdict.faults) == is_flat or soak.is_sanitized("samovar-router")


def test_a_short_soak_loses_nothing():
    verdict = soak.soak(int(os.environ.get("SAMOVAR_SOAK_SECONDS", "20")), client_count=20, seed=7)
    verdict.print()
    assert not verdict.faults, verdict.faults


def test_a_short_soak_of_the_map_promises_nothing_for_long():
    verdict = soak.soak_map(soak.Verdict(), int(os.environ.get("SAMOVAR_SOAK_SECONDS", "20")),
                            thread_count=4, seed=7)
    verdict.print()
    assert not verdict.faults, verdict.faults
