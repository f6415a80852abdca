# SPDX-License-Identifier: Apache-2.0
"""
Agents, engines and routers die, stop, lie and come back under all of it at once. No request fails,
nothing is promised that is not there, and what was exact is exact again.
"""

import json
import signal
import threading
import time
from collections import Counter

from peers.cluster import EXACT_S, Conversation
from peers.map_agent import MapAgent
from peers.openai_api import CHAT, MODEL
from peers.process import wait_until
from peers.residency_wire import HBM

TURNS = 80
LEASE_S = 3
TRUE_S = 1   # within which a map is true behind an agent's start
SLACK_S = 1  # for a machine of two cores, under load
POLL_S = 1  # of leases each 500 ms, and of a test


def is_exact_in(router, engine, life):
    """A router reads this life of the engine's agent, and believes it."""
    rows = router.admin("/residency").json()["workers"]
    row = next((row for row in rows if row["url"] == engine.url), {})
    return row.get("life") == life and row.get("believed")


def metric(agent, engine, name):
    return agent.metrics()[f'samovar_agent_{name}{{worker="{engine.url}"}}']


# --- agents ---

def test_an_agent_that_is_killed_is_not_believed_beyond_its_lease(cluster):
    engine = cluster.engines[0]
    with cluster.load() as load:
        load.wait_turns(TURNS)
        cluster.agents[0].kill()
        cluster.wait_doubt(engine, "no_lease", timeout_s=LEASE_S + POLL_S)
        doubted = time.monotonic()
        load.wait_turns(TURNS)
        cluster.restart_agent(0)
        cluster.wait_exact(EXACT_S)

    unbelieved = [turn for turn in load.since(doubted)[:TURNS] if turn.line["worker"] == engine.url]
    assert not any(turn.is_exact for turn in unbelieved)
    for router in cluster.routers:
        assert router.log.find("agent_doubted", worker=engine.url, why="no_lease")
        assert router.log.find("agent_believed", worker=engine.url)
    cluster.check_truth()


def test_an_agent_that_is_restarted_within_a_heartbeat_is_another_life_a_second_later(cluster):
    """For routers too: they believe none of what the life before claimed, and what this one says."""
    engine = cluster.engines[0]
    map_ = cluster.map_of(engine)
    before = map_.lease()["life"]
    with cluster.load() as load:
        load.wait_turns(TURNS)
        cluster.agents[0].kill()
        assert map_.redis.call("PEXPIRE", map_.key("lease"), 60_000) == 1  # it is not waited for
        begun = time.monotonic()
        cluster.restart_agent(0)
        wait_until(lambda: map_.lease().get("life", before) != before, "another life speaks")
        spoke_s = time.monotonic() - begun
        life = map_.lease()["life"]
        wait_until(lambda: all(is_exact_in(router, engine, life) for router in cluster.routers),
                   lambda: [cluster.row(router, engine) for router in cluster.routers])
        exact_s = time.monotonic() - begun
        cluster.wait_exact(EXACT_S)
        load.wait_turns(TURNS)

    print(f"spoke {spoke_s:.3f} s after its start, exact in all routers after {exact_s:.3f} s")
    assert exact_s < TRUE_S + SLACK_S, (spoke_s, exact_s)
    cluster.check_truth()


def test_an_agent_that_stands_still_is_not_believed_until_it_goes_on(cluster):
    engine, agent = cluster.engines[0], cluster.agents[0]
    with cluster.load() as load:
        load.wait_turns(TURNS)
        agent.signal(signal.SIGSTOP)
        try:
            cluster.wait_doubt(engine, "no_lease", timeout_s=LEASE_S + POLL_S)
            load.wait_turns(TURNS)
        finally:
            agent.signal(signal.SIGCONT)
        cluster.wait_exact(EXACT_S)
        load.wait_turns(TURNS)

    cluster.check_truth()


