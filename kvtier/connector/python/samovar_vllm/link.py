# SPDX-License-Identifier: Apache-2.0
"""link: one connection to the agent of this node, and another one whenever that has ended.

A thread of its own registers (connect, HELLO, WELCOME), watches for the end, and registers anew,
backing off. So an idle engine comes back to a restarted agent by itself, and no step of the engine
ever waits for a connection. All else belongs to the engine's thread: it takes over the connection
that was made, sends, and reads in pump(), which never waits longer than it was told to.

Ends. A connection that the engine gives up is shut down at once: what the agent reads from the
engine's memory after that, it throws away. But what the agent still writes there, nobody can call
back. So where loads are under way only the sending side is shut down, and pump() reads on until the
agent has closed too: until then their blocks are the agent's. See ipc_wire.h, who closes.

Every message carries the boot of the agent. Another one than WELCOME's is the end, too.
"""

import logging
import math
import select
import socket
import threading
import time

from . import wire

REGISTER_S = 5.0     # an agent that has not answered HELLO by then is asked anew
RETRY_S = 0.1        # between attempts, while there is nobody
RETRY_S_MAX = 5.0    # after connections that had to be given up, one behind the other
REFUSED_RETRY_S = 2.0
LASTING_S = 10.0     # a connection that lived so long is no sign of a bad time


class Connection:
    """One that the agent has welcomed."""

    def __init__(self, stream, welcome):
        self.stream, self.welcome, self.boot = stream, welcome, welcome.boot
        self.can_send, self.is_given_up = True, False

    def end(self):
        # shutdown() acts at once, although the watching thread still has the descriptor too.
        try:
            self.stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.stream.close()


class Link:
    def __init__(self, path, owner, logger):
        """Of owner: hello() is (the fields of HELLO, the descriptors beside it), in the link's
        thread. In the engine's, by pump() and give_up(): received(message); ended(); and
        is_written_to(), whether the agent may still write into our memory."""
        self.path, self.owner, self.logger = path, owner, logger
        self.generation = 0  # counts the connections that were taken over
        self._connection = None  # the engine's thread alone touches it
        self._lock = threading.Lock()
        self._made = None  # a connection on its way from the thread to the engine; under the lock
        self._said = None  # the last thing that was logged: once is enough
        self._is_refused = False  # the last that was heard of an agent
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="samovar-link", daemon=True)
        self._thread.start()

    # --- the engine's thread ---

    def is_ready(self):
        """Whether the agent is there, as far as is known, and may be spoken to."""
        return self._connection is not None and self._connection.can_send

    def is_refused(self):
        """Whether there is an agent that will not have this engine."""
        return self._is_refused and not self.is_ready()

    @property
    def welcome(self):
        return self._connection.welcome

    def send(self, kind, **fields):
        """False: it did not go out: there is nobody, or the agent has not read for a while."""
        if not self.is_ready():
            return False
        try:
            self._connection.stream.send(wire.write(kind, self._connection.boot, **fields))
            return True
        except BlockingIOError:
            return False
        except OSError:
            # It has gone. What it said before that is still to be read: pump() comes to the end.
            self._connection.can_send = False
            return False

    def pump(self, is_enough=None, timeout_s=0.0):
        """Reads what has come; with is_enough, until that is true, but no longer than timeout_s.
        Returns whether it is."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._read_all()
            if is_enough is None or is_enough():
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._connection is None:
                return False
            _wait(self._connection.stream, select.POLLIN, left_s)

    def give_up(self, why):
        """The agent is spoken to no more, until it has been registered with anew."""
        if not self.is_ready():
            return
        self.logger.warning("samovar: gave up the connection to the agent: %s", why)
        self._connection.can_send, self._connection.is_given_up = False, True
        if not self.owner.is_written_to():
            self._end()
            return
        try:
            self._connection.stream.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self._closed.set()
        if self._connection is not None:
            self._connection.end()
            self._connection = None
        self._hand_over(None)

    def _read_all(self):
        while True:
            if self._connection is None:
                self._take_over()
            if self._connection is None:
                return
            try:
                raw = self._connection.stream.recv(wire.MESSAGE_BYTES_MAX + 1)
            except BlockingIOError:
                return
            except OSError:
                raw = b""
            if raw:
                self._read_one(raw)
            else:
                self._end()

    def _read_one(self, raw):
        try:
            message = wire.read(raw)
            if message.boot != self._connection.boot:
                raise wire.Broken("it is of another boot")
            if message.kind == wire.REFUSED:
                raise wire.Broken(f"refused: {message.text}")
        except wire.Broken as error:
            self.give_up(f"it said what is no message: {error}")
            return
        self.owner.received(message)

    def _end(self):
        self._connection.end()
        self._connection = None
        self.owner.ended()

    def _take_over(self):
        with self._lock:
            self._connection, self._made = self._made, None
        if self._connection is not None:
            self.generation += 1

    # --- the thread that registers ---

    def _keep(self):
        pause_s = RETRY_S
        while not self._closed.is_set():
            connection, retry_s = self._register()
            if connection is None:
                self._closed.wait(retry_s)
                continue
            self._say(logging.INFO, f"registered with the agent {connection.welcome.version} "
                                    f"at {self.path}")
            # A descriptor of its own: the engine's thread closes the other one when it likes.
            watched = connection.stream.dup()
            began = time.monotonic()
            self._hand_over(connection)
            while not (self._closed.is_set() or _wait(watched, select.POLLRDHUP, 1.0)):
                pass
            watched.close()
            is_bad = connection.is_given_up and time.monotonic() - began < LASTING_S
            pause_s = min(2 * pause_s, RETRY_S_MAX) if is_bad else RETRY_S
            self._closed.wait(pause_s)

    def _register(self):
        """(connection, None) or (None, when to try again)"""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            stream.settimeout(REGISTER_S)
            stream.connect(self.path)
            fields, descriptors = self.owner.hello()
            hello = wire.write(wire.HELLO, 0, **fields)
            if descriptors:
                socket.send_fds(stream, [hello], descriptors)
            else:
                stream.send(hello)
            answer = wire.read(stream.recv(wire.MESSAGE_BYTES_MAX + 1))
            self._is_refused = answer.kind == wire.REFUSED
            if answer.kind == wire.WELCOME:
                stream.setblocking(False)
                return Connection(stream, answer), None
            what = answer.text if answer.kind == wire.REFUSED else f"it says {answer.kind}"
            self._say(logging.WARNING, f"the agent at {self.path} refuses: {what}")
            retry_s = REFUSED_RETRY_S
        except (OSError, wire.Broken) as error:
            self._is_refused = False
            self._say(logging.WARNING, f"no agent to be had at {self.path} ({error}): no "
                                       "tiers until there is one")
            retry_s = RETRY_S
        stream.close()
        return None, retry_s

    def _hand_over(self, connection):
        with self._lock:
            left, self._made = self._made, connection
        if left is not None:  # the engine did nothing while it lived
            left.end()

    def _say(self, level, text):
        if text != self._said:
            self._said = text
            self.logger.log(level, "samovar: %s", text)


def _wait(stream, events, timeout_s):
    """Whether any of events, or the end, is there within that time."""
    poller = select.poll()
    poller.register(stream, events)
    return bool(poller.poll(math.ceil(timeout_s * 1000)))
