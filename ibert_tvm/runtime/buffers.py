"""Memory that compiled code may be given."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence

import numpy as np

from .metadata import FunctionRecord, LibraryMetadata, ParameterRecord

ALIGNMENT = 64
"""Bytes on which compiled code expects every buffer to start."""


def aligned_zeros(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Array of zeros that compiled code may be given.

    Parameters
    ----------
    shape
        Shape.
    dtype
        NumPy type.

    Returns
    -------
    numpy.ndarray
        Contiguous, starting at a multiple of `ALIGNMENT`.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(tuple(shape))


def input_buffers(metadata: LibraryMetadata, function: FunctionRecord) -> dict[str, np.ndarray]:
    """Aligned zeros for every input of a function, by name and in its order."""
    kinds = metadata.input_kinds(function)
    return {
        record.name: aligned_zeros(*kind)
        for record, kind in zip(metadata.inputs, kinds, strict=True)
    }


class BufferedInputs:
    """Part of an execution context: buffers of every function's inputs, made on first use.

    Parameters
    ----------
    metadata
        What the library says about itself.
    """

    def __init__(self, metadata: LibraryMetadata) -> None:
        self.metadata = metadata
        self.buffers: dict[str, dict[str, np.ndarray]] = {}

    def inputs(self, function: FunctionRecord) -> Mapping[str, np.ndarray]:
        """As `ibert_tvm.runtime.engine.ExecutionContext.inputs`."""
        if function.name not in self.buffers:
            self.buffers[function.name] = input_buffers(self.metadata, function)
        return self.buffers[function.name]


def mapped_weights(shared_object: ctypes.CDLL) -> int:
    """Address at which the dynamic linker mapped a library's section of weights."""
    return ctypes.addressof(ctypes.c_char.in_dll(shared_object, "ibert_weights"))


def mapped_parameter(shared_object: ctypes.CDLL, record: ParameterRecord) -> np.ndarray:
    """View of one parameter where the dynamic linker mapped it: nothing is copied.

    Parameters
    ----------
    shared_object
        The library, which the view keeps.
    record
        One of its parameters.

    Returns
    -------
    numpy.ndarray
        Of the record's shape and dtype; the pages cannot be written.
    """
    memory = (ctypes.c_char * record.num_bytes).from_address(
        mapped_weights(shared_object) + record.offset
    )
    memory.shared_object = shared_object  # type: ignore[attr-defined]
    count = math.prod(record.shape)
    return np.frombuffer(memoryview(memory), record.dtype, count).reshape(record.shape)
