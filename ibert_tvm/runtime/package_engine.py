"""Calling a package: in Node.js, or on the board of its target, which QEMU stands for.

For a board it is linked into the example firmware, once per shape: this shows what the board will
compute, not how fast.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..common.errors import DocumentError, LibraryError, UsageError
from ..common.schema import check
from ..common.strict_json import JsonObject
from ..model.artefact import QuantizedModel
from ..model.tokenization import Tokenizer
from .buffers import BufferedInputs
from .library import Library
from .library_file import parse_metadata
from .metadata import SCHEMA, FunctionRecord, LibraryMetadata, ParameterRecord

if TYPE_CHECKING:
    from ibert_tvm.targets.packages import PackageRunner


@contextmanager
def emulated_package(folder: Path, model: Path | None = None) -> Iterator[Library]:
    """Load a package for its emulated board.

    Parameters
    ----------
    folder
        A package that `ibert compile` wrote.
    model : pathlib.Path, optional
        The folder of the quantised model that it was compiled from, for its tokenizer.

    Yields
    ------
    Library
        Runs on the board until the end of the block; without a tokenizer where no model is
        given, for a package has none.

    Raises
    ------
    LibraryError
        If the package is damaged, or its document is none of this project's.
    UsageError
        If it was compiled from another model.
    TargetError
        If a tool is missing, or no board of its target is emulated.
    """
    from ibert_tvm.targets import get_target
    from ibert_tvm.targets.bare_metal import read_package
    from ibert_tvm.targets.packages import PackageRunner

    document = read_package(folder)
    metadata = package_metadata(folder, document)
    description = get_target(str(metadata.target["name"]))
    with tempfile.TemporaryDirectory(prefix="ibert-package-") as scratch:
        runner = PackageRunner(folder, document, Path(scratch), description)
        engine = PackageEngine(metadata, runner)
        with Library(metadata, 1, engine) as library:
            if model is not None:
                library.tokenizer = _tokenizer_of(model, metadata)
            yield library


def _tokenizer_of(model: Path, metadata: LibraryMetadata) -> Tokenizer | None:
    """The tokenizer of the model that a package was compiled from."""
    quantized = QuantizedModel.load(model)
    if quantized.info.source_sha256 != metadata.source_sha256:
        raise UsageError(
            "the two do not belong together",
            where=f"{metadata.path} and {model}",
            why="they say different sources",
            todo="give the NAME.ibert folder that the package was compiled from, with --model",
        )
    return Tokenizer(quantized.tokenizer) if quantized.tokenizer else None


def package_metadata(folder: Path, document: JsonObject) -> LibraryMetadata:
    """What a package says about itself, as libraries say it; LibraryError if it cannot be used."""
    try:
        said = {
            **document,
            "required_cpu_features": [],
            "functions": [
                {**row, "name": row["symbol"], "kernels": []} for row in document["functions"]
            ],
            "parameters": [],
            "runtime": "none",
        }
        check(said, SCHEMA)
        return parse_metadata(folder, said, 0)
    except (DocumentError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise LibraryError(
            f"cannot read the package {folder}",
            why=f"its document lacks what packages of this version have: {error}",
            todo="make it again with `ibert compile`",
        ) from error


@dataclass(frozen=True)
class PackageEngine:
    """A package on its emulated board; see `ibert_tvm.runtime.engine.Engine`.

    Parameters
    ----------
    metadata
        What the package says about itself.
    runner
        Runs its shapes.
    """

    device: ClassVar = "emulated board"
    max_contexts: ClassVar = 1

    metadata: LibraryMetadata
    runner: PackageRunner

    def parameter(self, record: ParameterRecord) -> np.ndarray:
        """As `Engine.parameter`."""
        raise LibraryError(
            f"the package {self.metadata.path} does not tell its parameters",
            where=record.name,
            why="they are in the objects that firmware is linked with",
            todo="read them from the NAME.ibert folder that it was compiled from",
        )

    def create_context(self) -> PackageContext:
        """As `Engine.create_context`."""
        return PackageContext(self)


class PackageContext(BufferedInputs):
    """Inputs; see `ibert_tvm.runtime.engine.ExecutionContext`. Every run starts the board."""

    def __init__(self, engine: PackageEngine) -> None:
        super().__init__(engine.metadata)
        self._engine = engine

    def run(self, function: FunctionRecord, num_threads: int) -> list[np.ndarray]:
        """As `ExecutionContext.run`."""
        index = self.metadata.functions.index(function)
        outputs = self._engine.runner.run(index, self.buffers[function.name])
        return [outputs[record.name] for record in self.metadata.outputs]
