# SPDX-License-Identifier: Apache-2.0
"""
The same raw requests through HAProxy, nginx and samovar-router to the same kind of worker: how many
requests does the worker see, and what is the client told? Of ours it is asserted that the worker
never sees more than a strict reader counts; of the others nothing but that they were asked.

SAMOVAR_DIFFERENTIAL_TABLE=FILE writes the table, which tests/fixtures/http/differential.txt holds.
"""

import asyncio
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from peers.openai_api import COMPLETIONS
from peers.process import wait_until
from peers.raw_inputs import dress, load, run_one
from peers.reference_proxies import ReferenceProxy

PROXIES = ("haproxy", "nginx")
FIRST = 100_000
QUIET_S = 0.25  # a client that has got no more than this long ago gives up: others keep connections
INPUTS = [raw for number, one in enumerate(load("requests.jsonl"))
          for raw in (one, dress(one, FIRST + number))]


class Count:
    """How many requests a worker has seen; it answers each at once."""

    def __init__(self, worker):
        self.total = 0
        self.answered = 0
        self._lock = threading.Lock()
        worker.handler = self._handle

    def _handle(self, request):
        with self._lock:
            self.total += 1
        try:
            request.answer(COMPLETIONS.answer())
        finally:
            with self._lock:
                self.answered += 1

    def settled(self):
        return self.total == self.answered


async def ask(address, raw):
    """The statuses that a client got, as text."""
    try:
        outcome = await run_one(address, [raw.bytes], raw.most or 1, half_close=raw.id == "P10",
                                wants_interim=raw.id == "P05", wait_s=QUIET_S)
    except TimeoutError:
        return "-"
    said = [str(status) for status in outcome.statuses] + ["1xx"] * outcome.interim
    return "+".join(said) or ("closed" if outcome.ended else "-")


def run(address, count):
    """[(what the client was told, how many requests the worker saw)] for each input."""
    rows = []
    for raw in INPUTS:
        before = count.total
        told = asyncio.run(ask(address, raw))
        wait_until(count.settled, "the worker's answers")
        rows.append((told, count.total - before))
    return rows


def table_of(results, versions):
    lines = ["# What the client is told, and how many requests the worker sees. Made by",
             "# test_differential.py. 'dressed': the same defect in a POST of a prompt.",
             "# " + ", ".join(f"{name} {version}" for name, version in versions.items()),
             f"{'id':4} {'':8} {'most':4}  " + "".join(f"{name:16}" for name in results) + "case"]
    for at, raw in enumerate(INPUTS):
        cells = "".join("{:12}{:<4}".format(*rows[at]) for rows in results.values())
        kind = "dressed" if at % 2 else ""
        lines.append(f"{raw.id:4} {kind:8} {raw.most:<4}  {cells}{raw.case}")
    more = Counter({name: sum(seen > raw.most for raw, (_, seen) in zip(INPUTS, rows))
                    for name, rows in results.items()})
    lines.append("# inputs of which the worker saw more than a strict reader counts: "
                 + ", ".join(f"{name} {more[name]}" for name in results))
    return "\n".join(lines) + "\n"


def test_the_worker_never_sees_more_than_a_strict_reader_counts(start_router, start_worker, tmp_path):
    missing = [name for name in PROXIES if ReferenceProxy.find(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (./check deps installs them)")
    results, versions = {}, {}
    for name in PROXIES:
        worker = start_worker()
        folder = tmp_path / name
        folder.mkdir()
        proxy = ReferenceProxy(name, worker, folder)
        try:
            results[name] = run(proxy.address, Count(worker))
        finally:
            proxy.stop()
        versions[name] = proxy.version
    worker = start_worker()
    results["samovar"] = run(start_router([worker]).address, Count(worker))

    table = table_of(results, versions)
    print(table)
    if "SAMOVAR_DIFFERENTIAL_TABLE" in os.environ:
        Path(os.environ["SAMOVAR_DIFFERENTIAL_TABLE"]).write_text(table)
    for raw, (told, seen) in zip(INPUTS, results["samovar"]):
        assert seen <= raw.most, f"{raw.id} {raw.case}: {seen}, the client was told {told}"
    for name in PROXIES:
        assert any(seen for _, seen in results[name]), f"{name} passed nothing on"
