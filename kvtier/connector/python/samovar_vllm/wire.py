# SPDX-License-Identifier: Apache-2.0
"""wire: what an engine's connector and the agent of its node say to each other, byte by byte.

The contract is kvtier/connector/ipc_wire.h: same words, same order, same limits. A table names the
fields of each kind once, and serves both ways: what is written cannot differ from what is read.
What was read has exactly one spelling; whatever is not one is Broken. Pure: no socket, no clock.

A message is a SimpleNamespace: kind, boot, and the fields of its kind. Counts are not fields: they
are what the lists have.
"""

import array
import struct
import sys
import types

VERSION = 1
MAGIC = 0x5653
MESSAGE_BYTES_MAX = 65536
TEXT_BYTES_MAX = 1024
TOKEN_COUNT_MAX = 15000
BLOCK_COUNT_MAX = 15000
SAVE_ENTRY_COUNT_MAX = 512
REGION_COUNT_MAX = 64
SEGMENT_COUNT_MAX = 1024
RANK_COUNT_MAX = 64
HANDLE_BYTES = 64

HELLO, OPEN, TOKENS, LOOKUP, TAKE, CLOSE, RESET, LOAD, SAVE, PING = range(1, 11)
WELCOME, REFUSED, FOUND, DONE, LOADED, SAVED, PONG = range(65, 72)

SCHEDULER, WORKER = 1, 2
HOST, CUDA = 0, 1
HIT, MISS, SLOWER, LATER, NO_ROOM = range(5)
(REFUSED_VERSION, REFUSED_BROKEN, REFUSED_WORKER, REFUSED_LAYOUT, REFUSED_RANKS,
 REFUSED_BUSY) = range(1, 7)

HEAD = struct.Struct("<HBBIQ")
REGION = struct.Struct(f"<QQ{HANDLE_BYTES}s")  # bytes, offset in the allocation, its handle
SEGMENT = struct.Struct("<IIQQQ")  # region, 0, offset, stride, bytes
ENTRY = struct.Struct("<QII")  # of SAVE: request, first block, count; its blocks follow
SAVE_HEAD_BYTES = HEAD.size + 24


class Broken(Exception):
    """Bytes that are no message of ours."""


def pack_numbers(numbers):
    """u32 each."""
    packed = array.array("I", numbers)
    assert packed.itemsize == 4
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_numbers(raw):
    numbers = array.array("I")
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


class _Cursor:
    """What has not been read yet, and the counts that were read before their lists."""

    def __init__(self, raw):
        self.raw, self.at, self.counts = memoryview(raw), 0, {}

    def take(self, length):
        end = self.at + length
        if end > len(self.raw):
            raise Broken("it is cut off")
        self.at, taken = end, self.raw[self.at:end]
        return taken

    def unpack(self, fields):
        return fields.unpack(self.take(fields.size))


class _Number:
    """An unsigned number in least to most, both included."""

    def __init__(self, code, name, least=0, most=None):
        self.fields, self.name = struct.Struct("<" + code), name
        self.least, self.most = least, most

    def write(self, out, message):
        out += self.fields.pack(getattr(message, self.name))

    def read(self, cursor, message):
        (value,) = cursor.unpack(self.fields)
        if value < self.least or (self.most is not None and value > self.most):
            raise Broken(f"{self.name} is {value}")
        setattr(message, self.name, value)


class _Bytes:
    def __init__(self, length, name):
        self.length, self.name = length, name

    def write(self, out, message):
        value = getattr(message, self.name)
        assert len(value) == self.length
        out += value

    def read(self, cursor, message):
        setattr(message, self.name, bytes(cursor.take(self.length)))


class _Spare:
    """Zero, until another version says what it is."""

    def __init__(self, length):
        self.zeros = bytes(length)

    def write(self, out, _message):
        out += self.zeros

    def read(self, cursor, _message):
        if cursor.take(len(self.zeros)) != self.zeros:
            raise Broken("something stands where nothing may")


class _Text:
    """Bytes that are text for people: whatever cannot be read as such is kept as it is."""

    def __init__(self, name):
        self.name = name

    def write(self, out, message):
        raw = getattr(message, self.name).encode("utf-8", "surrogateescape")
        assert len(raw) <= TEXT_BYTES_MAX
        out += len(raw).to_bytes(2, "little") + raw

    def read(self, cursor, message):
        length = int.from_bytes(cursor.take(2), "little")
        if length > TEXT_BYTES_MAX:
            raise Broken(f"{self.name} is too long")
        setattr(message, self.name, str(cursor.take(length), "utf-8", "surrogateescape"))


class _Count:
    """How long the list of that name is, which comes later."""

    def __init__(self, code, name, most):
        self.fields, self.name, self.most = struct.Struct("<" + code), name, most

    def write(self, out, message):
        count = len(getattr(message, self.name))
        assert count <= self.most
        out += self.fields.pack(count)

    def read(self, cursor, _message):
        (count,) = cursor.unpack(self.fields)
        if count > self.most:
            raise Broken(f"too many {self.name}")
        cursor.counts[self.name] = count


class _Numbers:
    def __init__(self, name):
        self.name = name

    def write(self, out, message):
        out += pack_numbers(getattr(message, self.name))

    def read(self, cursor, message):
        raw = cursor.take(4 * cursor.counts[self.name])
        setattr(message, self.name, unpack_numbers(raw))


class _Regions:
    name = "regions"

    def write(self, out, message):
        for region in message.regions:
            out += REGION.pack(*region)

    def read(self, cursor, message):
        message.regions = [cursor.unpack(REGION) for _ in range(cursor.counts[self.name])]


