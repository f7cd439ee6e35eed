"""This project: quantised by the default preset, compiled for the host, run as users run it."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.models import Cell, ModelSpec, calibration_texts

from .base import Peer, Run

__all__ = ["IbertPeer"]

ROOT = Path(__file__).resolve().parent.parent.parent
# What a quantised model depends on, and what only its compilation does.
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
COMPILING = ("ibert_tvm", "relay_passes", "schedules", "targets")


def _hash_sources(places: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for place in places:
        whole = ROOT / place
        for path in [whole] if whole.is_file() else sorted(whole.rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


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
        return super().fingerprint(spec, cell) + _hash_sources(COMPILING)

    def artefact(self, spec: ModelSpec, cell: Cell, cache: Path) -> Path:
        """One folder per cell."""
        return cache / "artefacts" / spec.name / f"{self.name}-{cell}"

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Quantise (kept for the other cells), compile, export."""
        import ibert_tvm

        quantised = cache / "artefacts" / spec.name / "quantised.ibert"
        key_file = quantised.parent / "quantised.json"
        key = json.dumps([_hash_sources(QUANTISING), super().fingerprint(spec, cell)])
        if not key_file.exists() or key_file.read_text() != key:
            key_file.unlink(missing_ok=True)
            model = ibert_tvm.load(source)
            ibert_tvm.quantize(model, calibration=calibration_texts()).save(quantised)
            del model
            key_file.write_text(key)
        from ibert_tvm.artefact import QuantizedModel

        library = ibert_tvm.compile(
            QuantizedModel.load(quantised), target="host", shapes=[(cell.batch, cell.seq_len)]
        )
        library.export(folder / "model.so")

    def load(self, folder: Path, spec: ModelSpec, cell: Cell, threads: int) -> Run:
        """Load the library; the timed call is the public one, input checks included."""
        # tvm_ffi imports torch where it is installed. Running a library needs none, and no other
        # peer but PyTorch has it in its memory: keep it out, as on a machine that only serves.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
        import ibert_tvm

        library = ibert_tvm.load_library(folder / "model.so", num_threads=threads)
        inputs = cell.inputs()

        def run() -> np.ndarray:
            outputs = library.run(**inputs, dequantize=False)
            return next(iter(outputs.values())).values

        return run
