# SPDX-License-Identifier: Apache-2.0
"""scheduler: the connector in the engine's scheduler, which knows requests and their tokens.

It tells the agent of each prompt, asks what of it could be loaded, and plans the loads and saves of
a step; the worker's half carries them out. It decides nothing: what is worth loading or saving is
the agent's business. Whatever the agent does, a request is served: no answer is "nothing", and
nothing here waits longer than a lookup may take.

Late answers. FOUND comes in the order of the LOOKUPs. While one is owed no other is asked for, so a
late answer cannot be taken for another question's; and an agent that was late is left alone for a
while, twice as long each time.
"""

import dataclasses
import itertools
import time

from . import counts, wire

LOOKUP_S_MAX = 0.02   # whatever the agent says in WELCOME
QUIET_S = 0.004       # after a late answer, doubled each time
QUIET_S_MAX = 1.0
MISS_S = 0.05         # how long a miss is not asked for again: the engine polls 600 times a second
LATER_S = 0.5         # at most so long until a FOUND that was put off is asked for again
PATIENCE_S = 10.0     # a request that was put off for so long goes on without
RESET_S = 0.25


@dataclasses.dataclass
class Load:
    request_id: str
    number: int
    first_block: int
    engine_blocks: list


@dataclasses.dataclass
class Plan:
    """What the workers do in a step: all ranks the same."""
    step: int = 0  # counts them
    loads: list = dataclasses.field(default_factory=list)
    saves: list = dataclasses.field(default_factory=list)  # (number, first block, engine blocks)
    step_tokens: int = 0


@dataclasses.dataclass
class Answer:
    local: int       # what was asked
    generation: int  # by which connection: what it held ends with it
    until: float
    tokens: int | None  # None: later


class Prompt:
    """A request as the agent knows it: its number is new for each connection."""

    def __init__(self, request, who, block_tokens):
        self.request = request
        self.who = who
        self.tokens = request.prompt_token_ids
        # The last token is always computed: from it comes the first one of the answer.
        self.top = (len(self.tokens) - 1) // block_tokens * block_tokens
        self.number = self.generation = self.told = 0
        self.local = 0             # of the last time the engine asked
        self.answer = None
        self.is_put_off_until = None
        self.loaded_in = None      # preemptions when it was last loaded: once in each life
        self.engine_blocks = []
        self.saved = 0             # blocks that are in a plan or behind it
        self.left_out = None       # why its last look at the tiers came to nothing (counts.py)


def identity(request):
    """(id, lora, salt) for the agent, of a request that it may be told of."""
    lora = request.lora_request.lora_name if request.lora_request is not None else ""
    # The id is no identity of the cache: cut, it is only of less use.
    name = request.request_id.encode(errors="replace")[:wire.TEXT_BYTES_MAX]
    return name.decode(errors="ignore"), lora, request.cache_salt or ""


def why_left_out(request):
    """None, or why the agent must not hear of it: its tokens do not say all that its cache depends
    on, or what does cannot be said. A reason of counts.py."""
    if getattr(request, "mm_features", None):
        return "media"
    if (request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None
            or getattr(request, "prompt_is_token_ids", None) is not None):
        return "embeddings"
    if getattr(request, "resumable", False):
        return "resumable"
    try:
        is_sayable = all(len(text.encode()) <= wire.TEXT_BYTES_MAX for text in
                         identity(request)[1:])
    except UnicodeEncodeError:
        is_sayable = False
    return None if is_sayable else "unsayable"


