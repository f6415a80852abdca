# SPDX-License-Identifier: Apache-2.0
"""
Nobody played: simulated engines that keep their blocks with a real agent, over a real Redis. A prefix
that left an engine comes back from wherever it lies, to the byte; and whoever dies wherever, no
engine ever goes on from a wrong page, nothing stays held, and nothing is claimed that is not there.

SAMOVAR_KILL_ROUNDS (1): how often each point of death is tried; 20 for the full run.
"""

import json
import os
import random
import re
import signal
import subprocess
import threading
import time

import pytest

from peers.agent import CLEAR_POINTS, FAULT_POINTS
from peers.openai_api import MODEL
from peers.process import REPO, wait_until
from peers.residency_map import ResidencyMap
from peers.residency_wire import CPU, SSD
from peers.tiered_node import BLOCK_TOKENS, prompt

KILL_ROUNDS = int(os.environ.get("SAMOVAR_KILL_ROUNDS", "1"))
TRUE_S = 1  # within which the map says nothing but the truth, from an agent's start on
SLACK_S = 1  # for a machine that others keep busy

ENGINE_FAULTS = ["kill_at_lookup", "kill_at_load", "kill_at_save"]


def held(node, tier):
    return node.agent.metrics()[f'samovar_agent_tier_held_blocks{{tier="{tier}"}}']


def wait_quiet(node):
    """Nothing moves, nobody holds anything, and each slot is somebody's or free."""
    def is_quiet():
        metrics = node.agent.metrics()
        return all(metrics[f"samovar_agent_{name}"] == 0
                   for name in ("engine_requests", "engine_transfers", "tier_holds")) and \
            slots_agree(metrics)
    wait_until(is_quiet, lambda: f"quiet: {node.agent.metrics()}")


def slots_agree(metrics):
    def of(name, tier):
        return metrics[f'samovar_agent_tier_{name}{{tier="{tier}"}}']
    return all(of("held_blocks", tier) + of("slots_free", tier) == of("slots", tier)
               for tier in ("cpu", "ssd"))


# --- what comes back --------------------------------------------------------------------------------

def test_an_evicted_prefix_comes_back_from_cpu_memory(start_node):
    node = start_node()
    sim = node.sims[0]
    _, fresh = sim.ask(prompt(1, 40))
    sim.evict(64)

    assert sim.ask(prompt(1, 40)) == (40 * BLOCK_TOKENS, fresh)
    assert sim.told()["loaded_blocks_total"] == 40
    wait_quiet(node)
    node.check_pages()


def fill_ssd(node, seeds, block_count=40):
    """Prompts that were asked twice, and lie on the SSD alone; what was answered."""
    sim = node.sims[0]
    fresh = {}
    for seed in seeds:
        fresh[seed] = sim.ask(prompt(seed, block_count))[1]
        sim.evict(64)
        assert sim.ask(prompt(seed, block_count))[1] == fresh[seed]
    for _ in range(4):  # of 64 blocks each: CPU memory has room for 128
        sim.evict(64)
    wait_quiet(node)
    return fresh


def test_what_left_cpu_memory_comes_back_from_the_ssd(start_node):
    node = start_node(cpu_pages=128, ssd_pages=256)
    fresh = fill_ssd(node, [1])
    before = node.agent.metrics()["samovar_agent_tier_blocks_loaded_ssd_total"]

    assert node.sims[0].ask(prompt(1, 40)) == (40 * BLOCK_TOKENS, fresh[1])
    assert node.agent.metrics()["samovar_agent_tier_blocks_loaded_ssd_total"] == before + 40
    node.check_pages()


# --- what is loaded, and what is computed instead ---------------------------------------------------

