# SPDX-License-Identifier: Apache-2.0
"""Clients of all kinds, each a loop in a thread: the good, the slow, those that leave."""

import itertools
import json
import random
import threading
import time

from outcome import Outcome, read_outcome
from peers.http1 import request_bytes
from peers.openai_api import CHAT, COMPLETIONS, MODEL
from peers.wire import WireEnded, WireTimeout

# Faults that a request may ask of the simulated engine that gets it.
SIM_FAULTS = ["die_at_event=3", "die_at_byte=1500", "close_after_request", "reset",
              "status=500", "slow=5", "bad_head", "hang_at_event=2"]
FAULT_MARKS = {"status=500": "status_500", "bad_head": "bad_head", "die_at_byte=1500": "half"}

# Of no engine here but the scripted ones: what others answer 404 is an answer too. None is sent twice:
# of what two workers died of by chance, the router would keep the others away for a while.
OTHER_CALLS = [
    ("/v1/embeddings", lambda text: {"model": MODEL, "input": text}),
    ("/v1/rerank", lambda text: {"model": MODEL, "query": text, "documents": ["cup", "cloud"]}),
    ("/score", lambda text: {"model": MODEL, "text_1": text, "text_2": "cup"}),
    ("/tokenize", lambda text: {"model": MODEL, "prompt": text}),
    ("/v1/responses", lambda text: {"model": MODEL, "input": text}),
    ("/v1/messages", lambda text: {"model": MODEL, "max_tokens": 9,
                                   "messages": [{"role": "user", "content": text}]}),
]
WRONG_CALLS = [
    (CHAT.path, b"{"), (CHAT.path, b'{"model":"none-such","messages":[]}'), ("/v2/nothing", b"{}"),
    (CHAT.path, b'{"model":"%s","messages":[{"role":"user","content":"\xff"}]}' % MODEL.encode()),
]


