# SPDX-License-Identifier: Apache-2.0
"""
An engine's memory on a GPU that tests/support/fake_cuda plays in this process and in the agent's: it
is given away as an engine's would be, by an IPC handle and an event that both processes know.
"""

import ctypes

from peers.engine_client import Pages
from peers.process import BIN

FAKE_CUDA = BIN.parent / "fake_cuda"  # to be the agent's LD_LIBRARY_PATH
DRIVER_VERSION = 12000
INTERPROCESS, DISABLE_TIMING = 4, 2   # of cuEventCreate()


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class Driver:
    """Its functions by their names in the manual, each of which raises where it does not succeed."""

    def __init__(self):
        self._library = ctypes.CDLL(str(FAKE_CUDA / "libcuda.so.1"))
        self._found = {}

    def __getattr__(self, name):
        if name not in self._found:
            function, is_found = ctypes.c_void_p(), ctypes.c_int()
            self._library.cuGetProcAddress_v2(name.encode(), ctypes.byref(function), DRIVER_VERSION,
                                              ctypes.c_uint64(0), ctypes.byref(is_found))
            assert function.value, f"{name}: there is no such function"
            self._found[name] = ctypes.CFUNCTYPE(ctypes.c_int)(function.value)

        def call(*args):
            result = self._found[name](*args)
            assert result == 0, f"{name}: {result}"
        return call


class CudaMemory(Pages):
    """As engine_client.Memory, on a GPU."""
    device, descriptors = 1, ()

    def __init__(self, block_count=64, layer_count=2, layer_bytes=4096):
        super().__init__(block_count, layer_count, layer_bytes)
        self._driver, self._event = Driver(), ctypes.c_void_p()
        context, base, uuid = ctypes.c_void_p(), ctypes.c_uint64(), (ctypes.c_char * 16)()
        handle, event_handle = Handle(), Handle()
        self._driver.cuInit(0)
        self._driver.cuDeviceGetUuid(uuid, 0)
        self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self._driver.cuCtxSetCurrent(context)
        self._driver.cuMemAlloc(ctypes.byref(base), ctypes.c_size_t(self.bytes))
        self._driver.cuIpcGetMemHandle(ctypes.byref(handle), base)
        self._driver.cuEventCreate(ctypes.byref(self._event), INTERPROCESS | DISABLE_TIMING)
        self._driver.cuIpcGetEventHandle(ctypes.byref(event_handle), self._event)
        self._base = base.value
        self.uuid, self.handle, self.event_handle = bytes(uuid), bytes(handle), bytes(event_handle)

    def _places(self, block):
        return (ctypes.c_uint64(self._base + start) for start in self.starts(block))

    def write(self, block, page):
        for i, place in enumerate(self._places(block)):
            self._driver.cuMemcpyHtoD(place, page[i * self.layer_bytes:(i + 1) * self.layer_bytes],
                                      ctypes.c_size_t(self.layer_bytes))
        self._driver.cuStreamSynchronize(None)
        self._driver.cuEventRecord(self._event, None)

    def read(self, block):
        piece, page = ctypes.create_string_buffer(self.layer_bytes), b""
        for place in self._places(block):
            self._driver.cuMemcpyAsync(ctypes.c_uint64(ctypes.addressof(piece)), place,
                                       ctypes.c_size_t(self.layer_bytes), None)
            page += piece.raw
        return page

    def close(self):
        self._driver.cuMemFree(ctypes.c_uint64(self._base))
