# SPDX-License-Identifier: Apache-2.0
"""
All of it at once, as an operator runs it: a real Redis, engines that publish their caches, an agent
beside each, routers that share the map; and conversations through the routers that want more cache
than the engines have. What a test asks of it is what the routers' own log lines say.
"""

import contextlib
import json
import random
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from peers.agent import Agent
from peers.http1 import read_answer, request_bytes
from peers.map_agent import EXPLAIN_SECRET, blocks_of
from peers.openai_api import CHAT, MODEL
from peers.process import REPO, wait_until
from peers.redis_server import RedisServer
from peers.residency_map import ResidencyMap
from peers.residency_wire import lease_words, worker_key
from peers.router import Router
from peers.sim import Sim
from peers.wire import HOST, Wire

ENGINE_BLOCK_TOKENS = 16
ENGINE_BLOCKS = 1024  # some seconds of new tokens under load: then they are evicted
CONVERSATIONS = 24
CHECKED = 10  # of them, one turn after the other
TURNS_MAX = 6  # then it begins anew, as another one
ANSWER_TOKENS = 24
EXACT_S = 5  # within which the exact rung is back once a fault is over, unless its test says more
SPEEDUP = 8
LOOKS = 6  # a guess by each router of each engine, at most; or some turns that a busy one does not tell
BY_CLAIMS, BY_GUESS = "claims", "claims and a guess"
NOTHING_TO_TELL = ("by_engine", "known", "no_agent", "short")  # of a prompt, and why; beside "posted"
HANDOVER_S = 2.5  # what a router has sent it believes for 2 s; behind them only the map

SYSTEM = "You are a careful assistant who knows everything about samovars. " * 12


class Conversation:
    """One client's: each turn sends all that was said before."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self.name = seed
        self.body = b""  # of its last turn
        self.begin()

    def begin(self):
        self.turns = 0
        self.messages = [{"role": "system", "content": SYSTEM}]

    def ask(self):
        """The body of its next turn."""
        if self.turns >= TURNS_MAX:
            self.begin()
        words = " ".join(f"{self._random.getrandbits(32):08x}" for _ in range(160))
        self.messages.append({"role": "user", "content": f"{self.name}: {words}"})
        self.turns += 1
        self.body = json.dumps({"model": MODEL, "messages": self.messages,
                                "max_tokens": ANSWER_TOKENS}).encode()
        return self.body

    def hear(self, body):
        self.messages.append(json.loads(body)["choices"][0]["message"])

    def fail(self):
        """What was asked has no answer: it is asked otherwise next time."""
        self.messages.pop()
        self.turns -= 1


@dataclass
class Turn:
    conversation: Conversation
    router: Router
    begun: float
    ended: float = 0.0
    status: int = 0  # 0: no answer
    text: str = ""  # of a failure
    line: dict = None
    known: list = None  # what stood where before a quiet one
    anchor: str = ""  # and whether its worker's agent was told of it behind it, or why not

    @property
    def is_told(self):
        return self.anchor == "posted" or self.anchor in NOTHING_TO_TELL

    @property
    def is_exact(self):
        return self.line["rung"] == "exact"

    @property
    def is_claimed(self):
        """All that was promised was its agent's word; nothing behind it is guessed."""
        return self.line.get("claimed_blocks", 0) == self.line["matched_blocks"]

    @property
    def is_phantom(self):
        """More was promised, by what is said to be exact, than the engine had: a block of the
        engine's own may be in doubt, as where two texts part is."""
        return self.is_exact and \
            self.line["predicted_cached_tokens"] > self.line["cached_tokens"] + ENGINE_BLOCK_TOKENS


@dataclass
class Standing:
    """How far what one engine does has come, over its agent and Redis, to each router."""
    engine: int
    published: int  # batches of its events, by the engine itself
    heard: int  # of them by its agent
    is_ready: bool  # its agent has published all that it was asked to, and holds the lease
    unsaid: int
    flushes: int
    in_redis: tuple  # life and sequence
    in_routers: list = field(default_factory=list)  # the same, by router

    def is_through(self, *, all_is_heard=True):
        return self.is_ready and self.unsaid == 0 and \
            (self.heard == self.published or not all_is_heard) and \
            all(known == self.in_redis for known in self.in_routers)


