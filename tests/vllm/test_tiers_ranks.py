# SPDX-License-Identifier: Apache-2.0
"""The tiers beneath an engine of several ranks, each of which has a part of every block: the same
answers with and without them. The long set: an engine of two ranks starts for a minute."""

import dataclasses

import pytest

from tiers import CACHE, Node, prompts_of, run_load

PROMPTS = prompts_of(30, seed=5)


@pytest.fixture
def node(folder, model_folder):
    place = folder / "ranks"
    place.mkdir()
    node = Node(place, model_folder, dataclasses.replace(CACHE, tensor_ranks=2))
    yield node
    node.close()


def test_answers_are_the_same_with_and_without_tiers_beneath_two_ranks(node):
    engine = node.start_engine()
    engine.wait_ready()
    control = run_load("without an agent", engine, PROMPTS, aborts=0)

    node.start_agent(64, 0)
    saved = run_load("saved", engine, PROMPTS)
    loaded = run_load("evicted, from CPU memory", engine, PROMPTS)

    assert not control.failures and not saved.failures and not loaded.failures
    assert control.hits == 0 and loaded.hits > 0
    assert node.loaded("cpu") > 0
    assert saved.differences(control) == [] and loaded.differences(control) == []
    assert node.agent.metric("samovar_agent_tier_blocks_corrupt_total") == 0
    print("jobs that not all ranks had said:",
          node.agent.metric("samovar_agent_engine_ungathered_total"), flush=True)
