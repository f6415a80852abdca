#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What large bodies do to the streams of others: streams that tick each 5 ms pass through one router
while 20 MB bodies do. Shown are the age of the events when they arrive, as their sender stamped
them, in which a busy machine shows too, and the CPU time of the loop's turns, in which it does not.

The goal, beside bodies of 20 MB: no turn longer than 10 ms, which any machine can tell, and a p99
of the age below 10 ms, which only one with idle cores can: it is judged where the age without other
bodies says that there are some.

Exit 0: reached. 1: not. 2: wrong answers.
"""
import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
import run  # noqa: E402: the harness lies beside us, not on the path
from relay import base_port  # noqa: E402

MB = 1000 * 1000
MIB = 1 << 20
INTERVAL_MS = 5
STREAM_COUNT = 4
PAUSE_S = 0.05
GOAL_MS = 10
IDLE_MS = 2  # the oldest event without other bodies, on a machine with idle cores
PROSE = b"The samovar keeps the water hot, so that the tea is ready when the guests are. "
CHAT = b'{"model":"large","messages":[{"role":"user","content":"%s"}]}'
FIELDS = b'{"model":"large","messages":[],"metadata":{%s}}'

# name, the body of the others or None, sent in chunks, threads of the router, counts for the goal
CASES = [
    ("no other body", None, False, 2, False),
    ("20 MB, with its length", CHAT % (PROSE * (20 * MB // len(PROSE))), False, 2, True),
    ("20 MB, in chunks", CHAT % (PROSE * (20 * MB // len(PROSE))), True, 2, True),
    ("20 MB, read on the loop", CHAT % (PROSE * (20 * MB // len(PROSE))), False, 0, False),
    ("2 MB, with its length", CHAT % (PROSE * (2 * MB // len(PROSE))), False, 2, False),
    ("2 MB, read on the loop", CHAT % (PROSE * (2 * MB // len(PROSE))), False, 0, False),
    ("32 MiB of small keys", FIELDS % b",".join(b'"%x":1' % n for n in range(3 * MIB)), False, 2,
     False),
    ("64 MiB of [", b"[" * (64 * MIB), False, 2, False),
]


def request_of(body, is_chunked):
    """Pieces to be sent one after the other."""
    head = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\n"
            b"Content-Type: application/json\r\n%s\r\n\r\n")
    if not is_chunked:
        return [head % b"Content-Length: %d" % len(body), body]
    pieces = [head % b"Transfer-Encoding: chunked"]
    for at in range(0, len(body), 16384):
        piece = body[at:at + 16384]
        pieces.append(b"%x\r\n%s\r\n" % (len(piece), piece))
    return [pieces[0], b"".join(pieces[1:]) + b"0\r\n\r\n"]


class Sender(threading.Thread):
    """Sends one body after the other, on a connection each, until stopped."""

    def __init__(self, port, pieces):
        super().__init__(daemon=True)
        self.port, self.pieces = port, pieces
        self.statuses, self.waits_ms = [], []
        self.is_stopped = threading.Event()

    def send_one(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as sock:
            for piece in self.pieces:
                sock.sendall(piece)
            sent = time.monotonic()
            answer = sock.recv(65536)
            self.waits_ms.append((time.monotonic() - sent) * 1e3)
            self.statuses.append(int(answer.split(b" ", 2)[1]))

    def run(self):
        while not self.is_stopped.wait(PAUSE_S):
            self.send_one()


class Setup:
    """Two engines, of the streams and of the large bodies, and the router before them."""

    def __init__(self, o, thread_count, events, work):
        base = base_port(2)
        self.port = base + 100
        self.turns = pathlib.Path(work, "turns.json")
        self.children = []
        for port, model in ((base, "m"), (base + 1, "large")):
            self.start(f"{o.programs}/stub", "-p", port, "-m", model, "-e", events, "-i",
                       INTERVAL_MS * 1000)
        self.router = self.start(
            f"{o.bin_dir}/samovar-router", "--port", self.port, "--admin-port", self.port + 1,
            "--log-level", "warn", "--body-bytes-max", "64MiB",
            f"--parse-thread-count={thread_count}", "--worker-urls",
            f"http://127.0.0.1:{base},http://127.0.0.1:{base + 1}",
            env={"LD_PRELOAD": f"{o.programs}/turns.so", "TURNS_OUT": str(self.turns)})
        self.wait_ready()

    def start(self, *argv, env=None):
        child = subprocess.Popen([str(word) for word in argv], stdout=subprocess.DEVNULL,
                                 env={**os.environ, **(env or {})})
        self.children.append(child)
        return child

    def models(self):
        try:
            return run.get(f"http://127.0.0.1:{self.port}/v1/models")[1].count(b'"owned_by"')
        except OSError:
            return 0

    def wait_ready(self):
        end = time.monotonic() + 20
        while self.models() < 2:
            if time.monotonic() > end:
                raise SystemExit("the router is not ready")
            time.sleep(0.05)

    def stop(self):
        for child in reversed(self.children):
            child.send_signal(signal.SIGTERM)
            child.wait(20)


def peak_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0


def measure(o, case, events, work):
    name, body, is_chunked, thread_count, _ = case
    setup = Setup(o, thread_count, events, work)
    sender = Sender(setup.port, request_of(body or b"", is_chunked))
    stream = pathlib.Path(work, "stream.jsonl")
    stream.write_text('{"model":"m","stream":true,"messages":[{"role":"user","content":"tick"}]}\n')
    try:
        if body:
            sender.start()
        out = subprocess.run([f"{o.programs}/load", "-p", str(setup.port), "-c", str(STREAM_COUNT),
                              "-n", str(STREAM_COUNT), "-f", stream, "-t", "120"],
                             stdout=subprocess.PIPE, text=True, check=True).stdout
        sender.is_stopped.set()
        if body:
            sender.join(60)
        peak = peak_mib(setup.router.pid)
    finally:
        setup.stop()
    got = json.loads(out)
    if got["ok"] != STREAM_COUNT or (body and not sender.statuses):
        raise SystemExit(f"{name}: {got['ok']} of {STREAM_COUNT} streams, bodies {sender.statuses}")
    return got["event_age_us"], json.loads(setup.turns.read_text()), sender, peak


def options():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin-dir", required=True, help="where samovar-router is")
    p.add_argument("--programs", required=True, help="where stub and load are")
    p.add_argument("--seconds", type=float, default=8, help="of each case")
    p.add_argument("--smoke", action="store_true", help="only that it runs: two cases, a second")
    return p.parse_args()


def main():
    o = options()
    sys.stdout.reconfigure(line_buffering=True)
    cases, seconds = (CASES[:2], 1) if o.smoke else (CASES, o.seconds)
    events = int(seconds * 1000 / INTERVAL_MS)
    is_idle, is_reached = False, True
    print(f"{'beside the streams':26} {'bodies':>7} {'answer':>9}   age of an event, ms: "
          f"{'p50':>6} {'p99':>6} {'max':>6}   turn: {'p99.9':>6} {'max':>6}   {'peak MiB':>8}")
    with tempfile.TemporaryDirectory(prefix="jitter-") as work:
        for case in cases:
            age, turns, sender, peak = measure(o, case, events, work)
            waits = sorted(sender.waits_ms)
            answer = f"{waits[len(waits) // 2]:6.0f} ms" if waits else ""
            if not case[1]:
                is_idle = age["max"] / 1e3 < IDLE_MS
            if case[-1]:
                is_reached &= turns["max"] / 1e3 < GOAL_MS
                is_reached &= not is_idle or age["p99"] / 1e3 < GOAL_MS
            print(f"{case[0]:26} {len(waits):>7} {answer:>9} {'':>22}"
                  f" {age['p50'] / 1e3:6.2f} {age['p99'] / 1e3:6.2f} {age['max'] / 1e3:6.2f}"
                  f" {turns['p99.9'] / 1e3:13.2f} {turns['max'] / 1e3:6.2f} {peak:10.0f}")
    print(f"verdict: {'REACHED' if is_reached else 'SHORT'}: beside bodies of 20 MB, goal < "
          f"{GOAL_MS} ms: " + ("longest turn, p99 of the age" if is_idle else "longest turn (the "
                                "machine is busy: the ages mean nothing)"))
    sys.exit(0 if is_reached else 1)


if __name__ == "__main__":
    main()