def test_of_two_agents_that_claim_one_worker_one_gives_way_and_takes_over(cluster):
    engine, first = cluster.engines[0], cluster.agents[0]
    second = cluster.new_agent(0, state_dir=cluster.state_dir("second"))
    try:
        with cluster.load() as load:
            wait_until(lambda: metric(second, engine, "report_rivalled") == 1, "it gives way")
            load.wait_turns(TURNS)
            assert metric(second, engine, "report_rivalled") == 1
            assert metric(first, engine, "report_rivalled") == 0
            assert second.admin("/ready").status == 503
            assert second.log.wait("lease_of_another")["worker"] == engine.url
            assert cluster.row(cluster.routers[0], engine)["believed"]

            cluster.agents[0] = second
            first.kill()
            wait_until(second.is_ready, "it takes over", LEASE_S + POLL_S)
            cluster.wait_exact(EXACT_S)
            load.wait_turns(TURNS)
        assert metric(second, engine, "report_rivalled") == 0
        second.log.wait("lease_taken")
        cluster.check_truth()
    finally:
        if cluster.agents[0] is not second:
            second.kill()


def test_a_liar_beside_honest_agents_loses_its_share(start_cluster):
    cluster = start_cluster(engine_count=4, agent_count=3)
    liar_engine = cluster.engines[3]
    fingerprint = int(cluster.routers[0].log.wait("start")["fingerprint"], 16)
    liar = MapAgent(cluster.redis, liar_engine, fingerprint)
    try:
        conversations = [Conversation(1000 + number) for number in range(40)]
        for conversation in conversations:
            liar.hold(conversation.ask(), tiers=HBM)  # which its engine has never seen
            conversation.begin()
        for router in cluster.routers:
            wait_until(lambda router=router: cluster.row(router, liar_engine).get("sequence") == 40,
                       "its claims are read")
        for number in range(40):
            conversations[number] = Conversation(1000 + number)  # says the same again

        turns = [cluster.turn(conversation) for conversation in conversations]

        assert all(turn.status == 200 for turn in turns)
        chosen = [turn.line["worker"] == liar_engine.url for turn in turns]
        assert all(chosen[:4]), "it is believed at first"
        assert sum(chosen[20:]) <= 10, f"{sum(chosen[20:])} of 20, though four workers share"
        for router in cluster.routers:
            assert router.log.find("agent_quarantined", worker=liar_engine.url)
            assert {row["doubt"] for row in cluster.rows(router).values()} == {"none", "trust"}
        cluster.check_truth()
    finally:
        liar.fall_silent(is_said=False)


def test_what_a_dead_agent_said_is_no_exactness_of_the_one_that_runs_now(cluster):
    """Nobody heard what the engine dropped meanwhile, and with another state directory nothing shows
    that the one before is dead: routers believe it until its lease has run out."""
    engine = cluster.engines[0]
    with cluster.load():
        wait_until(lambda: cluster.row(cluster.routers[0], engine)["records"] > 100, "it is claimed")
    cluster.settle()
    claimed = cluster.row(cluster.routers[0], engine)["records"]

    cluster.agents[0].kill()
    for number in range(6):
        text = " ".join(f"{number}-{word}" for word in range(1500))
        answer = engine.post(CHAT.path, {"model": MODEL, "max_tokens": 1, "messages": [
            {"role": "user", "content": text}]})
        assert answer.status == 200
    cluster.agents[0] = cluster.new_agent(0, state_dir=cluster.state_dir("another"))
    believed = cluster.row(cluster.routers[0], engine)
    cluster.wait_exact(EXACT_S)

    assert believed["believed"] and believed["records"] == claimed > 0, "it is as it was meant"
    assert cluster.row(cluster.routers[0], engine)["life"] != believed["life"]
    cluster.check_truth()


# --- engines ---

