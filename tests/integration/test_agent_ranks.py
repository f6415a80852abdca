# SPDX-License-Identifier: Apache-2.0
"""
Engines of several ranks beneath a real agent: a page is the parts of all ranks. Whatever a rank
says, leaves out or dies of, all ranks hear the same of a job, and a block is right in all of them
or in none.
"""

import itertools
import struct
import time

import pytest

from peers import engine_client as wire
from peers.engine_client import (
    BLOCK_TOKENS, HIT, MISS, NO_ROOM, Link, Memory, RankedEngineClient, loaded_by, saved_by)
from peers.process import wait_until
from test_agent_tiers import MIB, Node, page_of, prompt_ids

DEADLINE_S = 0.7   # for the last rank to say a save, from the first one on
WAITED_S = 0.4     # surely shorter: what is answered by then waited for no deadline


@pytest.fixture
def node(start_agent, redis, worker, tmp_path):
    node = Node(start_agent, redis, worker, tmp_path)
    yield node
    node.stop()


def unequal_memories(**options):
    """Of three ranks, with one, three and two layers."""
    return [Memory(layer_count=layers, **options) for layers in (1, 3, 2)]


def ranked_engine(node, memories=None, **options):
    engine = RankedEngineClient(node.socket, memories or unequal_memories(), **options)
    node.engines.append(engine)
    return engine


@pytest.fixture
def engine(node):
    node.start_agent()
    return ranked_engine(node)


def fill(engine, number, count, first=0):
    """A request whose blocks lie in the engine's from first on: (ids, its number, the blocks)"""
    blocks = list(range(first, first + count))
    for i, block in enumerate(blocks):
        engine.write(block, page_of(f"{number}/{i}", engine))
    ids = prompt_ids(number, count)
    return ids, engine.open(ids, f"chatcmpl-{number}"), blocks


def begin_load(engine, ids, count, first=32):
    """A request that has found all, and room for it: (its number, the blocks)"""
    request = engine.open(ids)
    assert engine.lookup_soon(request) == (count * BLOCK_TOKENS, HIT)
    engine.take(request, 0, count)
    blocks = list(range(first, first + count))
    for block in blocks:
        engine.write(block, bytes(engine.page_bytes))
    return request, blocks


def holds(engine, number, blocks):
    return [engine.read(block) for block in blocks] == [
        page_of(f"{number}/{i}", engine) for i in range(len(blocks))]


def clocked(act):
    began = time.monotonic()
    return act(), time.monotonic() - began


# --- coming ---


def test_an_engine_is_there_when_all_its_ranks_are_in_whatever_order_they_come(node):
    node.start_agent("--ipc-clients-max", 200)
    for order in itertools.permutations(("scheduler", 0, 1, 2)):
        engine = ranked_engine(node, registers=False)
        for i, who in enumerate(order):
            assert node.metric("engines") == (order[i:] == ("scheduler",))
            if who == "scheduler":
                engine.register_scheduler()
            else:
                engine.register_rank(who)
        assert node.metric("engines_partial") == 0 and node.metric("engines") == 1
        _, request, blocks = fill(engine, str(order), 2)
        assert engine.save(request, blocks) == (2, 0, 0)
        engine.close()
        node.wait_metric("engines", 0)
        node.wait_metric("engine_connections", 0)


def test_what_some_ranks_ask_for_while_others_are_away_is_answered_at_once(node):
    node.start_agent()
    engine = ranked_engine(node, registers=False)
    engine.register_scheduler()
    engine.register_rank(0)
    engine.register_rank(2)
    request = engine.open(prompt_ids(1, 4))
    assert node.metric("engines_partial") == 1

    assert engine.lookup(request) == (0, NO_ROOM)
    engine.say_save(0, 1, (request, 0, [0, 1, 2, 3]))
    _, took_s = clocked(lambda: saved_by(engine.links[0], 1))
    engine.say_load(2, 2, request, [5])

    assert took_s < WAITED_S and loaded_by(engine.links[2], 2) == 0
    assert node.metric("tier_blocks_saved_total") == 0