class Load:
    """Conversations in threads of their own, until it is stopped; no turn may fail."""

    def __init__(self, cluster, thread_count):
        self.cluster = cluster
        self.turns = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True, args=(
            cluster.conversations[number::thread_count], number)) for number in range(thread_count)]
        for thread in self._threads:
            thread.start()

    def _run(self, conversations, number):
        choose = random.Random(number)
        while not self._stop.is_set():
            self.turns.append(self.cluster.turn(choose.choice(conversations)))

    def wait_turns(self, count, timeout_s=None):
        """That many more."""
        until = len(self.turns) + count
        wait_until(lambda: len(self.turns) >= until, "the load goes on", timeout_s)

    def since(self, begun):
        return [turn for turn in list(self.turns) if turn.begun >= begun]

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"


class Cluster:
    """Ends what it started, in order, in stop()."""

    def __init__(self, directory, *, engine_count=3, router_count=2, agent_count=None, faults=(),
                 is_confined=False, redis_url=None, env=None, engine_blocks=ENGINE_BLOCKS):
        """agent_count: of the engines, the first so many have one; None: all. faults: of every
        engine. is_confined: every program is its own user of docker/users.acl. redis_url: of the
        server, for a way to it of the test's own; env: of the agents."""
        self.directory = Path(directory)
        self.secret_file = self.directory / "secret"
        self.secret_file.touch(0o600)
        self.secret_file.write_bytes(EXPLAIN_SECRET)
        self.engines, self.agents, self.routers = [], [], []
        self.redis, self.redis_url, self.env = None, None, env
        self.faults = [word for fault in faults for word in ("--fault", fault)]
        self.conversations = [Conversation(number) for number in range(CONVERSATIONS)]
        self.engine_blocks = engine_blocks
        self.is_confined = is_confined
        self._choose = random.Random(1)
        try:
            self.engines = [Sim(*self.engine_flags()) for _ in range(engine_count)]
            self.redis = RedisServer(users_acl=self._users() if is_confined else None)
            self.redis_url = redis_url(self.redis) if redis_url else None
            for number in range(engine_count if agent_count is None else agent_count):
                self.agents.append(self.new_agent(number))
            self.routers = [self.new_router() for _ in range(router_count)]
            for agent in self.agents:
                agent.wait_ready()
            for router in self.routers:
                router.wait_states("up", engine_count)
            self.wait_exact()
        except BaseException:
            self.kill()
            raise

    # --- who is in it ---

    def engine_flags(self, events="tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*"):
        return ["--blocks", self.engine_blocks, "--block-size", ENGINE_BLOCK_TOKENS, "--speedup",
                SPEEDUP, "--kv-events", events, "--kv-replay", replay, *self.faults]

    def _users(self):
        """docker/users.acl, for workers that are called otherwise."""
        text = (REPO / "docker" / "users.acl").read_text()
        for number, engine in enumerate(self.engines, 1):
            text = text.replace(f"{{http://sim-{number}:*}}", f"{{{engine.url}}}")
        path = self.directory / "users.acl"
        path.write_text(text)
        return path

    def _redis_flags(self, user):
        """How user finds Redis: its url, and the flags of its password."""
        if not self.is_confined:
            return self.redis_url or self.redis.url, []
        path = self.directory / f"password-{user}"
        path.touch(0o600)
        path.write_text(f"change-me-{user}\n")
        return self.redis.url_of(user), ["--redis-password-file", path]

    def state_dir(self, number):
        path = self.directory / f"state-{number}"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def new_agent(self, number, *flags, state_dir=None, secret_file=None, env=None):
        """Of that engine."""
        engine = self.engines[number]
        url, password = self._redis_flags(f"agent-{number + 1}")
        return Agent(engine, url, secret_file or self.secret_file, "--probe-interval-ms", 200,
                     *password, *flags, kv_events=engine.kv_events, kv_replay=engine.kv_replay,
                     state_dir=state_dir or self.state_dir(number), env=env or self.env)

    def new_router(self, *flags, secret_file=None, workers=None):
        url, password = self._redis_flags("router")
        return Router(self.engines if workers is None else workers, [
            "--probe-interval-ms", 200, "--redis", url, *password,
            "--secret-file", secret_file or self.secret_file, *flags])

    def restart_engine(self, number):
        """kill -9, and another process on the same ports."""
        engine = self.engines[number]
        engine.restart(*self.engine_flags(engine.kv_events, engine.kv_replay))

    def restart_agent(self, number, *flags):
        """kill -9, and another process at once."""
        self.agents[number].kill()
        self.agents[number] = self.new_agent(number, *flags)

    def admin(self, *words):
        """A command of an operator of Redis."""
        if self.is_confined:
            return self.redis.call(*words, user="admin", password="change-me-admin")
        return self.redis.call(*words)

    # --- load ---

    def turn(self, conversation, router=None):
        """One turn of a conversation, by any router."""
        router = router or self._choose.choice(self.routers)
        turn = Turn(conversation, router, time.monotonic())
        body = conversation.ask()
        try:
            answer = _post(router, body)
            turn.line = router.request_line(answer)  # which a router that is killed says no more
            turn.status = answer.status
            if answer.status == 200:
                conversation.hear(answer.body)
            else:
                turn.text = answer.body.decode("utf-8", "replace")
        except (OSError, AssertionError) as failure:
            turn.text = f"{type(failure).__name__}: {failure}"
        if turn.status != 200:
            conversation.fail()
        turn.ended = time.monotonic()
        return turn

    @contextlib.contextmanager
    def load(self, thread_count=4):
        """Turns of all conversations while the block runs; none of them may fail."""
        load = Load(self, thread_count)
        try:
            yield load
        finally:
            load.stop()
        check_turns(load.turns)

    def quiet_turns(self, conversations=None):
        """One turn each, one after the other, each when the routers know what the one before it has
        changed: then there is no excuse for a phantom."""
        turns = []
        for conversation in conversations or self.conversations[:CHECKED]:
            known = self.settle()
            router = self._choose.choice(self.routers)
            told = self._anchors(router)
            turns.append(self.turn(conversation, router))
            check_turns(turns[-1:])
            turns[-1].known = known
            wait_until(lambda: self._anchors(router) != told, "it is told, or it is said why not")
            turns[-1].anchor = "".join(self._anchors(router) - told)
        return turns

    def _anchors(self, router):
        """Of how many prompts agents were told, or why not, so far."""
        return Counter({re.search('outcome="(.*?)"', name)[1]: count
                        for name, count in router.metrics().items()
                        if name.startswith("samovar_router_anchors_total{")})

    def explain(self, turn):
        """What there is to say after the fact of a promise that was not kept."""
        number = [engine.url for engine in self.engines].index(turn.line["worker"])
        claimed = blocks_of(turn.conversation.body)[:turn.line.get("claimed_blocks", 0)]
        agent = self.agents[number] if number < len(self.agents) else None
        events = ("start", "state_taken_up", "lease_of_another", "lease_taken", "cache_known",
                  "cache_not_known", "events_connected", "events_disconnected", "events_lost",
                  "engine_restarted")
        said = agent.log.events if agent is not None else []
        return {"by": BY_CLAIMS if turn.is_claimed else BY_GUESS, "line": turn.line,
                "told": [dict(self._anchors(router)) for router in self.routers],
                "before it": turn.known[number] if turn.known else None,
                "now": self.standings()[number] if agent is not None else None,
                "claimed, as Redis has it now": [
                    (f"{hash_:016x}", (self.map_of(self.engines[number]).records() or {}).get(hash_))
                    for hash_, _ in claimed[-3:]],
                "its agent": [line for line in said if line.get("event") in events][-8:]}

    def check_truth(self, exact_share=0.8):
        """The exact rung is in use, and what it promises is there. What agents claim is so at once.
        Of what they could not be told during a fault each router goes on to guess, behind what they
        claim, that the engine has it, until they are told of a turn of it: such a guess is wrong once,
        and there are only so many."""
        for look in range(LOOKS):
            turns = self.quiet_turns()
            wrong = [self.explain(turn) for turn in turns if turn.is_phantom]
            assert not [phantom for phantom in wrong if phantom["by"] == BY_CLAIMS], wrong
            if look > 0 and not wrong and all(turn.is_told for turn in turns):
                break
            time.sleep(HANDOVER_S)
        assert not wrong, wrong
        exact = sum(turn.is_exact for turn in turns)
        assert exact >= exact_share * len(turns), \
            f"{exact} of {len(turns)} exact: {[turn.line['rung'] for turn in turns]}"
        assert sum(turn.line["cached_tokens"] for turn in turns) > 0, "nothing is found at all"

    # --- what is known ---

    def rows(self, router):
        """What a router says of the agents' reports, by worker."""
        return {row["url"]: row for row in router.admin("/residency").json()["workers"]}

    def row(self, router, engine):
        return self.rows(router).get(engine.url, {})

    def spoken_for(self):
        """(engine, agent) of each agent that runs."""
        return [(engine, agent) for engine, agent in zip(self.engines, self.agents)
                if agent.is_running()]

    def lacking(self):
        """Whom a router does not believe, or by another's word than that of the agent which runs:
        what a dead one said last is believed until its lease has run out."""
        in_redis = self._in_redis()
        lacking = []
        for engine, agent in self.spoken_for():
            life, _ = in_redis[engine.url]
            rows = [(router.url, self.row(router, engine)) for router in self.routers
                    if router.is_running()]
            lacking += [(url, row) for url, row in rows
                        if not row.get("believed") or row["life"] != life]
            if not agent.is_ready():
                lacking.append((engine.url, agent.admin("/ready").body))
        return lacking

    def wait_exact(self, timeout_s=None):
        """Until all routers believe all agents; how long that took."""
        begun = time.monotonic()
        wait_until(lambda: not self.lacking(), lambda: f"exact: {self.lacking()}", timeout_s)
        return time.monotonic() - begun

    def wait_doubt(self, engine, *doubts, timeout_s=None):
        """Until each router says so of it."""
        def told():
            return {self.row(router, engine).get("doubt") for router in self.routers}
        wait_until(lambda: told() <= set(doubts), lambda: f"{doubts}: {told()}", timeout_s)

    def _in_redis(self):
        """{url of an engine: (life, sequence)} as its agent has written it; life: of the lease."""
        user = ("admin", "change-me-admin") if self.is_confined else ()
        client = self.redis.client(*user)
        found = {}
        for engine in self.engines:
            lease = client.call("GET", worker_key(engine.url, "lease"))
            life = lease_words(lease)["life"] if lease else None
            last = client.call("XREVRANGE", worker_key(engine.url, f"{life}:out"), "+", "-", "COUNT",
                               1)
            found[engine.url] = (life, int(last[0][0].split(b"-")[0]) if last else None)
        client.close()
        return found

    def standings(self):
        """Of each engine that has an agent, in order."""
        rows = [self.rows(router) for router in self.routers]
        in_redis = self._in_redis()
        standings = []
        for number, (engine, agent) in enumerate(zip(self.engines, self.agents)):
            metrics = agent.metrics()
            worker = f'{{worker="{engine.url}"}}'
            standings.append(Standing(
                number, published=engine.published(),
                heard=metrics[f"samovar_agent_event_sequence{worker}"], is_ready=agent.is_ready(),
                unsaid=metrics[f"samovar_agent_report_unsaid{worker}"],
                flushes=metrics[f"samovar_agent_report_flushes_total{worker}"],
                in_redis=in_redis[engine.url],
                in_routers=[(row[engine.url].get("life"), row[engine.url].get("sequence"))
                            for row in rows]))
        return standings

    def settle(self):
        """Until all that the engines have done has come through to all routers, and nothing moves;
        what stands where then. Two looks, because what an agent has heard it joins and flushes some
        ms later. Of engines that lose messages nobody knows whether all was heard."""
        before = None

        def is_still():
            nonlocal before
            time.sleep(0.01)
            was, before = before, self.standings()
            return before == was and all(
                standing.is_through(all_is_heard=not self.faults) for standing in before)

        wait_until(is_still, lambda: f"it settles: {before}")
        return before

    def map_of(self, engine):
        return ResidencyMap(self.redis, engine.url)

    # --- end ---

    def processes(self):
        return [*self.routers, *self.agents, *self.engines]

    def kill(self):
        for process in self.processes():
            process.kill()
        if self.redis is not None:
            self.redis.stop()

    def stop(self):
        """Each as its operator would end it, and each in order."""
        failures = []
        for process in self.processes():
            try:
                process.stop()
            except Exception as failure:  # the others must end too
                failures.append(f"{type(failure).__name__}: {failure}")
        self.kill()
        assert not failures, "\n".join(failures)


def _post(router, body):
    """Over a connection of its own."""
    wire = Wire.connect(router.address)
    try:
        wire.send(request_bytes("POST", CHAT.path, body, {"Connection": "close"}))
        answer = read_answer(wire, "POST", 30)
        answer.read_all()
        return answer
    finally:
        wire.close()


def check_turns(turns):
    """Each was answered, and its line says by what and how well it was known."""
    assert turns, "there was load"
    failed = [(turn.status, turn.text, turn.line) for turn in turns if turn.status != 200]
    assert not failed, f"{len(failed)} of {len(turns)} failed: {failed[:3]}"
    for turn in turns:
        assert turn.line["rung"] in ("exact", "guess", "affinity", "load"), turn.line
        assert {"predicted_cached_tokens", "cached_tokens"} <= turn.line.keys(), turn.line
