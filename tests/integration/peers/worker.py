# SPDX-License-Identifier: Apache-2.0
"""
A worker that does what the test says, byte by byte.

Each connection has a thread that reads one request after the other. Probes are answered at once;
any other request goes to the test, by expect(), and the connection with it, until the test finishes
it. Several workers may share one queue: then expect() tells which of them was chosen.
"""

import json
import queue
import socket
import threading
import time
from collections import Counter

from peers.http1 import LAST_CHUNK, chunk, head_bytes, read_request
from peers.openai_api import MODEL
from peers.wire import HOST, WAIT_S, Wire

PROBES = ("/health", "/v1/models", "/metrics")


class WorkerRequest:
    """A request that reached a worker. Until finish() the connection is the test's."""

    def __init__(self, worker, wire, message, number):
        self.worker = worker
        self.wire = wire
        self.message = message
        self.number = number  # 1 for the first request of its connection, probes included
        self._finished = threading.Event()

    @property
    def target(self):
        return self.message.target

    def get(self, name):
        return self.message.get(name)

    def body(self):
        return self.message.read_all()

    def json(self):
        return json.loads(self.body())

    # --- answering ---

    def send(self, data):
        self.wire.send(data)

    def send_head(self, status=200, **fields):
        """fields by name, "_" for "-"."""
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        self.send(head_bytes(f"HTTP/1.1 {status} Scripted", named))

    def start_stream(self, **fields):
        """The head of an event stream in chunks."""
        self.body()
        self.send_head(200, content_type="text/event-stream; charset=utf-8",
                       transfer_encoding="chunked", **fields)

    def send_chunk(self, data):
        self.send(chunk(data))

    def end_stream(self):
        self.send(LAST_CHUNK)
        self.finish()

    def stream(self, events):
        """A whole event stream, one chunk an event."""
        self.start_stream()
        for event in events:
            self.send_chunk(event)
        self.end_stream()

    def answer(self, body, status=200, content_type="application/json", **fields):
        """A whole answer with its length; the connection goes on."""
        self.body()
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        head = {"content-type": content_type, "content-length": len(body), **named}
        self.send(head_bytes(f"HTTP/1.1 {status} Scripted", head) + body)
        self.finish()

    # --- ending ---

    def finish(self):
        """The exchange is over; the connection waits for its next request."""
        self._finished.set()

    def end_by(self, how):
        self.wire.end_by(how)
        self.finish()

    def wait_end(self, timeout_s=None):
        """Waits until the router has closed this connection. Returns End."""
        return self.wire.wait_end(timeout_s)


def is_side_call(message):
    """The router asks on its own account, where a template puts tools, at a time of its choice."""
    return message.target == "/tokenize" and \
        (message.head.get("user-agent") or "").startswith("samovar/")


