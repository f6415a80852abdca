# SPDX-License-Identifier: Apache-2.0
"""The connector, in an engine that dies: as by kill -9, right behind the n-th message of a kind to the
agent, which SAMOVAR_TEST_DIES_AT names ("LOAD:3"). So the agent is in the midst of it."""

import os
import signal

from samovar_vllm import wire
from samovar_vllm.connector import SamovarConnector, logger
from samovar_vllm.link import Link


class DyingLink(Link):
    def __init__(self, *args):
        kind, count = os.environ["SAMOVAR_TEST_DIES_AT"].split(":")
        self._kind, self._left = getattr(wire, kind), int(count)
        super().__init__(*args)

    def send(self, kind, **fields):
        is_sent = super().send(kind, **fields)
        if is_sent and kind == self._kind:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return is_sent


class DyingConnector(SamovarConnector):
    def _make_link(self, owner):
        return DyingLink(self._path, owner, logger)
