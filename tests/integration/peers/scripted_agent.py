# SPDX-License-Identifier: Apache-2.0
"""
An agent as routers see it: what one says of its worker in Redis, and the notes that it is told.
It holds nothing; what is in its stream is decoded here, by a reader of its own.
"""

import struct
from dataclasses import dataclass, field

TEXT, ROUTED, ANSWERED, ANCHOR = 1, 2, 3, 4
UNKNOWN = 0xFFFFFFFF


@dataclass
class Note:
    kind: int
    attempt: int
    start: int
    blocks: list  # of (hash, bytes)
    last_block: int = None  # of an anchor, as the next three
    token_count: int = None
    tail_tokens: int = None
    cached_tokens: int = None
    router: int = field(default=0)


def decode_entry(data, fingerprint):
    """The notes of one entry; strict: every byte has its meaning."""
    assert len(data) <= 16384
    said, router = struct.unpack_from("<QQ", data, 8)
    assert said == fingerprint
    notes, at = [], 24
    while at < len(data):
        kind, flags, count, length, attempt, start = struct.unpack_from("<BBHIQQ", data, at)
        assert flags in (0, 1)
        note = Note(kind, attempt, start, [], router=router)
        inner = at + 24
        if flags:
            (note.last_block, note.token_count, note.tail_tokens,
             note.cached_tokens) = struct.unpack_from("<QIII", data, inner)
            inner += 20
        for _ in range(count):
            note.blocks.append(struct.unpack_from("<QH", data, inner))
            inner += 10
        assert inner == at + length, "a note is as long as it says"
        notes.append(note)
        at = inner
    assert at == len(data)
    return notes


class ScriptedAgent:
    def __init__(self, redis, worker, router, block_tokens=16, has_anchors=False, depth_max=100000):
        """Speaks for worker, in router's fingerprint."""
        self.redis = redis
        self.name = worker.url
        self.fingerprint = int(router.log.wait("start")["fingerprint"], 16)
        self.life = "00000000000000a1"
        self.meta = {"fp": self._hex(), "url": self.name, "engine": "vllm", "node": "n",
                     "version": "0", "epoch": self.life, "block_tokens": block_tokens,
                     "cache_tokens": 0, "has_anchors": int(has_anchors),
                     "text_depth_max": depth_max}
        self.appear()

    def _hex(self):
        return f"{self.fingerprint:016x}"

    def key(self, what):
        return f"smv:{{{self.name}}}:{what}"

    def appear(self):
        self.redis.call("SADD", f"smv:{self._hex()}:workers", self.name)
        pairs = [word for pair in self.meta.items() for word in pair]
        self.redis.call("HSET", self.key("meta"), *pairs)
        self.redis.call("SET", self.key("lease"), f"v=1 fp={self._hex()} life={self.life}-0 seq=0 "
                        "pages=0 ms=1000 whole=1", "PX", 600000)

    def fall_silent(self):
        self.redis.call("DEL", self.key("lease"))

    def entries(self):
        """Each as its notes, oldest first."""
        entries = self.redis.call("XRANGE", self.key("in"), "-", "+")
        for _, fields in entries:
            assert fields[0] == b"b" and len(fields) == 2
        return [decode_entry(fields[1], self.fingerprint) for _, fields in entries]

    def notes(self):
        return [note for entry in self.entries() for note in entry]
