# SPDX-License-Identifier: Apache-2.0
"""samovar-sim, the simulated engine, as a process."""

import socket

from peers.openai_api import MODEL
from peers.process import Process, free_port, program, wait_until


class Sim(Process):
    def __init__(self, *flags):
        self.port = free_port()
        super().__init__([program("samovar-sim"), "--port", self.port, "--model", MODEL, *flags])
        wait_until(self._accepts, f"samovar-sim listens on {self.port}")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def _accepts(self):
        assert self.is_running(), "samovar-sim ended: " + "\n".join(self.log.text[-5:])
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except ConnectionRefusedError:
            return False
        return True