class ScriptedWorker:
    takes_side_calls = False  # or they are answered as by an engine that cannot

    def __init__(self, requests=None, models=(MODEL,), health=200, host=HOST):
        self.host = host
        self.requests = requests if requests is not None else queue.Queue()
        self.models = list(models)
        self.health = health  # status of GET /health
        self.metrics = None  # text of GET /metrics; None: 404
        self.on_probe = None  # called with each probe's message, before it is answered
        self.handler = None  # called with each request in the connection's thread, when set
        self.probes = Counter()  # by path
        self.connections_total = 0  # that carried a request which was not a probe
        self._wires = []
        self._held = []
        self._lock = threading.Lock()
        self._probed = threading.Condition(self._lock)
        self._listener = None
        self._fillers = []
        self.port = 0
        self.start_listening()

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    @property
    def authority(self):
        return f"{self.host}:{self.port}"

    # --- listening ---

    def start_listening(self):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(256)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def stop_listening(self):
        """From now on a connect is refused; open connections go on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # close() alone would leave accept() in the kernel, and with it the port open
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def hang_connects(self):
        """From now on a connect is neither taken nor refused: the accept queue is full."""
        self.stop_listening()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(0)
        self._fillers.append(listener)
        while True:
            filler = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            filler.settimeout(0.2)
            self._fillers.append(filler)
            try:
                filler.connect((self.host, self.port))
            except TimeoutError:
                return

    def close_connections(self, how="fin"):
        """Ends all connections, in the middle of whatever they do."""
        with self._lock:
            wires, self._wires = self._wires, []
            held, self._held = self._held, []
        for wire in wires:
            try:
                wire.end_by(how)
            except OSError:
                pass
        for request in held:
            request.finish()

    def kill(self, how="rst"):
        """As kill -9 of an engine: no listener, no connection."""
        self.stop_listening()
        self.close_connections(how)

    def stop(self):
        self.kill("fin")
        for filler in self._fillers:
            filler.close()

    # --- what the test asks ---

    def expect(self, timeout_s=None):
        """The next request that is not a probe, its head read, its body not."""
        try:
            return self.requests.get(timeout=WAIT_S if timeout_s is None else timeout_s)
        except queue.Empty:
            raise AssertionError("no request reached a worker in time") from None

    def assert_no_request(self):
        """Nothing has come. Call after an event behind which it would have come already."""
        assert self.requests.empty(), f"reached a worker: {self.requests.get().message.head.start}"

    def wait_probes(self, path, count):
        """Until count more probes of path have come and been answered."""
        deadline = time.monotonic() + WAIT_S
        with self._probed:
            wanted = self.probes[path] + count
            while self.probes[path] < wanted:
                assert self._probed.wait(deadline - time.monotonic()), f"no probe of {path} in time"

    # --- threads ---

    def _accept(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            wire = Wire(sock)
            with self._lock:
                self._wires.append(wire)
            threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, wire):
        number = 0
        carried = False
        try:
            while True:
                wire.sock.settimeout(None)
                if not wire.pending:
                    piece = wire.sock.recv(65536)  # idle for as long as the router likes
                    if not piece:
                        break
                    wire.pending += piece
                message = read_request(wire)
                number += 1
                if message.method == "GET" and message.target in PROBES:
                    if self.on_probe is not None:
                        self.on_probe(message)
                    self._answer_probe(wire, message.target)
                    continue
                if is_side_call(message) and not self.takes_side_calls:
                    message.read_all()
                    self._answer_probe(wire, message.target)
                    continue
                if not carried:
                    carried = True
                    with self._lock:
                        self.connections_total += 1
                request = WorkerRequest(self, wire, message, number)
                with self._lock:
                    self._held.append(request)
                if self.handler is not None:
                    self.handler(request)
                else:
                    self.requests.put(request)
                request._finished.wait()
                with self._lock:
                    if request in self._held:
                        self._held.remove(request)
        except (OSError, AssertionError):
            pass  # the connection ended, or the test ended it
        wire.close()

    def _answer_probe(self, wire, path):
        status, kind, body = 404, "application/json", b"{}"
        if path == "/health":
            status, body = self.health, b""
        elif path == "/v1/models":
            status, body = 200, json.dumps({"object": "list", "data": [
                {"id": name, "object": "model", "created": 1, "owned_by": "scripted",
                 "max_model_len": 4096} for name in self.models]}).encode()
        elif path == "/metrics" and self.metrics is not None:
            status, kind, body = 200, "text/plain; version=0.0.4", self.metrics.encode()
        wire.send(head_bytes(f"HTTP/1.1 {status} Probed",
                             {"content-type": kind, "content-length": len(body)}) + body)
        with self._probed:
            self.probes[path] += 1
            self._probed.notify_all()


class Fleet:
    """Workers that put what they get into one queue."""

    def __init__(self, count, **options):
        self.requests = queue.Queue()
        self.workers = [ScriptedWorker(self.requests, **options) for _ in range(count)]

    def __iter__(self):
        return iter(self.workers)

    def __len__(self):
        return len(self.workers)

    def __getitem__(self, index):
        return self.workers[index]

    def expect(self, timeout_s=None):
        return self.workers[0].expect(timeout_s)

    def assert_no_request(self):
        self.workers[0].assert_no_request()

    def handle_with(self, handler):
        for worker in self.workers:
            worker.handler = handler

    def stop(self):
        for worker in self.workers:
            worker.stop()
