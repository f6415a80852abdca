# SPDX-License-Identifier: Apache-2.0
"""The tiers beneath an engine of several ranks, each of which has a part of every block: the same
answers with and without them. The long set: an engine of two ranks starts for a minute."""

import dataclasses
import json
import os
import subprocess

import pytest

from engines import CONNECTOR
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


# In the engine's own Python, where the connector can be imported: what it says of each of these.
WHY_NOT = """
import json, sys, types
from samovar_vllm.connector import why_ranks_unusable
usable = {"world_size": 2, "pipeline_parallel_size": 1}
cases, pages = json.load(sys.stdin), types.SimpleNamespace(needs_kv_cache_zeroing=True)
print(json.dumps([why_ranks_unusable(types.SimpleNamespace(**{**usable, **case}), pages)
                  for case in cases]))
"""


def test_which_ranks_have_no_tiers_is_said():
    said = [({}, None), ({"world_size": 65}, "65 ranks"),
            ({"nnodes": 2}, "ranks on 2 nodes: each agent would see some of them only"),
            ({"decode_context_parallel_size": 2}, "decode_context_parallel_size is 2: "
             "a rank has some tokens of a block only"),
            ({"pipeline_parallel_size": 2}, "pipelined ranks whose blocks are cleared before a step")]
    done = subprocess.run([f"{os.environ['SAMOVAR_VLLM_VENV']}/bin/python", "-c", WHY_NOT], text=True,
                          input=json.dumps([case for case, _ in said]), capture_output=True,
                          env={**os.environ, "PYTHONPATH": str(CONNECTOR)})

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [sentence for _, sentence in said]
