# SPDX-License-Identifier: Apache-2.0
"""memory: where the engine's KV blocks lie, and how the agent gets to them.

Pages are opaque: only sizes and strides of the tensors are looked at, so a new layout of an
attention backend needs no change here, or is refused. The bytes of block b are those of its
segments, in order: layer by layer, and where a layer's block is in pieces (K and V apart), piece by
piece.

On a CPU the engine would get its memory from its own heap, which nobody else can map. Memfds
answers that one request with memory that has a descriptor. Its size is sealed: nobody who maps it
can be killed by its shrinking.
"""

import fcntl
import math
import os
import time

import torch
from torch.overrides import TorchFunctionMode

from . import wire

FLAT_TYPES = (torch.int8, torch.uint8)


class Unusable(Exception):
    """Memory that the agent cannot be given, in a sentence."""


class Memfds(TorchFunctionMode):
    """While it is entered, what the engine allocates in one of sizes comes with a descriptor."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = set(sizes)
        self.descriptors = {}  # by the address of the storage

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.zeros and len(args) == 1 and self._is_ours(args[0], kwargs):
            return self._zeros(args[0], kwargs["dtype"])
        return func(*args, **kwargs)

    def _is_ours(self, size, kwargs):
        device = torch.device(kwargs.get("device") or "cpu")
        return (isinstance(size, int) and size in self.sizes and device.type == "cpu"
                and kwargs.get("dtype") in FLAT_TYPES)

    def _zeros(self, size, dtype):
        descriptor = os.memfd_create("samovar-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS,
                    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        storage = torch.UntypedStorage.from_file(f"/proc/self/fd/{descriptor}", True, size)
        self.descriptors[storage.data_ptr()] = descriptor
        return torch.empty(0, dtype=dtype).set_(storage)


def block_pieces(tensor, block_count):
    """[(offset, stride, bytes)] of a layer's blocks, in bytes of its storage."""
    if tensor.dim() < 2 or min(tensor.shape) < 1 or min(tensor.stride()) < 1:
        raise Unusable(f"a tensor of shape {tuple(tensor.shape)}, strides {tensor.stride()}")
    # Blocks come first, or behind K and V. The kernel may see each as several smaller ones.
    dims = [dim for dim in (0, 1) if tensor.shape[dim] % block_count == 0
            and (dim == 0 or tensor.shape[0] == 2)]
    if len(dims) != 1:
        raise Unusable(f"{block_count} blocks in a tensor of shape {tuple(tensor.shape)}")
    (dim,) = dims
    per_block = tensor.shape[dim] // block_count
    sizes = list(tensor.shape)
    sizes[dim] = per_block
    # From the smallest step on, whatever follows without a gap is one run of bytes.
    run = extent = tensor.element_size()
    outer = []
    for size, step in sorted(zip(sizes, tensor.stride()), key=lambda pair: pair[1]):
        step *= tensor.element_size()
        if size == 1:
            continue
        if step < extent:
            raise Unusable(f"strides {tensor.stride()} that overlap")
        if step == run and not outer:
            run *= size
        else:
            outer.append((size, step))
        extent = step * size
    offsets = [tensor.storage_offset() * tensor.element_size()]
    for size, step in reversed(outer):
        offsets = [offset + i * step for offset in offsets for i in range(size)]
    stride = tensor.stride(dim) * tensor.element_size() * per_block
    if stride < run:
        raise Unusable(f"strides {tensor.stride()}: blocks overlap")
    return [(offset, stride, run) for offset in offsets]


class Layout:
    """storages: what the segments, (region, offset, stride, bytes), are counted in."""

    def __init__(self, kv_caches, block_count):
        self.storages, self.segments = [], []
        regions, seen = {}, set()
        for tensor in kv_caches.values():
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in regions:
                regions[storage.data_ptr()] = len(self.storages)
                self.storages.append(storage)
            region = regions[storage.data_ptr()]
            for piece in block_pieces(tensor, block_count):
                if (region, *piece) not in seen:  # layers may share
                    seen.add((region, *piece))
                    self.segments.append((region, *piece))
        if len(self.storages) > wire.REGION_COUNT_MAX:
            raise Unusable(f"{len(self.storages)} allocations")
        if len(self.segments) > wire.SEGMENT_COUNT_MAX:
            raise Unusable(f"a block in {len(self.segments)} pieces")


class HostMemory:
    """The memory of an engine on a CPU; also its clock: a step's work is done when it returns."""

    def __init__(self, layout, memfds):
        self._began = None
        self._segments = layout.segments
        self.descriptors, self._regions = [], []
        for storage in layout.storages:
            descriptor = memfds.descriptors.get(storage.data_ptr())
            if descriptor is None:
                raise Unusable("it was not allocated through the connector")
            self.descriptors.append(descriptor)
            self._regions.append((storage.nbytes(), 0, bytes(wire.HANDLE_BYTES)))

    def hello_fields(self):
        return {"device": wire.HOST, "uuid": bytes(16), "event_handle": bytes(wire.HANDLE_BYTES),
                "regions": self._regions, "segments": self._segments}

    def mark(self):
        """What the engine did before is done: a CPU has no streams."""

    def begin_step(self):
        self._began = time.monotonic()

    def end_step(self, tokens):
        """(tokens, microseconds) of a step; 0, 0 where they are not known."""
        if self._began is None:
            return 0, 0
        return tokens, math.ceil((time.monotonic() - self._began) * 1e6)
