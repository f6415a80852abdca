# SPDX-License-Identifier: Apache-2.0
"""An agent as engines see it: the connector's protocol, read and written by a second hand, and pages
that are kept in a dict. It is right unless the test makes it wrong: by its fields, which say what
comes of each question, and by what may happen to it."""

import contextlib
import mmap
import os
import queue
import select
import selectors
import socket
import struct
import tempfile
import threading
import time
from dataclasses import dataclass, field

HEAD = struct.Struct("<HBBIQ")
MAGIC, VERSION = 0x5653, 1
HELLO, OPEN, TOKENS, LOOKUP, TAKE, CLOSE, RESET, LOAD, SAVE, PING = range(1, 11)
WELCOME, REFUSED, FOUND, DONE, LOADED, SAVED, PONG = range(65, 72)
SCHEDULER, WORKER = 1, 2
HIT, MISS, SLOWER, LATER, NO_ROOM = range(5)


class Reader:
    """Fields of a body, in order."""

    def __init__(self, body):
        self.body = body
        self.at = 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.body, self.at)
        self.at += struct.calcsize("<" + form)
        return values if len(values) != 1 else values[0]

    def text(self):
        return bytes(self.take(f"{self.take('H')}s")).decode()

    def numbers(self, count):
        values = self.take(f"{count}I")
        return list(values) if count != 1 else [values]

    def end(self):
        assert self.at == len(self.body), f"{len(self.body) - self.at} bytes too many"


def text(value):
    raw = value.encode()
    return struct.pack("<H", len(raw)) + raw


@dataclass
class Memory:
    """An engine's pages, mapped here."""
    map: mmap.mmap
    block_count: int
    segments: list  # (offset, stride, bytes)

    def read(self, block):
        return [self.map[offset + block * stride:offset + block * stride + size]
                for offset, stride, size in self.segments]

    def write(self, block, parts):
        for (offset, stride, size), part in zip(self.segments, parts, strict=True):
            self.map[offset + block * stride:offset + block * stride + size] = part


@dataclass
class Request:
    tokens: list
    prompt_tokens: int
    id: str
    lora: str
    salt: str


@dataclass
class Engine:
    """What one engine_id said."""
    model: str = ""
    block_tokens: int = 0
    worker: str = ""
    memory: Memory = None
    requests: dict = field(default_factory=dict)


