#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions that a request and an event cost samovar-router, counted by valgrind's callgrind.

Counts repeat to a percent where times move by ten: this is how two builds are compared. Each case
is run with few and with many requests; the difference is what one costs, start and end left out.

Exit 0: no --against, or nothing costs over 3 % more than there. 1: something does. 2: wrong answers.
77: there is no valgrind.
"""
import argparse
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
import gen  # noqa: E402: the harness lies beside us, not on the path
import run  # noqa: E402
from relay import base_port  # noqa: E402

WORKER_COUNT = 4
GROWTH_MAX = 1.03
SKIPPED = 77
START_S = 60

# set: what the stub answers; events: how many count as a unit each, 0: the request does.
CASES = {
    "1 KB chat": dict(body="chat_1k", set="events=1", conns=4, few=100, many=1100, events=0),
    "220 KB chat": dict(body="long_chat", set="events=1", conns=4, few=60, many=240, events=0),
    # One stream at a time and pauses, so that each event is read and written alone.
    "event": dict(body="chat_1k_stream", set="events=100&interval_us=4000", conns=1, few=2,
                  many=22, events=100),
    # The stub writes as fast as it can: how many come in one read is the kernel's choice.
    "event, flat out": dict(body="chat_1k_stream", set="events=200&interval_us=0", conns=8, few=16,
                            many=216, events=200),
}


class WrongAnswers(Exception):
    pass


def load(o, port, case, count, work):
    out = subprocess.run([f"{o.programs}/load", "-p", str(port), "-c", str(case["conns"]), "-n",
                          str(count), "-t", "120", "-f", f"{work}/{case['body']}.jsonl"],
                         stdout=subprocess.PIPE, text=True, check=True).stdout
    got = json.loads(out)
    bad = sum(got[k] for k in ("errors", "bad_status", "unfinished"))
    if bad or got["ok"] != count:
        raise WrongAnswers(f"{bad} bad answers, {got['ok']} of {count} complete")


def wait_until_ready(router, port):
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if router.poll() is not None:
            raise SystemExit(f"the router exited with {router.returncode} at its start")
        try:
            if run.get(f"http://127.0.0.1:{port}/readyz", timeout=2)[0] == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the router is not ready after {START_S} s")


def count_run(o, program, case, count, work):
    """Instructions of one life of the router that serves count requests."""
    base = base_port(WORKER_COUNT)
    port = base + 100
    out = pathlib.Path(work, "callgrind.out")
    urls = " ".join(f"http://127.0.0.1:{base + i}" for i in range(WORKER_COUNT))
    stub = subprocess.Popen([f"{o.programs}/stub", "-p", str(base), "-n", str(WORKER_COUNT)])
    router = subprocess.Popen(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, "--port",
         str(port), "--admin-port", str(port + 1), "--seed", "1", "--log-level", "warn",
         # Probes are part of what is left out: few, so that their number does not matter.
         "--probe-interval-ms", "10m", "--worker-urls", urls],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(router, port)
        run.get(f"http://127.0.0.1:{base}/stub/set?{case['set']}")
        load(o, port, case, count, work)
    finally:
        router.send_signal(signal.SIGTERM)
        router.wait(120)
        stub.terminate()
        stub.wait()
    return int(re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.M)[1])


def unit_cost(o, program, case, work):
    few, many = (count_run(o, program, case, case[n], work) for n in ("few", "many"))
    return (many - few) / (case["many"] - case["few"]) / max(1, case["events"])


def options():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin-dir", required=True, help="where samovar-router is")
    p.add_argument("--programs", required=True, help="where stub and load are")
    p.add_argument("--against", help="another samovar-router, to compare with")
    p.add_argument("--only", choices=CASES, help="one case")
    p.add_argument("--smoke", action="store_true", help="only that it runs: one case")
    return p.parse_args()


def main():
    o = options()
    sys.stdout.reconfigure(line_buffering=True)
    if not shutil.which("valgrind"):
        print("valgrind is not installed: nothing is counted")
        sys.exit(SKIPPED)
    names = [o.only] if o.only else ["event"] if o.smoke else list(CASES)
    ours = f"{o.bin_dir}/samovar-router"
    print(f"{'instructions a unit':22}{'ours':>12}" + (f"{'against':>12}{'ratio':>8}" if o.against
                                                         else ""))
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="instructions-") as work:
        gen.write_all(work)
        for name in names:
            try:
                cost = unit_cost(o, ours, CASES[name], work)
                line = f"{name:22}{cost:12,.0f}"
                if o.against:
                    other = unit_cost(o, o.against, CASES[name], work)
                    worst = max(worst, cost / other)
                    line += f"{other:12,.0f}{cost / other:8.3f}"
            except WrongAnswers as wrong:
                print(f"{name}: {wrong}")
                sys.exit(2)
            print(line)
    if o.against:
        print(f"verdict: {'SHORT' if worst > GROWTH_MAX else 'REACHED'}: "
              f"{(worst - 1) * 100:+.1f} % at worst, goal <= {(GROWTH_MAX - 1) * 100:.0f} %")
    sys.exit(1 if worst > GROWTH_MAX else 0)


if __name__ == "__main__":
    main()
