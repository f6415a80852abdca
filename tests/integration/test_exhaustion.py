# SPDX-License-Identifier: Apache-2.0
"""What the system does not give: descriptors, room for the log, readers that read."""

import hashlib
import os
import resource
import socket
import subprocess
import threading
import time

import pytest

from peers.http1 import chunk, LAST_CHUNK
from peers.meanwhile import meanwhile
from peers.openai_api import CHAT, DONE
from peers.process import is_sanitized, program, wait_until
from peers.router import Client, error_of
from peers.wire import HOST, WAIT_S

# --- descriptors ---


def take_descriptors(router):
    """Leaves none: idle clients take those that are free. Returns how to give them back."""
    soft, hard = resource.prlimit(router.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(router.pid, resource.RLIMIT_NOFILE, (router.open_descriptors() + 1, hard))
    while not router.connect().wait_readable(0.1):
        pass  # that one was taken; one that is closed at once found no descriptor
    return lambda: resource.prlimit(router.pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_descriptor_for_a_worker_the_client_is_told_which_limit_it_is(router, worker):
    client, other = router.connect(), router.connect()
    for one in (client, other):
        one.request("GET", "/health")
        one.answer("GET").read_all()
    give_back = take_descriptors(router)
    for _ in range(3):
        client.post(CHAT, CHAT.request())
        answer = client.answer()
        assert answer.status == 503
        error = error_of(answer)
        assert error["code"] == "overloaded"
        assert "open files" in error["message"] and "worker-conn-count" not in error["message"]
        assert 1 <= float(answer.get("retry-after")) <= 60
        assert answer.get("x-should-retry") is None, "nothing was begun"
    worker.assert_no_request()

    give_back()
    assert len(router.log.find("no_descriptors")) == 1, "said now and then, not for each one"
    assert router.worker(worker)["failures_total"] == 0
    other.post(CHAT, CHAT.request())
    worker.expect().answer(CHAT.answer())
    assert other.answer().read_all() == CHAT.answer()


def test_an_open_connection_is_used_where_none_can_be_opened(router, worker):
    worker.handler = lambda request: request.answer(CHAT.answer())
    client = router.connect()
    client.post(CHAT, CHAT.request())
    assert client.answer().read_all() == CHAT.answer()
    give_back = take_descriptors(router)

    client.post(CHAT, CHAT.request())

    assert client.answer().read_all() == CHAT.answer()
    give_back()


# --- the log ---


def free_port():
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


class Muffled:
    """A router whose log goes where the test says."""

    def __init__(self, worker, stderr, **options):
        self.address, self.admin = (HOST, free_port()), (HOST, free_port())
        self.child = subprocess.Popen(
            [program("samovar-router"), "--host", HOST, "--port", str(self.address[1]),
             "--admin-host", HOST, "--admin-port", str(self.admin[1]), "--log-format", "json",
             "--worker-urls", worker.url], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=stderr, **options)
        wait_until(self.is_ready, "the router ready")

    def get(self, address, target):
        client = Client.connect(address)
        client.request("GET", target, None, {"Connection": "close"})
        answer = client.answer("GET")
        answer.read_all()
        client.close()
        return answer

    def is_ready(self):
        try:
            return self.get(self.address, "/readyz").status == 200
        except OSError:
            return False

    def dropped(self):
        text = self.get(self.admin, "/metrics").read_all().decode()
        name = "samovar_router_log_lines_dropped_total "
        return next(int(line.removeprefix(name)) for line in text.splitlines()
                    if line.startswith(name))

    def ask(self, count):
        client = Client.connect(self.address)
        for _ in range(count):
            client.post(CHAT, CHAT.request())
            assert client.answer().read_all() == CHAT.answer()
        client.close()

    def stop(self):
        self.child.terminate()
        assert self.child.wait(WAIT_S) == 0


@pytest.fixture
def answering(worker):
    worker.handler = lambda request: request.answer(CHAT.answer())
    return worker


def test_a_full_disk_under_the_log_costs_lines_and_no_request(answering):
    with open("/dev/full", "wb") as full:
        router = Muffled(answering, full)
    before = router.dropped()

    router.ask(20)

    assert router.dropped() >= before + 20
    router.stop()


def test_a_log_that_nobody_reads_costs_lines_and_no_request(answering):
    reader, writer = os.pipe()
    router = Muffled(answering, writer)
    os.close(writer)

    router.ask(1500)  # more than the pipe and the log's own buffer hold

    assert router.dropped() > 0
    taken = os.read(reader, 1 << 20)
    assert taken.startswith(b"{")
    with meanwhile(lambda: [None for _ in iter(lambda: os.read(reader, 1 << 20), b"")]):
        router.stop()
    os.close(reader)


def test_a_log_whose_reader_has_died_costs_lines_and_no_request(answering):
    """A write to it is SIGPIPE for who has not asked to be spared."""
    reader, writer = os.pipe()
    router = Muffled(answering, writer)
    os.close(writer)
    os.close(reader)

    router.ask(20)

    assert router.dropped() >= 20
    router.stop()


def test_a_log_file_that_copytruncate_rotates_goes_on_at_its_start(answering, tmp_path):
    """Lines are appended to whatever the file holds: no hole of zeros, no line of the old file."""
    path = tmp_path / "log"
    with path.open("ab") as file:
        router = Muffled(answering, file)
    def has_lines(count):
        wait_until(lambda: path.read_bytes().count(b'"api":"chat"') == count,
                   lambda: f"{count} lines in {path.read_bytes()}")

    router.ask(5)
    has_lines(5)
    os.truncate(path, 0)

    router.ask(3)

    has_lines(3)
    assert path.read_bytes().startswith(b"{")
    router.stop()


# --- readers ---


def drip(client, bytes_a_second, stop):
    """Reads so slowly that what is sent to it never ends."""
    while not stop.wait(0.1):
        client.sock.recv(max(1, bytes_a_second // 10))


def flood(wire, event, size):
    """Sends events until the other side takes no more for a while. Returns the bytes taken."""
    wire.sock.settimeout(0.5)
    taken = 0
    try:
        while taken < size:
            wire.sock.sendall(chunk(event))
            taken += len(event)
    except TimeoutError:
        pass
    return taken


def test_a_reader_of_a_kilobyte_a_second_costs_a_megabyte_at_most(router, worker):
    """200 MB, as fast as the worker can send them; other clients go on at full speed."""
    size = 200_000_000
    event = CHAT.event("x" * 100_000)
    slow = router.connect(receive_bytes=65536)
    slow.post(CHAT, CHAT.request(stream=True))
    request = worker.expect()
    request.start_stream()
    request.send_chunk(event)
    assert slow.wait_readable(WAIT_S)
    before_kib = router.rss_kib()
    stop = threading.Event()
    dripping = threading.Thread(target=drip, args=(slow, 1024, stop))
    dripping.start()

    assert flood(request.wire, event, size) < size / 10, "the worker was not held back"

    worker.handler = lambda request: request.stream(CHAT.stream(["Tea"] * 50))
    fast = router.connect()
    started = time.monotonic()
    for _ in range(100):
        fast.post(CHAT, CHAT.request(stream=True))
        assert fast.answer().read_all().endswith(DONE)
    took = time.monotonic() - started

    assert is_sanitized("samovar-router") or router.rss_kib() - before_kib < 1024
    assert took < 5, "the others were held up"
    stop.set()
    dripping.join()
    slow.reset()
    request.wait_end()
    request.finish()


def test_forty_slow_readers_cost_forty_megabytes_at_most_and_all_get_all(router, worker):
    event = CHAT.event("x" * 50_000)
    count, events = 40, 40
    clients = [router.connect(receive_bytes=65536) for _ in range(count)]
    requests = []
    for client in clients:
        client.post(CHAT, CHAT.request(stream=True))
        requests.append(worker.expect())
    before_kib = router.rss_kib()
    stream = chunk(event) * events + chunk(DONE) + LAST_CHUNK
    senders = []
    for request in requests:
        request.start_stream()
        senders.append(threading.Thread(target=request.send, args=(stream,)))
        senders[-1].start()
    time.sleep(0.5)  # none of them is read: what can be sent has been
    grown_kib = router.rss_kib() - before_kib

    expected = hashlib.sha256(event * events + DONE).digest()
    for client in clients:
        assert hashlib.sha256(client.answer().read_all()).digest() == expected
    for request, sender in zip(requests, senders):
        sender.join(WAIT_S)
        request.finish()
    assert is_sanitized("samovar-router") or grown_kib < count * 1024