SLOW_READS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t preadv(int fd, const struct iovec *parts, int count, off_t offset)
{
    ssize_t (*next)(int, const struct iovec *, int, off_t) = dlsym(RTLD_NEXT, "preadv");

    if (access(getenv("SLOW_READS"), F_OK) == 0)
        usleep(40000);
    return next(fd, parts, count, offset);
}
"""


@pytest.fixture
def slow_reads(tmp_path):
    """(environment, path): while there is a file at path, an agent with this environment waits for
    each read of a block from its disk; computing one takes 2 ms."""
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW_READS)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    path = tmp_path / "reads-are-slow"
    # A sanitizer's library wants to be loaded first, and does without it.
    asan = f"{os.environ.get('ASAN_OPTIONS', '')}:verify_asan_link_order=0"
    return {"LD_PRELOAD": str(library), "SLOW_READS": str(path), "ASAN_OPTIONS": asan}, path


def start_slow_node(start_node, slow_reads):
    return start_node(cpu_pages=128, ssd_pages=256, env=slow_reads[0],
                      agent_flags=("--ssd-io", "threads", "--eviction", "lru_leaf"))


def slower(node):
    return node.agent.metrics()['samovar_agent_engine_lookups_total{result="slower"}']


def loaded(node, tier):
    return node.agent.metrics()[f"samovar_agent_tier_blocks_loaded_{tier}_total"]


def test_a_disk_that_became_slow_is_learned_and_what_is_on_it_computed(start_node, slow_reads):
    node = start_slow_node(start_node, slow_reads)
    sim, fresh = node.sims[0], fill_ssd(node, [1, 2])
    slow_reads[1].touch()

    assert sim.ask(prompt(1, 40)) == (40 * BLOCK_TOKENS, fresh[1]), "nobody knew"
    assert slower(node) == 0
    assert sim.ask(prompt(2, 40)) == (0, fresh[2])
    assert slower(node) == 1
    assert loaded(node, "ssd") == 40
    node.check_pages()


PROBE_EVERY = 16


def test_a_disk_that_is_too_slow_is_tried_again_once_in_a_while(start_node, slow_reads):
    node = start_slow_node(start_node, slow_reads)
    sim, fresh = node.sims[0], fill_ssd(node, range(PROBE_EVERY + 1), 4)
    slow_reads[1].touch()
    assert sim.ask(prompt(0, 4))[0] == 4 * BLOCK_TOKENS, "nobody knew"

    found = [sim.ask(prompt(seed, 4)) for seed in range(1, PROBE_EVERY + 1)]

    assert sorted(tokens for tokens, _ in found) == (PROBE_EVERY - 1) * [0] + [4 * BLOCK_TOKENS]
    assert [answer for _, answer in found] == [fresh[seed] for seed in range(1, PROBE_EVERY + 1)]
    node.check_pages()


def test_of_a_prompt_half_on_a_slow_disk_the_other_half_is_loaded(start_node, slow_reads):
    node = start_slow_node(start_node, slow_reads)
    sim, fresh = node.sims[0], fill_ssd(node, [1])
    slow_reads[1].touch()
    assert sim.ask(prompt(1, 20))[0] == 20 * BLOCK_TOKENS, "its first half comes up, and it is learned"
    sim.evict(64)
    before = loaded(node, "cpu"), loaded(node, "ssd")

    assert sim.ask(prompt(1, 40)) == (20 * BLOCK_TOKENS, fresh[1])
    assert (loaded(node, "cpu"), loaded(node, "ssd")) == (before[0] + 20, before[1])
    node.check_pages()


def test_what_is_on_the_ssd_outlives_the_agent(start_node):
    node = start_node(cpu_pages=128, ssd_pages=256)
    fresh = fill_ssd(node, [1])

    node.restart_agent()
    wait_until(lambda: held(node, "ssd") >= 40, "what is on the SSD was found")
    node.sims[0].evict(64)

    assert node.sims[0].ask(prompt(1, 40)) == (40 * BLOCK_TOKENS, fresh[1])
    node.check_pages()


def test_what_was_changed_on_the_ssd_is_a_miss_and_never_another_answer(start_node):
    node = start_node(cpu_pages=128, ssd_pages=256)
    fresh = fill_ssd(node, [1])
    node.agent.kill()
    for path in node.ssd.rglob("slots-*"):
        if path.is_file():
            spoil(path, 3 * node.page_bytes)

    node.start_agent()
    wait_until(lambda: held(node, "ssd") >= 40, "what is on the SSD was found")
    node.sims[0].evict(64)
    cached, text = node.sims[0].ask(prompt(1, 40))

    assert text == fresh[1] and cached < 40 * BLOCK_TOKENS
    assert node.agent.metrics()["samovar_agent_tier_blocks_corrupt_total"] > 0
    node.check_pages()


def spoil(path, every):
    """One bit of it is another one, again and again: in payloads, and here and there in a header."""
    with path.open("r+b") as file:
        for at in range(5000, path.stat().st_size, every):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))


def test_what_is_in_the_tiers_outlives_the_engine(start_node):
    node = start_node().remember_ports()
    _, fresh = node.sims[0].ask(prompt(1, 40))

    node.restart_engine(0)

    assert node.sims[0].ask(prompt(1, 40)) == (40 * BLOCK_TOKENS, fresh)
    node.check_pages()
    wait_until(lambda: node.mappings() == 1, "the memory of the engine before is let go")


def test_what_one_engine_saved_another_one_loads(start_node):
    node = start_node(engine_count=2)
    first, second = node.sims
    _, fresh = first.ask(prompt(1, 40))

    assert second.ask(prompt(1, 40)) == (40 * BLOCK_TOKENS, fresh)
    node.check_pages()


def test_salts_and_loras_never_meet(start_node):
    node = start_node(sim_flags=["--lora", "poet"])
    sim = node.sims[0]
    sim.ask(prompt(1, 40))
    sim.evict(64)

    assert sim.ask(prompt(1, 40), cache_salt="other")[0] == 0
    sim.evict(64)
    assert sim.ask(prompt(1, 40), model="poet")[0] == 0
    node.check_pages()


# --- what the map says ------------------------------------------------------------------------------

class Talk:
    """A conversation through the router, so that its text is known by the tokens' tiers."""

    def __init__(self, name, part_count=160):
        self.messages = [{"role": "user", "content": " ".join(
            f"{name} tells of part {i}." for i in range(part_count))}]

    def body(self):
        return {"model": MODEL, "messages": self.messages, "max_tokens": 4}

    def through(self, router):
        answer = router.call("POST", "/v1/chat/completions", json.dumps(self.body()).encode(),
                             {"Content-Type": "application/json"})
        assert answer.status == 200, answer.read_all()
        answer.read_all()


