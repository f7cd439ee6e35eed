"""Calling a library of plain C functions that is for another machine, under an emulator.

A small C program calls it, which the emulator runs: this shows what the board will compute, not how
fast.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .buffers import BufferedInputs
from .library_file import read_weights
from .mapping import LibraryFile
from .metadata import FunctionRecord, LibraryMetadata, ParameterRecord
from .threads import concurrent_calls

if TYPE_CHECKING:
    from ibert_tvm.targets import TargetDescription
    from ibert_tvm.targets.runner import Runner


class EmulatedEngine:
    """A library under its target's emulator; see `ibert_tvm.runtime.engine.Engine`.

    Parameters
    ----------
    metadata
        What the library says about itself.

    Raises
    ------
    ibert_tvm.targets.TargetError
        If the target is unknown, or its compiler or its emulator is not installed.
    """

    device = "cpu"

    def __init__(self, metadata: LibraryMetadata) -> None:
        from ibert_tvm.targets.runner import Runner

        self.metadata = metadata
        self._file = LibraryFile(metadata)
        self.max_contexts = concurrent_calls()
        self._runner = Runner(target_of(metadata))

    def parameter(self, record: ParameterRecord) -> np.ndarray:
        """As `Engine.parameter`, read from the file."""
        content = read_weights(self._file.path, record.offset, record.num_bytes)
        count = math.prod(record.shape)
        return np.frombuffer(content, record.dtype, count).reshape(record.shape)

    def create_context(self) -> EmulatedContext:
        """As `Engine.create_context`."""
        return EmulatedContext(self.metadata, self._runner, self._file)


class EmulatedContext(BufferedInputs):
    """Inputs; see `ibert_tvm.runtime.engine.ExecutionContext`. Every run is a process."""

    def __init__(self, metadata: LibraryMetadata, runner: Runner, file: LibraryFile) -> None:
        super().__init__(metadata)
        self._runner, self._file = runner, file

    def run(self, function: FunctionRecord, num_threads: int) -> list[np.ndarray]:
        """As `ExecutionContext.run`."""
        kinds = [(dtype, shape) for shape, dtype in self.metadata.output_kinds(function)]
        inputs = list(self.buffers[function.name].values())
        shape = (function.batch, function.seq_len)
        return self._runner.run(
            self._file.path, shape, inputs, kinds, self.metadata.prefix, num_threads
        )


def target_of(metadata: LibraryMetadata) -> TargetDescription:
    """The target that a library was compiled for; one made on its own board calls it host."""
    from ibert_tvm.targets import get_target, target_names

    name = str(metadata.target.get("name", ""))
    if name == "host":
        settings = {key: value for key, value in metadata.target.items() if key != "name"}
        for other in (get_target(one) for one in target_names() if one != name):
            # Targets may differ in nothing but the features that their microkernels need.
            same_features = other.required_features == metadata.required_cpu_features
            if same_features and dict(other.tvm_target) == settings:
                return other
    return get_target(name)
