# SPDX-License-Identifier: Apache-2.0
"""Trouble of whatever kind: one act after the other, by chance, in a thread of its own."""

import random
import threading
import time
from collections import Counter


class Acts:
    """acts() of a subclass are its methods; everybody is well again when each has returned. What one
    returns says of the schedule to whom it happened, and how."""

    def __init__(self, seed, between_s):
        """between_s: (least, most) seconds from one act to the next."""
        self.counts = Counter()
        self.schedule = []  # seconds since the start at which each began and ended, and what it was
        self.crashes = []  # of an act itself: a fault of this program, or of a start
        self._random = random.Random(seed)
        self._between_s = between_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def acts(self):
        raise NotImplementedError

    def start(self):
        self._thread.start()

    def stop(self):
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self):
        started = time.monotonic()
        while not self._stop.wait(self._random.uniform(*self._between_s)):
            act = self._random.choice(self.acts())
            name = act.__name__.strip("_")
            self.counts[name] += 1
            begun = time.monotonic() - started
            try:
                whom = act()
                self.schedule.append(f"{begun:.2f}-{time.monotonic() - started:.2f} {name}"
                                     + (f" {whom}" if whom else ""))
            except Exception as failure:  # told at the end
                self.crashes.append(f"{act.__name__}: {type(failure).__name__}: {failure}")
                return
