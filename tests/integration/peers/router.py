# SPDX-License-Identifier: Apache-2.0
"""The real router as a process, and what may be asked of it from outside."""

import json
from collections import Counter

from peers.daemon import Daemon
from peers.http1 import read_answer, request_bytes
from peers.process import program, wait_until
from peers.wire import HOST, Wire


class Client(Wire):
    """A raw client; each request says its own bytes."""

    def request(self, method, target, body=None, fields=(), **how):
        self.send(request_bytes(method, target, body, fields, **how))

    def post(self, api, body, fields=(), **how):
        self.request("POST", api.path, body, fields, **how)

    def answer(self, method="POST", timeout_s=None):
        """The head of the next answer; its body is read by the caller."""
        return read_answer(self, method, timeout_s)


class Router(Daemon):
    def __init__(self, workers, flags=(), env=None):
        """workers: anything with a url. Returns once it listens."""
        urls = [worker.url for worker in workers]
        argv = [program("samovar-router"), "--host", HOST, "--port", 0,
                "--admin-host", HOST, "--admin-port", 0, "--log-format", "json"]
        argv += ["--worker-urls", *urls] if urls else []
        super().__init__([*argv, *flags], env)
        self.clients = []
        with self.killed_on_failure():
            self.address = self.listening("listening")
            self.admin_address = self.listening("admin_listening")

    @property
    def url(self):
        return "http://%s:%d" % self.address

    def wait_ready(self):
        self.log.wait("ready")
        return self

    def wait_states(self, state, count):
        """Until that many workers are in a state."""
        def have():
            return sum(1 for row in self.workers() if row["state"] == state) == count
        wait_until(have, lambda: f"{count} workers {state}: {self.workers()}")

    # --- as a client ---

    def connect(self, **options):
        client = Client.connect(self.address, **options)
        self.clients.append(client)
        return client

    def call(self, method, target, body=None, fields=(), **how):
        """One request on a connection of its own; the answer with its whole body."""
        client = self.connect()
        client.request(method, target, body, {"Connection": "close", **dict(fields)}, **how)
        answer = client.answer(method)
        answer.read_all()
        client.close()
        return answer

    def post(self, api, body, fields=(), **how):
        return self.call("POST", api.path, body, fields, **how)

    def get(self, target, fields=()):
        return self.call("GET", target, None, fields)

    # --- as an operator ---

    def workers(self):
        return self.admin("/workers").json()["workers"]

    def worker(self, worker):
        """What the router says of one worker."""
        return next(row for row in self.workers() if row["url"] == worker.url)

    def in_flight(self):
        """Everything that counts what is under way, by name, where it is not zero."""
        found = {key: value for key, value in self.metrics().items() if "in_flight" in key}
        assert found, "no metric of what is in flight"
        found.update({row["url"]: row["in_flight"] for row in self.workers()})
        return {key: value for key, value in found.items() if value}

    def wait_in_flight(self):
        wait_until(self.in_flight, "something in flight")

    def wait_idle(self):
        wait_until(lambda: not self.in_flight(), lambda: f"still in flight: {self.in_flight()}")

    def wait_believed(self, count, block_tokens):
        """Until it has read what each of so many agents says, and that its engine's blocks are so
        large: before that it can tell them of nothing."""
        def rows():
            return self.admin("/residency").json()["workers"]

        def is_known(row):
            return row["believed"] and row["agent"]["block_tokens"] == block_tokens
        wait_until(lambda: [is_known(row) for row in rows()] == [True] * count,
                   lambda: f"all believed: {rows()}")

    def request_line(self, answer):
        """The log line of the exchange that gave this answer."""
        return self.log.wait("request", request_id=answer.get("x-request-id"))

    # --- end ---

    def stop(self):
        """Ends it, and holds it to what every test may ask of it."""
        for client in self.clients:
            client.close()
        if self.is_running():
            self.wait_idle()
        super().stop()
        ids = Counter(line["request_id"] for line in self.log.find("request"))
        twice = {one for one, count in ids.items() if count > 1}
        assert not twice, f"more than one terminal line of {twice}"


def error_of(answer):
    """The error object of an answer, whose shape is checked: all four keys, JSON, an id."""
    assert answer.get("content-type").split(";")[0] == "application/json", answer.head.fields
    assert answer.get("x-request-id"), "an error without a request id"
    error = json.loads(answer.read_all())["error"]
    assert set(error) >= {"message", "type", "param", "code"}, error
    assert error["message"] and isinstance(error["message"], str)
    return error
