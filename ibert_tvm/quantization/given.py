"""Fill a quantisation table from what a model came quantised with.

Each value of the canonical module has up to three entries in a table
(`ibert_tvm.relay_passes.lower`):

* its *matmul* form takes the grid before the matrix products that read it as it is. Attention takes
  symmetric int8 only: there the grid keeps its scale, is counted from its zero point, and what then
  lies beyond int8 saturates (`ScaleNote`);
* a *grid* rounds a value before additions, normalisations and activations read it, counted from
  the zero point, so the set of values is the source's exactly;
* its *stream* form, where one is needed besides, is finer than the grid by a power of two: it
  takes the grid's values as they are (GELU has a scale of its own, far finer too). A grid of
  16 bits is the stream itself.

With `widen` no grids are made, and streams are as fine as they can be over the grid's range.
What the source does not round stays missing, for calibration. Weights keep their integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ibert_tvm.relay_passes.lower import Requirement, requirements
from ibert_tvm.relay_passes.lower.rule import FACTOR_BY_CHANNEL, MATMUL, STREAM
from ibert_tvm.relay_passes.quantization_table import ActivationQuant

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from ..common.types import Doubles, Longs
from ..frontend.model import GivenQuantization, GivenScale
from .table import SHORT_HIGH, STREAM_HIGH, SUM_HIGH

if TYPE_CHECKING:
    from ..frontend.model import CanonicalModel

# Terms of a sum that is rounded to 8 bits come in steps of a 32nd of its own, in 15 bits, which is
# twice its range.
_SUM_FINER = 2.0**5
_WIDE = 16
# Saturating up to an eighth of int8's range is what calibrators that search a clipping choose
# anyway; beyond, a coarser scale loses less.
_CLIPPED_STEPS = 16


@dataclass(frozen=True)
class ScaleNote:
    """A scale of the source that is not used as it is.

    Attributes
    ----------
    value
        Canonical name.
    tensor
        The source's tensor.
    what
        What is done instead, and why.
    """

    value: str
    tensor: str
    what: str


@dataclass(frozen=True)
class Missing:
    """An entry of the table that the source has no scale for.

    Attributes
    ----------
    value
        Canonical name.
    section
        ``matmul`` or ``stream``.
    op
        Operator that computes the value.
    """

    value: str
    section: str
    op: str


@dataclass
class GivenScales:
    """The activations' part of a table, as far as the source fills it.

    Attributes
    ----------
    matmul, stream, grids
        See `ibert_tvm.relay_passes.quantization_table.QuantizationTable`.
    tables
        By canonical name of an embedding: the grid that its rows are rounded to.
    tensors
        The source's tensor by ``section value``.
    notes
        What is not used as it is.
    missing
        What calibration has to provide.
    """

    matmul: dict[str, ActivationQuant] = field(default_factory=dict)
    stream: dict[str, ActivationQuant] = field(default_factory=dict)
    grids: dict[str, ActivationQuant] = field(default_factory=dict)
    tables: dict[str, GivenScale] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    notes: list[ScaleNote] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)


def fill_scales(
    given: GivenQuantization, needed: Mapping[str, Requirement], widen: bool = False
) -> GivenScales:
    """Turn the source's grids into entries of a table.

    Parameters
    ----------
    given
        What the source rounds.
    needed
        What lowering needs, from `ibert_tvm.relay_passes.lower.requirements`.
    widen
        Keep what matrix products do not read in 15 or 16 bits, over the range that the source
        gives it, instead of rounding it to the source's 8.
    """
    result = GivenScales()
    for value in needed.values():
        _Filler(given, value, widen, result).run()
    return result


def missing_scales(scales: GivenScales, given: GivenQuantization) -> UsageError:
    """Return the error that lists everything the source has no scale for."""
    lines = [
        f"{item.value} ({_WORDS[item.section]} of {item.op.removeprefix('canonical.')}, "
        f"tensor {given.tensors.get(item.value, 'unnamed')})"
        for item in scales.missing
    ]
    count = f"{len(lines)} values" if len(lines) > 1 else "one value"
    return UsageError(
        f"the quantised model has no scale for {count}",
        where="".join(f"\n    {line}" for line in lines),
        why="its QuantizeLinear nodes round other tensors only, and every value of an "
        "integer-only program needs a scale",
        todo="give texts to estimate the missing scales from: --calibration FILE, or "
        "calibration=texts; the scales of the file stay as they are",
    )


_WORDS = {"matmul": "8-bit operand", "stream": "16-bit stream"}


class _Filler:
    """Fills the entries of one value."""

    def __init__(
        self, given: GivenQuantization, value: Requirement, widen: bool, result: GivenScales
    ) -> None:
        self.value = value
        self.widen = widen
        self.result = result
        readers = given.readers.get(value.name, ())
        self.products = [r.scale for r in readers if r.product and r.scale is not None]
        self.others = [r.scale for r in readers if not r.product]

    def run(self) -> None:
        rounded = self._common(self.others)
        if self.value.section == "embeddings":
            # Rounding a row of a constant table is done once, in the table.
            if rounded is not None:
                self.result.tables[self.value.name] = rounded
        elif rounded is not None:
            self._round(rounded)
        elif self.value.stream and not self.others and self.products:
            self._only_products()
        if self.value.matmul:
            self._operand()
        for section, wanted in (("matmul", self.value.matmul), ("stream", self.value.stream)):
            if wanted and self.value.name not in getattr(self.result, section):
                self.result.missing.append(Missing(self.value.name, section, self.value.op))

    def _note(self, scale: GivenScale, what: str) -> None:
        self.result.notes.append(ScaleNote(self.value.name, scale.tensor, what))

    def _set(self, section: str, quant: ActivationQuant, scale: GivenScale) -> None:
        getattr(self.result, section)[self.value.name] = quant
        self.result.tensors[f"{section} {self.value.name}"] = scale.tensor

    # -- readers other than matrix products -------------------------------------------------

    def _common(self, scales: Sequence[GivenScale | None]) -> GivenScale | None:
        """The grid that all these readers see, None if there is none or some see another."""
        seen = [scale for scale in scales if scale is not None]
        if not seen:
            return None
        first = seen[0]
        if len(seen) < len(scales):
            self._note(first, "not used: another reader takes the value unrounded")
            return None
        for scale in seen[1:]:
            if not scale.same_as(first):
                self._note(scale, f"not used: another reader has the grid of {first.tensor}")
                return None
        if not first.per_tensor:
            self._note(first, "not used: values that are added share one scale")
            return None
        return first

    def _round(self, scale: GivenScale) -> None:
        """Every reader but matrix products sees the value on this grid."""
        need = self.value.need
        grid = _plain(scale)
        if MATMUL in need.result and not need.given:
            self._note(scale, "not used: the context leaves attention as a matrix operand")
        elif self.widen and scale.bits < _WIDE:
            if self.value.stream:
                wide = _finer_sum(grid) if need.sums else self._finer(grid)
                self._set("stream", wide, scale)
        elif need.sums:
            if scale.bits >= _WIDE:
                # Terms may exceed their sum: they get room for it.
                self._set("stream", ActivationQuant(grid.scale, -SUM_HIGH, SUM_HIGH), scale)
            else:
                self._set("grids", grid, scale)
                self._set("stream", _finer_sum(grid), scale)
        elif STREAM in need.result:
            self._set("stream", grid, scale)  # rounds to it by itself
        elif not self.value.stream:
            self._set("grids", grid, scale)
        elif scale.bits >= _WIDE and max(-grid.low, grid.high) <= STREAM_HIGH + 1:
            self._set("stream", grid, scale)
        else:
            self._set("grids", grid, scale)
            self._set("stream", self._finer(grid), scale)

    def _finer(self, grid: ActivationQuant) -> ActivationQuant:
        """A 16-bit form that holds the values of `grid`."""
        largest = max(-grid.low, grid.high)
        if self.value.stream_for is not None:
            return self.value.stream_for(largest * grid.scale)
        finer = 2.0 ** np.floor(np.log2(STREAM_HIGH / largest))
        return ActivationQuant(grid.scale / finer, -STREAM_HIGH, STREAM_HIGH)

    def _only_products(self) -> None:
        """Nothing but matrix products read it: the stream form is their grid, or finer."""
        scale = self._largest(self.products)
        if not scale.per_tensor:
            return
        grid = _plain(scale)
        need = self.value.need
        if need.sums:
            wide = ActivationQuant(grid.scale, -SUM_HIGH, SUM_HIGH)
            self._set("stream", wide if scale.bits >= _WIDE else _finer_sum(grid), scale)
        else:
            itself = STREAM in need.result  # it rounds to its stream form by itself
            self._set("stream", grid if itself else self._finer(grid), scale)

    # -- matrix products ----------------------------------------------------------------------

    def _largest(self, scales: Sequence[GivenScale]) -> GivenScale:
        """The grid with the largest range; a note for others that differ."""
        best = max(scales, key=lambda s: float(np.max(s.scale)) * (s.high - s.low))
        for scale in scales:
            if not scale.same_as(best):
                self._note(scale, f"not used: one 8-bit form serves all readers, {best.tensor}")
        return best

    def _operand(self) -> None:
        if not self.products:
            return
        scale = self._largest(self.products)
        quant = self._symmetric(scale) if self.value.factor_forms else self._any_zero_point(scale)
        self._set("matmul", quant, scale)

    def _any_zero_point(self, scale: GivenScale) -> ActivationQuant:
        """For linear layers, which fold the zero point in their bias."""
        zero = scale.zero_point
        if scale.bits > 8:
            self._note(scale, f"{scale.bits} bits reduced to 8 over the same range")
            low, high = ((edge - zero) * scale.scale for edge in (scale.low, scale.high))
            step = np.asarray((high - low) / 255)
            return _asymmetric(step, np.rint(-low / step).astype(np.int64), 0, 255)
        if scale.per_tensor or (zero == zero.flat[0]).all():
            return _asymmetric(scale.scale, zero, scale.low, scale.high)
        self._note(scale, "zero points that differ between channels: made symmetric")
        reach = np.maximum(zero - scale.low, scale.high - zero)
        return _asymmetric(scale.scale * reach / 127, np.zeros_like(zero), -127, 127)

    def _symmetric(self, scale: GivenScale) -> ActivationQuant:
        """For attention."""
        divisible = {reader.form for reader in self.value.readers} == {FACTOR_BY_CHANNEL}
        step, zero = scale.scale, scale.zero_point
        if not scale.per_tensor and not divisible:
            self._note(scale, "scales per channel: queries and keys take one, the largest")
            at = int(np.argmax(step))
            step, zero = step[at], zero[at]
        low, high = scale.low - zero, scale.high - zero
        lost = int(np.max(np.maximum(high - 127, -128 - low)))
        if lost <= 0 or (lost <= _CLIPPED_STEPS and np.ndim(step) == 0):
            if lost > 0:
                self._note(
                    scale,
                    f"zero point {int(zero)}: same scale, symmetric; the {lost} outermost of "
                    f"{scale.high - scale.low + 1} steps saturate",
                )
            bottom = max(int(np.min(low)), -128)
            top = min(int(np.max(high)), 127)
            return _asymmetric(step, np.zeros_like(zero), bottom, top)
        reach = np.maximum(-low, high)
        coarser = np.asarray(step * reach / 127)
        what = f"made symmetric int8, {float(np.max(reach)) / 127:.3g} times coarser"
        if scale.bits > 8:
            what = f"{scale.bits} bits reduced to symmetric int8 over the same range"
        self._note(scale, what)
        return _asymmetric(coarser, np.zeros_like(zero), -127, 127)


def _finer_sum(grid: ActivationQuant) -> ActivationQuant:
    """The form of the terms of a sum that is rounded to `grid`."""
    reach = 2 * _SUM_FINER * max(-grid.low, grid.high)
    high = SHORT_HIGH if reach <= SHORT_HIGH else SUM_HIGH
    return ActivationQuant(grid.scale / _SUM_FINER, -high, high)


def _plain(scale: GivenScale) -> ActivationQuant:
    """The same real values, counted from the zero point."""
    zero = int(scale.zero_point)
    return ActivationQuant(float(scale.scale), scale.low - zero, scale.high - zero)


def _asymmetric(scale: Doubles, zero_point: Longs, low: int, high: int) -> ActivationQuant:
    zero = int(np.asarray(zero_point).flat[0])
    if np.ndim(scale) == 0:
        return ActivationQuant(float(scale), low, high, zero)
    largest = float(np.max(scale))
    return ActivationQuant(largest, low, high, zero, np.asarray(scale) / largest)


def given_document(model: CanonicalModel, given: GivenQuantization, preset: str) -> JsonDict:
    """Describe what a model came with, before it is quantised.

    Parameters
    ----------
    model
        The model.
    given
        What it came with.
    preset
        The preset that decides which scales are needed.

    Returns
    -------
    dict
        ``edges``: every rounding of the source and what it belongs to; ``missing``: what the
        source has no scale for; ``notes``: scales that cannot be used as they are; ``matrices``:
        per layer the rows whose integers were found.
    """
    scales = fill_scales(given, requirements(model.module, preset))
    return {
        "preset": preset,
        "edges": [asdict(edge) for edge in given.edges],
        "missing": [asdict(item) for item in scales.missing],
        "notes": [asdict(note) for note in scales.notes],
        "matrices": {
            name: {
                "tensor": matrix.tensor,
                "rows": len(matrix.found),
                "found": int(matrix.found.sum()),
            }
            for name, matrix in given.matrices.items()
        },
        "centred_keys": list(given.centred_keys),
    }
