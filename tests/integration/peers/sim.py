# SPDX-License-Identifier: Apache-2.0
"""samovar-sim, the simulated engine, as a process."""

import json

from peers.http1 import read_answer, request_bytes
from peers.openai_api import MODEL
from peers.process import Process, program, wait_until
from peers.wire import HOST, Wire


class Sim(Process):
    def __init__(self, *flags, port=0):
        super().__init__([program("samovar-sim"), "--host", HOST, "--port", port, "--model", MODEL,
                          *flags])
        with self.killed_on_failure():
            self.port = wait_until(self._told_port, lambda: f"it listens: {self.log.text}")

    def restart(self, *flags):
        """kill -9, and another one on the same port; its flags say where it publishes."""
        self.kill()
        self.__init__(*flags, port=self.port)

    @property
    def address(self):
        return (HOST, self.port)

    @property
    def url(self):
        return f"http://{HOST}:{self.port}"

    def _told(self, what):
        """What it printed on a line of its own: "listening on host:port" and the like."""
        is_over = not self.is_running()
        if is_over:
            self.log.wait_ended()  # whoever ends at once may have said it nevertheless
        told = [line for line in self.log.text if line.startswith(f"{what} on ")]
        assert told or not is_over, f"samovar-sim ended: {self.log.text}"
        return told[0].rsplit(" on ", 1)[1] if told else None

    def _told_port(self):
        address = self._told("listening")
        return int(address.rsplit(":", 1)[1]) if address else None

    @property
    def kv_events(self):
        """Where it publishes, with --kv-events tcp://127.0.0.1:*; None: it does not."""
        return self._told("KV events")

    @property
    def kv_replay(self):
        return self._told("KV replay")

    def get(self, target, fields=()):
        """One request on a connection of its own; the answer with its whole body."""
        wire = Wire.connect(self.address)
        wire.send(request_bytes("GET", target, None, {"Connection": "close", **dict(fields)}))
        answer = read_answer(wire, "GET")
        answer.read_all()
        wire.close()
        return answer

    def post(self, target, body):
        """One request of a JSON body, past any router."""
        wire = Wire.connect(self.address)
        wire.send(request_bytes("POST", target, json.dumps(body).encode(),
                                {"Content-Type": "application/json", "Connection": "close"}))
        answer = read_answer(wire, "POST")
        answer.read_all()
        wire.close()
        return answer

    def running(self):
        """Requests in it, by its own gauge."""
        return self._metric("vllm:num_requests_running")

    def published(self):
        """Batches of KV events, by its own count: what an agent must have heard to know all."""
        return self._metric("sim_kv_batches_total")

    def _metric(self, name):
        for line in self.get("/metrics").read_all().decode().splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
        raise AssertionError(f"no {name}")
