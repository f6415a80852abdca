# SPDX-License-Identifier: Apache-2.0
"""worker: the connector beside the engine's memory: has its blocks filled and kept by the agent.

Loads run beside the engine's steps. A block that the agent was asked to fill is the agent's until
it has said LOADED, or has closed the connection; only then is its request named, once, and blocks
behind the right ones as failed, which the engine computes anew. However slow the agent is, a load is
never called over before: it might write into what has become another request's block.

Saves are waited for, at the end of the step that filled the blocks, for as long as WELCOME said.
Then the connection is given up, before the engine goes on and changes the blocks: what the agent
reads from then on it throws away.

Several ranks. Each process says the same loads and saves, as the scheduler has planned them, by the
same numbers: those of a step begin with step << JOB_BITS. The agent does each once, for all ranks.
Where ranks compute one behind the other (pipeline), the next one gets what it computes from only
when this one's step is over: so the wait for SAVED is put off to the begin of the next step, which
is what may change the blocks.
"""

import itertools

from . import counts, wire

SAVE_S_MAX = 2.0  # whatever the agent says in WELCOME
JOB_BITS = 16     # of a job's number, within its step


class Loading:
    """One request's load, in as many parts as messages carry."""

    def __init__(self, request_id):
        self.request_id = request_id
        self.parts, self.loaded = [], []  # engine blocks; how many of them are right, or None
        self.open_count = 0

    def failed_blocks(self):
        """All behind the first that is not right."""
        blocks = [block for part in self.parts for block in part]
        right = 0
        for part, loaded in zip(self.parts, self.loaded):
            right += loaded
            if loaded < len(part):
                break
        return blocks[right:]


class Absent:
    """Of an engine whose memory cannot be given away: whatever it is asked to load has failed."""

    def __init__(self):
        self._done, self._failed = set(), set()

    def begin_step(self, step):
        """Before anything of it changes a block; step: its number, the same in each rank."""

    def load(self, loads):
        for load in loads:
            self._done.add(load.request_id)
            self._failed.update(load.engine_blocks)

    def save(self, saves, step_tokens):
        pass

    def finished(self):
        done, self._done = self._done, set()
        return done

    def failed(self):
        """Engine blocks that hold nothing right, of the requests that finished() named last."""
        failed, self._failed = self._failed, set()
        return failed

    def close(self):
        pass


class Worker(Absent):
    def __init__(self, make_link, hello, memory, counted, is_pipelined=False):
        """memory: what the engine's blocks lie in: see memory.py. counted: a counts.Counts.
        is_pipelined: another rank waits for this one's step to end."""
        super().__init__()
        self._hello, self._memory, self._counted = hello, memory, counted
        self._is_pipelined = is_pipelined
        self._jobs = itertools.count(1)
        self._parts = {}      # job -> (Loading, index of the part)
        self._saving = {}     # job -> its blocks
        self._save_s = 0.0    # how long they are waited for
        self._unsaved = 0     # blocks of this step that the agent has not answered for
        self._link = make_link(self)

    # --- what the link asks and tells ---

    def hello(self):
        fields = {**self._hello, "role": wire.WORKER, **self._memory.hello_fields()}
        return fields, self._memory.descriptors

    def is_written_to(self):
        return bool(self._parts)

    def received(self, message):
        if message.kind == wire.LOADED and message.job in self._parts:
            self._settle(message.job, message.block_count)
        elif message.kind == wire.SAVED and message.job in self._saving:
            self._unsaved -= self._saving.pop(message.job)
        else:
            self._give_up(f"it answers what was not asked ({message.kind})")

    def ended(self):
        self._saving.clear()
        for job in list(self._parts):
            self._settle(job, 0)

    # --- what the engine asks ---

    def begin_step(self, step):
        self._wait_saved()
        self._jobs = itertools.count((step << JOB_BITS) + 1)
        self._memory.begin_step()

    def load(self, loads):
        """Asks for them; finished() says when each is over."""
        if not loads:
            return
        self._link.pump()
        self._memory.mark()
        for load in loads:
            self._load_one(load)

    def save(self, saves, step_tokens):
        """Behind it, or behind the next begin_step(), the blocks may be changed again."""
        self._link.pump()
        if not saves:
            return
        self._unsaved = sum(len(blocks) for _, _, blocks in saves)
        why_not = self._ask_to_save(saves, step_tokens) if self._link.is_ready() else "away"
        if why_not:
            self._count_unsaved(why_not)
        elif not self._is_pipelined:
            self._wait_saved()

    def finished(self):
        """Requests whose loads are over, each once, whatever came of them."""
        self._link.pump()
        return super().finished()

    def close(self):
        self._link.close()

    # --- inside ---

    def _ask_to_save(self, saves, step_tokens):
        """None, or why the connection was given up (counts.py)."""
        self._save_s = min(self._link.welcome.save_ms / 1000, SAVE_S_MAX)
        tokens, us = self._memory.end_step(step_tokens)
        self._memory.mark()
        for entries in wire.save_batches(saves):
            job = next(self._jobs)
            if not self._link.send(wire.SAVE, job=job, entries=entries, step_tokens=tokens,
                                   step_us=us):
                why = "unread" if self._link.is_ready() else "away"
                self._give_up("it does not read")
                return why
            self._saving[job] = sum(len(blocks) for _, _, blocks in entries)
            tokens = us = 0  # said once
        return None

    def _wait_saved(self):
        why_not = "away"  # where nothing is wrong and yet some are left: it went meanwhile
        if self._saving and not self._link.pump(lambda: not self._saving, self._save_s):
            self._give_up("it is late with SAVED")
            why_not = "late"
        self._count_unsaved(why_not)

    def _count_unsaved(self, why):
        self._counted.add(counts.BLOCKS, why, self._unsaved)
        self._unsaved = 0

    def _load_one(self, load):
        loading = Loading(load.request_id)
        for first in range(0, len(load.engine_blocks), wire.BLOCK_COUNT_MAX):
            loading.parts.append(load.engine_blocks[first:first + wire.BLOCK_COUNT_MAX])
        loading.loaded = [None] * len(loading.parts)
        loading.open_count = len(loading.parts)
        first, jobs = load.first_block, []
        for index, part in enumerate(loading.parts):
            job = next(self._jobs)
            self._parts[job] = (loading, index)
            jobs.append((job, first, part))
            first += len(part)
        for job, first, part in jobs:
            if job not in self._parts:  # the connection ended with an earlier part
                continue
            if not self._link.send(wire.LOAD, job=job, request=load.number, first_block=first,
                                   engine_blocks=part):
                self._settle(job, 0)  # the agent never heard of it
                self._give_up("it does not read")

    def _settle(self, job, loaded):
        loading, index = self._parts.pop(job)
        size = len(loading.parts[index])
        if loaded > size:
            loaded = 0
            self._give_up("it loaded more than it was asked to")
        loading.loaded[index] = loaded
        loading.open_count -= 1
        if loading.open_count == 0:
            self._failed.update(loading.failed_blocks())
            self._done.add(loading.request_id)

    def _give_up(self, why):
        self._saving.clear()
        self._link.give_up(why)
