"""The folder with everything that a machine with a GPU needs to measure, and no compiler.

What is in it::

    DIR/manifest.json          what was compiled for what, from which sources
    DIR/limits.fatbin          the microbenchmark of the GPU's limits
    DIR/NAME/int8.so           this project's library, with all cells of a model
    DIR/NAME/fp32.so           its FP32 counterpart
    DIR/NAME/expected.npz      per cell: hash of the integers, the float model's outputs
    DIR/NAME/folder/           the float weights (config.json, model.safetensors)
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import Cell

from .errors import GpuBenchmarkError

__all__ = ["Expected", "Prepared", "hash_integers"]

SCHEMA = 1


def hash_integers(values: np.ndarray) -> str:
    """SHA-256 of integers and their shape, the same for every integer type that holds them."""
    digest = hashlib.sha256(json.dumps(list(values.shape)).encode())
    digest.update(np.ascontiguousarray(values, dtype="<i8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Expected:
    """What a cell gives.

    Attributes
    ----------
    integers : str
        `hash_integers` of the output by the integer specification, evaluated with NumPy.
    pooled : numpy.ndarray
        Mean over the tokens of the float model's output [batch, hidden], float32.
    """

    integers: str
    pooled: np.ndarray


class Prepared:
    """Paths and contents of a prepared folder.

    Parameters
    ----------
    root : Path
        The folder; need not exist yet.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def limits(self) -> Path:
        """The microbenchmark."""
        return self.root / "limits.fatbin"

    def int8(self, model: str) -> Path:
        """This project's library."""
        return self.root / model / "int8.so"

    def fp32(self, model: str) -> Path:
        """Its FP32 counterpart."""
        return self.root / model / "fp32.so"

    def folder(self, model: str) -> Path:
        """The float model."""
        return self.root / model / "folder"

    def expected_file(self, model: str) -> Path:
        """Where `expected` reads."""
        return self.root / model / "expected.npz"

    def expected(self, model: str, cell: Cell) -> Expected | None:
        """What a cell should give; None if that was not prepared."""
        path = self.expected_file(model)
        if not path.exists():
            return None
        with np.load(path) as arrays:
            if f"{cell}.integers" not in arrays:
                return None
            return Expected(str(arrays[f"{cell}.integers"]), arrays[f"{cell}.pooled"])

    def float_signature(self, model: str) -> tuple[list[str], list[str]]:
        """Names of the inputs and of the weights that the FP32 functions take, in order."""
        entry = self.manifest()["models"][model]
        return list(entry["inputs"]), list(entry["weights"])

    def manifest(self) -> dict[str, Any]:
        """What is in the folder.

        Raises
        ------
        GpuBenchmarkError
            If there is none, or of another version of this benchmark.
        """
        path = self.root / "manifest.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            schema = document["schema"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise GpuBenchmarkError(
                f"{self.root} was not prepared",
                where=str(path),
                why=str(error) or type(error).__name__,
                todo=f"python -m benchmarks.cuda --prepare {self.root} --target TARGET, on a "
                "machine with the CUDA compiler",
            ) from error
        if schema != SCHEMA:
            raise GpuBenchmarkError(
                f"{self.root} cannot be used",
                where=str(path),
                why=f"it has schema {schema!r}, and this benchmark reads {SCHEMA}",
                todo="prepare it again with this version",
            )
        return dict(document)
