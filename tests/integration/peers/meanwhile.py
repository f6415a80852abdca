# SPDX-License-Identifier: Apache-2.0
"""One side of a conversation in a thread: for what is larger than the sockets between hold."""

import contextlib
import threading

from peers.wire import WAIT_S


@contextlib.contextmanager
def meanwhile(act, *args):
    """Runs act(*args) while the block runs; both must end well."""
    failures = []

    def run():
        try:
            act(*args)
        except BaseException as failure:  # told in the test's own thread
            failures.append(failure)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(WAIT_S)
    assert not thread.is_alive(), f"{act.__name__} did not end"
    if failures:
        raise failures[0]
