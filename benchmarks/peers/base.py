"""What a peer is: something that builds an artefact of a model, loads it, and runs it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.models import Cell, ModelSpec

__all__ = ["Peer", "Run"]

# Runs the model once on inputs by name, int64 [batch, seq_len], and returns its first output.
Run = Callable[[dict[str, np.ndarray]], np.ndarray]


class Peer(ABC):
    """A runtime with a precision.

    Attributes
    ----------
    name : str
        What the command line and the reports call it.
    title : str
        One line for reports: how it was configured.
    precision : str
        ``"int8"`` or ``"fp32"``.
    packages : tuple of (str, str)
        What it needs: (import name, distribution name).
    revision : int
        Raised when the way in which it builds changes, so that cached artefacts are rebuilt.
    """

    name: str
    title: str
    precision: str
    packages: tuple[tuple[str, str], ...] = ()
    revision: int = 1

    def missing(self) -> str | None:
        """Why it cannot be measured here, or None."""
        absent = [dist for module, dist in self.packages if find_spec(module) is None]
        if absent:
            return f"not installed: {', '.join(absent)} (make bench installs them)"
        return None

    def prepare(self, spec: ModelSpec, source: Path, cache: Path) -> None:  # noqa: B027
        """Bring up to date what the artefacts of all cells of a model have in common."""

    def fingerprint(self, spec: ModelSpec, cell: Cell, cache: Path) -> str:
        """What a cached artefact depends on: it is rebuilt when this text changes."""
        return self._versions()

    def _versions(self) -> str:
        versions = {}
        for _, distribution in self.packages:
            try:
                versions[distribution] = version(distribution)
            except PackageNotFoundError:
                versions[distribution] = None
        return json.dumps({"revision": self.revision, "versions": versions}, sort_keys=True)

    def artefact(self, spec: ModelSpec, cell: Cell, cache: Path) -> Path:
        """Where the artefact is kept; most serve every cell of a model."""
        return cache / "artefacts" / spec.name / self.name

    @abstractmethod
    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Make the artefact in the empty `folder` from the Hugging Face folder `source`."""

    @abstractmethod
    def load(self, folder: Path, spec: ModelSpec, cell: Cell | None, threads: int) -> Run:
        """Load the artefact, ready to run with `threads` threads.

        The inputs will have the shape of `cell`, or, where that is None, any shape.
        """
