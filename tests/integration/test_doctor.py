# SPDX-License-Identifier: Apache-2.0
"""samovar doctor: what it finds of a cluster that is well, and of each way in which one is not."""

import json
import subprocess

import pytest

from peers.map_agent import MapAgent
from peers.openai_api import CHAT
from peers.process import REPO, SANITIZER_MARKS, program, wait_until
from peers.wire import HOST, WAIT_S

FINE, FAILED, USAGE, CONFIG = 0, 1, 2, 3
FAST = ("--worker-idle-ms", 100)  # what is tried for so long is not what most tests are about


def examine(*words, code=FINE):
    """Its lines by how they begin: {"fine": [...], "doubt": [...], "WRONG": [...]}."""
    shown = subprocess.run([program("samovar"), "doctor", *map(str, words)], capture_output=True,
                           text=True, timeout=3 * WAIT_S)
    assert not any(mark in shown.stderr for mark in SANITIZER_MARKS), shown.stderr
    assert shown.returncode == code, shown
    found = {"fine": [], "doubt": [], "WRONG": []}
    for line in shown.stdout.splitlines():
        level, sentence = line.split(maxsplit=1)
        found[level].append(sentence)
    assert bool(found["WRONG"]) == (code == FAILED), shown
    assert not found["WRONG"] or f"{len(found['WRONG'])} wrong" in shown.stderr
    return found


def said(sentences, *words):
    """The one sentence that has all of these words."""
    having = [sentence for sentence in sentences if all(str(word) in sentence for word in words)]
    assert len(having) == 1, (words, sentences)
    return having[0]


def answer_with(cached_tokens):
    """As an engine; cached_tokens: what it says was cached; None: nothing."""
    def handle(request):
        tokens = len(json.loads(request.body())["messages"][0]["content"]) // 4
        usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
        if cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
        request.answer(CHAT.answer("yes", usage))
    return handle


@pytest.fixture
def fleet_of_one(start_fleet):
    fleet = start_fleet(1)
    fleet.handle_with(answer_with(cached_tokens=100))
    return fleet


@pytest.fixture
def users_acl(tmp_path):
    """docker/users.acl, its agent-1 for workers on this host, and a user who may do everything."""
    lines = (REPO / "docker" / "users.acl").read_text().replace("sim-1", HOST).splitlines()
    path = tmp_path / "users.acl"
    path.write_text("\n".join(["user default on >all ~* &* +@all", *lines[1:]]) + "\n")
    return path


def password_file(tmp_path, password):
    path = tmp_path / f"password of {password}"
    path.touch(0o600)
    path.write_text(password + "\n")
    return path


# --- all is well ---

def test_a_cluster_that_is_well_is_found_well(start_redis, start_sim, start_agent, start_router,
                                              secret_file, users_acl, tmp_path):
    redis = start_redis(users_acl=users_acl, password="all")
    sim = start_sim("--kv-events", f"tcp://{HOST}:*", "--kv-replay", f"tcp://{HOST}:*")
    start_agent(sim, redis.url_of("agent-1"), "--redis-password-file",
                password_file(tmp_path, "change-me-agent-1"), kv_events=sim.kv_events,
                kv_replay=sim.kv_replay).wait_ready()
    flags = ("--redis", redis.url_of("router"), "--redis-password-file",
             password_file(tmp_path, "change-me-router"), "--secret-file", secret_file)
    router = start_router((), *flags)
    router.wait_ready()
    wait_until(lambda: [row for row in router.admin("/residency").json()["workers"]
                        if row["believed"]], "the router believes the agent")
    # The engine has had a prompt: its blocks are known.
    router.post(CHAT, CHAT.request(messages=[{"role": "user", "content": "Hello. " * 40}]))
    wait_until(lambda: all(row["whole"] and row["agent"]["block_tokens"]
                           for row in router.admin("/residency").json()["workers"]),
               "the router has read it, and that its agent knows all")

    found = examine("--admin", "http://%s:%d" % router.admin_address, "--host", HOST, "--port",
                    router.address[1], *flags, *FAST)

    assert not found["doubt"], found
    said(found["fine"], "redis://router@", "answers in")
    said(found["fine"], "may do all that a router must")
    said(found["fine"], f"{sim.url}: its agent", "speaks: blocks of 16 tokens")
    said(found["fine"], f"{sim.url} answers in")
    said(found["fine"], f"{sim.url} keeps idle connections")
    said(found["fine"], f"{sim.url} found", "tokens of a probe's second turn")
    said(found["fine"], "the router knows exactly what", sim.url)
    said(found["fine"], "second turn through the router found")
    said(found["fine"], "an agent has published what the probe left")


def test_a_router_alone_is_well_too(start_router, fleet_of_one):
    router = start_router(fleet_of_one)

    found = examine("--admin", "http://%s:%d" % router.admin_address, "--host", HOST, "--port",
                    router.address[1], "--worker-urls", fleet_of_one[0].url, *FAST)

    assert not found["doubt"], found
    said(found["fine"], "no redis is configured")
    said(found["fine"], "the running router has no redis")
    said(found["fine"], "through the router found 100 of")


