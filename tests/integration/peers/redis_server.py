# SPDX-License-Identifier: Apache-2.0
"""A real redis-server that a test may kill, stop and start again, and a client that reads it."""

import os
import signal
import socket
import tempfile
from pathlib import Path

from peers.process import Process, wait_until
from peers.wire import HOST, WAIT_S

REDIS_SERVER = os.environ.get("SAMOVAR_REDIS_SERVER", "redis-server")  # or a Valkey


class RedisRefused(Exception):
    """The server's error, as it said it: "NOPERM this user has no permissions ..."."""


class RedisClient:
    """Speaks RESP2; bytes in, bytes out: lists, integers, bytes, None."""

    def __init__(self, address, user=None, password=None):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.settimeout(WAIT_S)
        try:
            self.sock.connect(address)
        except OSError:
            self.sock.close()
            raise
        self.file = self.sock.makefile("rb")
        if password is not None:
            self.call("AUTH", user or "default", password)

    def call(self, *words):
        """One command and its reply."""
        encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(encoded)]
        parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded]
        self.sock.sendall(b"".join(parts))
        reply = self._read()
        if isinstance(reply, RedisRefused):
            raise reply
        return reply

    def _read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server ended the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return RedisRefused(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self._read() for _ in range(int(rest))]
        raise AssertionError(f"no RESP: {line!r}")

    def close(self):
        self.file.close()
        self.sock.close()


class RedisServer:
    """One address for its whole life; what listens there may come and go."""

    def __init__(self, *flags, is_unix=False, password=None, users_acl=None):
        """password: the default user's. users_acl: the file with all users; then their passwords
        are what it says. flags: of redis-server."""
        self.directory = tempfile.TemporaryDirectory(prefix="redis-")
        self.flags = flags
        self.password = password
        self.users_acl = users_acl
        self.path = f"{self.directory.name}/redis.sock" if is_unix else None
        self.port = None if is_unix else _free_port()
        self.process = None
        self.is_paused = False
        self.start()

    @property
    def address(self):
        return self.path or (HOST, self.port)

    @property
    def url(self):
        return self.url_of()

    def url_of(self, user=None):
        """As --redis takes it. A user's password is never part of it."""
        if self.path:
            return f"unix://{self.path}" + (f"?user={user}" if user else "")
        return "redis://" + (f"{user}@" if user else "") + f"{HOST}:{self.port}"

    def password_file(self, password=None):
        """For --redis-password-file."""
        path = Path(self.directory.name, "password")
        path.touch(0o600)
        path.write_text((self.password if password is None else password) + "\n")
        return path

    def client(self, user=None, password=None):
        """Its caller closes it."""
        return RedisClient(self.address, user, self.password if password is None else password)

    def call(self, *words, user=None, password=None):
        """One command on a connection of its own."""
        client = self.client(user, password)
        try:
            return client.call(*words)
        finally:
            client.close()

    def everything(self):
        """All its keys and what they hold, as bytes to search."""
        client = self.client()
        parts = []
        for key in client.call("KEYS", "*"):
            kind = client.call("TYPE", key)
            parts += [key, client.call("DUMP", key)]
            if kind == b"string":
                parts.append(client.call("GET", key))
            elif kind == b"hash":
                parts += client.call("HGETALL", key)
            elif kind == b"set":
                parts += client.call("SMEMBERS", key)
            else:
                parts += [part for _, fields in client.call("XRANGE", key, "-", "+")
                          for part in fields]
        client.close()
        return b"\n".join(part for part in parts if part is not None)  # else it ran out meanwhile

    # --- what may happen to it ---

    def start(self, *flags, is_loaded=True):
        """Empty, whatever it held before, unless it was told to SAVE: then it holds that. flags: of
        this start alone. is_loaded: waits until it serves, not only listens."""
        assert self.process is None or not self.process.is_running()
        argv = [REDIS_SERVER, "--save", "", "--appendonly", "no", "--protected-mode", "no",
                "--dir", self.directory.name, "--daemonize", "no", "--loglevel", "warning"]
        argv += ["--unixsocket", self.path, "--port", 0] if self.path else \
            ["--bind", HOST, "--port", self.port]
        argv += ["--aclfile", self.users_acl] if self.users_acl else []
        argv += ["--requirepass", self.password] if self.password and not self.users_acl else []
        self.process = Process([*argv, *self.flags, *flags])
        with self.process.killed_on_failure():
            wait_until(lambda: self.answers(is_loaded),
                       lambda: f"Redis answers: {self.process.log.text}")

    def answers(self, is_loaded=True):
        """Whoever has no password gets an error, which is an answer too; LOADING is one where
        nothing else is asked."""
        assert self.process.is_running(), f"{REDIS_SERVER} ended: {self.process.log.text}"
        try:
            client = RedisClient(self.address)
        except OSError:
            return False
        try:
            return client.call("PING") == b"PONG"
        except RedisRefused as refusal:
            return not is_loaded or not str(refusal).startswith("LOADING")
        finally:
            client.close()

    def pause(self):
        """SIGSTOP: connections stay, nothing is answered."""
        self.process.signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self):
        self.process.signal(signal.SIGCONT)
        self.is_paused = False

    def kill(self):
        """SIGKILL: connections are reset, all is lost."""
        self.process.kill()
        self.is_paused = False

    def restart(self):
        """Killed, and at once there again, empty."""
        self.kill()
        self.start()

    def stop(self):
        if self.is_paused:
            self.resume()
        if self.process.is_running():
            self.process.stop()
        self.directory.cleanup()


def _free_port():
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return sock.getsockname()[1]