class Scheduler:
    def __init__(self, make_link, hello, block_tokens, counted, clock=time.monotonic):
        """counted: a counts.Counts."""
        self._hello, self._block_tokens, self._clock = hello, block_tokens, clock
        self._counted = counted
        self._prompts = {}  # by the engine's id
        self._numbers = itertools.count(1)
        self._steps = itertools.count(1)
        self._loads = []
        self._owed = None   # the request of the one LOOKUP that has no FOUND yet
        self._found = None
        self._quiet_s, self._quiet_until = QUIET_S, 0.0
        self._is_reset_owed = False
        self._reset_number = 0
        self._reset_told_in = 0  # the connection by which it was last asked for
        self._link = make_link(self)

    # --- what the link asks and tells ---

    def hello(self):
        return {**self._hello, "role": wire.SCHEDULER, "regions": [], "segments": []}, []

    def is_written_to(self):
        return False

    def received(self, message):
        if message.kind == wire.FOUND and message.request == self._owed:
            self._owed, self._found = None, message
        elif message.kind == wire.DONE and 0 < message.number <= self._reset_number:
            self._is_reset_owed &= message.number != self._reset_number
        else:
            self._link.give_up(f"it answers what was not asked ({message.kind})")

    def ended(self):
        self._owed = self._found = None

    # --- what the engine asks and tells ---

    def add(self, request):
        why = why_left_out(request)
        if why is not None:
            self._counted.add(counts.REQUESTS, why)
            return
        prompt = self._prompts[request.request_id] = Prompt(request, identity(request),
                                                            self._block_tokens)
        if prompt.top > 0 and self._pump():
            self._tell(prompt)

    def match(self, request, local):
        """Tokens beyond local that can be loaded; None: ask again later."""
        prompt = self._prompts.get(request.request_id)
        if (prompt is None or local >= prompt.top
                or getattr(request, "skip_reading_prefix_cache", False)
                or prompt.loaded_in == request.num_preemptions):
            return 0
        if not self._pump():
            prompt.left_out = self._why_not_ready()
            return 0
        now = self._clock()
        prompt.local, answer = local, prompt.answer
        if (answer is None or answer.local != local or now >= answer.until
                or answer.generation != self._link.generation):
            answer = prompt.answer = self._ask(prompt, now)
        return answer.tokens

    def take(self, request, get_engine_blocks, external):
        """The engine has room for that many of the tokens that were found."""
        prompt = self._prompts.get(request.request_id)
        if prompt is None:
            return
        is_held = prompt.answer is not None and prompt.answer.tokens
        prompt.answer = None
        if external == 0:
            # Nothing of what is held; or it goes on behind its load, which is said too.
            if is_held or prompt.loaded_in == request.num_preemptions:
                self._say(wire.TAKE, request=prompt.number, first_block=0, block_count=0)
            return
        first, count = prompt.local // self._block_tokens, -(-external // self._block_tokens)
        self._say(wire.TAKE, request=prompt.number, first_block=first, block_count=count)
        prompt.loaded_in = request.num_preemptions
        # Even if the agent has just gone: the engine waits now, and the worker says that it failed.
        self._loads.append(Load(request.request_id, prompt.number, first,
                                get_engine_blocks()[first:first + count]))

    def plan(self, output):
        """The loads and saves of the step."""
        plan = Plan(step=next(self._steps), loads=self._loads,
                    step_tokens=output.total_num_scheduled_tokens)
        self._loads = []
        is_ready = self._pump()
        for new in output.scheduled_new_reqs:
            self._grow(new.req_id, new.block_ids, is_whole=True)
            if is_ready:
                self._save(plan, output, new.req_id, new.num_computed_tokens)
        known = output.scheduled_cached_reqs
        for request_id, blocks, computed in zip(known.req_ids, known.new_block_ids,
                                                known.num_computed_tokens):
            self._grow(request_id, blocks, is_whole=request_id in known.resumed_req_ids)
            if is_ready:
                self._save(plan, output, request_id, computed)
        return plan

    def finish(self, request_id):
        """It ended, or was aborted, at whatever point."""
        prompt = self._prompts.pop(request_id, None)
        if prompt is None:
            return
        if prompt.left_out is not None:
            self._counted.add(counts.REQUESTS, prompt.left_out)
        if prompt.generation == self._link.generation:
            self._say(wire.CLOSE, number=prompt.number)

    def reset(self):
        """Whether the agent has forgotten all pages of this model. Where not, it is told before
        anything else once it is there."""
        self._is_reset_owed = True
        for prompt in self._prompts.values():
            prompt.answer = None
        return self._pump(RESET_S)

    def close(self):
        self._link.close()

    # --- inside ---

    def _pump(self, timeout_s=0.0):
        """Whether the agent may be spoken to now."""
        self._link.pump()
        if self._is_reset_owed and (timeout_s or self._reset_told_in != self._link.generation):
            self._reset_number, self._reset_told_in = self._reset_number + 1, self._link.generation
            self._say(wire.RESET, number=self._reset_number)
            self._link.pump(lambda: not self._is_reset_owed, timeout_s)
        return self._link.is_ready() and not self._is_reset_owed

    def _why_not_ready(self):
        """Why _pump() said no."""
        if self._link.is_ready():
            return "reset"
        return "refused" if self._link.is_refused() else "away"

    def _say(self, kind, **fields):
        """Of a few bytes: where they do not go out, the agent has not read for long."""
        if not self._link.send(kind, **fields):
            self._link.give_up("it does not read")

    def _tell(self, prompt):
        """Whether the agent has been told of all its tokens; what does not go out now, goes later."""
        if prompt.generation != self._link.generation:
            number, (name, lora, salt) = next(self._numbers), prompt.who
            first = prompt.tokens[:wire.TOKEN_COUNT_MAX]
            if not self._link.send(wire.OPEN, request=number, prompt_tokens=len(prompt.tokens),
                                   tokens=first, id=name, lora=lora, salt=salt):
                return False
            prompt.number, prompt.generation = number, self._link.generation
            prompt.told, prompt.saved = len(first), 0
        while prompt.told < len(prompt.tokens):
            more = prompt.tokens[prompt.told:prompt.told + wire.TOKEN_COUNT_MAX]
            if not self._link.send(wire.TOKENS, request=prompt.number, first=prompt.told,
                                   tokens=more):
                return False
            prompt.told += len(more)
        return True

    def _ask(self, prompt, now):
        def answer(tokens, for_s):
            return Answer(prompt.local, self._link.generation, now + for_s, tokens)

        if self._owed is not None or now < self._quiet_until or not self._tell(prompt):
            prompt.left_out = "late" if self._link.is_ready() else "away"
            return answer(0, MISS_S)
        lookup_s = min(self._link.welcome.lookup_ms / 1000, LOOKUP_S_MAX)
        self._owed, self._found = prompt.number, None
        self._say(wire.LOOKUP, request=prompt.number, local_tokens=prompt.local)
        self._link.pump(lambda: self._owed is None, lookup_s)
        if self._owed is not None:
            prompt.left_out = "late"
            self._quiet_s = min(2 * self._quiet_s, QUIET_S_MAX)
            self._quiet_until = now + self._quiet_s
            return answer(0, MISS_S)
        if self._found is None:
            prompt.left_out = "away"  # it went
            return answer(0, MISS_S)
        prompt.left_out = None
        self._quiet_s = QUIET_S
        return answer(*self._judge(prompt, self._found, now))

    def _judge(self, prompt, found, now):
        """(tokens, for how long)"""
        if found.later_ms > 0:
            if prompt.is_put_off_until is None:
                prompt.is_put_off_until = now + PATIENCE_S
            if now < prompt.is_put_off_until:
                return None, min(found.later_ms / 1000, LATER_S)
            prompt.left_out = "put_off"
            return 0, PATIENCE_S
        if found.tokens % self._block_tokens or prompt.local + found.tokens > prompt.top:
            self._link.give_up(f"it found {found.tokens} tokens, which cannot be")
            prompt.left_out = "away"
            return 0, MISS_S
        if found.tokens == 0:
            return 0, MISS_S
        # Long before the hold ends it is asked for again.
        return found.tokens, self._link.welcome.lease_ms / 2000

    def _grow(self, request_id, blocks, is_whole):
        prompt = self._prompts.get(request_id)
        if prompt is None:
            return
        if is_whole:
            prompt.engine_blocks = []
        if blocks:
            prompt.engine_blocks.extend(blocks[0])

    def _save(self, plan, output, request_id, computed):
        """Prompt blocks that are full when this step is done. What the agent holds already it
        knows itself; it is told of all, those that the engine had in its own cache too."""
        prompt = self._prompts.get(request_id)
        if prompt is None:
            return
        done = min(computed + output.num_scheduled_tokens[request_id], len(prompt.tokens))
        full = done // self._block_tokens
        # Newer engines say how many blocks may be known to others by their hashes.
        sure = getattr(prompt.request, "num_publishable_block_hashes", None)
        full = full if sure is None else min(full, sure)
        is_known = prompt.generation == self._link.generation
        if full == 0 or (is_known and full <= prompt.saved) or not self._tell(prompt):
            return
        plan.saves.append((prompt.number, prompt.saved, prompt.engine_blocks[prompt.saved:full]))
        prompt.saved = full
