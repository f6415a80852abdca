# SPDX-License-Identifier: Apache-2.0
"""No test by itself: what test_connector.py has run by the engine's own Python, which has torch.

For layouts that attention backends use, or could: the pieces that memory.py names are exactly the
bytes of each block, no more and no less. What it must not use, it refuses. The memory of an engine
on a CPU has a descriptor through which somebody else sees the same bytes.
"""

import fcntl
import itertools
import mmap

import torch

from samovar_vllm import memory

BLOCKS, TOKENS, HEADS, SIZE = 6, 4, 2, 8


def whole(*shape):
    return torch.zeros(shape, dtype=torch.float16)


def layer_of(order, layers=3, layer=1):
    """A layer's [B, H, N, C] view of an allocation whose dimensions lie in that order."""
    sizes = {"L": layers, "B": BLOCKS, "H": HEADS, "N": TOKENS, "C": 2 * SIZE}
    buffer = whole(*(sizes[dim] for dim in order))
    return buffer.permute(*(order.index(dim) for dim in "LBHNC"))[layer]


USABLE = {
    **{f"layer of {''.join(order)}C": layer_of("".join(order) + "C")
       for order in itertools.permutations("LBHN")},
    "K and V behind the block": whole(BLOCKS, 2, TOKENS, HEADS, SIZE),
    "K and V before the block": whole(2, BLOCKS, TOKENS, HEADS, SIZE),
    "K and V before the block, heads outside": whole(2, BLOCKS, HEADS, TOKENS, SIZE).transpose(2, 3),
    "latent": whole(BLOCKS, TOKENS, 72),
    "blocks in two halves for the kernel": whole(2 * BLOCKS, TOKENS // 2, HEADS, SIZE),
    "halves, heads outside": whole(HEADS, 2 * BLOCKS, TOKENS // 2, SIZE).permute(1, 2, 0, 3),
    "with room behind each block": whole(BLOCKS, 3 * TOKENS, SIZE)[:, :TOKENS],
    "bytes": torch.zeros(BLOCKS, 100, dtype=torch.uint8),
}
REFUSED = {
    "flat": torch.zeros(BLOCKS * 64, dtype=torch.int8),
    "no blocks of that number": whole(BLOCKS + 1, TOKENS, SIZE),
    "repeated": whole(BLOCKS, 1, SIZE).expand(BLOCKS, TOKENS, SIZE),
    "overlapping": whole(BLOCKS * 64).as_strided((BLOCKS, TOKENS, SIZE), (16, 4, 1)),
    "two blocks or K and V?": (whole(2, 2, TOKENS, SIZE), 2),
}


def addresses(tensor, dim, begin, end):
    """Of the bytes of tensor[begin:end] along dim, within the storage."""
    part = tensor.narrow(dim, begin, end - begin)
    places = torch.tensor([part.storage_offset()])
    for size, step in zip(part.shape, part.stride()):
        places = (places[:, None] + torch.arange(size) * step).flatten()
    item = tensor.element_size()
    return {place * item + byte for place in places.tolist() for byte in range(item)}


def check_usable(name, tensor):
    pieces = memory.block_pieces(tensor, BLOCKS)
    dim = 1 if tensor.shape[0] == 2 else 0
    per_block = tensor.shape[dim] // BLOCKS
    for block in range(BLOCKS):
        named = [offset + block * stride + byte for offset, stride, length in pieces
                 for byte in range(length)]
        assert len(named) == len(set(named)), f"{name}: named twice"
        expected = addresses(tensor, dim, block * per_block, (block + 1) * per_block)
        assert set(named) == expected, f"{name}: other bytes"


def check_refused(name, tensor, blocks=BLOCKS):
    try:
        memory.block_pieces(tensor, blocks)
    except memory.Unusable:
        return
    raise AssertionError(f"{name}: not refused")


def check_shared_layers_are_named_once():
    tensor = whole(BLOCKS, TOKENS, SIZE)
    layout = memory.Layout({"a": tensor, "b": tensor}, BLOCKS)
    assert len(layout.segments) == 1 and len(layout.storages) == 1


def check_memfds():
    size = 1 << 16
    memfds = memory.Memfds([size])
    with memfds:
        ours = torch.zeros(size, dtype=torch.int8, device=torch.device("cpu"))
        others = [torch.zeros(size), torch.zeros(size - 1, dtype=torch.int8),
                  torch.zeros((size,), dtype=torch.float32), torch.empty(size, dtype=torch.int8)]
    after = torch.zeros(size, dtype=torch.int8)
    (descriptor,) = memfds.descriptors.values()

    assert ours.shape == (size,) and not ours.any() and all(t.numel() for t in [*others, after])
    ours.view(BLOCKS - 2, -1)[1, 5] = 7
    with mmap.mmap(descriptor, size) as seen:
        assert seen[size // (BLOCKS - 2) + 5] == 7
        seen[0] = 9
    assert ours[0] == 9
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK and seals & fcntl.F_SEAL_GROW

    layout = memory.Layout({"a": ours.view(8, -1)}, 8)
    assert memory.HostMemory(layout, memfds).descriptors == [descriptor]
    try:
        memory.HostMemory(memory.Layout({"a": after.view(8, -1)}, 8), memfds)
    except memory.Unusable:
        return
    raise AssertionError("memory of somebody else is not refused")


def main():
    for name, tensor in USABLE.items():
        check_usable(name, tensor)
    for name, row in REFUSED.items():
        check_refused(name, *(row if isinstance(row, tuple) else (row,)))
    check_shared_layers_are_named_once()
    check_memfds()
    print(f"{len(USABLE)} layouts, {len(REFUSED)} refused")


if __name__ == "__main__":
    main()
