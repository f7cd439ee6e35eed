"""The C interface through ctypes, as a C program would use it: nothing is checked on the way."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ABI_VERSION = 3
BATCH, SEQ_LEN = -1, -2
DTYPES = {1: "int8", 2: "uint8", 3: "int16", 4: "int32", 5: "int64"}
Hook = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)


class Context(ctypes.Structure):
    """`ibert_context`."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("busy", ctypes.c_uint32),
        ("arena", ctypes.c_void_p),
        ("arena_bytes", ctypes.c_size_t),
        ("hook", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
    )


class Tensor(ctypes.Structure):
    """`ibert_tensor`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("scale", ctypes.c_char_p),
        ("scale_multiplier", ctypes.c_int32),
        ("scale_shift", ctypes.c_int32),
        ("zero_point", ctypes.c_int32),
        ("low", ctypes.c_int32),
        ("high", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int32 * 4),
    )


class Shape(ctypes.Structure):
    """`ibert_shape`."""

    _fields_ = (
        ("batch", ctypes.c_int32),
        ("seq_len", ctypes.c_int32),
        ("arena_bytes", ctypes.c_size_t),
        ("num_kernels", ctypes.c_int32),
    )


def load(path: Path) -> ctypes.CDLL:
    """The library with the types that ctypes would guess wrongly."""
    library = ctypes.CDLL(str(path))
    library.ibert_strerror.restype = ctypes.c_char_p
    library.ibert_abi_version.restype = ctypes.c_uint32
    library.ibert_fingerprint.restype = ctypes.c_uint64
    library.ibert_init.argtypes = [
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t)
    ]
    library.ibert_set_hook.argtypes = [ctypes.c_void_p, Hook, ctypes.c_void_p]
    for name in ("ibert_input", "ibert_output"):
        getattr(library, name).restype = ctypes.POINTER(Tensor)
    return library


def aligned(nbytes: int, alignment: int = 64, offset: int = 0, fill: int = 0) -> np.ndarray:
    """Bytes that start `offset` behind a multiple of `alignment`."""
    memory = np.full(nbytes + 2 * alignment, fill, "uint8")
    start = -memory.ctypes.data % alignment + offset
    return memory[start : start + nbytes]


def pointers(arrays: Sequence[np.ndarray | None]) -> Any:
    """Array of addresses; None is NULL."""
    addresses = [None if array is None else array.ctypes.data for array in arrays]
    return (ctypes.c_void_p * len(arrays))(*addresses)


def sizes(arrays: Sequence[np.ndarray | None]) -> Any:
    """Array of bytes; of NULL none."""
    return (ctypes.c_size_t * len(arrays))(*(0 if a is None else a.nbytes for a in arrays))


def arguments(inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> Any:
    """What `ibert_run` takes of arrays."""
    return pointers(inputs), sizes(inputs), pointers(outputs), sizes(outputs)


class Caller:
    """A context with an arena that holds nothing but rubbish, between two walls."""

    WALL = 256

    def __init__(self, path: Path, arena_bytes: int, fill: int = 0xA5) -> None:
        self.library = load(path)
        self.memory = aligned(arena_bytes + 2 * self.WALL, fill=fill)
        self.wall = self.memory[: self.WALL].copy()
        self.arena = self.memory[self.WALL : self.WALL + arena_bytes]
        self.context = Context()
        address, size = self.arena.ctypes.data, arena_bytes
        model = self.library.ibert_fingerprint()
        context = ctypes.byref(self.context)
        status = self.library.ibert_init(context, ABI_VERSION, model, address, size)
        assert status == 0, self.library.ibert_strerror(status)

    def tensors(self, kind: str) -> list[Tensor]:
        """All inputs or outputs."""
        found: list[Tensor] = []
        while pointer := getattr(self.library, f"ibert_{kind}")(len(found)):
            found.append(pointer.contents)
        return found

    def outputs(self, batch: int, seq_len: int, offset: int = 0) -> list[np.ndarray]:
        """Memory for the outputs, each starting `offset` entries behind a cache line."""
        sizes = {BATCH: batch, SEQ_LEN: seq_len}
        arrays = []
        for tensor in self.tensors("output"):
            dtype = np.dtype(DTYPES[tensor.type])
            shape = [sizes.get(size, size) for size in tensor.shape[: tensor.rank]]
            nbytes = int(np.prod(shape)) * dtype.itemsize
            memory = aligned(nbytes, offset=offset * dtype.itemsize, fill=0xEE)
            arrays.append(memory.view(dtype).reshape(shape))
        return arrays

    def run(self, inputs: Mapping[str, np.ndarray], offset: int = 0) -> list[np.ndarray]:
        """Run the model; the walls round the arena must stand."""
        ordered = []
        for tensor in self.tensors("input"):
            given = inputs[tensor.name.decode()]
            dtype = np.dtype(DTYPES[tensor.type])
            memory = aligned(given.size * dtype.itemsize, offset=offset * dtype.itemsize)
            array = memory.view(dtype).reshape(given.shape)
            array[...] = given
            ordered.append(array)
        before = [array.copy() for array in ordered]
        batch, seq_len = ordered[0].shape[:2]
        outputs = self.outputs(batch, seq_len, offset)
        status = self.library.ibert_run(
            ctypes.byref(self.context), batch, seq_len, *arguments(ordered, outputs)
        )
        assert status == 0, self.library.ibert_strerror(status)
        for array, old in zip(ordered, before, strict=True):
            np.testing.assert_array_equal(array, old)
        np.testing.assert_array_equal(self.memory[: self.WALL], self.wall)
        np.testing.assert_array_equal(self.memory[self.WALL + self.arena.size :], self.wall)
        return outputs