class _Segments:
    """(region, offset, stride, bytes)"""
    name = "segments"

    def write(self, out, message):
        for region, *rest in message.segments:
            out += SEGMENT.pack(region, 0, *rest)

    def read(self, cursor, message):
        message.segments = []
        for _ in range(cursor.counts[self.name]):
            region, spare, *rest = cursor.unpack(SEGMENT)
            if spare:
                raise Broken("something stands where nothing may")
            message.segments.append((region, *rest))


class _Entries:
    """(request, first block, engine blocks)"""
    name = "entries"

    def write(self, out, message):
        for request, first, blocks in message.entries:
            out += ENTRY.pack(request, first, len(blocks)) + pack_numbers(blocks)

    def read(self, cursor, message):
        message.entries = []
        for _ in range(cursor.counts[self.name]):
            request, first, count = cursor.unpack(ENTRY)
            if count > BLOCK_COUNT_MAX:
                raise Broken("too many blocks")
            message.entries.append((request, first, unpack_numbers(cursor.take(4 * count))))


_NUMBER = (_Number("Q", "number"),)

FIELDS = {
    HELLO: (_Number("B", "role", SCHEDULER, WORKER), _Number("B", "device", HOST, CUDA),
            _Number("H", "rank"), _Number("H", "rank_count"),
            _Count("H", "regions", REGION_COUNT_MAX), _Count("I", "segments", SEGMENT_COUNT_MAX),
            _Number("I", "block_count"), _Number("I", "block_tokens"), _Bytes(16, "engine_id"),
            _Bytes(16, "uuid"), _Bytes(HANDLE_BYTES, "event_handle"), _Text("worker"),
            _Text("model"), _Text("version"), _Regions(), _Segments()),
    OPEN: (_Number("Q", "request"), _Number("I", "prompt_tokens"),
           _Count("I", "tokens", TOKEN_COUNT_MAX), _Text("id"), _Text("lora"), _Text("salt"),
           _Numbers("tokens")),
    TOKENS: (_Number("Q", "request"), _Number("I", "first"),
             _Count("I", "tokens", TOKEN_COUNT_MAX), _Numbers("tokens")),
    LOOKUP: (_Number("Q", "request"), _Number("I", "local_tokens"), _Spare(4)),
    TAKE: (_Number("Q", "request"), _Number("I", "first_block"), _Number("I", "block_count")),
    CLOSE: _NUMBER,
    RESET: _NUMBER,
    LOAD: (_Number("Q", "job"), _Number("Q", "request"), _Number("I", "first_block"),
           _Count("I", "engine_blocks", BLOCK_COUNT_MAX), _Numbers("engine_blocks")),
    SAVE: (_Number("Q", "job"), _Count("I", "entries", SAVE_ENTRY_COUNT_MAX),
           _Number("I", "step_tokens"), _Number("I", "step_us"), _Spare(4), _Entries()),
    PING: _NUMBER,
    WELCOME: (_Number("I", "lease_ms"), _Number("I", "lookup_ms"), _Number("I", "save_ms"),
              _Spare(4), _Text("version")),
    REFUSED: (_Number("H", "code", REFUSED_VERSION, REFUSED_BUSY), _Spare(6), _Text("text")),
    FOUND: (_Number("Q", "request"), _Number("I", "tokens"), _Number("I", "later_ms"),
            _Number("B", "why", HIT, NO_ROOM), _Spare(7)),
    DONE: _NUMBER,
    LOADED: (_Number("Q", "job"), _Number("I", "block_count"), _Spare(4)),
    SAVED: (_Number("Q", "job"), _Number("I", "saved"), _Number("I", "known"),
            _Number("I", "refused"), _Spare(4)),
    PONG: _NUMBER,
}


def write(kind, boot, **fields):
    """The whole message. What does not fit its field is a bug of ours, and raises."""
    message = types.SimpleNamespace(**fields)
    out = bytearray(HEAD.pack(MAGIC, VERSION, kind, 0, boot))
    for field in FIELDS[kind]:
        field.write(out, message)
    assert len(out) <= MESSAGE_BYTES_MAX
    out[4:8] = len(out).to_bytes(4, "little")
    return bytes(out)


def read(raw):
    """One whole message, or Broken."""
    cursor = _Cursor(raw)
    magic, version, kind, length, boot = cursor.unpack(HEAD)
    if magic != MAGIC or length != len(raw) or length > MESSAGE_BYTES_MAX:
        raise Broken("it has no head of ours")
    if version != VERSION:
        raise Broken(f"it is of version {version}")
    if kind not in FIELDS:
        raise Broken(f"there is no kind {kind}")
    message = types.SimpleNamespace(kind=kind, boot=boot)
    for field in FIELDS[kind]:
        field.read(cursor, message)
    if cursor.at != len(raw):
        raise Broken("it is too long")
    return message


def save_batches(entries):
    """Splits entries, (request, first block, engine blocks), into what one SAVE each can carry."""
    batch, room = [], MESSAGE_BYTES_MAX - SAVE_HEAD_BYTES
    for request, first, blocks in entries:
        while blocks:
            fits = min((room - ENTRY.size) // 4, BLOCK_COUNT_MAX, len(blocks))
            if fits <= 0 or len(batch) == SAVE_ENTRY_COUNT_MAX:
                yield batch
                batch, room = [], MESSAGE_BYTES_MAX - SAVE_HEAD_BYTES
                continue
            batch.append((request, first, blocks[:fits]))
            room -= ENTRY.size + 4 * fits
            first, blocks = first + fits, blocks[fits:]
    if batch:
        yield batch
