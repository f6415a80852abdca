# SPDX-License-Identifier: Apache-2.0
"""Engines read bodies with Python's json.loads(bytes), we do not: so for each body of a table either
we refuse it, or we see in it what Python sees. What Python saw is told by what it writes again,
in which nothing is left to opinion.

tests/fixtures/json/bodies.jsonl: text, or hex of the bytes; ours: read, or the code we refuse it
with; python: reads or refuses."""

import json
import subprocess

import pytest

from peers.openai_api import CHAT, COMPLETIONS
from peers.process import REPO, program
from peers.router import error_of

TABLE = REPO / "tests" / "fixtures" / "json" / "bodies.jsonl"
ROWS = [json.loads(line) for line in TABLE.read_text().splitlines()]


def body_of(row):
    return bytes.fromhex(row["hex"]) if "hex" in row else row["text"].encode()


def api_of(row):
    return COMPLETIONS if b'"prompt"' in body_of(row) else CHAT


def python_reads(body):
    """[value], or [] where Python refuses."""
    try:
        return [json.loads(body)]
    except ValueError:
        return []


def view(body):
    """Model, stream, limits and the names of the prompt, as `samovar explain` tells them."""
    run = subprocess.run([program("samovar"), "explain", "-"], input=body, capture_output=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.decode()


@pytest.fixture(scope="module", params=ROWS, ids=[row["name"] for row in ROWS])
def row(request):
    return request.param


def test_python_does_what_the_table_says(row):
    assert bool(python_reads(body_of(row))) == (row["python"] == "reads")


def test_what_we_read_is_what_python_reads(row):
    if row["ours"] != "read":
        run = subprocess.run([program("samovar"), "explain", "-"], input=body_of(row),
                             capture_output=True)
        assert run.returncode == 1, run.stdout
        return
    (value,) = python_reads(body_of(row))
    assert view(body_of(row)) == view(json.dumps(value).encode())


def test_the_router_refuses_what_the_table_says(start_router, worker):
    """All rows through one router: the worker gets what is read, byte for byte, and nothing else."""
    router = start_router([worker], "--usage-ask=false")
    wrong = []
    for row in ROWS:
        client = router.connect()
        client.post(api_of(row), body_of(row))
        if row["ours"] == "read":
            request = worker.expect()
            if request.body() != body_of(row):
                wrong.append((row["name"], request.body()))
            request.answer(b"{}")
            client.answer().read_all()
        else:
            answer = client.answer()
            error = error_of(answer)
            if (answer.status, error["code"]) != (400, row["ours"]):
                wrong.append((row["name"], answer.status, error))
        client.close()
    worker.assert_no_request()
    assert not wrong
