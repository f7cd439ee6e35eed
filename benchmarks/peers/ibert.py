"""This project: quantised by the default preset, compiled for the host, run as users run it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.machine import COMPILER, hash_sources
from benchmarks.models import Cell, ModelSpec, calibration_texts

from .base import Peer, Run

__all__ = ["IbertBuckets", "IbertPeer"]

# What a quantised model depends on.
QUANTISING = (
    "ibert_tvm/artefact.py",
    "ibert_tvm/frontend",
    "ibert_tvm/quantize",
    "relay_passes/canonical",
    "relay_passes/integer",
    "relay_passes/lower",
    "relay_passes/quantization_table.py",
    "relay_passes/spec",
)


class IbertPeer(Peer):
    """The compiler of this repository; one library per cell, so that each is measured alone."""

    name = "ibert"
    title = "ibert_tvm, integer-only, preset accurate, target host"
    precision = "int8"
    packages = (
        ("tvm", "apache-tvm"),
        ("tvm_ffi", "apache-tvm-ffi"),
        ("torch", "torch"),
        ("transformers", "transformers"),
    )

    def fingerprint(self, spec: ModelSpec, cell: Cell) -> str:
        """Versions, and the sources of the compiler."""
        return super().fingerprint(spec, cell) + hash_sources(COMPILER)

    def artefact(self, spec: ModelSpec, cell: Cell, cache: Path) -> Path:
        """One folder per cell."""
        return cache / "artefacts" / spec.name / f"{self.name}-{cell}"

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Quantise (kept for the other cells), compile, export."""
        import ibert_tvm

        quantised = cache / "artefacts" / spec.name / "quantised.ibert"
        key_file = quantised.parent / "quantised.json"
        key = json.dumps([hash_sources(QUANTISING), super().fingerprint(spec, cell)])
        if not key_file.exists() or key_file.read_text() != key:
            key_file.unlink(missing_ok=True)
            model = ibert_tvm.load(source)
            # As many texts as the peers that calibrate get, where weights are random anyway.
            texts = calibration_texts()[: None if spec.real else 64]
            ibert_tvm.quantize(model, calibration=texts).save(quantised)
            del model
            key_file.write_text(key)
        from ibert_tvm.artefact import QuantizedModel

        library = ibert_tvm.compile(
            QuantizedModel.load(quantised), target="host", shapes=self.shapes(cell)
        )
        library.export(folder / "model.so")

    def shapes(self, cell: Cell) -> list[tuple[int, int]]:
        """The shapes in the library."""
        return [(cell.batch, cell.seq_len)]

    def load(self, folder: Path, spec: ModelSpec, cell: Cell | None, threads: int) -> Run:
        """Load the library; the timed call is the public one, input checks included."""
        from ibert_tvm.runtime import load_library

        library = load_library(folder / "model.so", num_threads=threads)

        def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
            outputs = library.run(**inputs, dequantize=False)
            return next(iter(outputs.values())).values

        return run


class IbertBuckets(IbertPeer):
    """One library with several lengths; a batch goes to the shortest that holds it."""

    name = "ibert-buckets"
    title = "ibert_tvm, lengths 32, 64 and up to the cell's in one library"

    def shapes(self, cell: Cell) -> list[tuple[int, int]]:
        """The cell's length, and 32 and 64."""
        return [(cell.batch, length) for length in sorted({32, 64, cell.seq_len})]