def told_tokens(node, sim):
    """{tiers: tokens up to the end of the farthest block there} that the map says of the engine's
    worker, or None while it changes."""
    records = ResidencyMap(node.redis, sim.url).records()
    if records is None:
        return None
    told = {}
    for tokens, tiers in records.values():
        told[tiers] = max(told.get(tiers, 0), tokens)
    return told


def told_life(node):
    """Whose word the map is: the agent's life; None: nobody's."""
    return ResidencyMap(node.redis, node.sims[0].url).lease().get("life")


def keep_lease(node):
    """The lease that a dead agent has left does not run out: who waits for that, waits too long."""
    lease = ResidencyMap(node.redis, node.sims[0].url).key("lease")
    assert node.redis.call("PEXPIRE", lease, 10 * 60_000) == 1


def come_back(node):
    """An agent in the place of one that was killed, behind keep_lease(). Returns when engines are
    registered; printed is when another life spoke, which by then claims nothing that lay in CPU
    memory."""
    life, begun = told_life(node), time.monotonic()
    registered = [sim.told()["registrations_total"] for sim in node.sims]

    node.start_agent(is_awaited=False)
    wait_until(lambda: told_life(node) != life, "another life speaks")
    spoke_s = time.monotonic() - begun
    told = wait_told(node)

    print(f"spoke {spoke_s:.3f} s after its start: {told}")
    assert spoke_s < TRUE_S + SLACK_S
    assert not any(tiers & CPU for tiers in told), told
    for sim, before in zip(node.sims, registered):
        sim.wait_registered(before + 1)


def wait_told(node):
    """told_tokens() at a moment at which nothing changes."""
    told = []
    wait_until(lambda: told.append(told_tokens(node, node.sims[0])) or told[-1] is not None,
               "the map can be read")
    return told[-1]


def beneath(told):
    """How far the map says that CPU memory and SSD go."""
    return max((tokens for tiers, tokens in (told or {}).items() if tiers & (CPU | SSD)),
               default=0)


def lookups(node):
    """How often an engine was answered what."""
    return {key.split('"')[1]: value for key, value in node.agent.metrics().items()
            if key.startswith("samovar_agent_engine_lookups_total")}


def check_told(node, talk):
    """What the map says of the talk beneath the engine is there."""
    sim = node.sims[0]
    sim.evict(node.engine_blocks - 1)
    wait_quiet(node)
    wait_until(lambda: node.agent.metric_sum("samovar_agent_report_unsaid") == 0
               and told_tokens(node, sim) is not None, "all is said")
    told, before = told_tokens(node, sim), lookups(node)
    cached = chat(sim, talk)
    assert cached >= beneath(told) - BLOCK_TOKENS, (told, cached, before, lookups(node))


def chat(sim, talk):
    """Cached tokens, past the router."""
    answer = sim.post("/v1/chat/completions", talk.body())
    assert answer.status == 200
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture
def start_knowing_router(start_router, redis, secret_file):
    """A router that believes the agent of the one node there is, and knows its engine's blocks."""
    def create():
        router = start_router((), "--redis", redis.url, "--secret-file", secret_file)
        router.wait_ready()
        router.wait_states("up", 1)
        router.wait_believed(1, BLOCK_TOKENS)
        return router
    return create


