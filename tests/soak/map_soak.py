# SPDX-License-Identifier: Apache-2.0
"""
The mixed load of conversations over a shared map, while Redis, agents, engines and routers are
killed, stopped and come back by chance, one at a time. In the end nothing failed that may not,
nothing is left over, and no promise outlives the trouble.
"""

import signal
import tempfile
import time
from collections import Counter

from acts import Acts
from outcome import HALF_ANSWERED
from peers.cluster import Cluster, Load
from peers.process import wait_until

FAILURE_LETTERS = 20_000  # what is known of a phantom, and of a few more
WELL_S = 20  # within which all is exact again, whatever was the last that happened


class MapTrouble(Acts):
    def __init__(self, cluster, seed):
        super().__init__(f"{seed}/map", (0.3, 1.5))
        self.cluster = cluster
        self.dead_routers = set()

    def acts(self):
        return [self._kill_redis, self._freeze_redis, self._empty_redis, self._kill_agent,
                self._freeze_agent, self._kill_engine, self._kill_router]

    def _pause(self):
        """Short of a lease, or beyond it."""
        seconds = self._random.choice([0.1, 1, 4])
        time.sleep(seconds)
        return f"for {seconds} s"

    def _kill_redis(self):
        self.cluster.redis.kill()
        how_long = self._pause()
        self.cluster.redis.start()
        return how_long

    def _freeze_redis(self):
        self.cluster.redis.pause()
        how_long = self._pause()
        self.cluster.redis.resume()
        return how_long

    def _empty_redis(self):
        self.cluster.redis.call("FLUSHALL")

    def _kill_agent(self):
        number = self._random.randrange(len(self.cluster.agents))
        self.cluster.agents[number].kill()
        how_long = self._pause()
        self.cluster.restart_agent(number)
        return f"{number} {how_long}"

    def _freeze_agent(self):
        number = self._random.randrange(len(self.cluster.agents))
        self.cluster.agents[number].signal(signal.SIGSTOP)
        how_long = self._pause()
        self.cluster.agents[number].signal(signal.SIGCONT)
        return f"{number} {how_long}"

    def _kill_engine(self):
        """And waits until it serves: a request may die with one engine, not with two."""
        number = self._random.randrange(len(self.cluster.engines))
        self.cluster.restart_engine(number)
        for router in self.cluster.routers:
            router.wait_states("up", len(self.cluster.engines))
        return str(number)

    def _kill_router(self):
        """Its clients lose what it had, and ask another one."""
        number = self._random.randrange(len(self.cluster.routers))
        old = self.cluster.routers[number]
        self.dead_routers.add(old)
        old.kill()
        new = self.cluster.new_router()
        new.wait_states("up", len(self.cluster.engines))
        self.cluster.routers[number] = new
        return str(number)


def judge_turns(verdict, turns, trouble):
    """What was not answered, and whether that may be."""
    wrong, excused = [], Counter()
    for turn in turns:
        if turn.status == 200:
            continue
        if turn.router in trouble.dead_routers:
            excused["its router was killed"] += 1
        elif HALF_ANSWERED in turn.text:
            excused["its engine was killed in the midst of the answer"] += 1
        else:
            wrong.append(f"{turn.status} {turn.text} {turn.line}")
    well = [turn for turn in turns if turn.status == 200]
    rungs = Counter(turn.line["rung"] for turn in well)
    promised = sum(turn.line["predicted_cached_tokens"] for turn in well)
    found = sum(turn.line.get("cached_tokens", 0) for turn in well)
    prompts = sum(turn.line.get("prompt_tokens", 0) for turn in well)
    error = sum(abs(turn.line["predicted_cached_tokens"] - turn.line.get("cached_tokens", 0))
                for turn in well)
    verdict.add("turns", len(turns), len(well) > 0)
    verdict.add("by rung", dict(rungs), rungs["exact"] > 0)
    verdict.add("cached, of prompt tokens", f"predicted {promised / prompts:.3f}, "
                f"found {found / prompts:.3f}, mean error {100 * error / prompts:.2f} %")
    for why, count in sorted(excused.items()):
        verdict.add(f"  lost: {why}", count)
    verdict.add("lost otherwise", wrong[:3] or 0, not wrong)


def judge_end(verdict, cluster, trouble):
    """Everybody is well; then there is no excuse for a phantom."""
    verdict.add("troubles", dict(trouble.counts))
    verdict.add("trouble that failed itself", trouble.crashes or 0, not trouble.crashes)
    try:
        for router in cluster.routers:
            router.wait_states("up", len(cluster.engines))
        exact_s = cluster.wait_exact(WELL_S)
        verdict.add("exact again", f"{exact_s:.1f} s after the last trouble")
        cluster.check_truth()
        verdict.add("lasting phantoms", 0)
    except AssertionError as failure:
        verdict.add("schedule", "; ".join(trouble.schedule))
        verdict.add("exact again, without phantoms", str(failure)[:FAILURE_LETTERS], False)
    for router in cluster.routers:
        wait_until(lambda router=router: not router.in_flight(), "nothing is in flight")
    processes = cluster.routers + cluster.agents
    garbage = [line for process in processes for line in process.log.find_garbage()]
    verdict.add("lines that are no JSON", garbage[:3] or 0, not garbage)
    dropped = sum(value for process in processes for name, value in process.metrics().items()
                  if name.endswith("log_lines_dropped_total"))
    verdict.add("log lines dropped", int(dropped), not dropped)
    verdict.add("memory, MiB", " ".join(f"{process.rss_kib() / 1024:.1f}" for process in processes))


def soak_map(verdict, seconds, thread_count, seed):
    """Runs it, and adds to the verdict."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(folder)
        try:
            trouble = MapTrouble(cluster, seed)
            load = Load(cluster, thread_count)
            trouble.start()
            time.sleep(seconds)
            trouble.stop()
            load.stop()
            verdict.add("duration", f"{seconds} s, {thread_count} clients, seed {seed}, a map")
            judge_turns(verdict, load.turns, trouble)
            judge_end(verdict, cluster, trouble)
            cluster.stop()
        finally:
            cluster.kill()
    return verdict
