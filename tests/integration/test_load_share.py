# SPDX-License-Identifier: Apache-2.0
"""What routers tell each other of their load, and what that changes."""

import json
from collections import Counter

import pytest

from peers.openai_api import CHAT
from peers.process import wait_until


@pytest.fixture
def start_sharing_router(start_router, redis, secret_file):
    def create(workers, *flags):
        return start_router(workers, "--redis", redis.url, "--secret-file", secret_file, *flags)
    return create


def hold(router, api, count):
    """Sends requests that no worker answers; each has a prompt of its own."""
    for number in range(count):
        client = router.connect()
        client.post(api, api.request(f"{id(client)} {number} " + "x" * 400))


def others_in_flight(router):
    return router.metrics()["samovar_router_others_in_flight"]


def wait_others_in_flight(router, count):
    wait_until(lambda: others_in_flight(router) == count,
               lambda: f"others have {others_in_flight(router)} in flight, not {count}")


def test_a_router_sees_what_another_has_sent(start_sharing_router, fleet):
    one = start_sharing_router([fleet[0]])  # it knows one worker, and loads that
    both = start_sharing_router(fleet)
    hold(one, CHAT, 10)
    wait_others_in_flight(both, 10)
    taken = [fleet.expect() for _ in range(10)]

    hold(both, CHAT, 10)

    chosen = Counter(fleet.expect().worker for _ in range(10))
    assert chosen[fleet[1]] >= 9, "the first worker was busy for another router"
    assert len(taken) == 10


def test_without_redis_it_does_not(start_router, fleet):
    """The same as above: what makes the difference is Redis."""
    one = start_router([fleet[0]])
    both = start_router(fleet)
    hold(one, CHAT, 10)
    for _ in range(10):
        fleet.expect()

    hold(both, CHAT, 10)

    chosen = Counter(fleet.expect().worker for _ in range(10))
    assert chosen[fleet[1]] <= 7


def test_what_ends_is_taken_off(start_sharing_router, fleet):
    one = start_sharing_router(fleet)
    other = start_sharing_router(fleet)
    hold(one, CHAT, 3)
    wait_others_in_flight(other, 3)

    for _ in range(3):
        fleet.expect().answer(CHAT.answer())

    wait_others_in_flight(other, 0)
    assert other.metrics()["samovar_router_others"] == 1


def test_a_router_that_dies_counts_nothing_after_three_seconds(start_sharing_router, fleet):
    one = start_sharing_router(fleet)
    other = start_sharing_router(fleet)
    hold(one, CHAT, 4)
    wait_others_in_flight(other, 4)

    one.kill()

    wait_others_in_flight(other, 0)
    assert other.metrics()["samovar_router_others"] == 0


def test_redis_away_and_back(start_sharing_router, fleet, redis):
    one = start_sharing_router(fleet)
    other = start_sharing_router(fleet)
    hold(one, CHAT, 2)
    wait_others_in_flight(other, 2)

    redis.kill()
    wait_others_in_flight(other, 0)
    answer = None
    for _ in range(2):  # what was held is served as ever
        fleet.expect().answer(CHAT.answer())
    client = other.connect()
    client.post(CHAT, CHAT.request("and new ones too"))
    fleet.expect().answer(CHAT.answer())
    answer = client.answer()
    assert answer.status == 200 and json.loads(answer.read_all())
    redis.start()

    hold(one, CHAT, 3)
    wait_others_in_flight(other, 3)


def test_messages_that_make_no_sense_change_nothing(start_sharing_router, fleet, redis):
    router = start_sharing_router(fleet)
    wait_until(lambda: router.metrics()["samovar_router_loads_told_total"] > 0, "told")

    redis.call("XADD", "smv:routers", "*", "b", b"\x00" * 3)
    redis.call("XADD", "smv:routers", "*", "c", b"another field")

    wait_until(lambda: router.metrics()["samovar_router_loads_refused_total"] == 1, "refused")
    hold(router, CHAT, 1)
    fleet.expect().answer(CHAT.answer())


def test_three_routers_and_a_burst(start_sharing_router, start_fleet):
    """200 requests with nothing in common, over three routers at once, onto an idle fleet."""
    fleet = start_fleet(8)
    routers = [start_sharing_router(fleet) for _ in range(3)]
    for router in routers:
        wait_until(lambda router=router: router.metrics()["samovar_router_others"] == 2, "others")
    clients = [routers[number % 3].connect() for number in range(200)]

    for number, client in enumerate(clients):
        client.post(CHAT, CHAT.request(f"{number} " * 100))

    taken = Counter(fleet.expect().worker for _ in range(200))
    assert sum(taken.values()) == 200
    print(sorted(taken.values()))
    assert max(taken.values()) / (200 / 8) <= 1.5, taken.values()
