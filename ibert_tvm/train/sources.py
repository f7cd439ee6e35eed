"""Which parameters of a torch model the weights of its canonical form are.

Importing a model keeps most weights as they are, and takes rows of others (fused projections, the
pairs of rotary embeddings), or adds 1 (some norms), a number that multiplies (some embeddings) or
the row of an only token type. What is found again in the model, by its content, is trained as the
model's own parameter, so that the model is saved as its library saves it, and is imported to the
same numbers. Weights that were computed in another way (batch norms) stay as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ..common.types import Floats, Longs, Weights

_FEW = 4
"""Rows of a table that may be added to another: token types are few."""


@dataclass(frozen=True)
class WeightSource:
    """Where a canonical weight comes from.

    Attributes
    ----------
    parameter
        Name in the model's ``named_parameters()``.
    rows
        Which rows of it, int64; None for all, in order.
    transposed
        Whether rows are columns there.
    factor, offset
        What it is multiplied with, and what is added.
    row
        A row of another parameter that is added to every row.
    """

    parameter: str
    rows: Longs | None = None
    transposed: bool = False
    factor: float = 1.0
    offset: float = 0.0
    row: tuple[str, int] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is a parameter as it is, or its transpose."""
        return self.rows is None and self.row is None and (self.factor, self.offset) == (1.0, 0.0)

    @property
    def parameters(self) -> tuple[str, ...]:
        """All that it depends on."""
        return (self.parameter, *(() if self.row is None else self.row[:1]))

    def read(self, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the canonical weight, from which gradients flow back."""
        tensor = parameters[self.parameter]
        tensor = tensor.T if self.transposed else tensor
        if self.rows is not None:
            tensor = tensor[torch.from_numpy(self.rows).to(tensor.device)]
        if self.factor != 1.0:
            tensor = tensor * self.factor
        if self.offset != 0.0:
            tensor = tensor + self.offset
        return tensor if self.row is None else tensor + parameters[self.row[0]][self.row[1]]

    def write(self, parameters: Mapping[str, torch.Tensor], weight: torch.Tensor) -> None:
        """Change the parameter so that `read` returns this weight, nearly where it is scaled."""
        if self.row is not None:
            weight = weight - parameters[self.row[0]][self.row[1]]
        weight = (weight - self.offset) / self.factor
        target = parameters[self.parameter]
        target = target.T if self.transposed else target
        with torch.no_grad():
            target[... if self.rows is None else torch.from_numpy(self.rows)] = weight


def weight_sources(model: torch.nn.Module, weights: Weights) -> dict[str, WeightSource]:
    """Find canonical weights in a model.

    Parameters
    ----------
    model
        What was imported.
    weights
        Of the canonical module, by parameter name.

    Returns
    -------
    dict of str to WeightSource
        By canonical parameter name; what is missing was computed.
    """
    arrays = {
        name: parameter.detach().cpu().float().numpy()
        for name, parameter in model.named_parameters()
    }
    index = _RowIndex(arrays)
    found: dict[str, WeightSource] = {}
    for name, weight in weights.items():
        source = _by_name(name, weight, arrays) or index.find(weight)
        if source is not None:
            found[name] = source
    for name, weight in weights.items():
        if name not in found and weight.ndim == 1:
            source = _bias_of(name, weight, found, arrays)
            if source is not None:
                found[name] = source
    return found


def _by_name(name: str, weight: Floats, arrays: Weights) -> WeightSource | None:
    """The parameter of that name, behind a prefix of either, if it gives the same numbers."""
    for other, array in arrays.items():
        if not (name == other or name.endswith(f".{other}") or other.endswith(f".{name}")):
            continue
        if np.array_equal(array, weight):
            return WeightSource(other)
        if array.ndim == 2 and np.array_equal(array.T, weight):
            return WeightSource(other, transposed=True)
        if array.shape == weight.shape and array.size:
            return _changed(other, array, weight, arrays)
    return None


def _changed(name: str, array: Floats, weight: Floats, arrays: Weights) -> WeightSource | None:
    """A parameter to which a number or a row was added, or that was multiplied with a number."""
    if np.array_equal(array + np.float32(1), weight):
        return WeightSource(name, offset=1.0)
    place = np.unravel_index(np.abs(array).argmax(), array.shape)
    if array[place] != 0:
        ratio = weight[place] / array[place]
        if np.array_equal(array * ratio, weight):
            return WeightSource(name, factor=float(ratio))
    for other, rows in arrays.items():
        if array.ndim == 2 and rows.ndim == 2 and rows.shape[1:] == array.shape[1:]:
            for number, row in enumerate(rows[:_FEW]):
                if np.array_equal(array + row, weight):
                    return WeightSource(name, row=(other, number))
    return None


def _bias_of(
    name: str, weight: Floats, found: Mapping[str, WeightSource], arrays: Weights
) -> WeightSource | None:
    """The rows of a bias whose matrix is rows of another."""
    if not name.endswith("bias"):
        return None
    matrix = found.get(f"{name.removesuffix('bias')}weight")
    if matrix is None or not matrix.parameter.endswith("weight"):
        return None
    other = f"{matrix.parameter.removesuffix('weight')}bias"
    if other not in arrays:
        return None
    rows = matrix.rows if matrix.rows is not None else np.arange(len(arrays[other]))
    if len(rows) != weight.size or not np.array_equal(arrays[other][rows], weight):
        return None
    return WeightSource(other, matrix.rows)


class _RowIndex:
    """Rows of all matrices by their content."""

    def __init__(self, arrays: Weights) -> None:
        self.arrays = {name: array for name, array in arrays.items() if array.ndim == 2}
        self._places: dict[tuple[str, bool], dict[bytes, int]] = {}

    def find(self, weight: Floats) -> WeightSource | None:
        """Rows of one matrix, or of its transpose, that a canonical matrix is made of."""
        if weight.ndim != 2 or not len(weight):
            return None
        rows = [row.tobytes() for row in np.ascontiguousarray(weight)]
        for name, array in self.arrays.items():
            for transposed in (False, True):
                if array.shape[0 if transposed else 1] != weight.shape[1]:
                    continue
                places = self._rows(name, array, transposed)
                if all(row in places for row in rows):
                    chosen = np.array([places[row] for row in rows])
                    whole = np.array_equal(chosen, np.arange(len(places)))
                    return WeightSource(name, None if whole else chosen, transposed)
        return None

    def _rows(self, name: str, array: Floats, transposed: bool) -> dict[bytes, int]:
        key = name, transposed
        if key not in self._places:
            rows = np.ascontiguousarray(array.T if transposed else array)
            places = {row.tobytes(): number for number, row in enumerate(rows)}
            # Equal rows cannot be told apart: nothing is taken from such a matrix.
            self._places[key] = places if len(places) == len(rows) else {}
        return self._places[key]
