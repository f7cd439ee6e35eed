"""The result of importing a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..common.types import Doubles, Flags, Ints, Longs, Weights
from ..model.model_info import ModelInfo
from .report import ImportReport

if TYPE_CHECKING:
    import tvm

    from ..model.trained_scales import TrainedScales
    from .ibert_checkpoint.quantization import IbertQuantization

# Scales and integers that a model came with, in terms of its canonical module.
#
# A frontend that reads a quantised model fills this; `ibert_tvm.quantize` uses it in the place of
# estimated scales and calibrates only what is missing. It depends on no preset: which forms of a
# value lowering needs is decided later.


@dataclass(frozen=True, eq=False)
class GivenScale:
    """The grid that a value is rounded to on the way to one of its readers.

    Parameters
    ----------
    scale
        float64, scalar (shape ()), or one per channel (shape (C,)), in units of the canonical
        value.
    zero_point
        int64 of the same shape.
    low, high
        Smallest and largest integer.
    tensor
        Name of the rounded tensor in the source.
    """

    scale: Doubles
    zero_point: Longs
    low: int
    high: int
    tensor: str

    @property
    def per_tensor(self) -> bool:
        """Whether all channels share one scale and one zero point."""
        return self.scale.ndim == 0

    @property
    def bits(self) -> int:
        """Bits of an integer."""
        return (self.high - self.low + 1).bit_length() - 1

    def same_as(self, other: GivenScale) -> bool:
        """Whether both stand for the same real values, integer by integer."""
        return (
            (self.low, self.high) == (other.low, other.high)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    def __str__(self) -> str:
        kind = f"{'s' if self.low < 0 else 'u'}{self.bits}"
        if not self.per_tensor:
            return f"{kind}, {self.scale.size} scales, one per channel"
        return f"{kind}, scale {float(self.scale):.6g}, zero point {int(self.zero_point)}"


@dataclass(frozen=True)
class GivenReader:
    """One place that reads a value, and how the value is rounded for it.

    Parameters
    ----------
    node
        Name of the reading node in the source.
    product
        Whether a matrix product reads it; else an addition, a normalisation, an activation, or
        the caller.
    scale
        The last rounding before the reader; None where the source does not round.
    """

    node: str
    product: bool
    scale: GivenScale | None


@dataclass(frozen=True, eq=False)
class GivenMatrix:
    """The matrix of a linear layer or an embedding, as integers of the source.

    Parameters
    ----------
    integers
        int32 [N, K], less their zero points; rows that are not `found` hold 0.
    scale
        float64 [N].
    found
        bool [N]: rows whose integers could be identified, with one scale for the whole row.
    tensor
        Name of the matrix in the source.
    """

    integers: Ints
    scale: Doubles
    found: Flags
    tensor: str


@dataclass(frozen=True)
class EdgeUse:
    """What became of one rounding of the source.

    Parameters
    ----------
    tensor
        The rounded tensor.
    node
        The node that rounds it.
    grid
        Type, scale and zero point, for people.
    use
        ``value``: it belongs to a canonical value and is used; ``superseded``: a later one on the
        same way is used; ``inside``: it lies inside an operator that is computed in one piece;
        ``inputs``: its tensor depends on the inputs only (a mask); ``unread``: nothing that an
        output needs reads it.
    value
        Canonical name of the value, or of the operator that it lies inside of; may be empty.
    """

    tensor: str
    node: str
    grid: str
    use: str
    value: str = ""


@dataclass(frozen=True)
class GivenQuantization:
    """Everything that a model came quantised with.

    Parameters
    ----------
    readers
        By canonical name of the value.
    matrices
        By canonical name of the linear or embedding op.
    tensors
        For messages: the source's tensor that first shows each canonical value.
    edges
        What became of every rounding, in the source's order.
    centred_keys
        Canonical names of keys whose bias was shifted by a constant, which softmax does not see,
        so that an asymmetric grid becomes a symmetric one exactly.
    """

    readers: Mapping[str, tuple[GivenReader, ...]]
    matrices: Mapping[str, GivenMatrix]
    tensors: Mapping[str, str] = field(default_factory=dict)
    edges: tuple[EdgeUse, ...] = ()
    centred_keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class CanonicalModel:
    """A model in canonical form: float32, symbolic batch and sequence length.

    Attributes
    ----------
    module
        One function ``main`` in the canonical dialect (docs/architecture.md).
    parameters
        Its weights by parameter name, float32. They may share memory with the source: read only.
    info
        Architecture, sizes, head and source.
    report
        What was matched and folded on the way here; `print(model.report)`.
    tokenizer
        The source's tokenizer files by name, empty if it had none.
    verified_error
        Largest absolute difference from the source's outputs on the verification batch; None if
        `load` was asked not to verify.
    given
        Scales and integers that a quantised source came with; `ibert_tvm.quantize` uses them.
    released
        Ranges of an I-BERT checkpoint, for the preset ``released``.
    trained
        Scales that the model was trained with (`ibert_tvm.train`); `ibert_tvm.quantize` uses them.
    """

    module: tvm.IRModule
    parameters: Weights
    info: ModelInfo
    report: ImportReport
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    verified_error: float | None = None
    given: GivenQuantization | None = None
    released: IbertQuantization | None = None
    trained: TrainedScales | None = None
