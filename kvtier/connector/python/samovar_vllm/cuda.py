# SPDX-License-Identifier: Apache-2.0
"""cuda: the memory of an engine on a GPU, given away by IPC handles of the driver.

A handle names a whole allocation of the driver, in which torch's allocator has put the tensor: so
base and offset are asked for. Memory that was mapped piece by piece (expandable segments, sleep
mode) has no such handle: it is refused.

The agent copies on a stream of its own. It must neither read blocks before this engine's kernels
have written them, nor write blocks that kernels before still read. So mark() records one event that
both processes know, behind all that was launched: on whatever stream the engine computes.
"""

import ctypes
import uuid

import torch

from . import wire
from .memory import Unusable


class _Handle(ctypes.Structure):
    """CUipcMemHandle: passed by value in the other direction, so it has a type of its own."""
    _fields_ = [("reserved", ctypes.c_char * wire.HANDLE_BYTES)]


def _check(what, status):
    if status != 0:
        raise Unusable(f"{what} says {status}: memory of another allocator, or of no IPC")


def _export(driver, storage):
    """(bytes, offset in its allocation, handle)"""
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
    address = ctypes.c_uint64(storage.data_ptr())
    _check("cuMemGetAddressRange", driver.cuMemGetAddressRange_v2(
        ctypes.byref(base), ctypes.byref(size), address))
    _check("cuIpcGetMemHandle", driver.cuIpcGetMemHandle(ctypes.byref(handle), base))
    offset = address.value - base.value
    if offset + storage.nbytes() > size.value:
        raise Unusable("a tensor in more than one allocation")
    return storage.nbytes(), offset, bytes(handle)


class CudaMemory:
    def __init__(self, layout):
        driver = ctypes.CDLL("libcuda.so.1")
        self.descriptors = []
        self._segments = layout.segments
        self._regions = [_export(driver, storage) for storage in layout.storages]
        device = layout.storages[0].device
        self._uuid = uuid.UUID(str(torch.cuda.get_device_properties(device).uuid)).bytes
        self._event = torch.cuda.Event(enable_timing=False, interprocess=True)
        self.mark()
        self._event_handle = bytes(self._event.ipc_handle())
        # What a step took is known only when it is over: the one before this one is told of.
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._measured_tokens = 0

    def hello_fields(self):
        return {"device": wire.CUDA, "uuid": self._uuid, "event_handle": self._event_handle,
                "regions": self._regions, "segments": self._segments}

    def mark(self):
        """What is copied from now on comes behind all that was launched until now."""
        self._event.record(torch.cuda.current_stream())

    def begin_step(self):
        if self._measured_tokens == 0:
            self._begin.record(torch.cuda.current_stream())

    def end_step(self, tokens):
        """(tokens, microseconds) of an earlier step; 0, 0 where none is known."""
        if self._measured_tokens == 0:
            self._end.record(torch.cuda.current_stream())
            self._measured_tokens = tokens
            return 0, 0
        if not self._end.query():
            return 0, 0
        measured, self._measured_tokens = self._measured_tokens, 0
        return measured, round(self._begin.elapsed_time(self._end) * 1000)
