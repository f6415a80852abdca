# SPDX-License-Identifier: Apache-2.0
"""
Redis fails under all of it at once: engines that evict, their agents, two routers and conversations.
No request fails or waits for it, nothing is promised that is not there, and what was exact is exact
again when it is back.
"""

import time

import pytest

from peers.cluster import EXACT_S
from peers.process import wait_until
from peers.slow_proxy import SlowProxy

TURNS = 80  # some seconds' worth at most, and most of what the engines hold
UNBELIEVED_S = 3 + 1  # without Redis it is believed for 3 s; and a poll


# --- what a Redis may do ---

class Killed:
    """Connections are reset, then refused; what comes back is empty."""
    doubts = ("no_map",)

    def begin(self, cluster):
        cluster.redis.kill()

    def end(self, cluster):
        cluster.redis.start()


class Stopped:
    """SIGSTOP: connections stay, and nothing is answered."""
    doubts = ("no_map",)

    def begin(self, cluster):
        cluster.redis.pause()

    def end(self, cluster):
        cluster.redis.resume()


class Loading:
    """It comes back with what it held when it was saved, and takes seconds to read that."""
    doubts = ("no_map",)

    def begin(self, cluster):
        for number in range(400):
            cluster.redis.call("SET", f"elsewhere:{number}", "x" * 64)
        cluster.redis.call("SAVE")
        cluster.redis.kill()
        cluster.redis.start("--key-load-delay", 20_000, "--loading-process-events-interval-bytes",
                            1024, is_loaded=False)

    def end(self, cluster):
        """By itself."""
        wait_until(lambda: cluster.redis.answers(), "it has loaded", 20)


class ReadOnly:
    """It has become a replica: it is read, and takes nothing, so that leases run out."""
    doubts = ("no_lease",)

    def begin(self, cluster):
        cluster.redis.call("REPLICAOF", "127.0.0.1", 1)

    def end(self, cluster):
        cluster.redis.call("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("fault", [Killed(), Stopped(), Loading(), ReadOnly()],
                         ids=lambda fault: type(fault).__name__.lower())
def test_while_redis_is_away_it_is_guessed_and_exact_again_when_it_is_back(cluster, fault):
    with cluster.load() as load:
        load.wait_turns(TURNS)
        fault.begin(cluster)
        for engine in cluster.engines:
            cluster.wait_doubt(engine, *fault.doubts, timeout_s=UNBELIEVED_S + 2)
        doubted = time.monotonic()
        load.wait_turns(TURNS)
        guessed = load.since(doubted)
        fault.end(cluster)
        cluster.wait_exact(EXACT_S)
        load.wait_turns(TURNS)

    assert not any(turn.is_exact for turn in guessed), "nobody is believed meanwhile"
    assert any(turn.line["rung"] == "guess" for turn in guessed), "a guess is better than nothing"
    for router in cluster.routers:
        doubts = router.metrics()
        assert any(doubts.get(f'samovar_router_choices_doubted_total{{reason="{doubt}"}}', 0) > 0
                   for doubt in fault.doubts)
        assert router.log.find("agent_doubted") or router.log.find("map_away")
    cluster.check_truth()


class Restarted:
    """Killed and there again before anybody has missed it; empty."""

    def act(self, cluster):
        cluster.redis.restart()


class Flushed:
    """Emptied under everybody's hands."""

    def act(self, cluster):
        cluster.redis.call("FLUSHALL")


@pytest.mark.parametrize("fault", [Restarted(), Flushed()],
                         ids=lambda fault: type(fault).__name__.lower())
def test_a_redis_that_has_lost_everything_is_told_all_again(cluster, fault):
    with cluster.load() as load:
        load.wait_turns(TURNS)
        lives = [cluster.map_of(engine).lease()["life"] for engine in cluster.engines]
        fault.act(cluster)
        wait_until(lambda: all(cluster.map_of(engine).lease().get("life") not in (None, life)
                               for engine, life in zip(cluster.engines, lives)),
                   "each agent begins anew", EXACT_S)
        cluster.wait_exact(EXACT_S)
        load.wait_turns(TURNS)

    for agent in cluster.agents:
        assert agent.metric_sum("samovar_agent_report_anew_total") >= 2
    cluster.check_truth()


def p99(turns):
    """Of what the router itself added."""
    times = sorted(turn.line["overhead_us"] for turn in turns)
    return times[len(times) * 99 // 100]


def test_a_redis_that_answers_half_a_second_late_holds_up_no_request(start_cluster):
    proxies = []

    def url_of(redis):
        proxies.append(SlowProxy(redis.address))
        return f"redis://{redis.url.removeprefix('redis://').rsplit(':', 1)[0]}:{proxies[0].port}"

    cluster = start_cluster(redis_url=url_of)
    added_us = []
    with cluster.load() as load:
        load.wait_turns(TURNS)
        for _ in range(3):  # by turns: what else runs on the machine is the same for both
            proxies[0].delay_s = 0.0
            begun = time.monotonic()
            load.wait_turns(150)
            usual = load.since(begun)
            proxies[0].delay_s = 0.5
            begun = time.monotonic()
            load.wait_turns(150)
            added_us.append(p99(load.since(begun)) - p99(usual))
        late = load.since(begun)
        proxies[0].delay_s = 0.0
        cluster.wait_exact(EXACT_S)

    assert min(added_us) <= 5000, f"added by the delay: {added_us} us"
    assert all(turn.line["overhead_us"] < 400_000 for turn in late), "nobody waits for its answer"
    cluster.check_truth()
    proxies[0].stop()