# --- while there is load ----------------------------------------------------------------------------

class Load:
    """Clients that ask for the same few prompts at random: more than the engine, CPU memory and SSD
    hold. Every answer that comes is the one that a fresh engine gives."""

    PROMPTS = 24
    BLOCKS = 20

    def __init__(self, node, answers, client_count=3):
        self.node = node
        self.answers = answers  # seed -> text, as it was said first
        self.wrong = []
        self.count = 0
        self.lost = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True)
                         for n in range(client_count)]
        for thread in self._threads:
            thread.start()

    def _run(self, number):
        choose = random.Random()
        while not self._stop.is_set():
            seed = choose.randrange(self.PROMPTS)
            sim = choose.choice(self.node.sims)
            try:
                if choose.random() < 0.15:  # a client that leaves, at any point
                    wire = sim.begin(prompt(seed, self.BLOCKS))
                    time.sleep(choose.random() * 0.02)
                    wire.close()
                    continue
                _, text = sim.ask(prompt(seed, self.BLOCKS))
            except (OSError, AssertionError):  # its engine is dead or dies
                self.lost += 1
                time.sleep(0.01)
                continue
            self.count += 1
            if self.answers.setdefault(seed, text) != text:
                self.wrong.append((seed, text))

    def wait(self, count):
        until = self.count + count
        wait_until(lambda: self.count >= until, "the load goes on", 30)

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a client hangs"
        assert not self.wrong, self.wrong[:3]


@pytest.fixture
def start_load(start_node):
    """A node whose tiers are too small for the load, and the load."""
    loads, answers = [], {}

    def create(node):
        loads.append(Load(node, answers))
        return loads[-1]

    yield create
    for load in loads:
        load.stop()


def small_node(start_node, **options):
    return start_node(engine_blocks=81, cpu_pages=128, ssd_pages=160, **options).remember_ports()


def check_clean(node, fds):
    """Behind a death: pages right, nothing held or leaked, and the quota kept. fds: how many of each
    engine there may be, as (engine, count)."""
    wait_quiet(node)
    node.check_pages()
    for sim in node.sims:
        told = sim.told()
        assert told["loading"] == 0 and told["registered"] == 1, told
    wait_until(lambda: node.mappings() == len(node.sims),
               lambda: f"one mapping an engine: {node.mappings()}")
    assert node.agent.metrics()["samovar_agent_engines"] == len(node.sims)
    assert node.ssd_used() <= node.ssd_bytes
    for sim, count in fds:
        if sim.is_running():
            wait_until(lambda: sim.open_descriptors() <= count,
                       lambda: f"{count} descriptors: {sim.open_descriptors()}")


def test_a_load_that_wants_more_than_there_is_loses_nothing(start_node, start_load):
    node = small_node(start_node)
    load = start_load(node)

    load.wait(150)
    load.stop()

    metrics = node.agent.metrics()
    for name in ("loaded_cpu", "loaded_ssd", "demoted", "evicted_cpu", "evicted_ssd"):
        assert metrics[f"samovar_agent_tier_blocks_{name}_total"] > 0, name
    assert metrics["samovar_agent_tier_blocks_corrupt_total"] == 0
    check_clean(node, [])


def test_each_place_at_which_an_agent_can_be_told_to_die_is_tried():
    """Here, but for those of a RESET, which simulated engines do not say: in test_agent_tiers.py."""
    header = (REPO / "backends" / "runtime" / "fault_point.h").read_text()
    rows = re.findall(r'row\(FAULT_\w+,[\s\\]*"([a-z-]+)"\)', header)

    assert tuple(rows) == FAULT_POINTS + CLEAR_POINTS


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_an_agent_that_dies_anywhere_leaves_no_wrong_byte_and_nothing_held(
        start_node, start_load, start_knowing_router, point):
    node = small_node(start_node)
    router, talk = start_knowing_router(), Talk(point, 50)
    talk.through(router)
    load = start_load(node)
    load.wait(30)
    fds = [(sim, sim.open_descriptors() + 8) for sim in node.sims]  # 8: clients of the load

    for _ in range(KILL_ROUNDS):
        node.restart_agent({"SAMOVAR_FAULT_POINT": f"{point}:{random.randint(1, 12)}"},
                           is_awaited=False)
        talk.through(router)
        assert node.agent.wait_exit(60) == -signal.SIGKILL
        keep_lease(node)
        load.wait(3)  # engines serve on
        come_back(node)
        load.wait(5)
        load.stop()
        check_clean(node, fds)
        check_told(node, talk)
        load = start_load(node)
    talk.through(router)
    load.wait(5)
    load.stop()

    check_clean(node, fds)
    check_told(node, talk)


