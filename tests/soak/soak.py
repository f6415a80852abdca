#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
A router under mixed load, with workers that die and options that are reloaded each second, and what
may be asked of it at the end: nothing lost, nothing left over, nothing grown.

    soak.py [--seconds 480] [--clients 30] [--seed 1]
    soak.py --map [--seconds 480] [--clients 6] [--seed 1]     with Redis, agents, two routers
"""

import argparse
import datetime
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import signal  # noqa: E402

from clients import Clients  # noqa: E402
from map_soak import soak_map  # noqa: E402
from outcome import History, judge  # noqa: E402
from peers.process import is_sanitized, wait_until  # noqa: E402
from peers.router import Router  # noqa: E402
from trouble import Trouble  # noqa: E402

RETRY_COUNT_MAX = 3
# Two files that take turns. Memory for prefixes is small, so that it is full long before the end.
COMMON = {"residency-bytes-max": "4MiB", "probe-interval-ms": "200ms", "log-level": "info",
          "retry-count-max": RETRY_COUNT_MAX, "client-body-ms": "5s", "connect-ms": "1s"}
FILES = [
    {**COMMON, "client-stall-ms": "2s", "upstream-header-ms": "4s", "upstream-idle-ms": "3s",
     "worker-idle-ms": "4s", "client-idle-ms": "20s", "policy": "ttft", "drain-ms": "5s"},
    {**COMMON, "client-stall-ms": "3s", "upstream-header-ms": "5s", "upstream-idle-ms": "4s",
     "worker-idle-ms": "2s", "client-idle-ms": "30s", "policy": "least_load", "drain-ms": "6s",
     "usage-ask": "false", "worker-conn-count-max": 500},
]
BROKEN_EVERY = 10  # a reload in so many is refused
ABSENT_EVERY = 7  # a reload in so many takes the last worker out; the next brings it back

WARM_UP_SHARE = 0.25
RSS_WINDOW = 10  # samples, of which the lowest counts: large bodies come and go
RSS_GROWTH_MAX = 0.05  # of its median, over what is left after the warm-up
RSS_SLACK_KIB = 4096
JUDGED_SECONDS_MIN = 120  # a shorter run is all warm-up


class Reloads:
    """SIGHUP each second, with the two files in turn and now and then one that is wrong."""

    def __init__(self, path, workers):
        self.path = path
        self.workers = workers
        self.sent = Counter()

    def write(self, number):
        is_broken = number % BROKEN_EVERY == BROKEN_EVERY - 1
        workers = self.workers[: -1 if number % ABSENT_EVERY == 0 and number > 0 else None]
        fields = {"worker-urls": " ".join(worker.url for worker in workers), **FILES[number % 2]}
        if is_broken:
            fields["drain-ms"] = "5parsec"
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
        new.replace(self.path)
        return "config_refused" if is_broken else "config_reloaded"

    def send(self, router, number):
        """One, and waits until it is told."""
        event = self.write(number)
        self.sent[event] += 1
        router.signal(signal.SIGHUP)
        router.log.wait_count(event, self.sent[event])


def rss_growth(samples):
    """KiB over the samples, by the line that fits best through the lowest of each window; and the
    median of those."""
    samples = [min(samples[at : at + RSS_WINDOW], key=lambda sample: sample[1])
               for at in range(0, len(samples) - 1, RSS_WINDOW)]
    if len(samples) < 2:
        return 0.0, samples[0][1]
    times = [at for at, _ in samples]
    line = statistics.linear_regression(times, [kib for _, kib in samples])
    return line.slope * (times[-1] - times[0]), statistics.median(kib for _, kib in samples)


class Verdict:
    """Rows of the summary, and what was wrong."""

    def __init__(self):
        self.rows = []
        self.faults = []

    def add(self, name, value, is_right=True):
        self.rows.append((name, value, "" if is_right else "WRONG"))
        if not is_right:
            self.faults.append(f"{name}: {value}")

    def print(self):
        width = max(len(name) for name, _, _ in self.rows)
        for name, value, mark in self.rows:
            print(f"{name:<{width}}  {value}  {mark}".rstrip())
        print("SOAK FAILED" if self.faults else "SOAK PASSED")


def at_of(line):
    return datetime.datetime.fromisoformat(line["time"].replace("Z", "+00:00")).timestamp()


def judge_requests(verdict, router, clients, trouble):
    lines = {}
    for line in router.log.find("request"):
        line["tries"] = RETRY_COUNT_MAX + 1
        lines.setdefault(line["request_id"], []).append(line)
    states = [{**line, "at": at_of(line)} for line in router.log.find("worker_state")]
    history = History(states, [worker.url for worker in trouble.workers], trouble.pauses)
    counts, reasons, wrong = Counter(), Counter(), []
    for outcome in clients.outcomes.values():
        own = lines.get(outcome.request_id, [])
        if len(own) > 1 or (len(own) == 0 and not outcome.left):
            wrong.append(f"{outcome.request_id}: {len(own)} lines in the log; {outcome}")
            continue
        line = own[0] if own else None
        done = list(trouble.done.get(outcome.request_id, []))
        if line and trouble.was_killed(line.get("worker"), outcome.begun - 0.1, outcome.ended + 0.1):
            done.append("half")
        verdict_of, why = judge(outcome, line, done, history)
        counts[verdict_of] += 1
        if verdict_of in ("excused", "begun"):
            reasons[why] += 1
        if verdict_of == "wrong":
            wrong.append(f"{outcome.request_id}: {why}; done to it: {done}; {outcome}; {own}")
        if own and not outcome.left and outcome.status and own[0]["status"] != outcome.status:
            wrong.append(f"{outcome.request_id}: logged {own[0]['status']}, seen {outcome.status}")
    ends = Counter(line["end"] for own in lines.values() for line in own)
    kinds = Counter(outcome.kind for outcome in clients.outcomes.values())
    verdict.add("requests", f"{len(clients.outcomes)}: " + spell(kinds))
    verdict.add("answered well", counts["ok"])
    verdict.add("clients that left", counts["left"])
    verdict.add("lost after the first byte", counts["begun"])
    verdict.add("lost before it, by the rule", counts["excused"])
    for why, count in sorted(reasons.items()):
        verdict.add(f"  {why}", count)
    verdict.add("ends in the log", spell(ends), "internal" not in ends)
    verdict.add("lost, doubled or mistold", len(wrong), not wrong)
    for text in wrong[:20]:
        print("WRONG", text[:1500], file=sys.stderr)


def spell(counts):
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def judge_rest(verdict, router, reloads, clients, trouble, samples):
    metrics = router.metrics()
    left = {name: value for name, value in metrics.items()
            if any(word in name for word in ("in_flight", "decoding", "queued_tokens")) and value}
    verdict.add("still in flight", spell(left) or 0, not left)
    connections = metrics["samovar_router_client_connections"]
    verdict.add("client connections", f"{connections:.0f} (the scrape's own)", connections <= 1)
    verdict.add("log lines dropped", int(metrics.get("samovar_router_log_dropped_total", 0)),
                not metrics.get("samovar_router_log_dropped_total", 0))
    garbage = router.log.find_garbage()
    verdict.add("lines that are no JSON", len(garbage), not garbage)
    retries = sum(value for name, value in metrics.items() if "_retries_total" in name)
    verdict.add("retries", f"{retries:.0f}")
    verdict.add("troubles", spell(trouble.counts))
    told = {result: int(metrics[f'samovar_router_config_reload_total{{result="{result}"}}'])
            for result in ("applied", "refused")}
    sent = {"applied": reloads.sent["config_reloaded"], "refused": reloads.sent["config_refused"]}
    verdict.add("reloads", spell(told), told == sent)
    verdict.add("trouble that failed itself", trouble.crashes or 0, not trouble.crashes)
    verdict.add("clients that failed themselves", len(clients.crashes), not clients.crashes)
    for text in clients.crashes[:10]:
        print("CRASH", text[:500], file=sys.stderr)
    judge_memory(verdict, samples)


def judge_memory(verdict, samples):
    seconds = samples[-1][0] - samples[0][0]
    steps = [samples[len(samples) * step // 10][1] for step in range(10)] + [samples[-1][1]]
    verdict.add("memory at each tenth, MiB", " ".join(f"{kib / 1024:.1f}" for kib in steps))
    kept = samples[int(len(samples) * WARM_UP_SHARE):]
    growth, median = rss_growth(kept)
    is_judged = seconds >= JUDGED_SECONDS_MIN and not is_sanitized("samovar-router")
    limit = max(RSS_GROWTH_MAX * median, RSS_SLACK_KIB)
    verdict.add("memory", f"{median / 1024:.1f} MiB, grew {growth / 1024:+.2f} MiB in "
                f"{kept[-1][0] - kept[0][0]:.0f} s after the warm-up (limit "
                f"{limit / 1024:.1f} MiB{'' if is_judged else '; too short to judge'})",
                not is_judged or growth <= limit)


def soak(seconds, client_count, seed, pause_s=0.15):
    """Runs it and returns the verdict."""
    trouble = Trouble(seed)
    with tempfile.TemporaryDirectory() as folder:
        reloads = Reloads(Path(folder) / "router.yaml", trouble.workers)
        reloads.write(0)
        router = Router([], ["--config", reloads.path])
        router.wait_states("up", len(trouble.workers))
        clients = Clients(router, seed, pause_s)
        clients.start(client_count)
        trouble.start()
        samples = []
        begun = time.monotonic()
        number = 0
        while time.monotonic() < begun + seconds:
            number += 1
            reloads.send(router, number)
            samples.append((time.monotonic(), router.rss_kib()))
            time.sleep(max(0, begun + number - time.monotonic()))
        trouble.stop()
        clients.stop()
        router.wait_idle()
        wait_until(lambda: router.metrics()["samovar_router_client_connections"] <= 1,
                   "clients are gone")
        verdict = Verdict()
        verdict.add("duration", f"{seconds} s, {client_count} clients, seed {seed}")
        judge_requests(verdict, router, clients, trouble)
        judge_rest(verdict, router, reloads, clients, trouble, samples)
        router.stop()
        trouble.close()
    return verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=480)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--map", action="store_true", help="Redis, agents and routers die too")
    arguments = parser.parse_args()
    if arguments.map:
        verdict = soak_map(Verdict(), arguments.seconds, arguments.clients or 6, arguments.seed)
    else:
        verdict = soak(arguments.seconds, arguments.clients or 30, arguments.seed)
    verdict.print()
    sys.exit(1 if verdict.faults else 0)


if __name__ == "__main__":
    main()