# --- Redis ---

def map_flags(redis, secret_file, user=None):
    return ("--redis", redis.url_of(user), "--secret-file", secret_file, "--no-probe",
            "--admin", f"http://{HOST}:9", *FAST)


def test_a_redis_that_is_not_there(redis, secret_file, fleet_of_one):
    flags = map_flags(redis, secret_file)
    redis.kill()

    found = examine(*flags, "--worker-urls", fleet_of_one[0].url, code=FAILED)

    assert "is it running there?" in said(found["WRONG"], redis.url, "connection refused")
    said(found["fine"], fleet_of_one[0].url, "answers in")  # the rest is examined all the same


def test_a_password_that_is_missing_or_wrong(start_redis, secret_file, fleet_of_one, tmp_path):
    redis = start_redis(password="right")
    flags = (*map_flags(redis, secret_file), "--worker-urls", fleet_of_one[0].url)

    missing = examine(*flags, code=FAILED)
    wrong = examine(*flags, "--redis-password-file", password_file(tmp_path, "wrong"), code=FAILED)

    assert "redis-password-file" in said(missing["WRONG"], "NOAUTH")
    assert "redis-password-file" in said(wrong["WRONG"], "WRONGPASS")


def test_a_user_that_may_do_too_little_or_too_much(start_redis, secret_file, users_acl, tmp_path):
    redis = start_redis(users_acl=users_acl, password="all")

    agent = examine(*map_flags(redis, secret_file, "agent-1"), "--redis-password-file",
                    password_file(tmp_path, "change-me-agent-1"), code=FAILED)
    default = examine(*map_flags(redis, secret_file, "default"), "--redis-password-file",
                      password_file(tmp_path, "all"), code=FAILED)  # there is no worker

    said(agent["WRONG"], "may not do", "SMEMBERS")
    said(agent["WRONG"], "may not do", "XADD smv:routers")
    assert "docker/users.acl" in said(default["doubt"], "more than a router must", "CONFIG", "EVAL")


def test_a_redis_that_cannot_be_written(redis, secret_file, fleet_of_one):
    flags = (*map_flags(redis, secret_file), "--worker-urls", fleet_of_one[0].url)
    redis.call("REPLICAOF", HOST, 9)

    found = examine(*flags, code=FAILED)

    said(found["WRONG"], "is a replica")


def test_asking_changes_nothing_in_redis(redis, secret_file, fleet_of_one):
    redis.call("XADD", "smv:routers", "1-1", "b", "x")

    examine(*map_flags(redis, secret_file), "--worker-urls", fleet_of_one[0].url, code=FAILED)

    assert redis.call("KEYS", "*") == [b"smv:routers"]
    assert redis.call("XLEN", "smv:routers") == 1


# --- agents ---

def test_no_agent_at_all(redis, secret_file, fleet_of_one):
    found = examine(*map_flags(redis, secret_file), "--worker-urls", fleet_of_one[0].url,
                    code=FAILED)

    said(found["doubt"], "no agent names a worker", "the same secret-file?")
    said(found["WRONG"], fleet_of_one[0].url, "no agent speaks for it")


def test_an_agent_of_another_secret(redis, secret_file, start_sim, start_agent, tmp_path):
    other = tmp_path / "other secret"
    other.touch(0o600)
    other.write_text("another one\n")
    sim = start_sim("--kv-events", f"tcp://{HOST}:*", "--kv-replay", f"tcp://{HOST}:*")
    start_agent(sim, redis, kv_events=sim.kv_events, kv_replay=sim.kv_replay).wait_ready()

    found = examine(*map_flags(redis, other), "--worker-urls", sim.url, code=FAILED)

    said(found["WRONG"], sim.url, "names prompts otherwise", "secret-file")


@pytest.fixture
def speak(redis, secret_file, start_router, fleet_of_one):
    """speak(block_tokens=..., ...): an agent of the one worker that says what it is told to."""
    router = start_router(fleet_of_one, "--redis", redis.url, "--secret-file", secret_file)
    fingerprint = int(router.log.wait("start")["fingerprint"], 16)
    spoken = []

    def create(**how):
        spoken.append(MapAgent(redis, fleet_of_one[0], fingerprint, **how))
        return spoken[-1]

    yield create
    for agent in spoken:
        agent.fall_silent(is_said=False)


def test_an_agent_that_has_heard_nothing(redis, secret_file, speak):
    agent = speak(block_tokens=0)

    found = examine(*map_flags(redis, secret_file))

    said(found["doubt"], agent.name, "has heard no cache event yet", "kv-events")


def test_an_agent_that_does_not_know_all(redis, secret_file, speak):
    agent = speak(is_whole=False)

    found = examine(*map_flags(redis, secret_file))

    said(found["doubt"], agent.name, "does not know all", "kv-replay")


