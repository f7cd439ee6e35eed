"""This project: quantised by the default preset, compiled for the host, run as users run it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from benchmarks.machine import hash_sources
from benchmarks.models import Cell, ModelSpec, calibration_texts

from .base import Peer, Run

__all__ = ["IbertBuckets", "IbertPeer", "IbertTvm", "IbertVnni"]

# What a quantised model depends on, and what its compilation depends on besides.
QUANTISING = (
    "ibert_tvm/model/artefact.py",
    "ibert_tvm/frontend",
    "ibert_tvm/quantization",
    "relay_passes/canonical",
    "relay_passes/integer",
    "relay_passes/lower",
    "relay_passes/quantization_table.py",
    "relay_passes/spec",
)
COMPILING = (
    "ibert_tvm/model/artefact.py",
    "ibert_tvm/compiler/driver.py",
    "ibert_tvm/common/errors.py",
    "ibert_tvm/common/files.py",
    "ibert_tvm/model/model_info.py",
    "ibert_tvm/model/quantization_file.py",
    "ibert_tvm/runtime/library_file.py",
    "ibert_tvm/runtime/metadata.py",
    "ibert_tvm/model/shapes.py",
    "ibert_tvm/common/version.py",
    "relay_passes",
    "schedules",
    "targets",
)


def _hash_folder(folder: Path) -> str:
    """SHA-256 of the files of a folder, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(folder).as_posix().encode())
            with path.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


class IbertPeer(Peer):
    """The compiler of this repository; one library per cell, so that each is measured alone."""

    name = "ibert"
    title = "ibert_tvm, integer-only, preset accurate, target host"
    precision = "int8"
    target = "host"
    runtime = "none"
    packages = (
        ("tvm", "apache-tvm"),
        ("tvm_ffi", "apache-tvm-ffi"),
        ("torch", "torch"),
        ("transformers", "transformers"),
    )

    def prepare(self, spec: ModelSpec, source: Path, cache: Path) -> None:
        """Quantise, unless what was quantised before is of the same versions and sources."""
        quantised = self.quantised(spec, cache)
        key_file = quantised.parent / "quantised.json"
        key = json.dumps([hash_sources(QUANTISING), self._versions()])
        if key_file.exists():
            stored = json.loads(key_file.read_text())
            if isinstance(stored, dict) and stored.get("key") == key:
                return
        import ibert_tvm

        key_file.unlink(missing_ok=True)
        quantised.parent.mkdir(parents=True, exist_ok=True)
        model = ibert_tvm.load(source)
        # As many texts as the peers that calibrate get, where weights are random anyway.
        texts = calibration_texts()[: None if spec.real else 64]
        ibert_tvm.quantize(model, calibration=texts).save(quantised)
        key_file.write_text(json.dumps({"key": key, "content": _hash_folder(quantised)}))

    def fingerprint(self, spec: ModelSpec, cell: Cell, cache: Path) -> str:
        """Versions, the compiler's sources, and what the quantised model holds."""
        key_file = self.quantised(spec, cache).parent / "quantised.json"
        content = json.loads(key_file.read_text())["content"]
        return json.dumps([self._versions(), hash_sources(COMPILING), content, self.shapes(cell)])

    def artefact(self, spec: ModelSpec, cell: Cell, cache: Path) -> Path:
        """One folder per cell."""
        return cache / "artefacts" / spec.name / f"{self.name}-{cell}"

    @staticmethod
    def quantised(spec: ModelSpec, cache: Path) -> Path:
        """Where `prepare` leaves the quantised model."""
        return cache / "artefacts" / spec.name / "quantised.ibert"

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Compile what `prepare` quantised, and export it."""
        import ibert_tvm
        from ibert_tvm.model.artefact import QuantizedModel

        quantised = QuantizedModel.load(self.quantised(spec, cache))
        library = ibert_tvm.compile(
            quantised, target=self.target, shapes=self.shapes(cell), runtime=self.runtime
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


class IbertVnni(IbertPeer):
    """What the host would be without its tiles."""

    name = "ibert-vnni"
    title = "ibert_tvm, target x86-avx512-vnni"
    target = "x86-avx512-vnni"


class IbertTvm(IbertPeer):
    """A library for TVM's runtime."""

    name = "ibert-tvm"
    title = "ibert_tvm, --runtime tvm"
    runtime = "tvm"


class IbertBuckets(IbertPeer):
    """One library with several lengths; a batch goes to the shortest that holds it."""

    name = "ibert-buckets"
    title = "ibert_tvm, lengths 32, 64 and up to the cell's in one library"

    def shapes(self, cell: Cell) -> list[tuple[int, int]]:
        """The cell's length, and 32 and 64."""
        return [(cell.batch, length) for length in sorted({32, 64, cell.seq_len})]
