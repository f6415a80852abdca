#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well the router knows what real engines hold, and what that is worth.

Conversations of several turns, a random one of them at a time, through one router a run and the
same two engines. Printed for each run: the share of prompt tokens that came from the cache, the
mean |predicted - reported| cached tokens as a share of the prompt, and the time to the first token
as the client sees it (its median, where other programs share the machine). Answers are of random weights: none re-tokenises as it was made, so
the runs with long answers are the worst case of a guess that counts answers as cached.

    SAMOVAR_VLLM_VENV=/path build/venv/bin/python tests/vllm/prediction.py
"""

import argparse
import dataclasses
import itertools
import pathlib
import random
import statistics
import sys
import tempfile
import time

import openai

from engines import MODEL, Engine, Router, make_model
from prompts import user, words

NEXT_WORDS = 100  # of each question behind a session's first
POLICIES = ("ttft", "round_robin")


@dataclasses.dataclass
class Turn:
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    ttft_ms: float
    worker: str

    @property
    def error(self):
        return (self.predicted_tokens - self.cached_tokens) / self.prompt_tokens


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
                      line["predicted_cached_tokens"], ttft_ms, line["worker"])


def run(router, options, name, answer_tokens):
    """The turns of each session, without its first: before the others came what they can reuse."""
    sessions = [user(words(options.words, f"{name}{i}")) for i in range(options.sessions)]
    order = [session for session in sessions for _ in range(options.turns)]
    random.Random(options.seed).shuffle(order)
    turns = {id(session): [] for session in sessions}
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="unused", max_retries=0) as client:
        for messages in order:
            text, turn = ask(client, router, messages, answer_tokens)
            turns[id(messages)].append(turn)
            messages += [{"role": "assistant", "content": text},
                         *user(words(NEXT_WORDS, f"next{len(messages)}"))]
    return list(turns.values())


def report(policy, answer_tokens, sessions):
    turns = [turn for session in sessions for turn in session[1:]]
    moves = sum(now.worker != before.worker for session in sessions
                for before, now in zip(session, session[1:]))
    hit = sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns)
    errors = [abs(turn.error) for turn in turns]
    print(f"{policy:<12} answers of {answer_tokens:>2}: {len(turns)} turns of "
          f"{statistics.mean(turn.prompt_tokens for turn in turns):.0f} tokens, {moves} elsewhere "
          f"than the turn before, hit ratio {hit:.3f}, |predicted - reported| "
          f"mean {statistics.mean(errors):.2%} median {statistics.median(errors):.2%} of the prompt "
          f"(signed {statistics.mean(turn.error for turn in turns):+.2%}), "
          f"TTFT mean {statistics.mean(turn.ttft_ms for turn in turns):.0f} ms "
          f"median {statistics.median(turn.ttft_ms for turn in turns):.0f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--words", type=int, default=1000,
                        help="of a session's first prompt; 2500 of them are more than both caches")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = make_model(folder / "tiny")
        engines = [Engine(f"engine-{i}", model, folder) for i in range(2)]
        try:
            for engine in engines:
                engine.wait_ready()
            for number, (answer_tokens, policy) in enumerate(itertools.product((1, 32), POLICIES)):
                # One letter a run: its prompts are as long as the others', and nobody holds them.
                name = chr(ord("a") + number)
                router = Router(f"router-{name}", engines, folder, "--policy", policy)
                try:
                    router.wait_up(len(engines))
                    report(policy, answer_tokens, run(router, options, name, answer_tokens))
                finally:
                    router.stop()
        finally:
            for engine in engines:
                engine.kill()


if __name__ == "__main__":
    sys.exit(main())
