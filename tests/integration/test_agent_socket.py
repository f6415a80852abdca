# SPDX-License-Identifier: Apache-2.0
"""
The socket of an agent's tiers, and who may use it; and what the system may refuse an agent: each time
a sentence that says what is wrong, where, and what to do.
"""

import grp
import os
import resource
import socket
import stat
import subprocess
import tempfile
import traceback
from pathlib import Path

import pytest

from peers.engine_client import SCHEDULER, HELLO, EngineClient, Link
from peers.kv_engine import KvEngine
from peers.process import is_sanitized, program, wait_until
from peers.wire import WAIT_S

MIB = 1 << 20
USAGE, CONFIG, BIND = 2, 3, 4  # exit codes
OTHER_USER, OTHER_GROUP, THEIR_GROUP = 54321, 54322, 54323  # of nobody on any machine

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play other users")


@pytest.fixture
def folder():
    """Where other users get to, unlike what is below pytest's own."""
    with tempfile.TemporaryDirectory(prefix="samovar-") as name:
        os.chmod(name, 0o711)
        yield Path(name)


@pytest.fixture
def events():
    engine = KvEngine()
    yield engine
    engine.stop()


@pytest.fixture
def start(start_agent, worker, redis, folder, events):
    """start(flag, ...): an agent with its socket in a directory that it makes."""
    def start(*flags, **options):
        path = folder / "run" / "agent.sock"
        agent = start_agent(worker, redis, "--cpu-bytes", MIB, "--ipc-socket", path, *flags,
                            kv_events=events.events, **options)
        agent.log.wait("tiers_listening")
        return agent, path
    return start


# --- who may come ---


def as_user(user, groups, act):
    """What act() returns in a process of that user and these groups, the first its own: 0 to 100."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups[1:])
            os.setgid(groups[0])
            os.setuid(user)
            os._exit(act())
        except BaseException:
            traceback.print_exc()
        os._exit(101)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert 0 <= code <= 100, f"it ended with {code}"
    return code


WELCOMED, NOT_LET_NEAR, SENT_AWAY = range(3)


def come(path):
    """As an engine's scheduler does."""
    engine = EngineClient(path, registers=False)
    try:
        engine.scheduler = Link(path)
    except PermissionError:
        return NOT_LET_NEAR
    try:
        engine.scheduler.send(HELLO, engine.hello(SCHEDULER))
        if engine.scheduler.socket.recv(1) == b"":
            return SENT_AWAY
    except (BrokenPipeError, ConnectionResetError):
        return SENT_AWAY
    return WELCOMED


@needs_root
@pytest.mark.parametrize("group", [THEIR_GROUP, grp.getgrall()[-1].gr_name], ids=["number", "name"])
def test_a_groups_processes_may_come_and_no_others(start, group):
    agent, path = start("--ipc-group", group)
    number = group if group == THEIR_GROUP else grp.getgrnam(group).gr_gid

    assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (number, 0o660)
    assert (path.parent.stat().st_gid, stat.S_IMODE(path.parent.stat().st_mode)) == (number, 0o770)
    assert as_user(OTHER_USER, [number], lambda: come(path)) == WELCOMED
    assert as_user(OTHER_USER, [OTHER_GROUP, number], lambda: come(path)) == WELCOMED
    assert as_user(OTHER_USER, [OTHER_GROUP], lambda: come(path)) == NOT_LET_NEAR
    assert come(path) == WELCOMED  # root, whose agent it is


@needs_root
@pytest.mark.parametrize("flags", [["--ipc-group", THEIR_GROUP], []], ids=["a group", "none"])
def test_who_gets_past_the_files_mode_is_sent_away_all_the_same(start, flags):
    agent, path = start(*flags)
    path.parent.chmod(0o755)
    path.chmod(0o666)

    assert as_user(OTHER_USER, [OTHER_GROUP], lambda: come(path)) == SENT_AWAY
    wait_until(lambda: agent.metric_sum("samovar_agent_engine_connections_foreign_total") == 1,
               "it is counted")
    mine = as_user(OTHER_USER, [THEIR_GROUP], lambda: come(path))
    assert mine == (WELCOMED if flags else SENT_AWAY)


# --- where the socket cannot be ---


@pytest.fixture
def refused(worker, redis, secret_file, events):
    """refused(flag, ...): (exit code, what it says) of an agent that does not start."""
    def refused(*flags, user=None):
        argv = [program("samovar-agent"), "--redis", redis.url, "--secret-file", secret_file,
                "--engine", worker.url, "--kv-events", events.events, "--admin-port", 0, *flags]
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True,
                              timeout=WAIT_S, user=user, group=user,
                              extra_groups=None if user is None else [])
        said = [line for line in done.stderr.splitlines() if not line.startswith(("time=", "{"))]
        return done.returncode, "\n".join(said)
    return refused


def make_file(path):
    path.touch()


def make_served(path):
    """By somebody who is no agent, and so has no lock."""
    make_served.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    make_served.listener.bind(str(path))
    make_served.listener.listen()


def make_open(path):
    path.parent.chmod(0o777)


def make_link(path):
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.symlink_to("elsewhere")


def make_locked(path):
    path.with_name(path.name + ".lock").symlink_to("/dev/null")


def make_no_parent(path):
    path.parent.rmdir()
    path.parent.parent.rmdir()


@pytest.mark.parametrize(("make", "at", "what", "advice"), [
    (make_file, "agent.sock", "no socket", "remove it, or choose another path"),
    (make_served, "agent.sock", "somebody else serves it", "choose another path"),
    (make_open, "", "others than this user", "chown and chmod 700 it"),
    (make_link, "", "Not a directory", "no link to one"),
    (make_locked, "agent.sock.lock", "symbolic links", "must be able to write this file"),
    (make_no_parent, "", "No such file", "make it for the agent's user, mode 700")],
    ids=lambda value: value.__name__ if callable(value) else "")
