# SPDX-License-Identifier: Apache-2.0
"""
An agent that the test plays: it writes what a worker is said to hold into a real Redis, byte by
byte, and may lie, skip, stop and contradict itself. Knows the wire only, nothing of our programs but
the names that `samovar explain` prints.
"""

import re
import subprocess
import threading

from peers.process import program
from peers.residency_wire import (
    HBM, MASK, PAGE_RECORDS, RECORD_BYTES, lease_text, pack_change, pack_record, record_digest,
    worker_key, workers_key)

# A router with this secret-file names prompts as `samovar explain` does.
EXPLAIN_SECRET = b"samovar explain\0"


def blocks_of(body):
    """[(hash, end in bytes)] of a request's prompt, its end node last."""
    text = subprocess.run([program("samovar"), "explain", "-"], input=body, check=True,
                          capture_output=True).stdout.decode()
    return [(int(hash_, 16), int(end)) for hash_, end in
            re.findall(r"^ +\d+  ([0-9a-f]{16})  +\d+ \.\. (\d+)", text, re.MULTILINE)]


class MapAgent:
    """Speaks for one worker. A thread renews the lease until stop() or fall_silent()."""

    def __init__(self, redis, worker, fingerprint, *, epoch=1, is_listed=True, has_lease=True,
                 block_tokens=16, cache_tokens=0, is_whole=True, **meta):
        self.redis = redis
        self.name = getattr(worker, "url", worker)
        self.fingerprint = fingerprint
        self.epoch, self.generation, self.sequence = epoch, 1, 0
        self.is_whole = is_whole
        self.slots = {}  # hash -> slot
        self.records = {}  # hash -> (tokens, tiers)
        self.digest = 0
        self.meta = {"fp": f"{fingerprint:016x}", "url": self.name, "engine": "vllm",
                     "node": "test", "version": "0", "block_tokens": block_tokens,
                     "cache_tokens": cache_tokens, "has_anchors": 0, "text_depth_max": 2048, **meta}
        self._lock = threading.Lock()
        self._silent = threading.Event()
        self._thread = None
        self.publish_meta()
        if is_listed:
            self.list()
        if has_lease:
            self.speak()

    # --- keys ---

    @property
    def life(self):
        return f"{self.epoch:016x}-{self.generation}"

    def key(self, end):
        return worker_key(self.name, end)

    # --- what an agent says ---

    def list(self):
        self.redis.call("SADD", workers_key(self.fingerprint), self.name)

    def publish_meta(self):
        fields = {**self.meta, "epoch": f"{self.epoch:016x}"}
        self.redis.call("HSET", self.key("meta"), *[word for item in fields.items() for word in item])

    def lease_text(self, **words):
        pages = -(-(max(self.slots.values(), default=-1) + 1) // PAGE_RECORDS)
        said = {"v": 1, "fp": f"{self.fingerprint:016x}", "life": self.life, "seq": self.sequence,
                "pages": pages, "ms": 1000, "whole": int(self.is_whole), **words}
        return lease_text(**said)

    def renew(self, **words):
        with self._lock:
            self.redis.call("SET", self.key("lease"), self.lease_text(**words), "PX", 3000)

    def speak(self):
        """Heartbeats from now on, also through a Redis that comes and goes."""
        self._silent.clear()
        self._beat()
        self._thread = threading.Thread(target=self._beats, daemon=True)
        self._thread.start()

    def _beat(self):
        try:
            self.renew()
        except OSError:
            pass  # it is away
        except Exception as refusal:  # LOADING, READONLY
            assert "Refused" in type(refusal).__name__, refusal

    def _beats(self):
        while not self._silent.wait(0.3):
            self._beat()

    def fall_silent(self, is_said=True):
        """No more heartbeats. is_said: the lease is given up, else it runs out."""
        self._silent.set()
        if self._thread is not None:
            self._thread.join()
        if is_said:
            self.redis.call("DEL", self.key("lease"))

    stop = None  # its test ends it, or the process does

    # --- what it holds ---

    def _note(self, hash_, tokens, tiers):
        self.digest = (self.digest - record_digest(hash_, *self.records.pop(hash_, (0, 0)))) & MASK
        if tiers:
            self.records[hash_] = (tokens, tiers)
            self.digest = (self.digest + record_digest(hash_, tokens, tiers)) & MASK

    def say(self, records, *, skips_change=False, digest=None):
        """One flush: [(hash, tokens, tiers)]; tiers 0: no longer held."""
        with self._lock:
            commands = []
            for hash_, tokens, tiers in records:
                self._note(hash_, tokens, tiers)
                if tiers and hash_ not in self.slots:
                    self.slots[hash_] = len(self.slots)
                if hash_ in self.slots:
                    page, place = divmod(self.slots[hash_], PAGE_RECORDS)
                    bytes_ = pack_record(hash_ if tiers else 0, tokens if tiers else 0, tiers)
                    commands.append(("SETRANGE", self.key(f"{self.life}:p:{page}"),
                                     place * RECORD_BYTES, bytes_))
            self.sequence += 1
            entry = pack_change(records, len(self.records),
                                self.digest if digest is None else digest)
            if not skips_change:
                commands.append(("XADD", self.key(f"{self.life}:out"), "MAXLEN", "4096",
                                 f"{self.sequence}-1", "b", entry))
            client = self.redis.client()
            client.call("MULTI")
            for command in commands:
                client.call(*command)
            client.call("EXEC")
            client.close()
        return self

    def hold(self, body, tokens_per_byte=0.25, count=None, tiers=HBM):
        """Says that it holds the first count blocks of that request's prompt (or all)."""
        blocks = blocks_of(body)[:count]
        self.say([(hash_, int(end * tokens_per_byte), tiers) for hash_, end in blocks])
        return blocks

    def drop(self, blocks):
        self.say([(hash_, 0, 0) for hash_, _ in blocks])

    def begin_anew(self, epoch=None):
        """Another life, empty: of another process, or the next of this one."""
        with self._lock:
            if epoch is None:
                self.generation += 1
            else:
                self.epoch, self.generation = epoch, 1
            self.sequence, self.slots, self.records, self.digest = 0, {}, {}, 0
        self.publish_meta()
        self._beat()

    def republish(self):
        """What it held, in the next life: as after a Redis that lost everything."""
        records = [(hash_, *held) for hash_, held in self.records.items()]
        self.begin_anew()
        self.list()
        self.say(records)
