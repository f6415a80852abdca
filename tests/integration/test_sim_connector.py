# SPDX-License-Identifier: Apache-2.0
"""samovar-sim as the engine of an agent that the test plays: pages come back as they were, wrong ones
show, and nothing that an agent does or leaves undone keeps a request from its answer."""

import random
import signal
import threading

import pytest

from peers.connector_agent import (CLOSE, HELLO, LOAD, LOOKUP, OPEN, SAVE, SCHEDULER, TAKE,
                                   WORKER, ConnectorAgent)
from peers.process import wait_until

BLOCK = 16
BLOCKS = 65  # of which the engine keeps one to itself
PROMPT = 40 * BLOCK + 1  # two of them do not fit


@pytest.fixture
def agent():
    agent = ConnectorAgent()
    yield agent
    agent.stop()


@pytest.fixture
def start(start_tiered_sim, agent):
    def create(*flags):
        return start_tiered_sim("--connector", agent.path, "--blocks", BLOCKS, "--page-bytes", 4096,
                                "--connector-lookup-ms", 2000, "--speedup", 20, *flags)
    return create


@pytest.fixture
def sim(start):
    return start().wait_registered()


def restart(agent, sim):
    """The agent again, and the engine with it."""
    times = metric(sim, "registrations_total")
    agent.restart()
    sim.wait_registered(times + 1)


def metric(sim, name):
    return sim.told()[name]


def prompt(seed, count=PROMPT):
    return [random.Random(seed * 1000 + i).randrange(1000, 60000) for i in range(count)]


def evict(sim):
    """Whatever the engine held is gone."""
    sim.ask(prompt(99, 63 * BLOCK))


def test_an_evicted_prefix_comes_back_whole_and_the_answer_is_the_same(sim):
    _, fresh = sim.ask(prompt(1))
    evict(sim)

    cached, again = sim.ask(prompt(1))

    assert (cached, again) == (40 * BLOCK, fresh)
    assert metric(sim, "loaded_blocks_total") == 40
    assert metric(sim, "wrong_pages_total") == 0 and metric(sim, "read_pages_total") >= 80


def test_an_engine_that_never_saw_the_prompt_finds_it_with_the_agent(start):
    first, second = start().wait_registered(), start().wait_registered()
    _, fresh = first.ask(prompt(1))

    assert second.ask(prompt(1)) == (40 * BLOCK, fresh)
    assert metric(second, "wrong_pages_total") == 0


def test_another_lora_or_salt_is_another_prompt(start, agent):
    sim = start("--lora", "poet").wait_registered()
    sim.ask(prompt(1))
    sim.ask(prompt(1), cache_salt="s")
    sim.ask(prompt(1), model="poet")

    opened = [agent.wait(OPEN) for _ in range(3)]

    assert [(one["lora"], one["salt"]) for one in opened] == [("", ""), ("", "s"), ("poet", "")]
    assert all(one["id"].startswith("cmpl-") for one in opened)
    assert metric(sim, "loads_total") == 0


def test_a_wrong_bit_is_seen_and_makes_the_answer_another_one(sim, agent):
    _, fresh = sim.ask(prompt(1))
    evict(sim)
    agent.spoil()

    _, again = sim.ask(prompt(1))

    assert again != fresh and "X" in again
    assert metric(sim, "wrong_pages_total") > 0
    assert sim.log.find("wrong_page")


def test_a_load_that_came_short_is_computed(sim, agent):
    _, fresh = sim.ask(prompt(1))
    evict(sim)
    agent.load_count = 7

    assert sim.ask(prompt(1)) == (7 * BLOCK, fresh)
    assert metric(sim, "missed_blocks_total") == 33 and metric(sim, "wrong_pages_total") == 0


def test_a_lookup_without_an_answer_is_a_miss_and_its_late_answer_nobodys(start, agent):
    sim = start("--connector-lookup-ms", 200).wait_registered()
    _, fresh = sim.ask(prompt(1))
    evict(sim)
    agent.answers_lookups = False
    assert sim.ask(prompt(1)) == (0, fresh)
    assert metric(sim, "lookups_late_total") == 1

    agent.answers_lookups = True
    agent.release()  # says that 40 blocks were found, to nobody
    assert sim.ask(prompt(3, 20 * BLOCK))[0] == 0
    assert metric(sim, "registrations_total") == 1 and metric(sim, "wrong_pages_total") == 0


def test_who_is_told_later_asks_again_and_lets_others_pass(sim, agent):
    _, fresh = sim.ask(prompt(1))
    evict(sim)
    agent.later_ms = 300
    wire = sim.begin(prompt(1))
    assert agent.wait(LOOKUP)["found"] == 0  # of the first time
    agent.forget()
    other = sim.ask(prompt(5, 20))
    wire.close()

    assert other[0] == 0
    assert metric(sim, "lookups_put_off_total") == 1
    assert sim.ask(prompt(1)) == (40 * BLOCK, fresh)


