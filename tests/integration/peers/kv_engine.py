# SPDX-License-Identifier: Apache-2.0
"""The cache events of an engine, as vLLM 0.32 publishes and replays them, said by the test."""

import threading
import time

import msgpack
import zmq

from peers.wire import HOST, WAIT_S

END = b"\xff" * 8
MEDIUM = "GPU"


class KvEngine:
    """Its endpoints stay; its process may die and begin anew, with sequence 0 and nothing held."""

    def __init__(self, has_replay=True, ring=10000, topic=b"kv@w1@tiny", events_port=None,
                 replay_port=None):
        """Ports: any free one where none is said."""
        self.ring_length = ring
        self.topic = topic
        self.has_replay = has_replay
        self.events_port, self.replay_port = events_port, replay_port
        self.context = None
        self.start()

    @property
    def events(self):
        return f"tcp://{HOST}:{self.events_port}"

    @property
    def replay(self):
        return f"tcp://{HOST}:{self.replay_port}" if self.has_replay else None

    # --- its process ---

    def start(self):
        assert self.context is None
        self.context = zmq.Context()
        self.next = 0
        self.ring = []  # (sequence, payload)
        self.lock = threading.Lock()
        self.refuses_replay = False
        self.replays = []  # from where each was asked
        self.publisher = self.context.socket(zmq.XPUB)  # it tells when a subscriber has come
        self.publisher.linger = 0
        self.publisher.setsockopt(zmq.XPUB_VERBOSE, 1)  # of each subscriber, not the first alone
        self.events_port = _bind(self.publisher, self.events_port)
        if self.has_replay:
            self.replayer = self.context.socket(zmq.ROUTER)
            self.replayer.linger = 0
            self.replay_port = _bind(self.replayer, self.replay_port)
            self.thread = threading.Thread(target=self._answer_replays, daemon=True)
            self.thread.start()

    def kill(self):
        """As kill -9: its connections end, and with them all it knew."""
        if self.context is None:
            return
        context, self.context = self.context, None
        self.publisher.close()
        ending = threading.Thread(target=context.term, daemon=True)
        ending.start()  # the replayer's thread closes its socket when it sees this
        ending.join(WAIT_S)
        assert not ending.is_alive(), "a socket is still open"

    def restart(self):
        self.kill()
        self.start()

    stop = kill

    def _answer_replays(self):
        try:
            while True:
                frames = self.replayer.recv_multipart()
                start = int.from_bytes(frames[2], "big")
                with self.lock:
                    self.replays.append(start)
                    messages = [one for one in self.ring if one[0] >= start]
                if self.refuses_replay:
                    continue
                for sequence, payload in messages:
                    self.replayer.send_multipart(
                        [frames[0], b"", self.topic, sequence.to_bytes(8, "big"), payload])
                self.replayer.send_multipart([frames[0], b"", b"", END, b""])
        except zmq.ContextTerminated:
            self.replayer.close()

    def wait_subscriber(self):
        """Until someone listens: what is published before reaches nobody."""
        while self.publisher.poll(WAIT_S * 1000):
            if self.publisher.recv()[:1] == b"\x01":  # else one that has left
                return self
        raise AssertionError("nobody subscribed")

    # --- what it says ---

    def publish_payload(self, payload, sequence=None, is_dropped=False):
        """is_dropped: it is in the ring, and reaches nobody who listens."""
        with self.lock:
            if sequence is None:
                sequence = self.next
            self.next = sequence + 1
            self.ring = (self.ring + [(sequence, payload)])[-self.ring_length:]
        if not is_dropped:
            self.publisher.send_multipart([self.topic, sequence.to_bytes(8, "big"), payload])

    def publish(self, *events, is_dropped=False):
        self.publish_payload(msgpack.packb([time.time(), list(events), 0]), is_dropped=is_dropped)


def stored(hashes, ids, block_tokens, parent=None, **more):
    """Blocks behind parent. more: fields that vLLM leaves out where they have defaults."""
    assert len(ids) == len(hashes) * block_tokens
    return {"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": parent,
            "token_ids": list(ids), "block_size": block_tokens, "lora_id": None, "medium": MEDIUM,
            "lora_name": None, **more}


def removed(*hashes, medium=MEDIUM, **more):
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium, **more}


def cleared():
    return {"type": "AllBlocksCleared"}


def _bind(sock, port):
    if port is None:
        return sock.bind_to_random_port(f"tcp://{HOST}", min_port=20000, max_port=60000)
    for _ in range(int(WAIT_S * 100)):  # the dead process's port is not free at once
        try:
            sock.bind(f"tcp://{HOST}:{port}")
            return port
        except zmq.ZMQError:
            time.sleep(0.01)
    raise AssertionError(f"port {port} stays in use")
