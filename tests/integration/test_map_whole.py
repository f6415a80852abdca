# SPDX-License-Identifier: Apache-2.0
"""All of it at once under Redis users that may do nothing else; what nobody may find; and clocks."""

import json
import subprocess
from collections import Counter

import pytest

from peers.cluster import Conversation
from peers.openai_api import CHAT, COMPLETIONS
from peers.process import wait_until

TURNS = 80

# A host whose clock is an hour ahead. What measures time only is not touched.
CLOCK_AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    int status;

    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    status = real(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += 3600;
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;

    clock_gettime(CLOCK_REALTIME, &precise);
    if (now != NULL)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
"""


@pytest.fixture
def clock_ahead(tmp_path):
    """The environment of a process that believes it is an hour later."""
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK_AHEAD)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def test_an_hour_between_the_clocks_of_agents_and_routers_changes_nothing(start_cluster,
                                                                         clock_ahead):
    cluster = start_cluster(env=clock_ahead)

    with cluster.load() as load:
        load.wait_turns(TURNS)

    agent, router = cluster.agents[0].log.events[-1], cluster.routers[0].log.events[-1]
    assert agent["time"][:13] != router["time"][:13], "their clocks do differ"
    for row in cluster.rows(cluster.routers[0]).values():
        assert row["breaks_total"] == 0 and row["lease_age_ms"] < 3000
    cluster.check_truth()


def test_users_of_redis_that_may_do_what_is_documented_do_nothing_else(start_cluster):
    cluster = start_cluster(is_confined=True)

    with cluster.load() as load:
        load.wait_turns(TURNS)
        cluster.restart_agent(0)  # what it does at an end, and in another life
        cluster.wait_exact()
        load.wait_turns(TURNS)
    cluster.check_truth()

    assert cluster.admin("ACL", "LOG") == []
    for router in cluster.routers:
        assert router.metric_sum("samovar_router_map_records") > 0
        assert router.metric_sum("samovar_router_notes_refused_total") == 0
    assert all(agent.metric_sum("samovar_agent_redis_errors_total") == 0
               for agent in cluster.agents)


def test_nothing_of_a_prompt_is_in_redis_a_log_a_metric_or_a_file(start_cluster, tmp_path):
    cluster = start_cluster()
    canary, salt = "xylophone-quartz-7731", "salt-of-anna-9942"
    ids = [870000 + number for number in range(400)]
    conversations = [Conversation(name) for name in range(3)]
    answers = []

    def joined():
        """One more turn of each; whether every agent has joined some text by now."""
        for number, conversation in enumerate(conversations):
            body = json.loads(conversation.ask())
            body["messages"][-1]["content"] += f" {canary} {number} " * 40
            body["cache_salt"] = salt
            answer = cluster.routers[number % 2].post(CHAT, json.dumps(body).encode())
            assert answer.status == 200
            conversation.hear(answer.body)
            answers.append(conversation.messages[-1]["content"])
        return all(agent.metric_sum("samovar_agent_joins_total") for agent in cluster.agents)

    wait_until(joined, "the agents are told of them")
    assert cluster.routers[0].post(COMPLETIONS, COMPLETIONS.request(ids, max_tokens=4,
                                                                    cache_salt=salt)).status == 200
    cluster.settle()
    stored = cluster.redis.everything()
    metrics = b"".join(one.admin("/metrics").read_all() for one in cluster.routers + cluster.agents)
    views = b"".join(router.admin("/residency").read_all() for router in cluster.routers)
    for process in cluster.agents + cluster.routers:
        process.stop()  # an agent writes its file at its end
    logs = "\n".join(line for process in cluster.agents + cluster.routers
                     for line in process.log.text).encode()
    files = [path for number in range(len(cluster.agents))
             for path in cluster.state_dir(number).rglob("*") if path.is_file()]
    kept = b"".join(path.read_bytes() for path in files)

    assert stored and metrics and logs
    kinds = Counter(path.name.split("-")[0] for path in files)
    assert kinds == {"alignment": 3, "life": 3} and len(kept) > 1000, "each agent keeps its state"
    assert all(path.stat().st_mode & 0o077 == 0 for path in files), "nobody else reads them"
    places = {"Redis": stored, "metrics": metrics, "views": views, "logs": logs, "files": kept}
    for name, place in places.items():
        for secret in (canary, salt, *{answer[:20] for answer in answers}):
            assert secret.encode() not in place, f"{secret} in {name}"
        for order in ("little", "big"):
            for size in (4, 8):
                packed = b"".join(number.to_bytes(size, order) for number in ids[5:7])
                assert packed not in place, name
