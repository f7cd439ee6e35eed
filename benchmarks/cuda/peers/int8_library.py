"""This project: the library that `ibert compile` makes, run as users run it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.models import Cell, ModelSpec

from ..cells import mask_of_texts
from ..prepared import Prepared
from .base import CellRun, GpuPeer, Loaded

__all__ = ["Int8Peer"]


class _Run(CellRun):
    def __init__(self, library: Any, cell: Cell) -> None:
        self._function = next(
            function
            for function in library.metadata.functions
            if (function.batch, function.seq_len) == (cell.batch, cell.seq_len)
        )
        self._library, self._cell = library, cell
        # The first run uploads inputs and captures the graph; it also gives the outputs.
        outputs = library.run(**cell.inputs(), dequantize=False)
        self._output = next(iter(outputs.values()))
        with library.contexts.lent() as context:  # the one that ran: nobody else uses the library
            self._context = context

    def call(self) -> None:
        """One graph: copies of inputs, kernels, copies of outputs."""
        self._context.replay(self._function)

    def output(self) -> np.ndarray:
        return self._output.dequantize()

    def integers(self) -> np.ndarray:
        return self._output.values

    @contextmanager
    def texts(self) -> Iterator[bool]:
        mask = self._context.inputs(self._function)["attention_mask"]
        whole = mask.copy()
        mask[:] = mask_of_texts(self._cell)
        try:
            yield self._function.packed
        finally:
            mask[:] = whole

    def texts_exact(self) -> bool:
        ids, mask = self._cell.inputs()["input_ids"], mask_of_texts(self._cell)
        outputs = [
            next(iter(self._library.run(rows, kept, dequantize=False).values())).values
            for rows, kept in ((ids, mask), (ids[::-1], mask[::-1]))
        ]
        self._library.run(**self._cell.inputs())  # what the next call takes
        return bool(np.array_equal(outputs[0], outputs[1][::-1]))

    def kernel_times(self, runs: int) -> list[dict[str, Any]]:
        records = self._function.kernels
        times = [self._context.kernel_times(self._function) for _ in range(runs)]
        rows = []
        for index, (name, _) in enumerate(times[0]):
            values = [run[index][1] for run in times]
            known = records[index] if index < len(records) else None
            rows.append(
                {
                    "name": name,
                    "kind": known.kind if known else "unlisted",
                    "layer": known.layer if known else "",
                    "macs": known.macs if known else 0,
                    "bytes": known.num_bytes if known else 0,
                    "median_ms": statistics.median(values),
                    "min_ms": min(values),
                }
            )
        return rows


class _Loaded(Loaded):
    def __init__(self, library: Any) -> None:
        self._library = library

    def cell(self, cell: Cell) -> CellRun:
        return _Run(self._library, cell)


class Int8Peer(GpuPeer):
    """Integer-only, one library with all cells of a model, one CUDA graph per cell."""

    name = "ibert-int8"
    title = "ibert_tvm INT8, integer-only, preset accurate, one CUDA graph"
    precision = "int8"
    # Quantisation costs 0.002 to 0.007 with trained weights, a tenth of that with random ones.
    least_cosine = 0.98

    def missing(self, prepared: Prepared, model: str) -> str | None:
        """Its library must have been prepared."""
        return None if prepared.int8(model).exists() else f"{prepared.int8(model)} is missing"

    def load(self, prepared: Prepared, spec: ModelSpec) -> Loaded:
        """Load the library on the first GPU."""
        from ibert_tvm.runtime import load_library

        return _Loaded(load_library(prepared.int8(spec.name), device="cuda"))
