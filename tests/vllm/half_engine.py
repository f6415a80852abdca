# SPDX-License-Identifier: Apache-2.0
"""An engine without a model: drives the connector's two halves in the order in which vLLM does, over
blocks whose bytes say what should be in them. Needs neither vLLM nor torch."""

import collections
import concurrent.futures
import hashlib
import logging
import time
import types

from peers.connector_agent import wire
from peers.engine_client import Memory as Pages
from peers.process import wait_until
from samovar_vllm.counts import Counts
from samovar_vllm.link import Link
from samovar_vllm.scheduler import Scheduler
from samovar_vllm.worker import Worker

BLOCK_TOKENS = 16
PIECE_BYTES = 96
PIECES = 3  # of a block, each in another place, as layers are

logger = logging.getLogger("samovar")


class Memory(Pages):
    """As memory.HostMemory is, without torch."""

    def __init__(self, block_count):
        super().__init__(block_count, PIECES, PIECE_BYTES)
        self.descriptors = [self.fd]
        self.began = 0

    def hello_fields(self):
        return {"device": wire.HOST, "uuid": bytes(16), "event_handle": bytes(64),
                "regions": [(self.bytes, 0, bytes(64))], "segments": self.segments()}

    def begin_step(self):
        self.began = time.monotonic()

    def end_step(self, tokens):
        """Nothing was computed: to a real agent that is slow enough for loading to pay."""
        return tokens, round((time.monotonic() - self.began) * 1e6) + 1000 * tokens

    def mark(self):
        pass

    def write(self, block, text):
        super().write(block, page_of(text))

    def holds(self, block, text):
        return self.read(block) == page_of(text)


def page_of(text):
    return b"".join((hashlib.sha256(f"{text} {piece}".encode()).digest() * 3)[:PIECE_BYTES]
                    for piece in range(PIECES))


def request_of(name, tokens, **fields):
    return types.SimpleNamespace(**{
        "request_id": name, "prompt_token_ids": tokens, "prompt_embeds": None, "mm_features": [],
        "lora_request": None, "cache_salt": None, "num_preemptions": 0,
        "skip_reading_prefix_cache": False, **fields})


class RankedMemory:
    """The memories of all ranks: each holds other bytes of a block."""

    def __init__(self, block_count, rank_count):
        self.ranks = [Memory(block_count) for _ in range(rank_count)]

    def write(self, block, text):
        for rank, memory in enumerate(self.ranks):
            memory.write(block, f"{text} {rank}")

    def holds(self, block, text):
        return all(memory.holds(block, f"{text} {rank}") for rank, memory in enumerate(self.ranks))


class RankedWorker:
    """The worker processes of an engine of several ranks, as threads, and what vLLM makes of their
    answers: a request is loaded when each rank says so, and a block failed when any does."""

    def __init__(self, workers):
        self.workers = workers
        self._named = collections.Counter()
        self._pool = concurrent.futures.ThreadPoolExecutor(len(workers))

    def _each(self, act):
        return list(self._pool.map(act, self.workers))

    def begin_step(self, step):
        self._each(lambda worker: worker.begin_step(step))

    def load(self, loads):
        self._each(lambda worker: worker.load(loads))

    def save(self, saves, step_tokens):
        self._each(lambda worker: worker.save(saves, step_tokens))

    def finished(self):
        for names in self._each(lambda worker: worker.finished()):
            self._named.update(names)
        done = {name for name, count in self._named.items() if count == len(self.workers)}
        for name in done:
            del self._named[name]
        return done

    def failed(self):
        return set().union(*self._each(lambda worker: worker.failed()))

    def close(self):
        self._each(lambda worker: worker.close())
        self._pool.shutdown()


