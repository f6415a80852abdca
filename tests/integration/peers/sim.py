# SPDX-License-Identifier: Apache-2.0
"""samovar-sim, the simulated engine, as a process."""

from peers.openai_api import MODEL
from peers.process import Process, program, wait_until
from peers.wire import HOST


class Sim(Process):
    def __init__(self, *flags):
        super().__init__([program("samovar-sim"), "--host", HOST, "--port", 0, "--model", MODEL,
                          *flags])
        with self.killed_on_failure():
            self.port = wait_until(self._told_port, lambda: f"it listens: {self.log.text}")

    @property
    def address(self):
        return (HOST, self.port)

    @property
    def url(self):
        return f"http://{HOST}:{self.port}"

    def _told_port(self):
        """From its first line, "listening on host:port"."""
        assert self.is_running(), f"samovar-sim ended: {self.log.text}"
        told = [line for line in self.log.text if line.startswith("listening on ")]
        return int(told[0].rsplit(":", 1)[1]) if told else None
