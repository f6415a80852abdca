# SPDX-License-Identifier: Apache-2.0
"""Workers that die, hang, refuse and come back, one at a time, by a script of chance."""

import random
import signal
import threading
import time
from collections import defaultdict

from acts import Acts
from peers.openai_api import CHAT, COMPLETIONS
from peers.sim import Sim
from peers.wire import HOST
from peers.worker import ScriptedWorker

ATTEMPT_SUFFIX = "-"  # an attempt's id: the request's, and six letters behind a dash


class RandomHandler:
    """What a scripted worker does to each request; remembers it by the request's id."""

    def __init__(self, seed, done):
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._done = done
        self.is_busy = False  # a storm of 503 and 429

    def _choose(self, count):
        with self._lock:
            return self._random.randrange(count)

    def _note(self, request, what):
        attempt = request.get("x-request-id") or ""
        with self._lock:
            self._done[attempt.rpartition(ATTEMPT_SUFFIX)[0]].append(what)

    def __call__(self, request):
        asked = request.json() if request.get("content-length") else {}
        if self.is_busy:
            self._note(request, "busy")
            request.answer(b'{"error":{"message":"busy"}}', (429, 503)[self._choose(2)],
                           retry_after=1)  # no request is given to it for that long
            return
        chance = self._choose(100)
        if chance < 2:
            self._note(request, "died")
            request.end_by(("fin", "rst")[self._choose(2)])
        elif chance < 3:
            self._note(request, "half")
            request.send(b"HTTP/1.1 200 O")
            request.end_by("rst")
        elif chance < 4:
            self._note(request, "hung")
            request.wait_end(60)
            request.finish()
        elif asked.get("stream"):
            self._stream(request, asked, chance)
        else:
            request.answer(_api_of(request).answer())

    def _stream(self, request, asked, chance):
        api = _api_of(request)
        word = "word " * (400 if asked.get("user") == "large" else 1)
        events = api.stream([word] * (500 if asked.get("user") == "large" else 20), with_usage=True)
        request.start_stream()
        if chance < 7:
            self._note(request, "half")  # perhaps behind the head, before any event
            for event in events[: self._choose(20)]:
                request.send_chunk(event)
            if chance == 4:
                request.send_chunk(events[0][: self._choose(40) + 1])  # in the midst of an event
            request.end_by(("fin", "rst")[self._choose(2)])
            return
        for event in events:
            request.send_chunk(event)
        request.end_stream()


def _api_of(request):
    return COMPLETIONS if request.target == COMPLETIONS.path else CHAT


class Engine:
    """A simulated engine that can be killed and comes back on its port."""

    def __init__(self):
        self.sim = Sim(*self._flags())
        self.port = self.sim.port

    @staticmethod
    def _flags():
        return ["--speedup", 4]

    @property
    def url(self):
        return f"http://{HOST}:{self.port}"

    def kill(self):
        self.sim.kill()

    def restart(self):
        self.sim = Sim(*self._flags(), "--port", self.port)

    def stop(self):
        self.sim.stop()


class Trouble(Acts):
    def __init__(self, seed):
        super().__init__(f"{seed}/trouble", (1, 4))
        self.done = defaultdict(list)  # by request id: what scripted workers did to it
        self.kills = []  # (from, to, url): when connections of a worker ended in the midst of it all
        self.engines = [Engine(), Engine()]
        self.scripted = [ScriptedWorker(), ScriptedWorker()]
        for number, worker in enumerate(self.scripted):
            worker.handler = RandomHandler(f"{seed}/{number}", self.done)
        self.pauses = []  # (from, to): storms, and the pause that the last answer of one asked for

    @property
    def workers(self):
        return [*self.engines, *self.scripted]

    def close(self):
        for worker in self.workers:
            worker.stop()

    def acts(self):
        return [self._kill_engine, self._freeze_engine, self._kill_scripted, self._reset_all,
                self._storm]

    def _pause(self):
        time.sleep(self._random.uniform(0.2, 1.5))

    def was_killed(self, url, begun, ended):
        """Whether it was, while it may have been answering."""
        return any(url == killed and start <= ended and end >= begun
                   for start, end, killed in self.kills)

    def _kill(self, worker, how):
        """how: the call that does it."""
        start = time.time()
        how()
        self.kills.append((start, time.time(), worker.url))

    def _kill_engine(self):
        engine = self._random.choice(self.engines)
        self._kill(engine, engine.kill)
        self._pause()
        engine.restart()

    def _freeze_engine(self):
        engine = self._random.choice(self.engines)
        engine.sim.signal(signal.SIGSTOP)
        self._pause()
        engine.sim.signal(signal.SIGCONT)

    def _kill_scripted(self):
        worker = self._random.choice(self.scripted)
        how = self._random.choice(["fin", "rst"])
        self._kill(worker, lambda: worker.kill(how))
        self._pause()
        worker.start_listening()

    def _reset_all(self):
        worker = self._random.choice(self.scripted)
        self._kill(worker, lambda: worker.close_connections("rst"))

    def _storm(self):
        handler = self._random.choice(self.scripted).handler
        start = time.time()
        handler.is_busy = True
        self._pause()
        handler.is_busy = False
        self.pauses.append((start, time.time() + 1.1))
