# SPDX-License-Identifier: Apache-2.0
"""Two real engines and a router for the session; tests that kill engines come last and start
their own in the place of the dead."""

import openai
import pytest

from cluster import reset_cache
from engines import Cache, Engine, Router, make_model
from tiers import CACHE, PROMPTS, Control, prompts_of, run_load


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def model_folder(folder):
    return make_model(folder / "tiny")


@pytest.fixture(scope="session")
def prompts():
    """Of what is asked of engines with tiers, and of one without."""
    return prompts_of(PROMPTS)


@pytest.fixture(scope="session")
def control(model_folder, tmp_path_factory, prompts):
    engine = Engine("control", model_folder, tmp_path_factory.mktemp("tiers-control"), CACHE)
    try:
        engine.wait_ready()
        first = run_load("control", engine, prompts)
        reset_cache(engine)
        second = run_load("control again", engine, prompts)
    finally:
        engine.kill()
    return Control(first, second)


class Fleet:
    """The engines of the session. What a test killed is replaced for the next one; a spare starts
    while the first tests run, because starting takes longer than all of them. Each has a connector
    whose agent is away, but in one test."""

    def __init__(self, model_folder, folder):
        self.model_folder, self.folder = model_folder, folder
        self.tiers = folder / "tiers"
        self.tiers.mkdir(mode=0o700)
        self.started = 0
        self.router = self.spare = None
        self.engines = [self.start_engine() for _ in range(2)]

    def begin(self):
        for engine in self.engines:
            engine.wait_ready()
        self.start_router()
        self.spare = self.start_engine()

    def start_engine(self):
        engine = Engine(f"engine-{self.started}", self.model_folder, self.folder,
                        Cache(publishes=True, tiers=f"{self.tiers}/agent.sock"))
        self.started += 1
        return engine

    def start_router(self):
        self.router = Router(f"router-{self.started}", self.engines, self.folder)
        self.router.wait_up(len(self.engines))

    def repair(self):
        """Everybody lives: new engines for dead ones, and then a router that knows them."""
        dead = [i for i, engine in enumerate(self.engines) if not engine.is_alive()]
        if not dead:
            return
        assert self.router.stop() == 0, "the router did not end well:\n" + self.router.log_tail()
        for i in dead:
            self.engines[i].kill()
            self.engines[i], self.spare = self.spare or self.start_engine(), None
        for i in dead:
            self.engines[i].wait_ready()
        self.start_router()

    def by_url(self, url):
        return next(engine for engine in self.engines if engine.url == url.rstrip("/"))

    def stop(self):
        """The router's exit status."""
        status = self.router.stop() if self.router else None
        for engine in filter(None, [*self.engines, self.spare]):
            engine.kill()
        return status


@pytest.fixture(scope="session")
def fleet_of_session(model_folder, folder):
    fleet = Fleet(model_folder, folder)
    try:
        fleet.begin()
        yield fleet
    finally:
        status = fleet.stop()
    assert status == 0, "the router did not end well:\n" + fleet.router.log_tail()


@pytest.fixture
def fleet(fleet_of_session):
    fleet_of_session.repair()
    return fleet_of_session


def client_of(router):
    """The real client, without its own retries: what the router answers is what we judge."""
    return openai.OpenAI(base_url=f"{router.url}/v1", api_key="unused", max_retries=0, timeout=60)


@pytest.fixture
def client(fleet):
    with client_of(fleet.router) as client:
        yield client


@pytest.fixture
def new_router_client(fleet, folder):
    """The client of a router in which earlier tests have left no trace: to whom it gave much
    lately, the next prompts do not go."""
    router = Router("router-new", fleet.engines, folder)
    try:
        router.wait_up(len(fleet.engines))
        with client_of(router) as client:
            yield client
    finally:
        status = router.stop()
    assert status == 0, "the router did not end well:\n" + router.log_tail()