def test_of_an_engine_that_is_killed_and_restarted_nothing_is_promised_a_second_later(cluster):
    engine, agent = cluster.engines[0], cluster.agents[0]
    with cluster.load() as load:
        load.wait_turns(TURNS)
        cluster.restart_engine(0)
        restarted = time.monotonic()
        load.wait_turns(2 * TURNS)
        wait_until(lambda: time.monotonic() > restarted + 2, "two seconds of it")
        for router in cluster.routers:
            router.wait_states("up", 3)
        cluster.wait_exact(EXACT_S)

    late = [turn for turn in load.since(restarted + 1) if turn.line["worker"] == engine.url]
    wrong = [turn.line for turn in late if turn.is_phantom and turn.line["cached_tokens"] == 0]
    assert not wrong, wrong
    assert metric(agent, engine, "events_disconnected_total") >= 1
    assert agent.log.find("events_disconnected", worker=engine.url)
    cluster.check_truth()


def test_a_cache_that_is_emptied_is_promised_no_more(cluster):
    with cluster.load() as load:
        load.wait_turns(TURNS)
    engine = cluster.engines[0]

    assert json.loads(engine.post("/reset_prefix_cache", {}).body) == {"success": True}
    engine.post(CHAT.path, {"model": MODEL, "max_tokens": 1, "messages": [
        {"role": "user", "content": "said in the batch of the next step, as vLLM does"}]})

    wait_until(lambda: metric(cluster.agents[0], engine, "event_clears_total") == 1, "it is heard")
    cluster.map_of(engine).wait_records({})
    cluster.settle()
    assert cluster.row(cluster.routers[0], engine)["records"] == 0
    with cluster.load() as load:
        load.wait_turns(TURNS)
    cluster.check_truth()


def test_events_that_are_dropped_are_asked_for_again(start_cluster):
    cluster = start_cluster(faults=["kv_drop,p=0.01"])
    with cluster.load() as load:
        wait_until(lambda: all(agent.metric_sum("samovar_agent_event_replays_total") >= 2
                               for agent in cluster.agents), "each has missed some", 20)

    for engine, agent in zip(cluster.engines, cluster.agents):
        assert metric(agent, engine, "event_batches_lost_total") == 0
    wait_until(lambda: all(row["whole"] for row in cluster.rows(cluster.routers[0]).values()),
               "what was asked for last has come")
    cluster.check_truth()


def test_a_replay_that_is_refused_costs_hits_and_promises_nothing(start_cluster):
    """Messages that are lost for good: what was claimed is withdrawn, and learned anew."""
    cluster = start_cluster(faults=["kv_no_replay", "kv_drop_hard,p=0.005"])
    with cluster.load() as load:
        wait_until(lambda: all(agent.metric_sum("samovar_agent_event_batches_lost_total") >= 1
                               for agent in cluster.agents), "each has lost some", 20)
        load.wait_turns(TURNS)

    for engine, agent in zip(cluster.engines, cluster.agents):
        assert metric(agent, engine, "event_replays_given_up_total") >= 1
    for turn in cluster.quiet_turns():
        assert not turn.is_phantom or not turn.is_claimed, turn.line


# --- routers ---

def test_a_router_that_is_killed_is_ready_at_once_and_exact_soon(cluster):
    """With a map of 100,000 blocks more than these conversations need."""
    fingerprint = int(cluster.routers[0].log.wait("start")["fingerprint"], 16)
    others = MapAgent(cluster.redis, "http://127.0.0.1:9", fingerprint)
    try:
        for begin in range(0, 100_000, 4000):
            others.say([(hash_ * 0x9e3779b97f4a7c15 % 2**64, 16, HBM)
                        for hash_ in range(begin + 1, begin + 4001)])
        with cluster.load() as load:
            load.wait_turns(TURNS)
            dead = cluster.routers.pop()  # its clients go to the other one, before it dies
            wait_until(lambda: not dead.in_flight(), "it has none of them left")
            dead.kill()
            begun = time.monotonic()
            router = cluster.new_router()
            cluster.routers.append(router)
            wait_until(lambda: router.get("/ready").status == 200, "it is ready")
            ready_s = time.monotonic() - begun
            wait_until(lambda: cluster.rows(router).get(others.name, {}).get("records") == 100_000
                       and not cluster.lacking(), "it knows all")
            exact_s = time.monotonic() - begun
            load.wait_turns(TURNS)

        # A second on a machine of its own; here all of it runs on two cores, under load.
        assert ready_s < 1 and exact_s < 3, (ready_s, exact_s, cluster.rows(router))
        cluster.check_truth()
    finally:
        others.fall_silent(is_said=False)


