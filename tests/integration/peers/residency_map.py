# SPDX-License-Identifier: Apache-2.0
"""The shared map as a test reads it, and tells agents what a router would."""

import subprocess

from peers.process import program, wait_until
from peers.residency_wire import (
    MASK, lease_words, pack_notes, record_digest, unpack_change_whole, unpack_records, worker_key)

ROUTER = 0x7e57


def token_names(secret_file, ids, block_tokens, salt="", lora=None):
    """(fingerprint, names of the full blocks) of a prompt of these token ids."""
    argv = [program("samovar-token-names"), secret_file, str(block_tokens), salt]
    argv += [lora] if lora else []
    text = subprocess.run(argv, input=" ".join(map(str, ids)), capture_output=True, text=True,
                          check=True).stdout.split()
    return int(text[0], 16), [int(name, 16) for name in text[1:]]


class ResidencyMap:
    """What Redis says of one worker."""

    def __init__(self, redis, worker):
        self.redis = redis
        self.worker = worker

    def key(self, end):
        return worker_key(self.worker, end)

    def lease(self):
        """{} where it has none."""
        text = self.redis.call("GET", self.key("lease"))
        return lease_words(text) if text else {}

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
                for hash_, tokens, tiers in unpack_records(page) if hash_ and tiers}
        last = self.redis.call("XREVRANGE", self.key(f"{lease['life']}:out"), "+", "-", "COUNT", 1)
        if last:
            digest = sum(record_digest(hash_, *value) for hash_, value in held.items()) & MASK
            if unpack_change_whole(last[0][1][1]) != (len(held), digest):
                return None
        return held

    def wait_records(self, expected, timeout_s=None):
        """Until it says exactly this: {hash: (tokens, tiers)}."""
        wait_until(lambda: self.records() == expected,
                   lambda: f"{expected}, but it says {self.records()}", timeout_s)

    def write_notes(self, fingerprint, *notes):
        """Packed ones, as a router does."""
        self.redis.call("XADD", self.key("in"), "*", "b", pack_notes(fingerprint, ROUTER, *notes))
