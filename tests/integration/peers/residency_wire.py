# SPDX-License-Identifier: Apache-2.0
"""
What agents and routers say to each other in Redis, written and read by a second hand: what
residency_wire.h promises, and nothing of the code that keeps it.
"""

import struct
from dataclasses import dataclass

MASK = (1 << 64) - 1
HBM, CPU, SSD = 1, 2, 4
PAGE_RECORDS = 4090
RECORD_BYTES = 12
TEXT, ROUTED, ANSWERED, ANCHOR, PREFETCH = 1, 2, 3, 4, 6  # kinds of notes
UNKNOWN = 0xffffffff
NOTES_BYTES_MAX = 16384


# --- keys ---

def workers_key(fingerprint):
    return f"smv:{fingerprint:016x}:workers"


def worker_key(worker, end):
    return f"smv:{{{worker}}}:{end}"


# --- records: what a worker holds ---

def _mix(x):
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def record_digest(hash_, tokens, tiers):
    """What it adds to the digest of a whole."""
    return _mix(_mix(hash_ + 0x9e3779b97f4a7c15 & MASK) ^ (tokens << 8 | tiers)) if tiers else 0


def pack_record(hash_, tokens, tiers):
    return struct.pack("<Q", hash_) + tokens.to_bytes(3, "little") + bytes([tiers])


def unpack_records(data):
    """(hash, tokens, tiers) of each place."""
    for at in range(0, len(data) - len(data) % RECORD_BYTES, RECORD_BYTES):
        hash_, tail = struct.unpack_from("<QI", data, at)
        yield hash_, tail & 0x1fffff, tail >> 24 & 7


def pack_change(records, count, digest):
    """records: those that changed. count, digest: of all that are held after it."""
    return (struct.pack("<BBHIQQ", 1, ord("C"), 0, len(records), count, digest)
            + b"".join(pack_record(*record) for record in records))


def unpack_change_whole(data):
    """(count, digest) of all that are held after it."""
    return struct.unpack_from("<QQ", data, 8)


# --- leases ---

def lease_text(**words):
    return " ".join(f"{name}={value}" for name, value in words.items())


def lease_words(text):
    return dict(word.split("=", 1) for word in text.decode().split())


# --- notes: what routers tell ---

@dataclass
class Note:
    kind: int
    attempt: int  # of a prefetch: within how many ms
    start: int
    blocks: list  # of (hash, bytes)
    last_block: int = None  # of an anchor, as the next three
    token_count: int = None
    tail_tokens: int = None
    cached_tokens: int = None
    router: int = 0


def pack_note(kind, attempt=0, start=0, blocks=(), anchor=None):
    """blocks: (hash, bytes). anchor: (last block, tokens, tail tokens, cached tokens)."""
    body = struct.pack("<QQ", attempt, start)
    body += struct.pack("<QIII", *anchor) if anchor else b""
    body += b"".join(struct.pack("<QH", *block) for block in blocks)
    return struct.pack("<BBHI", kind, anchor is not None, len(blocks), 8 + len(body)) + body


def pack_notes(fingerprint, router, *notes):
    """An entry of notes that are packed already."""
    return struct.pack("<BBHIQQ", 1, ord("N"), 0, 0, fingerprint, router) + b"".join(notes)


def unpack_notes(data, fingerprint):
    """The notes of one entry; strict: every byte has its meaning."""
    assert len(data) <= NOTES_BYTES_MAX
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
