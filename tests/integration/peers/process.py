# SPDX-License-Identifier: Apache-2.0
"""Programs of ours as child processes: where they lie, their log, their end."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from peers.wire import WAIT_S

REPO = Path(__file__).resolve().parents[3]
BIN = Path(os.environ.get("SAMOVAR_BIN_DIR", REPO / "build" / "bin"))

# A program built with a sanitizer says so on its standard error.
SANITIZER_MARKS = ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error:")


def program(name):
    return BIN / name


def is_sanitized(name):
    """Built with a sanitizer: its memory says nothing."""
    text = program(name).read_bytes()
    return b"__asan_init" in text or b"__tsan_init" in text


def wait_until(is_true, what, timeout_s=None):
    """Polls a condition of another process. Returns its first true value. what: text, or a function
    that makes it at the end."""
    deadline = time.monotonic() + (WAIT_S if timeout_s is None else timeout_s)
    while True:
        value = is_true()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not in time: {what() if callable(what) else what}")
        time.sleep(0.002)


class LogReader:
    """Collects what a process writes, line by line."""

    def __init__(self, pipe):
        self.text = []  # every line, as it came
        self.events = []  # those that are JSON objects
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def _read(self, pipe):
        for raw in pipe:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            event = None
            if line.startswith("{"):
                try:
                    event = json.loads(line)
                except json.JSONDecodeError:
                    pass  # stays in text, where find_garbage() sees it
            with self._changed:
                self.text.append(line)
                if event is not None:
                    self.events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def find(self, event, **fields):
        """All lines of that event with these values."""
        with self._changed:
            return self._find(event, fields)

    def _find(self, event, fields):
        return [line for line in self.events if line.get("event") == event
                and all(line.get(key) == value for key, value in fields.items())]

    def wait(self, event, timeout_s=None, **fields):
        """The first such line, waiting for it."""
        return self.wait_count(event, 1, timeout_s, **fields)[0]

    def wait_count(self, event, count, timeout_s=None, **fields):
        """At least count such lines, waiting for them."""
        deadline = time.monotonic() + (WAIT_S if timeout_s is None else timeout_s)
        with self._changed:
            while True:
                found = self._find(event, fields)
                if len(found) >= count:
                    return found
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    why = "log ended" if self._ended else "not in time"
                    tail = "\n".join(self.text[-15:])
                    raise AssertionError(f"{why}: {count} x {event} {fields}; log ends:\n{tail}")
                self._changed.wait(left)

    def wait_ended(self):
        self._thread.join(WAIT_S)

    def find_garbage(self):
        """Lines that are not JSON objects with an event."""
        with self._changed:
            return [line for line in self.text
                    if not line.startswith("{") or not line.endswith("}")]


class Process:
    """A child; what it writes to standard output and error is its log."""

    def __init__(self, argv, env=None):
        self.child = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      env={**os.environ, **(env or {})})
        self.log = LogReader(self.child.stdout)

    @property
    def pid(self):
        return self.child.pid

    def rss_kib(self):
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")

    def open_descriptors(self):
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def open_sockets(self):
        return sum(1 for fd in Path(f"/proc/{self.pid}/fd").iterdir() if _is_socket(fd))

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def signal(self, number):
        self.child.send_signal(number)

    def wait_exit(self, timeout_s=None):
        """The exit status, negative for a signal."""
        try:
            status = self.child.wait(WAIT_S if timeout_s is None else timeout_s)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            tail = "\n".join(self.log.text[-15:])
            raise AssertionError(f"did not exit in time; log ends:\n{tail}") from None
        self.log.wait_ended()
        return status

    def is_running(self):
        return self.child.poll() is None

    def stop(self):
        """Ends as an operator would end it. Whoever still runs must exit with 0, and nobody may have
        been reported by a sanitizer: leaks are only told by a program that ends by itself."""
        if self.is_running():
            self.signal(signal.SIGTERM)
            status = self.wait_exit()
            assert status == 0, f"exit status {status}; log ends:\n" + "\n".join(self.log.text[-40:])
        self.log.wait_ended()
        text = "\n".join(self.log.text)
        for mark in SANITIZER_MARKS:
            assert mark not in text, text

    @contextlib.contextmanager
    def killed_on_failure(self):
        """For what a start waits for: nobody has the child yet who could end it."""
        try:
            yield
        except BaseException as failure:
            self.kill()
            failure.add_note("its log ends:\n" + "\n".join(self.log.text[-40:]))
            raise

    def kill(self):
        if self.is_running():
            self.child.kill()
            self.child.wait()
        self.log.wait_ended()


def _is_socket(fd):
    try:
        return os.readlink(fd).startswith("socket:")
    except FileNotFoundError:
        return False


TCP_SYN_SENT = "02"


def count_tcp(port, state):
    """How many connections of this machine to a remote port are in a state of /proc/net/tcp."""
    wanted = f":{port:04X}"
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(1 for row in rows
               if row.split()[2].endswith(wanted) and row.split()[3] == state)
