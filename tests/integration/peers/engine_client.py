# SPDX-License-Identifier: Apache-2.0
"""
An engine as the agent's socket sees it: its scheduler, its worker, and its memory, whose every page
the test can fill and read. It says what the test says, in the words of kvtier/connector/ipc_wire.h,
packed here by a second hand: the connector's own wire says nothing wrong, and what it and the agent
misread alike would go unseen.
"""

import array
import fcntl
import mmap
import os
import select
import socket
import struct
import time

from peers.wire import WAIT_S

MAGIC, VERSION = 0x5653, 1
HEAD = struct.Struct("<HBBIQ")
MESSAGE_BYTES_MAX = 65536
(HELLO, OPEN, TOKENS, LOOKUP, TAKE, CLOSE, RESET, LOAD, SAVE, PING) = range(1, 11)
(WELCOME, REFUSED, FOUND, DONE, LOADED, SAVED, PONG) = range(65, 72)
SCHEDULER, WORKER = 1, 2
HIT, MISS, SLOWER, LATER, NO_ROOM = range(5)
(REFUSED_VERSION, REFUSED_BROKEN, REFUSED_WORKER, REFUSED_LAYOUT, REFUSED_RANKS,
 REFUSED_BUSY) = range(1, 7)
TOKENS_IN_A_MESSAGE = 15000
BLOCK_TOKENS = 16


def message(kind, body, boot=0, version=VERSION):
    return HEAD.pack(MAGIC, version, kind, HEAD.size + len(body), boot) + body


def text(value):
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<H", len(raw)) + raw


def numbers(values):
    return struct.pack(f"<{len(values)}I", *values)


def load_body(job, request, blocks, first_block=0):
    return struct.pack("<QQII", job, request, first_block, len(blocks)) + numbers(blocks)


def save_body(job, entries, step_tokens=0, step_us=0):
    """entries: (request, first_block, engine blocks)"""
    body = struct.pack("<QIIII", job, len(entries), step_tokens, step_us, 0)
    for request, first_block, blocks in entries:
        body += struct.pack("<QII", request, first_block, len(blocks)) + numbers(blocks)
    return body


def loaded_by(link, job):
    answered, count = struct.unpack_from("<QI", link.receive(LOADED)[1])
    assert answered == job
    return count


def saved_by(link, job):
    """(saved, known, refused)"""
    answered, *counts = struct.unpack_from("<QIII", link.receive(SAVED)[1])
    assert answered == job
    return tuple(counts)


class Ended(Exception):
    """The agent has closed the connection."""


class Link:
    """One connection: whole messages out and in."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(str(path))
        self.boot = 0

    def send(self, kind, body, fds=()):
        self.send_raw(message(kind, body, self.boot), fds)

    def send_raw(self, raw, fds=()):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([raw], rights)

    def receive(self, *kinds):
        """(kind, body) of the next message, which must be of one of these kinds."""
        raw = self.socket.recv(MESSAGE_BYTES_MAX)
        if not raw:
            raise Ended
        magic, version, kind, length, boot = HEAD.unpack_from(raw)
        assert (magic, version, length) == (MAGIC, VERSION, len(raw)), raw
        assert boot != 0 and self.boot in (0, boot)
        self.boot = boot
        body = raw[HEAD.size:]
        assert not kinds or kind in kinds, f"{kind}: {body}"
        return kind, body

    def refusal(self):
        """(code, sentence), behind which the connection ends."""
        _, body = self.receive(REFUSED)
        code, _, _, length = struct.unpack_from("<HHIH", body)
        assert len(body) == 10 + length
        self.expect_end()
        return code, body[10:].decode()

    def expect_end(self):
        try:
            raw = self.socket.recv(MESSAGE_BYTES_MAX)
        except ConnectionResetError:  # it had not read all that was sent
            raw = b""
        assert raw == b"", raw

    def is_silent(self, seconds=0.05):
        return not select.select([self.socket], [], [], seconds)[0]

    def ping(self, number=7):
        self.send(PING, struct.pack("<Q", number))
        assert self.receive(PONG)[1] == struct.pack("<Q", number)

    def close(self):
        self.socket.close()


class Pages:
    """Where an engine's pages lie in its one region: layer after layer, in each block after block."""

    def __init__(self, block_count, layer_count, layer_bytes):
        self.block_count, self.layer_count, self.layer_bytes = block_count, layer_count, layer_bytes
        self.bytes = block_count * layer_count * layer_bytes

    def starts(self, block):
        for layer in range(self.layer_count):
            yield (layer * self.block_count + block) * self.layer_bytes

    @property
    def page_bytes(self):
        return self.layer_count * self.layer_bytes

    def segments(self):
        """(region, offset, stride, bytes)"""
        return [(0, start, self.layer_bytes, self.layer_bytes) for start in self.starts(0)]


