# SPDX-License-Identifier: Apache-2.0
"""The peers themselves, without a router: a test is worth what its tools are."""

import threading

import pytest

from peers.http1 import LAST_CHUNK, Truncated, chunk, cut_oddly, head_bytes
from peers.openai_api import CHAT, events_of
from peers.process import TCP_SYN_SENT, count_tcp, wait_until
from peers.redis_server import RedisClient, RedisRefused
from peers.router import Client
from peers.wire import HOST, Wire, WireTimeout


@pytest.fixture
def client(worker):
    client = Client.connect((HOST, worker.port))
    yield client
    client.close()


def test_probes_are_answered_without_the_test(worker, client):
    client.request("GET", "/health")
    health = client.answer("GET")
    client.request("GET", "/v1/models")
    models = client.answer("GET")

    assert health.status == 200 and health.read_all() == b""
    assert [row["id"] for row in models.json()["data"]] == ["tiny"]
    wait_until(lambda: worker.probes == {"/health": 1, "/v1/models": 1}, "both are counted")
    worker.assert_no_request()


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_bodies_pass_both_ways_in_each_framing(worker, client, framing):
    body = CHAT.request("x" * 300_000)
    client.post(CHAT, body, framing=framing)

    request = worker.expect()
    assert request.body() == body
    request.stream(CHAT.stream())

    answer = client.answer()
    assert events_of(answer.read_all())[-1] == b"[DONE]"


def test_a_connection_serves_one_request_after_the_other(worker, client):
    for number in range(1, 4):
        client.post(CHAT, CHAT.request())
        request = worker.expect()
        assert request.number == number
        request.answer(CHAT.answer())
        assert client.answer().read_all() == CHAT.answer()
    assert worker.connections_total == 1


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_both_sides_see_how_the_other_ended(worker, client, how):
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.body()
    client.end_by(how)
    assert request.wait_end().kind == how

    second = Wire.connect((HOST, worker.port))
    second.send(b"GET /other HTTP/1.1\r\nHost: a\r\n\r\n")
    worker.expect().end_by(how)
    assert second.wait_end().kind == how


def test_a_cut_body_is_told_from_a_whole_one(worker, client):
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.start_stream()
    request.send_chunk(b"whole")
    request.send(b"a\r\nhalf")
    answer = client.answer()
    assert answer.read(5) == b"whole"
    request.end_by("fin")

    with pytest.raises(Truncated) as cut:
        answer.read_all()
    assert cut.value.partial == b"wholehalf"


def test_a_stopped_listener_refuses_and_a_hanging_one_neither_takes_nor_refuses(worker):
    worker.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        Wire.connect((HOST, worker.port))

    worker.hang_connects()
    failed = []

    def connect():
        try:
            Wire.connect((HOST, worker.port))
        except OSError as error:
            failed.append(error)

    before = count_tcp(worker.port, TCP_SYN_SENT)
    thread = threading.Thread(target=connect)
    thread.start()
    wait_until(lambda: count_tcp(worker.port, TCP_SYN_SENT) > before, "a connect that hangs")
    worker.stop()  # the retransmitted SYN is refused
    thread.join(5)
    assert [type(error) for error in failed] == [ConnectionRefusedError]


def test_a_fleet_tells_which_worker_was_asked(start_fleet):
    fleet = start_fleet(2)
    client = Client.connect((HOST, fleet[1].port))
    client.post(CHAT, CHAT.request())
    assert fleet.expect().worker is fleet[1]
    fleet.assert_no_request()
    client.close()


def test_waits_end_with_what_was_waited_for(worker, client):
    client.post(CHAT, CHAT.request())
    worker.expect()
    with pytest.raises(WireTimeout, match="head of an answer"):
        client.answer(timeout_s=0.05)


def test_a_message_may_come_one_byte_at_a_time(worker, client):
    client.post(CHAT, CHAT.request())
    request = worker.expect()
    request.body()
    head = head_bytes("HTTP/1.1 200 OK", {"Transfer-Encoding": "chunked"})
    raw = head + chunk(b"ab") + LAST_CHUNK
    for at in range(len(raw)):
        request.send(raw[at : at + 1])
    assert client.answer().read_all() == b"ab"


def test_odd_cuts_lose_nothing():
    data = bytes(range(256)) * 1000
    assert b"".join(cut_oddly(data)) == data


@pytest.mark.parametrize("is_unix", [False, True], ids=["tcp", "unix"])
def test_a_killed_redis_comes_back_empty_at_the_same_address(start_redis, is_unix):
    redis = start_redis(is_unix=is_unix)
    redis.call("SET", "key", b"\x00\r\n")
    address = redis.address

    before = redis.call("MGET", "key", "none")
    redis.restart()

    assert before == [b"\x00\r\n", None]
    assert redis.address == address
    assert redis.call("DBSIZE") == 0


def test_a_paused_redis_answers_when_it_goes_on(redis):
    redis.pause()
    client = redis.client()
    client.sock.settimeout(0.1)

    with pytest.raises(TimeoutError):
        client.call("PING")
    client.close()
    redis.resume()

    assert redis.call("PING") == b"PONG"


def test_a_redis_with_a_password_refuses_who_has_none(start_redis):
    redis = start_redis(password="p")

    with pytest.raises(RedisRefused, match="NOAUTH"):
        RedisClient(redis.address).call("DBSIZE")

    assert redis.call("DBSIZE") == 0
    assert redis.password_file().read_text() == "p\n"


def test_users_of_a_redis_may_do_what_its_file_says(start_redis, tmp_path):
    users = tmp_path / "users.acl"
    users.write_text("user default on >all ~* &* +@all\nuser reader on >r ~smv:* +@read\n")
    redis = start_redis(users_acl=users, password="all")

    redis.call("SET", "smv:a", 1)

    assert redis.call("GET", "smv:a", user="reader", password="r") == b"1"
    with pytest.raises(RedisRefused, match="NOPERM"):
        redis.call("SET", "smv:a", 2, user="reader", password="r")
    assert redis.url_of("reader") == f"redis://reader@{HOST}:{redis.port}"
