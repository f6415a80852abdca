#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_http_request and fuzz_http_answer: the raw inputs of tests/fixtures/http,
but for those that are only large."""

import base64
import json
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
BYTES_MAX = 1024


def write(source, corpus, prefix):
    folder = TESTS / "fuzz" / "corpus" / corpus
    folder.mkdir(exist_ok=True)
    for line in (TESTS / "fixtures" / "http" / source).read_text().splitlines():
        row = json.loads(line)
        raw = base64.b64decode(row["bytes_base64"])
        if len(raw) <= BYTES_MAX:
            (folder / row["id"]).write_bytes(prefix + raw)


write("requests.jsonl", "http_request", b"")
write("responses.jsonl", "http_answer", b"\x0e")  # a GET, read in pieces of 8
