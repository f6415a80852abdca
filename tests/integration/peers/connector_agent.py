# SPDX-License-Identifier: Apache-2.0
"""An agent as engines' connectors see it, in a thread: keeps blocks in a dictionary, or does what
an agent should never do, when and as often as a test says. It reads and writes with the connector's
own wire (kvtier/connector/python), which takes one spelling of each message alone: so samovar-sim,
which writes them in C, is held to that, too.

    with ConnectorAgent(path) as agent:
        agent.before[wire.SAVE] = lambda agent, connection, message: time.sleep(1)  # slow
        agent.instead[wire.LOOKUP] = lambda agent, connection, message: None        # silent
        agent.holds.add(wire.LOADED)                                                # see release()
"""

import contextlib
import hashlib
import mmap
import os
import random
import select
import socket
import sys
import threading
import types

from peers.process import REPO, wait_until

sys.path.append(str(REPO / "kvtier/connector/python"))

from samovar_vllm import wire  # noqa: E402

DESCRIPTORS_MAX = 64


def once(act):
    """An act that happens once; the others are as they should be."""
    done = []

    def first_only(agent, connection, message):
        if done:
            agent.answer(connection, message)
        else:
            done.append(True)
            act(agent, connection, message)
    return first_only


def load_some(count):
    """Instead of a LOAD: only so many blocks of it."""
    def act(agent, connection, message):
        agent.answer(connection, types.SimpleNamespace(**{
            **vars(message), "engine_blocks": message.engine_blocks[:count]}))
    return act


def put_off(later_ms):
    """Instead of a LOOKUP: to be asked later."""
    def act(_agent, connection, message):
        connection.say(wire.FOUND, request=message.request, tokens=0, later_ms=later_ms,
                       why=wire.LATER)
    return act


def refuse(code, text):
    """Instead of a HELLO."""
    def act(_agent, connection, _message):
        connection.say(wire.REFUSED, code=code, text=text)
        connection.close()
    return act


class Connection:
    def __init__(self, agent, stream):
        self.agent, self.stream, self.boot = agent, stream, agent.boot
        self.stream.setblocking(False)
        self.hello = None
        self.regions = []   # maps of a worker's memory
        self.prompts = {}   # number -> OPEN, with all tokens that came
        self.loads = set()  # jobs that were not answered yet
        self.is_left = False  # by the engine, while loads are under way

    def say(self, kind, **fields):
        raw = wire.write(kind, fields.pop("boot", self.boot), **fields)
        if kind in self.agent.holds:
            self.agent.held.append((self, raw))
        else:
            self.say_bytes(raw)
        if kind == wire.LOADED:
            self.loads.discard(fields["job"])
            if self.is_left:
                self.leave()

    def say_bytes(self, raw):
        with contextlib.suppress(OSError):
            self.stream.send(raw)

    def page(self, block):
        """The bytes of one of the engine's blocks."""
        return b"".join(self.regions[region][offset + block * stride:][:length]
                        for region, offset, stride, length in self.hello.segments)

    def fill(self, block, page):
        at = 0
        for region, offset, stride, length in self.hello.segments:
            start = offset + block * stride
            self.regions[region][start:start + length] = page[at:at + length]
            at += length

    def has_ended(self):
        """Whether the engine says no more."""
        poller = select.poll()
        poller.register(self.stream, select.POLLRDHUP)
        return bool(poller.poll(0))

    def leave(self):
        """The engine has ended it; we do so too, but not while we write into its memory."""
        self.is_left = True
        if not self.loads:
            self.close()

    def close(self):
        for region in self.regions:
            region.close()
        self.stream.close()