@pytest.mark.parametrize("away", range(3))
def test_a_reset_while_a_rank_is_away_is_done_when_it_comes(node, engine, away):
    ids, request, blocks = fill(engine, 1, 4)
    assert engine.save(request, blocks) == (4, 0, 0)
    engine.links[away].close()
    node.wait_metric("engines", 0)

    engine.begin_reset()
    engine.scheduler.ping()  # which is answered, and DONE was not said before
    engine.register_rank(away)
    engine.end_reset()

    assert engine.lookup(engine.open(ids)) == (0, MISS)
    assert engine.scheduler.is_silent()  # it is said once
    engine.next_job = 2
    assert engine.save(request, blocks) == (4, 0, 0)


# --- all say the same ---


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_what_was_saved_comes_back_in_each_rank_whoever_speaks_first(engine, order):
    ids, request, blocks = fill(engine, 1, 4)
    assert engine.save(request, blocks, order) == (4, 0, 0)
    again, targets = begin_load(engine, ids, 4)

    assert engine.load(again, targets, order) == 4

    assert holds(engine, 1, targets)


def test_ranks_may_be_some_jobs_apart(engine):
    requests = [fill(engine, number, 2, 2 * number) for number in range(5)]
    jobs = [engine.new_job() for _ in requests]
    for rank in range(3):
        for job, (_, request, blocks) in zip(jobs, requests):
            engine.say_save(rank, job, (request, 0, blocks))

    for link in engine.links:  # several threads copy: answers come as they are done
        answers = {struct.unpack_from("<QI", link.receive(wire.SAVED)[1]) for _ in jobs}
        assert answers == {(job, 2) for job in jobs}


def test_what_is_on_the_ssd_comes_back_to_all_ranks_of_another_life(node):
    sizes = {"cpu_bytes": MIB, "ssd_bytes": 16 * MIB}
    agent = node.start_agent(**sizes)
    engine = ranked_engine(node)
    node.wait_metric("tier_layouts_scanning", 0)  # nothing is written there before
    ids, request, blocks = fill(engine, 1, 8)
    assert engine.save(request, blocks) == (8, 0, 0)
    again, targets = begin_load(engine, ids, 8)
    assert engine.load(again, targets) == 8  # used: worth a write
    node.wait_metric("tier_held_blocks", 8, tier="ssd")
    engine.close()
    agent.kill()
    node.start_agent(**sizes)
    engine = ranked_engine(node)
    wait_until(lambda: engine.lookup(engine.open(ids)) == (8 * BLOCK_TOKENS, HIT), "found again")

    again, targets = begin_load(engine, ids, 8)
    assert engine.load(again, targets) == 8

    assert holds(engine, 1, targets)


def test_pages_cut_otherwise_are_others(node):
    node.start_agent("--layouts-max", 3)
    three = ranked_engine(node)
    ids, request, blocks = fill(three, 1, 4)
    assert three.save(request, blocks) == (4, 0, 0)

    mirrored = ranked_engine(node, [Memory(layer_count=n) for n in (2, 3, 1)])
    alone = node.engine(memory=Memory(layer_count=6))

    for other in (mirrored, alone):
        assert other.lookup(other.open(ids)) == (0, MISS)
    assert node.metric("engines") == 3


# --- not all say it ---


def test_a_save_that_one_rank_does_not_say_is_given_up_in_time_and_answered(node, engine):
    ids, request, blocks = fill(engine, 1, 4)
    engine.say_save(0, 1, (request, 0, blocks))
    engine.say_save(2, 1, (request, 0, blocks))

    answers, took_s = clocked(lambda: [saved_by(engine.links[rank], 1) for rank in (0, 2)])

    assert answers == [(0, 0, 4)] * 2 and WAITED_S < took_s
    assert node.metric("engine_ungathered_total") == 1
    engine.say_save(1, 1, (request, 0, blocks))
    late, took_s = clocked(lambda: saved_by(engine.links[1], 1))
    assert late == (0, 0, 4) and took_s < WAITED_S
    assert engine.lookup(engine.open(ids)) == (0, MISS)
    engine.next_job = 2
    assert engine.save(request, blocks) == (4, 0, 0)


