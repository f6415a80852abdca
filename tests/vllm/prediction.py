#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well the router knows what real engines hold, and what that is worth.

Conversations of several turns, a random one of them at a time, through one router a run and the
same two engines. Printed for each run: the share of prompt tokens that came from the cache, the
mean |predicted - reported| cached tokens as a share of the prompt, and the mean time to the first
token as the client sees it. Answers are of random weights: none re-tokenises as it was made, so
the runs with long answers are the worst case of a guess that counts answers as cached.

    SAMOVAR_VLLM_VENV=/path build/venv/bin/python tests/vllm/prediction.py
"""

import argparse
import dataclasses
import pathlib
import random
import statistics
import sys
import tempfile
import time

import openai

from engines import MODEL, Engine, Router, make_model
from prompts import user, words

FIRST_TOKENS = 2000  # of a session's first prompt
NEXT_TOKENS = 150  # of each question behind it
POLICIES = ("ttft", "round_robin")


@dataclasses.dataclass
class Turn:
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    ttft_ms: float

    @property
    def error(self):
        return abs(self.predicted_tokens - self.cached_tokens) / self.prompt_tokens


def ask(client, router, messages, answer_tokens):
    """(the answer's text, what the turn was like)"""
    began = time.monotonic()
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=answer_tokens, temperature=0, stream=True,
        stream_options={"include_usage": True})
    text, ttft_ms, usage = "", None, None
    for chunk in stream:
        ttft_ms = ttft_ms or (time.monotonic() - began) * 1000
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    line = router.request_line(stream.response.headers["x-request-id"])
    return text, Turn(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens,
                      line["predicted_cached_tokens"], ttft_ms)


def run(router, options, name, answer_tokens):
    """The turns behind each session's first: what came before them is there to be reused."""
    sessions = [user(words(FIRST_TOKENS, f"{name}-{i}")) for i in range(options.sessions)]
    order = [session for session in sessions for _ in range(options.turns)]
    random.Random(options.seed).shuffle(order)
    turns = []
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="unused", max_retries=0) as client:
        for messages in order:
            text, turn = ask(client, router, messages, answer_tokens)
            if len(messages) > 1:
                turns.append(turn)
            messages += [{"role": "assistant", "content": text},
                         *user(words(NEXT_TOKENS, f"next{len(messages)}"))]
    return turns


def report(policy, answer_tokens, turns):
    hit = sum(t.cached_tokens for t in turns) / sum(t.prompt_tokens for t in turns)
    errors = [t.error for t in turns]
    print(f"{policy:<12} answers of {answer_tokens:>2}: {len(turns)} turns, "
          f"hit ratio {hit:.3f}, |predicted - reported| mean {statistics.mean(errors):.2%} "
          f"median {statistics.median(errors):.2%} of the prompt, "
          f"TTFT mean {statistics.mean(t.ttft_ms for t in turns):.0f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = make_model(folder / "tiny")
        engines = [Engine(f"engine-{i}", model, folder) for i in range(2)]
        try:
            for engine in engines:
                engine.wait_ready()
            for answer_tokens in (1, 32):
                for policy in POLICIES:
                    router = Router(f"{policy}-{answer_tokens}", engines, folder,
                                    "--policy", policy)
                    try:
                        router.wait_up(len(engines))
                        report(policy, answer_tokens,
                               run(router, options, f"{policy}{answer_tokens}", answer_tokens))
                    finally:
                        router.stop()
        finally:
            for engine in engines:
                engine.kill()


if __name__ == "__main__":
    sys.exit(main())
