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
from dataclasses import dataclass
from pathlib import Path

from peers.agent import Agent
from peers.http1 import read_answer, request_bytes
from peers.map_agent import EXPLAIN_SECRET
from peers.openai_api import CHAT, MODEL
from peers.process import REPO, wait_until
from peers.redis_server import RedisServer
from peers.residency_map import ResidencyMap
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
HANDOVER_S = 2.5  # what a router has sent it believes for 2 s; behind them only the map

SYSTEM = "You are a careful assistant who knows everything about samovars. " * 12


class Conversation:
    """One client's: each turn sends all that was said before."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self.name = seed
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
        return json.dumps({"model": MODEL, "messages": self.messages,
                           "max_tokens": ANSWER_TOKENS}).encode()

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
            turn.status = answer.status
            turn.line = router.request_line(answer)
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

    def quiet_turns(self, count=CHECKED):
        """One turn each, one after the other, each when the routers know what the one before it has
        changed: then there is no excuse for a phantom."""
        turns = []
        for conversation in self.conversations[:count]:
            self.settle()
            turns.append(self.turn(conversation))
        check_turns(turns)
        return turns

    def check_truth(self, exact_share=0.8):
        """The exact rung is in use, and what it promises is there. What the agents could not be told
        of during a fault is guessed once more behind what they claim; from then on they know."""
        again = self.quiet_turns()
        wrong = [turn.line for turn in again if turn.is_phantom and turn.is_claimed]
        assert not wrong, wrong
        time.sleep(HANDOVER_S)
        turns = self.quiet_turns()
        wrong = [turn.line for turn in turns if turn.is_phantom]
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
        """Engines with an agent that runs."""
        return [engine for engine, agent in zip(self.engines, self.agents) if agent.is_running()]

    def lacking(self):
        """(router, row) of whoever is not believed."""
        return [(router.url, self.row(router, engine)) for router in self.routers
                for engine in self.spoken_for()
                if router.is_running() and not self.row(router, engine).get("believed")]

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

    def _told(self):
        """What stands where, on the way from the engines to the routers; None: not all is through."""
        told = []
        for engine, agent in zip(self.engines, self.agents):
            metrics = agent.metrics()
            worker = f'{{worker="{engine.url}"}}'
            if metrics[f"samovar_agent_report_unsaid{worker}"] > 0:
                return None
            flushes = metrics[f"samovar_agent_report_flushes_total{worker}"]
            told.append((metrics[f"samovar_agent_event_batches_total{worker}"], flushes))
            told += [(row["life"], row["sequence"]) for row in
                     (self.row(router, engine) for router in self.routers)]
        return told

    def settle(self):
        """Until nothing moves any more from the engines over the agents to the routers."""
        before = None

        def is_still():
            nonlocal before
            time.sleep(0.01)
            now = self._told()
            was, before = before, now
            return now is not None and now == was

        wait_until(is_still, lambda: f"it settles: {before}")

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
