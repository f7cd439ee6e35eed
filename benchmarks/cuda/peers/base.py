"""What a peer is on a GPU: something that loads a model once, and then runs its cells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.models import Cell, ModelSpec

from ..prepared import Prepared

__all__ = ["CellRun", "GpuPeer", "Loaded"]


class CellRun(ABC):
    """A model at one shape, ready to run, its inputs in place."""

    @abstractmethod
    def call(self) -> None:
        """One call: inputs from pinned host memory, outputs to pinned host memory, waited for."""

    def on_device(self) -> None:
        """The same without copies: inputs and outputs stay on the GPU; waited for.

        Raises
        ------
        NotImplementedError
            Where copies are a part of what is launched (`has_device_only` is false).
        """
        raise NotImplementedError

    has_device_only = False

    @abstractmethod
    def output(self) -> np.ndarray:
        """What the last call gave: real values [batch, seq_len, hidden] or [batch, hidden]."""

    def integers(self) -> np.ndarray | None:
        """The integers behind `output`; None for a peer that has none."""
        return None

    @contextmanager
    def texts(self) -> Iterator[bool]:
        """Have calls take texts of real lengths for the time of a ``with``, padding masked.

        Yields
        ------
        bool
            Whether they do: whether the peer leaves padding out.
        """
        yield False

    def texts_exact(self) -> bool:
        """Whether the integers of such a text are the same wherever in a batch it is."""
        raise NotImplementedError

    def kernel_times(self, runs: int) -> list[dict[str, Any]] | None:
        """Milliseconds of every kernel of one run, launched one by one; None if it cannot tell.

        Parameters
        ----------
        runs : int
            Runs to take medians of.

        Returns
        -------
        list of dict
            In order of execution: ``name``, ``kind``, ``layer``, ``macs``, ``bytes`` (of arguments
            and results, each once), ``median_ms``, ``min_ms``.
        """
        return None


class Loaded(ABC):
    """A peer with one model's weights on the GPU."""

    @abstractmethod
    def cell(self, cell: Cell) -> CellRun:
        """Get ready for a shape: compile, capture, run once."""


class GpuPeer(ABC):
    """A runtime with a precision.

    Attributes
    ----------
    name, title : str
        For the command line; for reports, with how it is configured.
    precision : str
        ``"int8"``, ``"fp32"`` or ``"fp16"``.
    least_cosine : float
        Below this cosine to the float reference its output is not the model's.
    by_default : bool
        Whether it is measured where nobody chooses; not if a shape takes minutes to prepare.
    """

    name: str
    title: str
    precision: str
    least_cosine: float = 0.999
    by_default: bool = True

    def missing(self, prepared: Prepared, model: str) -> str | None:
        """Why it cannot be measured here, or None."""
        return None

    @abstractmethod
    def load(self, prepared: Prepared, spec: ModelSpec) -> Loaded:
        """Bring a model to the GPU."""
