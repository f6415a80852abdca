#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures peer routers one at a time with the same upstreams and load.

See README.md. Standard library only.
"""
import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import gen

HERE = pathlib.Path(__file__).resolve().parent
TICK = os.sysconf("SC_PAGE_SIZE") // 1024

# Order matters: open streams first, while the peer's heap is still small. `whole` is not scaled: memory per
# stream means little with few of them.
CASES = {
    "idle": dict(unit="event", set="events=9&interval_us=1000000", body="chat_1k_stream", conns=2000, n=2000,
                 rate=2000, events=9, window=4.5, whole=True),
    "light": dict(unit="request", body="chat_1k", conns=1, n=3000, near=True),
    "chat": dict(unit="request", body="chat_1k", conns=8, n=20000),
    "open": dict(unit="request", body="chat_1k", conns=64, n=6000, rate=2000),
    "sse_flat": dict(unit="event", set="events=200&interval_us=0", body="chat_1k_stream", conns=200, n=1000,
                     events=200),
    "sse_10ms": dict(unit="event", set="events=200&interval_us=10000", body="chat_1k_stream", conns=200, n=400,
                     events=200),
    "long": dict(unit="request", body="long_chat", conns=60, n=2000),
}


def get(url, data=None, timeout=10):
    headers = {"Content-Type": "application/json"} if data else {}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout) as r:
        return r.status, r.read()


def tree(root):
    """The pids of a process and all below it."""
    children = {}
    for p in os.listdir("/proc"):
        if p.isdigit():
            with contextlib.suppress(OSError):
                stat = pathlib.Path("/proc", p, "stat").read_text()
                children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(p))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_ns(pids):
    """CPU time of each process, exited threads included, from its CPU clock."""
    out = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            out[pid] = time.clock_gettime_ns((~pid << 3) | 2)
    return out


def rss_kib(pids):
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * TICK
    return total


def spent_us(before, after):
    return sum(ns - before.get(pid, 0) for pid, ns in after.items()) / 1e3


def port_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


class Peer:
    def __init__(self, name, spec, opt):
        self.name, self.spec, self.opt = name, spec, opt
        self.proc = self.log = None
        self.port = opt.base + 100 if spec else opt.base
        self.scale = spec.get("scale", 1)

    def exe(self):
        path = self.opt.bins.get(self.name) or self.opt.bins.get(self.spec["exe"]) or shutil.which(self.spec["exe"])
        if not path:
            raise RuntimeError(f"{self.spec['exe']}: not found")
        return path

    def fill(self, text):
        workers = range(self.opt.base, self.opt.base + self.opt.workers)
        lines = []
        for line in text.splitlines():
            if "@WORKER@" in line and not line.startswith("#"):
                lines += [line.replace("@WORKER@", str(w)).replace("@I@", str(i)) for i, w in enumerate(workers)]
            else:
                lines.append(line)
        return "\n".join(lines).replace("@PORT@", str(self.port)).replace("@WORK@", str(self.opt.work)) + "\n"

    def args(self):
        conf = ""
        if "conf" in self.spec:
            conf = self.opt.work / self.spec["conf"]
            folder = pathlib.Path(self.spec.get("folder", HERE / "conf"))
            conf.write_text(self.fill((folder / self.spec["conf"]).read_text()))
        out = []
        for a in self.spec["args"]:
            workers = range(self.opt.base, self.opt.base + self.opt.workers) if "{worker}" in a else [0]
            out += [a.format(worker=w, port=self.port, aux=self.port + 1, work=self.opt.work, conf=conf)
                    for w in workers]
        return out

    def start(self):
        if not self.spec:
            return
        for p in (self.port, self.port + 1):
            if not port_free(p):
                raise RuntimeError(f"port {p} is taken")
        self.log = open(self.opt.work / f"{self.name}.log", "a")
        self.proc = subprocess.Popen([self.exe(), *self.args()], stdout=self.log, stderr=self.log,
                                     cwd=self.opt.work, env={**os.environ, **self.spec.get("env", {})},
                                     preexec_fn=lambda: os.sched_setaffinity(0, {self.opt.peer_cpu}))
        body = next(gen.chat_1k(False, 1)).encode()
        end, why = time.time() + self.opt.start_s, "no answer"
        while time.time() < end:
            if self.proc.poll() is not None:
                raise RuntimeError(f"exited with {self.proc.returncode}; see {self.log.name}")
            try:
                if get(f"http://127.0.0.1:{self.port}/v1/chat/completions", body)[0] == 200:
                    break
            except OSError as e:
                why = str(e)
            time.sleep(0.3)
        else:
            raise RuntimeError(f"not ready after {self.opt.start_s} s: {why}; see {self.log.name}")
        time.sleep(1)

    def stop(self):
        if not self.proc:
            return
        pids = tree(self.proc.pid)
        with contextlib.suppress(ProcessLookupError):
            self.proc.send_signal(signal.SIGINT if self.spec["exe"] == "litellm" else signal.SIGTERM)
        try:
            self.proc.wait(3)
        except subprocess.TimeoutExpired:
            pass
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.proc.wait()
        self.log.close()

    def pids(self):
        return tree(self.proc.pid) if self.proc else []


class Bench:
    def __init__(self, opt):
        self.opt = opt
        self.stub = self.lock = None
        self.lock_since = 0

    def write_bodies(self):
        gen.write_all(self.opt.work)

    def start_stub(self):
        for p in range(self.opt.base, self.opt.base + self.opt.workers):
            if not port_free(p):
                raise SystemExit(f"port {p} is taken; choose another --base")
        self.stub = subprocess.Popen([self.opt.programs / "stub", "-p", str(self.opt.base), "-n", str(self.opt.workers)])
        os.sched_setaffinity(self.stub.pid, {self.opt.load_cpu})
        time.sleep(0.3)
        if self.stub.poll() is not None:
            raise SystemExit("the stub does not start")

    @contextlib.contextmanager
    def locked(self):
        """Holds --lock, and on after the measurement until --hold-s are over."""
        if self.opt.lock and not self.lock:
            self.lock = open(self.opt.lock, "a")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            self.lock_since = time.monotonic()
        yield
        if self.lock and time.monotonic() - self.lock_since > self.opt.hold_s:
            self.unlock()
            time.sleep(0.5)                           # let others in

    def unlock(self):
        if self.lock:
            self.lock.close()
            self.lock = None

    def load(self, peer, case, n, conns):
        cmd = [self.opt.programs / "load", "-p", str(peer.port), "-c", str(conns), "-n", str(n), "-t", str(self.opt.limit_s),
               "-f", str(self.opt.work / f"{case['body']}.jsonl")]
        if "rate" in case:
            cmd += ["-r", str(max(1, case["rate"] * peer.scale))]
        return subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True,
                                preexec_fn=lambda: os.sched_setaffinity(0, {self.opt.load_cpu}))

    def stub_sum(self, key):
        stats = json.loads(get(f"http://127.0.0.1:{self.opt.base}/stub/stats")[1])
        return sum(w[key] for w in stats.values())

    def measure(self, peer, name):
        case = CASES[name]
        n = case["n"] if case.get("whole") else max(40, int(case["n"] * self.opt.scale * peer.scale))
        conns = min(case["conns"], n)
        get(f"http://127.0.0.1:{self.opt.base}/stub/set?{case.get('set', 'events=200&interval_us=0')}")
        os.sched_setaffinity(self.stub.pid, {self.opt.peer_cpu if case.get("near") else self.opt.load_cpu})
        if "window" not in case:                      # warm connections and code paths, outside the measurement
            self.load(peer, case, max(conns, n // 20), conns).communicate()
        with self.locked():
            pids = peer.pids()
            rss0, cpu0 = rss_kib(pids), cpu_ns(pids)
            proc = self.load(peer, case, n, conns)
            row = {}
            if "window" in case:
                end = time.monotonic() + self.opt.limit_s / 2
                while self.stub_sum("running") < n and time.monotonic() < end:
                    time.sleep(0.1)
                time.sleep(1)
                pids = peer.pids()
                cpu0, t0, e0 = cpu_ns(pids), time.monotonic(), self.stub_sum("events")
                time.sleep(case["window"])
                cpu1, t1, e1 = cpu_ns(pids), time.monotonic(), self.stub_sum("events")
                rss1 = rss_kib(pids)
                row["open"] = self.stub_sum("running")
                row["cpu_pct"] = spent_us(cpu0, cpu1) / (t1 - t0) / 1e4
                row["rss_per_stream_kib"] = (rss1 - rss0) / max(1, row["open"])
                units = e1 - e0
                proc_out = proc.communicate()[0]
            else:
                proc_out = proc.communicate()[0]
                pids = peer.pids()
                cpu1, rss1 = cpu_ns(pids), rss_kib(pids)
                units = None
        got = json.loads(proc_out)
        if units is None:
            units = got["events"] if case["unit"] == "event" else got["ok"]
        row.update(cpu_us=spent_us(cpu0, cpu1) / max(1, units), rss_mib=rss1 / 1024, n=n, conns=conns, load=got)
        row["lost"] = n * case.get("events", 1) - got["events"]
        return row

    def one_peer(self, name, spec, results):
        peer = Peer(name, spec, self.opt)
        try:
            peer.start()
            pids = peer.pids()
            with self.locked():
                before, rss = cpu_ns(pids), rss_kib(pids)
                time.sleep(1.5)
                idle = spent_us(before, cpu_ns(pids)) / 1.5e4
            results.setdefault(name, {}).setdefault("rest", []).append({"cpu_pct": idle, "rss_mib": rss / 1024})
            for case in self.opt.cases:
                row = self.measure(peer, case)
                results[name].setdefault(case, []).append(row)
                print(f"{time.strftime('%H:%M:%S')} {name:13} {case:9} {brief(row)}", flush=True)
        except (RuntimeError, OSError, ValueError) as e:
            results.setdefault(name, {}).setdefault("failed", []).append(str(e))
            print(f"{name}: {e}", file=sys.stderr, flush=True)
        finally:
            peer.stop()


def brief(row):
    lo = row["load"]
    text = (f"cpu {row['cpu_us']:9.2f} us/unit  rps {lo['rps']:9.1f}  p50 {lo['latency_us']['p50']:10.1f}"
            f"  p99 {lo['latency_us']['p99']:10.1f}  rss {row['rss_mib']:7.1f} MiB")
    if "cpu_pct" in row:
        text += f"  {row['cpu_pct']:.1f} %  {row['rss_per_stream_kib']:.1f} KiB/stream"
    bad = lo["errors"] + lo["bad_status"] + lo["unfinished"]
    if bad or row["lost"]:
        text += f"  BAD {bad} (first status {lo['first_bad_status']}) lost events {row['lost']}"
    return text


def mid(rows, path):
    values = []
    for r in rows:
        for key in path.split("."):
            r = r.get(key, {}) if isinstance(r, dict) else {}
        if isinstance(r, (int, float)):
            values.append(r)
    return (statistics.median(values), min(values), max(values)) if values else None


COLUMNS = {
    "idle": [("CPU %", "cpu_pct", 1), ("us/event", "cpu_us", 1), ("KiB/stream", "rss_per_stream_kib", 1), ("open", "open", 0),
             ("age p50 us", "load.event_age_us.p50", 0), ("age p99 us", "load.event_age_us.p99", 0),
             ("lost", "lost", 0)],
    "light": [("us/req", "cpu_us", 1), ("p50 us", "load.latency_us.p50", 0), ("p99 us", "load.latency_us.p99", 0)],
    "sse_flat": [("us/event", "cpu_us", 2), ("events/s", "load.events_per_s", 0), ("ttfb p50 ms", "load.ttfb_us.p50", -3),
                 ("ttfb p99 ms", "load.ttfb_us.p99", -3), ("lost", "lost", 0)],
    "sse_10ms": [("us/event", "cpu_us", 2), ("age p50 us", "load.event_age_us.p50", 0),
                 ("age p99 us", "load.event_age_us.p99", 0), ("ttfb p99 ms", "load.ttfb_us.p99", -3), ("lost", "lost", 0)],
}
PLAIN = [("us/req", "cpu_us", 1), ("req/s", "load.rps", 0), ("p50 us", "load.latency_us.p50", 0),
         ("p99 us", "load.latency_us.p99", 0), ("RSS MiB", "rss_mib", 1), ("bad", "load.bad_status", 0)]


def table(results, cases):
    out = []
    for case in cases:
        cols = COLUMNS.get(case, PLAIN)
        out.append(f"\n{case}: median [min-max] of {max((len(r.get(case, [])) for r in results.values()), default=0)}")
        out.append(f"{'peer':13} " + " ".join(f"{c[0]:>26}" for c in cols))
        for name, r in results.items():
            if case not in r:
                continue
            cells = []
            for _, path, digits in cols:
                m = mid(r[case], path)
                if m is None:
                    cells.append("-")
                    continue
                if digits < 0:
                    m, digits = [x / 1000 for x in m], 1
                cells.append(f"{m[0]:.{digits}f} [{m[1]:.{digits}f}-{m[2]:.{digits}f}]")
            out.append(f"{name:13} " + " ".join(f"{c:>26}" for c in cells))
    out.append("\nat rest after start")
    for name, r in results.items():
        if r.get("rest"):
            out.append(f"{name:13} RSS {mid(r['rest'], 'rss_mib')[0]:.1f} MiB  CPU {mid(r['rest'], 'cpu_pct')[0]:.2f} %")
    for name, r in results.items():
        for why in r.get("failed", []):
            out.append(f"{name:13} FAILED {why}")
    return "\n".join(out)


def options(argv=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--peers", help="names, separated by commas (default: all of peers.json)")
    p.add_argument("--extra", action="append", default=[], help="one more JSON file like peers.json")
    p.add_argument("--bin", action="append", default=[], metavar="NAME=PATH", help="where a peer's program is")
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--scale", type=float, default=1.0, help="factor on the numbers of requests")
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--base", type=int, default=21001, help="first worker port; the peer listens on BASE+100")
    p.add_argument("--peer-cpu", type=int, default=0)
    p.add_argument("--load-cpu", type=int, default=1)
    p.add_argument("--start-s", type=int, default=60, help="longest wait for a peer to start")
    p.add_argument("--limit-s", type=int, default=60, help="longest time for one load")
    p.add_argument("--lock", help="file to flock during every measurement")
    p.add_argument("--hold-s", type=float, default=0, help="keep --lock between measurements for this long")
    p.add_argument("--work", type=pathlib.Path, help="folder for builds, bodies, logs (default: a new temporary one)")
    p.add_argument("--programs", type=pathlib.Path, default=HERE.parents[2] / "build" / "bench" / "peers",
                   help="folder of stub and load")
    p.add_argument("--json", help="where to write all results")
    o = p.parse_args(argv)
    o.cases = o.cases.split(",")
    o.bins = dict(b.split("=", 1) for b in o.bin)
    o.work = (o.work or pathlib.Path(tempfile.mkdtemp(prefix="peers-"))).resolve()
    o.work.mkdir(parents=True, exist_ok=True)
    o.specs = json.loads((HERE / "peers.json").read_text())
    for extra in o.extra:
        more = json.loads(pathlib.Path(extra).read_text())
        for spec in more.values():
            spec.setdefault("folder", str(pathlib.Path(extra).resolve().parent))
        o.specs.update(more)
    names = o.peers.split(",") if o.peers else list(o.specs)
    o.specs = {n: o.specs[n] for n in names}
    return o


def measure_all(opt):
    """Runs every peer opt.reps times, prints the tables, returns all rows."""
    bench, results = Bench(opt), {}
    bench.write_bodies()
    bench.start_stub()
    try:
        for rep in range(opt.reps):
            names = list(opt.specs)
            for name in names if rep % 2 == 0 else reversed(names):
                if rep < opt.specs[name].get("reps", rep + 1) and len(results.get(name, {}).get("failed", [])) < 2:
                    bench.one_peer(name, opt.specs[name], results)
                    if opt.json:
                        pathlib.Path(opt.json).write_text(json.dumps(results, indent=1))
    finally:
        bench.unlock()
        bench.stub.terminate()
        bench.stub.wait()
    results = {n: results[n] for n in opt.specs if n in results}
    print(table(results, opt.cases))
    return results


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    measure_all(options())


if __name__ == "__main__":
    main()
