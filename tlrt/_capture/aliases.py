"""Finds the handles that are to the same memory."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tlrt._binding.handles import Buffer, Device, count_references
from tlrt._binding.library import load

_library = load()
ffi, lib = _library.ffi, _library.lib
_references = partial(count_references, op="capture")


def alias_groups(device: Device, handles: Sequence[Any]) -> list[list[int]]:
    """The places of those handles that are to the same memory as others, one list for each memory; linear in the number of
    handles as long as few are. Raises ReleasedError for a handle that was given back."""
    count: dict[int, int] = {}
    for handle in handles:
        known = int(ffi.cast("uintptr_t", handle))
        count[known] = count.get(known, 0) + 1
    single = [count[int(ffi.cast("uintptr_t", h))] == 1 for h in handles]
    open_ = [i for i, h in enumerate(handles) if not single[i] or _references(h) > 1]
    open_ = [i for i, n in zip(open_, _growth(device, handles, open_, open_), strict=True) if n > 1]
    groups = []
    while open_:
        grown = _growth(device, handles, open_[:1], open_)
        groups.append([i for i, n in zip(open_, grown, strict=True) if n])
        open_ = [i for i, n in zip(open_, grown, strict=True) if not n]
    return groups


def _growth(device: Device, handles: Sequence[Any], shared: Sequence[int], watched: Sequence[int]) -> list[int]:
    """By how much the references of the watched handles' memory grow with one more handle to each of the shared ones."""
    while True:
        before = [_references(handles[i]) for i in watched]
        extra = [Buffer._create("capture", device, lib.torchlean_cuda_buffer_share, handles[i]) for i in shared]
        grown = [_references(handles[i]) - n for i, n in zip(watched, before, strict=True)]
        for buffer in extra:
            buffer.release()
        if before == [_references(handles[i]) for i in watched]:  # else a finaliser gave a handle back meanwhile
            return grown