class Clients:
    """Runs them, and keeps what each request came to."""

    def __init__(self, router, seed, pause_s):
        self.router = router
        self.seed = seed
        self.pause_s = pause_s
        self.outcomes = {}  # by request id
        self.crashes = []  # of a client itself: a fault of this program
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = []

    def start(self, count):
        kinds = [self.plain, self.stream, self.faulty, self.pipelining, self.leaving, self.slow,
                 self.large, self.others, self.wrong, self.stalled]
        for number in range(count):
            kind = kinds[number % len(kinds)]
            choose = random.Random(f"{self.seed}/{number}")
            thread = threading.Thread(target=self._run, args=(kind, choose), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "a client hangs"

    def _run(self, kind, choose):
        while not self._stop.is_set():
            client = self.router.connect()
            try:
                kind(client, choose)
            except Exception as failure:  # told at the end; the others go on
                self.crashes.append(f"{kind.__name__}: {type(failure).__name__}: {failure}")
            finally:
                client.close()
                self.router.clients.remove(client)

    def _goes_on(self, choose):
        """False: time to end the connection. Between two requests, so that it paces the load."""
        time.sleep(self.pause_s * choose.random() * 2)
        return not self._stop.is_set() and choose.random() < 0.9

    def _begin(self, kind, faults=()):
        outcome = Outcome(f"soak-{next(self._numbers)}", kind, faults=list(faults))
        self.outcomes[outcome.request_id] = outcome
        return outcome

    def _ask(self, client, outcome, path, body, fields=(), framing="length"):
        """One whole request and its answer. True: the connection may go on."""
        raw = request_bytes("POST", path, body, {"X-Request-Id": outcome.request_id, **dict(fields)},
                            framing=framing)
        try:
            client.send(raw)
        except OSError:
            pass  # answered early, or an idle connection that was just closed: reading tells
        return read_outcome(client, outcome)

    def _body(self, api, choose, words=40, **fields):
        """Prompts begin alike in groups, as conversations do, and end each in its own way: what
        was being served when two workers died is refused from then on."""
        text = f"group {choose.randrange(20)} " * words + f"question {choose.getrandbits(64):x}"
        return api.request(text, max_tokens=choose.choice([4, 20, 60]), **fields)

    # --- kinds ---

    def plain(self, client, choose):
        while self._goes_on(choose):
            api = choose.choice([CHAT, COMPLETIONS])
            if not self._ask(client, self._begin("plain"), api.path, self._body(api, choose),
                             framing=choose.choice(["length", "chunked"])):
                return

    def stream(self, client, choose):
        while self._goes_on(choose):
            api = choose.choice([CHAT, COMPLETIONS])
            if not self._ask(client, self._begin("stream"), api.path,
                             self._body(api, choose, stream=True)):
                return

    def faulty(self, client, choose):
        """Asks the engine that gets it to fail."""
        while self._goes_on(choose):
            fault = choose.choice(SIM_FAULTS)
            outcome = self._begin("faulty", [FAULT_MARKS[fault]] if fault in FAULT_MARKS else [])
            if not self._ask(client, outcome, CHAT.path,
                             self._body(CHAT, choose, stream=choose.random() < 0.7),
                             {"x-sim-fault": fault}):
                return

    def pipelining(self, client, choose):
        """A few at once; what stands behind an answer that closes is never answered."""
        while self._goes_on(choose):
            outcomes = [self._begin("pipelined") for _ in range(choose.randint(2, 5))]
            raw = b"".join(
                request_bytes("POST", CHAT.path, self._body(CHAT, choose, words=5),
                              {"X-Request-Id": outcome.request_id}) for outcome in outcomes)
            client.send(raw)
            goes_on = True
            for outcome in outcomes:
                if not goes_on:
                    outcome.left = True
                    outcome.finish("left")
                    continue
                goes_on = read_outcome(client, outcome)
            if not goes_on:
                return

    def leaving(self, client, choose):
        """Goes away at any point: in the head, in the body, before the answer, in its midst."""
        outcome = self._begin("leaving")
        outcome.left = True
        raw = request_bytes("POST", CHAT.path, self._body(CHAT, choose, 400, stream=True),
                            {"X-Request-Id": outcome.request_id})
        stage = choose.randrange(4)
        try:
            client.send(raw[: choose.randrange(1, len(raw))] if stage == 0 else raw)
            if stage == 2:
                client.answer(timeout_s=60)
            if stage == 3:
                client.answer(timeout_s=60)
                client.read_some(timeout_s=60)
        except (WireEnded, WireTimeout, OSError):
            pass
        client.end_by(choose.choice(["fin", "rst"]))
        outcome.finish("left")
        time.sleep(self.pause_s * choose.random())

    def slow(self, client, choose):
        """Reads a large answer through a small buffer, with pauses."""
        with_small_buffer = self.router.connect(receive_bytes=4096)
        try:
            outcome = self._begin("slow")
            with_small_buffer.send(request_bytes(
                "POST", CHAT.path, self._body(CHAT, choose, stream=True, user="large"),
                {"X-Request-Id": outcome.request_id}))
            for _ in range(10):
                with_small_buffer.wait_readable(0.05)
                time.sleep(0.02)
            read_outcome(with_small_buffer, outcome)
        finally:
            with_small_buffer.close()
            self.router.clients.remove(with_small_buffer)
        time.sleep(self.pause_s)

    def stalled(self, client, choose):
        """Stops reading. The router ends it when it has waited long enough; small answers fit."""
        small = self.router.connect(receive_bytes=4096)
        try:
            outcome = self._begin("stalled")
            outcome.left = True
            small.send(request_bytes(
                "POST", CHAT.path, self._body(CHAT, choose, stream=True, user="large"),
                {"X-Request-Id": outcome.request_id}))
            self._stop.wait(4)
        finally:
            outcome.finish("left")
            small.close()
            self.router.clients.remove(small)

    def large(self, client, choose):
        """Bodies up to megabytes: read off the loop."""
        while self._goes_on(choose):
            size = choose.choice([100_000, 400_000, 1_500_000, 4_000_000])
            body = CHAT.request("tea " * (size // 4) + f"{choose.getrandbits(64):x}", max_tokens=4, stream=choose.random() < 0.5)
            if not self._ask(client, self._begin("large"), CHAT.path, body):
                return
            time.sleep(self.pause_s * 4)

    def others(self, client, choose):
        while self._goes_on(choose):
            path, body = choose.choice(OTHER_CALLS)
            outcome = self._begin("others")
            if not self._ask(client, outcome, path, json.dumps(body(outcome.request_id)).encode()):
                return

    def wrong(self, client, choose):
        while self._goes_on(choose):
            path, body = choose.choice(WRONG_CALLS)
            outcome = self._begin("wrong")
            goes_on = self._ask(client, outcome, path, body)
            if outcome.end == "clean" and not 400 <= outcome.status < 500:
                self.crashes.append(f"wrong: {path} {body!r} was answered {outcome.status}")
            if not goes_on:
                return
