# SPDX-License-Identifier: Apache-2.0
"""A router that reads the map: what agents say is exact, what stops being said is a guess."""

import json
import re
import signal
import subprocess
import threading
import time
from collections import Counter

import pytest

from peers.map_agent import EXPLAIN_SECRET, MapAgent, blocks_of
from peers.openai_api import CHAT
from peers.process import REPO, program, wait_until
from peers.redis_server import RedisClient, RedisServer
from peers.residency_wire import CPU, HBM, PREFETCH, SSD, unpack_notes

PREFIX = "You are a careful assistant who knows everything about samovars. " * 60


def prompt(number, size=4000):
    text = f"Question {number} about the samovar of house {number}. "
    return CHAT.request((text * (size // len(text) + 1))[:size])


@pytest.fixture
def redis():
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def secret_file(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(EXPLAIN_SECRET)
    return path


@pytest.fixture
def agents():
    """Those that are still speaking fall silent at the end."""
    made = []
    yield made
    for agent in made:
        agent.fall_silent(is_said=False)


class World:
    """Two workers that answer at once, a router that reads the map, and agents as they are made."""

    def __init__(self, router, fleet, redis, agents):
        self.router, self.fleet, self.redis, self.agents = router, fleet, redis, agents
        self.fingerprint = int(router.log.wait("start")["fingerprint"], 16)
        self.failures = 0

    def agent(self, worker, **how):
        self.agents.append(MapAgent(self.redis, worker, self.fingerprint, **how))
        return self.agents[-1]

    def row(self, worker):
        url = getattr(worker, "url", worker)
        rows = self.router.admin("/residency").json()["workers"]
        return next((row for row in rows if row["url"] == url), None)

    def wait(self, worker, timeout_s=None, **fields):
        """Until the router says so of worker."""
        def holds():
            row = self.row(worker)
            return row is not None and all(row[key] == value for key, value in fields.items())
        wait_until(holds, lambda: f"{fields}: {self.row(worker)}", timeout_s)

    def ask(self, body):
        """One request, which must succeed; its log line."""
        answer = self.router.post(CHAT, body)
        assert answer.status == 200, answer.read_all()
        return self.router.request_line(answer)


def answer_with(cached_tokens=None):
    """As an engine that reads four bytes a token. cached_tokens: what it reports; None: nothing."""
    def handle(request):
        tokens = len(json.loads(request.body())["messages"][0]["content"]) // 4 + 10
        usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
        if cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": min(cached_tokens, tokens - 1)}
        request.answer(CHAT.answer("yes", usage))
    return handle


@pytest.fixture
def start_world(start_router, start_fleet, redis, secret_file, agents):
    def start(count=2, *flags, cached_tokens=None, workers=None):
        fleet = start_fleet(count)
        fleet.handle_with(answer_with(cached_tokens))
        router = start_router(fleet if workers is None else workers, "--redis", redis.url,
                              "--secret-file", secret_file, *flags)
        return World(router, fleet, redis, agents)
    return start


@pytest.fixture
def world(start_world):
    return start_world()


USERS_ACL = REPO / "docker" / "users.acl"


def password_of(user):
    """As the file of an example says."""
    return re.search(rf"^user {user} on >(\S+)", USERS_ACL.read_text(), re.MULTILINE)[1]


def test_a_router_needs_no_more_than_its_user_may(start_router, start_fleet, secret_file, agents,
                                                  tmp_path):
    """Of docker/users.acl: it reads all, and says nothing that is refused."""
    redis = RedisServer(users_acl=USERS_ACL, password=password_of("admin"))
    redis.client = lambda: RedisClient(redis.address, "admin", password_of("admin"))
    redis.call = lambda *words: _call(redis.client(), words)
    try:
        fleet = start_fleet(2)
        fleet.handle_with(answer_with())
        router = start_router(fleet, "--redis", redis.url_of("router"), "--secret-file", secret_file,
                              "--redis-password-file", redis.password_file(password_of("router")))
        world = World(router, fleet, redis, agents)
        blocks = world.agent(fleet[1]).hold(prompt(1))
        world.wait(fleet[1], believed=True, records=len(blocks))
        line = world.ask(prompt(1))
        refused = [entry for entry in redis.call("ACL", "LOG") if b"router" in entry]
    finally:
        redis.stop()

    assert (line["worker"], line["rung"]) == (fleet[1].url, "exact")
    assert not refused, refused


def _call(client, words):
    try:
        return client.call(*words)
    finally:
        client.close()


# --- exact ---


def test_what_agents_said_before_the_router_started_is_exact(start_router, start_fleet, redis,
                                                             secret_file, agents):
    """A warm start: pages, and the changes since."""
    fleet = start_fleet(3)
    fleet.handle_with(answer_with())
    first = start_router(fleet, "--redis", redis.url, "--secret-file", secret_file)
    agent = World(first, fleet, redis, agents).agent(fleet[2])
    agent.say([(hash_, 10, HBM) for hash_ in range(1, 9001)])
    blocks = agent.hold(prompt(1))

    world = World(start_router(fleet, "--redis", redis.url, "--secret-file", secret_file), fleet,
                  redis, agents)
    world.wait(fleet[2], believed=True, records=9000 + len(blocks), state="follow")
    line = world.ask(prompt(1))

    assert line["worker"] == fleet[2].url
    assert line["rung"] == "exact"
    assert line["claimed_blocks"] == line["matched_blocks"] == line["prompt_blocks"] == len(blocks)
    assert world.row(fleet[2])["breaks_total"] == 0


def test_a_change_is_seen_at_once(world):
    agent = world.agent(world.fleet[1])
    world.wait(world.fleet[1], believed=True)
    for number in range(5):
        blocks = agent.hold(prompt(number))
        world.wait(world.fleet[1], sequence=2 * number + 1)
        assert world.ask(prompt(number))["claimed_blocks"] == len(blocks)

        agent.drop(blocks)
        world.wait(world.fleet[1], sequence=2 * number + 2, records=0)
    assert world.row(world.fleet[1])["breaks_total"] == 0


def test_the_prediction_is_in_the_agents_tokens(start_world):
    world = start_world(cached_tokens=1000)
    agent = world.agent(world.fleet[0])
    blocks = agent.hold(prompt(1, 8000), count=16, tokens_per_byte=0.24)
    world.wait(world.fleet[0], believed=True, records=16)

    line = world.ask(prompt(1, 8000))

    assert line["predicted_cached_tokens"] == int(blocks[-1][1] * 0.24)
    assert (line["claimed_blocks"], line["matched_blocks"]) == (16, 16)


def test_what_was_just_sent_continues_what_is_claimed(world):
    agent = world.agent(world.fleet[0])
    agent.hold(prompt(1), count=6)
    world.wait(world.fleet[0], believed=True, records=6)
    first = world.ask(prompt(1))
    second = world.ask(prompt(1))

    assert (first["claimed_blocks"], first["matched_blocks"]) == (6, 6)
    assert (second["claimed_blocks"], second["matched_blocks"]) == (6, second["prompt_blocks"])
    assert second["rung"] == "exact"


def test_a_worker_whose_agent_holds_more_in_slower_memory_is_found_too(world):
    agent = world.agent(world.fleet[1])
    agent.hold(prompt(1), tiers=CPU)
    world.wait(world.fleet[1], believed=True)

    assert world.ask(prompt(1))["worker"] == world.fleet[1].url
    row = world.row(world.fleet[1])
    assert (row["hbm"], row["cpu"]) == (0, row["records"])


COSTS = {"bytes_per_token": 10**6, "cpu_bytes_per_s": 10**11, "ssd_bytes_per_s": 10**10,
         "cpu_start_us": 2500, "ssd_start_us": 4500, "prefill_tokens_per_s": 500}


def hold_in_all_tiers(agent, body):
    """The first half in HBM, a quarter in CPU memory, a quarter on SSD; the tokens up to the end of
    each."""
    blocks = agent.hold(body, tiers=HBM)
    tokens = [int(end * 0.25) for _, end in blocks]
    half, three = len(blocks) // 2, len(blocks) * 3 // 4
    agent.say([(blocks[i][0], tokens[i], HBM | CPU if i < half else CPU | SSD if i < three else SSD)
               for i in range(len(blocks))])
    return tokens[half - 1], tokens[three - 1], tokens[-1]


def test_what_has_to_be_moved_is_told_apart_and_priced(world):
    """At costs that its agent says: the SSD is the slower one, and both are read side by side."""
    agent = world.agent(world.fleet[1], **COSTS)
    half, three, whole = hold_in_all_tiers(agent, prompt(1, 8000))
    world.wait(world.fleet[1], believed=True, sequence=2)

    line = world.ask(prompt(1, 8000))

    hbm, cpu, ssd = half, three - half, whole - three
    assert (line["worker"], line["rung"]) == (world.fleet[1].url, "exact")
    assert (line["matched_hbm_tokens"], line["matched_cpu_tokens"],
            line["matched_ssd_tokens"]) == (hbm, cpu, ssd)
    assert line["claimed_tokens"] == line["predicted_cached_tokens"] == whole
    assert "guessed_tokens" not in line
    assert line["move_ms"] == pytest.approx(4.5 + ssd / 10, abs=0.1)
    metrics = world.router.metrics()
    assert [metrics[f'samovar_router_matched_tokens_total{{tier="{tier}"}}']
            for tier in ("hbm", "cpu", "ssd")] == [hbm, cpu, ssd]
    assert world.router.metric_sum("samovar_router_matched_tokens_claimed_total") == whole
    assert world.router.metric_sum("samovar_router_predicted_move_seconds_count") == 1
    told = world.row(world.fleet[1])["agent"]
    assert {key: told[key] for key in COSTS} == COSTS
    assert re.search(rf"^{re.escape(world.fleet[1].url)} +1000000 +2\.5 +100000\.0 +4\.5 +10000\.0 "
                     r"+0\.5$", shown(world), re.MULTILINE)


def explained(body, worker):
    """The row of a worker, given in the words of `samovar explain`."""
    text = subprocess.run([program("samovar"), "explain", "-", "--worker", worker], input=body,
                          check=True, capture_output=True).stdout.decode()
    head, row = (line.split() for line in text[text.index("RANK"):].splitlines())
    return dict(zip(head, row, strict=True))


def test_the_same_facts_by_hand_are_the_same_sum(start_world):
    """What a router learns from the map, and what an operator tells `samovar explain`."""
    world = start_world(1)
    agent = world.agent(world.fleet[0], **COSTS)
    body = prompt(1, 8000)
    hold_in_all_tiers(agent, body)
    world.wait(world.fleet[0], believed=True, sequence=2)
    count = len(agent.records)
    half, three = count // 2, count * 3 // 4

    line = world.ask(body)
    row = explained(body, f"a,matched={count},claimed={count},cpu={three - half},"
                    f"ssd={count - three},token-bytes=1e6,cpu-rate=1e11,ssd-rate=1e10,"
                    "cpu-start=2.5,ssd-start=4.5,rate=0.5")

    # An agent counts whole tokens, of which each costs 0.1 ms.
    assert float(row["MOVE"]) == pytest.approx(line["move_ms"], abs=0.2)
    assert float(row["TOTAL"]) == pytest.approx(line["predicted_ttft_ms"], abs=1)


def test_a_measured_prefill_rate_is_believed_of_the_others_too(start_world):
    """400 prompt tokens at 500 a second; by default it would be 50 ms."""
    world = start_world(2)
    agent = world.agent(world.fleet[0], **COSTS)
    agent.hold(prompt(2, 400))
    world.wait(world.fleet[0], believed=True)

    lines = [world.ask(prompt(number, 1600)) for number in range(10, 14)]

    assert {line["worker"] for line in lines} == {worker.url for worker in world.fleet}
    assert all(line["predicted_ttft_ms"] > 700 for line in lines)


def hints_to(agent):
    """What its stream of notes asks to bring nearer."""
    entries = agent.redis.call("XRANGE", agent.key("in"), "-", "+")
    notes = [note for _, fields in entries for note in unpack_notes(fields[1], agent.fingerprint)]
    return [note for note in notes if note.kind == PREFETCH]


def hints(world):
    """How many of each outcome."""
    rows = re.findall(r'^samovar_router_prefetch_hints_total\{outcome="(\w+)"\} (\d+)$',
                      world.router.admin("/metrics").read_all().decode(), re.MULTILINE)
    return {outcome: int(count) for outcome, count in rows if int(count) > 0}


def test_blocks_on_ssd_only_are_asked_for_once_with_a_deadline(world):
    agent = world.agent(world.fleet[1])
    blocks = agent.hold(prompt(1, 8000), tiers=SSD)
    near = [(hash_, int(end * 0.25), HBM if i < 4 else CPU | SSD)
            for i, (hash_, end) in enumerate(blocks[:10])]
    agent.say(near)
    world.wait(world.fleet[1], believed=True, sequence=2)

    line = world.ask(prompt(1, 8000))
    wait_until(lambda: hints_to(agent), "the agent is told")

    assert line["matched_ssd_tokens"] > 0
    hint, = hints_to(agent)
    assert [hash_ for hash_, _ in hint.blocks] == [hash_ for hash_, _ in blocks[10:]]
    assert [size for _, size in hint.blocks] == [
        blocks[i][1] - blocks[i - 1][1] for i in range(10, len(blocks))]
    assert hint.start == blocks[9][0]
    assert 200 <= hint.attempt <= 60000, "its deadline"
    assert hints(world) == {"sent": 1}
    assert world.router.metric_sum("samovar_router_prefetch_hint_blocks_total") == len(blocks) - 10


def test_nothing_is_asked_for_where_nothing_is_on_ssd_only(world):
    agent = world.agent(world.fleet[1])
    agent.hold(prompt(1), tiers=CPU | SSD)
    world.wait(world.fleet[1], believed=True)

    world.ask(prompt(1))
    world.ask(prompt(2))

    assert hints(world) == {}


def refusing_usage(request):
    """As an engine that takes a stream only without our stream_options: each is tried twice."""
    if b"stream_options" in request.body():
        request.answer(b'{"error":{"message":"unknown field stream_options"}}', 400)
    else:
        request.stream(CHAT.stream())


def ask_twice(world, text):
    """One request that the same worker is sent twice; its log line."""
    world.fleet.handle_with(refusing_usage)
    answer = world.router.post(CHAT, CHAT.request(text, stream=True))
    assert answer.read_all() == b"".join(CHAT.stream())
    line = world.router.request_line(answer)
    assert line["attempts"] == 2
    return line


def test_a_request_that_goes_to_the_same_worker_again_asks_once(world):
    agent = world.agent(world.fleet[1])
    agent.hold(CHAT.request(PREFIX, stream=True), tiers=SSD)
    world.wait(world.fleet[1], believed=True)

    assert ask_twice(world, PREFIX)["worker"] == world.fleet[1].url

    wait_until(lambda: hints_to(agent), "the agent is told")
    assert hints(world) == {"sent": 1, "repeated": 1}
    assert len(hints_to(agent)) == 1


def test_a_hint_that_could_not_leave_was_not_sent(world):
    agent = world.agent(world.fleet[1])
    agent.hold(CHAT.request(PREFIX, stream=True), tiers=SSD)
    world.wait(world.fleet[1], believed=True)
    world.redis.kill()
    world.router.log.wait("map_away")

    assert ask_twice(world, PREFIX)["matched_ssd_tokens"] > 0, "believed for a while"

    assert hints(world) == {"dropped": 2}


def test_an_agent_that_fell_silent_is_asked_for_nothing(world):
    agent = world.agent(world.fleet[1])
    agent.hold(prompt(1), tiers=SSD)
    world.wait(world.fleet[1], believed=True)
    agent.fall_silent()
    world.wait(world.fleet[1], doubt="no_lease")

    assert world.ask(prompt(1))["matched_ssd_tokens"] > 0, "the best guess there is"

    assert hints(world) == {"no_agent": 1} and hints_to(agent) == []


def test_hints_can_be_switched_off(start_world):
    world = start_world(2, "--prefetch-hints=false")
    agent = world.agent(world.fleet[1])
    agent.hold(prompt(1), tiers=SSD)
    world.wait(world.fleet[1], believed=True)

    assert world.ask(prompt(1))["matched_ssd_tokens"] > 0

    assert hints(world) == {} and hints_to(agent) == []


def test_what_is_only_remembered_is_said_to_be_guessed(world):
    world.ask(prompt(1))
    line = world.ask(prompt(1))

    assert line["rung"] == "guess" and line["guessed_tokens"] == line["predicted_cached_tokens"] > 0
    assert "claimed_tokens" not in line and "matched_hbm_tokens" not in line
    assert world.router.metric_sum("samovar_router_matched_tokens_guessed_total") > 0


def test_an_offer_from_slower_memory_that_is_not_taken_up_is_no_lie(start_world):
    """The engine may go without what would have to be moved: nobody is blamed for it."""
    world = start_world(1, cached_tokens=0)
    agent = world.agent(world.fleet[0])
    for number in range(30):
        agent.hold(prompt(number), tiers=CPU)
    world.wait(world.fleet[0], believed=True, sequence=30)

    for number in range(30):
        assert world.ask(prompt(number))["rung"] == "exact"

    assert world.row(world.fleet[0])["quarantines_total"] == 0


def test_fifty_simultaneous_requests_with_one_new_prefix_do_not_scatter(start_world):
    """All before the first of them has its first token: they wait behind it, where it is made."""
    world = start_world(8)
    for worker in world.fleet:
        world.agent(worker)
        world.wait(worker, believed=True)
    everybody = threading.Barrier(50)
    answer = answer_with()

    def handle(request):
        if request.target == CHAT.path:
            everybody.wait(30)
        answer(request)
    world.fleet.handle_with(handle)
    clients = [world.router.connect() for _ in range(50)]

    for number, client in enumerate(clients):
        client.post(CHAT, CHAT.request(PREFIX * 8 + f"Question {number}."))
    chosen = Counter()
    for client in clients:
        got = client.answer()
        got.read_all()
        assert got.status == 200
        chosen[got.get("x-samovar-worker")] += 1

    assert len(chosen) <= 2, chosen


def test_more_workers_than_one_connection_waits_for_are_followed(start_world):
    world = start_world(1, workers=())
    agents = [MapAgent(world.redis, f"http://127.0.0.1:{2000 + number}", world.fingerprint,
                       has_lease=False) for number in range(70)]

    def are_all(records):
        for agent in agents:
            agent.renew()
        rows = world.router.admin("/residency").json()["workers"]
        return len(rows) == len(agents) and all(
            row["believed"] and row["records"] == records for row in rows)

    for number in range(1, 4):
        for agent in agents:
            agent.say([(number, 5, HBM)])
        wait_until(lambda number=number: are_all(number), lambda: world.row(agents[-1].name))
    found = world.router.admin("/residency").json()
    assert found["map"]["followed"] == 70
    assert sum(row["breaks_total"] for row in found["workers"]) == 0


# --- what does not fit is read anew ---


def test_a_gap_is_read_anew(world):
    agent = world.agent(world.fleet[0])
    agent.hold(prompt(1))
    world.wait(world.fleet[0], believed=True, sequence=1)

    agent.say([(77, 5, HBM)], skips_change=True)
    agent.say([(78, 5, HBM)])

    world.wait(world.fleet[0], believed=True, sequence=3, last_break="gap")
    assert world.row(world.fleet[0])["records"] == len(agent.records)
    assert world.ask(prompt(1))["rung"] == "exact"


def test_a_digest_that_differs_is_read_anew_and_is_a_guess_meanwhile(world):
    agent = world.agent(world.fleet[0])
    blocks = agent.hold(prompt(1))
    world.wait(world.fleet[0], believed=True, sequence=1)

    agent.say([(77, 5, HBM)], digest=1)
    world.wait(world.fleet[0], last_break="digest")
    line = world.ask(prompt(1))
    assert line["worker"] == world.fleet[0].url
    assert (line["rung"], line["claimed_blocks"]) == ("guess", len(blocks))

    agent.say([(78, 5, HBM)])  # with a good one again
    world.wait(world.fleet[0], believed=True, sequence=3)
    assert world.router.metric_sum("samovar_router_map_breaks_total") >= 1


def test_an_entry_that_is_none_breaks_only_its_own_worker(world):
    bad, well = (world.agent(worker) for worker in world.fleet)
    well.hold(prompt(1))
    for worker in world.fleet:
        world.wait(worker, believed=True)

    world.redis.call("XADD", bad.key(f"{bad.life}:out"), "1-1", "b", "nonsense")
    world.wait(world.fleet[0], believed=False, last_break="unreadable")
    world.redis.call("DEL", bad.key(f"{bad.life}:out"))
    world.redis.call("SET", bad.key(f"{bad.life}:out"), "no stream")

    assert world.ask(prompt(1))["rung"] == "exact"
    well.hold(prompt(2))
    world.wait(world.fleet[1], believed=True, sequence=2)


def test_another_life_begins_with_nothing(world):
    agent = world.agent(world.fleet[0])
    agent.hold(prompt(1))
    world.wait(world.fleet[0], believed=True)

    agent.begin_anew(epoch=7)
    world.wait(world.fleet[0], believed=True, records=0)
    assert world.ask(prompt(1)).get("claimed_blocks", 0) == 0

    agent.hold(prompt(2))
    agent.begin_anew()
    world.wait(world.fleet[0], believed=True, records=0, life=agent.life)


def test_two_agents_that_claim_one_worker_are_not_believed(world):
    one = world.agent(world.fleet[0])
    one.hold(prompt(1))
    world.wait(world.fleet[0], believed=True)

    other = world.agent(world.fleet[0], epoch=99)
    world.wait(world.fleet[0], last_break="rivals", timeout_s=30)
    assert world.ask(prompt(1))["status"] == 200

    other.fall_silent(is_said=False)
    world.wait(world.fleet[0], believed=True, life=one.life, timeout_s=30)


# --- who is believed ---


def test_without_a_lease_what_it_claims_is_a_guess_and_exact_again_when_it_is_back(world):
    agent = world.agent(world.fleet[0])
    blocks = agent.hold(prompt(1))
    world.wait(world.fleet[0], believed=True)

    agent.fall_silent()
    world.wait(world.fleet[0], doubt="no_lease")
    line = world.ask(prompt(1))
    assert (line["worker"], line["rung"]) == (world.fleet[0].url, "guess")
    assert line["claimed_blocks"] == len(blocks)
    doubted = world.router.metrics()['samovar_router_choices_doubted_total{reason="no_lease"}']
    assert doubted == 1

    agent.speak()
    world.wait(world.fleet[0], believed=True)
    assert world.ask(prompt(1))["rung"] == "exact"
    assert world.row(world.fleet[0])["breaks_total"] == 0


def test_what_was_sent_while_its_agent_was_doubted_outlives_what_that_claimed(world):
    agent = world.agent(world.fleet[0])
    agent.hold(prompt(1))
    world.wait(world.fleet[0], believed=True)
    agent.fall_silent()
    world.wait(world.fleet[0], doubt="no_lease")
    assert world.ask(prompt(1))["rung"] == "guess"

    agent.begin_anew(epoch=9)  # of which nobody can say what it holds but we
    agent.speak()
    world.wait(world.fleet[0], believed=True, records=0)
    line = world.ask(prompt(1))

    assert (line["worker"], line["rung"]) == (world.fleet[0].url, "guess")
    assert line["matched_blocks"] == line["prompt_blocks"]


def test_an_agent_that_dies_is_not_believed_beyond_its_lease(world):
    agent = world.agent(world.fleet[0])
    world.wait(world.fleet[0], believed=True)

    agent.fall_silent(is_said=False)

    world.wait(world.fleet[0], doubt="no_lease", timeout_s=3 + 1)


def test_a_liar_is_quarantined_and_loses_its_share(start_world):
    """It claims every prompt, and its engine has none of them."""
    world = start_world(4, cached_tokens=0)
    liar = world.agent(world.fleet[0])
    for number in range(60):
        liar.hold(prompt(number))
    world.wait(world.fleet[0], believed=True, sequence=60)

    lines = [world.ask(prompt(number)) for number in range(60)]

    lied = [line["worker"] == world.fleet[0].url for line in lines]
    assert all(lied[:4]), "it is believed at first"
    assert sum(lied[10:]) <= 25, f"four workers share: {sum(lied[10:])} of 50"
    row = world.row(world.fleet[0])
    assert (row["doubt"], row["quarantines_total"]) == ("trust", 1)
    assert world.router.log.wait("agent_quarantined")["worker"] == world.fleet[0].url
    assert world.router.metric_sum("samovar_router_map_quarantines_total") == 1


def test_an_honest_agent_keeps_its_trust(start_world):
    world = start_world(2, cached_tokens=10**6)
    agent = world.agent(world.fleet[0])
    for number in range(20):
        agent.hold(prompt(number))
    world.wait(world.fleet[0], believed=True, sequence=20)
    for number in range(20):
        world.ask(prompt(number))
    assert world.row(world.fleet[0])["missing"] == 0


def test_who_claims_more_than_its_cache_can_hold_is_not_believed(world):
    agent = world.agent(world.fleet[0], cache_tokens=5000)
    agent.say([(hash_, 5, HBM) for hash_ in range(1, 4001)])
    world.wait(world.fleet[0], believed=True, records=4000)

    agent.say([(hash_, 5, HBM) for hash_ in range(4001, 6001)])
    world.wait(world.fleet[0], doubt="capacity", records=0)
    line = world.ask(prompt(1))
    assert line.get("claimed_blocks", 0) == 0


def test_another_fingerprint_is_ignored_and_said_loudly_once(world):
    world.fingerprint ^= 1
    agent = world.agent(world.fleet[0])
    agent.hold(prompt(1))
    world.wait(world.fleet[0], doubt="fingerprint")
    assert world.ask(prompt(1)).get("claimed_blocks", 0) == 0
    wait_until(lambda: world.router.metric_sum("samovar_router_map_strangers") == 1, "it is counted")
    time.sleep(1.2)  # two more polls
    assert len(world.router.log.find("agent_of_other_fingerprint")) == 1


# --- Redis comes and goes ---


def ask_all_along(world, seconds):
    """Requests one after the other, each of which succeeds; the 99th percentile of what the router
    itself added to them, in seconds."""
    added = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        added.append(world.ask(prompt(len(added) % 20))["overhead_us"] / 1e6)
    return sorted(added)[len(added) * 99 // 100]


def held_world(world):
    agents = [world.agent(worker) for worker in world.fleet]
    for number in range(20):
        agents[number % len(agents)].hold(prompt(number))
    for worker, agent in zip(world.fleet, agents, strict=True):
        world.wait(worker, believed=True, sequence=agent.sequence)
    return agents


def test_redis_killed_is_believed_for_three_seconds_and_then_a_guess(world):
    held_world(world)
    world.redis.kill()
    world.router.log.wait("map_away")

    assert world.ask(prompt(1))["rung"] == "exact", "what was true a moment ago"
    ask_all_along(world, 4)
    line = world.ask(prompt(1))
    assert (line["rung"], line["worker"]) == ("guess", world.fleet[1].url)
    assert world.row(world.fleet[1])["doubt"] == "no_map"


@pytest.mark.parametrize("is_restarted", [True, False], ids=["restarted", "flushed"])
def test_a_redis_that_lost_everything_is_filled_and_read_again(world, is_restarted):
    agents = held_world(world)
    lives = [agent.life for agent in agents]
    if is_restarted:
        world.redis.restart()
    else:
        world.redis.call("FLUSHALL")
    ask_all_along(world, 1)
    for agent in agents:
        agent.republish()

    for worker, agent in zip(world.fleet, agents, strict=True):
        world.wait(worker, believed=True, records=len(agent.records), life=agent.life)
    assert [agent.life for agent in agents] != lives
    assert world.ask(prompt(3))["rung"] == "exact"


def test_a_redis_that_stops_holds_up_nobody(world):
    agents = held_world(world)
    usual = ask_all_along(world, 2)
    world.redis.pause()
    for agent in agents:
        agent.fall_silent(is_said=False)
    stopped = ask_all_along(world, 5)
    world.redis.resume()

    assert stopped < usual + 0.005, "no request waits for it"
    assert world.row(world.fleet[0])["believed"] is False
    for agent in agents:
        agent.speak()
    for worker in world.fleet:
        world.wait(worker, believed=True, timeout_s=15)


def test_a_redis_that_answers_late_is_believed_and_holds_up_nobody(world):
    """Each answer half a second late: stopped and continued by turns."""
    held_world(world)
    usual = ask_all_along(world, 2)
    is_over = threading.Event()

    def slow_down():
        while not is_over.is_set():
            world.redis.process.signal(signal.SIGSTOP)
            time.sleep(0.5)
            world.redis.process.signal(signal.SIGCONT)
            time.sleep(0.02)

    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        slow = ask_all_along(world, 5)
        rung = world.ask(prompt(1))["rung"]
    finally:
        is_over.set()
        thread.join()
    assert rung == "exact"
    assert slow < usual + 0.005, "no request waits for it"


def test_a_redis_that_refuses_is_a_guess_until_it_does_not(world):
    """As a server does that has become somebody's replica, or loads its data."""
    held_world(world)
    world.redis.call("CONFIG", "SET", "replica-serve-stale-data", "no")
    world.redis.call("REPLICAOF", "127.0.0.1", "1")  # MASTERDOWN to every read
    ask_all_along(world, 4)
    assert world.ask(prompt(1))["rung"] == "guess"

    world.redis.call("REPLICAOF", "NO", "ONE")
    for worker in world.fleet:
        world.wait(worker, believed=True, timeout_s=15)
    assert world.ask(prompt(1))["rung"] == "exact"


def test_a_read_only_redis_is_read(world):
    held_world(world)
    world.redis.call("REPLICAOF", "127.0.0.1", "1")  # READONLY to every write; reads are served
    time.sleep(1)
    assert world.ask(prompt(1))["rung"] == "exact"


# --- what operators see ---


def shown(world, *words):
    return subprocess.run([program("samovar"), "show", "residency", "--admin",
                           "http://%s:%d" % world.router.admin_address, *words], check=True,
                          capture_output=True, text=True).stdout


def test_who_is_believed_is_a_table(world):
    agent = world.agent(world.fleet[0])
    agent.hold(prompt(1), count=3)
    world.wait(world.fleet[0], believed=True, records=3)
    wait_until(lambda: world.row(world.fleet[0])["agent"], "its meta is read")
    wait_until(lambda: world.router.admin("/residency").json()["map"]["listed"] == 1,
               "the list of workers is read")

    head, *rows = shown(world).splitlines()

    cells = [dict(zip(head.split(), row.split(), strict=False)) for row in rows[:2]]
    by_url = {row["WORKER"]: row for row in cells}
    known = by_url[world.fleet[0].url]
    assert (known["NODE"], known["BELIEVED"], known["STATE"]) == ("test", "yes", "follow")
    assert (known["RECORDS"], known["HBM"], known["SSD"], known["LAST"]) == ("3", "3", "0", "-")
    assert by_url[world.fleet[1].url]["BELIEVED"] == "no_agent"
    assert "map: reached, 1 workers listed" in rows
    assert json.loads(shown(world, "--json"))["map"]["reached"] is True


def test_without_a_map_there_is_nothing_but_guesses(start_router, start_fleet):
    fleet = start_fleet(1)
    router = start_router(fleet)
    found = router.admin("/residency").json()
    assert found["map"] is None
    assert [row["doubt"] for row in found["workers"]] == ["no_map"]
    assert not [key for key in router.metrics() if "_map_" in key]


# --- discovery ---


def test_workers_that_agents_name_join_and_leave(start_world):
    world = start_world(2, "--redis-leave-ms", 1000, "--probe-interval-ms", 50, workers=())
    assert world.router.workers() == []
    agent = world.agent(world.fleet[0])
    wait_until(lambda: world.router.workers(), "it joins")
    world.wait(world.fleet[0], believed=True)
    wait_until(lambda: world.router.worker(world.fleet[0])["state"] == "up", "it is up")
    assert world.ask(prompt(1))["worker"] == world.fleet[0].url

    agent.fall_silent()
    time.sleep(1.5)
    assert world.ask(prompt(1))["status"] == 200, "no agent's death takes a worker out of service"

    world.fleet[0].kill()
    wait_until(lambda: world.router.workers() == [], "both are gone, and so is the worker")
    world.fleet[0].start_listening()
    agent.speak()
    wait_until(lambda: world.router.workers(), "and they come back")


def test_a_worker_of_both_is_one(start_world):
    world = start_world(1)
    world.agent(world.fleet[0])
    world.wait(world.fleet[0], believed=True)
    assert len(world.router.workers()) == 1


@pytest.mark.parametrize("name", ["http://127.0.0.1:1/path", "http://LOCALHOST:1", "ftp://a:1", "x",
                                  "http://127.0.0.1:1#64", "dns://localhost:1"])
def test_a_name_that_is_no_workers_is_refused_and_said(start_world, name):
    world = start_world(1)
    world.agent(name)
    world.router.log.wait("agent_refused", worker=name)
    assert len(world.router.workers()) == 1


def test_a_rank_is_named_by_its_number(start_world):
    world = start_world(1, workers=())
    world.agent(world.fleet[0].url + "#3")
    wait_until(lambda: world.router.workers(), "it joins")
    wait_until(lambda: world.router.workers()[0]["state"] == "up", "it is up")
    seen = []
    answer = answer_with()
    world.fleet[0].handler = lambda request: (
        seen.append((request.target, request.get("x-data-parallel-rank"))), answer(request))
    world.ask(prompt(1))
    assert (CHAT.path, "3") in seen


def test_a_map_in_which_nobody_is_named_is_told(start_world):
    world = start_world(1)
    world.router.log.wait("map_empty", timeout_s=15)


def test_the_secret_is_needed_and_nobody_else_may_write_it(start_router, redis, secret_file,
                                                          tmp_path):
    with pytest.raises(AssertionError, match="needs a secret-file"):
        start_router((), "--redis", redis.url)
    secret_file.chmod(0o602)
    with pytest.raises(AssertionError, match="others may write it"):
        start_router((), "--redis", redis.url, "--secret-file", secret_file)


def test_hashes_of_explain_are_a_routers_with_its_secret(world):
    """What all of these tests stand on."""
    agent = world.agent(world.fleet[0])
    assert len(agent.hold(prompt(1))) == len(blocks_of(prompt(1)))
    world.wait(world.fleet[0], believed=True)
    assert world.ask(prompt(1))["claimed_blocks"] == len(blocks_of(prompt(1)))
