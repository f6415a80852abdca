# SPDX-License-Identifier: Apache-2.0
"""A real engine that is asked for a prompt's ids in its answer (--anchor-echo): the client gets what
it would have got, and what the ids said is true. The prompts name a reasoning effort, about which
/tokenize cannot be asked, and this engine has no .../render."""

import json
import re
import urllib.request

import pytest

from cluster import Cluster, has_redis
from engines import BIN, BLOCK_TOKENS, MODEL, get, wait_until

TEXT = "where is the samovar of the house? "

pytestmark = pytest.mark.skipif(not has_redis() or not (BIN / "samovar-agent").exists(),
                                reason="redis-server or samovar-agent is missing")


def chat(number, **fields):
    return {"model": MODEL, "messages": [{"role": "user", "content": f"{number} " + TEXT * 40}],
            "reasoning_effort": "low", "temperature": 0, "max_tokens": 8, **fields}


def post(url, body):
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def without_chance(text):
    """What differs between two answers to one request."""
    text = re.sub(r'"(id|created|system_fingerprint)":\s*("[^"]*"|\d+)', r'"\1":0', text)
    return re.sub(r'"(cached_tokens|\w+_cache_tokens)":\s*(\d+|null)', r'"\1":0', text)


def anchors(router, outcome):
    text = get(f"http://127.0.0.1:{router.admin_port}/metrics")[1]
    return float(re.search(rf'anchors_total{{outcome="{outcome}"}} (\S+)', text)[1])


@pytest.fixture
def cluster(fleet, folder):
    home = folder / "echo"
    home.mkdir()
    cluster = Cluster(home, fleet.engines[:1])
    try:
        cluster.begin_run("exact", 1, "--anchor-echo=true")
        yield cluster
    finally:
        cluster.abandon_run()


def test_its_answer_is_the_engines_and_what_it_says_is_true(cluster):
    router, engine = cluster.routers[0], cluster.engines[0]
    wait_until(lambda: router.workers()[0]["engine"] == "vllm", "its engine is known", 60)
    stream = {"stream": True, "stream_options": {"include_usage": True}}  # as it is asked for anyway
    post(router.url, chat(0))
    wait_until(lambda: anchors(router, "unable") > 0, "nobody can be asked", 30)

    for number, fields in enumerate([{}, stream], start=1):
        before = anchors(router, "posted")
        told = post(router.url, chat(number, **fields))
        assert without_chance(told) == without_chance(post(engine.url, chat(number, **fields)))
        assert not re.search(r'token_ids":\s*\[', told)
        wait_until(lambda: anchors(router, "posted") > before, "the agent is told", 30)

    asked = post(router.url, chat(3, return_token_ids=True))
    assert re.search(r'"prompt_token_ids":\s*\[\d', asked), "who asks gets them"

    def is_exact():
        post(router.url, chat(1))
        line = router.request_lines()[-1]
        return line["rung"] == "exact" and line["predicted_cached_tokens"] > 0 and abs(
            line["predicted_cached_tokens"] - line["cached_tokens"]) <= BLOCK_TOKENS
    wait_until(is_exact, "what it holds is known exactly", 30)