class Memory(Pages):
    """Pages of an engine on a CPU: layers of blocks in one memfd, as vLLM lays them out."""
    device, uuid, event_handle, handle = 0, bytes(16), bytes(64), bytes(64)

    def __init__(self, block_count=64, layer_count=2, layer_bytes=4096,
                 is_sealed=True):
        super().__init__(block_count, layer_count, layer_bytes)
        self.fd = os.memfd_create("engine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.bytes)
        if is_sealed:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.map = mmap.mmap(self.fd, self.bytes)
        self.descriptors = [self.fd]

    def _places(self, block):
        return (slice(start, start + self.layer_bytes) for start in self.starts(block))

    def write(self, block, page):
        for i, place in enumerate(self._places(block)):
            self.map[place] = page[i * self.layer_bytes:(i + 1) * self.layer_bytes]

    def read(self, block):
        return b"".join(self.map[place] for place in self._places(block))

    def close(self):
        self.map.close()
        os.close(self.fd)


class EngineClient:
    """Both connections of one engine of one rank, registered unless it is told otherwise."""

    def __init__(self, path, worker="", model="tiny", block_tokens=BLOCK_TOKENS, memory=None, engine_id=None,
                 registers=True):
        self.path = path
        self.worker_name, self.model, self.block_tokens = worker, model, block_tokens
        self.memory = memory or Memory()
        self.engine_id = engine_id or os.urandom(16)
        self.scheduler = self.worker = None
        self.next_request = self.next_job = 1
        if registers:
            self.register()

    def register(self):
        self.register_scheduler()
        self.register_worker()
        return self

    def register_scheduler(self):
        self.scheduler = Link(self.path)
        self.scheduler.send(HELLO, self.hello(SCHEDULER))
        return self.welcome(self.scheduler)

    def register_worker(self):
        self.worker = Link(self.path)
        self.worker.send(HELLO, self.hello(WORKER), self.memory.descriptors)
        return self.welcome(self.worker)

    @staticmethod
    def welcome(link):
        """(lease_ms, lookup_ms, save_ms)"""
        return struct.unpack_from("<III", link.receive(WELCOME)[1])

    def hello(self, role, device=None, rank=0, rank_count=1, **other):
        """Any field may be said otherwise: block_tokens, model, segments, region_bytes, ..."""
        memory = other.get("memory", self.memory)
        is_worker = role == WORKER
        segments = other.get("segments", memory.segments() if is_worker else [])
        regions = [other.get("region_bytes", memory.bytes)] if is_worker else []
        device = memory.device if device is None else device
        body = struct.pack("<BBHHHIII", role, device, rank, rank_count, len(regions), len(segments),
                           other.get("block_count", memory.block_count if is_worker else 0),
                           other.get("block_tokens", self.block_tokens))
        body += self.engine_id + memory.uuid + memory.event_handle
        body += text(other.get("worker", self.worker_name)) + text(other.get("model", self.model))
        body += text("0.32.0")
        body += b"".join(struct.pack("<QQ64s", length, 0, memory.handle) for length in regions)
        return body + b"".join(struct.pack("<IIQQQ", region, 0, offset, stride, length)
                               for region, offset, stride, length in segments)

    # --- scheduler ---

    def open(self, ids, request_id="chatcmpl-1", lora="", salt=""):
        """The number of a new request with a prompt of these ids."""
        request = self.next_request
        self.next_request += 1
        first, rest = ids[:TOKENS_IN_A_MESSAGE], ids[TOKENS_IN_A_MESSAGE:]
        self.scheduler.send(OPEN, struct.pack("<QII", request, len(ids), len(first)) +
                            text(request_id) + text(lora) + text(salt) + numbers(first))
        at = len(first)
        while rest:
            part, rest = rest[:TOKENS_IN_A_MESSAGE], rest[TOKENS_IN_A_MESSAGE:]
            self.scheduler.send(TOKENS, struct.pack("<QII", request, at, len(part)) + numbers(part))
            at += len(part)
        return request

    def lookup(self, request, local_tokens=0):
        """(tokens, why)"""
        self.scheduler.send(LOOKUP, struct.pack("<QII", request, local_tokens, 0))
        answered, tokens, later_ms, why = struct.unpack_from(
            "<QIIB", self.scheduler.receive(FOUND)[1])
        assert answered == request and (later_ms > 0) == (why == LATER)
        return tokens, why

    def lookup_soon(self, request, local_tokens=0):
        """The same, as often as it is told to ask later."""
        deadline = time.monotonic() + WAIT_S
        while True:
            tokens, why = self.lookup(request, local_tokens)
            if why != LATER:
                return tokens, why
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def take(self, request, first_block, block_count):
        self.scheduler.send(TAKE, struct.pack("<QII", request, first_block, block_count))

    def close_request(self, request):
        self.scheduler.send(CLOSE, struct.pack("<Q", request))

    def begin_reset(self):
        self.scheduler.send(RESET, struct.pack("<Q", 1))

    def end_reset(self):
        self.scheduler.receive(DONE)

    def reset(self):
        self.begin_reset()
        self.end_reset()

    # --- worker ---

    def begin_load(self, request, blocks, first_block=0):
        job = self.next_job
        self.next_job += 1
        self.worker.send(LOAD, load_body(job, request, blocks, first_block))
        return job

    def loaded(self, job):
        """How many blocks of that load are there, once it is done."""
        return loaded_by(self.worker, job)

    def load(self, request, blocks, first_block=0):
        return self.loaded(self.begin_load(request, blocks, first_block))

    def begin_save(self, *entries, step_tokens=0, step_us=0):
        """entries: (request, first_block, engine blocks)"""
        job = self.next_job
        self.next_job += 1
        self.worker.send(SAVE, save_body(job, entries, step_tokens, step_us))
        return job

    def saved(self, job):
        """(saved, known, refused)"""
        return saved_by(self.worker, job)

    def save(self, request, blocks, first_block=0, **step):
        return self.saved(self.begin_save((request, first_block, blocks), **step))

    # --- its end ---

    def close(self):
        for link in (self.scheduler, self.worker):
            if link is not None:
                link.close()
        self.scheduler = self.worker = None

    def stop(self):
        self.close()
        self.memory.close()


class RankedEngineClient(EngineClient):
    """An engine of several ranks: each has a memory and a connection of its own, and says each job
    itself, whenever the test says so."""

    def __init__(self, path, memories, registers=True, **options):
        self.memories = memories
        self.links = [None] * len(memories)
        super().__init__(path, memory=memories[0], registers=registers, **options)

    def register(self):
        self.register_scheduler()
        for rank in range(len(self.memories)):
            self.register_rank(rank)
        return self

    def register_scheduler(self):
        self.scheduler = Link(self.path)
        self.scheduler.send(HELLO, self.hello(SCHEDULER, rank_count=len(self.memories)))
        return self.welcome(self.scheduler)

    def greet(self, index, **other):
        """A new connection that has said HELLO for that rank; any field may be said otherwise."""
        link = Link(self.path)
        fields = {"rank": index, "rank_count": len(self.memories), "memory": self.memories[index],
                  **other}
        link.send(HELLO, self.hello(WORKER, **fields), [fields["memory"].fd])
        return link

    def register_rank(self, rank):
        self.links[rank] = self.greet(rank)
        return self.welcome(self.links[rank])

    @property
    def page_bytes(self):
        return sum(memory.page_bytes for memory in self.memories)

    def write(self, block, page):
        for memory in self.memories:
            memory.write(block, page[:memory.page_bytes])
            page = page[memory.page_bytes:]

    def read(self, block):
        return b"".join(memory.read(block) for memory in self.memories)

    def new_job(self):
        self.next_job += 1
        return self.next_job - 1

    def say_save(self, rank, job, *entries):
        self.links[rank].send(SAVE, save_body(job, entries))

    def say_load(self, rank, job, request, blocks):
        self.links[rank].send(LOAD, load_body(job, request, blocks))

    def save(self, request, blocks, order=None):
        """What each rank heard of it: they must have heard the same."""
        job = self.new_job()
        for rank in order or range(len(self.links)):
            self.say_save(rank, job, (request, 0, blocks))
        (counts,) = {saved_by(link, job) for link in self.links}
        return counts

    def load(self, request, blocks, order=None):
        job = self.new_job()
        for rank in order or range(len(self.links)):
            self.say_load(rank, job, request, blocks)
        (count,) = {loaded_by(link, job) for link in self.links}
        return count

    def close(self):
        super().close()
        for link in self.links:
            if link is not None:
                link.close()

    def stop(self):
        self.close()
        for memory in self.memories:
            memory.close()
