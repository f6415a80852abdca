# SPDX-License-Identifier: Apache-2.0
"""
An agent as routers see it: what one says of its worker in Redis, and the notes that it is told.
It holds nothing.
"""

from peers.residency_wire import lease_text, unpack_notes, worker_key, workers_key


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
        return worker_key(self.name, what)

    def appear(self):
        self.redis.call("SADD", workers_key(self.fingerprint), self.name)
        pairs = [word for pair in self.meta.items() for word in pair]
        self.redis.call("HSET", self.key("meta"), *pairs)
        lease = lease_text(v=1, fp=self._hex(), life=f"{self.life}-0", seq=0, pages=0, ms=1000,
                           whole=1)
        self.redis.call("SET", self.key("lease"), lease, "PX", 600000)

    def fall_silent(self):
        self.redis.call("DEL", self.key("lease"))

    def entries(self):
        """Each as its notes, oldest first."""
        entries = self.redis.call("XRANGE", self.key("in"), "-", "+")
        for _, fields in entries:
            assert fields[0] == b"b" and len(fields) == 2
        return [unpack_notes(fields[1], self.fingerprint) for _, fields in entries]

    def notes(self):
        return [note for entry in self.entries() for note in entry]
