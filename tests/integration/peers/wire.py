# SPDX-License-Identifier: Apache-2.0
"""One TCP connection whose every wait has a deadline, and that remembers when it ended and how."""

import os
import select
import socket
import struct
import time
from dataclasses import dataclass

# How long anything that must happen may take before a test gives up. It bounds waits, it is never
# slept through. Sanitizer builds and loaded machines may need more.
WAIT_S = float(os.environ.get("SAMOVAR_TEST_WAIT_S", "10"))

READ_BYTES = 256 * 1024

# A loopback address of this process alone, so that tests that run side by side, and whatever else
# runs on the machine, never meet on a port that one has left and another takes.
_PID = os.getpid()
HOST = f"127.{1 + _PID // 62500 % 250}.{_PID // 250 % 250}.{1 + _PID % 250}"


class WireTimeout(AssertionError):
    """Nothing more came in time."""


class WireEnded(AssertionError):
    """The peer ended the connection where bytes were expected."""


@dataclass(frozen=True)
class End:
    kind: str  # "fin" or "rst"
    at: float  # time.monotonic() when it was seen


class Wire:
    def __init__(self, sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.pending = bytearray()  # read from the socket, not yet asked for
        self.end = None  # End, once the peer has ended its side

    @classmethod
    def connect(cls, address, receive_bytes=None):
        """receive_bytes: a small receive buffer, for clients that read slowly on purpose."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.settimeout(WAIT_S)
        sock.connect(address)
        return cls(sock)

    # --- writing ---

    def send(self, data):
        self.sock.settimeout(WAIT_S)
        self.sock.sendall(data)

    def send_until_blocked(self, data, quiet_s=0.3):
        """Sends until the other side has taken nothing for quiet_s. Returns the bytes taken."""
        view = memoryview(data)
        sent = 0
        self.sock.settimeout(quiet_s)
        try:
            while sent < len(view):
                sent += self.sock.send(view[sent : sent + READ_BYTES])
        except TimeoutError:
            pass
        return sent

    # --- reading ---

    def _fill(self, deadline, what):
        """Reads once from the socket. False: the peer has ended its side."""
        if self.end is not None:
            return False
        left = deadline - time.monotonic()
        if left <= 0:
            raise WireTimeout(f"no {what} in time; so far: {bytes(self.pending[:200])!r}")
        self.sock.settimeout(left)
        try:
            piece = self.sock.recv(READ_BYTES)
        except TimeoutError:
            raise WireTimeout(f"no {what} in time; so far: {bytes(self.pending[:200])!r}") from None
        except (ConnectionResetError, BrokenPipeError):
            self.end = End("rst", time.monotonic())
            return False
        if not piece:
            self.end = End("fin", time.monotonic())
            return False
        self.pending += piece
        return True

    def _take(self, count):
        taken = bytes(self.pending[:count])
        del self.pending[:count]
        return taken

    def read_some(self, what="bytes", timeout_s=None):
        """What has come, at least one byte; b"" once the peer has ended its side."""
        deadline = time.monotonic() + (WAIT_S if timeout_s is None else timeout_s)
        if not self.pending and not self._fill(deadline, what):
            return b""
        return self._take(len(self.pending))

    def read(self, count, what="bytes"):
        deadline = time.monotonic() + WAIT_S
        while len(self.pending) < count:
            if not self._fill(deadline, what):
                raise WireEnded(f"{self.end.kind} instead of {what}: {bytes(self.pending[:200])!r}")
        return self._take(count)

    def read_until(self, mark, what="bytes", timeout_s=None):
        """Everything up to and including mark."""
        deadline = time.monotonic() + (WAIT_S if timeout_s is None else timeout_s)
        searched = 0
        while True:
            at = self.pending.find(mark, searched)
            if at >= 0:
                return self._take(at + len(mark))
            searched = max(0, len(self.pending) - len(mark) + 1)
            if not self._fill(deadline, what):
                raise WireEnded(f"{self.end.kind} instead of {what}: {bytes(self.pending[:200])!r}")

    def read_to_end(self, what="end of connection"):
        """Everything until the peer ends its side."""
        deadline = time.monotonic() + WAIT_S
        while self._fill(deadline, what):
            pass
        return self._take(len(self.pending))

    def wait_end(self, timeout_s=None):
        """Waits for the peer to end its side; bytes that come before are dropped. Returns End."""
        deadline = time.monotonic() + (WAIT_S if timeout_s is None else timeout_s)
        while self._fill(deadline, "end of the connection"):
            self.pending.clear()
        return self.end

    def wait_readable(self, timeout_s):
        """Bytes or an end came within that time."""
        return bool(self.pending or self.end or select.select([self.sock], [], [], timeout_s)[0])

    # --- ending ---

    def half_close(self):
        """FIN: no more bytes from us; still reading."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self):
        """FIN, or RST by the kernel where unread bytes are left."""
        try:
            # Wakes a thread that is blocked in recv on this socket; close() alone does not.
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.sock.close()

    def reset(self):
        """RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def end_by(self, how):
        """how: "fin" or "rst"."""
        {"fin": self.close, "rst": self.reset}[how]()
