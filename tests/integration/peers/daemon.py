# SPDX-License-Identifier: Apache-2.0
"""What all programs of ours have in common that run until they are told to end: an admin address."""

import re

from peers.http1 import read_answer, request_bytes
from peers.process import Process
from peers.wire import Wire

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$")


class Daemon(Process):
    admin_address = None  # set by who starts it

    def listening(self, event):
        """Where the log line says that it listens."""
        line = self.log.wait(event)
        return (line["address"], int(line["port"]))

    def admin(self, target, method="GET"):
        wire = Wire.connect(self.admin_address)
        wire.send(request_bytes(method, target, None, {"Connection": "close"}))
        answer = read_answer(wire, method)
        answer.read_all()
        wire.close()
        return answer

    def metrics(self):
        """{'name{labels}': value}"""
        samples = {}
        for line in self.admin("/metrics").read_all().decode().splitlines():
            match = SAMPLE.match(line)
            if match:
                samples[match[1] + (match[2] or "")] = float(match[3])
        return samples

    def metric_sum(self, name):
        """Over all labels."""
        return sum(value for key, value in self.metrics().items() if key.split("{")[0] == name)

    def stop(self):
        super().stop()
        assert not self.log.find_garbage(), self.log.find_garbage()