@pytest.mark.parametrize("silent", range(3))
def test_nobody_waits_for_a_rank_that_has_gone_past_a_job(engine, silent):
    ids, request, blocks = fill(engine, 1, 4)
    assert engine.save(request, blocks) == (4, 0, 0)
    again, targets = begin_load(engine, ids, 4)
    others = [rank for rank in range(3) if rank != silent]
    for rank in others:
        engine.say_load(rank, 2, again, targets)

    engine.say_save(silent, 3, (request, 0, blocks))
    answers, took_s = clocked(lambda: [loaded_by(engine.links[rank], 2) for rank in others])

    assert answers == [0, 0] and took_s < WAITED_S
    assert not any(any(engine.read(block)) for block in targets)
    for rank in others:
        engine.say_save(rank, 3, (request, 0, blocks))
    assert [saved_by(link, 3) for link in engine.links] == [(0, 4, 0)] * 3


def test_a_request_that_was_closed_meanwhile_is_loaded_for_none(engine):
    ids, request, blocks = fill(engine, 1, 4)
    assert engine.save(request, blocks) == (4, 0, 0)
    again, targets = begin_load(engine, ids, 4)
    engine.say_load(0, 2, again, targets)
    engine.say_load(1, 2, again, targets)

    engine.close_request(again)
    engine.say_load(2, 2, again, targets)

    assert [loaded_by(link, 2) for link in engine.links] == [0, 0, 0]
    assert not any(any(engine.read(block)) for block in targets)


@pytest.mark.parametrize("kind", [wire.SAVE, wire.LOAD])
def test_a_rank_that_says_another_thing_by_the_same_number_is_refused(node, engine, kind):
    _, request, blocks = fill(engine, 1, 4)
    say = engine.say_load if kind == wire.LOAD else (
        lambda rank, job, request, blocks: engine.say_save(rank, job, (request, 0, blocks)))
    say(0, 1, request, blocks)

    say(1, 1, request, blocks[::-1])

    code, why = engine.links[1].refusal()
    assert code == wire.REFUSED_BROKEN and "same job" in why
    assert engine.links[0].receive(wire.SAVED, wire.LOADED)
    node.wait_metric("engines", 0)


def test_numbers_of_a_rank_go_up(engine):
    _, request, blocks = fill(engine, 1, 1)
    engine.say_save(0, 2, (request, 0, blocks))

    engine.say_save(0, 1, (request, 0, blocks))

    code, why = engine.links[0].refusal()
    assert code == wire.REFUSED_BROKEN and "order" in why


# --- deaths ---


@pytest.mark.parametrize("dies", range(3))
def test_a_rank_that_dies_while_others_wait_for_it_ends_their_wait_and_may_come_again(
        node, engine, dies):
    ids, request, blocks = fill(engine, 1, 4)
    others = [rank for rank in range(3) if rank != dies]
    for rank in others:
        engine.say_save(rank, 1, (request, 0, blocks))

    engine.links[dies].close()
    answers, took_s = clocked(lambda: [saved_by(engine.links[rank], 1) for rank in others])

    assert answers == [(0, 0, 4)] * 2 and took_s < WAITED_S
    node.wait_metric("engines", 0)
    node.agent.log.wait("engine_incomplete")
    assert engine.lookup(request) == (0, NO_ROOM)
    engine.register_rank(dies)
    assert node.metric("engines") == 1
    engine.next_job = 2
    assert engine.save(request, blocks) == (4, 0, 0)
    again, targets = begin_load(engine, ids, 4)
    assert engine.load(again, targets) == 4 and holds(engine, 1, targets)


