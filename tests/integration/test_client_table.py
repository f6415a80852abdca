# SPDX-License-Identifier: Apache-2.0
"""
A table: each call of the official clients x each way in which an engine can fail them. A cell is one
call through a router of its own; the two engines are shared. It says how the call ended: with the
answer that it has undisturbed, or with which error, status and code; and how many requests the
engines saw. client_table.py says how each must end. The whole is written to build/client-table.md.
"""

import asyncio
import itertools

import pytest

from client_table import (
    FAULTS, LIMIT_MS, REQUESTS_OF_A_PATIENT_CLIENT, expected, outcome, table_text)
from peers.clients import CALLS, settled
from peers.process import BIN, wait_until

numbers = itertools.count()
CELLS = [(call, is_async, fault) for call in CALLS for is_async in (False, True)
         for fault in FAULTS if fault.can_happen_to(call, is_async)]


def cell_id(cell):
    call, is_async, fault = cell
    return f"{'async-' if is_async else ''}{call.sdk.name}.{call.name}-{fault.name}"


@pytest.fixture(scope="module")
def table():
    """{(call, is_async, fault): how it ended}; written when the last cell is there."""
    cells = {}
    yield cells
    (BIN.parent / "client-table.md").write_text(table_text(cells))


@pytest.fixture(scope="module")
def sims():
    """Two engines that say the same, and nothing of them is left in use by any cell."""
    from peers.sim import Sim
    sims = [Sim("--speedup", 20), Sim("--speedup", 20)]
    yield sims
    for sim in sims:
        sim.stop()


def requests_of(sims, is_meant):
    """How many requests of a kind the engines saw so far. Each first logs one more, so that all
    before it are in its log."""
    for sim in sims:
        barrier = f"barrier-{next(numbers)}"
        sim.get("/nowhere", {"x-request-id": barrier})
        sim.log.wait("request", request_id=barrier)
    return sum(is_meant(line) for sim in sims for line in sim.log.find("request"))


class Cell:
    def __init__(self, router, sims, call, is_async):
        self.router, self.sims, self.call, self.is_async = router, sims, call, is_async

    def client(self, **options):
        return self.call.sdk.client(self.router.url, self.is_async, **options)

    async def undisturbed(self):
        """What the call gives, and the engine that gave it: the router takes them in turn, so
        that the next call is the other one's."""
        request_id = f"plain-{next(numbers)}"
        client = self.client()
        said = await self.call.make(client, [], extra_headers={"x-request-id": request_id})
        await settled(client.close())
        line = self.router.log.wait("request", request_id=request_id)
        return "".join(map(str, said)), line.get("worker")

    def fault_header(self, fault, last_worker):
        spec = fault.spec(self.call)
        if not spec:
            return {}
        if fault.hits_one:
            first_tried, = [sim for sim in self.sims if sim.url != last_worker]
            spec += f",port={first_tried.port}"
        return {"x-sim-fault": spec}

    async def end(self, fault, request_id, header):
        """(what was heard, what was raised)"""
        heard = []
        client = self.client(timeout=LIMIT_MS / 1000) if fault.is_impatient else self.client()
        asked = asyncio.ensure_future(self.call.make(
            client, heard, is_left_early=fault.is_left,
            extra_headers={"x-request-id": request_id, **header}))
        try:
            if fault.is_left and not self.call.is_stream:
                await asyncio.to_thread(self.router.wait_in_flight)
                asked.cancel()
            await asked
            return heard, None
        except (Exception, asyncio.CancelledError) as error:
            return heard, error
        finally:
            await settled(client.close())


@pytest.mark.parametrize("cell", CELLS, ids=cell_id)
def test_cell(cell, table, sims, start_router):
    call, is_async, fault = cell
    used = sims[:fault.engines]
    router = start_router(used, "--policy", "round_robin", "--upstream-header-ms",
                          fault.router_limit_ms, "--upstream-idle-ms", fault.router_limit_ms)
    place = Cell(router, used, call, is_async)
    request_id = f"cell-{next(numbers)}"

    async def ask():
        said, worker = await place.undisturbed()
        heard, error = await place.end(fault, request_id, place.fault_header(fault, worker))
        return said, "".join(map(str, heard)), error

    said, heard, error = asyncio.run(ask())
    router.wait_idle()
    seen = requests_of(sims, lambda line: line["request_id"].startswith(request_id + "-"))

    table[cell] = f"{outcome(error, said, heard)}, {seen}"
    assert table[cell] == f"{expected(call, fault)}, {fault.seen(call)}"
    assert said.startswith(heard)
    if getattr(error, "status_code", None) not in (None, 200):
        assert error.request_id == request_id
        assert error.message
    wait_until(lambda: not any(sim.running() for sim in sims), "the engines have nothing to do")


RETRYING = [call for call in CALLS if call.name in ("chat.completions.create", "messages.create")]
PATHS = {"chat.completions.create": "/v1/chat/completions", "messages.create": "/v1/messages"}


@pytest.mark.parametrize("name", REQUESTS_OF_A_PATIENT_CLIENT)
def test_retries_of_clients_and_router_do_not_multiply(name, sims, start_router):
    """The clients as they come: each asks up to three times."""
    fault = next(fault for fault in FAULTS if fault.name == name)

    async def ask(call, router):
        place = Cell(router, sims, call, True)
        _, worker = await place.undisturbed()
        client = place.client(max_retries=2)
        try:
            await call.make(client, [], extra_headers=place.fault_header(fault, worker))
        except call.sdk.api_error:
            pass
        await client.close()

    async def ask_all():
        await asyncio.gather(*map(ask, RETRYING, routers))

    routers = [start_router(sims, "--policy", "round_robin", "--upstream-header-ms",
                            fault.router_limit_ms) for _ in RETRYING]

    def seen():
        return [requests_of(sims, lambda line, path=PATHS[call.name]: line["path"] == path)
                for call in RETRYING]

    before = seen()
    asyncio.run(ask_all())

    assert [now - then - 1 for then, now in zip(before, seen())] == (
        [REQUESTS_OF_A_PATIENT_CLIENT[name]] * len(RETRYING))
