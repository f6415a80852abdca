#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
The conversations of ./demo: several sessions that share system prompts, several turns each, sent
to one address, a few at a time. Prints a line a request: who answered, how much of the prompt was
cached there, and the time to the first token. The same seed sends the same texts in the same order.

usage: demo_client.py run URL SUMMARY.json      one run over everything
       demo_client.py compare A.json B.json     the last lines; exit 1 when A was not better
"""

import http.client
import json
import random
import sys
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

SEED = 7
SYSTEM_PROMPTS = 3
SESSIONS = 9
TURNS = 4
SYSTEM_WORDS = 1600   # about 2,500 tokens: a third of a second of prefill
USER_WORDS = (30, 150)
ANSWER_TOKENS = 24
AT_ONCE = 3           # requests in flight

WORDS = ("water samovar table morning copper answer question careful short sentence wood coal "
         "evening guest window kettle sugar lemon house garden winter summer brass letter train "
         "village music paper bridge river which under about never always because through while "
         "before after every other first small large bright quiet the the the a a an and and of "
         "of to to in in is it that was for on with as at by from this they have had not but what "
         "all were when we there can your said if do will each how them then many some so these "
         "would into has more her two like him see time could no make than been its now people").split()


def prose(rng, count):
    words = [rng.choice(WORDS) for _ in range(count)]
    for at in range(0, count, 12):
        words[at] = words[at].capitalize()
        words[min(at + 11, count - 1)] += "."
    return " ".join(words)


class Session:
    def __init__(self, number, system, questions):
        self.number = number
        self.questions = questions
        self.messages = [{"role": "system", "content": system}]

    def next_turn(self):
        self.messages.append({"role": "user", "content": self.questions.pop(0)})


class Asker:
    """Sends turns and prints what came of them. One connection a thread."""

    def __init__(self, url):
        self.address = urllib.parse.urlsplit(url).netloc
        self.local = threading.local()
        self.lock = threading.Lock()
        self.rows = []

    def connection(self):
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection(self.address, timeout=60)
        return self.local.connection

    def ask(self, session, turn):
        session.next_turn()
        body = json.dumps({"model": "sim", "messages": session.messages, "stream": True,
                           "max_tokens": ANSWER_TOKENS, "stream_options": {"include_usage": True}})
        begin = time.monotonic()
        connection = self.connection()
        connection.request("POST", "/v1/chat/completions", body,
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.read()[:300]!r}")
        text, first, usage = "", None, None
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len(b"data: "):])
            if "error" in event:
                raise RuntimeError(f"in the stream: {event['error']}")
            first = first or time.monotonic()
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
        session.messages.append({"role": "assistant", "content": text})
        self.report({
            "session": session.number, "turn": turn,
            "worker": (answer.getheader("x-samovar-worker") or "-").removeprefix("http://"),
            "prompt": usage["prompt_tokens"],
            "cached": usage["prompt_tokens_details"]["cached_tokens"],
            "ttft_ms": (first - begin) * 1000,
        })

    def report(self, row):
        with self.lock:
            self.rows.append(row)
            print(f"{len(self.rows):4}  {row['session']:7}  {row['turn']:4}  {row['worker']:22}"
                  f"{row['prompt']:7}  {row['cached']:6}  {row['ttft_ms']:7.1f}", flush=True)


def run(url, summary):
    rng = random.Random(SEED)
    systems = [prose(rng, SYSTEM_WORDS) for _ in range(SYSTEM_PROMPTS)]
    sessions = [Session(i, systems[i % SYSTEM_PROMPTS],
                        [prose(rng, rng.randint(*USER_WORDS)) for _ in range(TURNS)])
                for i in range(SESSIONS)]
    asker = Asker(url)
    print("   #  session  turn  worker                 prompt  cached  TTFT ms", flush=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for turn in range(1, TURNS + 1):
            order = rng.sample(sessions, len(sessions))  # else round robin is sticky by chance
            list(pool.map(lambda session: asker.ask(session, turn), order))
    prompt = sum(row["prompt"] for row in asker.rows)
    cached = sum(row["cached"] for row in asker.rows)
    mean = sum(row["ttft_ms"] for row in asker.rows) / len(asker.rows)
    with open(summary, "w", encoding="utf8") as file:
        json.dump({"hit_ratio": cached / prompt, "ttft_ms": mean,
                   "requests": len(asker.rows)}, file)
    return 0


def compare(ours, theirs):
    rows = []
    for name, path in (("ttft", ours), ("round_robin", theirs)):
        with open(path, encoding="utf8") as file:
            rows.append((name, json.load(file)))
    for name, row in rows:
        print(f"{name:12} hit ratio {row['hit_ratio']:6.1%}   mean TTFT {row['ttft_ms']:6.1f} ms"
              f"   {row['requests']} requests")
    (_, a), (_, b) = rows
    if a["hit_ratio"] > b["hit_ratio"] and a["ttft_ms"] < b["ttft_ms"]:
        print(f"ttft found {a['hit_ratio'] / max(b['hit_ratio'], 1e-9):.2f} times as much of the "
              f"prompts cached and began its answers {b['ttft_ms'] / a['ttft_ms']:.1f} times as "
              "fast.")
        return 0
    print("ttft was NOT better than round_robin.")
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("run", "compare"):
        sys.exit(__doc__)
    sys.exit((run if sys.argv[1] == "run" else compare)(*sys.argv[2:]))
