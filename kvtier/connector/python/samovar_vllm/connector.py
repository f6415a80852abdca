# SPDX-License-Identifier: Apache-2.0
"""connector: what vLLM loads. Joins its interface to the two halves that do the work, scheduler.py
and worker.py, of which each process of the engine has one.

Where the engine's cache is not of the kind that the agent can keep (several groups, windows, ranks
on several nodes), or its memory cannot be given away, it says so once and stays out: every answer then
is "nothing", and the engine serves as if there were no connector.
"""

import hashlib
import os

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1,
                                                               KVConnectorMetadata,
                                                               KVConnectorRole, SupportsHMA)
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import (FullAttentionSpec, MLAAttentionSpec,
                                        UniformTypeKVCacheSpecs)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from . import counts, memory, wire
from .link import Link
from .metrics import PromMetrics, Stats
from .scheduler import Plan, Scheduler
from .worker import Absent, Worker

# Under vLLM's own name: its logging is set up for that, and for nothing else.
logger = init_logger("vllm.samovar")

SOCKET = "/run/samovar/agent.sock"
DRAFTS_WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix")
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")


class Metadata(KVConnectorMetadata):
    """From the scheduler's process to the workers', once a step."""

    def __init__(self, plan):
        self.plan = plan


class SamovarConnector(KVConnectorBase_V1, SupportsHMA):
    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._scheduler, self._worker, self._memfds = None, Absent(), None
        self._counts = counts.Counts()
        extra = self._kv_transfer_config.get_from_extra_config
        self._path = extra("socket", SOCKET)
        why_not = why_unusable(vllm_config, kv_cache_config)
        self._is_out = why_not is not None
        if self._is_out:
            logger.warning("samovar: stays out, this engine has no tiers: %s", why_not)
            return
        self._hello = hello_fields(vllm_config, kv_cache_config, str(extra("worker", "")))
        if self._kv_transfer_config.kv_load_failure_policy != "recompute":
            # The engine's own default would answer a failed load with an error.
            logger.warning("samovar: kv_load_failure_policy is set to recompute")
            self._kv_transfer_config.kv_load_failure_policy = "recompute"
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(self._make_link, self._hello, self._hello["block_tokens"],
                                        self._counts)

    def _make_link(self, owner):
        return Link(self._path, owner, logger)

    @property
    def requires_kv_delivery(self):
        return False  # what is not saved is computed again some day

    def shutdown(self):
        if self._scheduler:
            self._scheduler.close()
        self._worker.close()

    # --- what is counted, by either half ---

    def get_kv_connector_stats(self):
        counted = self._counts.take()
        return Stats(counted) if counted else None

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return Stats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # --- scheduler ---

    def on_new_request(self, request):
        if self._scheduler:
            self._scheduler.add(request)
        else:
            self._counts.add(counts.REQUESTS, "engine")

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        tokens = self._scheduler.match(request, num_computed_tokens) if self._scheduler else 0
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if self._scheduler:
            self._scheduler.take(request, lambda: blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return Metadata(self._scheduler.plan(scheduler_output) if self._scheduler else Plan())

    def request_finished(self, request, block_ids):
        if self._scheduler:
            self._scheduler.finish(request.request_id)
        return False, None

    def request_finished_all_groups(self, request, block_ids):
        return self.request_finished(request, block_ids)

    def reset_cache(self):
        return self._scheduler.reset() if self._scheduler else True

    # --- worker ---

    def get_mem_pool_context(self):
        if self._is_out or self._hello["device"] != wire.HOST:
            return None
        self._memfds = memory.Memfds(t.size for t in self._kv_cache_config.kv_cache_tensors)
        return self._memfds

    def register_kv_caches(self, kv_caches):
        if self._is_out:
            return
        try:
            layout = memory.Layout(kv_caches, self._kv_cache_config.num_blocks)
            if self._hello["device"] == wire.HOST:
                engine_memory = memory.HostMemory(layout, self._memfds)
            else:
                from .cuda import CudaMemory
                engine_memory = CudaMemory(layout)
        except (memory.Unusable, OSError) as error:
            logger.warning("samovar: stays out, this engine's memory cannot be used: %s", error)
            return
        logger.info("samovar: %d bytes a block, in %d pieces of %d allocations",
                    sum(segment[-1] for segment in layout.segments), len(layout.segments),
                    len(layout.storages))
        is_pipelined = self._vllm_config.parallel_config.pipeline_parallel_size > 1
        self._worker = Worker(self._make_link, self._hello, engine_memory, self._counts,
                              is_pipelined)

    def bind_connector_metadata(self, connector_metadata):
        super().bind_connector_metadata(connector_metadata)
        self._worker.begin_step(connector_metadata.plan.step)

    def start_load_kv(self, forward_context, **kwargs):
        self._worker.load(self._get_connector_metadata().plan.loads)

    def wait_for_layer_load(self, layer_name):
        """Loads are over before their requests are scheduled."""

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        """Whole blocks are saved, of all layers, when the step is done."""

    def wait_for_save(self):
        plan = self._get_connector_metadata().plan
        self._worker.save(plan.saves, plan.step_tokens)

    def get_finished(self, finished_req_ids):
        return None, self._worker.finished()

    def get_block_ids_with_load_errors(self):
        return self._worker.failed()


def layer_specs(spec):
    return spec.kv_cache_specs.values() if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]