@pytest.mark.parametrize(("rate", "words"), [
    (0, ["nothing was loaded yet"]),
    (2_500_000_000, ["CPU memory at 2500 MB/s", "SSD at 0 (0: none yet)"])])
def test_an_engine_with_tiers(redis, secret_file, speak, rate, words):
    agent = speak(bytes_per_token=4096, cpu_bytes_per_s=rate)

    found = examine(*map_flags(redis, secret_file))

    said(found["fine"], agent.name, "its engine has tiers", "`samovar show tiers` on test", *words)


def test_two_agents_for_one_worker(redis, secret_file, speak):
    agent = speak(epoch=1)
    redis.call("HSET", agent.key("meta"), "epoch", f"{2:016x}")

    found = examine(*map_flags(redis, secret_file), code=FAILED)

    said(found["WRONG"], agent.name, "two agents speak for")


def test_an_agent_of_a_version_yet_to_come(redis, secret_file, speak):
    agent = speak()
    agent.fall_silent()
    redis.call("SET", agent.key("lease"), "v=2 whatever=that says")

    found = examine(*map_flags(redis, secret_file), code=FAILED)

    said(found["WRONG"], agent.name, "is not understood")


def test_an_agent_that_is_gone(redis, secret_file, speak):
    agent = speak()
    agent.fall_silent()

    found = examine(*map_flags(redis, secret_file), code=FAILED)

    said(found["WRONG"], agent.name, "no agent speaks for it")


# --- workers ---

def alone(*urls):
    return ("--worker-urls", *urls, "--admin", f"http://{HOST}:9")


def test_no_worker_at_all(redis, secret_file):
    found = examine(*map_flags(redis, secret_file), code=FAILED)

    said(found["WRONG"], "no agent names a worker")
    said(found["WRONG"], "there is no worker")


def test_a_worker_that_is_not_there(fleet_of_one):
    gone = f"http://{HOST}:9"

    found = examine(*alone(gone, fleet_of_one[0].url), *FAST, code=FAILED)

    said(found["WRONG"], f"{gone} does not answer: Connection refused", "is the engine running")
    said(found["fine"], f"{fleet_of_one[0].url} answers in")


def test_a_worker_that_closes_connections_sooner_than_we_do(start_sim):
    sim = start_sim("--keep-alive-ms", 300)

    found = examine(*alone(sim.url), "--worker-idle-ms", 4000, "--no-probe", code=FAILED)

    said(found["WRONG"], sim.url, "have been idle for 0.3 s", "keeps them for 4.0",
         "worker-idle-ms")


def test_a_worker_that_finds_nothing_again_or_does_not_say(start_fleet):
    fleet = start_fleet(1)

    fleet.handle_with(answer_with(cached_tokens=0))
    forgetful = examine(*alone(fleet[0].url), *FAST, code=FAILED)
    fleet.handle_with(answer_with(cached_tokens=None))
    silent = examine(*alone(fleet[0].url), *FAST)

    said(forgetful["WRONG"], fleet[0].url, "found nothing of a probe's second turn")
    said(silent["doubt"], fleet[0].url, "--enable-prompt-tokens-details")


def test_a_worker_that_refuses_the_probe(start_sim):
    sim = start_sim("--fault", "status=400,path=/v1/chat")

    found = examine(*alone(sim.url), *FAST)

    said(found["doubt"], f"{sim.url} could not be probed", "answers 400", "worker-api-key-file")


# --- the router ---

def test_a_router_that_is_not_there(fleet_of_one):
    found = examine(*alone(fleet_of_one[0].url), *FAST)

    said(found["doubt"], f"no router answers at http://{HOST}:9", "--admin")


def test_a_router_that_only_guesses_says_why(start_router, redis, secret_file, fleet_of_one):
    router = start_router(fleet_of_one, "--redis", redis.url, "--secret-file", secret_file)

    found = examine("--admin", "http://%s:%d" % router.admin_address, "--host", HOST, "--port",
                    router.address[1], "--redis", redis.url, "--secret-file", secret_file,
                    "--worker-urls", fleet_of_one[0].url, *FAST, code=FAILED)

    said(found["doubt"], "the router only guesses", fleet_of_one[0].url, "(no_agent)",
         "run samovar-agent beside it")


# --- how it is called ---

def test_a_configuration_that_is_wrong_is_said_as_the_router_says_it(redis, tmp_path):
    file = tmp_path / "router.yaml"
    file.write_text("no-such-option: 1\n")

    examine("--redis", redis.url, code=USAGE)  # without its secret-file
    examine(file, code=CONFIG)
    examine("--no-such-option", code=USAGE)


def test_a_file_is_read_as_the_router_reads_it(fleet_of_one, tmp_path):
    file = tmp_path / "router.yaml"
    file.write_text(f"worker-urls: [{fleet_of_one[0].url}]\nworker-idle-ms: 100ms\n")

    found = examine(file, "--admin", f"http://{HOST}:9")

    said(found["fine"], fleet_of_one[0].url, "for more than 0.1 s")
