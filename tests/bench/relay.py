#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a request costs on its way: ours beside haproxy, nginx and sglang-router, in one run.

Prints the tables, then each goal with its verdict; the last line is the verdict of all.
Exit 0: every goal reached. 1: short of one, or one could not be judged. 2: wrong answers.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))
import run  # noqa: E402: the harness lies beside us, not on the path

CASES = ["idle", "light", "chat", "sse_flat", "sse_10ms", "long"]
OURS, REFERENCE, DIRECT = "samovar", "haproxy", "direct"
REACHED, SHORT, BROKEN = 0, 1, 2


class Results:
    """Medians over the repetitions, by peer, case and quantity."""

    def __init__(self, rows):
        self.rows = rows

    def median(self, peer, case, quantity):
        found = run.mid(self.rows.get(peer, {}).get(case, []), quantity)
        return found[0] if found else None

    def ratio(self, case, quantity):
        ours, theirs = (self.median(p, case, quantity) for p in (OURS, REFERENCE))
        return ours / theirs if ours and theirs else None

    def added_ratio(self, case, quantity):
        """Of what each adds to the direct way: the same two wake-ups are in all three."""
        ours, theirs, direct = (self.median(p, case, quantity) for p in (OURS, REFERENCE, DIRECT))
        if None in (ours, theirs, direct) or theirs <= direct:
            return None
        return (ours - direct) / (theirs - direct)


# name, how to get the figure, goal, True when less is better, unit
GOALS = [
    ("CPU of a 1 KB chat, ours / haproxy", lambda r: r.ratio("chat", "cpu_us"), 1.2, True, "x"),
    ("CPU of an event, flat out, ours / haproxy", lambda r: r.ratio("sse_flat", "cpu_us"), 1.0,
     True, "x"),
    ("CPU of an event, 10 ms apart, ours / haproxy", lambda r: r.ratio("sse_10ms", "cpu_us"), 1.0,
     True, "x"),
    ("CPU of a 220 KB chat", lambda r: r.median(OURS, "long", "cpu_us"), 400, True, "us"),
    ("220 KB chats a second, 60 connections", lambda r: r.median(OURS, "long", "load.rps"), 1500,
     False, "/s"),
    ("memory of an idle stream", lambda r: r.median(OURS, "idle", "rss_per_stream_kib"), 8, True,
     "KiB"),
    ("added p50 at one connection, ours / haproxy",
     lambda r: r.added_ratio("light", "load.latency_us.p50"), 1.15, True, "x"),
]


def judge(results):
    """Prints one line per goal. Returns (reached, short, not judged)."""
    counts = [0, 0, 0]
    print("\ngoals")
    for name, figure_of, goal, less_is_better, unit in GOALS:
        figure = figure_of(results)
        if figure is None:
            verdict, shown = "not judged", "-"
            counts[2] += 1
        else:
            reached = figure <= goal if less_is_better else figure >= goal
            verdict, shown = ("reached", "SHORT")[not reached], f"{figure:.2f} {unit}"
            counts[not reached] += 1
        sign = "<=" if less_is_better else ">="
        print(f"{name:46} {shown:>13}   goal {sign} {goal:g} {unit:4} {verdict}")
    return counts


def faults_of(rows):
    """Answers that were wrong, of any peer: such a row does not count, and ours must not be."""
    faults = []
    for peer, cases in rows.items():
        faults += [f"{peer}: {why}" for why in cases.get("failed", [])]
        for case in CASES:
            for row in cases.get(case, []):
                bad = sum(row["load"][k] for k in ("errors", "bad_status", "unfinished"))
                if bad or row["lost"]:
                    faults.append(f"{peer}: {case}: {bad} bad answers, {row['lost']} lost events")
    return faults


def base_port(worker_count):
    """Ports that are free now: workers from base on, the peer's two at base + 100."""
    for _ in range(200):
        base = random.randrange(20000, 32000)
        if all(map(run.port_free, [*range(base, base + worker_count), base + 100, base + 101])):
            return base
    raise SystemExit("no free ports")


def options():
    p = argparse.ArgumentParser(description=__doc__, epilog="Peers are used when installed: "
                                "haproxy, nginx, sglang-router (from PyPI; --bin).",
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin-dir", required=True, help="where samovar-router is")
    p.add_argument("--programs", required=True, help="where stub and load are")
    p.add_argument("--quick", action="store_true", help="under a minute: one round, fewer requests")
    p.add_argument("--smoke", action="store_true", help="only that it runs: ours, few requests")
    p.add_argument("--reps", type=int, default=3, help="rounds; every second one backwards")
    p.add_argument("--peers", help="names, separated by commas (default: all that are installed)")
    p.add_argument("--bin", action="append", default=[], metavar="NAME=PATH")
    p.add_argument("--json", help="where to write all figures")
    return p.parse_args()


def installed(names, given):
    """Those whose program is there; says which are not."""
    specs = json.loads((HERE / "peers" / "peers.json").read_text())
    known = {b.split("=", 1)[0] for b in given}
    present = []
    for name in names:
        exe = specs[name].get("exe")
        if not exe or name in known or exe in known or shutil.which(exe):
            present.append(name)
        else:
            print(f"{name}: {exe} is not installed, left out")
    return present


def harness_arguments(o, work):
    bins = [f"samovar={o.bin_dir}/samovar-router", *o.bin]
    names = o.peers.split(",") if o.peers else \
        [DIRECT, REFERENCE, "nginx", "sglang-cache", OURS]
    cases, reps, scale = CASES, o.reps, 1.0
    if o.quick:
        names, reps, scale = o.peers and names or [DIRECT, REFERENCE, OURS], 1, 0.2
    if o.smoke:
        names, cases, reps, scale = [OURS], ["chat", "sse_flat", "long"], 1, 0.05
    cpus = sorted(os.sched_getaffinity(0))
    arguments = ["--peers", ",".join(installed(names, bins)), "--cases", ",".join(cases),
                 "--reps", str(reps), "--scale", str(scale), "--base", str(base_port(4)),
                 "--peer-cpu", str(cpus[0]), "--load-cpu", str(cpus[-1]),
                 "--programs", o.programs, "--work", work]
    return arguments + [x for b in bins for x in ("--bin", b)]


def main():
    o = options()
    sys.stdout.reconfigure(line_buffering=True)
    with tempfile.TemporaryDirectory(prefix="relay-") as work:
        rows = run.measure_all(run.options(harness_arguments(o, work)))
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps(rows, indent=1))
    reached, short, open_goals = judge(Results(rows))
    faults = faults_of(rows)
    for fault in faults:
        print(f"WRONG {fault}")
    if faults:
        print("verdict: wrong answers, nothing is judged")
        sys.exit(BROKEN)
    ok = reached == len(GOALS)
    print(f"verdict: {'REACHED' if ok else 'SHORT'}: {reached} goals reached, {short} short, "
          f"{open_goals} not judged")
    sys.exit(REACHED if ok else SHORT)


if __name__ == "__main__":
    main()
