# SPDX-License-Identifier: Apache-2.0
"""The load of the residency experiments: conversations as applications have them. Several share a
system prompt, with its tools; some tools belong to two of these; a third begins inside a document that others were given too, cut
somewhere in its middle; each goes on until it is long, and then another begins in its place.
Everything follows from the seed, but for what engines answer."""

import dataclasses
import json
import random
import threading
import time

MESSAGES_MAX = 14
TEXT_BYTES_MAX = 9000


class Writer:
    """Text that reads like some language, some code and some JSON."""

    ONSETS = ("b c d f g h l m n p r s t v w st tr pl ch sh th gr qu".split() + [""])
    CORES = "a e i o u ai ea ou io".split()
    ENDS = ["", *"n r s t l d m ck ng st nt".split()]
    COMMON = ("the of and to in a is that for it as was with be by on not he this are or his from at "
              "which but have an had they you were their one all we can her has there been if more "
              "when will would who so no said what up its about into than them").split()

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.words = ["".join(self.random.choice(part) for _ in range(self.random.randint(1, 3))
                              for part in (self.ONSETS, self.CORES, self.ENDS))
                      for _ in range(3000)]

    def word(self):
        return self.random.choice(self.COMMON if self.random.random() < 0.5 else self.words)

    def line(self):
        kind = self.random.random()
        if kind < 0.7:
            words = [self.word() for _ in range(self.random.randint(5, 18))]
            return " ".join(words).capitalize() + self.random.choice([".", ".", ".", "?"])
        if kind < 0.85:
            return (f"    {self.word()}_{self.word()}({self.word()}, "
                    f"{self.random.randrange(1000)}) # {self.word()}")
        return json.dumps({self.word(): self.random.randrange(10000), self.word(): self.word()})

    def text(self, byte_count):
        lines, size = [], 0
        while size < byte_count:
            lines.append(self.line())
            size += len(lines[-1]) + 1
        return "\n".join(lines)[:byte_count].rstrip() or "So?"

    def about(self, mean, spread):
        """A text of a length as people's are: log-normal."""
        return self.text(int(self.random.lognormvariate(mean, spread)) + 20)


def make_tools(writer, count):
    return [{"type": "function", "function": {
        "name": f"{writer.word()}_{i}", "description": writer.text(120),
        "parameters": {"type": "object", "properties": {
            writer.word(): {"type": "string", "description": writer.text(40)},
            writer.word(): {"type": "integer"}}}}} for i in range(count)]


@dataclasses.dataclass
class Wish:
    """What the conversations are to be like."""
    seed: int = 1
    conversations: int = 24
    answer_tokens: int = 1
    has_tools: bool = False
    tool_calls: float = 0  # share of the turns with tools in which one must be called
    text_bytes_max: int = TEXT_BYTES_MAX
    think_s: float = 0  # at least, between an answer and the next turn


class Conversation:
    def __init__(self, number, messages, tools):
        self.number, self.messages, self.tools = number, messages, tools
        self.turn = 0
        self.is_busy = False
        self.ready_s = 0.0  # monotonic

    def size(self):
        return sum(len(message.get("content") or "") for message in self.messages)


class Load:
    """Hands out turns, one at a time of each conversation, to any number of threads."""

    def __init__(self, wish):
        self.wish = wish
        self.writer = Writer(wish.seed)
        self.random = random.Random(wish.seed)
        self.lock = threading.Lock()
        self.systems = [self.writer.text(self.random.choice([800, 1500, 3000])) for _ in range(5)]
        self.documents = [self.writer.text(3000) for _ in range(4)]
        self.tool_sets = [make_tools(self.writer, 4) for _ in range(3)]
        self.made = 0
        self.open = [self._begin() for _ in range(wish.conversations)]

    def _begin(self):
        text = self.writer.about(5.2, 0.8)
        if self.random.random() < 0.3:
            document = self.random.choice(self.documents)
            text = document[:self.random.randrange(len(document) // 4, len(document))] + text
        application = self.random.randrange(len(self.systems))
        tools = self.tool_sets[application % len(self.tool_sets)] if self.wish.has_tools else None
        self.made += 1
        return Conversation(self.made, [
            {"role": "system", "content": self.systems[application]},
            {"role": "user", "content": text}], tools)

    def take(self):
        """(a conversation, the body of its next turn); it is busy until put back. Waits where all
        are busy or think."""
        while True:
            with self.lock:
                now_s = time.monotonic()
                ready = [i for i, one in enumerate(self.open)
                         if not one.is_busy and one.ready_s <= now_s]
                if ready:
                    return self._take(self.random.choice(ready))
            time.sleep(0.005)

    def _take(self, at):
        if (self.open[at].size() > self.wish.text_bytes_max or
                len(self.open[at].messages) > MESSAGES_MAX):
            self.open[at] = self._begin()
        one = self.open[at]
        one.is_busy = True
        one.turn += 1
        body = {"messages": one.messages, "max_tokens": self.wish.answer_tokens,
                "temperature": 0.7, "stream": self.random.random() < 0.5}
        if one.tools:
            body["tools"] = one.tools
            if self.random.random() < self.wish.tool_calls:
                body["tool_choice"] = "required"
                body["max_tokens"] = max(64, self.wish.answer_tokens)
        return one, body

    def put_back(self, one, answer):
        """answer: the assistant's message, as its client sends it back; None: the turn failed. One
        of a single token says nothing; the client goes on as if it had said more."""
        with self.lock:
            one.is_busy = False
            one.ready_s = time.monotonic() + self.wish.think_s
            if answer is None:
                return
            if self.wish.answer_tokens == 1 and not answer.get("tool_calls"):
                answer = {"role": "assistant", "content": self.writer.about(5.8, 0.8)}
            one.messages = [*one.messages, answer]
            for call in answer.get("tool_calls") or ():
                one.messages.append({"role": "tool", "tool_call_id": call["id"],
                                     "content": self.writer.about(5, 0.5)})
            if not answer.get("tool_calls"):
                one.messages.append({"role": "user", "content": self.writer.about(4.6, 0.8)})
