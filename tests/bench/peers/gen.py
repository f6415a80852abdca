# SPDX-License-Identifier: Apache-2.0
"""Makes request bodies (JSON lines), the same ones for the same seed."""
import json
import random

WORDS = ("router cache prefix engine token block hash stream event worker queue latency memory kernel batch "
         "prefill decode session turn model prompt answer tool call result file line error value index table "
         "first second third the a of to in and is it for with on that this as are be or from by").split()


def text(rng, size):
    out, n = [], 0
    while n < size:
        w = rng.choice(WORDS)
        out.append(w)
        n += len(w) + 1
    return " ".join(out)[:size]


def body(messages, stream):
    d = {"model": "m", "messages": messages, "max_tokens": 256, "temperature": 0.7, "stream": stream}
    return json.dumps(d, separators=(",", ":"))


def chat_1k(stream, count=512, seed=1):
    """About 1 KB each: a shared system prompt and a question of its own."""
    rng = random.Random(seed)
    system = text(rng, 400)
    for _ in range(count):
        yield body([{"role": "system", "content": system},
                    {"role": "user", "content": text(rng, 450)}], stream)


def long_chat(size=220_000, sessions=20, turns=6, seed=2):
    """Long histories: every session's next turn is its last one plus about 1 KB."""
    rng = random.Random(seed)
    system = text(rng, 8000)
    chats = []
    for _ in range(sessions):
        messages, n = [{"role": "system", "content": system}], 8000
        while n < size - 2000 * turns:
            for role, length in (("user", 400), ("assistant", 1800)):
                messages.append({"role": role, "content": text(rng, length)})
                n += length + 34
        chats.append(messages)
    for _ in range(turns):
        for messages in chats:
            messages.append({"role": "user", "content": text(rng, 600)})
            yield body(messages, False)
            messages.append({"role": "assistant", "content": text(rng, 1200)})


def write(path, lines):
    with open(path, "w") as f:
        for line in lines:
            f.write(line + "\n")


def write_all(folder):
    write(f"{folder}/chat_1k.jsonl", chat_1k(False))
    write(f"{folder}/chat_1k_stream.jsonl", chat_1k(True))
    write(f"{folder}/long_chat.jsonl", long_chat())


if __name__ == "__main__":
    import sys
    write_all(sys.argv[1])