@pytest.mark.parametrize("fault", ENGINE_FAULTS)
def test_an_engine_that_dies_anywhere_leaves_nothing_held(start_node, start_load, fault):
    node = small_node(start_node, engine_count=2)
    load = start_load(node)
    load.wait(30)
    agent_fds = node.agent.open_descriptors() + 4  # probes and events come and go

    for _ in range(KILL_ROUNDS):
        node.restart_engine(0, "--fault", f"{fault},nth={random.randint(1, 6)}", is_awaited=False)
        assert node.sims[0].wait_exit(60) == -signal.SIGKILL
        wait_until(lambda: node.agent.metrics()["samovar_agent_engines"] == 1,
                   "the dead engine is let go", 1)
        wait_until(lambda: node.mappings() == 1, "its memory is let go", 1)
        load.wait(3)
        node.restart_engine(0)
    load.stop()

    check_clean(node, [])
    wait_until(lambda: node.agent.open_descriptors() <= agent_fds,
               lambda: f"{agent_fds} descriptors: {node.agent.open_descriptors()}")


def test_an_agent_that_is_stopped_is_waited_for_no_longer_than_it_asked(start_node):
    node = start_node()
    sim = node.sims[0]
    _, fresh = sim.ask(prompt(1, 40))
    sim.evict(64)
    node.agent.signal(signal.SIGSTOP)

    begun = time.monotonic()
    told = sim.ask(prompt(1, 40))
    took = time.monotonic() - begun
    node.agent.signal(signal.SIGCONT)

    assert told == (0, fresh)
    assert took < 4  # a lookup, and one save
    sim.wait_registered(2)
    sim.evict(64)
    assert sim.ask(prompt(1, 40)) == (40 * BLOCK_TOKENS, fresh)
    wait_quiet(node)
    node.check_pages()


# --- what is said of it when all is well -----------------------------------------------------------

@pytest.fixture
def told_node(start_node, start_knowing_router):
    """A node of which a router and the map know one conversation, which is in CPU memory, and on the
    SSD too where the node has one; (node, conversation)."""
    def create(**options):
        node = start_node(engine_blocks=257, **options)
        router = start_knowing_router()
        talk = Talk(node.agent.pid)
        for _ in range(3):
            talk.through(router)
            node.sims[0].evict(256)
        return node, talk
    return create


def test_the_map_says_what_lies_in_cpu_memory_and_it_is_there(told_node):
    node, talk = told_node(cpu_pages=2048)
    sim = node.sims[0]

    wait_until(lambda: beneath(told_tokens(node, sim)) > 0,
               lambda: f"the map tells of tiers: {told_tokens(node, sim)}")

    told = told_tokens(node, sim)
    assert chat(sim, talk) >= beneath(told) - BLOCK_TOKENS, told


def test_an_agent_that_lost_its_memory_claims_none_of_it_from_its_first_word(told_node):
    node, _ = told_node(cpu_pages=2048)
    sim = node.sims[0]
    wait_until(lambda: beneath(told_tokens(node, sim)) > 0, "the map tells of tiers")
    node.agent.kill()
    keep_lease(node)

    come_back(node)

    until = time.monotonic() + TRUE_S
    while time.monotonic() < until:  # whatever it says from now on, none of that
        assert beneath(told_tokens(node, sim)) == 0
        time.sleep(0.01)
    assert held(node, "cpu") == 0


def test_an_agent_that_finds_its_ssd_again_says_so_and_it_is_there(told_node):
    node, talk = told_node(cpu_pages=512, ssd_pages=1024)
    sim = node.sims[0]
    for _ in range(3):
        sim.evict(256)
    wait_until(lambda: held(node, "ssd") > 0, "it is on the SSD")
    wait_quiet(node)

    node.agent.stop()  # in order: how text and tokens are joined is kept, too

    node.start_agent()

    wait_until(lambda: beneath(told_tokens(node, sim)) > 0,
               lambda: f"the map tells of the SSD: {told_tokens(node, sim)}, {held(node, 'ssd')}")
    told = told_tokens(node, sim)
    assert chat(sim, talk) >= beneath(told) - BLOCK_TOKENS, told
    node.check_pages()