def test_an_agent_that_comes_later_is_found(start, agent):
    agent.end()
    sim = start()
    assert sim.ask(prompt(1))[0] == 0

    agent.start()
    sim.wait_registered()

    assert {agent.wait(HELLO)["role"], agent.wait(HELLO)["role"]} == {SCHEDULER, WORKER}


def test_an_agent_that_was_restarted_is_registered_with_anew(sim, agent):
    _, fresh = sim.ask(prompt(1))
    evict(sim)

    restart(agent, sim)

    assert sim.ask(prompt(1)) == (40 * BLOCK, fresh)
    assert metric(sim, "wrong_pages_total") == 0


def test_answers_of_another_boot_end_the_registration(sim, agent):
    agent.stale_boot = True
    assert sim.ask(prompt(1))[0] == 0
    wait_until(lambda: metric(sim, "registrations_total") >= 2, "registered anew")

    agent.stale_boot = False
    restart(agent, sim)
    assert sim.ask(prompt(2))[0] == 0


def test_an_agent_that_refuses_is_asked_again(start, agent):
    agent.refuses = (4, "one layout too many")
    sim = start()
    assert sim.log.wait("connector_refused")["text"] == "one layout too many"
    assert sim.ask(prompt(1))[0] == 0

    agent.refuses = None
    sim.wait_registered()


def test_a_save_without_an_answer_ends_the_registration_in_time(sim, agent):
    agent.save_ms = 50
    restart(agent, sim)
    agent.answers_saves = False
    _, fresh = sim.ask(prompt(1))

    agent.answers_saves = True
    agent.save_ms = 2000
    restart(agent, sim)
    evict(sim)
    assert sim.ask(prompt(1)) == (40 * BLOCK, fresh)
    assert metric(sim, "saves_late_total") >= 1 and metric(sim, "wrong_pages_total") == 0


def test_an_agent_that_dies_in_a_load_leaves_the_prompt_to_be_computed(sim, agent):
    _, fresh = sim.ask(prompt(1))
    evict(sim)
    agent.answers_loads = False
    answers = []
    thread = threading.Thread(target=lambda: answers.append(sim.ask(prompt(1))))
    thread.start()
    agent.wait(LOAD)

    agent.restart()
    thread.join()

    assert answers == [(0, fresh)]
    assert metric(sim, "missed_blocks_total") == 40 and metric(sim, "loading") == 0


def test_blocks_of_a_load_are_left_alone_until_its_answer_though_the_client_left(sim, agent):
    sim.ask(prompt(1))
    evict(sim)
    agent.answers_loads = False
    wire = sim.begin(prompt(1))
    agent.wait(LOAD)
    agent.forget()
    wire.close()
    agent.wait(CLOSE)

    blocked = sim.begin(prompt(2))  # has no room beside them
    agent.wait(OPEN)
    assert metric(sim, "loading") == 1
    agent.release()
    agent.wait(SAVE)
    blocked.close()

    assert metric(sim, "loading") == 0 and metric(sim, "wrong_pages_total") == 0


def test_an_engine_that_goes_while_a_load_is_out_keeps_its_blocks_until_end_of_file(sim, agent):
    agent.save_ms = 500
    restart(agent, sim)
    sim.ask(prompt(1, 20 * BLOCK))
    evict(sim)
    agent.answers_loads = agent.answers_saves = False
    agent.forget()
    loading = sim.begin(prompt(1, 20 * BLOCK))
    agent.wait(LOAD)

    sim.ask(prompt(2, 10 * BLOCK))  # its save has no answer: the engine goes
    sim.wait_registered(3)

    wait_until(lambda: metric(sim, "loading") == 0, "end of file")
    assert metric(sim, "missed_blocks_total") == 19
    loading.close()


def test_what_was_found_is_taken_before_it_is_loaded(sim, agent):
    sim.ask(prompt(1))
    evict(sim)
    agent.forget()

    sim.ask(prompt(1))

    taken = agent.wait(TAKE)
    assert (taken["first"], taken["count"]) == (0, 40)
    assert agent.wait(LOAD)["request"] == taken["request"]
    assert agent.wait(CLOSE)["request"] == taken["request"]


@pytest.mark.parametrize("fault", ["kill_at_lookup", "kill_at_load", "kill_at_save"])
def test_an_engine_kills_itself_where_it_is_told_to(start, fault):
    saver = start().wait_registered()
    saver.ask(prompt(1))
    sim = start("--fault", fault).wait_registered()
    wire = sim.begin(prompt(2 if fault == "kill_at_save" else 1))

    assert sim.wait_exit() == -signal.SIGKILL
    wire.close()
    sim.log.text.clear()