def why_unusable(vllm_config, kv_cache_config):
    """A sentence, or None: every block's bytes depend on nothing but the tokens up to its end."""
    if len(kv_cache_config.kv_cache_groups) != 1:
        return f"{len(kv_cache_config.kv_cache_groups)} KV cache groups"
    for spec in layer_specs(kv_cache_config.kv_cache_groups[0].kv_cache_spec):
        # Kinds that are derived from these two add something: none of it is known here.
        if type(spec) not in (FullAttentionSpec, MLAAttentionSpec):
            return f"a KV cache of {type(spec).__name__}"
        if spec.sliding_window is not None or spec.attention_chunk_size is not None:
            return "attention in windows"
        if getattr(spec, "non_causal", False):
            return "attention that looks ahead"
    draft = vllm_config.speculative_config
    if draft is not None and draft.method not in DRAFTS_WITHOUT_CACHE:
        return f"a draft model ({draft.method}): its cache depends on the token behind a block"
    why_not = why_ranks_unusable(vllm_config.parallel_config, kv_cache_config)
    if why_not is not None:
        return why_not
    if vllm_config.device_config.device_type not in ("cpu", "cuda"):
        return f"a device of kind {vllm_config.device_config.device_type}"
    if not vllm_config.cache_config.enable_prefix_caching:
        return "prefix caching is off"
    return None


def why_ranks_unusable(parallel, kv_cache_config):
    """A sentence, or None: all ranks are on this node, and have of each block all its tokens."""
    if parallel.world_size > wire.RANK_COUNT_MAX:
        return f"{parallel.world_size} ranks"
    if getattr(parallel, "nnodes", 1) > 1:
        return f"ranks on {parallel.nnodes} nodes: each agent would see some of them only"
    for name in ("prefill_context_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            return f"{name} is {getattr(parallel, name)}: a rank has some tokens of a block only"
    if (parallel.pipeline_parallel_size > 1
            and getattr(kv_cache_config, "needs_kv_cache_zeroing", False)):
        return "pipelined ranks whose blocks are cleared before a step"
    return None


def hello_fields(vllm_config, kv_cache_config, worker):
    """What both halves say of their engine."""
    group = kv_cache_config.kv_cache_groups[0]
    engine_id = vllm_config.kv_transfer_config.engine_id
    device_type = vllm_config.device_config.device_type
    return {
        "device": wire.CUDA if device_type == "cuda" else wire.HOST,
        "rank": vllm_config.parallel_config.rank,
        "rank_count": vllm_config.parallel_config.world_size,
        "block_count": kv_cache_config.num_blocks,
        "block_tokens": group.kv_cache_spec.block_size,
        "engine_id": hashlib.sha256(engine_id.encode()).digest()[:16],
        "uuid": bytes(16),
        "event_handle": bytes(wire.HANDLE_BYTES),
        "worker": worker,
        "model": model_text(vllm_config),
        "version": vllm.__version__,
    }


def model_text(vllm_config):
    """All that blocks of two engines must have in common to be exchangeable. The version of vLLM
    and the layout are in it because pages are opaque: nobody could tell that their order changed."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel = vllm_config.parallel_config
    attention = getattr(vllm_config, "attention_config", None)
    parts = {
        "model": model.model, "revision": model.revision, "dtype": str(model.dtype),
        "quantization": model.quantization, "kv": cache.cache_dtype,
        "layout": getattr(cache, "kv_cache_layout", None),
        "attention": getattr(attention, "backend", None), "vllm": vllm.__version__,
        "config": hashlib.sha256(model.hf_config.to_json_string().encode()).hexdigest()[:16],
        "files": files_digest(model.model),
        # Which rank has which heads and layers.
        "ranks": None if parallel.world_size == 1 else
                 f"tp{parallel.tensor_parallel_size}pp{parallel.pipeline_parallel_size}",
    }
    text = " ".join(f"{name}={value}" for name, value in parts.items() if value is not None)
    if len(text.encode()) > wire.TEXT_BYTES_MAX:
        text = f"sha256={hashlib.sha256(text.encode()).hexdigest()}"
    return text


def files_digest(folder):
    """Of names, sizes and times: other weights under the same path are another model. None where
    the model is no folder; then its name and revision say what it is."""
    if not os.path.isdir(folder):
        return None
    lines = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.endswith(WEIGHT_SUFFIXES):
            status = entry.stat()
            lines.append(f"{entry.name} {status.st_size} {status.st_mtime_ns}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