def loaded_or_ended(link, job):
    """The end stands for an answer, too: nobody touches its blocks any more."""
    try:
        return loaded_by(link, job)
    except wire.Ended:
        return 0


def big_memories():
    return [Memory(block_count=64, layer_count=1, layer_bytes=MIB // 4) for _ in range(2)]


@pytest.mark.parametrize("dies", range(2))
def test_no_rank_reads_its_end_before_the_last_byte_of_a_load(node, dies):
    node.start_agent(cpu_bytes=64 * MIB)
    engine = ranked_engine(node, big_memories())
    ids, request, blocks = fill(engine, 1, 30)
    assert engine.save(request, blocks) == (30, 0, 0)
    again, targets = begin_load(engine, ids, 30)
    for rank in range(2):
        engine.say_load(rank, 2, again, targets)

    engine.links[dies].socket.shutdown(wire.socket.SHUT_WR)

    # Read before or behind the load, or before the other rank's: all of it, or nothing, is there.
    assert {loaded_or_ended(link, 2) for link in engine.links} <= {0, 30}
    engine.links[dies].expect_end()
    before = [engine.read(block) for block in targets]
    assert holds(engine, 1, targets) or not any(any(page) for page in before)
    node.wait_metric("engines", 0)
    engine.links[1 - dies].ping()  # who lives goes on
    assert [engine.read(block) for block in targets] == before


@pytest.mark.parametrize("dies", range(2))
def test_a_save_of_which_one_rank_did_not_wait_is_thrown_away(node, dies):
    node.start_agent(cpu_bytes=64 * MIB)
    engine = ranked_engine(node, big_memories())
    ids, request, blocks = fill(engine, 1, 60)
    for rank in range(2):
        engine.say_save(rank, 1, (request, 0, blocks))

    engine.links[dies].socket.shutdown(wire.socket.SHUT_WR)
    engine.memories[dies].write(59, b"x" * engine.memories[dies].page_bytes)

    engine.links[1 - dies].receive(wire.SAVED)
    node.wait_metric("engines", 0)
    saved = node.metric("tier_blocks_saved_total")
    assert saved == 0 or node.metric("engine_saves_discarded_total") == 0
    engine.links[dies].close()
    engine.register_rank(dies)
    tokens, _ = engine.lookup(engine.open(ids))
    assert tokens == saved * BLOCK_TOKENS


def test_a_killed_engine_of_several_ranks_leaves_nothing(node, engine):
    ids, request, blocks = fill(engine, 1, 4)
    assert engine.save(request, blocks) == (4, 0, 0)
    again, targets = begin_load(engine, ids, 4)
    engine.say_load(0, 2, again, targets)

    engine.close()

    node.wait_metric("engine_connections", 0)
    assert node.metric("engines") == 0 and node.metric("tier_holds") == 0
    node.wait_nothing_left()


# --- who may not come ---


def test_ranks_that_do_not_agree_are_refused_with_a_sentence_and_the_others_are_served(engine):
    one = Memory(block_count=8)
    for rank, other, code, words in (
            (0, {}, wire.REFUSED_RANKS, "another process speaks for this rank"),
            (1, {"rank_count": 2}, wire.REFUSED_RANKS, "same number of ranks"),
            (0, {"rank": 3}, wire.REFUSED_RANKS, "counted from 0")):
        link = engine.greet(rank, **other)
        refused, why = link.refusal()
        link.close()
        assert refused == code and words in why
    engine.links[1].close()
    for other in ({"model": "another"}, {"memory": one}):
        link = engine.greet(1, **other)
        refused, why = link.refusal()
        link.close()
        assert refused == wire.REFUSED_LAYOUT and "do not say the same model" in why
    one.close()

    engine.register_rank(1)

    _, request, blocks = fill(engine, 1, 4)
    assert engine.save(request, blocks) == (4, 0, 0)
