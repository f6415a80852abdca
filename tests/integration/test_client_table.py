# SPDX-License-Identifier: Apache-2.0
"""
A table: each call of the official clients x each way in which an engine can fail. A cell is one call
through a router of its own; the engines are shared. Each cell says how the call ended: with the
answer it would have had undisturbed, or with which error, status and code, and how many requests
the engines saw. The whole is written to build/client-table.md.
"""

import asyncio
import itertools
from collections import namedtuple

import pytest

from peers.clients import CALLS
from peers.process import BIN, wait_until
from peers.sim import Sim

LIMIT_MS = 150  # the least a router may wait for an engine here; the client waits as long
PLENTY_S = 5

# aim: "one": only the engine that the router tries first; "all": whoever is tried.
# engines: how many the router has.
# stream, whole: what the engine does, as samovar-sim spells it; None: this cannot happen.
Fault = namedtuple("Fault", "name stream whole aim engines", defaults=("all", 2))

BEFORE, BETWEEN, WITHIN = "die_at_byte=0", "die_at_event=4", "die_at_byte=700"
FAULTS = [
    Fault("none", "", ""),
    Fault("one-dies-before-its-first-byte", BEFORE, BEFORE, "one"),
    Fault("the-only-one-dies-before-its-first-byte", BEFORE, BEFORE, "all", 1),
    Fault("two-die-before-their-first-byte", BEFORE, BEFORE),
    Fault("dies-between-two-events", BETWEEN, None),
    Fault("dies-within-an-event", WITHIN, None),
    Fault("is-reset-within-its-answer", WITHIN + ",how=rst", "die_at_event=1,how=rst"),
    Fault("hangs-before-its-first-byte", "hang", "hang"),
    Fault("hangs-within-its-answer", "hang_at_event=4", "hang_at_event=1"),
    Fault("one-says-429", "status=429", "status=429", "one"),
    Fault("all-say-429", "status=429", "status=429"),
    Fault("says-500", "status=500", "status=500"),
    Fault("says-400", "status=400", "status=400"),
    Fault("the-clients-patience-ends", "hang", "hang"),
    Fault("the-client-leaves", "slow=20", "hang"),
]