class ConnectorAgent:
    def __init__(self, path, lookup_ms=20, save_ms=500, lease_ms=30000):
        self.path = str(path)
        self.limits = {"lookup_ms": lookup_ms, "save_ms": save_ms, "lease_ms": lease_ms}
        self.boot = random.getrandbits(64)
        self.pages = {}     # key of a block -> its bytes
        self.loaded = 0     # blocks
        self.heard = []     # (role, message), all of them
        self.before, self.instead = {}, {}  # by kind: what a test does to it
        self.holds = set()  # kinds of answers that do not go out, though all is done for them
        self.held = []      # (connection, such an answer)
        self.connections = []
        self._wake, self._woken = socket.socketpair()
        self._thread = self._listener = self._failure = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        """Anew, as another boot, when it was stopped."""
        self.boot = random.getrandbits(64)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(16)
        self._is_ending = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self):
        """What its engines see of kill -9: every connection ends."""
        if self._thread is None:
            return
        self._is_ending = True
        self._wake.send(b".")
        self._thread.join()
        self._thread = None
        self.held = []
        if self._failure is not None:
            raise self._failure

    def restart(self):
        """Another life of it, with the pages of before."""
        self.stop()
        self.start()

    def release(self):
        """Sends what was held back: late answers."""
        self.holds.clear()
        for connection, raw in self.held:
            connection.say_bytes(raw)
        self.held = []

    def spoil(self):
        """One bit of each page is another one."""
        self.pages = {key: page[:-1] + bytes([page[-1] ^ 1]) for key, page in self.pages.items()}

    # --- what it has heard ---

    def wait(self, kind):
        """The next message of that kind; what came before it is forgotten."""
        def next_of_kind():
            while self.heard:
                _, message = self.heard.pop(0)
                if message.kind == kind:
                    return message
            return None
        return wait_until(next_of_kind, f"a message of kind {kind}")

    def heard_kinds(self, role=None):
        return [message.kind for said_by, message in self.heard if role in (None, said_by)]

    def of_role(self, role):
        return [c for c in self.connections
                if c.hello is not None and c.hello.role == role and not c.is_left]

    def half_of(self, connection, role):
        """The connections of that role of the same engine: one, or none when it has gone."""
        return [c for c in self.of_role(role) if c.hello.engine_id == connection.hello.engine_id]

    # --- its thread ---

    def _serve(self):
        self._failure = None
        try:
            self._hear_all()
        except Exception as failure:  # an engine that says what none should: stop() says so
            self._failure = failure
        for connection in self.connections:
            connection.close()
        self.connections = []
        self._listener.close()

    def _hear_all(self):
        while not self._is_ending:
            self.connections = [c for c in self.connections if c.stream.fileno() >= 0]
            heard = {c.stream: c for c in self.connections if not c.is_left}
            for stream in select.select([self._listener, self._woken, *heard], [], [])[0]:
                if stream is self._woken:
                    self._woken.recv(1)
                elif stream is self._listener:
                    self.connections.append(Connection(self, self._listener.accept()[0]))
                else:
                    self._read_in_order(heard[stream])

    def _read_in_order(self, connection):
        """What the scheduler of a worker's engine has said comes first."""
        if connection.hello is not None and connection.hello.role == wire.WORKER:
            for other in self.half_of(connection, wire.SCHEDULER):
                while self._read(other):
                    pass
        self._read(connection)

    def _read(self, connection):
        """Whether a message was there."""
        if connection.stream.fileno() < 0 or connection.is_left:
            return False
        try:
            raw, descriptors, _, _ = socket.recv_fds(
                connection.stream, wire.MESSAGE_BYTES_MAX + 1, DESCRIPTORS_MAX)
        except BlockingIOError:
            return False
        except OSError:
            raw, descriptors = b"", []
        if not raw:
            connection.leave()
            return False
        message = wire.read(raw)
        assert message.boot == (0 if message.kind == wire.HELLO else connection.boot)
        if message.kind == wire.HELLO:
            assert (message.rank, message.rank_count) == (0, 1) and message.version
            assert len(descriptors) == len(message.regions)
            assert bool(descriptors) == (message.role == wire.WORKER)
            connection.hello = message
            connection.regions = [mmap.mmap(fd, region[0], mmap.MAP_SHARED)
                                  for fd, region in zip(descriptors, message.regions)]
        for descriptor in descriptors:
            os.close(descriptor)
        if message.kind == wire.LOAD:
            connection.loads.add(message.job)
        self.heard.append((connection.hello.role if connection.hello else None, message))
        if message.kind in self.before:
            self.before[message.kind](self, connection, message)
        if message.kind in self.instead:
            self.instead[message.kind](self, connection, message)
        else:
            self.answer(connection, message)
        return True

    def answer(self, connection, message):
        """What an agent should do."""
        {wire.HELLO: self._hello, wire.OPEN: self._open, wire.TOKENS: self._tokens,
         wire.LOOKUP: self._lookup, wire.TAKE: self._take, wire.CLOSE: self._close,
         wire.RESET: self._reset, wire.LOAD: self._load, wire.SAVE: self._save,
         wire.PING: lambda c, m: c.say(wire.PONG, number=m.number),
         }[message.kind](connection, message)

    def _hello(self, connection, _message):
        connection.say(wire.WELCOME, version="fake", **self.limits)

    def _open(self, connection, message):
        assert message.request not in connection.prompts
        connection.prompts[message.request] = message

    def _tokens(self, connection, message):
        prompt = connection.prompts[message.request]
        assert message.first == len(prompt.tokens)
        prompt.tokens += message.tokens

    def _lookup(self, connection, message):
        prompt = connection.prompts[message.request]
        tokens = connection.hello.block_tokens
        assert message.local_tokens % tokens == 0
        found, first = 0, message.local_tokens // tokens
        if not self.half_of(connection, wire.WORKER):
            first = len(prompt.tokens)  # there is nowhere to load to
        for key in self.keys(connection, prompt)[first:(prompt.prompt_tokens - 1) // tokens]:
            if key not in self.pages:
                break
            found += tokens
        connection.say(wire.FOUND, request=message.request, tokens=found, later_ms=0,
                       why=wire.HIT if found else wire.MISS)

    def _take(self, connection, message):
        """Nothing ever leaves here: there is nothing to hold."""
        assert message.request in connection.prompts

    def _close(self, connection, message):
        del connection.prompts[message.number]

    def _reset(self, connection, message):
        self.pages.clear()
        connection.say(wire.DONE, number=message.number)

    def _load(self, connection, message):
        keys, loaded = self.keys_of_worker(connection, message.request), 0
        for index, block in enumerate(message.engine_blocks, message.first_block):
            if index >= len(keys) or keys[index] not in self.pages:
                break
            connection.fill(block, self.pages[keys[index]])
            loaded += 1
        self.loaded += loaded
        connection.say(wire.LOADED, job=message.job, block_count=loaded)

    def _save(self, connection, message):
        known = refused = 0
        copied = {}
        for request, first, blocks in message.entries:
            keys = self.keys_of_worker(connection, request)
            for index, block in enumerate(blocks, first):
                if index >= len(keys):
                    refused += 1
                elif keys[index] in self.pages:
                    known += 1
                else:
                    copied[keys[index]] = connection.page(block)
        # The engine leaves them alone until it has ended the connection: were they, all the while?
        if not connection.has_ended():
            self.pages.update(copied)
        connection.say(wire.SAVED, job=message.job, saved=len(copied), known=known,
                       refused=refused)

    def keys(self, connection, prompt):
        """Of the full blocks of the tokens that came, each standing for all before it."""
        tokens, keys = connection.hello.block_tokens, []
        key = f"{connection.hello.model} {prompt.lora} {prompt.salt}".encode()
        for first in range(0, len(prompt.tokens) - tokens + 1, tokens):
            block = wire.pack_numbers(prompt.tokens[first:first + tokens])
            key = hashlib.sha256(key + block).digest()
            keys.append(key)
        return keys

    def keys_of_worker(self, connection, request):
        for other in self.half_of(connection, wire.SCHEDULER):
            if request in other.prompts:
                return self.keys(other, other.prompts[request])
        return []