class ConnectorAgent:
    def __init__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="connector-")
        self.path = f"{self.directory.name}/agent.sock"
        self.pages = {}  # (model, lora, salt, tokens up to the block's end) -> parts
        self.seen = queue.Queue()  # (kind, fields) of every message, as it came
        # What comes of a question. A test sets them; None: nothing comes.
        self.save_ms = 2000
        self.answers_lookups = True
        self.later_ms = 0  # of the next lookup alone
        self.answers_loads = True
        self.load_count = None  # LOADED with so many blocks, whatever was asked
        self.answers_saves = True
        self.refuses = None  # (code, text)
        self.stale_boot = False  # answers as another agent would
        self.held = []  # (socket, message) that were not sent: see release()
        self.boot = None
        self.start()

    # --- what may happen to it ---

    def start(self):
        self.boot = int.from_bytes(os.urandom(8), "little")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.connections = {}  # socket -> (engine_id, role)
        self.engines = {}
        self.is_ending = False
        self.waker, self.wakened = os.pipe()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def end(self):
        """As if it had died: all its sockets close."""
        if self.listener is None:
            return
        self.is_ending = True
        os.write(self.wakened, b"x")
        self.thread.join()
        os.close(self.waker)
        os.close(self.wakened)
        os.unlink(self.path)
        self.listener = None
        self.held = []

    def restart(self):
        """Another life of it, with the pages of before."""
        self.end()
        self.start()

    def release(self):
        """Sends what was held back: late answers."""
        for sock, message in self.held:
            with contextlib.suppress(OSError):
                sock.send(message)
        self.held = []

    def spoil(self):
        """One bit of each page is another one."""
        for key, parts in self.pages.items():
            last = bytearray(parts[-1])
            last[-1] ^= 1
            self.pages[key] = [*parts[:-1], bytes(last)]

    def stop(self):
        self.end()
        self.directory.cleanup()

    # --- what it has seen ---

    def wait(self, kind, timeout_s=10):
        """The next message of that kind; what came before it is forgotten."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            try:
                seen, fields = self.seen.get(timeout=max(left, 0.001))
            except queue.Empty:
                raise AssertionError(f"no message of kind {kind} in time") from None
            if seen == kind:
                return fields

    def forget(self):
        with contextlib.suppress(queue.Empty):
            while True:
                self.seen.get_nowait()

    # --- serving ---

    def _serve(self):
        selector = selectors.DefaultSelector()
        selector.register(self.listener, selectors.EVENT_READ)
        selector.register(self.waker, selectors.EVENT_READ)
        while not self.is_ending:
            for key, _ in selector.select():
                if key.fileobj is self.listener:
                    sock, _ = self.listener.accept()
                    selector.register(sock, selectors.EVENT_READ)
                    self.connections[sock] = (None, None)
                elif key.fileobj != self.waker and not self._hear(key.fileobj):
                    selector.unregister(key.fileobj)
                    del self.connections[key.fileobj]
                    key.fileobj.close()
        selector.close()
        for sock in (*self.connections, self.listener):
            sock.close()

    def _hear(self, sock):
        """One message. False: the connection is to end."""
        try:
            raw, fds, _, _ = socket.recv_fds(sock, 65537, 8)
        except ConnectionError:
            return False
        if not raw:
            self.seen.put(("end", self.connections[sock][1]))
            return False
        magic, version, kind, length, boot = HEAD.unpack_from(raw)
        assert (magic, version, length) == (MAGIC, VERSION, len(raw)), raw[:16]
        assert boot == (0 if kind == HELLO else self.boot), "the boot of another agent"
        reader = Reader(raw[HEAD.size:])
        if kind == HELLO:
            return self._hello(sock, reader, fds)
        engine_id, role = self.connections[sock]
        if role == WORKER:
            self._hear_scheduler(engine_id)
        HEARD[kind](self, sock, self.engines[engine_id], reader)
        reader.end()
        return True

    def _hear_scheduler(self, engine_id):
        """What it has sent comes before what its worker did. Its end is left to the selector."""
        for sock, said in self.connections.items():
            while said == (engine_id, SCHEDULER) and select.select([sock], [], [], 0)[0]:
                if not sock.recv(1, socket.MSG_PEEK) or not self._hear(sock):
                    break

    def _say(self, sock, kind, body, is_said=True):
        boot = self.boot ^ 1 if self.stale_boot else self.boot
        message = HEAD.pack(MAGIC, VERSION, kind, HEAD.size + len(body), boot) + body
        if is_said:
            with contextlib.suppress(OSError):
                sock.send(message)
        else:
            self.held.append((sock, message))

    def _hello(self, sock, reader, fds):
        (role, device, rank, rank_count, region_count, segment_count, block_count, block_tokens,
         engine_id, _, _) = reader.take("BBHHHIII16s16s64s")
        worker, model, version = reader.text(), reader.text(), reader.text()
        regions = [reader.take("QQ64s") for _ in range(region_count)]
        segments = [reader.take("IIQQQ") for _ in range(segment_count)]
        reader.end()
        assert (device, rank, rank_count) == (0, 0, 1) and version
        assert len(regions) == len(fds) == (1 if role == WORKER else 0)
        if self.refuses:
            code, why = self.refuses
            self._say(sock, REFUSED, struct.pack("<HHI", code, 0, 0) + text(why))
            return False
        engine = self.engines.setdefault(engine_id, Engine())
        engine.model, engine.block_tokens, engine.worker = model, block_tokens, worker
        if role == WORKER:
            engine.memory = Memory(mmap.mmap(fds[0], regions[0][0]), block_count,
                                   [(offset, stride, size) for _, _, offset, stride, size in segments])
            os.close(fds[0])
        self.connections[sock] = (engine_id, role)
        self.seen.put((HELLO, {"role": role, "worker": worker, "model": model,
                               "engine_id": engine_id}))
        self._say(sock, WELCOME, struct.pack("<IIII", 30000, 2, self.save_ms, 0) + text("scripted"))
        return True

    def _open(self, sock, engine, reader):
        number, prompt_tokens, count = reader.take("QII")
        request = Request([], prompt_tokens, reader.text(), reader.text(), reader.text())
        request.tokens = reader.numbers(count)
        assert number not in engine.requests
        engine.requests[number] = request
        self.seen.put((OPEN, {"request": number, "id": request.id, "lora": request.lora,
                              "salt": request.salt, "prompt_tokens": prompt_tokens}))

    def _tokens(self, sock, engine, reader):
        number, first, count = reader.take("QII")
        request = engine.requests[number]
        assert first == len(request.tokens)
        request.tokens += reader.numbers(count)

    def _keys(self, engine, number):
        request = engine.requests[number]
        step = engine.block_tokens
        return [(engine.model, request.lora, request.salt, tuple(request.tokens[:end]))
                for end in range(step, request.prompt_tokens + 1, step)]

    def _lookup(self, sock, engine, reader):
        number, local, spare = reader.take("QII")
        assert spare == 0 and local % engine.block_tokens == 0
        last = (engine.requests[number].prompt_tokens - 1) // engine.block_tokens
        keys = self._keys(engine, number)[local // engine.block_tokens:last]
        count = next((i for i, key in enumerate(keys) if key not in self.pages), len(keys))
        self.seen.put((LOOKUP, {"request": number, "local": local, "found": count}))
        later_ms, self.later_ms = self.later_ms, 0
        why = LATER if later_ms else HIT if count else MISS
        tokens = 0 if later_ms else count * engine.block_tokens
        self._say(sock, FOUND, struct.pack("<QIIB7x", number, tokens, later_ms, why),
                  self.answers_lookups)

    def _take(self, sock, engine, reader):
        number, first, count = reader.take("QII")
        assert number in engine.requests
        self.seen.put((TAKE, {"request": number, "first": first, "count": count}))

    def _close(self, sock, engine, reader):
        number = reader.take("Q")
        del engine.requests[number]
        self.seen.put((CLOSE, {"request": number}))

    def _load(self, sock, engine, reader):
        job, number, first, count = reader.take("QQII")
        blocks = reader.numbers(count)
        keys = self._keys(engine, number)[first:first + count] if number in engine.requests else []
        loaded = 0
        for key, block in zip(keys, blocks):
            if key not in self.pages or loaded == self.load_count:
                break
            engine.memory.write(block, self.pages[key])
            loaded += 1
        self.seen.put((LOAD, {"job": job, "request": number, "blocks": blocks}))
        self._say(sock, LOADED, struct.pack("<QII", job, loaded, 0), self.answers_loads)

    def _save(self, sock, engine, reader):
        job, entry_count, step_tokens, step_us, spare = reader.take("QIIII")
        assert spare == 0 and step_us > 0
        saved = known = refused = 0
        for _ in range(entry_count):
            number, first, count = reader.take("QII")
            blocks = reader.numbers(count)
            keys = self._keys(engine, number)[first:first + count]
            assert len(keys) == count, "blocks of prompts alone"
            for key, block in zip(keys, blocks):
                known += key in self.pages
                saved += key not in self.pages
                self.pages[key] = engine.memory.read(block)
        self.seen.put((SAVE, {"saved": saved, "known": known}))
        self._say(sock, SAVED, struct.pack("<QIIII", job, saved, known, refused, 0),
                  self.answers_saves)


HEARD = {
    OPEN: ConnectorAgent._open,
    TOKENS: ConnectorAgent._tokens,
    LOOKUP: ConnectorAgent._lookup,
    TAKE: ConnectorAgent._take,
    CLOSE: ConnectorAgent._close,
    LOAD: ConnectorAgent._load,
    SAVE: ConnectorAgent._save,
}