def test_where_the_socket_cannot_be_is_said(refused, folder, make, at, what, advice):
    path = folder / "parent" / "run" / "agent.sock"
    path.parent.mkdir(parents=True, mode=0o700)
    make(path)

    code, said = refused("--cpu-bytes", MIB, "--ipc-socket", path)

    assert code == BIND
    assert f"ipc-socket {path.parent / at}: " in said and what in said and advice in said
    if make is make_served:
        make_served.listener.close()


def test_a_path_too_long_for_a_socket_is_said_with_its_limit(refused, folder):
    longest = folder / "run" / "".ljust(107 - len(str(folder / "run")) - 1, "s")

    code, said = refused("--cpu-bytes", MIB, "--ipc-socket", f"{longest}s")

    assert code == USAGE and "--ipc-socket" in said and "at most 107 bytes" in said
    assert len(str(longest)) == 107


def test_the_longest_path_is_served(start_agent, worker, redis, folder, events):
    path = folder / "run" / "".ljust(107 - len(str(folder / "run")) - 1, "s")
    agent = start_agent(worker, redis, "--cpu-bytes", MIB, "--ipc-socket", path,
                        kv_events=events.events)
    agent.log.wait("tiers_listening")

    assert come(path) == WELCOMED


@needs_root
def test_a_directory_that_the_agents_user_may_not_write_is_said(refused, folder, secret_file):
    """secret_file: theirs, so that nothing else is in the way."""
    (folder / "roots").mkdir(mode=0o755)
    secret = folder / "secret"
    secret.write_bytes(secret_file.read_bytes())
    os.chown(secret, OTHER_USER, OTHER_USER)
    secret.chmod(0o600)

    code, said = refused("--cpu-bytes", MIB, "--ipc-socket", folder / "roots" / "agent.sock",
                         "--secret-file", secret, user=OTHER_USER)
    missing, said_of_missing = refused(
        "--cpu-bytes", MIB, "--ipc-socket", folder / "roots" / "new" / "agent.sock",
        "--secret-file", secret, user=OTHER_USER)

    assert code == missing == BIND
    assert f"{folder}/roots/agent.sock.lock: Permission denied" in said
    assert "the agent's user must be able to write" in said
    assert f"{folder}/roots/new: Permission denied: it cannot be made" in said_of_missing


# --- what the system does not have ---


def take_descriptors(agent, path):
    """Engines come until there is none left. Returns them; the last one waits."""
    _, hard = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (agent.open_descriptors(), hard))
    engines = []
    while not agent.log.find("engines_wait"):
        engine = EngineClient(path, registers=False)
        engine.scheduler = Link(path)
        engine.scheduler.send(HELLO, engine.hello(SCHEDULER))
        engines.append(engine)
        wait_until(lambda: not engine.scheduler.is_silent(0.02) or agent.log.find("engines_wait"),
                   "it is welcomed, or waits")
    if not engine.scheduler.is_silent(0.1):  # it got the last one: the next one waits
        engines.append(EngineClient(path, registers=False))
        engines[-1].scheduler = Link(path)
        engines[-1].scheduler.send(HELLO, engines[-1].hello(SCHEDULER))
    return engines


def test_engines_that_find_no_descriptor_wait_and_are_served_when_there_is_one(start):
    agent, path = start()
    limit = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    *others, last = take_descriptors(agent, path)
    before = agent.cpu_seconds()

    assert last.scheduler.is_silent(1)
    assert agent.cpu_seconds() - before < 0.5, "it does not spin"
    for engine in others:
        engine.welcome(engine.scheduler)
        engine.scheduler.ping()  # who was there is served all the while
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, limit)

    last.welcome(last.scheduler)
    said = agent.log.find("engines_wait")
    assert len(said) == 1 and "LimitNOFILE" in said[0]["advice"]
    assert said[0]["why"] == "Too many open files" and said[0]["socket"] == str(path)
    assert 5 <= agent.metric_sum("samovar_agent_engine_connections_starved_total") <= 100
    for engine in (*others, last):
        engine.stop()


def test_more_memory_than_there_is_is_refused_at_the_start(refused, folder):
    code, said = refused("--cpu-bytes", "1024TiB", "--ipc-socket", folder / "run" / "agent.sock")

    assert code == CONFIG and "cpu-bytes" in said and "are more than the" in said
    assert "leave some of these to the engines" in said


@pytest.mark.skipif(is_sanitized("samovar-agent"), reason="a sanitizer wants all addresses")
def test_memory_that_the_system_does_not_give_is_said_to_the_engine_and_in_the_log(start):
    agent, path = start("--cpu-bytes", 512 * MIB)
    soft, hard = resource.prlimit(agent.pid, resource.RLIMIT_AS)
    status = Path(f"/proc/{agent.pid}/status").read_text()
    now = int(status.split("VmSize:")[1].split()[0]) << 10
    resource.prlimit(agent.pid, resource.RLIMIT_AS, (now + 64 * MIB, hard))
    engine = EngineClient(path, registers=False)
    engine.register_scheduler()

    with pytest.raises(AssertionError, match="lower its --cpu-bytes"):
        engine.register_worker()

    assert "lower its --cpu-bytes" in agent.log.wait("engine_refused", code="layout")["why"]
    engine.scheduler.ping()
    resource.prlimit(agent.pid, resource.RLIMIT_AS, (soft, hard))
    engine.worker.close()
    engine.register_worker()  # which it does again by itself
    engine.stop()