def test_two_secrets_at_once_serve_both_and_say_it(start_cluster, tmp_path):
    """As in the midst of an upgrade: half of the agents and one of the routers have the new one."""
    cluster = start_cluster(engine_count=4, agent_count=2)
    new_secret = tmp_path / "new-secret"
    new_secret.touch(0o600)
    new_secret.write_text("the next one\n")
    cluster.agents += [cluster.new_agent(number, secret_file=new_secret) for number in (2, 3)]
    new_router = cluster.new_router(secret_file=new_secret)
    old, new = cluster.engines[:2], cluster.engines[2:]
    for agent in cluster.agents:
        agent.wait_ready()
    try:
        cluster.routers[1].stop()
        cluster.routers[1] = new_router
        new_router.wait_states("up", 4)
        with cluster.load() as load:
            for router, own, others in ((cluster.routers[0], old, new), (new_router, new, old)):
                wait_until(lambda: all(cluster.row(router, engine).get("believed") for engine in own)
                           and all(cluster.row(router, engine).get("doubt") == "fingerprint"
                                   for engine in others), lambda: cluster.rows(router))
            load.wait_turns(2 * TURNS)

        served = Counter((turn.router, turn.line["worker"]) for turn in load.turns)
        for router in cluster.routers:
            assert all(served[router, engine.url] for engine in cluster.engines), served
            assert any(turn.is_exact for turn in load.turns if turn.router is router)
            assert router.metric_sum("samovar_router_map_strangers") == 2
        for router, others in ((cluster.routers[0], new), (new_router, old)):
            told = router.log.find("agent_of_other_fingerprint")
            assert {line["worker"] for line in told} == {engine.url for engine in others}
    finally:
        if new_router not in cluster.routers:
            new_router.kill()


# --- many at once ---

def test_fifty_requests_with_one_new_long_prefix_over_two_routers_do_not_scatter(cluster):
    prefix = "".join(f"{number:08x} " for number in range(3600))  # 8,000 tokens and more
    lines = []
    gate = threading.Barrier(50)

    def ask(number):
        gate.wait()
        router = cluster.routers[number % 2]
        answer = router.post(CHAT, CHAT.request(f"{prefix} question {number}", max_tokens=4))
        assert answer.status == 200
        lines.append(router.request_line(answer))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(lines) == 50
    read = Counter(line["worker"] for line in lines
                   if line["cached_tokens"] < line["prompt_tokens"] / 2)
    assert sum(read.values()) <= 3, f"the prefix was read {read} times"


def test_three_routers_and_a_burst_with_agents(start_cluster):
    cluster = start_cluster(engine_count=6, router_count=3)
    for router in cluster.routers:
        wait_until(lambda router=router: router.metrics()["samovar_router_others"] == 2, "others")
    clients = [cluster.routers[number % 3].connect() for number in range(150)]

    for number, client in enumerate(clients):
        client.post(CHAT, CHAT.request(f"{number} " * 100, max_tokens=4))
    lines = []
    for number, client in enumerate(clients):
        answer = client.answer()
        answer.read_all()
        assert answer.status == 200
        lines.append(cluster.routers[number % 3].request_line(answer))

    taken = Counter(line["worker"] for line in lines)
    assert max(taken.values()) / (150 / 6) <= 1.5, taken
