# SPDX-License-Identifier: Apache-2.0
"""
The shared map, read and written by a second hand: what residency_wire.h promises, and nothing of
the code that keeps it.
"""

import struct
import subprocess

from peers.process import program, wait_until

HBM, CPU = 1, 2
UNKNOWN = 0xffffffff
MASK = (1 << 64) - 1


def token_names(secret_file, ids, block_tokens, salt="", lora=None):
    """(fingerprint, names of the full blocks) of a prompt of these token ids."""
    argv = [program("samovar-token-names"), secret_file, str(block_tokens), salt]
    argv += [lora] if lora else []
    text = subprocess.run(argv, input=" ".join(map(str, ids)), capture_output=True, text=True,
                          check=True).stdout.split()
    return int(text[0], 16), [int(name, 16) for name in text[1:]]


# --- what routers write ---

ROUTER = 0x7e57
NOTE_TEXT, NOTE_ROUTED, NOTE_ANSWERED, NOTE_ANCHOR = 1, 2, 3, 4


def note(kind, attempt=0, start=0, blocks=(), anchor=None):
    """blocks: (hash, bytes). anchor: (last block, tokens, tail tokens, cached tokens)."""
    body = struct.pack("<QQ", attempt, start)
    body += struct.pack("<QIII", *anchor) if anchor else b""
    body += b"".join(struct.pack("<QH", *block) for block in blocks)
    return struct.pack("<BBHI", kind, anchor is not None, len(blocks), 8 + len(body)) + body


def entry(fingerprint, *notes):
    return struct.pack("<BBHIQQ", 1, ord("N"), 0, 0, fingerprint, ROUTER) + b"".join(notes)


# --- what agents write ---

def _mix(x):
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def _digest(records):
    return sum(_mix(_mix(hash_ + 0x9e3779b97f4a7c15 & MASK) ^ (tokens << 8 | tiers))
               for hash_, (tokens, tiers) in records.items()) & MASK


def _records(data):
    """(hash, tokens, tiers) of each place."""
    for at in range(0, len(data) - len(data) % 12, 12):
        hash_, tail = struct.unpack_from("<QI", data, at)
        yield hash_, tail & 0x1fffff, tail >> 24 & 7


class ResidencyMap:
    """What Redis says of one worker."""

    def __init__(self, redis, worker):
        self.redis = redis
        self.worker = worker

    def key(self, end):
        return f"smv:{{{self.worker}}}:{end}"

    def lease(self):
        """{} where it has none."""
        text = self.redis.call("GET", self.key("lease"))
        return dict(word.split("=", 1) for word in text.decode().split()) if text else {}

    def meta(self):
        flat = [text.decode() for text in self.redis.call("HGETALL", self.key("meta"))]
        return dict(zip(flat[::2], flat[1::2]))

    def records(self):
        """{hash: (tokens, tiers)} as its pages say, or None while they and the last change differ,
        as they may while a change is on its way. {} where nobody holds its lease."""
        lease = self.lease()
        if not lease:
            return {}
        keys = [self.key(f"{lease['life']}:p:{n}") for n in range(int(lease["pages"]))]
        pages = self.redis.call("MGET", *keys) if keys else []
        held = {hash_: (tokens, tiers) for page in pages if page
                for hash_, tokens, tiers in _records(page) if hash_ and tiers}
        last = self.redis.call("XREVRANGE", self.key(f"{lease['life']}:out"), "+", "-", "COUNT", 1)
        if last:
            change = last[0][1][1]
            count, digest = struct.unpack_from("<QQ", change, 8)
            if (count, digest) != (len(held), _digest(held)):
                return None
        return held

    def wait_records(self, expected, timeout_s=None):
        """Until it says exactly this: {hash: (tokens, tiers)}."""
        wait_until(lambda: self.records() == expected,
                   lambda: f"{expected}, but it says {self.records()}", timeout_s)

    def write_notes(self, fingerprint, *notes):
        """As a router does."""
        self.redis.call("XADD", self.key("in"), "*", "b", entry(fingerprint, *notes))