class HalfEngine:
    def __init__(self, path, name="engine", block_count=64, clock=time.monotonic,
                 is_pipelined=False, rank_count=1):
        self.memory = (Memory(block_count) if rank_count == 1
                       else RankedMemory(block_count, rank_count))
        self.is_pipelined = is_pipelined
        self.free = list(range(block_count))
        self.blocks = {}  # request id -> its engine blocks
        hello = {"device": wire.HOST, "rank": 0, "rank_count": rank_count, "block_count": block_count,
                 "block_tokens": BLOCK_TOKENS, "engine_id": hashlib.md5(name.encode()).digest(),
                 "uuid": bytes(16), "event_handle": bytes(64), "worker": "", "model": "half",
                 "version": "0"}

        self.counts = Counts()  # of both halves

        def make_link(owner):
            return Link(str(path), owner, logger)
        self.scheduler = Scheduler(make_link, hello, BLOCK_TOKENS, self.counts, clock)
        if rank_count == 1:
            self.worker = Worker(make_link, hello, self.memory, self.counts, is_pipelined)
        else:
            self.worker = RankedWorker([Worker(make_link, {**hello, "rank": rank}, memory, self.counts,
                                               is_pipelined)
                                        for rank, memory in enumerate(self.memory.ranks)])

    def links(self):
        workers = getattr(self.worker, "workers", [self.worker])
        return [self.scheduler._link, *(worker._link for worker in workers)]

    def is_registered(self):
        for link in self.links():
            link.pump()
        return all(link.is_ready() for link in self.links())

    def wait_registered(self):
        wait_until(self.is_registered, "both halves are registered")

    def close(self):
        self.scheduler.close()
        self.worker.close()

    # --- what vLLM does ---

    def add(self, name, tokens, **fields):
        request = request_of(name, tokens, **fields)
        self.scheduler.add(request)
        return request

    def admit(self, request, external, local=0):
        """Room for the prompt; external: what match() said."""
        count = -(-len(request.prompt_token_ids) // BLOCK_TOKENS)
        self.blocks[request.request_id] = [self.free.pop() for _ in range(count)]
        self.scheduler.take(request, lambda: self.blocks[request.request_id], external)

    def step(self, new=(), cached=(), resumed=(), computes=True):
        """One step. new, cached: (request, computed, scheduled). Blocks that it fills get the bytes
        that belong there. Returns the plan."""
        known = types.SimpleNamespace(
            req_ids=[row[0].request_id for row in cached],
            resumed_req_ids={request.request_id for request in resumed},
            new_block_ids=[(self.blocks[row[0].request_id],) if row[0] in resumed else None
                           for row in cached],
            num_computed_tokens=[row[1] for row in cached])
        rows = [*new, *cached]
        plan = self.scheduler.plan(types.SimpleNamespace(
            scheduled_new_reqs=[types.SimpleNamespace(
                req_id=request.request_id, block_ids=(list(self.blocks[request.request_id]),),
                num_computed_tokens=computed) for request, computed, _ in new],
            scheduled_cached_reqs=known,
            num_scheduled_tokens={row[0].request_id: row[2] for row in rows},
            total_num_scheduled_tokens=sum(row[2] for row in rows)))
        self.worker.begin_step(plan.step)
        for request, computed, scheduled in rows if computes else ():
            self.compute(request, computed, computed + scheduled)
        self.worker.load(plan.loads)
        self.worker.save(plan.saves, plan.step_tokens)
        return plan

    def compute(self, request, begin, end):
        for index in range(begin // BLOCK_TOKENS, min(end, len(request.prompt_token_ids))
                           // BLOCK_TOKENS):
            self.memory.write(self.blocks[request.request_id][index], name_of(request, index))

    def run(self, name, tokens, **fields):
        """A request from its begin to its end. Returns how many tokens were loaded, and whether all
        of them were right."""
        request = self.add(name, tokens, **fields)
        external = self.scheduler.match(request, 0)
        self.admit(request, external)
        right = True
        if external:
            self.step()
            self.wait_loaded(request)
            failed = self.worker.failed()
            right = not failed and self.holds(request, external)
        self.step(new=[(request, external, len(tokens) - external)])
        self.end(request)
        return external, right

    def wait_loaded(self, request):
        done = set()

        def is_done():
            done.update(self.worker.finished())
            return request.request_id in done
        wait_until(is_done, f"{request.request_id} is loaded")
        assert done == {request.request_id}

    def holds(self, request, tokens):
        blocks = self.blocks[request.request_id]
        return all(self.memory.holds(blocks[index], name_of(request, index))
                   for index in range(tokens // BLOCK_TOKENS))

    def end(self, request):
        """Its blocks are free, and what was in them is overwritten: by a next step, and that waits
        for what is put off until then."""
        if self.is_pipelined:
            self.step()
        self.scheduler.finish(request.request_id)
        for block in self.blocks.pop(request.request_id, []):
            self.memory.write(block, "nothing")
            self.free.append(block)


def name_of(request, index):
    """What a block holds depends on all tokens up to its end."""
    return str(request.prompt_token_ids[:(index + 1) * BLOCK_TOKENS])
