# SPDX-License-Identifier: Apache-2.0
"""
Fixtures of the integration tests. A router costs some 30 ms to start, so nearly every test has one
of its own and begins with nothing in flight, no pooled connection and nothing learned. Each router
is held at its end to what every test may ask of it: see Router.stop().
"""

import itertools

import pytest

from peers.agent import Agent
from peers.cluster import Cluster
from peers.openai_api import CHAT, COMPLETIONS
from peers.process import BIN
from peers.redis_server import RedisServer
from peers.router import Router
from peers.sim import Sim
from peers.tiered_node import TieredNode, TieredSim
from peers.worker import Fleet, ScriptedWorker


def pytest_sessionstart():
    for name in ("samovar", "samovar-agent", "samovar-router", "samovar-sim"):
        if not (BIN / name).exists():
            pytest.exit(f"{BIN / name} is missing: build it, or set SAMOVAR_BIN_DIR", 2)


def start_all(create):
    """A factory whose products are stopped in the reverse order, all of them, at the end."""
    started = []

    def start(*args, **options):
        started.append(create(*args, **options))
        return started[-1]

    yield start
    failures = []
    for thing in reversed(started):
        try:
            thing.stop()
        except Exception as failure:  # whatever it was, the others must end too
            failures.append(f"{type(failure).__name__}: {failure}")
        finally:
            if hasattr(thing, "kill"):
                thing.kill()
    assert not failures, "\n".join(failures)


@pytest.fixture
def start_worker():
    yield from start_all(ScriptedWorker)


@pytest.fixture
def start_fleet():
    yield from start_all(Fleet)


@pytest.fixture
def start_sim():
    yield from start_all(Sim)


@pytest.fixture
def start_tiered_sim():
    yield from start_all(TieredSim)


@pytest.fixture
def start_router(start_worker, start_fleet, start_sim):
    """start_router(workers, flag, ...). Probes are rare unless a test asks for them, so that what
    a worker is thought to be changes only where the test makes it. Workers outlive their router."""

    def create(workers=(), *flags, is_ready=True, env=None):
        router = Router(workers, ["--probe-interval-ms", 60000, *flags], env)
        if workers and is_ready:
            with router.killed_on_failure():
                router.wait_ready()
                router.wait_states("up", len(list(workers)))
        return router

    yield from start_all(create)


@pytest.fixture
def start_redis():
    yield from start_all(RedisServer)


@pytest.fixture
def redis(start_redis):
    return start_redis()


@pytest.fixture
def secret_file(tmp_path):
    """The cluster's secret, for --secret-file of routers and agents."""
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("as good as any other for a test\n")
    return path


@pytest.fixture
def start_agent(secret_file):
    """start_agent(engine, redis, kv_events=..., kv_replay=..., ...)"""

    def create(engine, redis, *flags, **options):
        return Agent(engine, redis, secret_file, *flags, **options)

    yield from start_all(create)


@pytest.fixture
def start_cluster(tmp_path):
    """start_cluster(...): as Cluster takes it."""
    yield from start_all(lambda **options: Cluster(tmp_path, **options))


@pytest.fixture
def start_node(tmp_path, redis, secret_file):
    """start_node(...): as TieredNode takes it."""
    numbers = itertools.count()
    yield from start_all(lambda **options: TieredNode(tmp_path / f"node-{next(numbers)}", redis,
                                                      secret_file, **options))


@pytest.fixture
def cluster(start_cluster):
    """Redis, three engines with their agents, two routers, all of them exact."""
    return start_cluster()


@pytest.fixture
def worker(start_worker):
    return start_worker()


@pytest.fixture
def router(start_router, worker):
    """In front of one worker."""
    return start_router([worker])


@pytest.fixture
def fleet(start_fleet):
    """Two workers, one queue."""
    return start_fleet(2)


@pytest.fixture
def fleet_router(start_router, fleet):
    return start_router(fleet)


@pytest.fixture(params=[CHAT, COMPLETIONS], ids=lambda api: api.name)
def api(request):
    return request.param
