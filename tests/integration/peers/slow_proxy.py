# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy whose answers come late: what was said is held back that long, in order, unchanged."""

import queue
import socket
import threading
import time

from peers.wire import HOST, READ_BYTES


class SlowProxy:
    def __init__(self, target):
        self.target = target
        self.delay_s = 0.0  # of every byte from the target; may change at any time
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]
        self._open = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return  # closed
            try:
                target = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            for sock in (client, target):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(sock)
            late = queue.SimpleQueue()
            for run, args in ((self._pass_on, (client, target)), (self._read, (target, late)),
                              (self._write_late, (late, client))):
                threading.Thread(target=run, args=args, daemon=True).start()

    def _pass_on(self, source, target):
        try:
            while data := source.recv(READ_BYTES):
                target.sendall(data)
        except OSError:
            pass
        self._end(target)

    def _read(self, source, late):
        try:
            while data := source.recv(READ_BYTES):
                late.put((time.monotonic() + self.delay_s, data))
        except OSError:
            pass
        late.put((0, b""))

    def _write_late(self, late, target):
        while True:
            due, data = late.get()
            if not data:
                break
            time.sleep(max(0, due - time.monotonic()))
            try:
                target.sendall(data)
            except OSError:
                break
        self._end(target)

    def _end(self, sock):
        """Both directions: whoever waits for the other one ends too."""
        self._open.discard(sock)
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        sock.close()

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in list(self._open):
            self._end(sock)
