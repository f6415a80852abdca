# SPDX-License-Identifier: Apache-2.0
"""Two real engines and a router for the session; tests that kill engines come last and start
their own in the place of the dead."""

import openai
import pytest

from engines import Engine, Router, make_model, start_engines


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def model_folder(folder):
    return make_model(folder / "tiny")


class Fleet:
    """The engines of the session. What a test killed is started again for the next one."""

    def __init__(self, model_folder, folder):
        self.model_folder, self.folder = model_folder, folder
        self.started = 2
        self.engines = start_engines(2, model_folder, folder)
        self.router = self.start_router()

    def start_router(self):
        self.router = Router(f"router-{self.started}", self.engines, self.folder)
        self.router.wait_up(len(self.engines))
        return self.router

    def repair(self):
        """Everybody lives: new engines for dead ones, and then a router that knows them."""
        dead = [i for i, engine in enumerate(self.engines) if not engine.is_alive()]
        if not dead:
            return
        self.router.stop()
        for i in dead:
            self.engines[i].kill()
            self.engines[i] = Engine(f"engine-{self.started}", self.model_folder, self.folder)
            self.started += 1
        for i in dead:
            self.engines[i].wait_ready()
        self.start_router()

    def by_url(self, url):
        return next(engine for engine in self.engines if engine.url == url.rstrip("/"))

    def stop(self):
        status = self.router.stop()
        for engine in self.engines:
            engine.kill()
        return status


@pytest.fixture(scope="session")
def fleet_of_session(model_folder, folder):
    fleet = Fleet(model_folder, folder)
    yield fleet
    assert fleet.stop() == 0, "the router did not end well:\n" + fleet.router.log_tail()


@pytest.fixture
def fleet(fleet_of_session):
    fleet_of_session.repair()
    return fleet_of_session


@pytest.fixture
def client(fleet):
    """The real client, without its own retries: what the router answers is what we judge."""
    with openai.OpenAI(base_url=f"{fleet.router.url}/v1", api_key="unused", max_retries=0,
                       timeout=60) as client:
        yield client
